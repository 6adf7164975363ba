"""Pure: what each of the kernel's answers means: as expected, a failure, or worth a note."""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

from hostrouting.kernel.rules import NO_SOURCE
from hostrouting.model.links import is_like
from hostrouting.model.routes import Protocol, Route, RouteType, Table
from hostrouting.overlap.findings import FindingKind, NoteKind

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence
    from ipaddress import IPv4Address

    from hostrouting.config.overlap import ExpectedCidr, RouteOverlap
    from hostrouting.overlap.reading import Answer, Reading

    Outcomes = Mapping[IPv4Address, tuple["Outcome", ...]]


# Calico's blackhole of its own block has protocol 80; BIRD's has 12.
_CNI_PROTOCOLS = (Protocol.BIRD, 80)


@attrs.frozen
class Outcome:
    """What an answer means.

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
    def is_failure(self) -> bool:
        """Whether it is none that is only noted."""
        return isinstance(self.kind, FindingKind)

    @cached_property
    def group(self) -> Hashable:
        """What it is told of together with, of one CIDR."""
        if self.is_failure:
            return (self.kind, self.devs, self.answer.source)
        return (self.kind, self.is_lost, self.route if self.kind is NoteKind.CNI_DISCARD else None)


def sort_answers(overlap: RouteOverlap, reading: Reading) -> dict[ExpectedCidr, Outcomes]:
    """What the kernel's answers mean to each expected CIDR.

    Args:
        overlap: the CIDRs, and what may carry them besides.
        reading: the host.

    Returns:
        For each CIDR and question what its first answer means, and then each failure of the other answers that this
        one doesn't tell of. What holds for a CIDR holds for all that expect the same interfaces.
    """
    by_devs: dict[tuple[str, ...] | None, Outcomes] = {}
    for expected in overlap.expected_cidrs:
        if expected.devs not in by_devs:
            sorter = _Sorter(overlap, reading, expected)
            by_devs[expected.devs] = {
                question: tuple(sorter.sort(found)) for question, found in reading.answers.items()
            }
    return {expected: by_devs[expected.devs] for expected in overlap.expected_cidrs}


class _Sorter:
    def __init__(self, overlap: RouteOverlap, reading: Reading, expected: ExpectedCidr) -> None:
        self._overlap, self._reading, self._expected = overlap, reading, expected
        self._is_container: dict[str, bool] = {}

    def sort(self, answers: Sequence[Answer]) -> Iterator[Outcome]:
        first = self._sort(answers[0])
        yield first
        connects = any(answer.is_tcp and answer.source is not None for answer in answers)
        more: dict[Hashable, Outcome] = {first.group: first}
        for answer in answers[1:]:
            if answer.is_tcp and answer.source is None and connects:
                continue  # it only chooses the source: TCP sends nothing unconnected
            outcome = self._sort(answer)
            if outcome.is_failure and (outcome.kind, outcome.devs, None) not in more:
                more.setdefault(outcome.group, outcome)
        yield from sorted([*more.values()][1:], key=lambda outcome: int(outcome.answer.source or 0))

    def _sort(self, answer: Answer) -> Outcome:
        route = answer.lookup.route
        if route is None:
            return self._discarded(answer)
        is_own = route.type in (RouteType.LOCAL, RouteType.BROADCAST) and self._is_of_table_local(answer)
        # What a local entry of another table takes never leaves this host, whatever its device.
        devs = ("lo",) if route.type is RouteType.LOCAL and not is_own else route.devs
        foreign = tuple(dev for dev in devs if not self._expected.is_expected(dev, self._reading.default.devs))
        if is_own:
            kind = NoteKind.LOCAL if route.type is RouteType.LOCAL else NoteKind.BROADCAST
            return Outcome(kind, answer, devs, route, is_lost=bool(set(foreign) - {"lo"}))
        if devs and not foreign:
            return Outcome(None, answer, devs, route)
        if devs and all(map(self._belongs_to_pods, foreign)):
            return Outcome(NoteKind.CONTAINER, answer, foreign, route)
        if devs and all(self._belongs_to_pods(dev) or self._is_allowed(dev) for dev in foreign):
            return Outcome(NoteKind.ALLOWED, answer, foreign, route)
        return Outcome(FindingKind.OVERLAP, answer, devs, route)

    def _is_of_table_local(self, answer: Answer) -> bool:
        """The kernel names table main for the entries of both, as long as they are one trie (fib_trie_unmerge)."""
        entry, route = self._reading.fib.longest_match(Table.LOCAL, answer.lookup.address), answer.lookup.route
        if entry is None or route is None:
            return False
        return (entry.destination, entry.type) == (route.destination, route.type)

    def _discarded(self, answer: Answer) -> Outcome:
        lookup = answer.lookup
        if lookup.discarded_by is None:
            return Outcome(FindingKind.NO_ROUTE, answer)
        entry = self._reading.fib.decide(lookup.address, answer.source or NO_SOURCE, is_tcp=answer.is_tcp).route
        route = entry if entry is not None and entry.type is lookup.discarded_by else None
        if route is not None and self._expected.devs is None and self._is_of_cni(route):
            return Outcome(NoteKind.CNI_DISCARD, answer, (), route)
        return Outcome(FindingKind.BLACKHOLE, answer, (), route)

    def _belongs_to_pods(self, dev: str) -> bool:
        if dev not in self._is_container:
            self._is_container[dev] = self._expected.devs is None and is_like(dev, self._overlap.container_devs)
        return self._is_container[dev]

    def _is_allowed(self, dev: str) -> bool:
        return self._expected.devs is None and is_like(dev, self._overlap.allowed_devs)

    def _is_of_cni(self, discard: Route) -> bool:
        """CNIs blackhole their own block, with the routes to their pods inside it, in the same table.

        A discarded default is nobody's block.
        """
        block = discard.destination
        if block.prefixlen == 0:
            return False
        if discard.protocol in _CNI_PROTOCOLS:
            return True
        pods = self._pod_networks.get(discard.table, [])
        position = bisect_left(pods, (int(block.network_address), block.prefixlen))
        return position < len(pods) and pods[position][0] <= int(block.broadcast_address)

    @cached_property
    def _pod_networks(self) -> dict[int, list[tuple[int, int]]]:
        """For each table the networks of its routes to container interfaces, by their first address."""
        networks: dict[int, list[tuple[int, int]]] = {}
        for route in self._reading.routes:
            if any(dev not in self._reading.default.devs and self._belongs_to_pods(dev) for dev in route.devs):
                place = (int(route.destination.network_address), route.destination.prefixlen)
                networks.setdefault(route.table, []).append(place)
        return {table: sorted(found) for table, found in networks.items()}
