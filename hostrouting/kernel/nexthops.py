"""Pure: find the default route that counts, the hops of nexthop objects, and the source that a hop gives.

The kernel shows the hops of a nexthop object as part of the route, unless the sysctl net.ipv4.nexthop_compat_mode is 0.
If the object discards packets, the route is always shown as one that discards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from ipaddress import IPv4Address, IPv6Address
from itertools import chain, cycle, islice, product
from typing import Any

import attrs

from hostrouting.kernel.rules import LOOPBACK
from hostrouting.model.links import Address, is_like
from hostrouting.model.routes import Lookup, NextHop, NexthopObject, Route, RouteType, Scope, Table


def with_hops(route: Route, nexthops: Callable[[], Mapping[int, NexthopObject]]) -> Route:
    """Return a route with the hops of its nexthop object if the kernel didn't show them.

    Args:
        route: the route as the kernel shows it.
        nexthops: a function that returns all objects by number.
    """
    if route.nexthop_id is None or route.hops or route.type is not RouteType.UNICAST:
        return route
    by_id = nexthops()
    return attrs.evolve(route, hops=hops_of(by_id[route.nexthop_id], by_id)) if route.nexthop_id in by_id else route


def hops_of(nexthop: NexthopObject, by_id: Mapping[int, NexthopObject]) -> tuple[NextHop, ...]:
    """Return the hops of a nexthop object, as the kernel shows them with a route that uses it.

    Args:
        nexthop: the object.
        by_id: all objects by number, which are needed for the members of a group.

    Returns:
        The hops. For a group, these are the hops of its members with their weights, where a missing member has no
        interface. An object that discards has no hops.
    """
    if nexthop.hop is not None:
        return (nexthop.hop,)
    legs = ((by_id[member].hop if member in by_id else NextHop(), weight) for member, weight in nexthop.members)
    hops = tuple(attrs.evolve(hop, weight=weight) for hop, weight in legs if hop is not None)
    # The kernel shows no weight if a group has only one member.
    return hops if len(hops) > 1 else tuple(attrs.evolve(hop, weight=1) for hop in hops)


def with_shares(route: Route, lacks_carrier: Callable[[str], bool]) -> Route:
    """Return a route in which legs are alive if only a sysctl shows them as dead, because they still get packets.

    If ignore_routes_with_linkdown is set, a hop without a carrier is shown as dead. However, a leg loses its share of
    packets when it loses its carrier, and not when the sysctl is set (fib_rebalance). The kernel always skips such legs
    of nexthop objects, and it skips a route if none of its legs has a carrier.

    Args:
        route: the route as the kernel shows it.
        lacks_carrier: a function that returns whether an interface is up without a carrier. If it isn't, its leg is
            dead for another reason.
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


# The parts of an entry that decide which sources its packets get.
SourceKey = tuple[object, ...]


def source_key(route: Route) -> SourceKey:
    """Return a key that is equal for entries whose packets get the same sources."""
    hops = tuple(hop.path for hop in route.hops if not hop.is_dead)
    return route.type, route.scope, route.source, route.nexthop_id, hops


# With this many flows for each share, a hop gets none of them only once in e**16 cases.
_FLOWS_A_SHARE, _FLOWS_MAX = 16, 4096


def flows_through(route: Route) -> int:
    """Return how many flows through an entry are needed to use all of its hops."""
    weights = [hop.weight for hop in route.hops]
    if len(weights) < 2 or route.source is not None:
        return 1
    return min(_FLOWS_A_SHARE * -(-sum(weights) // min(weights)), _FLOWS_MAX)


def spread(route: Route, addresses: Iterable[IPv4Address]) -> list[IPv4Address]:
    """Return enough addresses for flows through all hops of an entry, repeating addresses if there are too few."""
    return list(islice(cycle(addresses), flows_through(route)))


class Sources:
    """The sources that packets without a source get, derived from the addresses and entries of a host.

    Where possible, the kernel is queried instead. No dump contains three facts that matter: the order in which
    interfaces were registered, the sysctl route_localnet, and the route that last chose the source of a nexthop object.

    ``loopback_scope`` is the lowest scope with which an entry can get a source in 127.0.0.0/8.

    Args:
        addresses: the host's addresses. Those of each interface are in the kernel's order.
    """

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._primary: dict[str, list[Address]] = {}
        for address in addresses:
            if not address.is_secondary:
                self._primary.setdefault(address.dev, []).append(address)
        loopbacks = (each.scope for each in addresses if each.local.is_loopback)
        # On most hosts, all addresses in 127.0.0.0/8 have host scope.
        self.loopback_scope = min(loopbacks, default=Scope.NOWHERE + 1)
        self._by_hop = cache(self._source_by)

    def of(self, route: Route) -> tuple[IPv4Address, ...]:
        """Return the sources that packets through the hops of an entry get, in ascending order.

        This assumes that interfaces were registered in the order of their indexes, and that the other unknown facts
        have their usual values.
        """
        return tuple(sorted(_each_once(self.by_hop(route, hop) for hop in route.hops if not hop.is_dead)))

    def doubtful(self, route: Route, scopes: Iterable[int]) -> tuple[IPv4Address, ...]:
        """Return all sources that packets through an entry may get, without duplicates, or none if there is no doubt.

        Args:
            route: the entry.
            scopes: the scopes of the entries that use nexthop objects.
        """
        if route.source is not None:
            return ()
        shared = {route.scope}
        if route.nexthop_id is not None:
            # Until an address changes, the object has the source that it got at first, according to its own scope
            # (nh_create_ipv4).
            shared |= {*scopes, Scope.LINK - 1, Scope.LINK}
        cases = list(product(shared, (Scope.HOST, Scope.LINK)))
        hops = [(hop.dev, _compared_gateway(route, hop)) for hop in route.hops if not hop.is_dead]
        by_hop = [_each_once(chain.from_iterable(self._by_hop(*hop, *case) for case in cases)) for hop in hops]
        return _each_once(chain.from_iterable(by_hop)) if any(len(sources) > 1 for sources in by_hop) else ()

    def by_hop(self, route: Route, hop: NextHop) -> IPv4Address | None:
        """Return the source of packets through a hop of an entry (fib_result_prefsrc), or None if there is none."""
        if route.source is not None:
            return route.source
        return next(iter(self._by_hop(hop.dev, _compared_gateway(route, hop), route.scope, Scope.HOST)), None)

    def _source_by(
        self, dev: str | None, gateway: IPv4Address | None, scope: int, local_scope: int
    ) -> tuple[IPv4Address, ...]:
        """Return the sources that a hop may give (inet_select_addr), preferring the subnet of the gateway.

        Args:
            dev: the interface of the hop.
            gateway: the gateway of the hop, if any.
            scope: the scope of the entry.
            local_scope: a limit on the scopes of addresses, which is host, or link with route_localnet.

        Returns:
            The source that the interface gives. If it has no address, the kernel uses the first interface that has one,
            so the result has a source for each interface that may be the first.
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


def _compared_gateway(route: Route, hop: NextHop) -> IPv4Address | None:
    """Return the address that the kernel compares with subnets (fib_info_update_nhc_saddr).

    For an IPv6 gateway, it uses the first four bytes.
    """
    if isinstance(hop.gateway, IPv6Address):
        number = 0 if route.nexthop_id is not None else int(hop.gateway) >> 96
        return IPv4Address(number) if number else None
    return hop.gateway


def _each_once(sources: Iterable[IPv4Address | None]) -> tuple[IPv4Address, ...]:
    return tuple(dict.fromkeys(source for source in sources if source is not None))


# --- the default route ---------------------------------------------------------------------------------------------


def default_route(routes: Iterable[Route], by: tuple[str, ...] | None = None) -> Route | None:
    """Return the default route that counts, which is the unicast 0.0.0.0/0 with the lowest metric in table main.

    Args:
        routes: the entries of any tables, in the kernel's order.
        by: shell patterns of interfaces, of which a default route must have a live hop through one, or None for any
            interface.

    Returns:
        The route with all of its hops, or None if no route has a live hop.
    """
    candidates = [route for route in unicast_defaults(routes) if any(is_among(dev, by) for dev in route.devs)]
    return min(candidates, key=lambda route: route.metric, default=None)


def inherited_route(routes: Iterable[Route], by: tuple[str, ...] | None = None) -> Route | None:
    """Return ``default_route`` with only its live hops through these interfaces, which static routes inherit."""
    default = default_route(routes, by)
    if default is None:
        return None
    hops = [hop for hop in default.hops if not hop.is_dead and hop.dev is not None and is_among(hop.dev, by)]
    return attrs.evolve(default, hops=tuple(hops))


def is_among(dev: str, patterns: tuple[str, ...] | None) -> bool:
    """Return whether an interface matches one of the shell patterns. None matches every interface."""
    return patterns is None or is_like(dev, patterns)


def contested_defaults(routes: Iterable[Route]) -> list[Route]:
    """Return the default routes that share the lowest metric, or an empty list if all use the same interfaces."""
    live = [route for route in unicast_defaults(routes) if route.devs]
    lowest = min((route.metric for route in live), default=0)
    tied = [route for route in live if route.metric == lowest]
    return tied if len({route.devs for route in tied}) > 1 else []


def in_turn(look_up: Callable[..., Iterable[Lookup]], routes: Iterable[Route]) -> Callable[..., list[Lookup]]:
    """Return a lookup function that returns every default route that the kernel may choose, not just one.

    If several default routes have the same table and metric and one gateway each, the kernel chooses one by the state
    of their gateways for each lookup (fib_select_default).

    Args:
        look_up: the function ``RouteBackend.lookup`` or a model of it.
        routes: the entries of every table, in the kernel's order.
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

    def look_up_each(addresses: Sequence[IPv4Address], **flow: Any) -> list[Lookup]:
        return list(chain.from_iterable(map(each, look_up(addresses, **flow))))

    return look_up_each


def _is_alternative(route: Route) -> bool:
    """Return whether a route is one of those from which the kernel chooses by the state of the gateways."""
    is_default = route.destination.prefixlen == 0 and route.type is RouteType.UNICAST and not route.is_dead
    return is_default and len(route.hops) == 1 and route.hops[0].gateway is not None


def missing_default_route(routes: Iterable[Route], by: tuple[str, ...] | None = None) -> str:
    """Explain why ``default_route`` finds no route.

    Args:
        routes: see ``default_route``.
        by: see ``default_route``.

    Returns:
        A phrase that names what is missing and what exists instead.
    """
    on = "" if by is None else f" on {','.join(by)}"
    dead = [route for route in unicast_defaults(routes) if any(is_among(hop.dev or "", by) for hop in route.hops)]
    if not dead:
        return f"the default route{on} (table main has no unicast 0.0.0.0/0{on})"
    return f"a live default route{on} (all hops of {dead[0]} are dead)"


def unicast_defaults(routes: Iterable[Route]) -> list[Route]:
    """Return the unicast routes to 0.0.0.0/0 in table main without a tos, including dead ones, in the given order."""
    return [
        route
        for route in routes
        if route.destination.prefixlen == 0
        and route.table == Table.MAIN
        and route.type is RouteType.UNICAST
        and route.tos == 0
    ]
