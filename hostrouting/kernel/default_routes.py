"""Find the effective default route, and other default routes that the kernel may choose.

This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import chain
from typing import Any

import attrs

from hostrouting.kernel.rules import LOOPBACK, is_about_other_packets
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.links import is_like
from hostrouting.model.lookups import Lookup
from hostrouting.model.routes import Protocol, Route, Route6, RouteType, Table
from hostrouting.model.rules import Rule, RuleAction


def default_route(routes: Iterable[Route], by: tuple[str, ...] | None = None) -> Route | None:
    """Return the effective default route: the unicast one with the lowest metric in table main.

    Args:
        routes: entries from any tables, in the kernel's order.
        by: shell-style patterns for interfaces, or None for any interface. Only default routes with
            a live hop through a matching interface are considered.

    Returns:
        The route with all of its hops. None if no default route has a live hop through a matching
        interface.
    """
    candidates = [
        route for route in unicast_defaults(routes) if any(is_among(dev, by) for dev in route.devs)
    ]
    return min(candidates, key=lambda route: route.metric, default=None)


def inherited_route(routes: Iterable[Route], by: tuple[str, ...] | None = None) -> Route | None:
    """Return the effective default route with only the live hops whose interface matches ``by``.

    A static route without a gateway inherits the returned hops.
    """
    default = default_route(routes, by)
    if default is None:
        return None
    hops = [
        hop
        for hop in default.hops
        if not hop.is_dead and hop.dev is not None and is_among(hop.dev, by)
    ]
    return attrs.evolve(default, hops=tuple(hops))


def uplink_patterns(
    configured: tuple[str, ...] | None,
    verified: Sequence[str],
    ipv4_defaults: Iterable[Route] | None,
) -> tuple[str, ...] | None:
    """Return patterns for the interfaces whose default routes count, or None for all interfaces.

    The uplinks are those that the config names, or else the verified ones. For IPv6, they are
    otherwise the interfaces of the IPv4 default route, because any router on a link can advertise
    an IPv6 default route.

    Args:
        configured: the uplinks that the config names; None if it names none.
        verified: the names of the verified uplinks; empty if there are none.
        ipv4_defaults: for IPv6, the IPv4 default routes. None for IPv4, or to ignore them.
    """
    if configured is not None:
        return configured
    if verified:
        return tuple(map(_only, verified))
    if ipv4_defaults is None:
        return None
    default = default_route(ipv4_defaults)
    return None if default is None else tuple(map(_only, default.devs))


def _only(dev: str) -> str:
    """Return a shell pattern that matches only the name ``dev``: ``*`` stands for itself."""
    return re.sub(r"([*?[])", r"[\1]", dev)


def is_among(dev: str, patterns: tuple[str, ...] | None) -> bool:
    """Return whether an interface matches any of the shell-style patterns.

    None matches any interface.
    """
    return patterns is None or is_like(dev, patterns)


def contested_defaults(routes: Iterable[Route]) -> list[Route]:
    """Return the default routes that share the lowest metric, if their interfaces differ.

    The default routes of several IPv6 routers may appear as one multipath route with protocol
    ``ra``. Each hop of a multipath route with protocol ``ra`` counts as a separate route.
    """
    single = [each for route in unicast_defaults(routes) for each in _by_router(route)]
    live = [route for route in single if route.devs]
    lowest = min((route.metric for route in live), default=0)
    tied = [route for route in live if route.metric == lowest]
    return tied if len({route.devs for route in tied}) > 1 else []


def _by_router(route: Route) -> list[Route]:
    if route.protocol != Protocol.RA:
        return [route]
    return [attrs.evolve(route, hops=(hop,)) for hop in route.hops]


def with_every_default(
    look_up: Callable[..., Iterable[Lookup]],
    routes: Iterable[Route],
) -> Callable[..., list[Lookup]]:
    """Wrap a lookup function, so that it returns every default route that the kernel may choose.

    There may be several IPv4 default routes with the same table and metric, each with a single hop
    and a gateway. For each lookup, the kernel chooses one of these routes by the state of the
    gateways' neighbour entries (fib_select_default).

    Args:
        look_up: ``RouteBackend.lookup``, or a model's function of this name.
        routes: the entries in all tables, in the kernel's order.
    """
    alternatives: dict[tuple[object, ...], list[Route]] = {}
    for route in filter(_is_alternative, routes):
        alternatives.setdefault((route.key, route.scope), []).append(route)

    def each(lookup: Lookup) -> Iterable[Lookup]:
        route = lookup.route
        if route is None or not _is_alternative(route):
            return (lookup,)
        found = alternatives.get((route.key, route.scope), [])
        return [
            Lookup(lookup.address, other, lookup.errno)
            for other in (found if route in found else (route, *found))
        ]

    def look_up_each(addresses: Sequence[IpAddress], **flow: Any) -> list[Lookup]:
        return list(chain.from_iterable(map(each, look_up(addresses, **flow))))

    return look_up_each


def _is_alternative(route: Route) -> bool:
    """Return whether a route is a candidate for fib_select_default."""
    is_default = (
        route.destination.prefixlen == 0 and route.type is RouteType.UNICAST and not route.is_dead
    )
    return (
        is_default
        and route.family is Family.IPV4
        and len(route.hops) == 1
        and route.hops[0].gateway is not None
    )


MISSING_UPLINK = ", which hostRouting.uplinks names"
"""The end of ``missing_uplink``."""


def missing_uplink(patterns: tuple[str, ...]) -> str:
    """Return a phrase about the missing interfaces that a config names as uplinks."""
    return f"interface {','.join(patterns)}{MISSING_UPLINK}"


def missing_default_route(
    routes: Iterable[Route],
    family: Family,
    by: tuple[str, ...] | None = None,
) -> str:
    """Explain why ``default_route`` finds no route.

    Args:
        routes: see ``default_route``.
        family: the routes' address family.
        by: see ``default_route``.

    Returns:
        A phrase that says what is missing and what exists instead.
    """
    on = "" if by is None else f" on {','.join(by)}"
    dead = [
        route
        for route in unicast_defaults(routes)
        if any(is_among(hop.dev or "", by) for hop in route.hops)
    ]
    if not dead:
        return f"the default route{on} (table main has no unicast {family.any}{on})"
    if isinstance(dead[0], Route6) and dead[0].is_expired:
        return (
            f"a live default route{on} ({dead[0]} has expired, as no advertisement has renewed it)"
        )
    return f"a live default route{on} (all hops of {dead[0]} are dead)"


def tables_for_all(rules: Iterable[Rule]) -> list[int]:
    """Return the tables that a rule looks up for every packet of a check, without local and main.

    A table for nearly all packets, such as a VPN's (``not fwmark 51820``), isn't included.
    """
    tables = dict.fromkeys(rule.table for rule in rules if _is_for_all(rule))
    return [table for table in tables if table not in (Table.LOCAL, Table.MAIN)]


def _is_for_all(rule: Rule) -> bool:
    """Return whether a rule sends every packet of a check to its table, and suppresses no route."""
    if rule.action is not RuleAction.TO_TABLE or rule.is_l3mdev:
        return False
    if rule.suppress_prefix_length is not None or rule.suppress_group is not None:
        return False
    if rule.source or rule.destination or rule.ip_protocol:
        return False
    return not (rule.is_inverted or is_about_other_packets(rule))


def default_beside_main(
    routes: Iterable[Route],
    tables: Container[int],
    by: tuple[str, ...] | None = None,
) -> Route | None:
    """Return the first live default route that is in certain tables and has a gateway, or None.

    Args:
        routes: entries from any tables.
        tables: the numbers of the tables to search.
        by: see ``default_route``.
    """
    for route in routes:
        if route.table not in tables or not _is_default(route) or not route.devs:
            continue
        has_gateway = any(hop.gateway is not None for hop in route.hops)
        if has_gateway and any(is_among(dev, by) for dev in route.devs):
            return route
    return None


def unicast_defaults(routes: Iterable[Route]) -> list[Route]:
    """Return the unicast default routes in table main that match any packet, including dead ones.

    Routes with a tos or a source prefix are left out, and so are routes that only lead to the
    loopback interface.
    """
    return [route for route in routes if route.table == Table.MAIN and _is_default(route)]


def _is_default(route: Route) -> bool:
    return (
        route.destination.prefixlen == 0
        and route.type is RouteType.UNICAST
        and route.tos == 0
        and not (isinstance(route, Route6) and route.source_prefix)
        and route.devs != (LOOPBACK,)
    )
