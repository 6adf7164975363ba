"""Pure: the ranges of the expected CIDRs inside which the kernel's answer can't change.

Routes and rules look at prefixes, so an answer changes at the borders of prefixes only. Prefixes are nested or apart:
all addresses whose innermost prefix is the same have the same answer, however many segments they are in, and one
lookup tells it::

    172.16.0.0/16     |--------------------------------|      expected
    172.16.0.0/16     |--------------------------------|      dev ib0
    172.16.1.0/24            |---|                            via 10.1.0.1 dev eth0
    172.16.3.10/32                      |                     local ib0
    intervals             |  a   | b |  a   |c|     a      |      3 probes: 172.16.0.0, 172.16.1.0, 172.16.3.10

A large FIB mostly leaves by the uplinks. Where nothing else reaches, such routes change nothing,
and cut nothing.
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
        probe: the address to ask the kernel about, as a number; intervals that share it share its answer.
    """

    first: int
    last: int
    probed: int


def intervals_in(intervals: Sequence[Interval], prefix: Prefix) -> Sequence[Interval]:
    """Return the intervals that have an address in a prefix, of some in the order of their addresses."""
    first, last = ends(prefix)
    start = bisect_left(intervals, first, key=attrgetter("last"))
    return intervals[start : bisect_right(intervals, last, key=attrgetter("first"))]


class Coverage:
    """Some CIDRs, and where in them something else than plain routes by the expected interfaces may decide.

    Args:
        cidrs: any; they may be nested.
        expected_devs: the uplinks.
        rules: in the order in which the kernel asks them.
        besides: prefixes to look into as if another interface had them.
        sources: addresses of the host; a route that names another one may fail every connection.
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
        # They are to be looked into, whatever routes there are.
        self._besides = {*besides, *(numbers(rule.destination) for rule in rules if rule.destination is not None)}
        if not _has_floor(rules):
            self._besides.add((0, 0))

    def suspects(self, routes: Iterable[Route]) -> list[Prefix]:
        """Tell where something else may decide; elsewhere ``intervals`` needs no plain routes.

        Args:
            routes: the entries of every table; plain ones by the expected interfaces may be left out.

        Returns:
            Prefixes that are in the CIDRs; they may be nested.
        """
        others = (route for route in routes if route.tos == 0 and not self._is_plain(route))
        suspects = {*self._besides, *(numbers(route.destination) for route in others)}
        shadows = PrefixSet(suspects)
        return sorted({*filter(self._spans.covers, suspects), *filter(shadows.covers, self._cidrs)})

    def intervals(self, routes: Iterable[Route], borders: Iterable[Prefix] = ()) -> Sequence[Interval]:
        """Cut the CIDRs into ranges inside which the answer can't change.

        Args:
            routes: the entries of every table.
            borders: prefixes to cut at besides, wherever something else than the expected interfaces may win. (So are
                the gateways behind other interfaces: no fix may cover them.)

        Returns:
            The intervals in the order of their addresses, without 0/8, 127/8, 224/4 and 240/4.
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
        """Return whether a route does what is expected wherever it wins."""
        return (
            route.type is RouteType.UNICAST
            and bool(devs := route.devs)
            and self._devs.issuperset(devs)
            and not route.encap
            and (route.source is None or route.source in self._sources)
        )


def _has_floor(rules: Sequence[Rule]) -> bool:
    """Return whether what is sent to an address that only plain routes reach gets to the default route in any case.

    Rules for a destination are left out: their prefixes are looked into anyway. What a rule does that asks for more
    (a source, a protocol, an interface...) may be done to some packets: nothing stands on it, and what isn't a lookup
    may be wrong.
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
    """Lay the intervals: each address belongs to the innermost prefix around it."""
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
    """Return the fewest CIDRs that cover some intervals exactly, which come in the order of their addresses."""
    spans: list[tuple[int, int]] = []
    for interval in intervals:
        first = spans.pop()[0] if spans and spans[-1][1] == interval.first - 1 else interval.first
        spans.append((first, interval.last))
    networks = (summarize_address_range(IPv4Address(first), IPv4Address(last)) for first, last in spans)
    return tuple(chain.from_iterable(networks))
