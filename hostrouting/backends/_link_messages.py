"""Links and addresses of rtnetlink(7) as values of ``hostrouting.model``.

Bodies of the messages (_messages.py)::

     16       17    18     20      24      28       32
    +--------+-----+------+-------+-------+--------+------------
    | family | pad | type | index | flags | change | attributes          struct ifinfomsg
    +--------+-----+------+-------+-------+--------+------------

     16       17           18      19      20      24
    +--------+------------+-------+-------+-------+------------
    | family | prefix_len | flags | scope | index | attributes           struct ifaddrmsg
    +--------+------------+-------+-------+-------+------------
"""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from hostrouting.backends import _rtnetlink as rtnl
from hostrouting.backends._messages import HEADER_BYTES, attributes, decode_name, number, to_number
from hostrouting.model import Address, Link

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DUMP_ADDRESSES", "DUMP_LINKS", "decode_address", "decode_links"]

_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")

# linux/if_link.h, linux/if_addr.h
_IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_EXT_MASK = 3, 10, 18, 29
_IFLA_INFO_KIND = 1
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS, _IFA_RT_PRIORITY = 1, 2, 8, 9

DUMP_LINKS = _LINK.pack(0, 0, 0, 0, 0) + number(_IFLA_EXT_MASK, rtnl.RTEXT_FILTER_SKIP_STATS)
DUMP_ADDRESSES = _ADDRESS.pack(socket.AF_INET, 0, 0, 0, 0)


def decode_links(messages: Iterable[bytes]) -> tuple[Link, ...]:
    """All links of a dump, by index."""
    links = []
    for message in messages:
        _, hardware, index, flags, _ = _LINK.unpack_from(message, HEADER_BYTES)
        links.append((index, hardware, flags, attributes(message, HEADER_BYTES + _LINK.size)))
    names = {index: decode_name(found[_IFLA_IFNAME]) for index, _, _, found in links}
    return tuple(
        Link(
            index=index,
            name=names[index],
            is_up=bool(flags & rtnl.IFF_UP),
            has_carrier=bool(flags & rtnl.IFF_LOWER_UP),
            kind=_decode_kind(found),
            hardware=hardware,
            master=names.get(to_number(found.get(_IFLA_MASTER, b""))),
        )
        for index, hardware, flags, found in sorted(links, key=lambda link: link[0])
    )


def _decode_kind(found: dict[int, bytes]) -> str | None:
    kind = attributes(found.get(_IFLA_LINKINFO, b"")).get(_IFLA_INFO_KIND)
    return None if kind is None else decode_name(kind)


def decode_address(message: bytes, names: rtnl.Names) -> Address:
    """One IPv4 address of a dump."""
    _, length, short_flags, _, index = _ADDRESS.unpack_from(message, HEADER_BYTES)
    found = attributes(message, HEADER_BYTES + _ADDRESS.size)
    local = IPv4Address(found[_IFA_LOCAL])
    far_end = IPv4Address(found.get(_IFA_ADDRESS, found[_IFA_LOCAL]))
    # The header's eight bits lack IFA_F_NOPREFIXROUTE.
    flags = to_number(found.get(_IFA_FLAGS, b"")) or short_flags
    return Address(
        dev=names[index],
        local=local,
        prefix_length=length,
        peer=far_end if far_end != local else None,
        metric=to_number(found.get(_IFA_RT_PRIORITY, b"")),
        is_secondary=bool(flags & rtnl.IFA_F_SECONDARY),
        has_prefix_route=not flags & rtnl.IFA_F_NOPREFIXROUTE,
    )
