"""Pure: classify the kernel's answers as expected, as failures, or as worth a note."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import NamedTuple

from hostrouting.config.routing import ExpectedCidr, RouteOverlap
from hostrouting.kernel.rules import NO_SOURCE
from hostrouting.model.links import is_like
from hostrouting.model.prefixes import ends, numbers
from hostrouting.model.routes import Protocol, Route, RouteType, Table
from hostrouting.overlap._state import Probe, State
from hostrouting.overlap.findings import FindingKind, NoteKind

Classifications = Mapping[int, tuple["Classification", ...]]

# The blackhole route for Calico's own block has protocol 80; BIRD's has protocol 12.
CNI_PROTOCOLS = (Protocol.BIRD, 80)


class Classification(NamedTuple):
    """The meaning of an answer from the kernel.

    Args:
        kind: the kind of the failure or note, or None if the answer is as expected.
        probe: the probe with the kernel's answer.
        devs: the interfaces to report: all that packets leave through, or only the exempted ones.
        route: the entry that wins or discards packets, or None if there is none.
        is_lost: whether this local or broadcast address hides an address of the cluster.
    """

    kind: FindingKind | NoteKind | None
    probe: Probe
    devs: tuple[str, ...] = ()
    route: Route | None = None
    is_lost: bool = False

    @property
    def discarded_by(self) -> RouteType | None:
        """Return the type of the entry that discards packets.

        Connections are also discarded by broadcast and multicast entries.
        """
        if self.kind is FindingKind.BLACKHOLE and self.probe.lookup.route is not None:
            return self.probe.lookup.route.type
        return self.probe.lookup.discarded_by

    @property
    def is_failure(self) -> bool:
        """Return whether this is a failure rather than a note."""
        return isinstance(self.kind, FindingKind)

    @property
    def is_sent_to_many(self) -> bool:
        """Return whether packets leave as expected through a multicast entry, which TCP doesn't connect to."""
        return self.kind is None and self.route is not None and self.route.type is RouteType.MULTICAST

    @property
    def is_local(self) -> bool:
        """Return whether the address is local or broadcast, which no route changes."""
        return self.kind in (NoteKind.LOCAL, NoteKind.BROADCAST)

    @property
    def group(self) -> Hashable:
        """Return the key by which a CIDR's results are grouped into findings."""
        if self.is_failure:
            return (self.kind, self.devs, self.probe.source)
        return (self.kind, self.is_lost, self.route if self.kind is NoteKind.CNI_DISCARD else None)


def classify_probes(overlap: RouteOverlap, state: State) -> dict[ExpectedCidr, Classifications]:
    """Classify the kernel's answers for each expected CIDR.

    Args:
        overlap: the expected CIDRs, and other interfaces that may carry their traffic.
        state: the state of the host.

    Returns:
        The classifications for each CIDR and probe. The first one belongs to the first answer. The others belong to
        failing answers and local addresses that the first one doesn't cover. CIDRs that expect the same interfaces
        share their classifications.
    """
    classifiers = {expected.devs: _Classifier(overlap, state, expected) for expected in overlap.expected_cidrs}
    return {expected: classifiers[expected.devs] for expected in overlap.expected_cidrs}


def classify_each(overlap: RouteOverlap, state: State, probed: int) -> list[Classification]:
    """Classify each answer to a probe for the first expected CIDR that it fails, or for any CIDR if it fails none."""
    probes = state.probes[probed]
    by_cidr = [_Classifier(overlap, state, expected).each(probes) for expected in overlap.expected_cidrs]
    of_each = zip(*by_cidr, strict=True)
    return [
        next((each for each in classifications if each.is_failure), classifications[0]) for classifications in of_each
    ]


def _rank(classification: Classification) -> tuple[bool, bool]:
    is_later = classification.probe.is_tcp or classification.probe.source is not None
    return is_later, not (is_later or classification.is_failure)


def sends(probe: Probe, probes: Sequence[Probe]) -> bool:
    """Return whether packets use a lookup.

    If TCP makes a second lookup, the first one only chooses the source.
    """
    is_first_of_tcp = probe.is_tcp and probe.source is None
    return not (is_first_of_tcp and any(each.is_tcp and each.source is not None for each in probes))


def _refuses_tcp(probes: Sequence[Probe]) -> bool:
    """Return whether the last TCP lookup ends at a multicast entry.

    TCP repeats its lookup once it has a source.
    """
    of_tcp = [probe for probe in probes if probe.is_tcp] or probes
    last = [probe for probe in of_tcp if probe.source is not None] or of_tcp
    return any(each.lookup.route is not None and each.lookup.route.type is RouteType.MULTICAST for each in last)


class _Classifier(dict[int, "tuple[Classification, ...]"]):
    """The classifications for one choice of expected interfaces, computed on demand."""

    def __init__(self, overlap: RouteOverlap, state: State, expected: ExpectedCidr) -> None:
        self._state, self._expected, self._uplinks = state, expected, state.uplinks
        # If a CIDR names interfaces, it accepts only those.
        exempted = (overlap.container_devs, overlap.allowed_devs) if expected.devs is None else ((), ())
        container_devs, self._allowed_devs = exempted
        self._belongs_to_pods = cache(partial(is_like, patterns=container_devs))

    def __missing__(self, probed: int) -> tuple[Classification, ...]:
        probes = self._state.probes[probed]
        classifications = self[probed] = tuple(self._classifications(probes) if len(probes) > 1 else self.each(probes))
        return classifications

    def _classifications(self, probes: Sequence[Probe]) -> Iterator[Classification]:
        judged = (probe for probe in probes if sends(probe, probes))
        # If default routes take turns, any of them may carry the first packet, so a failing one comes first.
        first, *others = sorted(self.each(tuple(judged)), key=_rank)
        unconnected = {each.group for each in (first, *others) if each.probe.source is None}
        yield first
        more: dict[Hashable, Classification] = {first.group: first}
        for classification in others:
            is_reported = (
                classification.probe.source is not None
                and (classification.kind, classification.devs, None) in unconnected
            )
            if (classification.is_failure or classification.is_local) and not is_reported:
                more.setdefault(classification.group, classification)
        yield from sorted([*more.values()][1:], key=lambda classification: int(classification.probe.source or 0))

    def each(self, probes: Sequence[Probe]) -> list[Classification]:
        """Return the classification of each answer to a probe."""
        classifications = list(map(self._classify, probes))
        if classifications[0].is_local:
            return classifications
        # Unconnected datagrams take another path, and TCP doesn't connect at all (tcp_v4_connect).
        return [
            classification._replace(kind=FindingKind.BLACKHOLE, devs=())
            if classification.kind is NoteKind.BROADCAST or (classification.is_sent_to_many and _refuses_tcp(probes))
            else classification
            for classification in classifications
        ]

    def _classify(self, probe: Probe) -> Classification:
        route = probe.lookup.route
        if route is None:
            return self._discarded(probe)
        is_local = route.type in (RouteType.LOCAL, RouteType.BROADCAST) and self._is_beyond_routes(probe, route)
        # Packets that match another local entry never leave this host either, whatever device the entry names.
        devs = ("lo",) if route.type is RouteType.LOCAL and not is_local else route.devs
        foreign = tuple(dev for dev in devs if not self._expected.is_expected(dev, self._uplinks))
        if is_local:
            kind = NoteKind.LOCAL if route.type is RouteType.LOCAL else NoteKind.BROADCAST
            return Classification(kind, probe, devs, route, is_lost=bool(set(foreign) - {"lo"}))
        if devs and not foreign and route.type is RouteType.BROADCAST:
            return Classification(FindingKind.BLACKHOLE, probe, (), route)
        if devs and not foreign:
            return Classification(None, probe, devs, route)
        if devs and all(map(self._belongs_to_pods, foreign)):
            return Classification(NoteKind.CONTAINER, probe, foreign, route)
        if devs and all(self._belongs_to_pods(dev) or is_like(dev, self._allowed_devs) for dev in foreign):
            return Classification(NoteKind.ALLOWED, probe, foreign, route)
        return Classification(FindingKind.OVERLAP, probe, devs, route)

    def _is_beyond_routes(self, probe: Probe, route: Route) -> bool:
        """Return whether an entry is in table local and for one address, so that no route can take precedence.

        As long as local and main share one trie (fib_trie_unmerge), the kernel reports main for the entries of both,
        and a longer entry of main wins over a shorter one of local.
        """
        if route.destination.prefixlen < 32:
            return False
        entry = self._state.fib.longest_match(Table.LOCAL, probe.lookup.address)
        return entry is not None and (entry.destination, entry.type) == (route.destination, route.type)

    def _discarded(self, probe: Probe) -> Classification:
        lookup = probe.lookup
        if lookup.discarded_by is None:
            return Classification(FindingKind.NO_ROUTE, probe)
        entry = self._state.fib.decide(lookup.address, probe.source or NO_SOURCE, is_tcp=probe.is_tcp).route
        route = entry if entry is not None and entry.type is lookup.discarded_by else None
        if route is not None and self._expected.devs is None and self._is_of_cni(route):
            return Classification(NoteKind.CNI_DISCARD, probe, (), route)
        return Classification(FindingKind.BLACKHOLE, probe, (), route)

    def _is_of_cni(self, discard: Route) -> bool:
        """Return whether a CNI made this blackhole for its own block.

        Either the protocol shows this, or the same table has routes to pods inside the block. A discarded default route
        is never such a block.
        """
        block = numbers(discard.destination)
        if discard.destination.prefixlen == 0:
            return False
        if discard.protocol in CNI_PROTOCOLS:
            return True
        position = bisect_left(self._pods, (discard.table, *block))
        return position < len(self._pods) and self._pods[position] <= (discard.table, ends(block)[1], 32)

    @cached_property
    def _pods(self) -> list[tuple[int, int, int]]:
        """Return the table and destination of each route to a container interface, sorted."""
        return sorted(
            (route.table, *numbers(route.destination))
            for route in self._state.routes
            if any(dev not in self._uplinks and self._belongs_to_pods(dev) for dev in route.devs)
        )
