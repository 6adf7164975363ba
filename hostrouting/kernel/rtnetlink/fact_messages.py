"""Decode rtnetlink(7) links, addresses, rules and nexthop objects to ``hostrouting.model`` objects.

Routes are decoded in entries.py. The messages (see messages.py) have these bodies::

     16       17    18     20      24      28       32
    +--------+-----+------+-------+-------+--------+------------
    | family | pad | type | index | flags | change | attributes          struct ifinfomsg
    +--------+-----+------+-------+-------+--------+------------

     16       17           18      19      20      24
    +--------+------------+-------+-------+-------+------------
    | family | prefix_len | flags | scope | index | attributes           struct ifaddrmsg
    +--------+------------+-------+-------+-------+------------

                                                                      struct fib_rule_hdr
     16       17        18        19    20      21  22  23       24      28
    +--------+---------+---------+-----+-------+-------+--------+-------+------------
    | family | dst_len | src_len | tos | table |  0  0 | action | flags | attributes
    +--------+---------+---------+-----+-------+-------+--------+-------+------------

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

import os
import socket
import struct
from collections.abc import Callable, Iterable
from ipaddress import IPv6Network, ip_address, ip_network
from typing import Any, TypeVar

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
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.links import Address, Address6, AddressLabel, Link, mac_address
from hostrouting.model.routes import NexthopObject, Table
from hostrouting.model.rules import ALL_PORTS, Rule, RuleAction

T = TypeVar("T")

# A dump request: a description, the RTM_GET* type, the request body and a decoder.
Listing = tuple[str, int, bytes, Callable[[bytes, rtnl.Names], T]]

_ADDRESS = struct.Struct("=BBBBI")
_RULE = struct.Struct("=5BxxBI")
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

# linux/fib_rules.h
_DST = 1
_SRC = 2
_IIFNAME = 3
_GOTO = 4
_PRIORITY = 6
_FWMARK = 10
_SUPPRESS_IFGROUP = 13
_SUPPRESS_PREFIXLEN = 14
_TABLE = 15
_FWMASK = 16
_OIFNAME = 17
_L3MDEV = 19
_UID_RANGE = 20
_PROTOCOL = 21
_IP_PROTO = 22
_SPORT_RANGE = 23
_DPORT_RANGE = 24
_DSCP = 25
_TUN_ID = 12
_FLOWLABEL = 26
_FLOWLABEL_MASK = 27
_DSCP_MASK = 30
_SPORT_MASK = 28
_DPORT_MASK = 29
# FRA_FLOW sets a realm, and FRA_PAD has no meaning.
_KNOWN = {*range(_DSCP_MASK + 1)} - {_FLOWLABEL, _FLOWLABEL_MASK}
# Masks that cover all bits of a value.
_WHOLE = {_SPORT_MASK: b"\xff\xff", _DPORT_MASK: b"\xff\xff"}
_UNSET = 0xFFFFFFFF
_LARGEST_SIGNED = 0x7FFFFFFF
_RANGE = struct.Struct("=II")
_PORTS = struct.Struct("=HH")

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
# The route attribute with the same meaning, for each nexthop attribute.
_OF_ROUTE = {
    _NHA_OIF: rtm.RTA_OIF,
    _NHA_GATEWAY: rtm.RTA_GATEWAY,
    _NHA_ENCAP_TYPE: rtm.RTA_ENCAP_TYPE,
}
# struct nexthop_grp contains the ID and the weight minus 1. Since Linux 6.12, the next byte is the
# weight's high byte. For routes, the kernel shows only the low byte (fib_add_nexthop), and boot
# scripts read that.
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
    # For IPv4, the kernel omits a peer of 0.0.0.0, but still compares addresses with it. For IPv6,
    # it omits IFA_LOCAL if there is no peer (inet6_fill_ifaddr).
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
        # Since Linux 6.13, a rule may select a full DSCP. The tos in the header is then zero. The
        # mask of a DSCP is ignored here, because it makes no difference. A rule matches packets
        # with DSCP 0 only if the rule's DSCP is 0.
        tos=value(_DSCP) << 2 if _DSCP in found else tos,
        tun_id=int.from_bytes(found.get(_TUN_ID, b""), "big"),
        # fib_nl_fill_rule omits a zero mark but includes its mask.
        mark=value(_FWMARK) if _FWMASK in found else None,
        mark_mask=value(_FWMASK) if _FWMASK in found else _UNSET,
        iif=_name_in(found.get(_IIFNAME)),
        oif=_name_in(found.get(_OIFNAME)),
        uid_range=_RANGE.unpack(found[_UID_RANGE]) if _UID_RANGE in found else None,
        ip_protocol=value(_IP_PROTO),
        has_ports=any(ports != ALL_PORTS for ports in _port_ranges(found)),
        # The kernel compares lengths as signed integers, so a negative length suppresses nothing.
        suppress_prefix_length=_up_to(_LARGEST_SIGNED, found.get(_SUPPRESS_PREFIXLEN)),
        suppress_group=_up_to(_UNSET - 1, found.get(_SUPPRESS_IFGROUP)),
        is_inverted=bool(flags & rtnl.FIB_RULE_INVERT),
        is_l3mdev=is_l3mdev,
        has_unknown=_has_unknown(found),
        protocol=value(_PROTOCOL),
    )


def _name_in(value: bytes | None) -> str | None:
    return None if value is None else decode_name(value)


def encode_rule(rule: Rule, family: Family) -> bytes:
    """Return the body of a message about a rule, without ports and unknown selectors."""
    body = _RULE.pack(
        family.af,
        _length(rule.destination),
        _length(rule.source),
        rule.tos,
        0,  # a table's number may not fit here
        rule.action,
        rtnl.FIB_RULE_INVERT if rule.is_inverted else 0,
    )
    found = (
        (_DST, _address(rule.destination)),
        (_SRC, _address(rule.source)),
        (_IIFNAME, _name(rule.iif)),
        (_OIFNAME, _name(rule.oif)),
        (_PRIORITY, _number(rule.preference)),
        (_TABLE, _number(rule.table if rule.has_table else None)),
        (_GOTO, _number(rule.goto)),
        (_FWMARK, _number(rule.mark)),
        (_FWMASK, _number(None if rule.mark is None else rule.mark_mask)),
        (_TUN_ID, rule.tun_id.to_bytes(8, "big") if rule.tun_id else None),
        (_UID_RANGE, None if rule.uid_range is None else _RANGE.pack(*rule.uid_range)),
        (_IP_PROTO, bytes([rule.ip_protocol]) if rule.ip_protocol else None),
        (_SUPPRESS_PREFIXLEN, _number(rule.suppress_prefix_length)),
        (_SUPPRESS_IFGROUP, _number(rule.suppress_group)),
        (_L3MDEV, b"\x01" if rule.is_l3mdev else None),
        (_PROTOCOL, bytes([rule.protocol])),
    )
    return body + b"".join(
        rtnl.attribute(kind, value) for kind, value in found if value is not None
    )


def destination_port(port: int) -> bytes:
    """Return a rule's attribute for a single destination port."""
    return rtnl.attribute(_DPORT_RANGE, _PORTS.pack(port, port))


def _length(prefix: IpNetwork | None) -> int:
    return 0 if prefix is None else prefix.prefixlen


def _address(prefix: IpNetwork | None) -> bytes | None:
    return None if prefix is None else prefix.network_address.packed


def _name(dev: str | None) -> bytes | None:
    return None if dev is None else os.fsencode(dev)


def _number(value: int | None) -> bytes | None:
    return None if value is None else struct.pack("=I", value)


def _has_unknown(found: dict[int, bytes]) -> bool:
    """Return whether a rule has a selector that isn't modelled."""
    if not found.keys() <= _KNOWN or _has_any_source_port(found):
        return True
    return any(found.get(mask, whole) != whole for mask, whole in _WHOLE.items())


def _port_ranges(found: dict[int, bytes]) -> list[tuple[int, ...]]:
    return [_PORTS.unpack(found[kind]) for kind in (_SPORT_RANGE, _DPORT_RANGE) if kind in found]


def _has_any_source_port(found: dict[int, bytes]) -> bool:
    return _SPORT_RANGE in found and _PORTS.unpack(found[_SPORT_RANGE]) == ALL_PORTS


def selects_any_source_port(rules: Iterable[bytes]) -> bool:
    """Return whether any rule selects all source ports.

    TCP's first lookup has no source port, but its second one does.

    Args:
        rules: rule messages from a dump.
    """
    return any(_has_any_source_port(attributes(rule, HEADER_BYTES + _RULE.size)) for rule in rules)


def port_of_any(rules: Iterable[bytes]) -> int | None:
    """Return a port for lookups that stand for any port: only rules for all ports match it.

    Args:
        rules: rule messages from a dump.

    Returns:
        The port. None if no rule selects all ports; then a lookup needs no ports.
    """
    ranges = {
        ports
        for rule in rules
        for ports in _port_ranges(attributes(rule, HEADER_BYTES + _RULE.size))
    }
    if ALL_PORTS not in ranges:
        return None
    some = ranges - {ALL_PORTS}
    # If other rules together cover all ports, any port will do.
    free = (
        port for port in range(*ALL_PORTS) if not any(first <= port <= last for first, last in some)
    )
    return next(free, ALL_PORTS[1])


def _selector(address: bytes | None, length: int) -> IpNetwork | None:
    # The kernel stores host bits but ignores them when matching (fib4_rule_match).
    return None if address is None else ip_network((address, length), strict=False)


def _up_to(most: int, value: bytes | None) -> int | None:
    return None if value is None or to_number(value) > most else to_number(value)


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
    """Decode a neighbour entry, or return None if its state isn't FAILED."""
    _, index, state, *_ = _NEIGHBOUR.unpack_from(message, HEADER_BYTES)
    address = attributes(message, HEADER_BYTES + _NEIGHBOUR.size).get(_NDA_DST)
    return (
        (names(index), ip_address(address)) if state & _NUD_FAILED and address is not None else None
    )


def _decode_forwarding(message: bytes, _names: rtnl.Names) -> bool:
    """Return whether an entry enables IPv6 forwarding for all interfaces."""
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
RULES = {
    family: (
        "list the rules",
        rtnl.RTM_GETRULE,
        _RULE.pack(family.af, 0, 0, 0, 0, 0, 0),
        _decode_rule,
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
