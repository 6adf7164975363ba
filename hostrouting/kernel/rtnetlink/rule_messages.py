"""Decode and encode rtnetlink(7) messages about policy rules.

A rule message (see messages.py) has this body, struct fib_rule_hdr::

     16       17        18        19    20      21  22  23       24      28
    +--------+---------+---------+-----+-------+-------+--------+-------+------------
    | family | dst_len | src_len | tos | table |  0  0 | action | flags | attributes
    +--------+---------+---------+-----+-------+-------+--------+-------+------------
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from ipaddress import ip_network

from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink.messages import HEADER_BYTES, attributes, decode_name, to_number
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.routes import Table
from hostrouting.model.rules import ALL_PORTS, Rule, RuleAction

_RULE = struct.Struct("=5BxxBI")

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
        # Since Linux 6.13, a rule may select a DSCP instead of a tos. A check's packets have DSCP
        # 0, for which the DSCP's mask makes no difference. So the mask is ignored.
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
        # The kernel compares the length as a signed integer, so a larger value is negative, and
        # suppresses nothing.
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
    """Return the body of a message about a rule. Ports and unknown selectors are left out."""
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
    """Return whether a rule selects all source ports (``sport 1-65534``).

    A rule for all source ports matches TCP's second lookup, but not TCP's first, which has no
    source port.

    Args:
        rules: rule messages from a dump.
    """
    return any(_has_any_source_port(attributes(rule, HEADER_BYTES + _RULE.size)) for rule in rules)


def port_of_any(rules: Iterable[bytes]) -> int | None:
    """Return a port that no rule selects, apart from rules for all ports (1-65534).

    Args:
        rules: rule messages from a dump.

    Returns:
        The port. None if no rule selects all ports, because lookups then need no port.
    """
    ranges = {
        ports
        for rule in rules
        for ports in _port_ranges(attributes(rule, HEADER_BYTES + _RULE.size))
    }
    if ALL_PORTS not in ranges:
        return None
    some = ranges - {ALL_PORTS}
    # If every port is selected, use the last one.
    free = (
        port for port in range(*ALL_PORTS) if not any(first <= port <= last for first, last in some)
    )
    return next(free, ALL_PORTS[1])


def _selector(address: bytes | None, length: int) -> IpNetwork | None:
    # The kernel keeps host bits, as in 10.0.0.4/24, but ignores them in lookups (fib4_rule_match).
    return None if address is None else ip_network((address, length), strict=False)


def _up_to(most: int, value: bytes | None) -> int | None:
    return None if value is None or to_number(value) > most else to_number(value)


RULES = {
    family: (
        "list the rules",
        rtnl.RTM_GETRULE,
        _RULE.pack(family.af, 0, 0, 0, 0, 0, 0),
        _decode_rule,
    )
    for family in Family
}
