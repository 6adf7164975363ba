"""Nexthop objects of rtnetlink(7) as values of ``hostrouting.model``.

The body of the message (messages.py), struct nhmsg::

     16       17      18         19  20      24
    +--------+-------+----------+---+-------+------------
    | family | scope | protocol | 0 | flags | attributes
    +--------+-------+----------+---+-------+------------
"""

from __future__ import annotations

import struct
from ipaddress import ip_address

from hostrouting.kernel.rtnetlink import constants as rtnl
from hostrouting.kernel.rtnetlink.messages import HEADER_BYTES, attributes, to_number
from hostrouting.model.routes import NextHop, NexthopObject

__all__ = ["DUMP_NEXTHOPS", "decode_nexthop"]

_BODY = struct.Struct("=BBBxI")

# linux/nexthop.h
_NHA_ID, _NHA_GROUP, _NHA_OIF, _NHA_GATEWAY = 1, 2, 5, 6

# struct nexthop_grp of linux/nexthop.h: id, weight - 1 as low and (since 6.12) high byte, two reserved
_MEMBER = struct.Struct("=IBBH")

DUMP_NEXTHOPS = _BODY.pack(0, 0, 0, 0)


def decode_nexthop(message: bytes, names: rtnl.Names) -> NexthopObject:
    """One nexthop object of a dump."""
    *_, flags = _BODY.unpack_from(message, HEADER_BYTES)
    found = attributes(message, HEADER_BYTES + _BODY.size)
    number = to_number(found[_NHA_ID])
    if _NHA_GROUP in found:
        group = _MEMBER.iter_unpack(found[_NHA_GROUP])
        return NexthopObject(number, members=tuple((member, low + (high << 8) + 1) for member, low, high, _ in group))
    oif, gateway = to_number(found.get(_NHA_OIF, b"")), found.get(_NHA_GATEWAY)
    if not oif and gateway is None:
        return NexthopObject(number)
    hop = NextHop(
        dev=names[oif] if oif else None,
        gateway=None if gateway is None else ip_address(gateway),
        onlink=bool(flags & rtnl.RTNH_F_ONLINK),
        is_dead=bool(flags & rtnl.RTNH_F_DEAD),
        is_linkdown=bool(flags & rtnl.RTNH_F_LINKDOWN),
    )
    return NexthopObject(number, hop)
