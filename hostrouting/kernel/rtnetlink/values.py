"""Decode links, addresses, rules and nexthop objects of rtnetlink(7) to values of ``hostrouting.model``.

entries.py decodes routes. The messages (messages.py) have these bodies::

     16       17    18     20      24      28       32
    +--------+-----+------+-------+-------+--------+------------
    | family | pad | type | index | flags | change | attributes          struct ifinfomsg
    +--------+-----+------+-------+-------+--------+------------

     16       17           18      19      20      24
    +--------+------------+-------+-------+-------+------------
    | family | prefix_len | flags | scope | index | attributes           struct ifaddrmsg
    +--------+------------+-------+-------+-------+------------

     16       17        18        19    20      21  22  23       24      28
    +--------+---------+---------+-----+-------+-------+--------+-------+------------
    | family | dst_len | src_len | tos | table |  0  0 | action | flags | attributes    struct fib_rule_hdr
    +--------+---------+---------+-----+-------+-------+--------+-------+------------

     16       17      18         19  20      24
    +--------+-------+----------+---+-------+------------
    | family | scope | protocol | 0 | flags | attributes                 struct nhmsg
    +--------+-------+----------+---+-------+------------
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, ip_address
from typing import TypeVar

from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink.entries import decode_hop
from hostrouting.kernel.rtnetlink.messages import HEADER_BYTES, attributes, decode_name, number, to_number
from hostrouting.model.links import Address, Link
from hostrouting.model.routes import NexthopObject, Table
from hostrouting.model.rules import ALL_PORTS, Rule, RuleAction

T = TypeVar("T")

# How to read a list from the kernel: a description, the RTM_GET* kind, the body of the request, and a decoder.
Listing = tuple[str, int, bytes, Callable[[bytes, rtnl.Names], T]]

_LINK, _ADDRESS = struct.Struct("=BxHiII"), struct.Struct("=BBBBI")
_RULE, _NEXTHOP = struct.Struct("=5BxxBI"), struct.Struct("=BBBxI")

# linux/if_link.h, linux/if_addr.h
_IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_GROUP, _IFLA_EXT_MASK = 3, 10, 18, 27, 29
_IFLA_INFO_KIND = 1
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS, _IFA_RT_PRIORITY = 1, 2, 8, 9

# linux/fib_rules.h
_DST, _SRC, _IIFNAME, _GOTO, _PRIORITY, _FWMARK, _SUPPRESS_IFGROUP, _SUPPRESS_PREFIXLEN = 1, 2, 3, 4, 6, 10, 13, 14
_TABLE, _FWMASK, _OIFNAME, _L3MDEV, _UID_RANGE, _PROTOCOL, _IP_PROTO = 15, 16, 17, 19, 20, 21, 22
_SPORT_RANGE, _DPORT_RANGE, _DSCP, _TUN_ID, _FLOWLABEL, _FLOWLABEL_MASK, _DSCP_MASK = 23, 24, 25, 12, 26, 27, 30
_SPORT_MASK, _DPORT_MASK = 28, 29
# FRA_FLOW sets a realm, and FRA_PAD has no meaning.
_KNOWN = {*range(_DSCP_MASK + 1)} - {_FLOWLABEL, _FLOWLABEL_MASK}
# The masks that cover a whole value.
_WHOLE = {_DSCP_MASK: b"\x3f", _SPORT_MASK: b"\xff\xff", _DPORT_MASK: b"\xff\xff"}
_UNSET, _LARGEST_SIGNED = 0xFFFFFFFF, 0x7FFFFFFF
_RANGE, _PORTS = struct.Struct("=II"), struct.Struct("=HH")

# linux/nexthop.h
_NHA_ID, _NHA_GROUP, _NHA_OIF, _NHA_GATEWAY, _NHA_ENCAP_TYPE = 1, 2, 5, 6, 7
# struct nexthop_grp contains the id and the weight minus 1. Since 6.12, the next byte is the high byte of the weight.
# Routes have only the low byte, which the kernel shows for them (fib_add_nexthop) and a boot script reads.
_MEMBER = struct.Struct("=IBxH")


def _decode_link(message: bytes, names: rtnl.Names) -> Link:
    _, hardware, index, flags, _ = _LINK.unpack_from(message, HEADER_BYTES)
    found = attributes(message, HEADER_BYTES + _LINK.size)
    kind = attributes(found.get(_IFLA_LINKINFO, b"")).get(_IFLA_INFO_KIND)
    return Link(
        index=index,
        name=decode_name(found[_IFLA_IFNAME]),
        is_up=bool(flags & rtnl.IFF_UP),
        has_carrier=bool(flags & rtnl.IFF_LOWER_UP),
        kind=None if kind is None else decode_name(kind),
        hardware=hardware,
        master=names[to_number(found[_IFLA_MASTER])] if _IFLA_MASTER in found else None,
        group=to_number(found.get(_IFLA_GROUP, b"")),
    )


def _decode_address(message: bytes, names: rtnl.Names) -> Address:
    _, length, short_flags, scope, index = _ADDRESS.unpack_from(message, HEADER_BYTES)
    found = attributes(message, HEADER_BYTES + _ADDRESS.size)
    local = IPv4Address(found[_IFA_LOCAL])
    # The kernel doesn't report a far end of 0.0.0.0, but still compares addresses with it.
    far_end = IPv4Address(found.get(_IFA_ADDRESS, 0))
    # IFA_F_NOPREFIXROUTE doesn't fit into the eight bits of the header.
    flags = to_number(found.get(_IFA_FLAGS, b"")) or short_flags
    return Address(
        dev=names[index],
        local=local,
        prefix_length=length,
        peer=far_end if far_end != local else None,
        metric=to_number(found.get(_IFA_RT_PRIORITY, b"")),
        is_secondary=bool(flags & rtnl.IFA_F_SECONDARY),
        has_prefix_route=not flags & rtnl.IFA_F_NOPREFIXROUTE,
        scope=scope,
    )


def _decode_rule(message: bytes, _names: rtnl.Names) -> Rule:
    _, dst_len, src_len, tos, table, action_number, flags = _RULE.unpack_from(message, HEADER_BYTES)
    found = attributes(message, HEADER_BYTES + _RULE.size)

    def value(kind: int) -> int:
        return to_number(found.get(kind, b""))

    action = RuleAction(action_number)
    is_l3mdev = bool(value(_L3MDEV))
    has_table = action is RuleAction.TO_TABLE and not is_l3mdev
    return Rule(
        preference=value(_PRIORITY),
        action=action,
        table=(value(_TABLE) or table) if has_table else Table.MAIN,
        goto=value(_GOTO) if _GOTO in found else None,
        source=_selector(found.get(_SRC), src_len),
        destination=_selector(found.get(_DST), dst_len),
        # Since 6.13, a rule may select a whole DSCP, and the tos in the header is then zero.
        tos=value(_DSCP) << 2 if _DSCP in found else tos,
        tun_id=int.from_bytes(found.get(_TUN_ID, b""), "big"),
        # fib_nl_fill_rule omits a mark of zero but shows its mask.
        mark=value(_FWMARK) if _FWMASK in found else None,
        mark_mask=value(_FWMASK) if _FWMASK in found else _UNSET,
        iif=decode_name(found[_IIFNAME]) if _IIFNAME in found else None,
        oif=decode_name(found[_OIFNAME]) if _OIFNAME in found else None,
        uid_range=_RANGE.unpack(found[_UID_RANGE]) if _UID_RANGE in found else None,
        ip_protocol=value(_IP_PROTO),
        has_ports=any(ports != ALL_PORTS for ports in _port_ranges(found)),
        # The kernel compares signed lengths, and no prefix is shorter than a negative length.
        suppress_prefix_length=_up_to(_LARGEST_SIGNED, found.get(_SUPPRESS_PREFIXLEN)),
        suppress_group=_up_to(_UNSET - 1, found.get(_SUPPRESS_IFGROUP)),
        is_inverted=bool(flags & rtnl.FIB_RULE_INVERT),
        is_l3mdev=is_l3mdev,
        has_unknown=not found.keys() <= _KNOWN
        or _has_any_source_port(found)
        or any(found.get(mask, all_) != all_ for mask, all_ in _WHOLE.items()),
        protocol=value(_PROTOCOL),
    )


def _port_ranges(found: dict[int, bytes]) -> list[tuple[int, ...]]:
    return [_PORTS.unpack(found[kind]) for kind in (_SPORT_RANGE, _DPORT_RANGE) if kind in found]


def _has_any_source_port(found: dict[int, bytes]) -> bool:
    return _SPORT_RANGE in found and _PORTS.unpack(found[_SPORT_RANGE]) == ALL_PORTS


def selects_any_source_port(rules: Iterable[bytes]) -> bool:
    """Return whether a rule is for all source ports.

    TCP has no source port before its second lookup.

    Args:
        rules: the messages from a dump.
    """
    return any(_has_any_source_port(attributes(rule, HEADER_BYTES + _RULE.size)) for rule in rules)


def port_of_any(rules: Iterable[bytes]) -> int | None:
    """Return a port that only rules for all ports select, so that it stands for any port.

    Args:
        rules: the messages from a dump.

    Returns:
        The port, or None if no rule is for all ports. A lookup without ports then has the same result.
    """
    ranges = {ports for rule in rules for ports in _port_ranges(attributes(rule, HEADER_BYTES + _RULE.size))}
    if ALL_PORTS not in ranges:
        return None
    some = ranges - {ALL_PORTS}
    # If rules for some ports cover all ports together, it doesn't matter which port is used.
    free = (port for port in range(*ALL_PORTS) if not any(first <= port <= last for first, last in some))
    return next(free, ALL_PORTS[1])


def _selector(address: bytes | None, length: int) -> IPv4Network | None:
    # The kernel stores the host bits of an address but doesn't compare them (fib4_rule_match).
    return None if address is None else IPv4Network((address, length), strict=False)


def _up_to(most: int, value: bytes | None) -> int | None:
    return None if value is None or to_number(value) > most else to_number(value)


def _decode_nexthop(message: bytes, names: rtnl.Names) -> NexthopObject:
    *_, flags = _NEXTHOP.unpack_from(message, HEADER_BYTES)
    found = attributes(message, HEADER_BYTES + _NEXTHOP.size)
    id_ = to_number(found[_NHA_ID])
    if _NHA_GROUP in found:
        group = _MEMBER.iter_unpack(found[_NHA_GROUP])
        return NexthopObject(id_, members=tuple((member, weight + 1) for member, weight, _ in group))
    oif, gateway = to_number(found.get(_NHA_OIF, b"")), found.get(_NHA_GATEWAY)
    if not oif and gateway is None:
        return NexthopObject(id_)
    address = None if gateway is None else ip_address(gateway)
    hop = decode_hop(flags, 1, oif, address, found.get(_NHA_ENCAP_TYPE), names)
    return NexthopObject(id_, hop)


_NO_STATISTICS = number(_IFLA_EXT_MASK, rtnl.RTEXT_FILTER_SKIP_STATS)
LINKS = ("list the interfaces", rtnl.RTM_GETLINK, _LINK.pack(0, 0, 0, 0, 0) + _NO_STATISTICS, _decode_link)
ADDRESSES = ("list the addresses", rtnl.RTM_GETADDR, _ADDRESS.pack(socket.AF_INET, 0, 0, 0, 0), _decode_address)
RULES = ("list the rules", rtnl.RTM_GETRULE, _RULE.pack(socket.AF_INET, 0, 0, 0, 0, 0, 0), _decode_rule)
NEXTHOPS = ("list the nexthop objects", rtnl.RTM_GETNEXTHOP, _NEXTHOP.pack(0, 0, 0, 0), _decode_nexthop)
