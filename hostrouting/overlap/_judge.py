"""Classify the kernel's lookup results as expected, failing, or worth a note.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import NamedTuple

from hostrouting.config.routing import ExpectedCidr, RouteOverlap
from hostrouting.kernel.rules import Flow
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import PrefixSet, ends, numbers
from hostrouting.model.links import Address, is_like
from hostrouting.model.routes import Protocol, Route, RouteType, Table
from hostrouting.overlap._ask import Probe
from hostrouting.overlap._bounds import Bounds
from hostrouting.overlap._state import State
from hostrouting.overlap.findings import FindingKind, NoteKind

Classifications = Mapping[int, tuple["Classification", ...]]

# Kinds of notes that are reported even if other lookups for the address are as expected.
_TOLD_OF_ANY_LOOKUP = (NoteKind.LOCAL, NoteKind.BROADCAST, NoteKind.CNI_DISCARD)


class Classification(NamedTuple):
    """The classification of a lookup result.

    Args:
        kind: kind of failure or note, or None if the result is as expected.
        probe: the probe that returned the result.
        devs: interfaces to report: all outgoing interfaces, or only the exempted ones.
        route: the matching entry, which may discard packets, or None if no entry matches.
        is_lost: whether this local or broadcast address hides an address in the cluster.
        is_answered: whether a service of this host answers at this local address, such as a DNS
            cache or kube-proxy.
        bound: why the exemption for pods' interfaces doesn't cover this failure, or an empty
            string.
        shared: the uplink's subnet in which this network of pods or answered address lies, in
            words, or an empty string.
        gateway: this host's own address that is the gateway of the matching entry, if any.
    """

    kind: FindingKind | NoteKind | None
    probe: Probe
    devs: tuple[str, ...] = ()
    route: Route | None = None
    is_lost: bool = False
    is_answered: bool = False
    bound: str = ""
    shared: str = ""
    gateway: Address | None = None

    @property
    def address(self) -> IpAddress:
        """Return the destination that was looked up."""
        return self.probe.lookup.address

    @property
    def discarded_by(self) -> RouteType | None:
        """Return the type of the entry that discards packets.

        For connections, this includes broadcast and multicast entries.
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
        """Return whether packets leave through a permitted interface but match a multicast entry, which TCP refuses."""
        may_leave = self.kind in (None, NoteKind.CONTAINER, NoteKind.ALLOWED)
        return (
            may_leave
            and self.route is not None
            and _type_for_sockets(self.route) is RouteType.MULTICAST
        )

    @property
    def is_local(self) -> bool:
        """Return whether the address is local or broadcast and thus unaffected by routes."""
        return self.kind in (NoteKind.LOCAL, NoteKind.BROADCAST)

    @property
    def group(self) -> Hashable:
        """Return the key for grouping a CIDR's results into findings."""
        if self.is_failure:
            return (self.kind, self.devs, self.probe.source, self.probe.is_reply)
        return (
            self.kind,
            self.is_lost,
            self.is_answered,
            self.shared,
            self.route if self.kind is NoteKind.CNI_DISCARD else None,
        )


def classify_probes(overlap: RouteOverlap, state: State) -> dict[ExpectedCidr, Classifications]:
    """Classify the lookup results for each expected CIDR.

    Args:
        overlap: the expected CIDRs, and any other interfaces allowed to carry their traffic.
        state: the host's state.

    Returns:
        A mapping from each CIDR to its probes, and from each probe to classifications. The first
        classification is for the first lookup. The rest are failures, local or broadcast addresses,
        and a CNI's discards that only other lookups show. CIDRs that expect the same interfaces
        share their classifications, except CIDRs with discards.
    """
    bounds = _bounds(overlap, state)
    discards = PrefixSet(
        (numbers(route.destination) for route in state.routes if route.type.is_discard), bounds.bits
    )

    # Whether a discard is a CNI's own block depends on the expected CIDR, so a CIDR with discards
    # shares no results.
    def key(expected: ExpectedCidr) -> Hashable:
        is_open = discards.overlaps(*ends(numbers(expected.cidr), bounds.bits))
        return expected if is_open else expected.devs

    keys = {expected: key(expected) for expected in overlap.expected_cidrs}
    firsts = {each: expected for expected, each in keys.items()}
    classifiers = {
        each: _Classifier(overlap, state, bounds, expected) for each, expected in firsts.items()
    }
    return {expected: classifiers[each] for expected, each in keys.items()}


def _bounds(overlap: RouteOverlap, state: State) -> Bounds:
    return Bounds(
        overlap.container_devs, state.family, state.uplinks, state.addresses, state.routes
    )


def classify_each(overlap: RouteOverlap, state: State, probed: int) -> list[Classification]:
    """Classify each lookup result of a probe for the first expected CIDR that it fails for, or else the first CIDR."""
    probes, bounds = state.probes[probed], _bounds(overlap, state)
    by_cidr = [
        _Classifier(overlap, state, bounds, expected).each(probes)
        for expected in overlap.expected_cidrs
    ]
    by_lookup = zip(*by_cidr, strict=True)
    return [next(filter(attrgetter("is_failure"), found), found[0]) for found in by_lookup]


def _type_for_sockets(route: Route) -> RouteType:
    """Return a route's type, or unicast for an IPv6 broadcast or multicast route, which sockets use like any other."""
    is_for_many = route.type in (RouteType.BROADCAST, RouteType.MULTICAST)
    return RouteType.UNICAST if is_for_many and route.family is Family.IPV6 else route.type


def _rank(classification: Classification) -> tuple[bool, bool, bool]:
    is_later = classification.probe.is_tcp or classification.probe.source is not None
    return is_later, classification.probe.is_reply, not (is_later or classification.is_failure)


def sends(probe: Probe, probes: Sequence[Probe]) -> bool:
    """Return whether a lookup determines where packets are sent.

    If TCP performs a second lookup over IPv4, the first one only selects the source address. Over
    IPv6, a failed first lookup is retried with a source address.
    """
    again = [
        each
        for each in probes
        if each.source is not None and each.is_tcp == probe.is_tcp and not each.is_reply
    ]
    if probe.source is not None or not again:
        return True
    if probe.lookup.address.version == 6:
        return probe.lookup.route is not None or all(each.lookup.route is None for each in again)
    return not probe.is_tcp


def _refuses_tcp(probes: Sequence[Probe]) -> bool:
    """Return whether the last TCP lookup matches a multicast entry.

    TCP repeats the lookup once it has selected a source address.
    """
    probes = [probe for probe in probes if not probe.is_reply]
    of_tcp = [probe for probe in probes if probe.is_tcp] or probes
    last = [probe for probe in of_tcp if probe.source is not None] or of_tcp
    routes = (each.lookup.route for each in last)
    return any(
        route is not None and _type_for_sockets(route) is RouteType.MULTICAST for route in routes
    )


class _Classifier(dict[int, "tuple[Classification, ...]"]):
    """Classifications for one set of expected interfaces, computed lazily."""

    def __init__(
        self, overlap: RouteOverlap, state: State, bounds: Bounds, expected: ExpectedCidr
    ) -> None:
        self._bounds = bounds
        self._state, self._expected, self._uplinks = state, expected, state.uplinks.devs
        self._family, self._bits = state.family, state.family.bits
        # If a CIDR has its own list of interfaces, no others are allowed.
        exempted = (
            (overlap.container_devs, overlap.allowed_devs) if expected.devs is None else ((), ())
        )
        container_devs, self._allowed_devs = exempted
        self._belongs_to_pods = cache(partial(is_like, patterns=container_devs))

    def __missing__(self, probed: int) -> tuple[Classification, ...]:
        probes = self._state.probes[probed]
        classifications = self[probed] = tuple(
            self._classifications(probes) if len(probes) > 1 else self.each(probes)
        )
        return classifications

    def _classifications(self, probes: Sequence[Probe]) -> Iterator[Classification]:
        judged = (probe for probe in probes if sends(probe, probes))
        # If the kernel alternates between default routes, the first packet may use any of them, so
        # sort failures first.
        first, *others = sorted(self.each(tuple(judged)), key=_rank)
        unconnected = {
            (each.kind, each.devs) for each in (first, *others) if each.probe.source is None
        }
        yield first
        more: dict[Hashable, Classification] = {first.group: first}
        for classification in others:
            kind, probe, devs, *_ = classification
            is_reported = probe.source is not None and (kind, devs) in unconnected
            is_reported |= probe.is_reply and (kind, devs, probe.source, False) in more
            is_told = classification.is_failure or kind in _TOLD_OF_ANY_LOOKUP
            if is_told and not is_reported:
                more.setdefault(classification.group, classification)
        yield from sorted(
            [*more.values()][1:],
            key=lambda each: (each.probe.is_reply, int(each.probe.source or 0)),
        )

    def each(self, probes: Sequence[Probe]) -> list[Classification]:
        """Classify each lookup result."""
        classifications = list(map(self._classify, probes))
        if classifications[0].is_local:
            return classifications
        # TCP refuses to connect if it finds such an entry (tcp_v4_connect), even if unconnected
        # datagrams are sent.
        return [
            classification._replace(kind=FindingKind.BLACKHOLE, devs=())
            if classification.kind is NoteKind.BROADCAST
            or (classification.is_sent_to_many and _refuses_tcp(probes))
            else classification
            for classification in classifications
        ]

    def _classify(self, probe: Probe) -> Classification:
        route = probe.lookup.route
        if route is None:
            return self._discarded(probe)
        # IPv6 anycast addresses are delivered to this host too.
        is_anycast = route.type is RouteType.ANYCAST and route.protocol == Protocol.KERNEL
        ends_here = route.type is RouteType.LOCAL or (is_anycast and self._family is Family.IPV6)
        is_broadcast = _type_for_sockets(route) is RouteType.BROADCAST
        is_local = (ends_here or is_broadcast) and self._is_beyond_routes(probe, route)
        # Packets that match any other local entry don't leave this host either, regardless of the
        # entry's device.
        devs = ("lo",) if ends_here and not is_local else route.devs
        foreign = tuple(dev for dev in devs if not self._expected.is_expected(dev, self._uplinks))
        if is_local:
            kind = NoteKind.LOCAL if ends_here else NoteKind.BROADCAST
            others = {*foreign} - {"lo"}
            if others and all(map(self._belongs_to_pods, others)):
                shared = self._bounds.shared_subnet(
                    self._family.network((int(probe.lookup.address), self._bits))
                )
                return Classification(kind, probe, devs, route, is_answered=True, shared=shared)
            return Classification(kind, probe, devs, route, is_lost=bool(others))
        if devs and not foreign and is_broadcast:
            return Classification(FindingKind.BLACKHOLE, probe, (), route)
        if devs and not foreign:
            own = self._bounds.own_gateway(route)
            return Classification(
                None if own is None else FindingKind.GATEWAY, probe, devs, route, gateway=own
            )
        of_pods = {dev for dev in foreign if not is_like(dev, self._allowed_devs)}
        if not devs or not all(map(self._belongs_to_pods, of_pods)):
            return Classification(FindingKind.OVERLAP, probe, devs, route)
        if of_pods and (bound := self._bounds.why_beyond(route, probe.lookup.address)):
            return Classification(FindingKind.OVERLAP, probe, devs, route, bound=bound)
        if is_broadcast:
            return Classification(FindingKind.BLACKHOLE, probe, (), route)
        if len(of_pods) == len(foreign):
            is_wide = route.destination.prefixlen < self._bits
            shared = self._bounds.shared_subnet(route.destination) if is_wide else ""
            return Classification(NoteKind.CONTAINER, probe, foreign, route, shared=shared)
        return Classification(NoteKind.ALLOWED, probe, foreign, route)

    def _is_beyond_routes(self, probe: Probe, route: Route) -> bool:
        """Return whether an entry is a host route in table local, which takes precedence over any other route.

        While local and main share one trie (until fib_trie_unmerge), the kernel reports main for
        the entries in both, and a longer prefix in main takes precedence over a shorter one in
        local.
        """
        if route.destination.prefixlen < self._bits:
            return False
        entry = self._state.fib.longest_match(Table.LOCAL, Flow(probe.lookup.address))
        return entry is not None and (entry.destination, entry.type) == (
            route.destination,
            route.type,
        )

    def _discarded(self, probe: Probe) -> Classification:
        lookup = probe.lookup
        if lookup.discarded_by is None:
            return Classification(FindingKind.NO_ROUTE, probe)
        entry = self._state.fib.decide(probe.flow).route
        if entry is not None and entry.type is not lookup.discarded_by:
            # The kernel refuses to send from a loopback address through another interface, whatever
            # the entry's type.
            return Classification(
                FindingKind.BLACKHOLE, probe, (), entry if entry.type is RouteType.UNICAST else None
            )
        if (
            entry is not None
            and self._expected.devs is None
            and self._bounds.is_block(entry, self._expected.cidr)
        ):
            return Classification(NoteKind.CNI_DISCARD, probe, (), entry)
        return Classification(FindingKind.BLACKHOLE, probe, (), entry)
