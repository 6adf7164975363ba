"""Pure: what each of the kernel's answers means: as expected, a failure, or worth a note."""

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
from hostrouting.overlap._reading import Answer, Reading
from hostrouting.overlap.findings import FindingKind, NoteKind

Outcomes = Mapping[int, tuple["Outcome", ...]]

# Calico's blackhole of its own block has protocol 80; BIRD's has 12.
_CNI_PROTOCOLS = (Protocol.BIRD, 80)


class Outcome(NamedTuple):
    """Meaning of an answer.

    Args:
        kind: of the failure or note; None: as expected.
        answer: the kernel's.
        devs: what to name: the interfaces that it leaves by, of a container's or an allowed one only those.
        route: the entry that wins or discards; None if there is none.
        is_lost: of an own or a broadcast address: whether it hides one of the cluster's.
    """

    kind: FindingKind | NoteKind | None
    answer: Answer
    devs: tuple[str, ...] = ()
    route: Route | None = None
    is_lost: bool = False

    @property
    def discarded_by(self) -> RouteType | None:
        """The type of what discards; to a connection a broadcast or a multicast entry does so too."""
        if self.kind is FindingKind.BLACKHOLE and self.answer.lookup.route is not None:
            return self.answer.lookup.route.type
        return self.answer.lookup.discarded_by

    @property
    def is_failure(self) -> bool:
        """Return whether it is a failure, and not only noted."""
        return isinstance(self.kind, FindingKind)

    @property
    def is_sent_to_many(self) -> bool:
        """Tell whether it goes as expected by a multicast entry, to which TCP doesn't connect."""
        return self.kind is None and self.route is not None and self.route.type is RouteType.MULTICAST

    @property
    def is_own(self) -> bool:
        """Return whether no route changes it: a local or a broadcast address."""
        return self.kind in (NoteKind.LOCAL, NoteKind.BROADCAST)

    @property
    def group(self) -> Hashable:
        """Return the key of what is reported in one finding, of one CIDR."""
        if self.is_failure:
            return (self.kind, self.devs, self.answer.source)
        return (self.kind, self.is_lost, self.route if self.kind is NoteKind.CNI_DISCARD else None)


def sort_answers(overlap: RouteOverlap, reading: Reading) -> dict[ExpectedCidr, Outcomes]:
    """Sort the kernel's answers by expected CIDR and by what they mean to it.

    Args:
        overlap: the CIDRs, and what may carry them besides.
        reading: the host.

    Returns:
        For each CIDR and question what its first answer means, and then each failure of the other answers, and each
        own address, that this one doesn't tell of. What holds for a CIDR holds for all that expect the same interfaces.
    """
    sorters = {expected.devs: _Sorter(overlap, reading, expected) for expected in overlap.expected_cidrs}
    return {expected: sorters[expected.devs] for expected in overlap.expected_cidrs}


def sort_each(overlap: RouteOverlap, reading: Reading, question: int) -> list[Outcome]:
    """Return what each answer to a question means: to the first expected CIDR that it fails for, or else to any."""
    answers = reading.answers[question]
    by_cidr = [_Sorter(overlap, reading, expected).each(answers) for expected in overlap.expected_cidrs]
    of_each = zip(*by_cidr, strict=True)
    return [next((each for each in outcomes if each.is_failure), outcomes[0]) for outcomes in of_each]


def _rank(outcome: Outcome) -> tuple[bool, bool]:
    is_later = outcome.answer.is_tcp or outcome.answer.source is not None
    return is_later, not (is_later or outcome.is_failure)


def _refuses_tcp(answers: Sequence[Answer]) -> bool:
    """Tell whether TCP, which is looked up a second time where it gets a source, ends at a multicast entry."""
    of_tcp = [answer for answer in answers if answer.is_tcp] or answers
    last = [answer for answer in of_tcp if answer.source is not None] or of_tcp
    return any(each.lookup.route is not None and each.lookup.route.type is RouteType.MULTICAST for each in last)


class _Sorter(dict[int, "tuple[Outcome, ...]"]):
    """The outcomes of the lookups that are asked for: each CIDR may expect interfaces of its own."""

    def __init__(self, overlap: RouteOverlap, reading: Reading, expected: ExpectedCidr) -> None:
        self._reading, self._expected, self._uplinks = reading, expected, reading.uplinks
        # Who names interfaces means these alone.
        exempted = (overlap.container_devs, overlap.allowed_devs) if expected.devs is None else ((), ())
        container_devs, self._allowed_devs = exempted
        self._belongs_to_pods = cache(partial(is_like, patterns=container_devs))

    def __missing__(self, question: int) -> tuple[Outcome, ...]:
        answers = self._reading.answers[question]
        outcomes = self[question] = tuple(self._outcomes(answers) if len(answers) > 1 else self.each(answers))
        return outcomes

    def _outcomes(self, answers: Sequence[Answer]) -> Iterator[Outcome]:
        connects = any(answer.is_tcp and answer.source is not None for answer in answers)
        # TCP's first look-up only chooses the source where a second follows: it sends nothing unconnected.
        judged = (answer for answer in answers if not (answer.is_tcp and answer.source is None and connects))
        # Of default routes that are taken by turns any may carry the first packet: a failing one comes first.
        first, *others = sorted(self.each(tuple(judged)), key=_rank)
        unconnected = {each.group for each in (first, *others) if each.answer.source is None}
        yield first
        more: dict[Hashable, Outcome] = {first.group: first}
        for outcome in others:
            is_told = outcome.answer.source is not None and (outcome.kind, outcome.devs, None) in unconnected
            if (outcome.is_failure or outcome.is_own) and not is_told:
                more.setdefault(outcome.group, outcome)
        yield from sorted([*more.values()][1:], key=lambda outcome: int(outcome.answer.source or 0))

    def each(self, answers: Sequence[Answer]) -> list[Outcome]:
        """Return what each answer to a question means."""
        outcomes = list(map(self._sort, answers))
        if outcomes[0].is_own:
            return outcomes
        # Datagrams that aren't connected go elsewhere, and TCP doesn't connect at all (tcp_v4_connect).
        return [
            outcome._replace(kind=FindingKind.BLACKHOLE, devs=())
            if outcome.kind is NoteKind.BROADCAST or (outcome.is_sent_to_many and _refuses_tcp(answers))
            else outcome
            for outcome in outcomes
        ]

    def _sort(self, answer: Answer) -> Outcome:
        route = answer.lookup.route
        if route is None:
            return self._discarded(answer)
        is_own = route.type in (RouteType.LOCAL, RouteType.BROADCAST) and self._is_beyond_routes(answer, route)
        # What another local entry takes never leaves this host either, whatever its device.
        devs = ("lo",) if route.type is RouteType.LOCAL and not is_own else route.devs
        foreign = tuple(dev for dev in devs if not self._expected.is_expected(dev, self._uplinks))
        if is_own:
            kind = NoteKind.LOCAL if route.type is RouteType.LOCAL else NoteKind.BROADCAST
            return Outcome(kind, answer, devs, route, is_lost=bool(set(foreign) - {"lo"}))
        if devs and not foreign and route.type is RouteType.BROADCAST:
            return Outcome(FindingKind.BLACKHOLE, answer, (), route)
        if devs and not foreign:
            return Outcome(None, answer, devs, route)
        if devs and all(map(self._belongs_to_pods, foreign)):
            return Outcome(NoteKind.CONTAINER, answer, foreign, route)
        if devs and all(self._belongs_to_pods(dev) or is_like(dev, self._allowed_devs) for dev in foreign):
            return Outcome(NoteKind.ALLOWED, answer, foreign, route)
        return Outcome(FindingKind.OVERLAP, answer, devs, route)

    def _is_beyond_routes(self, answer: Answer, route: Route) -> bool:
        """Return whether an entry is table local's and for one address: no route is preferred to it.

        As long as local and main are one trie (fib_trie_unmerge) the kernel names main for the entries of both, and a
        longer one of main wins over a wide one of local.
        """
        if route.destination.prefixlen < 32:
            return False
        entry = self._reading.fib.longest_match(Table.LOCAL, answer.lookup.address)
        return entry is not None and (entry.destination, entry.type) == (route.destination, route.type)

    def _discarded(self, answer: Answer) -> Outcome:
        lookup = answer.lookup
        if lookup.discarded_by is None:
            return Outcome(FindingKind.NO_ROUTE, answer)
        entry = self._reading.fib.decide(lookup.address, answer.source or NO_SOURCE, is_tcp=answer.is_tcp).route
        route = entry if entry is not None and entry.type is lookup.discarded_by else None
        if route is not None and self._expected.devs is None and self._is_of_cni(route):
            return Outcome(NoteKind.CNI_DISCARD, answer, (), route)
        return Outcome(FindingKind.BLACKHOLE, answer, (), route)

    def _is_of_cni(self, discard: Route) -> bool:
        """CNIs blackhole their own block, with the routes to their pods inside it, in the same table.

        A discarded default is no block of an allocator.
        """
        block = numbers(discard.destination)
        if discard.destination.prefixlen == 0:
            return False
        if discard.protocol in _CNI_PROTOCOLS:
            return True
        position = bisect_left(self._pods, (discard.table, *block))
        return position < len(self._pods) and self._pods[position] <= (discard.table, ends(block)[1], 32)

    @cached_property
    def _pods(self) -> list[tuple[int, int, int]]:
        """Table and destination of each route to a container's interface, sorted."""
        return sorted(
            (route.table, *numbers(route.destination))
            for route in self._reading.routes
            if any(dev not in self._uplinks and self._belongs_to_pods(dev) for dev in route.devs)
        )
