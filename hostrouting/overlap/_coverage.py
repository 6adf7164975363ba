"""Pure: the ranges of the expected CIDRs inside which the kernel's answer can't change.

Routes and rules look at prefixes, so an answer changes at the borders of prefixes only. Prefixes are nested or apart:
all addresses whose innermost prefix is the same have the same answer, however many pieces they are in, and one
look-up tells it::

    172.16.0.0/16     |--------------------------------|      expected
    172.16.0.0/16     |--------------------------------|      dev ib0
    172.16.1.0/24            |---|                            via 10.1.0.1 dev eth0
    172.16.3.10/32                      |                     local ib0
    tiles             |  a   | b |  a   |c|     a      |      3 questions: 172.16.0.0, 172.16.1.0, 172.16.3.10

A large FIB mostly leaves by the default route's interfaces. Where nothing else reaches, such routes change nothing,
and cut nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, summarize_address_range
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from hostrouting.kernel.rules import Flow, matches
from hostrouting.model.parsing import RESERVED
from hostrouting.model.prefixes import Prefix, PrefixSet, ends, numbers
from hostrouting.model.routes import Route, RouteType, Table
from hostrouting.model.rules import Rule, RuleAction


class Tile(NamedTuple):
    """Consecutive addresses with the same answer.

    Args:
        first: the first address, as a number.
        last: the last one.
        question: the address to ask the kernel about, as a number; tiles that share it share its answer.
    """

    first: int
    last: int
    question: int


def tiles_in(tiles: Sequence[Tile], prefix: Prefix) -> Sequence[Tile]:
    """Those of some tiles, in the order of their addresses, that have one in a prefix."""
    first, last = ends(prefix)
    start = bisect_left(tiles, first, key=attrgetter("last"))
    return tiles[start : bisect_right(tiles, last, key=attrgetter("first"))]


def tiling_of(
    cidrs: Sequence[Prefix],
    *,
    expected_devs: Iterable[str],
    rules: Sequence[Rule],
    routes: Iterable[Route],
    besides: Iterable[Prefix] = (),
    borders: Iterable[Prefix] = (),
) -> Sequence[Tile]:
    """Cut CIDRs into ranges inside which the answer can't change.

    Args:
        cidrs: any; they may be nested.
        expected_devs: the default route's interfaces.
        rules: in the order in which the kernel asks them.
        routes: the entries of every table.
        besides: prefixes to look into as if another interface had them.
        borders: prefixes to cut at besides, wherever something else than the expected interfaces may win. (So are
            the gateways behind other interfaces: no remedy may cover them.)

    Returns:
        The tiles of each CIDR in the order of their addresses, without 0/8, 127/8, 224/4 and 240/4.
    """
    spans = PrefixSet(cidrs)
    devs = frozenset(expected_devs)
    suspects = _beside_routes(rules, besides)
    inner = set(borders)
    for route in routes:
        is_plain = _is_plain(route, devs)
        if route.tos == 0 and spans.overlaps(*ends(prefix := numbers(route.destination))):
            (inner if is_plain else suspects).add(prefix)
        if not is_plain:
            inner.update((int(hop.gateway), 32) for hop in route.hops if isinstance(hop.gateway, IPv4Address))
    shadows = PrefixSet(suspects)
    cuts = {*cidrs, *map(numbers, RESERVED), *suspects, *(prefix for prefix in inner if shadows.covers(prefix))}
    return _lay(sorted(cut for cut in cuts if spans.covers(cut)))


def suspects_in(
    cidrs: Sequence[Prefix],
    *,
    expected_devs: Iterable[str],
    rules: Sequence[Rule],
    routes: Iterable[Route],
    besides: Iterable[Prefix] = (),
) -> list[Prefix]:
    """Where in some CIDRs something else than plain routes by the expected interfaces may decide.

    Only there do such plain routes matter to ``tiling_of``; elsewhere they may be left out.

    Args:
        cidrs: any; they may be nested.
        expected_devs: the default route's interfaces.
        rules: in the order in which the kernel asks them.
        routes: the entries of every table, but for such plain ones.
        besides: prefixes to look into as if another interface had them.

    Returns:
        Prefixes that are in the CIDRs; they may be nested.
    """
    spans = PrefixSet(cidrs)
    devs = frozenset(expected_devs)
    suspects = _beside_routes(rules, besides)
    suspects |= {numbers(route.destination) for route in routes if route.tos == 0 and not _is_plain(route, devs)}
    shadows = PrefixSet(suspects)
    found = {prefix for prefix in suspects if spans.covers(prefix)}
    found |= {prefix for prefix in cidrs if shadows.covers(prefix)}
    return sorted(found)


def _beside_routes(rules: Sequence[Rule], besides: Iterable[Prefix]) -> set[Prefix]:
    """The prefixes that are to be looked into, whatever routes there are."""
    suspects = {*besides, *(numbers(rule.destination) for rule in rules if rule.destination is not None)}
    return suspects if _has_floor(rules) else {*suspects, (0, 0)}


def _is_plain(route: Route, expected_devs: frozenset[str]) -> bool:
    """Whether it does what is expected wherever it wins."""
    return route.type is RouteType.UNICAST and bool(devs := route.devs) and expected_devs.issuperset(devs)


def _has_floor(rules: Sequence[Rule]) -> bool:
    """Whether whatever is sent to an address that only plain routes reach is sure to get to the default route.

    Rules for a destination are left out: their prefixes are looked into anyway. What a rule does that asks for more
    (a source, a protocol, an interface...) may be done to some packets: nothing stands on it, and what isn't a look-up
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


def _lay(cuts: Sequence[Prefix]) -> list[Tile]:
    """Lay the tiles: each address belongs to the innermost prefix around it."""
    reserved = set(map(numbers, RESERVED))
    tiles: list[Tile] = []
    # The prefixes around the current address, outermost first: last address, question; and whether it isn't judged.
    open_: list[tuple[int, int | None, bool]] = []
    position = 0

    def lay(last: int) -> None:
        """A tile of the innermost prefix, from the current address on."""
        nonlocal position
        if position <= last:
            end, question, is_reserved = open_[-1]
            if not is_reserved:
                if question is None:
                    question = position
                    open_[-1] = (end, question, False)
                tiles.append(Tile(position, last, question))
            position = last + 1

    # One behind all addresses ends what is left.
    for cut in (*cuts, (1 << 32, 32)):
        first, last = ends(cut)
        while open_ and open_[-1][0] < first:
            lay(open_[-1][0])
            open_.pop()
        if open_:
            lay(first - 1)
        position = first
        is_reserved = bool(open_ and open_[-1][2]) or cut in reserved
        open_.append((last, None, is_reserved))
    return tiles


def networks_of(tiles: Iterable[Tile]) -> tuple[IPv4Network, ...]:
    """The fewest CIDRs that are together some tiles, which come in the order of their addresses."""
    spans: list[tuple[int, int]] = []
    for tile in tiles:
        first = spans.pop()[0] if spans and spans[-1][1] == tile.first - 1 else tile.first
        spans.append((first, tile.last))
    # Most are a single address, which takes a quarter of the time.
    networks = (
        [IPv4Network(first)] if first == last else summarize_address_range(IPv4Address(first), IPv4Address(last))
        for first, last in spans
    )
    return tuple(chain.from_iterable(networks))
