"""Pure: the ranges of the expected CIDRs inside which the kernel's answer can't change.

Routes and rules match prefixes, so an answer changes only at the borders of prefixes. Prefixes are nested or disjoint:
all addresses with the same innermost prefix have the same answer, in however many segments they are, and one lookup
finds it::

    172.16.0.0/16     |--------------------------------|      expected
    172.16.0.0/16     |--------------------------------|      dev ib0
    172.16.1.0/24            |---|                            via 10.1.0.1 dev eth0
    172.16.3.10/32                      |                     local ib0
    intervals             |  a   | b |  a   |c|     a      |      3 probes: 172.16.0.0, 172.16.1.0, 172.16.3.10

Most routes of a large FIB leave through the uplinks. Where no other route reaches, they change nothing and cut nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, summarize_address_range
from itertools import chain, pairwise
from operator import attrgetter
from typing import NamedTuple

from hostrouting.kernel.rules import Flow, matches
from hostrouting.model.parsing import RESERVED
from hostrouting.model.prefixes import Prefix, PrefixIndex, PrefixSet, ends, numbers
from hostrouting.model.routes import Route, RouteType, Table
from hostrouting.model.rules import Rule, RuleAction


class Interval(NamedTuple):
    """Consecutive addresses with the same answer.

    Args:
        first: the first address, as a number.
        last: the last one.
        probe: the address to look up, as an integer; intervals with the same probe have the same answer.
    """

    first: int
    last: int
    probed: int


def intervals_in(intervals: Sequence[Interval], prefix: Prefix) -> Sequence[Interval]:
    """Return the intervals that overlap a prefix; the given ones are in address order."""
    first, last = ends(prefix)
    start = bisect_left(intervals, first, key=attrgetter("last"))
    return intervals[start : bisect_right(intervals, last, key=attrgetter("first"))]


class Coverage:
    """CIDRs, and the places in them where something other than plain routes through the expected interfaces may decide.

    Args:
        cidrs: the CIDRs; they may be nested.
        expected_devs: the uplinks.
        rules: the policy rules, in the order in which the kernel evaluates them.
        besides: more prefixes to examine, as if another interface had them.
        sources: the host's addresses; a route with another source may fail every connection.
    """

    def __init__(
        self,
        cidrs: Sequence[Prefix],
        expected_devs: Iterable[str],
        rules: Sequence[Rule],
        besides: Iterable[Prefix],
        sources: Iterable[IPv4Address] = (),
    ) -> None:
        self._cidrs, self._spans = cidrs, PrefixSet(cidrs)
        self._devs, self._sources = frozenset(expected_devs), frozenset(sources)
        # Examined whatever routes there are.
        self._besides = {*besides, *(numbers(rule.destination) for rule in rules if rule.destination is not None)}
        if not _has_floor(rules):
            self._besides.add((0, 0))

    def suspects(self, routes: Iterable[Route]) -> list[Prefix]:
        """Return where something else may decide; elsewhere ``intervals`` needs no plain routes.

        Args:
            routes: the entries of every table; plain ones through the expected interfaces may be omitted.

        Returns:
            Prefixes inside the CIDRs; they may be nested.
        """
        others = (route for route in routes if route.tos == 0 and not self._is_plain(route))
        suspects = {*self._besides, *(numbers(route.destination) for route in others)}
        shadows = PrefixSet(suspects)
        return sorted({*filter(self._spans.covers, suspects), *filter(shadows.covers, self._cidrs)})

    def intervals(self, routes: Iterable[Route], borders: Iterable[Prefix] = ()) -> Sequence[Interval]:
        """Split the CIDRs into ranges inside which the answer can't change.

        Args:
            routes: the entries of every table.
            borders: more prefixes to cut at, wherever something other than the expected interfaces may win. (Gateways
                behind other interfaces are such borders too: no fix may cover them.)

        Returns:
            The intervals in address order, without 0/8, 127/8, 224/4 and 240/4.
        """
        suspects, inner = set(self._besides), set(borders)
        for route in routes:
            is_plain = self._is_plain(route)
            if route.tos == 0 and self._spans.overlaps(*ends(prefix := numbers(route.destination))):
                (inner if is_plain else suspects).add(prefix)
            if not is_plain:
                inner.update((int(hop.gateway), 32) for hop in route.hops if isinstance(hop.gateway, IPv4Address))
        shadows = PrefixSet(suspects)
        cuts = {*self._cidrs, *map(numbers, RESERVED), *suspects, *filter(shadows.covers, inner)}
        return _lay([cut for cut in cuts if self._spans.covers(cut)])

    def _is_plain(self, route: Route) -> bool:
        """Return whether a route does the expected thing wherever it wins."""
        return (
            route.type is RouteType.UNICAST
            and bool(devs := route.devs)
            and self._devs.issuperset(devs)
            and not route.encap
            and (route.source is None or route.source in self._sources)
        )


def _has_floor(rules: Sequence[Rule]) -> bool:
    """Return whether packets to an address that only plain routes reach always get to the default route.

    Rules with a destination are left out: their prefixes are examined anyway. A rule with other selectors (source,
    protocol, interface...) may apply to some packets only: nothing relies on it, and anything but a lookup may be
    wrong.
    """
    nowhere = Flow(IPv4Address(0))
    for rule in rules:
        is_picky = rule.source is not None or rule.iif or rule.ip_protocol or rule.has_ports or rule.has_unknown
        if rule.destination is not None:
            if rule.is_inverted:
                return False
        elif rule.action is not RuleAction.NOP and (is_picky or matches(rule, nowhere)):
            if rule.action is not RuleAction.TO_TABLE:
                return False
            is_whole = rule.suppress_prefix_length is None and rule.suppress_group is None
            if rule.table == Table.MAIN and is_whole and not is_picky:
                return True
    return False


def _lay(cuts: Sequence[Prefix]) -> list[Interval]:
    """Build the intervals: each address belongs to the innermost prefix around it."""
    reserved = PrefixSet(map(numbers, RESERVED))
    index = PrefixIndex(cuts)
    edges = sorted({edge for first, last in map(ends, cuts) for edge in (first, last + 1)})
    probed: dict[Prefix, int] = {}
    intervals: list[Interval] = []
    for first, behind in pairwise(edges):
        inner = next(index.around((first, 32)), None)
        if inner is not None and not reserved.covers((first, 32)):
            intervals.append(Interval(first, behind - 1, probed.setdefault(inner, first)))
    return intervals


def networks_of(intervals: Iterable[Interval]) -> tuple[IPv4Network, ...]:
    """Return the fewest CIDRs that cover intervals exactly; the intervals are in address order."""
    spans: list[tuple[int, int]] = []
    for interval in intervals:
        first = spans.pop()[0] if spans and spans[-1][1] == interval.first - 1 else interval.first
        spans.append((first, interval.last))
    networks = (summarize_address_range(IPv4Address(first), IPv4Address(last)) for first, last in spans)
    return tuple(chain.from_iterable(networks))
