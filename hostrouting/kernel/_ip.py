"""Pure: convert the items that ``ip -j -N`` prints to values of ``hostrouting.model``, and back.

Unknown keys are ignored. A value that is used must be one that ip prints. Without ``-d``, ip omits defaults: for a
route the type unicast, table main, protocol boot and scope universe, and for a rule the protocol kernel. A flag is a
key whose value is null or true. Without ``-N``, ip prints names, and only those that don't depend on the host's /etc
are known here.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from itertools import chain, groupby
from typing import Any

import attrs

from hostrouting.config.schema import each
from hostrouting.kernel._items import NEEDED, Key, Keys, is_set, is_unset
from hostrouting.model.errors import ConfigError
from hostrouting.model.links import Address, Hardware, Link
from hostrouting.model.parsing import parse_address, parse_any_address, split_prefix
from hostrouting.model.routes import (
    BY_DEVICE,
    DEFAULT_DESTINATION,
    NextHop,
    NexthopObject,
    Protocol,
    Route,
    RouteType,
    Scope,
    Table,
    destination_words,
)
from hostrouting.model.rules import ALL_PORTS, Rule, RuleAction
from hostrouting.model.text import shown

_BYTE, _UINT32, _INT32, _UINT64 = 0xFF, 0xFFFFFFFF, 0x7FFFFFFF, 0xFFFFFFFFFFFFFFFF

# ``[32]`` is a link type for which ip has no name, and ``ipproto-6`` is a protocol as ip prints it with -N (iproute2
# 6.1).
_NUMBER = re.compile(r"(?:ipproto-)?(0x[0-9a-fA-F]{1,8}|[0-9]{1,10})|\[([0-9]{1,5})\]")

_NAME_MAX = 15  # IFNAMSIZ includes the terminating zero
_SPACE = re.compile(r"[ \t\n\v\f\r]")
_NAME = re.compile(r"[^ \t\n\v\f\r/:]+")

# --- words -------------------------------------------------------------------------------------------------------


def _number(most: int = _UINT32, names: Mapping[str, int] | None = None) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, str):
            if names is not None and value in names:
                return names[value]
            match = _NUMBER.fullmatch(value)
            if match is None:
                raise ValueError(f"{shown(value)} is not a number; record with ip -N, which prints no names")
            digits = match[1] or match[2]
            value = int(digits, 16 if digits.startswith("0x") else 10)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{shown(value)} is not a whole number")
        if not 0 <= value <= most:
            raise ValueError(f"{value} is not in 0-{most}")
        return value

    return parse


def _names(enum: type[IntEnum], **more: int) -> dict[str, int]:
    return {member.name.lower(): int(member) for member in enum} | more


def _text(value: object) -> str:
    # No name in the kernel contains white space (dev_valid_name). A made-up name could forge lines of a report.
    if not isinstance(value, str) or not value or _SPACE.search(value):
        raise ValueError(f"{shown(value)} is not a name")
    return value


def _interface(value: object) -> str:
    """Parse the name of an interface, of at most 15 bytes, as the kernel allows it (dev_valid_name)."""
    name = value if isinstance(value, str) and _NAME.fullmatch(value) else ""
    if name in ("", ".", "..") or len(name.encode("utf-8", "surrogateescape")) > _NAME_MAX:
        raise ValueError(f"{shown(value)} is not the name of an interface")
    return name


def _texts(value: object) -> tuple[str, ...]:
    return each(value, _text)


def _inside(key: str, parse: Callable[[Any], Any], default: object = None) -> Callable[[object], Any]:
    """Return a parser for an object that has only one relevant key."""
    keys = Keys(Key(key, key, parse, str, default))
    return lambda value: keys.read(value)[key]


_uint32 = _number()
_byte = _number(_BYTE)
_length = _number(32)
_group = _number(names={"default": 0})
_table = _number(names=_names(Table))
_protocol = _number(_BYTE, _names(Protocol))
_type = _number(_BYTE, _names(RouteType, nat=10, xresolve=11))
_action = _number(_BYTE, _names(RuleAction))
_scope = _number(_BYTE, _names(Scope, **{"global": 0}))
_ip_protocol = _number(_BYTE, {"icmp": 1, "tcp": 6, "udp": 17, "sctp": 132})
# The numbers are from if_arp.h, and the words from lib/ll_types.c.
_MORE_HARDWARE = {"ppp": 512, "ipip": 768, "tunnel6": 769, "sit": 776, "gre": 778, "none": 0xFFFE, "void": 0xFFFF}
_hardware = _number(0xFFFF, _names(Hardware, **_MORE_HARDWARE))


# The formats in which ip -N writes numbers, single bytes of a header, and flags.
_digits, _byte_digits, _null = "{:d}".format, "{:#04x}".format, {True: None}.get


# --- links and addresses -----------------------------------------------------------------------------------------


_LINK = Keys(
    Key("flags", "flags", _texts, list),
    Key("ifindex", "index", _number(_INT32), int),
    Key("ifname", "name", _interface, str),
    Key("link_type", "hardware", _hardware, "[{}]".format),
    Key("master", "master", _interface, str, None),
    Key("group", "group", _group, _digits, 0),
    Key("linkinfo", "kind", _inside("info_kind", _text), lambda name: {"info_kind": name}, None),
)
_ADDRESS = Keys(
    Key("local", "local", parse_address, str),
    Key("address", "peer", parse_address, str, None),
    Key("metric", "metric", _uint32, int, 0),
    Key("prefixlen", "prefix_length", _length, int),
    Key("scope", "scope", _scope, _digits, Scope.UNIVERSE, True),
    Key("secondary", "is_secondary", is_set, bool, False),
    Key("noprefixroute", "has_prefix_route", is_unset, operator.not_, True),
)
_ADDRESSES = Keys(
    Key("ifname", "dev", _interface, str),
    Key("addr_info", "found", lambda items: each(items, _read_address), list, ()),
)


def read_link(value: object) -> Link:
    """Read one item of ``ip -j -N -d link show``."""
    fields = _LINK.read(value)
    flags = fields.pop("flags")
    return Link(is_up="UP" in flags, has_carrier="LOWER_UP" in flags, **fields)


def write_link(link: Link) -> dict[str, Any]:
    """Return a link in the form that ``read_link`` reads."""
    flags = (("UP", link.is_up), ("LOWER_UP", link.has_carrier))
    return _LINK.write({"flags": [word for word, is_set in flags if is_set], **attrs.asdict(link, recurse=False)})


def read_addresses(value: object) -> tuple[Address, ...]:
    """Read one item of ``ip -j -N -4 address show``, and return the IPv4 addresses of that interface."""
    fields = _ADDRESSES.read(value)
    return tuple(Address(dev=fields["dev"], **found) for found in fields["found"] if found is not None)


def _read_address(value: object) -> dict[str, Any] | None:
    # Some versions of ip print {} in place of an address that -4 filters out.
    if isinstance(value, Mapping) and (not value or value.get("family", "inet") != "inet"):
        return None
    return _ADDRESS.read(value)


def write_addresses(addresses: Iterable[Address]) -> list[dict[str, Any]]:
    """Return addresses in the form that ``read_addresses`` reads, with one item per run of the same interface."""
    return [
        {
            "ifname": dev,
            "addr_info": [
                {"family": "inet", **_ADDRESS.write(attrs.asdict(address, recurse=False))} for address in run
            ],
        }
        for dev, run in groupby(addresses, lambda address: address.dev)
    ]


# --- routes and nexthop objects ----------------------------------------------------------------------------------


def _destination(value: object) -> IPv4Network:
    if value == "default":
        return DEFAULT_DESTINATION
    if isinstance(value, str) and "/" not in value:
        return IPv4Network((int(parse_address(value)), 32))
    return IPv4Network(split_prefix(value))


def _show_via(gateway: IPv6Address) -> dict[str, str]:
    return {"family": "inet6", "host": str(gateway)}


def _mtu(value: object) -> int | None:
    return next((mtu for mtu in each(value, _inside("mtu", _uint32)) if mtu is not None), None)


def _encap(value: object) -> str:
    word = _text(value)
    return "" if word in BY_DEVICE else word


_NO_HOP = NextHop()
_HOP = Keys(
    Key("flags", "flags", _texts, list, (), True),
    Key("gateway", "gateway", parse_address, str, None),
    Key("via", "via", _inside("host", parse_any_address, NEEDED), _show_via, None),
    Key("dev", "dev", _interface, str, None),
    Key("weight", "weight", _uint32, int, 1),
    Key("encap", "encap", _encap, str, ""),
)
_ROUTE = Keys(
    *_HOP.keys,
    Key("type", "type", lambda value: RouteType(_type(value)), _digits, RouteType.UNICAST, True),
    Key("dst", "destination", _destination, destination_words),
    Key("tos", "tos", _byte, _byte_digits, 0),
    Key("nhid", "nexthop_id", _uint32, int, None),
    Key("table", "table", _table, _digits, Table.MAIN, True),
    Key("protocol", "protocol", _protocol, _digits, Protocol.BOOT, True),
    Key("scope", "scope", _scope, _digits, Scope.UNIVERSE, True),
    Key("prefsrc", "source", parse_address, str, None),
    Key("metric", "metric", _uint32, int, 0),
    Key("metrics", "mtu", _mtu, lambda mtu: [{"mtu": mtu}], None),
    Key("nexthops", "hops", lambda items: each(items, lambda item: _take_hop(_HOP.read(item))), list, None),
)
_MEMBER = Keys(Key("id", "id", _uint32, int), Key("weight", "weight", _uint32, int, 1))
_NEXTHOP = Keys(
    *(key._replace(parse=parse_any_address) if key.key == "gateway" else key for key in _HOP.keys),
    Key("id", "id", _uint32, int),
    Key("group", "members", lambda items: each(items, lambda item: tuple(_MEMBER.read(item).values())), list, ()),
)


def read_route(value: object) -> Route:
    """Read one item of ``ip -j -N -4 route show table all``."""
    fields = _ROUTE.read(_without_tunnel(value))
    hop = _take_hop(fields)
    if fields["hops"] is None:
        # A blackhole route with a nexthop object shows lo, but no packet uses it.
        fields["hops"] = () if fields["type"] >= RouteType.BLACKHOLE or hop == _NO_HOP else (hop,)
    return Route(**fields)


def _without_tunnel(value: object) -> object:
    """Return a route without the destination and tos of its tunnel, which ip prints with the same keys.

    The route's own destination comes first, and its own tos comes last. A tunnel over IPv4 always has a tos.
    """
    if not isinstance(value, Mapping) or "encap" not in value:
        return value
    own = {**value, "dst": getattr(value, "first", value).get("dst")}
    if value["encap"] == "ip" and "tos" not in getattr(value, "duplicates", ()):
        own.pop("tos", None)
    return own


def write_route(route: Route) -> dict[str, Any]:
    """Return a route in the form that ``read_route`` reads, with every number that ip would show with ``-d``."""
    fields = {**attrs.asdict(route, recurse=False), **_hop_fields(_NO_HOP), "hops": None}
    if len(route.hops) == 1 and route.hops[0].weight == 1 and route.hops[0] != _NO_HOP:
        fields |= _hop_fields(route.hops[0])
    elif route.hops:
        fields["hops"] = [{**_HOP.write(_hop_fields(hop)), "weight": hop.weight} for hop in route.hops]
    return _ROUTE.write(fields)


def _take_hop(fields: dict[str, Any]) -> NextHop:
    dev, gateway, via, flags, weight, encap = map(fields.pop, ("dev", "gateway", "via", "flags", "weight", "encap"))
    return NextHop(dev, gateway or via, "onlink" in flags, weight, "dead" in flags, "linkdown" in flags, encap)


def _hop_fields(hop: NextHop) -> dict[str, Any]:
    way = "via" if isinstance(hop.gateway, IPv6Address) else "gateway"
    fields: dict[str, Any] = {"dev": hop.dev, "gateway": None, "via": None, "weight": hop.weight, "encap": hop.encap}
    return {**fields, way: hop.gateway, "flags": tuple(hop.flag_words().split())}


def read_nexthop(value: object) -> NexthopObject:
    """Read one item of ``ip -j -N nexthop show``."""
    fields = _NEXTHOP.read(value)
    hop = _take_hop(fields)
    return NexthopObject(hop=None if hop == _NO_HOP else hop, **fields)


# --- rules -------------------------------------------------------------------------------------------------------


def _selector(value: object) -> IPv4Address | None:
    return None if value == "all" else parse_address(value)


def _suppressed_length(value: object) -> int | None:
    return None if isinstance(value, int) and value < 0 else _uint32(value)


_RULE = Keys(
    Key("priority", "preference", _uint32, int, 0, True),
    Key("not", "is_inverted", is_set, _null, False),
    Key("src", "source", _selector, lambda address: str(address or "all"), None, True),
    Key("srclen", "source_length", _length, int, 32),
    Key("dst", "destination", _selector, str, None),
    Key("dstlen", "destination_length", _length, int, 32),
    Key("tos", "tos", _byte, _byte_digits, 0),
    Key("dscp", "dscp", _number(63), int, None),
    Key("tun_id", "tun_id", _number(_UINT64), int, 0),
    Key("fwmark", "mark", _uint32, hex, None),
    Key("fwmask", "mark_mask", _uint32, hex, _UINT32),
    Key("iif", "iif", _interface, str, None),
    Key("oif", "oif", _interface, str, None),
    Key("uid_start", "first_uid", _uint32, int, None),
    Key("uid_end", "last_uid", _uint32, int, None),
    Key("ipproto", "ip_protocol", _ip_protocol, _digits, 0),
    Key("ports", "has_ports", is_set, _null, False),
    Key("l3mdev", "is_l3mdev", is_set, _null, False),
    Key("table", "table", _table, _digits, None),
    Key("suppress_prefixlen", "suppress_prefix_length", _suppressed_length, int, None),
    Key("suppress_ifgroup", "suppress_group", _group, _digits, None),
    Key("goto", "goto", lambda value: None if value == "none" else _uint32(value), int, None),
    Key("nop", "is_nop", is_set, _null, False),
    Key("action", "action", _action, _digits, RuleAction.TO_TABLE),
    Key("protocol", "protocol", _protocol, _digits, Protocol.KERNEL, True),
)
# The two forms in which ip prints the ports of one end. Only we write "ports".
_PORT, _PORT_RANGES = ("sport", "dport", "ports"), (("sport_start", "sport_end"), ("dport_start", "dport_end"))
# Any other key may be a selector. "flow_from" and "flow_to" aren't selectors, because they set realms.
_RULE_KEYS = {
    *(key.key for key in _RULE.keys),
    *("iif_detached", "oif_detached", *_PORT, *chain.from_iterable(_PORT_RANGES)),
    *("unresolved", "flow_from", "flow_to"),
}


def read_rule(value: object) -> Rule:
    """Read one item of ``ip -j -N -4 rule show``."""
    fields = _RULE.read(value)
    item = value if isinstance(value, Mapping) else {}
    action = RuleAction(fields["action"])
    if fields.pop("is_nop"):
        action = RuleAction.NOP
    elif is_set(item.get("goto", False)):
        action = RuleAction.GOTO
    has_table = action is RuleAction.TO_TABLE and not fields["is_l3mdev"]
    if has_table and fields["table"] is None:
        raise ConfigError([("table", "is missing")])
    uids, dscp = (fields.pop("first_uid"), fields.pop("last_uid")), fields.pop("dscp")
    for name in ("source", "destination"):
        address, length = fields[name], fields.pop(f"{name}_length")
        # The kernel stores the host bits of an address but doesn't compare them (fib4_rule_match).
        fields[name] = None if address is None else IPv4Network((address, length), strict=False)
    return Rule(
        **{
            **fields,
            "action": action,
            "table": fields["table"] if has_table else Table.MAIN,
            "tos": fields["tos"] if dscp is None else dscp << 2,
            "uid_range": uids if None not in uids else None,
            "has_ports": any(is_set(item.get(key, False)) for key in _PORT)
            or any(tuple(map(item.get, keys)) not in (ALL_PORTS, (None, None)) for keys in _PORT_RANGES),
            # TCP makes a lookup before it has a source port.
            "has_unknown": not item.keys() <= _RULE_KEYS
            or uids.count(None) == 1
            or tuple(map(item.get, _PORT_RANGES[0])) == ALL_PORTS,
        }
    )


def write_rule(rule: Rule) -> dict[str, Any]:
    """Return a rule as ``read_rule`` reads it, with our own keys ``ports`` and ``unknown`` for what isn't modelled."""
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
        fields[f"{name}_length"] = 32 if network is None else network.prefixlen
    more: dict[str, Any] = {"unknown": None} if rule.has_unknown else {}
    if rule.action is RuleAction.GOTO:
        more["goto"] = "none"
    return {**more, **_RULE.write(fields)}
