"""Define the layout of routes in rtnetlink(7), and pack requests for them.

entries.py decodes entries.

A route is a message as in messages.py with this body, struct rtmsg::

     16       17        18       19    20      21         22      23     24      28
    +--------+---------+--------+-----+-------+----------+-------+------+-------+------------
    | family | dst_len | src_len| tos | table | protocol | scope | type | flags | attributes
    +--------+---------+--------+-----+-------+----------+-------+------+-------+------------

and these attributes. We pack a request in this order (the kernel accepts any order)::

    DST 8 | TABLE 8 | PRIORITY 8 | NH_ID 8                         | [PREFSRC 8] | [METRICS: MTU]
                                 | MULTIPATH: hop, hop...          |
                                 | [GATEWAY 8 or VIA 24] | [OIF 8] |

The kernel always writes an entry of a dump in this order (fib_dump_info)::

     28        36     40        44
    +---------+------+---------+----------------------------------------------------------------
    | TABLE 8 | DST header + 4 | [PRIORITY] | [METRICS] | [PREFSRC] | [NH_ID] | [GATEWAY or VIA] | [OIF] | [MULTIPATH]
    +---------+------+---------+----------------------------------------------------------------

The destination is therefore at bytes 17 and 40 of every entry except 0.0.0.0/0, which has no DST. Most entries of a
large table differ only in these five bytes. If they are replaced with zeros, hundreds of messages are the same, which
one comparison shows. The message is then decoded once, and the other routes are copied from the result. Entries that
look different are read attribute by attribute. Both ways give the same result, but the first one is faster.

A hop in RTA_MULTIPATH is a struct rtnexthop with its own attributes::

     0        2       3            4         8
    +--------+-------+------------+---------+-------------------
    | length | flags | weight - 1 | ifindex | [GATEWAY or VIA]
    +--------+-------+------------+---------+-------------------

A request names everything that identifies an entry, because the kernel treats missing fields as wildcards or as zero,
and a missing DST as the default route.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from functools import cache
from ipaddress import IPv4Address

from hostrouting.kernel.refusals import WEIGHT_MAX, refuse_unwritable
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink.messages import attribute, attributes, number
from hostrouting.model.prefixes import numbers
from hostrouting.model.routes import NextHop, Route, Scope

# linux/rtnetlink.h
RTA_DST, RTA_SRC, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_METRICS, RTA_MULTIPATH = 1, 2, 4, 5, 6, 7, 8, 9
RTA_TABLE, RTA_VIA, RTA_ENCAP_TYPE, RTA_UID, RTA_NH_ID = 15, 18, 21, 25, 30
RTA_IP_PROTO, RTA_SPORT, RTA_DPORT = 27, 28, 29
RTAX_MTU = 2
# The numbers are from linux/lwtunnel.h, and the words from ip-route(8).
ENCAP_WORDS = dict(enumerate(("mpls", "ip", "ila", "ip6", "seg6", "bpf", "seg6local", "rpl", "ioam6", "xfrm"), 1))

_IPV4 = socket.AF_INET
_BYTE_MAX = 0xFF
BODY = struct.Struct("=8BI")  # struct rtmsg
HOP = struct.Struct("=HBBi")  # struct rtnexthop
VIA_FAMILY = struct.Struct("=H")  # precedes the address in RTA_VIA

# --- requests ------------------------------------------------------------------------------------------------------

# The header, the body and the attributes that every request has, which one call packs.
_ROUTE = struct.Struct("=IHHII 8BI HHI HHI HHI")
_LOOK_UP = struct.Struct("=IHHII 8BI HHI HHI")
_FOR_AN_ENTRY = rtnl.RTM_F_FIB_MATCH | rtnl.RTM_F_LOOKUP_TABLE


def look_up(
    source: IPv4Address | None,
    is_tcp: bool,
    flags: int = _FOR_AN_ENTRY,
    ports: tuple[int | None, int | None] = (None, None),
) -> Callable[[IPv4Address, int], bytes]:
    """Return a function that packs lookups for packets from root.

    Without RTA_UID, the kernel would answer for the uid of the caller.

    Args:
        source: the source of the packets, or None if they have no source yet.
        is_tcp: whether the packets are TCP.
        flags: the flags of the request. With 0, the answer has the source that the kernel chooses (RTA_PREFSRC) instead
            of the entry.
        ports: the source and destination ports, which may be None.
    """
    more = b"" if source is None else attribute(RTA_SRC, source.packed)
    if is_tcp:
        more += attribute(RTA_IP_PROTO, bytes((socket.IPPROTO_TCP,)))
    for kind, port in zip((RTA_SPORT, RTA_DPORT), ports, strict=True):
        if port is not None:
            more += attribute(kind, port.to_bytes(2, "big"))
    size, source_bits = _LOOK_UP.size + len(more), 0 if source is None else 32

    def pack(address: IPv4Address, sequence: int) -> bytes:
        return _LOOK_UP.pack(
            size, rtnl.RTM_GETROUTE, rtnl.GET, sequence, 0,
            _IPV4, 32, source_bits, 0, 0, 0, 0, 0, flags,
            8, RTA_DST, socket.htonl(int(address)), 8, RTA_UID, 0,
        ) + more  # fmt: skip

    return pack


def dump_routes(table: int | None, protocol: int = 0) -> bytes:
    """Return the body of a request for the entries of one table or of all tables.

    The kernel filters only for a strict socket.
    """
    body = BODY.pack(_IPV4, 0, 0, 0, 0, protocol, 0, 0, 0)
    return body if table is None else body + number(RTA_TABLE, table)


def chosen_source(answer: bytes) -> IPv4Address | None:
    """Return the source in an answer to ``look_up`` without flags, or None if it has no source."""
    source = attributes(answer, rtnl.HEADER_BYTES + BODY.size).get(RTA_PREFSRC)
    return None if source is None else IPv4Address(source)


PackHops = Callable[[tuple[NextHop, ...]], tuple[int, bytes]]


def hops_packer(indexes: rtnl.Indexes) -> PackHops:
    """Return a function that packs hops as rtm_flags and attributes.

    The function caches its results, so it is valid for one batch.

    Args:
        indexes: the indexes of the interfaces.
    """

    def leg(hop: NextHop) -> bytes:
        gateway = _pack_gateway(hop)
        index = 0 if hop.dev is None else indexes[hop.dev]
        return HOP.pack(HOP.size + len(gateway), _flags(hop), hop.weight - 1, index) + gateway

    @cache
    def pack(hops: tuple[NextHop, ...]) -> tuple[int, bytes]:
        if not all(1 <= hop.weight <= WEIGHT_MAX for hop in hops):
            raise struct.error("weight")
        if len(hops) != 1:
            return 0, attribute(RTA_MULTIPATH, b"".join(map(leg, hops))) if hops else b""
        oif = b"" if hops[0].dev is None else number(RTA_OIF, indexes[hops[0].dev])
        return _flags(hops[0]), _pack_gateway(hops[0]) + oif

    return pack


def new_route(flags: int, pack_hops: PackHops, route: Route, sequence: int) -> bytes:
    """Return a request to add or replace a route, which names all of its attributes.

    Args:
        flags: ADD or REPLACE.
        pack_hops: the function from ``hops_packer`` for this batch.
        route: the route.
        sequence: the sequence number, which a refusal contains.

    Raises:
        NetlinkError: an interface doesn't exist, or a number doesn't fit into the message.
    """
    return _pack(rtnl.RTM_NEWROUTE, flags, sequence, route, pack_hops, route.hops, route.type, route.scope)


def delete_route(pack_hops: PackHops, route: Route, sequence: int) -> bytes:
    """Return a request to delete a route, which names what identifies it (fib_table_delete, fib_nh_match).

    Raises:
        NetlinkError: an interface doesn't exist, or a number doesn't fit into the message.
    """
    # The kernel shows a route with a blackhole nexthop object as a blackhole but stores it as unicast, so use type 0,
    # which matches any type. Scope 0 would mean universe and cause ESRCH for a route on the link, so use NOWHERE, which
    # matches any scope. The kernel compares only the first of several hops.
    kind = route.type if route.nexthop_id is None else 0
    return _pack(rtnl.RTM_DELROUTE, rtnl.DELETE, sequence, route, pack_hops, route.hops[:1], kind, Scope.NOWHERE)


def _pack(
    kind: int,
    flags: int,
    sequence: int,
    route: Route,
    pack_hops: PackHops,
    hops: tuple[NextHop, ...],
    route_type: int,
    scope: int,
) -> bytes:
    (first, length), table = numbers(route.destination), route.table
    if table < 1:
        refuse_unwritable(route)
    short_table = table if table <= _BYTE_MAX else rtnl.RT_TABLE_COMPAT
    try:
        # A nexthop object has its own hops, and the kernel refuses a request that also names hops.
        of_object = None if route.nexthop_id is None else number(RTA_NH_ID, route.nexthop_id)
        hop_flags, rest = pack_hops(hops) if of_object is None else (0, of_object)
        # A deletion without a source and MTU matches any source and MTU.
        if kind == rtnl.RTM_NEWROUTE and route.source is not None:
            rest += attribute(RTA_PREFSRC, route.source.packed)
        if kind == rtnl.RTM_NEWROUTE and route.mtu is not None:
            rest += attribute(RTA_METRICS, number(RTAX_MTU, route.mtu))
        return _ROUTE.pack(
            _ROUTE.size + len(rest), kind, flags, sequence, 0,
            _IPV4, length, 0, route.tos, short_table, route.protocol, scope, route_type, hop_flags,
            8, RTA_DST, socket.htonl(first), 8, RTA_TABLE, table, 8, RTA_PRIORITY, route.metric,
        ) + rest  # fmt: skip
    except struct.error:
        refuse_unwritable(route)
        raise


def _flags(hop: NextHop) -> int:
    return rtnl.RTNH_F_ONLINK if hop.onlink else 0


def _pack_gateway(hop: NextHop) -> bytes:
    if hop.gateway is None:
        return b""
    if isinstance(hop.gateway, IPv4Address):
        return attribute(RTA_GATEWAY, hop.gateway.packed)
    return attribute(RTA_VIA, VIA_FAMILY.pack(socket.AF_INET6) + hop.gateway.packed)  # RFC 8950
