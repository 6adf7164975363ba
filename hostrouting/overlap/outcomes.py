"""Pure: what each of the kernel's answers means: as expected, a failure, or worth a note."""

from __future__ import annotations

from bisect import bisect_left
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

from hostrouting.model.routes import Lookup, Protocol, Route, RouteType
from hostrouting.overlap.findings import FindingKind, NoteKind

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from ipaddress import IPv4Address

    from hostrouting.config.routing import RouteOverlap
    from hostrouting.kernel.fib import Fib
    from hostrouting.overlap.reading import Reading

__all__ = ["Outcome", "sort_answers"]

# Calico's blackhole of its own block has protocol 80; BIRD's has 12.
_CNI_PROTOCOLS = (Protocol.BIRD, 80)


@attrs.frozen
class Outcome:
    """What an answer means.

    Args:
        kind: of the failure or note; None: by the default route's interfaces, as expected.
        answer: the kernel's.
        devs: what to name: the interfaces that it leaves by, of a container's or an allowed one only those.
        route: the entry that wins or discards; None if there is none.
        is_lost: of an own or a broadcast address: whether it hides one of the cluster's.
    """

    kind: FindingKind | NoteKind | None
    answer: Lookup
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
            return (self.kind, self.devs)
        return (self.kind, self.is_lost, self.route if self.kind is NoteKind.CNI_DISCARD else None)


def sort_answers(overlap: RouteOverlap, reading: Reading) -> dict[IPv4Address, Outcome]:
    """What each of the kernel's answers means.

    Args:
        overlap: what may carry expected traffic besides the default interface.
        reading: the host.

    Returns:
        For each question its outcome.
    """
    sorter = _Sorter(overlap, reading)
    return {question: sorter.sort(answer) for question, answer in reading.answers.items()}


class _Sorter:
    def __init__(self, overlap: RouteOverlap, reading: Reading) -> None:
        self._overlap, self._reading = overlap, reading
        self._expected = frozenset(reading.default.devs)
        self._is_container: dict[str, bool] = {}

    @cached_property
    def _fib(self) -> Fib:
        from hostrouting.kernel.fib import Fib

        return Fib(self._reading.rules, self._reading.routes)

    def sort(self, answer: Lookup) -> Outcome:
        route = answer.route
        if route is None:
            return self._discarded(answer)
        devs = route.devs
        if route.type in (RouteType.LOCAL, RouteType.BROADCAST):
            kind = NoteKind.LOCAL if route.type is RouteType.LOCAL else NoteKind.BROADCAST
            return Outcome(kind, answer, devs, route, is_lost=not self._expected.issuperset(set(devs) - {"lo"}))
        foreign = tuple(dev for dev in devs if dev not in self._expected)
        if devs and not foreign:
            return Outcome(None, answer, devs, route)
        if devs and all(map(self._belongs_to_pods, foreign)):
            return Outcome(NoteKind.CONTAINER, answer, foreign, route)
        if devs and all(self._belongs_to_pods(dev) or _is_like(dev, self._overlap.allowed_devs) for dev in foreign):
            return Outcome(NoteKind.ALLOWED, answer, foreign, route)
        return Outcome(FindingKind.OVERLAP, answer, devs, route)

    def _discarded(self, answer: Lookup) -> Outcome:
        if answer.discarded_by is None:
            return Outcome(FindingKind.NO_ROUTE, answer)
        entry = self._fib.decide(answer.address).route
        route = entry if entry is not None and entry.type is answer.discarded_by else None
        is_of_cni = route is not None and self._is_of_cni(route)
        return Outcome(NoteKind.CNI_DISCARD if is_of_cni else FindingKind.BLACKHOLE, answer, (), route)

    def _belongs_to_pods(self, dev: str) -> bool:
        if dev not in self._is_container:
            self._is_container[dev] = _is_like(dev, self._overlap.container_devs)
        return self._is_container[dev]

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
            if any(dev not in self._expected and self._belongs_to_pods(dev) for dev in route.devs):
                place = (int(route.destination.network_address), route.destination.prefixlen)
                networks.setdefault(route.table, []).append(place)
        return {table: sorted(found) for table, found in networks.items()}


def _is_like(dev: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(dev, pattern) for pattern in patterns)
