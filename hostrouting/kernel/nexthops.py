"""Determine the effective default route, the hops of nexthop objects, and the source address for a hop.

The kernel shows a nexthop object's hops as part of the route, unless the sysctl net.ipv4.nexthop_compat_mode is 0. If
the object is a blackhole, the route is always shown as a blackhole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from ipaddress import IPv4Address, IPv6Address
from itertools import chain, cycle, islice, product
from typing import Any

import attrs

from hostrouting.kernel.rules import LOOPBACK
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.links import Address, is_like
from hostrouting.model.routes import Lookup, NextHop, NexthopObject, Protocol, Route, Route6, RouteType, Scope, Table


def with_hops(route: Route, nexthops: Callable[[], Mapping[int, NexthopObject]]) -> Route:
    """Return a route with its nexthop object's hops filled in if the kernel omitted them.

    Args:
        route: the route as the kernel shows it.
        nexthops: a function that returns all nexthop objects by ID.
    """
    if route.nexthop_id is None or route.hops or route.type is not RouteType.UNICAST:
        return route
    by_id = nexthops()
    return attrs.evolve(route, hops=hops_of(by_id[route.nexthop_id], by_id)) if route.nexthop_id in by_id else route


def hops_of(nexthop: NexthopObject, by_id: Mapping[int, NexthopObject]) -> tuple[NextHop, ...]:
    """Return a nexthop object's hops, as the kernel shows them for a route that uses it.

    Args:
        nexthop: the object.
        by_id: all nexthop objects by ID, to look up group members.

    Returns:
        The hops, or for a group its members' hops with their weights. A missing member becomes a hop without an
        interface. A blackhole has no hops.
    """
    if nexthop.hop is not None:
        return (nexthop.hop,)
    legs = ((by_id[member].hop if member in by_id else NextHop(), weight) for member, weight in nexthop.members)
    hops = tuple(attrs.evolve(hop, weight=weight) for hop, weight in legs if hop is not None)
    # The kernel omits the weight if a group has only one member.
    return hops if len(hops) > 1 else tuple(attrs.evolve(hop, weight=1) for hop in hops)


def with_shares(route: Route, lacks_carrier: Callable[[str], bool]) -> Route:
    """Mark legs as alive that are shown as dead because of a sysctl but still get packets.

    If ignore_routes_with_linkdown is set, hops without a carrier are shown as dead. However, a leg's share of packets
    is recalculated when it loses its carrier, not when the sysctl is set (fib_rebalance). The kernel always skips such
    legs in nexthop objects, and skips routes in which no leg has a carrier.

    Args:
        route: the route as the kernel shows it.
        lacks_carrier: a function that returns whether an interface is up but has no carrier. Otherwise, the leg is dead
            for another reason.
    """
    if len(route.hops) < 2 or route.nexthop_id is not None or route.is_dead:
        return route
    hops = tuple(
        attrs.evolve(hop, is_dead=False)
        if hop.is_dead and hop.is_linkdown and hop.dev and lacks_carrier(hop.dev)
        else hop
        for hop in route.hops
    )
    return attrs.evolve(route, hops=hops)


# A router, identified by its interface and gateway address.
Router = tuple[str | None, IpAddress | None]


def in_order(hops: Iterable[NextHop]) -> tuple[NextHop, ...]:
    """Return an IPv6 entry's next hops in a canonical order, because a lookup lists the selected one first."""
    return tuple(sorted(hops, key=lambda hop: (hop.dev or "", int(hop.gateway or 0), hop.weight)))


# The attributes that determine which source addresses an entry selects.
SourceKey = tuple[object, ...]


def source_key(route: Route) -> SourceKey:
    """Return a key that is equal for entries that select the same source addresses."""
    hops = tuple(hop.path for hop in route.hops if not hop.is_dead)
    return route.type, route.scope, route.source, route.nexthop_id, hops


# With this many flows per share, the probability that a hop gets none is e**-16.
_FLOWS_A_SHARE, _FLOWS_MAX = 16, 4096


def flows_through(route: Route) -> int:
    """Return the number of flows needed to exercise all hops of an entry."""
    weights = [hop.weight for hop in route.hops]
    if len(weights) < 2 or route.source is not None:
        return 1
    return min(_FLOWS_A_SHARE * -(-sum(weights) // min(weights)), _FLOWS_MAX)


def spread(route: Route, addresses: Iterable[IpAddress]) -> list[IpAddress]:
    """Return enough addresses to exercise all hops of an entry, repeating them if there are too few."""
    return list(islice(cycle(addresses), flows_through(route)))


class Sources:
    """A model of the kernel's source address selection, based on a host's addresses and entries.

    Where possible, the kernel is queried instead. Dumps lack three relevant facts: the order in which interfaces were
    registered, the sysctl route_localnet, and the route that last set a nexthop object's source.

    Args:
        addresses: the host's addresses, in the kernel's order within each interface.
    """

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._primary: dict[str, list[Address]] = {}
        for address in addresses:
            if not address.is_secondary:
                self._primary.setdefault(address.dev, []).append(address)
        self._by_hop = cache(self._source_by)

    def of(self, route: Route) -> tuple[IpAddress, ...]:
        """Return the source addresses that an entry's hops select, in ascending order.

        This assumes that interfaces were registered in index order, and that the other unknown facts have their
        defaults.
        """
        return tuple(sorted(_each_once(self.by_hop(route, hop) for hop in route.hops if not hop.is_dead)))

    def doubtful(self, route: Route, scopes: Iterable[int]) -> tuple[IpAddress, ...]:
        """Return all source addresses that an entry may select, or an empty tuple if the selection is unambiguous.

        Args:
            route: the entry.
            scopes: the scopes of all entries that use nexthop objects.
        """
        if route.source is not None:
            return ()
        shared = {route.scope}
        if route.nexthop_id is not None:
            # Until an address changes, the object keeps its initial source, which depends on its own scope
            # (nh_create_ipv4).
            shared |= {*scopes, Scope.LINK - 1, Scope.LINK}
        cases = list(product(shared, (Scope.HOST, Scope.LINK)))
        hops = [(hop.dev, _compared_gateway(route, hop)) for hop in route.hops if not hop.is_dead]
        by_hop = [_each_once(chain.from_iterable(self._by_hop(*hop, *case) for case in cases)) for hop in hops]
        return _each_once(chain.from_iterable(by_hop)) if any(len(sources) > 1 for sources in by_hop) else ()

    def by_hop(self, route: Route, hop: NextHop) -> IpAddress | None:
        """Return the source address for packets through a hop of an entry (fib_result_prefsrc), or None."""
        if route.source is not None:
            return route.source
        return next(iter(self._by_hop(hop.dev, _compared_gateway(route, hop), route.scope, Scope.HOST)), None)

    def _source_by(
        self, dev: str | None, gateway: IpAddress | None, scope: int, local_scope: int
    ) -> tuple[IpAddress, ...]:
        """Return the source addresses that a hop may select (inet_select_addr), preferring the gateway's subnet.

        Args:
            dev: the hop's interface.
            gateway: the hop's gateway, if any.
            scope: the entry's scope.
            local_scope: the upper limit for address scopes: host, or link with route_localnet.

        Returns:
            The interface's address. If it has none, the kernel uses the first interface that has one, so the result
            contains an address for each interface that may be first.
        """
        own = [each for each in self._primary.get(dev or "", ()) if min(each.scope, local_scope) <= scope]
        near = (each for each in own if gateway is not None and gateway in each.network)
        if (found := next(chain(near, own), None)) is not None:
            return (found.local,)
        firsts = {
            name: next((each.local for each in those if each.scope != Scope.LINK and each.scope <= scope), None)
            for name, those in self._primary.items()
        }
        # The loopback interface is always registered first.
        first = firsts.get(LOOPBACK)
        return (first,) if first is not None else _each_once(firsts.values())


def _compared_gateway(route: Route, hop: NextHop) -> IpAddress | None:
    """Return the address that the kernel compares with subnets (fib_info_update_nhc_saddr).

    For an IPv6 gateway, it uses the first four bytes.
    """
    if isinstance(hop.gateway, IPv6Address):
        number = 0 if route.nexthop_id is not None else int(hop.gateway) >> 96
        return IPv4Address(number) if number else None
    return hop.gateway


def _each_once(sources: Iterable[IpAddress | None]) -> tuple[IpAddress, ...]:
    return tuple(dict.fromkeys(source for source in sources if source is not None))


# --- the default route ---------------------------------------------------------------------------------------------


def default_route(routes: Iterable[Route], by: tuple[str, ...] | None = None) -> Route | None:
    """Return the effective default route: the unicast 0.0.0.0/0 or ::/0 with the lowest metric in table main.

    Args:
        routes: entries from any tables, in the kernel's order.
        by: shell-style patterns for interfaces. Only default routes with a live hop through a matching interface are
            considered. None matches any interface.

    Returns:
        The route with all of its hops, or None if no route has a live hop.
    """
    candidates = [route for route in unicast_defaults(routes) if any(is_among(dev, by) for dev in route.devs)]
    return min(candidates, key=lambda route: route.metric, default=None)


def inherited_route(routes: Iterable[Route], by: tuple[str, ...] | None = None) -> Route | None:
    """Return ``default_route`` with only its live hops through these interfaces, for static routes to inherit."""
    default = default_route(routes, by)
    if default is None:
        return None
    hops = [hop for hop in default.hops if not hop.is_dead and hop.dev is not None and is_among(hop.dev, by)]
    return attrs.evolve(default, hops=tuple(hops))


def is_among(dev: str, patterns: tuple[str, ...] | None) -> bool:
    """Return whether an interface matches any of the shell-style patterns. None matches any interface."""
    return patterns is None or is_like(dev, patterns)


def contested_defaults(routes: Iterable[Route]) -> list[Route]:
    """Return the default routes tied for the lowest metric, or an empty list if all use the same interfaces.

    Networkd merges the routes from several IPv6 routers into a multipath route, so its hops count as single routes.
    """
    single = (
        attrs.evolve(route, hops=hops)
        for route in unicast_defaults(routes)
        for hops in (((hop,) for hop in route.hops) if route.protocol == Protocol.RA else (route.hops,))
    )
    live = [route for route in single if route.devs]
    lowest = min((route.metric for route in live), default=0)
    tied = [route for route in live if route.metric == lowest]
    return tied if len({route.devs for route in tied}) > 1 else []


def in_turn(look_up: Callable[..., Iterable[Lookup]], routes: Iterable[Route]) -> Callable[..., list[Lookup]]:
    """Wrap a lookup function so that it returns every default route that the kernel may choose, not just one.

    Among default routes with the same table and metric and one gateway each, the kernel chooses one per lookup, based
    on neighbour states (fib_select_default).

    Args:
        look_up: ``RouteBackend.lookup`` or a model of it.
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
        return [lookup._replace(route=other) for other in (found if route in found else (route, *found))]

    def look_up_each(addresses: Sequence[IpAddress], **flow: Any) -> list[Lookup]:
        return list(chain.from_iterable(map(each, look_up(addresses, **flow))))

    return look_up_each


def _is_alternative(route: Route) -> bool:
    """Return whether a route is a candidate for fib_select_default."""
    is_default = route.destination.prefixlen == 0 and route.type is RouteType.UNICAST and not route.is_dead
    return is_default and route.family is Family.IPV4 and len(route.hops) == 1 and route.hops[0].gateway is not None


def missing_default_route(routes: Iterable[Route], family: Family, by: tuple[str, ...] | None = None) -> str:
    """Explain why ``default_route`` finds no route.

    Args:
        routes: see ``default_route``.
        family: the routes' address family.
        by: see ``default_route``.

    Returns:
        A phrase that says what is missing and what exists instead.
    """
    on = "" if by is None else f" on {','.join(by)}"
    dead = [route for route in unicast_defaults(routes) if any(is_among(hop.dev or "", by) for hop in route.hops)]
    if not dead:
        return f"the default route{on} (table main has no unicast {family.any}{on})"
    return f"a live default route{on} (all hops of {dead[0]} are dead)"


def unicast_defaults(routes: Iterable[Route]) -> list[Route]:
    """Return the unicast default routes in table main that match any packet, including dead ones, in the given order.

    They have tos 0 and no source prefix.
    """
    return [
        route
        for route in routes
        if route.destination.prefixlen == 0
        and route.table == Table.MAIN
        and route.type is RouteType.UNICAST
        and route.tos == 0
        and not (isinstance(route, Route6) and route.source_prefix)
    ]
