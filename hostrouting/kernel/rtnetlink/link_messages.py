"""Decode rtnetlink(7) messages about links, addresses, nexthop objects, neighbours and labels.

The messages (see messages.py) have these bodies::

     16       17    18     20      24      28       32
    +--------+-----+------+-------+-------+--------+------------
    | family | pad | type | index | flags | change | attributes          struct ifinfomsg
    +--------+-----+------+-------+-------+--------+------------

     16       17           18      19      20      24
    +--------+------------+-------+-------+-------+------------
    | family | prefix_len | flags | scope | index | attributes           struct ifaddrmsg
    +--------+------------+-------+-------+-------+------------

     16       17      18         19  20      24
    +--------+-------+----------+---+-------+------------
    | family | scope | protocol | 0 | flags | attributes                 struct nhmsg
    +--------+-------+----------+---+-------+------------

     16       17  18           19      20      24         28
    +--------+---+------------+-------+-------+----------+------------
    | family | 0 | prefix_len | flags | index | sequence | attributes      struct ifaddrlblmsg
    +--------+---+------------+-------+-------+----------+------------
"""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv6Network, ip_address
from typing import Any

from hostrouting.kernel.nexthops import Router
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink import route_messages as rtm
from hostrouting.kernel.rtnetlink.entries import decode_hops
from hostrouting.kernel.rtnetlink.messages import (
    HEADER_BYTES,
    LINK,
    attributes,
    decode_name,
    to_number,
)
from hostrouting.model.family import Family
from hostrouting.model.links import Address, Address6, AddressLabel, Link, mac_address
from hostrouting.model.routes import NexthopObject

_ADDRESS = struct.Struct("=BBBBI")
_NEXTHOP = struct.Struct("=BBBxI")

# linux/if_link.h, linux/if_addr.h
_IFLA_ADDRESS = 1
IFLA_IFNAME = 3
_IFLA_MTU = 4
IFLA_MASTER = 10
_IFLA_LINKINFO = 18
_IFLA_GROUP = 27
_IFLA_INFO_KIND = 1
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_IFA_FLAGS = 8
_IFA_RT_PRIORITY = 9

# linux/neighbour.h, linux/netconf.h
_NEIGHBOUR = struct.Struct("=BxxxiHBB")
_NDA_DST = 1
_NUD_FAILED = 0x20
_NETCONFA_IFINDEX = 1
_NETCONFA_FORWARDING = 2
_ALL = 0xFFFFFFFF

# linux/if_addrlabel.h
_LABEL = struct.Struct("=BxBBII")
_IFAL_ADDRESS = 1
_IFAL_LABEL = 2

# linux/nexthop.h
_NHA_ID = 1
_NHA_GROUP = 2
_NHA_OIF = 5
_NHA_GATEWAY = 6
_NHA_ENCAP_TYPE = 7
# For each attribute of a nexthop object, the route attribute with the same meaning.
_OF_ROUTE = {
    _NHA_OIF: rtm.RTA_OIF,
    _NHA_GATEWAY: rtm.RTA_GATEWAY,
    _NHA_ENCAP_TYPE: rtm.RTA_ENCAP_TYPE,
}
# struct nexthop_grp contains the ID and the weight minus 1. The weight's high byte, which Linux
# 6.12 added, is ignored, because routes show only the low byte (fib_add_nexthop).
_MEMBER = struct.Struct("=IBxH")


def _decode_link(message: bytes, names: rtnl.Names) -> Link:
    _, hardware, index, flags, _ = LINK.unpack_from(message, HEADER_BYTES)
    found = attributes(message, HEADER_BYTES + LINK.size)
    kind = attributes(found.get(_IFLA_LINKINFO, b"")).get(_IFLA_INFO_KIND)
    return Link(
        index=index,
        name=decode_name(found[IFLA_IFNAME]),
        is_up=bool(flags & rtnl.IFF_UP),
        has_carrier=bool(flags & rtnl.IFF_LOWER_UP),
        kind=None if kind is None else decode_name(kind),
        hardware=hardware,
        master=names(to_number(found[IFLA_MASTER])) if IFLA_MASTER in found else None,
        group=to_number(found.get(_IFLA_GROUP, b"")),
        mtu=to_number(found.get(_IFLA_MTU, b"")),
        is_point_to_point=bool(flags & rtnl.IFF_POINTOPOINT),
        mac=mac_address(hardware, found.get(_IFLA_ADDRESS, b"").hex(":")),
    )


def _decode_address(message: bytes, names: rtnl.Names) -> Address:
    family, length, short_flags, scope, index = _ADDRESS.unpack_from(message, HEADER_BYTES)
    found = attributes(message, HEADER_BYTES + _ADDRESS.size)
    # For IPv4, a missing IFA_ADDRESS means the peer 0.0.0.0. For IPv6, the kernel omits IFA_LOCAL
    # if there is no peer (inet6_fill_ifaddr).
    far_end = ip_address(found.get(_IFA_ADDRESS, bytes(4)))
    local = ip_address(found.get(_IFA_LOCAL, far_end.packed))
    # IFA_F_NOPREFIXROUTE doesn't fit into the eight bits of the header.
    flags = to_number(found.get(_IFA_FLAGS, b"")) or short_flags
    fields: dict[str, Any] = {
        "dev": names(index),
        "local": local,
        "prefix_length": length,
        "peer": far_end if far_end != local else None,
        "metric": to_number(found.get(_IFA_RT_PRIORITY, b"")),
        "has_prefix_route": not flags & rtnl.IFA_F_NOPREFIXROUTE,
        "scope": scope,
    }
    if family == socket.AF_INET:
        return Address(is_secondary=bool(flags & rtnl.IFA_F_SECONDARY), **fields)
    return Address6(
        # An optimistic address is usable before duplicate address detection finishes.
        is_tentative=flags & (rtnl.IFA_F_TENTATIVE | rtnl.IFA_F_OPTIMISTIC) == rtnl.IFA_F_TENTATIVE,
        is_deprecated=bool(flags & rtnl.IFA_F_DEPRECATED),
        is_temporary=bool(flags & rtnl.IFA_F_SECONDARY),  # the same bit as IFA_F_TEMPORARY
        **fields,
    )


def _decode_nexthop(message: bytes, names: rtnl.Names) -> NexthopObject:
    *_, flags = _NEXTHOP.unpack_from(message, HEADER_BYTES)
    found = attributes(message, HEADER_BYTES + _NEXTHOP.size)
    id_ = to_number(found[_NHA_ID])
    if _NHA_GROUP in found:
        group = _MEMBER.iter_unpack(found[_NHA_GROUP])
        return NexthopObject(
            id_,
            members=tuple((member, weight + 1) for member, weight, _ in group),
        )
    of_route = {_OF_ROUTE[kind]: value for kind, value in found.items() if kind in _OF_ROUTE}
    return NexthopObject(id_, next(iter(decode_hops(flags, of_route, names)), None))


def _decode_failed_router(message: bytes, names: rtnl.Names) -> Router | None:
    """Decode a neighbour entry in the state FAILED; return None for any other state."""
    _, index, state, *_ = _NEIGHBOUR.unpack_from(message, HEADER_BYTES)
    address = attributes(message, HEADER_BYTES + _NEIGHBOUR.size).get(_NDA_DST)
    return (
        (names(index), ip_address(address)) if state & _NUD_FAILED and address is not None else None
    )


def _decode_forwarding(message: bytes, _names: rtnl.Names) -> bool:
    """Return whether a message shows that IPv6 forwarding is enabled for all interfaces."""
    found = attributes(message, HEADER_BYTES + 4)
    return (
        to_number(found[_NETCONFA_IFINDEX]) == _ALL
        and to_number(found.get(_NETCONFA_FORWARDING, b"")) > 0
    )


def _decode_label(message: bytes, names: rtnl.Names) -> AddressLabel:
    _, length, _, index, _ = _LABEL.unpack_from(message, HEADER_BYTES)
    found = attributes(message, HEADER_BYTES + _LABEL.size)
    prefix = IPv6Network((found[_IFAL_ADDRESS], length), strict=False)
    return AddressLabel(prefix, to_number(found[_IFAL_LABEL]), names(index) if index else None)


LINKS = ("list the interfaces", rtnl.RTM_GETLINK, LINK.pack(0, 0, 0, 0, 0), _decode_link)
ADDRESSES = {
    family: (
        "list the addresses",
        rtnl.RTM_GETADDR,
        _ADDRESS.pack(family.af, 0, 0, 0, 0),
        _decode_address,
    )
    for family in Family
}
NEXTHOPS = (
    "list the nexthop objects",
    rtnl.RTM_GETNEXTHOP,
    _NEXTHOP.pack(0, 0, 0, 0),
    _decode_nexthop,
)
NEIGHBOURS6 = (
    "list the neighbours",
    rtnl.RTM_GETNEIGH,
    _NEIGHBOUR.pack(socket.AF_INET6, 0, 0, 0, 0),
    _decode_failed_router,
)
LABELS6 = (
    "list the address labels",
    rtnl.RTM_GETADDRLABEL,
    _LABEL.pack(socket.AF_INET6, 0, 0, 0, 0),
    _decode_label,
)
FORWARDING6 = (
    "read whether IPv6 is forwarded",
    rtnl.RTM_GETNETCONF,
    struct.pack("=Bxxx", socket.AF_INET6),
    _decode_forwarding,
)
