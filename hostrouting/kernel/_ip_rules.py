"""Convert policy rules in ``ip -j -N`` output to ``hostrouting.model`` objects and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import ip_network
from itertools import chain
from typing import Any

import attrs

from hostrouting.kernel import _ip
from hostrouting.kernel._json_keys import Key, Keys, is_set
from hostrouting.model.errors import ConfigError
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.routes import Protocol, Table
from hostrouting.model.rules import ALL_PORTS, Rule, RuleAction

_action = _ip.number_parser(0xFF, _ip.names_of(RuleAction))
_ip_protocol = _ip.number_parser(
    0xFF,
    {"icmp": 1, "tcp": 6, "udp": 17, "ipv6-icmp": 58, "sctp": 132},
)


def _suppressed_length(value: object) -> int | None:
    return None if isinstance(value, int) and value < 0 else _ip.uint32(value)


def _selector(family: Family) -> Callable[[Any], IpAddress | None]:
    return lambda value: None if value == "all" else _ip.ADDRESS[family](value)


_RULES = {
    family: Keys(
        Key("priority", "preference", _ip.uint32, 0),
        Key("not", "is_inverted", is_set, False),
        Key("src", "source", _selector(family), None),
        Key("srclen", "source_length", _ip.LENGTH[family], family.bits),
        Key("dst", "destination", _selector(family), None),
        Key("dstlen", "destination_length", _ip.LENGTH[family], family.bits),
        Key("tos", "tos", _ip.byte, 0),
        Key("dscp", "dscp", _ip.number_parser(63), None),
        Key("tun_id", "tun_id", _ip.number_parser(_ip.UINT64), 0),
        Key("fwmark", "mark", _ip.uint32, None),
        Key("fwmask", "mark_mask", _ip.uint32, _ip.UINT32),
        Key("iif", "iif", _ip.interface_selector, None),
        Key("oif", "oif", _ip.interface_selector, None),
        Key("uid_start", "first_uid", _ip.uint32, None),
        Key("uid_end", "last_uid", _ip.uint32, None),
        Key("ipproto", "ip_protocol", _ip_protocol, 0),
        Key("ports", "has_ports", is_set, False),
        Key("l3mdev", "is_l3mdev", is_set, False),
        Key("table", "table", _ip.table, None),
        Key("suppress_prefixlen", "suppress_prefix_length", _suppressed_length, None),
        Key("suppress_ifgroup", "suppress_group", _ip.group, None),
        Key("goto", "goto", lambda value: None if value == "none" else _ip.uint32(value), None),
        Key("nop", "is_nop", is_set, False),
        Key("action", "action", _action, RuleAction.TO_TABLE),
        Key("protocol", "protocol", _ip.protocol, Protocol.KERNEL),
    )
    for family in Family
}
# ip prints source and destination ports in one of two forms. Only ``write_rule`` writes "ports".
_PORT = ("sport", "dport", "ports")
_PORT_RANGES = (("sport_start", "sport_end"), ("dport_start", "dport_end"))
# Since 6.15, ip prints a mask for each DSCP and port. The masks are ignored: a check's packets have
# DSCP 0, for which the mask makes no difference, and a ``Rule`` holds no port numbers.
_MASKS = ("dscp_mask", "sport_mask", "dport_mask")
# The known keys: any other key may be an unknown selector. "flow_from" and "flow_to" set realms,
# and select nothing.
_RULE_KEYS = {
    *(key.key for key in _RULES[Family.IPV4].keys),
    *("iif_detached", "oif_detached", *_PORT, *chain.from_iterable(_PORT_RANGES)),
    *("unresolved", "flow_from", "flow_to", *_MASKS),
}


def read_rule(value: object, family: Family) -> Rule:
    """Parse one item from ``ip -j -N -4 rule show`` or ``ip -j -N -6 rule show``."""
    fields = _RULES[family].read(value)
    item = value if isinstance(value, Mapping) else {}
    action = _action_of(item, fields)
    has_table = action is RuleAction.TO_TABLE and not fields["is_l3mdev"]
    if has_table and fields["table"] is None:
        raise ConfigError([("table", "is missing")])
    for name in ("source", "destination"):
        fields[name] = _prefix(fields[name], fields.pop(f"{name}_length"))
    uids = fields.pop("first_uid"), fields.pop("last_uid")
    dscp = fields.pop("dscp")
    more = {
        "action": action,
        "table": fields["table"] if has_table else Table.MAIN,
        "tos": fields["tos"] if dscp is None else dscp << 2,
        "uid_range": uids if None not in uids else None,
        "has_ports": _has_ports(item),
        "has_unknown": uids.count(None) == 1 or _has_unknown(item),
    }
    return Rule(**(fields | more))


def _action_of(item: Mapping[str, Any], fields: dict[str, Any]) -> RuleAction:
    """Return a rule's action, and take ``is_nop`` out of its fields."""
    if fields.pop("is_nop"):
        return RuleAction.NOP
    if is_set(item.get("goto", False)):
        return RuleAction.GOTO
    return RuleAction(fields["action"])


def _prefix(address: IpAddress | None, length: int) -> IpNetwork | None:
    # The kernel keeps host bits, as in 10.0.0.4/24, but ignores them in lookups (fib4_rule_match).
    return None if address is None else ip_network((address.packed, length), strict=False)


def _has_ports(item: Mapping[str, Any]) -> bool:
    if any(is_set(item.get(key, False)) for key in _PORT):
        return True
    return any(_ports(item, keys) not in (ALL_PORTS, (None, None)) for keys in _PORT_RANGES)


def _has_unknown(item: Mapping[str, Any]) -> bool:
    """Return whether a rule has selectors that a ``Rule`` can't hold."""
    # A rule for all source ports counts as unknown. TCP's first lookup has no source port, so the
    # rule doesn't match; TCP's second lookup has one, so the rule matches.
    return not item.keys() <= _RULE_KEYS or _ports(item, _PORT_RANGES[0]) == ALL_PORTS


def _ports(item: Mapping[str, Any], keys: tuple[str, str]) -> tuple[Any, ...]:
    return tuple(map(item.get, keys))


def write_rule(rule: Rule, family: Family) -> dict[str, Any]:
    """Convert a rule to JSON for ``read_rule``. ip lacks the keys ``ports`` and ``unknown``."""
    is_plain = rule.action in (RuleAction.TO_TABLE, RuleAction.GOTO, RuleAction.NOP)
    first_uid, last_uid = rule.uid_range or (None, None)
    fields = {
        **attrs.asdict(rule, recurse=False),
        "first_uid": first_uid,
        "last_uid": last_uid,
        "dscp": None,
        "table": rule.table if rule.has_table else None,
        "is_nop": rule.action is RuleAction.NOP,
        "action": RuleAction.TO_TABLE if is_plain else rule.action,
    }
    for name in ("source", "destination"):
        network = fields[name]
        fields[name] = None if network is None else network.network_address
        fields[f"{name}_length"] = family.bits if network is None else network.prefixlen
    more: dict[str, Any] = {"unknown": None} if rule.has_unknown else {}
    if rule.action is RuleAction.GOTO:
        more["goto"] = "none"
    return {**more, **_RULES[family].write(fields)}
