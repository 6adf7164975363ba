"""What is asked of the kernel's IPv6 side: addresses, routes, and single routes of our own."""

from __future__ import annotations

import errno as errnos
import socket
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING

import attrs

from hostrouting.kernel.channel import Channel, Message, Request, channel, read, rtnl
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.nexthops import hops_of
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import NextHop, RouteType, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Ipv6Address", "Ipv6Kernel", "Ipv6Route", "route_request"]

# linux/if_addr.h
_IFA_F_OPTIMISTIC, _IFA_F_DADFAILED, _IFA_F_TENTATIVE = 0x04, 0x08, 0x40

_BITS = 128

# What the look-up answers instead of an entry (rt6_lookup, fib6_rule_action).
_NO_WAY = (errnos.ENETUNREACH, errnos.EHOSTUNREACH, errnos.EACCES, errnos.EINVAL)


@attrs.frozen
class Ipv6Address:
    """An IPv6 address of this host.

    Args:
        dev: the interface that carries it.
        local: the address.
        scope: how far it is known, 0 for everywhere, unique local ones included (RFC 4193).
        is_usable: it isn't being tried out, and hasn't been found to be somebody else's (RFC 4862); an optimistic one
            (RFC 4429) may be used while it is tried out.
    """

    dev: str
    local: IPv6Address
    scope: int
    is_usable: bool


@attrs.frozen
class Ipv6Route:
    """An entry of a table.

    Args:
        destination: the prefix.
        hops: the next hops, be they those of a nexthop object.
        metric: the lowest wins; 1 at least (IP6_RT_PRIO_USER stands for 0).
        protocol: who installed it.
        type: what happens to a packet.
        table: its number.
        nexthop_id: of the nexthop object that it uses.
        has_source: whether it is for packets of some sources only.
    """

    destination: IPv6Network
    hops: tuple[NextHop, ...]
    metric: int
    protocol: int
    type: RouteType = RouteType.UNICAST
    table: int = Table.MAIN
    nexthop_id: int | None = None
    has_source: bool = False


class Ipv6Kernel:
    """The IPv6 side of the network namespace that the calling thread is in.

    A kernel without IPv6 has no addresses and no routes of it. All calls raise ``RouteError``.
    """

    def addresses(self) -> tuple[Ipv6Address, ...]:
        """All IPv6 addresses of this host."""

        def ask(opened: Channel) -> tuple[Ipv6Address, ...]:
            names = rtnl.Names()
            messages = opened.dump(rtnl.RTM_GETADDR, {"family": socket.AF_INET6})
            return tuple(_to_address(message, names) for message in _of_ipv6(messages))

        return read("list the IPv6 addresses", ask)

    def routes(self, table: int | None = None) -> tuple[Ipv6Route, ...]:
        """The entries of a table, in the kernel's order; of every table, if none is named."""
        named = () if table is None else (("RTA_TABLE", table),)

        def ask(opened: Channel) -> tuple[Ipv6Route, ...]:
            names = rtnl.Names()
            messages = opened.dump(rtnl.RTM_GETROUTE, {"family": socket.AF_INET6}, *named)
            return tuple(_to_route(message, names) for message in _of_ipv6(messages))

        found = _with_hidden_hops(read("list the IPv6 routes", ask))
        return tuple(route for route in found if table in (None, route.table))

    def add_route(self, route: Ipv6Route) -> None:
        """Add a route with one next hop to table main.

        Raises:
            RouteError: the kernel refused; EEXIST if there is one of that destination and metric.
        """
        self._change("add", rtnl.RTM_NEWROUTE, rtnl.ADD, route)

    def replace_route(self, route: Ipv6Route) -> None:
        """Add a route with one next hop to table main, in the place of whatever has its destination and metric.

        Raises:
            RouteError: the kernel refused.
        """
        self._change("replace", rtnl.RTM_NEWROUTE, rtnl.REPLACE, route)

    def delete_route(self, route: Ipv6Route) -> None:
        """Delete just this route, which has one next hop, from table main.

        Raises:
            RouteError: the kernel refused; ESRCH if it isn't there.
        """
        self._change("delete", rtnl.RTM_DELROUTE, rtnl.DELETE, route)

    def next_hop(self, destination: IPv6Address) -> NextHop | None:
        """Where an unmarked packet of this host to an address goes; None: nowhere, whatever the reason."""

        def ask(opened: Channel) -> Ipv6Route | None:
            fields = {"family": socket.AF_INET6, "dst_len": _BITS}
            try:
                (answer,) = opened.ask(Request(rtnl.RTM_GETROUTE, rtnl.GET, fields, (("RTA_DST", str(destination)),)))
            except rtnl.RefusedError as refusal:
                if refusal.errno in _NO_WAY:
                    return None
                raise
            return _to_route(answer, rtnl.Names())

        found = read(f"look up {destination}", ask)
        if found is None or found.type is not RouteType.UNICAST:
            return None
        return next(iter(_with_hidden_hops((found,))[0].hops), None)

    def _change(self, verb: str, kind: int, flags: int, route: Ipv6Route) -> None:
        with channel(f"{verb} the IPv6 route to {route.destination}") as opened:
            opened.ask(route_request(kind, flags, route))


def route_request(kind: int, flags: int, route: Ipv6Route) -> Request:
    """What names a route of table main with one next hop.

    Raises:
        RefusedError: its interface doesn't exist.
    """
    (hop,) = route.hops
    fields = {
        "family": socket.AF_INET6,
        "dst_len": route.destination.prefixlen,
        "table": Table.MAIN,
        "proto": route.protocol,
        "type": route.type,
    }
    values = (
        ("RTA_DST", str(route.destination.network_address)),
        ("RTA_GATEWAY", None if hop.gateway is None else str(hop.gateway)),
        ("RTA_OIF", None if hop.dev is None else rtnl.Indexes()[hop.dev]),
        ("RTA_PRIORITY", route.metric),
    )
    return Request(kind, flags, fields, tuple((name, value) for name, value in values if value is not None))


def _of_ipv6(messages: Iterable[Message]) -> Iterable[Message]:
    """A kernel without IPv6 gives the messages of all families (rtnl_dump_all)."""
    return (message for message in messages if message["family"] == socket.AF_INET6)


def _to_address(message: Message, names: rtnl.Names) -> Ipv6Address:
    # Of a point-to-point address IFA_ADDRESS is the far end.
    local = IPv6Address(message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS"))
    flags = message.get_attr("IFA_FLAGS") or message["flags"]
    is_tried_out = bool(flags & _IFA_F_TENTATIVE) and not flags & _IFA_F_OPTIMISTIC
    is_usable = not is_tried_out and not flags & _IFA_F_DADFAILED
    return Ipv6Address(names[message["index"]], local, message["scope"], is_usable)


def _to_route(message: Message, names: rtnl.Names) -> Ipv6Route:
    try:
        kind = RouteType(message["type"])
    except ValueError as error:
        raise RouteError(f"can't read an IPv6 route of type {message['type']}") from error
    return Ipv6Route(
        destination=IPv6Network((message.get_attr("RTA_DST") or "::", message["dst_len"])),
        hops=_to_hops(message, names),
        metric=message.get_attr("RTA_PRIORITY") or 0,
        protocol=message["proto"],
        type=kind,
        table=message.get_attr("RTA_TABLE") or message["table"],
        nexthop_id=message.get_attr("RTA_NH_ID"),
        has_source=bool(message["src_len"]),
    )


def _to_hops(message: Message, names: rtnl.Names) -> tuple[NextHop, ...]:
    several = message.get_attr("RTA_MULTIPATH")
    if several is not None:
        return tuple(_to_hop(hop, hop["oif"], hop["hops"] + 1, names) for hop in several)
    oif, gateway = message.get_attr("RTA_OIF"), message.get_attr("RTA_GATEWAY")
    return () if oif is None and gateway is None else (_to_hop(message, oif or 0, 1, names),)


def _to_hop(message: Message, oif: int, weight: int, names: rtnl.Names) -> NextHop:
    gateway, flags = message.get_attr("RTA_GATEWAY"), message["flags"]
    return NextHop(
        dev=names[oif] if oif else None,
        gateway=None if gateway is None else ip_address(gateway),
        onlink=bool(flags & rtnl.RTNH_F_ONLINK),
        weight=weight,
        is_dead=bool(flags & rtnl.RTNH_F_DEAD),
        is_linkdown=bool(flags & rtnl.RTNH_F_LINKDOWN),
    )


def _with_hidden_hops(routes: tuple[Ipv6Route, ...]) -> tuple[Ipv6Route, ...]:
    """With the hops of nexthop objects, which the kernel doesn't show where nexthop_compat_mode is 0."""
    if not any(_hides_hops(route) for route in routes):
        return routes
    by_id = {nexthop.id: nexthop for nexthop in NetlinkBackend().nexthops()}
    return tuple(
        attrs.evolve(route, hops=hops_of(by_id[route.nexthop_id], by_id))
        if _hides_hops(route) and route.nexthop_id in by_id
        else route
        for route in routes
    )


def _hides_hops(route: Ipv6Route) -> bool:
    return route.nexthop_id is not None and not route.hops and route.type is RouteType.UNICAST
