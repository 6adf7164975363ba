"""Pure: which routes win by what the tables say, where the kernel's own rules leave no doubt of it.

Longest-prefix match gives an address that no longer prefix covers to the entries of one destination; of these the one
with the lowest metric carries it. What isn't as plain as that (a policy rule of somebody's, an entry of table local
around the address, a dead hop, a second metric) isn't decided here: the kernel is asked.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from itertools import chain
from typing import TYPE_CHECKING

from hostrouting.model.prefixes import PrefixSet, numbers, own_addresses
from hostrouting.model.routes import Protocol, RouteType, Table
from hostrouting.model.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.model.prefixes import Prefix
    from hostrouting.model.routes import NextHop, Route

__all__ = ["unproven"]

# fib_default_rules_init in net/ipv4/fib_rules.c. Whatever a packet is like, they have local asked first, then main;
# before the first rule of somebody's the two are one trie, and the longer prefix wins.
_RULES_OF_THE_KERNEL = tuple(
    Rule(preference, table=table, protocol=Protocol.KERNEL)
    for preference, table in ((0, Table.LOCAL), (32766, Table.MAIN), (32767, Table.DEFAULT))
)

# To 0.0.0.0 the host talks to itself, whatever the tables say (ip_route_output_key_hash_rcu in net/ipv4/route.c).
_THIS_HOST = (0, 32)


def unproven(
    wanted: Sequence[Route],
    *,
    rules: Sequence[Rule],
    main: Sequence[tuple[Route, Sequence[Prefix]]],
    local: Iterable[Route],
) -> list[tuple[Route, IPv4Address | None]]:
    """The routes of which the tables don't show that they win.

    Args:
        wanted: routes of table main.
        rules: in the order in which the kernel asks them.
        main: the entries of table main, in the kernel's order (``RouteBackend.routes_by_way``).
        local: those of table local.

    Returns:
        Those to ask the kernel about, in their order: all of them where there are rules of somebody's. Each with
        an address that no longer prefix covers; None if longer ones cover all of it.
    """
    # To a packet without a tos the entries for one are not there.
    asked = [(entry, prefixes) for entry, prefixes in main if entry.tos == 0]
    places = [numbers(route.destination) for route in wanted]
    locals_ = [numbers(entry.destination) for entry in local]
    own = own_addresses(chain(*(prefixes for _, prefixes in asked), places, locals_, (_THIS_HOST,)))
    winners = _winners(asked) if tuple(rules) == _RULES_OF_THE_KERNEL else {}
    own_by_local, is_as_wanted = PrefixSet(locals_).overlaps, _Comparison().is_as_wanted
    left: list[tuple[Route, IPv4Address | None]] = []
    for route, place in zip(wanted, places, strict=True):
        address, winner = own[place], winners.get(place)
        if address is None:
            left.append((route, None))
        elif winner is None or not is_as_wanted(winner, route) or own_by_local(address, address):
            left.append((route, IPv4Address(address)))
    return left


def _winners(main: Sequence[tuple[Route, Sequence[Prefix]]]) -> dict[Prefix, Route]:
    """Of the entries of each destination the first with the lowest metric."""
    winners: dict[Prefix, Route] = {}
    for entry, prefixes in main:
        for prefix in prefixes:
            if winners.setdefault(prefix, entry).metric > entry.metric:
                winners[prefix] = entry
    return winners


class _Comparison:
    """Says whether an entry of a destination is the wanted route, and such that the kernel doesn't pass it over."""

    def __init__(self) -> None:
        # By the identity of entries and hops, which thousands share; the caller holds them, so it stays theirs.
        self._go_as_wanted: dict[tuple[int, int], bool] = {}

    def is_as_wanted(self, entry: Route, route: Route) -> bool:
        return (
            entry.type is route.type
            and entry.metric == route.metric
            and entry.tos == route.tos
            and entry.table == route.table
            and self._goes_as_wanted(entry, route.hops)
        )

    def _goes_as_wanted(self, entry: Route, hops: tuple[NextHop, ...]) -> bool:
        pair = (id(entry), id(hops))
        if pair not in self._go_as_wanted:
            # A sysctl has one without carrier passed over (ignore_routes_with_linkdown).
            is_alive = bool(hops) and not any(hop.is_dead or hop.is_linkdown for hop in entry.hops)
            self._go_as_wanted[pair] = entry.type is RouteType.UNICAST and entry.hops == hops and is_alive
        return self._go_as_wanted[pair]
