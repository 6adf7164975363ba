"""Pure: where routes lead: the default route that counts, the hops of a nexthop object, the source that a hop gives.

The kernel shows the hops of a nexthop object with the route itself, but where the sysctl
net.ipv4.nexthop_compat_mode is 0. A route whose object discards is shown as one that does, in either case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from ipaddress import IPv4Address
from itertools import chain

import attrs

from hostrouting.model.links import Address
from hostrouting.model.routes import NextHop, NexthopObject, Route, RouteType, Scope, Table


def with_hops(route: Route, nexthops: Callable[[], Mapping[int, NexthopObject]]) -> Route:
    """A route with the hops of the nexthop object that it names, where the kernel didn't show them itself.

    Args:
        route: as the kernel shows it.
        nexthops: gives all objects by number.
    """
    if route.nexthop_id is None or route.hops or route.type is not RouteType.UNICAST:
        return route
    by_id = nexthops()
    return attrs.evolve(route, hops=hops_of(by_id[route.nexthop_id], by_id)) if route.nexthop_id in by_id else route


def hops_of(nexthop: NexthopObject, by_id: Mapping[int, NexthopObject]) -> tuple[NextHop, ...]:
    """The hops of a nexthop object, as the kernel shows them with a route by it.

    Args:
        nexthop: the object.
        by_id: all of them, for the members of a group.

    Returns:
        Those of a group with their weights, one without an interface for a member that isn't there; none of what
        discards.
    """
    if nexthop.hop is not None:
        return (nexthop.hop,)
    legs = ((by_id[member].hop if member in by_id else NextHop(), weight) for member, weight in nexthop.members)
    hops = tuple(attrs.evolve(hop, weight=weight) for hop, weight in legs if hop is not None)
    # Of a group of one the kernel shows no weight.
    return hops if len(hops) > 1 else tuple(attrs.evolve(hop, weight=1) for hop in hops)


class Sources:
    """The sources that a host's packets get where nobody chooses one.

    ``loopback_scope`` is the least scope that an entry must have to get a source of 127.0.0.0/8.

    Args:
        addresses: of the host, in the kernel's order, which is that of the interfaces.
    """

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._primary: dict[str, list[Address]] = {}
        for address in addresses:
            if not address.is_secondary:
                self._primary.setdefault(address.dev, []).append(address)
        loopbacks = (each.scope for each in addresses if each.local.is_loopback)
        # Most hosts have 127.0.0.0/8 for themselves alone.
        self.loopback_scope = min(loopbacks, default=Scope.NOWHERE + 1)
        self.by_hop = cache(self._by_hop)

    def of(self, route: Route) -> tuple[IPv4Address, ...]:
        """The sources that packets by an entry get: of several hops each has its own (fib_result_prefsrc).

        A look-up would tell of one of them only: that of the hop which it happens to choose.

        Args:
            route: the entry that wins.

        Returns:
            Each once; none if it isn't a unicast entry, or there is no address to choose.
        """
        if route.type is not RouteType.UNICAST:
            return ()
        if route.source is not None:
            return (route.source,)
        found = (self.by_hop(hop, route.scope) for hop in route.hops if not hop.is_dead)
        return tuple(dict.fromkeys(source for source in found if source is not None))

    def _by_hop(self, hop: NextHop, scope: int) -> IPv4Address | None:
        """The source by a hop (inet_select_addr): of its interface, the gateway's subnet first; else of any other.

        Args:
            hop: of an entry that names no source itself.
            scope: the entry's.
        """
        own = [address for address in self._primary.get(hop.dev or "", ()) if address.scope <= scope]
        if isinstance(hop.gateway, IPv4Address):
            for address in own:
                if hop.gateway in address.network:
                    return address.local
        primary = chain.from_iterable(self._primary.values())
        others = (each for each in primary if each.scope != Scope.LINK and each.scope <= scope)
        return next((each.local for each in chain(own, others)), None)


# --- the default route ---------------------------------------------------------------------------------------------


def default_route(routes: Iterable[Route], dev: str | None = None) -> Route | None:
    """The default route that counts: the lowest-metric unicast 0.0.0.0/0 of table main.

    Args:
        routes: entries of any tables, in the kernel's order.
        dev: take only default routes with a live hop on this interface.

    Returns:
        The route; None if there is none with a live hop. Its dead hops, if any, are still in it.
    """
    candidates = [route for route in unicast_defaults(routes) if (dev in route.devs if dev else route.devs)]
    return min(candidates, key=lambda route: route.metric, default=None)


def missing_default_route(routes: Iterable[Route], dev: str | None = None) -> str:
    """Why ``default_route`` finds none, in words.

    Args:
        routes: as for ``default_route``.
        dev: likewise.

    Returns:
        What is missing, with what is there instead.
    """
    on = "" if dev is None else f" on {dev}"
    dead = [route for route in unicast_defaults(routes) if dev is None or any(hop.dev == dev for hop in route.hops)]
    if not dead:
        return f"the default route{on} (table main has no unicast 0.0.0.0/0{on})"
    return f"a live default route{on} (all hops are dead of {dead[0]})"


def unicast_defaults(routes: Iterable[Route]) -> list[Route]:
    """The unicast 0.0.0.0/0 of table main for any tos, be they dead, in the order in which they are given."""
    return [
        route
        for route in routes
        if route.destination.prefixlen == 0
        and route.table == Table.MAIN
        and route.type is RouteType.UNICAST
        and route.tos == 0
    ]
