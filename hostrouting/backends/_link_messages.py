"""Links and addresses of rtnetlink(7) as values of ``hostrouting.model``."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address

from hostrouting.backends import _rtnetlink as rtnl
from hostrouting.model import Address, Link

DUMP_LINKS = rtnl.Request(rtnl.RTM_GETLINK, rtnl.DUMP, {}, (("IFLA_EXT_MASK", rtnl.RTEXT_FILTER_SKIP_STATS),))
DUMP_ADDRESSES = rtnl.Request(rtnl.RTM_GETADDR, rtnl.DUMP, {"family": socket.AF_INET})


def get_link(index: int) -> rtnl.Request:
    """Ask for one link."""
    return rtnl.Request(rtnl.RTM_GETLINK, rtnl.GET, {"index": index})


def decode_links(messages: tuple[rtnl.Message, ...]) -> tuple[Link, ...]:
    """All links of a dump, by index."""
    names = {message["index"]: rtnl.decode_name(message.get_attr("IFLA_IFNAME")) for message in messages}
    links = []
    for message in messages:
        info = message.get_attr("IFLA_LINKINFO")
        links.append(
            Link(
                index=message["index"],
                name=names[message["index"]],
                is_up=bool(message["flags"] & rtnl.IFF_UP),
                has_carrier=bool(message["flags"] & rtnl.IFF_LOWER_UP),
                kind=info.get_attr("IFLA_INFO_KIND") if info is not None else None,
                hardware=message["ifi_type"],
                master=names.get(message.get_attr("IFLA_MASTER")),
            )
        )
    return tuple(sorted(links, key=lambda link: link.index))


def decode_address(message: rtnl.Message, names: rtnl.Names) -> Address:
    """One IPv4 address of a dump."""
    local = IPv4Address(message.get_attr("IFA_LOCAL"))
    far_end = message.get_attr("IFA_ADDRESS")
    # The header's eight bits lack IFA_F_NOPREFIXROUTE.
    flags = message.get_attr("IFA_FLAGS") or message["flags"]
    return Address(
        dev=names[message["index"]],
        local=local,
        prefix_length=message["prefixlen"],
        peer=IPv4Address(far_end) if far_end is not None and IPv4Address(far_end) != local else None,
        metric=message.get_attr("IFA_RT_PRIORITY") or 0,
        is_secondary=bool(flags & rtnl.IFA_F_SECONDARY),
        has_prefix_route=not flags & rtnl.IFA_F_NOPREFIXROUTE,
    )
