"""Fill in the hops of nexthop objects, and find the hops that only seem to be dead.

This module does no I/O. The kernel shows a nexthop object's hops as hops of the route, unless the
sysctl net.ipv4.nexthop_compat_mode is 0. A route with a blackhole object is always shown as a
blackhole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs

from hostrouting.model.family import Family, IpAddress
from hostrouting.model.links import Address, Link
from hostrouting.model.routes import NextHop, NexthopObject, Route, RouteType


def with_hops(route: Route, nexthops: Callable[[], Mapping[int, NexthopObject]]) -> Route:
    """Return a route with the hops of its nexthop object, which the kernel may have omitted.

    Args:
        route: the route as the kernel shows it.
        nexthops: a function that returns all nexthop objects by ID.
    """
    if route.nexthop_id is None or route.hops or route.type is not RouteType.UNICAST:
        return route
    by_id = nexthops()
    return (
        attrs.evolve(route, hops=hops_of(by_id[route.nexthop_id], by_id))
        if route.nexthop_id in by_id
        else route
    )


def hops_of(nexthop: NexthopObject, by_id: Mapping[int, NexthopObject]) -> tuple[NextHop, ...]:
    """Return a nexthop object's hops, as the kernel shows them in a route with this object.

    Args:
        nexthop: the nexthop object.
        by_id: all nexthop objects by ID, to look up group members.

    Returns:
        The hops, or for a group, the members' hops with the members' weights. A missing member
        becomes a hop without an interface. A blackhole has no hops.
    """
    if nexthop.hop is not None:
        return (nexthop.hop,)
    legs = (
        (by_id[member].hop if member in by_id else NextHop(), weight)
        for member, weight in nexthop.members
    )
    hops = tuple(attrs.evolve(hop, weight=weight) for hop, weight in legs if hop is not None)
    # The kernel omits the weight if a group has only one member.
    return hops if len(hops) > 1 else tuple(attrs.evolve(hop, weight=1) for hop in hops)


def with_shares(route: Route, may_have_share: Callable[[str], bool]) -> Route:
    """Mark hops as alive that the kernel shows as dead, but may still send packets through.

    With the sysctl ignore_routes_with_linkdown, the kernel shows hops without a carrier as dead.
    But only the loss of a carrier changes the hops' shares (fib_rebalance). So if the sysctl was
    set after the carrier was lost, such a hop still gets its share of packets. But a hop of a
    nexthop object, or of a route without any carrier, gets no packets.

    Args:
        route: the route as the kernel shows it.
        may_have_share: a function that returns whether an interface is one of
            ``devs_with_shares``.
    """
    if len(route.hops) < 2 or route.nexthop_id is not None or route.is_dead:
        return route
    hops = tuple(
        attrs.evolve(hop, is_dead=False)
        if hop.is_dead and hop.is_linkdown and hop.dev and may_have_share(hop.dev)
        else hop
        for hop in route.hops
    )
    return attrs.evolve(route, hops=hops)


def devs_with_shares(
    family: Family,
    links: Iterable[Link],
    addresses: Iterable[Address],
) -> set[str]:
    """Return the interfaces without a carrier whose hops may still get packets.

    When an interface loses its last IPv4 address, its hops in IPv4 routes get no more packets
    (fib_disable_ip).

    Args:
        family: the routes' family.
        links: the host's links.
        addresses: the host's addresses; those of the other family are ignored.
    """
    devs = {link.name for link in links if link.is_up and not link.has_carrier}
    if family is Family.IPV4:
        devs &= {each.dev for each in addresses if Family.of(each.local) is family}
    return devs


# A router, identified by its interface and gateway address.
Router = tuple[str | None, IpAddress | None]


def in_order(hops: Iterable[NextHop]) -> tuple[NextHop, ...]:
    """Sort an IPv6 entry's next hops, whose order varies: a lookup lists the selected one first."""
    return tuple(sorted(hops, key=lambda hop: (hop.dev or "", int(hop.gateway or 0), hop.weight)))
