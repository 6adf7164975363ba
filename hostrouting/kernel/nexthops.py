"""Pure: the hops of routes that name a nexthop object.

The kernel shows them with the route itself, but where the sysctl net.ipv4.nexthop_compat_mode is 0. A route whose
object discards is shown as one that does, in either case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.model.routes import RouteType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hostrouting.model.routes import NextHop, NexthopObject, Route

__all__ = ["hops_of", "with_hops"]


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
        Those of a group with their weights; none of what discards.
    """
    if nexthop.hop is not None:
        return (nexthop.hop,)
    legs = ((by_id[member].hop, weight) for member, weight in nexthop.members if member in by_id)
    hops = tuple(attrs.evolve(hop, weight=weight) for hop, weight in legs if hop is not None)
    # Of a group of one the kernel shows no weight.
    return hops if len(hops) > 1 else tuple(attrs.evolve(hop, weight=1) for hop in hops)
