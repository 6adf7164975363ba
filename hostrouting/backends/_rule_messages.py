"""Policy rules as messages of rtnetlink(7), and back."""

from __future__ import annotations

import os
import socket
from ipaddress import IPv4Network

from hostrouting.backends import _rtnetlink as rtnl
from hostrouting.model import Rule, RuleAction, Table

_UNSET = 0xFFFFFFFF

DUMP_RULES = rtnl.Request(rtnl.RTM_GETRULE, rtnl.DUMP, {"family": socket.AF_INET})


def decode_rule(message: rtnl.Message) -> Rule:
    """One rule of a dump."""
    action = _decode_action(message["action"])
    is_l3mdev = bool(message.get_attr("FRA_L3MDEV"))
    has_table = action is RuleAction.TO_TABLE and not is_l3mdev
    mask = message.get_attr("FRA_FWMASK")
    dscp = message.get_attr("FRA_DSCP")
    return Rule(
        preference=message.get_attr("FRA_PRIORITY") or 0,
        action=action,
        table=(message.get_attr("FRA_TABLE") or message["table"]) if has_table else Table.MAIN,
        goto=message.get_attr("FRA_GOTO"),
        source=_selector(message, "FRA_SRC", "src_len"),
        destination=_selector(message, "FRA_DST", "dst_len"),
        # Since 6.13 a rule may ask for a whole DSCP, which leaves the header's tos at zero.
        tos=dscp << 2 if dscp is not None else message["tos"],
        # fib_nl_fill_rule leaves a mark of zero out but shows its mask.
        mark=(message.get_attr("FRA_FWMARK") or 0) if mask is not None else None,
        mark_mask=mask if mask is not None else _UNSET,
        iif=rtnl.decode_name(message.get_attr("FRA_IIFNAME")),
        oif=rtnl.decode_name(message.get_attr("FRA_OIFNAME")),
        uid_range=_range(message.get_attr("FRA_UID_RANGE")),
        ip_protocol=message.get_attr("FRA_IP_PROTO") or 0,
        has_ports=message.get_attr("FRA_SPORT_RANGE") is not None or message.get_attr("FRA_DPORT_RANGE") is not None,
        suppress_prefix_length=_unless_unset(message.get_attr("FRA_SUPPRESS_PREFIXLEN")),
        suppress_group=_unless_unset(message.get_attr("FRA_SUPPRESS_IFGROUP")),
        is_inverted=bool(message["flags"] & rtnl.FIB_RULE_INVERT),
        is_l3mdev=is_l3mdev,
        protocol=message.get_attr("FRA_PROTOCOL") or 0,
    )


def _decode_action(number: int) -> RuleAction:
    try:
        return RuleAction(number)
    except ValueError:
        return RuleAction.BLACKHOLE  # as fib4_rule_action treats one that it doesn't know


def _selector(message: rtnl.Message, attribute: str, length: str) -> IPv4Network | None:
    address = message.get_attr(attribute)
    # The kernel keeps the host bits that it is told, and compares none of them (fib4_rule_match).
    return None if address is None else IPv4Network((address, message[length]), strict=False)


def _range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, last = text.partition(":")
    return (int(first), int(last))


def _unless_unset(number: int | None) -> int | None:
    return None if number == _UNSET else number


def encode_rule(kind: int, flags: int, rule: Rule) -> rtnl.Request:
    """A request that names all of a rule.

    ``has_ports`` doesn't tell which ports; it stands for every destination port here.
    """
    has_table = rule.action is RuleAction.TO_TABLE and not rule.is_l3mdev
    fields = {
        "family": socket.AF_INET,
        "src_len": rule.source.prefixlen if rule.source is not None else 0,
        "dst_len": rule.destination.prefixlen if rule.destination is not None else 0,
        "tos": rule.tos,
        "table": 0 if not has_table else rule.table if rule.table in rtnl.BYTE else rtnl.RT_TABLE_COMPAT,
        "action": rule.action,
        "flags": rtnl.FIB_RULE_INVERT if rule.is_inverted else 0,
    }
    values: tuple[tuple[str, object], ...] = (
        ("FRA_PRIORITY", rule.preference),
        ("FRA_TABLE", rule.table if has_table else None),
        ("FRA_GOTO", rule.goto),
        ("FRA_SRC", str(rule.source.network_address) if rule.source is not None else None),
        ("FRA_DST", str(rule.destination.network_address) if rule.destination is not None else None),
        ("FRA_FWMARK", rule.mark),
        ("FRA_FWMASK", rule.mark_mask if rule.mark is not None else None),
        ("FRA_IIFNAME", os.fsencode(rule.iif) if rule.iif is not None else None),
        ("FRA_OIFNAME", os.fsencode(rule.oif) if rule.oif is not None else None),
        ("FRA_UID_RANGE", f"{rule.uid_range[0]}:{rule.uid_range[1]}" if rule.uid_range is not None else None),
        ("FRA_IP_PROTO", rule.ip_protocol or None),
        ("FRA_DPORT_RANGE", "1:65534" if rule.has_ports else None),
        ("FRA_SUPPRESS_PREFIXLEN", rule.suppress_prefix_length),
        ("FRA_SUPPRESS_IFGROUP", rule.suppress_group),
        ("FRA_L3MDEV", 1 if rule.is_l3mdev else None),
        ("FRA_PROTOCOL", rule.protocol),
    )
    return rtnl.Request(kind, flags, fields, tuple((name, value) for name, value in values if value is not None))
