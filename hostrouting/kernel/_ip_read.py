"""Pure: what ``ip -j -N`` prints, item by item, as values of ``hostrouting.model``; ``_ip_write`` is the way back.

Keys that say nothing to us are passed over; a value that is used must be what ip prints. What ip leaves out without
``-d`` is what it takes for usual: type unicast, table main, protocol boot and scope universe of a route, protocol
kernel of a rule. A flag is a key whose value is null or true. Without ``-N`` ip prints names, of which only those
that don't depend on the host's /etc are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hostrouting.config.schema import below, each, kind
from hostrouting.model.errors import ConfigError
from hostrouting.model.links import Address, Hardware, Link
from hostrouting.model.parsing import parse_address
from hostrouting.model.routes import (
    DEFAULT_DESTINATION,
    NextHop,
    NexthopObject,
    Protocol,
    Route,
    RouteType,
    Scope,
    Table,
)
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.model.text import shown

if TYPE_CHECKING:
    from enum import IntEnum

__all__ = [
    "read_addresses",
    "read_link",
    "read_nexthop",
    "read_route",
    "read_rule",
]

T = TypeVar("T")
D = TypeVar("D")

_BYTE, _UINT32, _INT32 = 0xFF, 0xFFFFFFFF, 0x7FFFFFFF

# ``[32]`` is a link type that ip has no name for, ``ipproto-6`` what -N makes of a protocol (iproute2 6.1).
_NUMBER = re.compile(r"(?:ipproto-)?(0x[0-9a-fA-F]{1,8}|[0-9]{1,10})|\[([0-9]{1,5})\]")

_SPACE = re.compile(r"[ \t\n\v\f\r]")


class _Item:
    """An object that ip has printed; what is wrong with it is collected until ``finish``."""

    def __init__(self, value: object) -> None:
        if not isinstance(value, Mapping):
            raise ConfigError([("", f"expected an object, not {kind(value)}")])
        self._value = value
        self._problems: list[tuple[str, str]] = []

    def has(self, *flags: str) -> bool:
        """Whether one of these flags is set."""
        return any(self._value.get(flag, False) is not False for flag in flags)

    def get(self, key: str, parse: Callable[[Any], T], default: D) -> T | D:
        """The value of a key, or the default if it is missing or wrong."""
        value = self._value.get(key)
        if value is None:
            return default
        try:
            return parse(value)
        except ConfigError as error:
            self._problems += below(key, error.problems)
        except ValueError as error:
            self._problems.append((key, str(error)))
        return default

    def has_more_than(self, keys: Set[str]) -> bool:
        """Whether there are other keys than these."""
        return not self._value.keys() <= keys

    def need(self, key: str, parse: Callable[[Any], T]) -> T:
        """The value of a key; only good after ``finish``."""
        if self._value.get(key) is None:
            self._problems.append((key, "is missing"))
        return cast("T", self.get(key, parse, None))

    def finish(self, value: T) -> T:
        """Return a value if all that it was made of is right, or raise one ``ConfigError``."""
        if self._problems:
            raise ConfigError(self._problems)
        return value


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
    # No name of the kernel's has white space in it (dev_valid_name): who made one up could forge lines of a report.
    if not isinstance(value, str) or not value or _SPACE.search(value):
        raise ValueError(f"{shown(value)} is not a name")
    return value


_index = _number(_INT32)
_uint32 = _number()
_byte = _number(_BYTE)
_length = _number(32)
_table = _number(names=_names(Table))
# More of iproute2's etc/iproute2/rt_protos and rt_scopes.
_MORE_PROTOCOLS = {"gated": 8, "mrt": 10, "dnrouted": 13, "xorp": 14, "ntk": 15, "babel": 42, "openr": 99}
_MORE_PROTOCOLS |= {"isis": 187, "rip": 189, "eigrp": 192}
_protocol = _number(_BYTE, _names(Protocol, **_MORE_PROTOCOLS))
_type = _number(_BYTE, _names(RouteType, nat=10, xresolve=11))
_act = _number(_BYTE, _names(RuleAction))
_scope = _number(_BYTE, _names(Scope, **{"global": 0}))
_ip_protocol = _number(_BYTE, {"icmp": 1, "tcp": 6, "udp": 17, "sctp": 132})
_group = _number(names={"default": 0})
# if_arp.h, as lib/ll_types.c words it
_MORE_HARDWARE = {"ppp": 512, "ipip": 768, "tunnel6": 769, "sit": 776, "gre": 778, "none": 0xFFFE, "void": 0xFFFF}
_hardware = _number(0xFFFF, _names(Hardware, **_MORE_HARDWARE))


def _destination(value: object) -> IPv4Network:
    text = _text(value)
    if text == "default":
        return DEFAULT_DESTINATION
    address, slash, length = text.partition("/")
    if slash and not re.fullmatch(r"[0-9]{1,2}", length):
        raise ValueError(f"{shown(text)} is not an IPv4 prefix")
    return IPv4Network((parse_address(address), _length(length) if slash else 32))


def _any_address(value: object) -> IPv4Address | IPv6Address:
    return IPv6Address(value) if isinstance(value, str) and ":" in value else parse_address(value)


def _via(value: object) -> IPv4Address | IPv6Address:
    item = _Item(value)
    return item.finish(item.need("host", _any_address))


def _words(value: object) -> tuple[str, ...]:
    return each(value, _text)


def _mtu(value: object) -> int | None:
    found = (_Item(metrics) for metrics in each(value, lambda metrics: metrics))
    mtus = [item.finish(item.get("mtu", _uint32, None)) for item in found]
    return next((mtu for mtu in mtus if mtu is not None), None)


# --- links and addresses -----------------------------------------------------------------------------------------


def read_link(value: object) -> Link:
    """One item of ``ip -j -N -d link show``."""
    item = _Item(value)
    flags = item.need("flags", _words) or ()
    return item.finish(
        Link(
            index=item.need("ifindex", _index),
            name=item.need("ifname", _text),
            is_up="UP" in flags,
            has_carrier="LOWER_UP" in flags,
            kind=item.get("linkinfo", _link_kind, None),
            hardware=item.need("link_type", _hardware),
            master=item.get("master", _text, None),
        )
    )


def _link_kind(value: object) -> str | None:
    item = _Item(value)
    return item.finish(item.get("info_kind", _text, None))


def read_addresses(value: object) -> tuple[Address, ...]:
    """One item of ``ip -j -N -4 address show``: the addresses of an interface; those of other families are left out."""
    item = _Item(value)
    dev = item.need("ifname", _text)
    found = item.get("addr_info", lambda some: each(some, lambda one: _read_address(dev, one)), ())
    return item.finish(tuple(address for address in found if address is not None))


def _read_address(dev: str, value: object) -> Address | None:
    item = _Item(value)
    # Some versions of ip leave {} where -4 has filtered an address out.
    if value == {} or item.get("family", _text, "inet") != "inet":
        return None
    return item.finish(
        Address(
            dev=dev,
            local=item.need("local", parse_address),
            prefix_length=item.need("prefixlen", _length),
            peer=item.get("address", parse_address, None),
            metric=item.get("metric", _uint32, 0),
            is_secondary=item.has("secondary"),
            has_prefix_route=not item.has("noprefixroute"),
            scope=item.get("scope", _scope, Scope.UNIVERSE),
        )
    )


# --- routes and nexthop objects ----------------------------------------------------------------------------------


def read_route(value: object) -> Route:
    """One item of ``ip -j -N -4 route show table all``."""
    item = _Item(value)
    type_ = RouteType(item.get("type", _type, RouteType.UNICAST))
    hops = item.get("nexthops", lambda some: each(some, _read_hop), None)
    if hops is None:
        hop = _hop_of(item)
        # A blackhole of a nexthop object shows lo, which no packet sees.
        hops = () if type_ >= RouteType.BLACKHOLE or hop == NextHop() else (hop,)
    return item.finish(
        Route(
            destination=item.need("dst", _destination),
            hops=hops,
            type=type_,
            table=item.get("table", _table, Table.MAIN),
            protocol=item.get("protocol", _protocol, Protocol.BOOT),
            scope=item.get("scope", _scope, Scope.UNIVERSE),
            metric=item.get("metric", _uint32, 0),
            tos=item.get("tos", _byte, 0),
            source=item.get("prefsrc", parse_address, None),
            mtu=item.get("metrics", _mtu, None),
            nexthop_id=item.get("nhid", _uint32, None),
        )
    )


def _read_hop(value: object) -> NextHop:
    item = _Item(value)
    return item.finish(_hop_of(item))


def _hop_of(item: _Item, parse: Callable[[Any], IPv4Address | IPv6Address] = parse_address) -> NextHop:
    flags = item.get("flags", _words, ())
    return NextHop(
        dev=item.get("dev", _text, None),
        gateway=item.get("gateway", parse, None) or item.get("via", _via, None),
        onlink="onlink" in flags,
        weight=item.get("weight", _uint32, 1),
        is_dead="dead" in flags,
        is_linkdown="linkdown" in flags,
    )


def read_nexthop(value: object) -> NexthopObject:
    """One item of ``ip -j -N nexthop show``."""
    item = _Item(value)
    members = item.get("group", lambda some: each(some, _read_member), ())
    hop = _hop_of(item, _any_address)
    return item.finish(NexthopObject(item.need("id", _uint32), None if hop == NextHop() else hop, members))


def _read_member(value: object) -> tuple[int, int]:
    item = _Item(value)
    return item.finish((item.need("id", _uint32), item.get("weight", _uint32, 1)))


# --- rules -------------------------------------------------------------------------------------------------------


_PORTS = ("sport", "sport_start", "dport", "dport_start", "ports")
# Other keys may be selectors; of these "flow_from" and "flow_to" are realms, given and not asked for.
_RULE_KEYS = {
    *("priority", "not", "src", "srclen", "dst", "dstlen", "tos", "dscp", "fwmark", "fwmask", "uid_start", "uid_end"),
    *("iif", "iif_detached", "oif", "oif_detached", "l3mdev", "ipproto", *_PORTS, "sport_end", "dport_end", "table"),
    *("suppress_prefixlen", "suppress_ifgroup", "goto", "unresolved", "nop", "action", "protocol"),
    *("flow_from", "flow_to", "sport_mask", "dport_mask"),
}


def read_rule(value: object) -> Rule:
    """One item of ``ip -j -N -4 rule show``."""
    item = _Item(value)
    action = RuleAction(item.get("action", _act, RuleAction.TO_TABLE))
    if item.has("nop"):
        action = RuleAction.NOP
    elif item.has("goto"):
        action = RuleAction.GOTO
    is_l3mdev = item.has("l3mdev")
    has_table = action is RuleAction.TO_TABLE and not is_l3mdev
    has_uids = item.has("uid_start", "uid_end")
    uids = (item.need("uid_start", _uint32), item.need("uid_end", _uint32)) if has_uids else None
    dscp = item.get("dscp", _number(63), None)
    return item.finish(
        Rule(
            preference=item.get("priority", _uint32, 0),
            action=action,
            table=item.need("table", _table) if has_table else Table.MAIN,
            goto=item.get("goto", _goto, None),
            source=_selector(item, "src"),
            destination=_selector(item, "dst"),
            tos=item.get("tos", _byte, 0) if dscp is None else dscp << 2,
            mark=item.get("fwmark", _uint32, None),
            mark_mask=item.get("fwmask", _uint32, _UINT32),
            iif=item.get("iif", _text, None),
            oif=item.get("oif", _text, None),
            uid_range=uids,
            ip_protocol=item.get("ipproto", _ip_protocol, 0),
            has_ports=item.has(*_PORTS),
            suppress_prefix_length=item.get("suppress_prefixlen", _uint32, None),
            suppress_group=item.get("suppress_ifgroup", _group, None),
            is_inverted=item.has("not"),
            is_l3mdev=is_l3mdev,
            has_unknown=item.has_more_than(_RULE_KEYS),
            protocol=item.get("protocol", _protocol, Protocol.KERNEL),
        )
    )


def _goto(value: object) -> int | None:
    return None if value == "none" else _uint32(value)


def _selector(item: _Item, key: str) -> IPv4Network | None:
    address = item.get(key, lambda text: None if text == "all" else parse_address(text), None)
    length = item.get(f"{key}len", _length, 32)
    # The kernel keeps the host bits that it is told, and compares none of them (fib4_rule_match).
    return None if address is None else IPv4Network((address, length), strict=False)
