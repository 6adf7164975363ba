"""Pure: split the expected CIDRs into ranges in which the kernel's answer can't change.

Routes and rules match prefixes, so the answer changes only at the borders of prefixes. Prefixes are either nested or
disjoint. All addresses with the same innermost prefix therefore have the same answer, even if they form several ranges,
and one lookup is enough::

    172.16.0.0/16     |--------------------------------|      expected
    172.16.0.0/16     |--------------------------------|      dev ib0
    172.16.1.0/24            |---|                            via 10.1.0.1 dev eth0
    172.16.3.10/32                      |                     local ib0
    intervals             |  a   | b |  a   |c|     a      |      3 probes: 172.16.0.0, 172.16.1.0, 172.16.3.10

Most routes in a large FIB leave through the uplinks. Where there are no other routes, they don't change the answer, and
the CIDRs aren't split at their borders.
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
    """A range of consecutive addresses with the same answer.

    Args:
        first: the first address, as a number.
        last: the last address, as a number.
        probed: the address to look up, as a number. Intervals that share it have the same answer.
    """

    first: int
    last: int
    probed: int


def intervals_in(intervals: Sequence[Interval], prefix: Prefix) -> Sequence[Interval]:
    """Return the intervals that overlap a prefix, from a sequence in address order."""
    first, last = ends(prefix)
    start = bisect_left(intervals, first, key=attrgetter("last"))
    return intervals[start : bisect_right(intervals, last, key=attrgetter("first"))]


class Coverage:
    """The expected CIDRs, and the parts of them in which more than plain routes through the uplinks may decide.

    Args:
        cidrs: the CIDRs, which may be nested.
        expected_devs: the uplinks.
        rules: the policy rules, in the order in which the kernel evaluates them.
        besides: additional prefixes to examine, as if another interface had routes to them.
        sources: the host's addresses. A route that names another source may break every connection.
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
        # These are examined regardless of the routes.
        self._besides = {*besides, *(numbers(rule.destination) for rule in rules if rule.destination is not None)}
        if not _has_floor(rules):
            self._besides.add((0, 0))

    def suspects(self, routes: Iterable[Route]) -> list[Prefix]:
        """Return the prefixes in which something other than plain routes may decide.

        Outside these prefixes, ``intervals`` doesn't need the plain routes.

        Args:
            routes: the entries of every table. Plain entries through the expected interfaces may be omitted.

        Returns:
            The prefixes, which are inside the CIDRs and may be nested.
        """
        others = (route for route in routes if route.tos == 0 and not self._is_plain(route))
        suspects = {*self._besides, *(numbers(route.destination) for route in others)}
        shadows = PrefixSet(suspects)
        return sorted({*filter(self._spans.covers, suspects), *filter(shadows.covers, self._cidrs)})

    def intervals(self, routes: Iterable[Route], borders: Iterable[Prefix] = ()) -> Sequence[Interval]:
        """Split the CIDRs into ranges in which the answer can't change.

        Args:
            routes: the entries of every table.
            borders: additional prefixes whose borders split ranges where another interface may win. Gateways behind
                other interfaces are such borders too, because no fix may cover them.

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
        """Return whether a route sends packets as expected wherever it wins."""
        return (
            route.type is RouteType.UNICAST
            and bool(devs := route.devs)
            and self._devs.issuperset(devs)
            and not route.encap
            and (route.source is None or route.source in self._sources)
        )


def _has_floor(rules: Sequence[Rule]) -> bool:
    """Return whether packets that only plain routes match always reach the default route.

    Rules with a destination are skipped, because their prefixes are examined anyway. A rule with other selectors
    (source, protocol, interface...) may apply to only some packets. It therefore doesn't count as the rule that leads
    to main, and any action other than a table lookup may be wrong.
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
    """Build the intervals, in which each address belongs to the innermost prefix that contains it."""
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
    """Return the fewest CIDRs that exactly cover intervals, which are in address order."""
    spans: list[tuple[int, int]] = []
    for interval in intervals:
        first = spans.pop()[0] if spans and spans[-1][1] == interval.first - 1 else interval.first
        spans.append((first, interval.last))
    networks = (summarize_address_range(IPv4Address(first), IPv4Address(last)) for first, last in spans)
    return tuple(chain.from_iterable(networks))
