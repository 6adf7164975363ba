"""Nexthop objects of rtnetlink(7) as values of ``hostrouting.model``."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address, ip_address

from hostrouting.backends import _rtnetlink as rtnl
from hostrouting.model import NextHop, NexthopObject

DUMP_NEXTHOPS = rtnl.Request(rtnl.RTM_GETNEXTHOP, rtnl.DUMP, {})

# struct nexthop_grp of linux/nexthop.h: id, weight - 1 as low and (since 6.12) high byte, two reserved
_MEMBER = struct.Struct("=IBBH")


def decode_nexthop(message: rtnl.Message, names: rtnl.Names) -> NexthopObject:
    """One nexthop object of a dump."""
    number = message.get_attr("NHA_ID")
    group = message.get_attr("NHA_GROUP")
    if group is not None:
        members = tuple((member, low + (high << 8) + 1) for member, low, high, _ in _MEMBER.iter_unpack(group))
        return NexthopObject(number, members=members)
    oif, gateway = message.get_attr("NHA_OIF"), message.get_attr("NHA_GATEWAY")
    if oif is None and gateway is None:
        return NexthopObject(number)
    flags = message["flags"]
    hop = NextHop(
        dev=names[oif] if oif else None,
        gateway=_decode_gateway(gateway),
        onlink=bool(flags & rtnl.RTNH_F_ONLINK),
        is_dead=bool(flags & rtnl.RTNH_F_DEAD),
        is_linkdown=bool(flags & rtnl.RTNH_F_LINKDOWN),
    )
    return NexthopObject(number, hop)


def _decode_gateway(packed: bytes | None) -> IPv4Address | IPv6Address | None:
    return None if packed is None else ip_address(bytes(packed))
