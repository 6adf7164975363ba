"""Routes as bytes of rtnetlink(7): the layouts, and requests packed by hand. Entries are read in _entries.py.

A route is a message of _messages.py with this body, struct rtmsg::

     16       17        18       19    20      21         22      23     24      28
    +--------+---------+--------+-----+-------+----------+-------+------+-------+------------
    | family | dst_len | src_len| tos | table | protocol | scope | type | flags | attributes
    +--------+---------+--------+-----+-------+----------+-------+------+-------+------------

and these attributes. A request is packed in this order (the kernel takes any)::

    DST 8 | TABLE 8 | PRIORITY 8 | [PREFSRC 8] | [METRICS: MTU] | NH_ID 8
                                                                | MULTIPATH: hop, hop...
                                                                | [GATEWAY 8 or VIA 24] | [OIF 8]

and an entry of a dump, which the kernel writes in always the same order (fib_dump_info)::

     28        36     40        44
    +---------+------+---------+----------------------------------------------------------------
    | TABLE 8 | DST header + 4 | [PRIORITY] | [METRICS] | [PREFSRC] | [NH_ID] | [GATEWAY or VIA] | [OIF] | [MULTIPATH]
    +---------+------+---------+----------------------------------------------------------------

so that the destination stands at bytes 17 and 40 of every entry but 0.0.0.0/0, which has no DST. Most entries of a
large table differ in nothing else: with these five columns blanked, hundreds of messages are one message repeated,
which is one comparison. What is left is decoded once, by its bytes, into a route that the others are copied from.
Whatever looks otherwise is read attribute by attribute; both ways give the same, only not as fast.

A hop of RTA_MULTIPATH, struct rtnexthop, with attributes of its own::

     0        2       3            4         8
    +--------+-------+------------+---------+-------------------
    | length | flags | weight - 1 | ifindex | [GATEWAY or VIA]
    +--------+-------+------------+---------+-------------------

Everything that decides which entry a request means is named in it: the kernel takes what is missing for a wildcard or
for zero, and a missing DST for the default route.
"""

from __future__ import annotations

import errno as errnos
import socket
import struct
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

import attrs

from hostrouting.backends import _rtnetlink as rtnl
from hostrouting.backends._messages import HEADER, HEADER_BYTES, attribute, number
from hostrouting.model import Scope

if TYPE_CHECKING:
    from hostrouting.model import NextHop, Route

__all__ = ["delete_route", "dump_routes", "look_up", "new_route"]

# linux/rtnetlink.h
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_METRICS, RTA_MULTIPATH = 1, 4, 5, 6, 7, 8, 9
RTA_TABLE, RTA_VIA, RTA_UID, RTA_NH_ID = 15, 18, 25, 30
RTAX_MTU = 2

_IPV4 = socket.AF_INET
_COMPAT_FROM = 0x100  # the first table that eight bits don't hold
BODY = struct.Struct("=8BI")  # struct rtmsg
HOP = struct.Struct("=HBBi")  # struct rtnexthop
VIA_FAMILY = struct.Struct("=H")  # in front of the address of RTA_VIA

# --- requests ------------------------------------------------------------------------------------------------------

# Header, body and attributes of a route by one gateway, of one on the link, and of a look-up: each in one call.
_BY_GATEWAY = struct.Struct("=IHHII 8BI HHI HHI HHI HHI HHI")
_ON_LINK = struct.Struct("=IHHII 8BI HHI HHI HHI HHI")
_LOOK_UP = struct.Struct("=IHHII 8BI HHI HHI")


def look_up(address: IPv4Address, sequence: int) -> bytes:
    """Ask which entry wins for root's packet: without RTA_UID the kernel answers for the uid of the caller."""
    return _LOOK_UP.pack(
        *(_LOOK_UP.size, rtnl.RTM_GETROUTE, rtnl.GET, sequence, 0),
        *(_IPV4, 32, 0, 0, 0, 0, 0, 0, rtnl.RTM_F_FIB_MATCH | rtnl.RTM_F_LOOKUP_TABLE),
        *(8, RTA_DST, socket.htonl(int(address))),
        *(8, RTA_UID, 0),
    )


def dump_routes(table: int | None, protocol: int = 0) -> bytes:
    """The body that asks for the entries of a table, or of all; the kernel filters (a strict socket is needed)."""
    body = BODY.pack(_IPV4, 0, 0, 0, 0, protocol, 0, 0, 0)
    return body if table is None else body + number(RTA_TABLE, table)


def new_route(flags: int, route: Route, indexes: rtnl.Indexes, sequence: int) -> bytes:
    """Ask for a route to be added or replaced, naming all of it.

    Args:
        flags: ADD or REPLACE.
        route: what it is about.
        indexes: of the interfaces.
        sequence: comes back with a refusal.

    Raises:
        RefusedError: an interface doesn't exist, or a number doesn't fit into the message.
    """
    kind = rtnl.RTM_NEWROUTE
    is_bare = len(route.hops) == 1 and route.source is None and route.mtu is None and route.nexthop_id is None
    message = _pack_bare(kind, flags, sequence, route, route.scope, indexes) if is_bare else None
    return message or _pack(kind, flags, sequence, route, route.type, indexes)


def delete_route(route: Route, indexes: rtnl.Indexes, sequence: int) -> bytes:
    """Ask for a route to be deleted, naming what tells it from others (fib_table_delete, fib_nh_match).

    Raises:
        RefusedError: as for ``new_route``.
    """
    kind, flags = rtnl.RTM_DELROUTE, rtnl.DELETE
    # Scope 0 would mean universe, and ESRCH for a route on the link: only NOWHERE means any. Of several hops the
    # kernel compares the first only; a source or an MTU that isn't named is any.
    is_bare = route.hops and route.nexthop_id is None
    message = _pack_bare(kind, flags, sequence, route, Scope.NOWHERE, indexes) if is_bare else None
    if message is not None:
        return message
    named = attrs.evolve(route, scope=Scope.NOWHERE, hops=route.hops[:1], source=None, mtu=None)
    # A blackhole of a nexthop object is shown as one, but stored as unicast; 0 is any type.
    return _pack(kind, flags, sequence, named, route.type if route.nexthop_id is None else 0, indexes)


def _pack_bare(kind: int, flags: int, sequence: int, route: Route, scope: int, indexes: rtnl.Indexes) -> bytes | None:
    """A route by its first hop and nothing more, in one call; None if there is more to it than that layout holds."""
    hop, table, destination = route.hops[0], route.table, route.destination
    dev, gateway = hop.dev, hop.gateway
    if dev is None or hop.weight != 1 or table not in rtnl.TABLES or isinstance(gateway, IPv6Address):
        return None
    fields = (
        *(kind, flags, sequence, 0),
        *(_IPV4, destination.prefixlen, 0, route.tos, table if table < _COMPAT_FROM else rtnl.RT_TABLE_COMPAT),
        *(route.protocol, scope, route.type, rtnl.RTNH_F_ONLINK if hop.onlink else 0),
        *(8, RTA_DST, socket.htonl(int(destination.network_address))),
        *(8, RTA_TABLE, table, 8, RTA_PRIORITY, route.metric, 8, RTA_OIF, indexes[dev]),
    )
    try:
        if gateway is None:
            return _ON_LINK.pack(_ON_LINK.size, *fields)
        return _BY_GATEWAY.pack(_BY_GATEWAY.size, *fields, 8, RTA_GATEWAY, socket.htonl(int(gateway)))
    except struct.error:
        return None  # a number that doesn't fit; which one it is, the long way tells


def _pack(kind: int, flags: int, sequence: int, route: Route, route_type: int, indexes: rtnl.Indexes) -> bytes:
    _refuse_unwritable(route)
    is_onlink, way = _pack_way(route, indexes)
    body = b"".join(
        (
            BODY.pack(
                *(_IPV4, route.destination.prefixlen, 0, route.tos),
                route.table if route.table < _COMPAT_FROM else rtnl.RT_TABLE_COMPAT,
                *(route.protocol, route.scope, route_type, rtnl.RTNH_F_ONLINK if is_onlink else 0),
            ),
            attribute(RTA_DST, route.destination.network_address.packed),
            number(RTA_TABLE, route.table),
            number(RTA_PRIORITY, route.metric),
            b"" if route.source is None else attribute(RTA_PREFSRC, route.source.packed),
            b"" if route.mtu is None else attribute(RTA_METRICS, number(RTAX_MTU, route.mtu)),
            way,
        )
    )
    return HEADER.pack(HEADER_BYTES + len(body), kind, flags, sequence, 0) + body


def _pack_way(route: Route, indexes: rtnl.Indexes) -> tuple[bool, bytes]:
    """Whether its one hop is onlink, and the attributes of the hops."""
    if route.nexthop_id is not None:
        # Its hops are the object's, and the kernel refuses to be told them too.
        return False, number(RTA_NH_ID, route.nexthop_id)
    if len(route.hops) > 1:
        return False, attribute(RTA_MULTIPATH, b"".join(_pack_hop(hop, indexes) for hop in route.hops))
    if not route.hops:
        return False, b""
    hop = route.hops[0]
    oif = b"" if hop.dev is None else number(RTA_OIF, indexes[hop.dev])
    return hop.onlink, _pack_gateway(hop) + oif


def _pack_hop(hop: NextHop, indexes: rtnl.Indexes) -> bytes:
    gateway = _pack_gateway(hop)
    flags = rtnl.RTNH_F_ONLINK if hop.onlink else 0
    index = indexes[hop.dev] if hop.dev is not None else 0
    return HOP.pack(HOP.size + len(gateway), flags, hop.weight - 1, index) + gateway


def _pack_gateway(hop: NextHop) -> bytes:
    if hop.gateway is None:
        return b""
    if isinstance(hop.gateway, IPv4Address):
        return attribute(RTA_GATEWAY, hop.gateway.packed)
    return attribute(RTA_VIA, VIA_FAMILY.pack(socket.AF_INET6) + hop.gateway.packed)  # RFC 8950


def _refuse_unwritable(route: Route) -> None:
    # Table 0 isn't one: the kernel would take main (fib_new_table).
    numbers = (
        ("table", route.table, rtnl.TABLES),
        ("metric", route.metric, rtnl.UINT32),
        ("mtu", route.mtu or 0, rtnl.UINT32),
        ("nexthop id", route.nexthop_id or 0, rtnl.UINT32),
        ("protocol", route.protocol, rtnl.BYTE),
        ("scope", route.scope, rtnl.BYTE),
        ("tos", route.tos, rtnl.BYTE),
        *(("weight", hop.weight, range(1, 257)) for hop in route.hops),
    )
    for name, value, allowed in numbers:
        if value not in allowed:
            raise rtnl.RefusedError(errnos.EINVAL, f"{name} {value} is not in {allowed[0]}-{allowed[-1]}")
