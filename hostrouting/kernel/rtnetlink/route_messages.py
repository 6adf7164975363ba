"""The layout of rtnetlink(7) route messages, and functions to pack requests.

Entries are decoded in entries.py.

A route message (see messages.py) has this body, struct rtmsg::

     16       17        18       19    20      21         22      23     24      28
    +--------+---------+--------+-----+-------+----------+-------+------+-------+------------
    | family | dst_len | src_len| tos | table | protocol | scope | type | flags | attributes
    +--------+---------+--------+-----+-------+----------+-------+------+-------+------------

and these attributes, in this order in our requests::

    DST 8 | TABLE 8 | PRIORITY 8 | NH_ID 8                         | [PREFSRC 8] | [METRICS: MTU]
                                 | MULTIPATH: hop, hop...          |
                                 | [GATEWAY 8 or VIA 24] | [OIF 8] |

In dumps, the kernel always uses this order (fib_dump_info)::

     28        36     40        44
    +---------+------+---------+------------------------------------------------
    | TABLE 8 | DST header + 4 | [PRIORITY] | [METRICS] | [PREFSRC] | [NH_ID] |
    +---------+------+---------+------------------------------------------------
    | [GATEWAY or VIA] | [OIF] | [MULTIPATH]
    +---------------------------------------

So an entry's prefix length is at offset 17, and its destination at offset 40. Only 0.0.0.0/0 has no
DST. Most entries in a large table differ only in these five bytes, so entries.py can decode
hundreds of messages at a time.

IPv6 entries have the same layout, but with 16-byte addresses (rt6_fill_node)::

     28        36     40         56
    +---------+------+----------+------------------------------------------------
    | TABLE 8 | DST header + 16 | [SRC] | [METRICS] | [MULTIPATH or GATEWAY, OIF]
    +---------+------+----------+------------------------------------------------
    | PRIORITY | CACHEINFO | PREF
    +-----------------------------

An IPv6 dump lists each prefix after all prefixes nested in it, so ::/0 comes last
(fib6_walk_continue).

A hop in RTA_MULTIPATH is a struct rtnexthop with its own attributes::

     0        2       3            4         8
    +--------+-------+------------+---------+-------------------
    | length | flags | weight - 1 | ifindex | [GATEWAY or VIA]
    +--------+-------+------------+---------+-------------------

In a request to delete an entry, the kernel treats a missing attribute as a wildcard or zero. So
requests contain all attributes that identify the entry.
"""

from __future__ import annotations

import errno as errnos
import socket
import struct
from collections.abc import Callable
from functools import cache
from ipaddress import ip_address

from hostrouting.kernel.refusals import NetlinkError
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink.messages import attribute, attributes, number_attribute
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.routes import NextHop, Route, Route6, Scope

# linux/rtnetlink.h
RTA_DST = 1
RTA_SRC = 2
RTA_OIF = 4
RTA_GATEWAY = 5
RTA_PRIORITY = 6
RTA_PREFSRC = 7
RTA_METRICS = 8
RTA_MULTIPATH = 9
RTA_TABLE = 15
RTA_VIA = 18
RTA_ENCAP_TYPE = 21
RTA_UID = 25
RTA_NH_ID = 30
RTA_CACHEINFO = 12
RTA_PREF = 20
RTA_IP_PROTO = 27
RTA_SPORT = 28
RTA_DPORT = 29
RTAX_MTU = 2
# Numbers from linux/lwtunnel.h, names from ip-route(8).
ENCAP_WORDS = dict(
    enumerate(("mpls", "ip", "ila", "ip6", "seg6", "bpf", "seg6local", "rpl", "ioam6", "xfrm"), 1)
)

_BYTE_MAX = 0xFF
BODY = struct.Struct("=8BI")  # struct rtmsg
HOP = struct.Struct("=HBBi")  # struct rtnexthop
VIA_FAMILY = struct.Struct("=H")  # precedes the address in RTA_VIA

# --- requests -------------------------------------------------------------------------------------

# For IPv6, the kernel rejects RTM_F_LOOKUP_TABLE (inet6_rtm_valid_getroute_req).
_FOR_AN_ENTRY = {
    Family.IPV4: rtnl.RTM_F_FIB_MATCH | rtnl.RTM_F_LOOKUP_TABLE,
    Family.IPV6: rtnl.RTM_F_FIB_MATCH,
}


def look_up(
    family: Family,
    source: IpAddress | None,
    is_tcp: bool,
    ports: tuple[int | None, int | None] = (None, None),
    *,
    oif: int | None = None,
    is_for_source: bool = False,
) -> Callable[[IpAddress, int], bytes]:
    """Return a function that packs lookup requests for packets sent by root.

    Without RTA_UID, the kernel would use the caller's uid.

    Args:
        family: the address family of the packets.
        source: the source address; None if the kernel hasn't chosen one yet.
        is_tcp: whether the packets are TCP's.
        ports: the source port and the destination port; None for a missing one.
        oif: the index of the outgoing interface; None for any.
        is_for_source: whether the reply has the selected source address (RTA_PREFSRC) instead of
            the entry.
    """
    more = number_attribute(RTA_UID, 0) + attribute(
        RTA_IP_PROTO,
        bytes((socket.IPPROTO_TCP if is_tcp else socket.IPPROTO_UDP,)),
    )
    if source is not None:
        more += attribute(RTA_SRC, source.packed)
    for kind, port in zip((RTA_SPORT, RTA_DPORT), ports, strict=True):
        if port is not None:
            more += attribute(kind, port.to_bytes(2, "big"))
    if oif is not None:
        more += number_attribute(RTA_OIF, oif)
    address_bytes = family.bits // 8
    request = struct.Struct(f"=IHHII 8BI HH{address_bytes}s")
    source_bits = 0 if source is None else family.bits
    flags = 0 if is_for_source else _FOR_AN_ENTRY[family]

    def pack(address: IpAddress, sequence: int) -> bytes:
        return request.pack(
            request.size + len(more), rtnl.RTM_GETROUTE, rtnl.GET, sequence, 0,
            family.af, family.bits, source_bits, 0, 0, 0, 0, 0, flags,
            4 + address_bytes, RTA_DST, address.packed,
        ) + more  # fmt: skip

    return pack


def dump_routes(family: Family, table: int | None, protocol: int = 0) -> bytes:
    """Return the body of a dump request for one table or for all tables.

    The kernel applies the filters only if the socket has NETLINK_GET_STRICT_CHK.
    """
    body = BODY.pack(family.af, 0, 0, 0, 0, protocol, 0, 0, 0)
    return body if table is None else body + number_attribute(RTA_TABLE, table)


def chosen_source(answer: bytes) -> IpAddress | None:
    """Return the source in the reply to a request with ``is_for_source``, or None."""
    source = attributes(answer, rtnl.HEADER_BYTES + BODY.size).get(RTA_PREFSRC)
    return None if source is None else ip_address(source)


class RoutePacker:
    """A packer of requests to change routes.

    The packer caches interfaces and hops, so use it for a single batch only.

    Args:
        family: the address family of the routes.
    """

    def __init__(self, family: Family) -> None:
        self._family = family
        self._index_of = cache(rtnl.index_of)
        self._pack_hops = cache(self._packed_hops)
        self._address_bytes = family.bits // 8
        # The header, body and attributes common to all requests, packed in a single call.
        self._layout = struct.Struct(f"=IHHII 8BI HH{self._address_bytes}s HHI HHI")

    def new(self, flags: int, route: Route, sequence: int) -> bytes:
        """Return a request to add or replace a route, with all of its attributes.

        Args:
            flags: ADD, APPEND or REPLACE.
            route: the route to add, or to put in place of another.
            sequence: the sequence number, which an error reply repeats.

        Raises:
            NetlinkError: an interface doesn't exist, or a number doesn't fit into the message.
        """
        return self._pack(
            rtnl.RTM_NEWROUTE,
            flags,
            sequence,
            route,
            route.hops,
            route.type,
            route.scope,
        )

    def delete(self, route: Route, sequence: int) -> bytes:
        """Return a request to delete a route, with the attributes that identify the route.

        Raises:
            NetlinkError: an interface doesn't exist, or a number doesn't fit into the message.
        """
        # The kernel shows a route with a blackhole nexthop object as a blackhole, but stores it as
        # unicast. So use type 0, which matches any type. Scope NOWHERE matches any scope. One hop
        # is enough: for IPv4, the kernel compares only the first, and ``NetlinkBackend6`` deletes
        # IPv6 routes hop by hop.
        kind = route.type if route.nexthop_id is None else 0
        return self._pack(
            rtnl.RTM_DELROUTE,
            rtnl.DELETE,
            sequence,
            route,
            route.hops[:1],
            kind,
            Scope.NOWHERE,
        )

    def _pack(
        self,
        kind: int,
        flags: int,
        sequence: int,
        route: Route,
        hops: tuple[NextHop, ...],
        route_type: int,
        scope: int,
    ) -> bytes:
        table = route.table
        destination = route.destination
        if table == 0:
            # The kernel would use main (fib_new_table)
            raise NetlinkError(errnos.EINVAL, "there is no table 0")
        short_table = table if table <= _BYTE_MAX else rtnl.RT_TABLE_COMPAT
        source_length = 0
        try:
            # The kernel rejects a request with both a nexthop object and hops.
            if route.nexthop_id is not None:
                hop_flags, rest = 0, number_attribute(RTA_NH_ID, route.nexthop_id)
            else:
                hop_flags, rest = self._pack_hops(hops)
            if kind == rtnl.RTM_NEWROUTE:  # in a deletion, a missing attribute matches any value
                rest += _source_and_mtu(route)
            if isinstance(route, Route6) and route.source_prefix is not None:
                source_length = route.source_prefix.prefixlen
                rest += attribute(RTA_SRC, route.source_prefix.network_address.packed)
            return self._layout.pack(
                self._layout.size + len(rest), kind, flags, sequence, 0,
                self._family.af, destination.prefixlen, source_length,
                route.tos, short_table, route.protocol, scope, route_type, hop_flags,
                4 + self._address_bytes, RTA_DST, destination.network_address.packed,
                8, RTA_TABLE, table, 8, RTA_PRIORITY, route.metric,
            ) + rest  # fmt: skip
        except struct.error as error:
            raise NetlinkError(
                errnos.EINVAL,
                f"the route doesn't fit into a message: {error}",
            ) from error

    def _packed_hops(self, hops: tuple[NextHop, ...]) -> tuple[int, bytes]:
        """Pack hops as rtm_flags and attributes."""
        if len(hops) != 1 or (self._family is Family.IPV6 and hops[0].weight != 1):
            return 0, attribute(
                RTA_MULTIPATH,
                b"".join(map(self._packed_leg, hops)),
            ) if hops else b""
        oif = b"" if hops[0].dev is None else number_attribute(RTA_OIF, self._index_of(hops[0].dev))
        return _flags(hops[0]), self._packed_gateway(hops[0]) + oif

    def _packed_leg(self, hop: NextHop) -> bytes:
        gateway = self._packed_gateway(hop)
        index = 0 if hop.dev is None else self._index_of(hop.dev)
        return HOP.pack(HOP.size + len(gateway), _flags(hop), hop.weight - 1, index) + gateway

    def _packed_gateway(self, hop: NextHop) -> bytes:
        if hop.gateway is None:
            return b""
        if hop.gateway.version == self._family.value:
            return attribute(RTA_GATEWAY, hop.gateway.packed)
        return attribute(RTA_VIA, VIA_FAMILY.pack(socket.AF_INET6) + hop.gateway.packed)  # RFC 8950


def _source_and_mtu(route: Route) -> bytes:
    packed = b""
    if route.source is not None:
        packed += attribute(RTA_PREFSRC, route.source.packed)
    if route.mtu is not None:
        packed += attribute(RTA_METRICS, number_attribute(RTAX_MTU, route.mtu))
    return packed


def _flags(hop: NextHop) -> int:
    return rtnl.RTNH_F_ONLINK if hop.onlink else 0
