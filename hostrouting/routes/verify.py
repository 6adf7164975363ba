"""Check that every route wins, using the tables if they leave no doubt, and otherwise asking the kernel.

Longest-prefix match assigns an address that no longer prefix covers to the entries of one destination. Of these, the
entry with the lowest metric carries the packets. Cases that aren't as simple are left to the kernel: a custom policy
rule, an entry of table local around the address, a dead hop, or a second metric.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network
from itertools import chain

from hostrouting.kernel.port import RouteBackend
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.model.errors import Refusal, RouteError
from hostrouting.model.prefixes import Prefix, PrefixSet, numbers, uncovered_addresses
from hostrouting.model.routes import Lookup, NextHop, Route, RouteType, Table
from hostrouting.model.rules import Rule

_NAMED_MAX = 5

# Packets to 0.0.0.0 stay on the host, whatever the tables say (ip_route_output_key_hash_rcu in net/ipv4/route.c).
_THIS_HOST = (0, 32)


def verify_routes(wanted: Sequence[Route], backend: RouteBackend) -> None:
    """Check that every route wins at an address that no longer prefix covers.

    Args:
        wanted: the routes of table main that must win.
        backend: the backend that accesses the kernel.

    Raises:
        RouteError: a route doesn't win. Either it is in the table, but a rule, a lower metric or longer prefixes beat
            it, and the error names the winner; or it was removed again.
    """
    if not wanted:
        return
    local = backend.routes(Table.LOCAL)
    left = unproven(wanted, rules=backend.rules(), main=backend.routes_by_attributes(Table.MAIN), local=local)
    if not left:
        return
    probes = {route: address for route, address in left if address is not None}
    answers = backend.lookup(tuple(probes.values()))
    by_key = {route.key: route for route in wanted}
    beaten = [each for each in zip(probes, answers, strict=True) if not _is_carried(*each, by_key)]
    covered = [route for route, address in left if address is None]
    if not beaten and not covered:
        return
    main = backend.routes(Table.MAIN)
    there = {route.key for route in main}
    losers = [_beaten(route, answer, is_there=route.key in there) for route, answer in beaten]
    losers += _covered(covered, main, local)
    if losers:
        raise RouteError.of(losers, most=_NAMED_MAX)


def _is_carried(route: Route, answer: Lookup, wanted: Mapping[tuple[int, IPv4Network, int, int], Route]) -> bool:
    """Return whether packets use a route, or a wanted route with a lower metric, for which it is the fallback."""
    winner = answer.route
    if winner is None or winner.destination != route.destination or winner.metric > route.metric:
        return False
    return winner.key in wanted and winner.has_same_next_hops(wanted[winner.key])


def _beaten(route: Route, answer: Lookup, *, is_there: bool) -> Refusal:
    if not is_there:
        return Refusal(
            f"{route} isn't in the table any more: another program has just removed it", "look at: ip monitor route"
        )
    winner = f"by {answer.route}" if answer.route is not None else f"nowhere ({os.strerror(answer.errno or 0)})"
    return Refusal(
        f"{route} is in the table but doesn't win: packets to {answer.address} go {winner}",
        "look at: ip -4 rule; ip -4 route show table all",
    )


def _covered(routes: Sequence[Route], main: Sequence[Route], local: Sequence[Route]) -> list[Refusal]:
    """Return refusals for routes that never win because longer prefixes cover every address.

    Routes that are covered by our routes or by local addresses are fine.
    """
    places = [numbers(route.destination) for route in routes]
    locals_ = [numbers(route.destination) for route in local]
    ours = [numbers(route.destination) for route in main if route.is_ours and not route.is_dead]
    left_by_locals, left_by_ours = (
        uncovered_addresses((*places, *locals_)),
        uncovered_addresses((*places, *locals_, *ours)),
    )
    losers: list[Refusal] = []
    for route, place in zip(routes, places, strict=True):
        if left_by_ours[place] is None and left_by_locals[place] is not None:
            continue
        inside = (r for r in (*main, *local) if r.destination.subnet_of(route.destination))
        longer = (
            r for r in inside if r.destination != route.destination and not r.is_ours and r.tos == 0 and not r.is_dead
        )
        example = next((f", for example {other}" for other in longer), "")
        losers.append(Refusal(f"{route} is in the table but never wins: longer prefixes cover all of it{example}"))
    return losers


def unproven(
    wanted: Sequence[Route],
    *,
    rules: Sequence[Rule],
    main: Sequence[tuple[Route, Sequence[Prefix]]],
    local: Iterable[Route],
) -> list[tuple[Route, IPv4Address | None]]:
    """Return the routes of which the tables don't prove that they win.

    Args:
        wanted: the routes of table main that must win.
        rules: the policy rules, in the order in which the kernel evaluates them.
        main: the entries of table main, in the kernel's order (``RouteBackend.routes_by_attributes``).
        local: the entries of table local.

    Returns:
        The routes to ask the kernel about, in their order; with custom rules, these are all routes. Each comes with an
        address that no longer prefix covers, or None if longer prefixes cover all of it.
    """
    # A packet without a tos doesn't match entries that have one, and no packet matches an entry whose hops are all
    # dead.
    asked = [(entry, prefixes) for entry, prefixes in main if entry.tos == 0 and not entry.is_dead]
    places = [numbers(route.destination) for route in wanted]
    locals_ = [numbers(entry.destination) for entry in local]
    uncovered = uncovered_addresses(chain(*(prefixes for _, prefixes in asked), places, locals_, (_THIS_HOST,)))
    # With these rules, every packet is looked up in table local first and then in main. Before the first custom rule
    # exists, the two share one trie, in which the longer prefix wins.
    winners = _winners(asked) if tuple(rules) == KERNEL_RULES else {}
    covered_by_local = PrefixSet(locals_).overlaps
    left: list[tuple[Route, IPv4Address | None]] = []
    for route, place in zip(wanted, places, strict=True):
        address, winner = uncovered[place], winners.get(place)
        if address is None:
            left.append((route, None))
        elif winner is None or not _is_as_wanted(winner, route) or covered_by_local(address, address):
            left.append((route, IPv4Address(address)))
    return left


def _winners(main: Sequence[tuple[Route, Sequence[Prefix]]]) -> dict[Prefix, Route]:
    """Return the entry that wins for each destination, which is the first one with the lowest metric."""
    winners: dict[Prefix, Route] = {}
    for entry, prefixes in main:
        for prefix in prefixes:
            if winners.setdefault(prefix, entry).metric > entry.metric:
                winners[prefix] = entry
    return winners


def _is_as_wanted(entry: Route, route: Route) -> bool:
    """Return whether an entry is the wanted route and the kernel doesn't skip it."""
    is_unicast = entry.type is route.type is RouteType.UNICAST and entry.tos == route.tos
    is_same = entry.metric == route.metric and entry.table == route.table
    return is_unicast and is_same and _lead_as_wanted(entry.hops, route.hops)


@lru_cache
def _lead_as_wanted(hops: tuple[NextHop, ...], wanted: tuple[NextHop, ...]) -> bool:
    # With a sysctl (ignore_routes_with_linkdown) the kernel skips a hop without a carrier.
    return bool(wanted) and hops == wanted and not any(hop.is_dead or hop.is_linkdown for hop in hops)
