"""Check that every route is in effect, by the entries in the tables or by lookups in the kernel.

A route is in effect if one of its addresses is in no longer prefix, if no other route to its
destination has a lower metric, and if its hops are live. The entries in the tables prove this, with
three exceptions, for which the kernel looks up the address: IPv6, a host with custom policy rules,
and an address that an entry of table local covers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

from hostrouting.kernel.port import Facts, RouteBackend, read_routes
from hostrouting.kernel.rules import KERNEL_RULES, Flow
from hostrouting.kernel.selection import OURS_IN_MAIN, Group, Selection
from hostrouting.kernel.translating import foreign_name
from hostrouting.model.errors import NAMED_MAX, Refusal, RouteError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, numbers, uncovered_addresses
from hostrouting.model.lookups import Lookup
from hostrouting.model.parsing import is_inside
from hostrouting.model.routes import NextHop, Protocol, Route, Route6, RouteType, Table
from hostrouting.model.rules import Rule
from hostrouting.routes.plan import halves_hint

if TYPE_CHECKING:
    from hostrouting.kernel.fib import Fib

# Packets to 0.0.0.0, :: and ::1 stay on the host, regardless of the tables (for IPv4, see
# ip_route_output_key_hash_rcu in net/ipv4/route.c).
_THIS_HOST = {Family.IPV4: (0, 32), Family.IPV6: (0, 127)}


def verify_routes(
    wanted: Sequence[Route],
    *backends: RouteBackend,
    has_old: bool = False,
    removed: Sequence[Route] = (),
) -> None:
    """Check that the kernel uses every route, by one of its addresses that no longer prefix covers.

    Args:
        wanted: the routes in table main that must be in effect.
        backends: the backends for kernel access, one for each address family of the routes.
        has_old: whether our old routes are still in the table. If so, a wanted route may lose to an
            old one.
        removed: our routes that must not be in table main any more. Only those without a wanted
            route in their place are checked.

    Raises:
        RouteError: a route isn't in effect, or a removed route is still there. The error names the
            rule, the route or the longer prefixes that packets use instead, or says that the route
            has been removed.
    """
    losing: list[tuple[Route, Refusal]] = []
    for backend in backends:
        losing += losing_routes(
            [route for route in wanted if route.family is backend.family],
            backend,
            has_old=has_old,
            removed=[route for route in removed if route.family is backend.family],
        )
    if losing:
        raise RouteError.of([refusal for _, refusal in losing])


def losing_routes(
    wanted: Sequence[Route],
    backend: RouteBackend,
    *,
    has_old: bool = False,
    removed: Sequence[Route] = (),
) -> list[tuple[Route, Refusal]]:
    """Return the routes that aren't in effect, and those that are still there, with the reason.

    See ``verify_routes`` for the arguments.
    """
    if not wanted:
        entries = backend.entries(OURS_IN_MAIN).groups if removed else ()
        return [*_left(removed, wanted, entries, backend)]
    facts = backend.facts()
    local = read_routes(backend, Table.LOCAL)
    entries = backend.entries(Selection(Table.MAIN)).groups
    left_over = [*_left(removed, wanted, entries, backend)]
    # A wanted route may lose to an old route of ours, which will be removed. So while our old
    # routes exist, leave out all our routes here. The kernel then looks up each wanted route.
    main = _of_others(entries) if has_old else entries
    left = unproven(wanted, rules=facts.rules, main=main, local=local)
    beaten = _beaten_in_kernel(left, wanted, backend)
    if has_old:
        beaten = [each for each in beaten if not _is_by_ours(each[1])]
    covered = [route for route, address in left if address is None]
    if not beaten and not covered:
        return left_over
    return left_over + _explained(beaten, covered, local, facts, backend)


def _left(
    removed: Sequence[Route],
    wanted: Iterable[Route],
    entries: Iterable[Group],
    backend: RouteBackend,
) -> Iterator[tuple[Route, Refusal]]:
    """Yield the removed routes that are still in table main, each with the reason."""
    if not removed:
        return
    replaced = {route.key for route in wanted}
    gone = {numbers(route.destination): route for route in removed if route.key not in replaced}
    for entry, prefixes in entries:
        if entry.protocol != Protocol.HOSTROUTING:
            continue
        for prefix in prefixes:
            route = gone.get(prefix)
            if route is not None and _is_same_way(entry, route):
                yield route, left_route(route, backend)


def _is_same_way(entry: Route, route: Route) -> bool:
    """Return whether two routes to a destination have the same metric and a common next hop."""
    ways = [{(hop.dev, hop.gateway) for hop in each.hops} for each in (entry, route)]
    is_alike = (entry.tos, entry.metric, entry.type) == (route.tos, route.metric, route.type)
    return is_alike and (ways[0] == ways[1] or not ways[0].isdisjoint(ways[1]))


def _of_others(entries: Iterable[Group]) -> list[Group]:
    return [group for group in entries if group[0].protocol != Protocol.HOSTROUTING]


def _explained(
    beaten: Iterable[tuple[Route, Lookup]],
    covered: Sequence[Route],
    local: Sequence[Route],
    facts: Facts,
    backend: RouteBackend,
) -> list[tuple[Route, Refusal]]:
    """Return the routes that aren't in effect, each with the reason according to the tables."""
    fib = read_fib(backend, facts)
    losing = [(route, _beaten(route, answer, fib, backend)) for route, answer in beaten]
    main = [route for route in fib.routes if route.table == Table.MAIN]
    return losing + _covered(covered, main, local, backend.family)


def read_fib(backend: RouteBackend, facts: Facts) -> Fib:
    """Read all tables, and return a model of them that explains the kernel's lookups."""
    from hostrouting.kernel.fib6 import MODELS

    return MODELS[backend.family](
        facts.rules,
        read_routes(backend),
        facts.addresses,
        links=facts.links,
        silent_routers=facts.silent_routers,
    )


def _beaten_in_kernel(
    probes: Iterable[tuple[Route, IpAddress | None]],
    wanted: Sequence[Route],
    backend: RouteBackend,
) -> list[tuple[Route, Lookup]]:
    """Return the routes that the kernel doesn't use, each with the lookup that shows this."""
    asked = [(route, address) for route, address in probes if address is not None]
    answers = backend.lookup([address for _, address in asked])
    others: list[tuple[Route, Lookup]] = []
    for (route, _), answer in zip(asked, answers, strict=True):
        if not _is_confirmed(route, answer) and answer.route != route:
            others.append((route, answer))
    by_key = {route.key: route for route in wanted} if others else {}
    return [each for each in others if not _is_carried(*each, by_key)]


def _is_by_ours(answer: Lookup) -> bool:
    return answer.route is not None and answer.route.is_ours


def _is_confirmed(route: Route, answer: Lookup) -> bool:
    """Return whether a lookup finds a wanted route, with the wanted attributes."""
    if answer.entry is None:
        return False
    template, prefix = answer.entry
    return prefix == numbers(route.destination) and _is_as_wanted(template, route)


def _is_carried(route: Route, answer: Lookup, wanted: Mapping[tuple[object, ...], Route]) -> bool:
    """Return whether a lookup found a wanted route: this one, or one with a lower metric."""
    winner = answer.route
    if winner is None or winner.destination != route.destination or winner.metric > route.metric:
        return False
    return winner.key in wanted and winner.has_same_next_hops(wanted[winner.key])


def _beaten(route: Route, answer: Lookup, fib: Fib, backend: RouteBackend) -> Refusal:
    """Return why a lookup doesn't find a wanted route."""
    number, length = numbers(route.destination)
    same = fib.tables.get(route.table, {}).get(length, {}).get(number, [])
    if all(entry.key != route.key for entry in same):
        return gone_route(route, backend)
    if isinstance(answer.route, Route6) and answer.route.key == route.key:
        return Refusal(
            f"another program has added a next hop to {route}: {answer.route}",
            "choose another metric or destination",
        )
    winner = _winner(answer, fib)
    path = _path_words(answer, winner)
    reason = f"{route} is in the table but doesn't win: packets to {answer.address} go {path}"
    if _is_behind(winner, route):
        why, hint = _why_behind(route, same, fib)
        if why:
            return Refusal(f"{reason}, {why}", hint)
    family = route.family.value
    look = f"look at: ip -{family} rule; ip -{family} route show table all"
    is_of_rule = isinstance(winner, Route) and winner.table not in (Table.LOCAL, Table.MAIN)
    return Refusal(reason, look, asks_fix=is_of_rule)


def gone_route(route: Route, backend: RouteBackend) -> Refusal:
    """Return a refusal for a route of ours that isn't in its table."""
    if name := foreign_name(backend):
        reason = f"{name}.write reported no failure, but {route} isn't in the table"
    else:
        reason = f"{route} isn't in the table any more: another program has just removed it"
    return Refusal(reason, "look at: ip monitor route")


def left_route(route: Route, backend: RouteBackend) -> Refusal:
    """Return a refusal for a removed route of ours that is still in its table."""
    if name := foreign_name(backend):
        reason = f"{name}.write reported no failure, but {route} is still in the table"
    else:
        reason = f"{route} is in the table again: another program has just added it"
    return Refusal(reason, "look at: ip monitor route")


def _why_behind(route: Route, same: Iterable[Route], fib: Fib) -> tuple[str, str]:
    """Return why the kernel skips an IPv6 route, and advice; both are empty if that isn't known."""
    for entry in same:
        if _has_source_prefix(entry):
            return f"because {entry} hides ours from packets of other sources", halves_hint(route)
    silent = [hop for hop in route.hops if (hop.dev, hop.gateway) in fib.silent_routers]
    if not silent or len(silent) < len(route.hops):
        return "", ""
    routers = " and ".join(str(hop.gateway) for hop in silent)
    why = f"because there is no answer from {routers}, and this host forwards no packets"
    return why, f"look at: ip -6 neigh show {silent[0].gateway}"


def _winner(answer: Lookup, fib: Fib) -> Route | Rule | None:
    """Return the entry or rule that ended a lookup, or None if it isn't known.

    The kernel doesn't report what discards a packet. If ``fib`` finds the same errno, its entry or
    rule is the result.
    """
    if answer.route is not None:
        return answer.route
    decision = fib.decide(Flow(answer.address))
    return (decision.route or decision.rule) if decision.errno == answer.errno else None


def _path_words(answer: Lookup, winner: Route | Rule | None) -> str:
    by = f"by rule {winner.preference}: {winner}" if isinstance(winner, Rule) else f"by {winner}"
    if answer.route is not None:
        return by
    why = os.strerror(answer.errno or 0)
    return f"nowhere ({why}), {by}" if winner else f"nowhere ({why})"


def _has_source_prefix(entry: Route) -> bool:
    return isinstance(entry, Route6) and entry.source_prefix is not None


def _is_behind(winner: Route | Rule | None, route: Route) -> bool:
    """Return whether a lookup should have found the route instead of its winner."""
    if not isinstance(winner, Route):
        return winner is None
    is_same = winner.destination == route.destination and winner.metric <= route.metric
    return winner.table == route.table and not is_same


def _covered(
    routes: Sequence[Route],
    main: Sequence[Route],
    local: Sequence[Route],
    family: Family,
) -> list[tuple[Route, Refusal]]:
    """Return refusals for routes whose addresses are all covered by longer prefixes.

    A route that our own routes cover, alone or together with local addresses, gets no refusal.
    """
    destinations = _destinations(routes)
    locals_ = _destinations(local)
    ours = _destinations(route for route in main if route.is_ours and _is_candidate(route))
    left_by_locals = uncovered_addresses((*destinations, *locals_), family.bits)
    left_by_ours = uncovered_addresses((*destinations, *locals_, *ours), family.bits)
    losers: list[tuple[Route, Refusal]] = []
    for route, destination in zip(routes, destinations, strict=True):
        if left_by_ours[destination] is None and left_by_locals[destination] is not None:
            continue
        reason = f"{route} is in the table but never wins: longer prefixes cover all of it"
        # Each search may go through the whole table, so search only for routes that the error
        # names.
        longer = _longer_entry(route, chain(main, local)) if len(losers) < NAMED_MAX else None
        if longer is not None:
            reason += f", for example {longer}"
        look = f"look at: ip -{family.value} route show root {route.destination}"
        losers.append((route, Refusal(reason, look)))
    return losers


def _destinations(routes: Iterable[Route]) -> list[Prefix]:
    return [numbers(route.destination) for route in routes]


def _longer_entry(route: Route, entries: Iterable[Route]) -> Route | None:
    """Return another program's entry with a longer prefix inside a route."""
    for entry in entries:
        if entry.destination == route.destination or entry.is_ours or not _is_candidate(entry):
            continue
        if is_inside(entry.destination, route.destination):
            return entry
    return None


def unproven(
    wanted: Sequence[Route],
    *,
    rules: Sequence[Rule],
    main: Sequence[Group],
    local: Iterable[Route],
) -> list[tuple[Route, IpAddress | None]]:
    """Return the routes that may not be in effect, as far as the tables show.

    Args:
        wanted: the routes in table main that must be in effect.
        rules: the policy rules, in evaluation order.
        main: the entries in table main, in the kernel's order.
        local: the entries in table local.

    Returns:
        The routes, each with an address to look up in the kernel. A route has None instead of an
        address if longer prefixes cover all of the route's addresses. For IPv6 or with custom
        rules, all routes are returned.
    """
    if not wanted:
        return []
    family = wanted[0].family
    asked = [(entry, prefixes) for entry, prefixes in main if _is_candidate(entry)]
    destinations = _destinations(wanted)
    locals_ = _destinations(local)
    in_main = chain.from_iterable(prefixes for _, prefixes in asked)
    uncovered = uncovered_addresses(
        chain(in_main, destinations, locals_, (_THIS_HOST[family],)),
        family.bits,
    )
    winners = _winners(asked) if _do_tables_decide(family, rules) else {}
    covered_by_local = PrefixSet(locals_, family.bits).overlaps
    left: list[tuple[Route, IpAddress | None]] = []
    for route, destination in zip(wanted, destinations, strict=True):
        address = uncovered[destination]
        if address is None:
            left.append((route, None))
        elif not _wins(route, winners.get(destination)) or covered_by_local(address, address):
            left.append((route, family.address(address)))
    return left


def _do_tables_decide(family: Family, rules: Sequence[Rule]) -> bool:
    """Return whether the entries in tables show which entry the kernel uses for a packet."""
    # With only the default rules, the kernel looks up every packet in tables local and main. For
    # IPv6, the tables aren't enough, because the kernel avoids unreachable routers.
    return family is Family.IPV4 and tuple(rules) == KERNEL_RULES


def _is_candidate(entry: Route) -> bool:
    """Return whether a lookup without tos and source may find an entry."""
    # IPv6 packets without a source have the address ::.
    prefix = entry.source_prefix if isinstance(entry, Route6) else None
    needs_source = prefix is not None and not prefix.network_address.is_unspecified
    return entry.tos == 0 and not needs_source and not entry.is_dead


def _winners(main: Sequence[Group]) -> dict[Prefix, Route]:
    """Return the winning entry for each destination: the first one with the lowest metric."""
    winners: dict[Prefix, Route] = {}
    for entry, prefixes in main:
        for prefix in prefixes:
            if winners.setdefault(prefix, entry).metric > entry.metric:
                winners[prefix] = entry
    return winners


def _wins(route: Route, winner: Route | None) -> bool:
    return winner is not None and _is_as_wanted(winner, route)


def _is_as_wanted(entry: Route, route: Route) -> bool:
    """Return whether an entry is the wanted route and isn't skipped by the kernel."""
    is_unicast = entry.type is route.type is RouteType.UNICAST and entry.tos == route.tos
    is_same = (entry.metric, entry.table, entry.nexthop_id) == (
        route.metric,
        route.table,
        route.nexthop_id,
    )
    # The kernel refuses to send from a loopback address, which the route may have inherited.
    is_sent = entry.source is None or not entry.source.is_loopback
    return is_unicast and is_same and is_sent and _lead_as_wanted(entry.hops, route.hops)


@lru_cache
def _lead_as_wanted(hops: tuple[NextHop, ...], wanted: tuple[NextHop, ...]) -> bool:
    # With the sysctl ignore_routes_with_linkdown, the kernel skips hops without a carrier.
    return (
        bool(wanted) and hops == wanted and not any(hop.is_dead or hop.is_linkdown for hop in hops)
    )
