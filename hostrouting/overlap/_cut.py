"""Split the expected CIDRs into ranges that each have a single lookup result.

This module does no I/O.

Routes and rules match prefixes, so the lookup result can only change at prefix boundaries. Prefixes
are either nested or disjoint. All addresses with the same innermost prefix therefore have the same
result, even if they form several ranges, so one lookup is enough::

    172.16.0.0/16     |--------------------------------|      expected
    172.16.0.0/16     |--------------------------------|      dev ib0
    172.16.1.0/24            |---|                            via 10.1.0.1 dev eth0
    172.16.3.10/32                      |                     local ib0
    intervals             |  a   | b |  a   |c|     a      |      3 probes: 172.16.0.0, 172.16.1.0, 172.16.3.10

Most routes in a large FIB lead through the uplinks. Such a route doesn't affect the result unless a
route through another interface overlaps it, so it only splits the CIDRs in that case.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from hostrouting.kernel.port import leaves_through
from hostrouting.kernel.rules import Flow, matches
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix, PrefixIndex, PrefixSet, ends, numbers
from hostrouting.model.parsing import reserved_blocks
from hostrouting.model.routes import Route, Table
from hostrouting.model.rules import Rule, RuleAction


class Interval(NamedTuple):
    """A range of consecutive addresses with the same lookup result.

    Args:
        first: the first address as an integer.
        last: the last address as an integer.
        probed: the address to look up, as an integer. Intervals with the same probed address share
            one result.
    """

    first: int
    last: int
    probed: int


def intervals_in(intervals: Sequence[Interval], prefix: Prefix, bits: int) -> Sequence[Interval]:
    """Return the intervals that overlap a prefix. The intervals must be in address order."""
    first, last = ends(prefix, bits)
    start = bisect_left(intervals, first, key=attrgetter("last"))
    return intervals[start : bisect_right(intervals, last, key=attrgetter("first"))]


class Coverage:
    """The expected CIDRs, and the ranges where something other than plain routes through the uplinks may match.

    Args:
        family: the CIDRs' address family.
        cidrs: the CIDRs, which may be nested.
        expected_devs: the uplinks.
        rules: the policy rules, in evaluation order.
        besides: additional prefixes to look up, as if there were routes to them through another
            interface.
        sources: the host's addresses. A route with any other source address isn't plain: it may
            break all connections.
    """

    def __init__(
        self,
        family: Family,
        cidrs: Sequence[Prefix],
        expected_devs: Iterable[str],
        rules: Sequence[Rule],
        besides: Iterable[Prefix],
        sources: Iterable[IpAddress] = (),
    ) -> None:
        self._family, self._bits = family, family.bits
        self._cidrs, self._spans = cidrs, PrefixSet(cidrs, self._bits)
        self._devs, self._sources = frozenset(expected_devs), frozenset(sources)
        # These prefixes are looked up regardless of the routes.
        self._besides = {
            *besides,
            *(numbers(rule.destination) for rule in rules if rule.destination is not None),
        }
        if not _falls_through_to_default(rules):
            self._besides.add((0, 0))

    def suspects(self, routes: Iterable[Route], besides: Iterable[Prefix] = ()) -> list[Prefix]:
        """Return the prefixes where something other than a plain route may match.

        Outside of these prefixes, ``intervals`` doesn't need the plain routes.

        Args:
            routes: the entries in all tables. Plain entries through the expected interfaces may be
                omitted.
            besides: the destinations of routes that may exist.

        Returns:
            The prefixes, all inside the CIDRs and possibly nested.
        """
        others = (
            route
            for route in routes
            if route.tos == 0 and not leaves_through(route, self._devs, self._sources)
        )
        suspects = {*self._besides, *besides, *(numbers(route.destination) for route in others)}
        shadows = PrefixSet(suspects, self._bits)
        return sorted({*filter(self._spans.covers, suspects), *filter(shadows.covers, self._cidrs)})

    def intervals(
        self, routes: Iterable[Route], borders: Iterable[Prefix] = ()
    ) -> Sequence[Interval]:
        """Split the CIDRs into ranges that each have a single lookup result.

        Ranges that another interface may carry are also split at gateways behind such interfaces,
        because no fix may cover these gateways.

        Args:
            routes: the entries in all tables.
            borders: additional prefixes, at whose boundaries these ranges are split as well.

        Returns:
            The intervals in address order, excluding the family's reserved blocks.
        """
        suspects, inner, bits = set(self._besides), set(borders), self._bits
        gateways = type(self._family.address(0))
        for route in routes:
            is_plain = leaves_through(route, self._devs, self._sources)
            if route.tos == 0 and self._spans.overlaps(
                *ends(prefix := numbers(route.destination), bits)
            ):
                (inner if is_plain else suspects).add(prefix)
            if not is_plain:
                inner.update(
                    (int(hop.gateway), bits)
                    for hop in route.hops
                    if isinstance(hop.gateway, gateways)
                )
        shadows = PrefixSet(suspects, self._bits)
        cuts = {
            *self._cidrs,
            *map(numbers, reserved_blocks(self._family)),
            *suspects,
            *filter(shadows.covers, inner),
        }
        return _build_intervals([cut for cut in cuts if self._spans.covers(cut)], self._family)


def _falls_through_to_default(rules: Sequence[Rule]) -> bool:
    """Return whether packets that match only plain routes always reach the default route.

    Rules with a destination are skipped because their prefixes are always looked up. A rule with
    other selectors (source, protocol, interface...) may match only some packets. So such a rule
    isn't treated as the one that looks up main, and its action may discard packets unless it is a
    table lookup.
    """
    nowhere = Flow(IPv4Address(0))
    for rule in rules:
        is_picky = (
            rule.source is not None
            or rule.iif
            or rule.ip_protocol
            or rule.has_ports
            or rule.has_unknown
        )
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


def _build_intervals(cuts: Sequence[Prefix], family: Family) -> list[Interval]:
    """Build the intervals, assigning each address to the innermost prefix that contains it."""
    bits = family.bits
    reserved = PrefixSet(map(numbers, reserved_blocks(family)), bits)
    index = PrefixIndex(cuts, bits)
    edges = sorted(
        {edge for cut in cuts for first, last in (ends(cut, bits),) for edge in (first, last + 1)}
    )
    probed: dict[Prefix, int] = {}
    intervals: list[Interval] = []
    for first, behind in pairwise(edges):
        inner = next(index.around((first, bits)), None)
        if inner is not None and not reserved.covers((first, bits)):
            intervals.append(Interval(first, behind - 1, probed.setdefault(inner, first)))
    return intervals
