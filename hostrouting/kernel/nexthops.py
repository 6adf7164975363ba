"""Pure: the hops of routes that name a nexthop object.

The kernel shows them with the route itself, but where the sysctl net.ipv4.nexthop_compat_mode is 0. A route whose
object discards is shown as one that does, in either case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.model.routes import RouteType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hostrouting.model.routes import NextHop, NexthopObject, Route

__all__ = ["hops_of", "with_hops"]


def with_hops(routes: Iterable[Route], nexthops: Iterable[NexthopObject]) -> tuple[Route, ...]:
    """Routes with the hops of the nexthop objects that they name, where the kernel didn't show them itself.

    Args:
        routes: as recorded.
        nexthops: likewise.

    Returns:
        The routes in the same order.
    """
    by_id = {nexthop.id: nexthop for nexthop in nexthops}

    def complete(route: Route) -> Route:
        nexthop = None if route.nexthop_id is None or route.hops else by_id.get(route.nexthop_id)
        if nexthop is None or route.type is not RouteType.UNICAST:
            return route
        return attrs.evolve(route, hops=hops_of(nexthop, by_id))

    return tuple(map(complete, routes))


def hops_of(nexthop: NexthopObject, by_id: Mapping[int, NexthopObject]) -> tuple[NextHop, ...]:
    """The hops of a nexthop object, as the kernel shows them with a route by it.

    Args:
        nexthop: the object.
        by_id: all of them, for the members of a group.

    Returns:
        Those of a group with their weights; none of what discards.
    """
    if nexthop.hop is not None:
        return (nexthop.hop,)
    legs = ((by_id[member].hop, weight) for member, weight in nexthop.members if member in by_id)
    hops = tuple(attrs.evolve(hop, weight=weight) for hop, weight in legs if hop is not None)
    # Of a group of one the kernel shows no weight.
    return hops if len(hops) > 1 else tuple(attrs.evolve(hop, weight=1) for hop in hops)
