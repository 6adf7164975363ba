"""Policy rules of rtnetlink(7) as values of ``hostrouting.model``.

The body of the message (messages.py), struct fib_rule_hdr::

     16       17        18        19    20      21  22  23       24      28
    +--------+---------+---------+-----+-------+-------+--------+-------+------------
    | family | dst_len | src_len | tos | table |  0  0 | action | flags | attributes
    +--------+---------+---------+-----+-------+-------+--------+-------+------------
"""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Network

from hostrouting.kernel.rtnetlink import constants as rtnl
from hostrouting.kernel.rtnetlink.messages import HEADER_BYTES, attributes, decode_name, to_number
from hostrouting.model.routes import Table
from hostrouting.model.rules import Rule, RuleAction

__all__ = ["DUMP_RULES", "decode_rule"]

_BODY = struct.Struct("=5BxxBI")
_RANGE = struct.Struct("=II")

# linux/fib_rules.h
_DST, _SRC, _IIFNAME, _GOTO, _PRIORITY, _FWMARK, _SUPPRESS_IFGROUP, _SUPPRESS_PREFIXLEN = 1, 2, 3, 4, 6, 10, 13, 14
_TABLE, _FWMASK, _OIFNAME, _L3MDEV, _UID_RANGE, _PROTOCOL, _IP_PROTO = 15, 16, 17, 19, 20, 21, 22
_SPORT_RANGE, _DPORT_RANGE, _DSCP, _SPORT_MASK, _DPORT_MASK, _DSCP_MASK = 23, 24, 25, 28, 29, 30
# FRA_FLOW gives a realm, and FRA_PAD nothing.
_FLOW, _PAD = 11, 18

_WHOLE_DSCP = b"\x3f"

_KNOWN = {
    *(_DST, _SRC, _IIFNAME, _GOTO, _PRIORITY, _FWMARK, _SUPPRESS_IFGROUP, _SUPPRESS_PREFIXLEN, _TABLE, _FWMASK),
    *(_OIFNAME, _L3MDEV, _UID_RANGE, _PROTOCOL, _IP_PROTO, _SPORT_RANGE, _DPORT_RANGE, _SPORT_MASK),
    *(_DPORT_MASK, _DSCP, _DSCP_MASK, _FLOW, _PAD),
}

_UNSET = 0xFFFFFFFF

DUMP_RULES = _BODY.pack(socket.AF_INET, 0, 0, 0, 0, 0, 0)


def decode_rule(message: bytes) -> Rule:
    """One rule of a dump."""
    _, dst_len, src_len, tos, table, number, flags = _BODY.unpack_from(message, HEADER_BYTES)
    found = attributes(message, HEADER_BYTES + _BODY.size)

    def value(kind: int) -> int:
        return to_number(found.get(kind, b""))

    action = _decode_action(number)
    is_l3mdev = bool(value(_L3MDEV))
    has_table = action is RuleAction.TO_TABLE and not is_l3mdev
    return Rule(
        preference=value(_PRIORITY),
        action=action,
        table=(value(_TABLE) or table) if has_table else Table.MAIN,
        goto=value(_GOTO) if _GOTO in found else None,
        source=_selector(found.get(_SRC), src_len),
        destination=_selector(found.get(_DST), dst_len),
        # Since 6.13 a rule may ask for a whole DSCP, which leaves the header's tos at zero.
        tos=value(_DSCP) << 2 if _DSCP in found else tos,
        # fib_nl_fill_rule leaves a mark of zero out but shows its mask.
        mark=value(_FWMARK) if _FWMASK in found else None,
        mark_mask=value(_FWMASK) if _FWMASK in found else _UNSET,
        iif=decode_name(found[_IIFNAME]) if _IIFNAME in found else None,
        oif=decode_name(found[_OIFNAME]) if _OIFNAME in found else None,
        uid_range=_decode_range(found.get(_UID_RANGE)),
        ip_protocol=value(_IP_PROTO),
        has_ports=_SPORT_RANGE in found or _DPORT_RANGE in found,
        suppress_prefix_length=_unless_unset(found.get(_SUPPRESS_PREFIXLEN)),
        suppress_group=_unless_unset(found.get(_SUPPRESS_IFGROUP)),
        is_inverted=bool(flags & rtnl.FIB_RULE_INVERT),
        is_l3mdev=is_l3mdev,
        has_unknown=not found.keys() <= _KNOWN or to_number(found.get(_DSCP_MASK, _WHOLE_DSCP)) != _WHOLE_DSCP[0],
        protocol=value(_PROTOCOL),
    )


def _decode_action(number: int) -> RuleAction:
    try:
        return RuleAction(number)
    except ValueError:
        return RuleAction.BLACKHOLE  # as fib4_rule_action treats one that it doesn't know


def _selector(address: bytes | None, length: int) -> IPv4Network | None:
    # The kernel keeps the host bits that it is told, and compares none of them (fib4_rule_match).
    return None if address is None else IPv4Network((address, length), strict=False)


def _decode_range(value: bytes | None) -> tuple[int, int] | None:
    if value is None:
        return None
    first, last = _RANGE.unpack(value)
    return (first, last)


def _unless_unset(value: bytes | None) -> int | None:
    return None if value is None or to_number(value) == _UNSET else to_number(value)
