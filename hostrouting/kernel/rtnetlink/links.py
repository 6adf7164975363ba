"""Links and addresses of rtnetlink(7) as values of ``hostrouting.model``.

Bodies of the messages (messages.py)::

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

from hostrouting.kernel.rtnetlink import constants as rtnl
from hostrouting.kernel.rtnetlink.messages import HEADER_BYTES, attributes, decode_name, number, to_number
from hostrouting.model.links import Address, Link

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DUMP_ADDRESSES", "DUMP_LINKS", "decode_address", "decode_links"]

LINK = struct.Struct("=BxHiII")
ADDRESS = struct.Struct("=BBBBI")

# linux/if_link.h, linux/if_addr.h
IFLA_IFNAME, IFLA_MASTER, IFLA_LINKINFO, IFLA_EXT_MASK = 3, 10, 18, 29
IFLA_INFO_KIND = 1
IFA_ADDRESS, IFA_LOCAL, IFA_FLAGS, IFA_RT_PRIORITY = 1, 2, 8, 9

SKIP_STATS = number(IFLA_EXT_MASK, rtnl.RTEXT_FILTER_SKIP_STATS)

DUMP_LINKS = LINK.pack(0, 0, 0, 0, 0) + SKIP_STATS
DUMP_ADDRESSES = ADDRESS.pack(socket.AF_INET, 0, 0, 0, 0)


def decode_links(messages: Iterable[bytes]) -> tuple[Link, ...]:
    """All links of a dump, by index."""
    links = []
    for message in messages:
        _, hardware, index, flags, _ = LINK.unpack_from(message, HEADER_BYTES)
        links.append((index, hardware, flags, attributes(message, HEADER_BYTES + LINK.size)))
    names = {index: decode_name(found[IFLA_IFNAME]) for index, _, _, found in links}
    return tuple(
        Link(
            index=index,
            name=names[index],
            is_up=bool(flags & rtnl.IFF_UP),
            has_carrier=bool(flags & rtnl.IFF_LOWER_UP),
            kind=decode_kind(found),
            hardware=hardware,
            master=names.get(to_number(found.get(IFLA_MASTER, b""))),
        )
        for index, hardware, flags, found in sorted(links, key=lambda link: link[0])
    )


def decode_kind(found: dict[int, bytes]) -> str | None:
    """What a link is, by its attributes: ``veth``, ``bridge``; None: a device."""
    kind = attributes(found.get(IFLA_LINKINFO, b"")).get(IFLA_INFO_KIND)
    return None if kind is None else decode_name(kind)


def decode_address(message: bytes, names: rtnl.Names) -> Address:
    """One IPv4 address of a dump."""
    _, length, short_flags, scope, index = ADDRESS.unpack_from(message, HEADER_BYTES)
    found = attributes(message, HEADER_BYTES + ADDRESS.size)
    local = IPv4Address(found[IFA_LOCAL])
    far_end = IPv4Address(found.get(IFA_ADDRESS, found[IFA_LOCAL]))
    # The header's eight bits lack IFA_F_NOPREFIXROUTE.
    flags = to_number(found.get(IFA_FLAGS, b"")) or short_flags
    return Address(
        dev=names[index],
        local=local,
        prefix_length=length,
        peer=far_end if far_end != local else None,
        metric=to_number(found.get(IFA_RT_PRIORITY, b"")),
        is_secondary=bool(flags & rtnl.IFA_F_SECONDARY),
        has_prefix_route=not flags & rtnl.IFA_F_NOPREFIXROUTE,
        scope=scope,
    )
