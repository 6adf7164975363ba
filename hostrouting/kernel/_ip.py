"""Convert ``ip -j -N`` output to ``hostrouting.model`` objects and back.

Unknown keys are ignored. Without ``-d``, ip omits defaults: type unicast, table main, protocol boot
and scope universe for routes, and protocol kernel for rules. Flags are keys with the value null or
true. Without ``-N``, ip prints names instead of numbers. Only names that are built into ip are
supported, not names from the host's /etc/iproute2.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import partial
from ipaddress import IPv4Network, IPv6Address, IPv6Network
from itertools import groupby
from typing import Any

import attrs

from hostrouting.config.validation import parse_items
from hostrouting.kernel._json_keys import NEEDED, Key, Keys, is_set, is_unset
from hostrouting.kernel.nexthops import Router, in_order
from hostrouting.model.family import Family
from hostrouting.model.links import Address, Address6, AddressLabel, Hardware, Link, mac_address
from hostrouting.model.parsing import parse_address, parse_any_address, split_prefix
from hostrouting.model.routes import (
    BY_DEVICE,
    DEFAULT_DESTINATION,
    NextHop,
    NexthopObject,
    Preference,
    Protocol,
    Route,
    Route6,
    RouteType,
    Scope,
    Table,
    destination_words,
)
from hostrouting.model.text import shown

_BYTE = 0xFF
UINT32 = 0xFFFFFFFF
_INT32 = 0x7FFFFFFF
UINT64 = 0xFFFFFFFFFFFFFFFF

# ip prints a link type that has no name as ``[32]``. With -N, iproute2 6.1 prints IP protocol 6 as
# ``ipproto-6``.
_NUMBER = re.compile(r"(?:ipproto-)?(0x[0-9a-fA-F]{1,8}|[0-9]{1,10})|\[([0-9]{1,5})\]")

_NAME_MAX = 15  # IFNAMSIZ includes the terminating zero
_SPACE = re.compile(r"[ \t\n\v\f\r]")
_NAME = re.compile(r"[^ \t\n\v\f\r/:]+")

# --- words ----------------------------------------------------------------------------------------


def number_parser(
    most: int = UINT32,
    names: Mapping[str, int] | None = None,
) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, str):
            if names is not None and value in names:
                return names[value]
            match = _NUMBER.fullmatch(value)
            if match is None:
                raise ValueError(
                    f"{shown(value)} is not a number; use ip -N, which prints no names"
                )
            digits = match[1] or match[2]
            value = int(digits, 16 if digits.startswith("0x") else 10)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{shown(value)} is not a whole number")
        if not 0 <= value <= most:
            raise ValueError(f"{shown(value)} is not in 0-{most}")
        return value

    return parse


def names_of(enum: type[IntEnum], **more: int) -> dict[str, int]:
    return {member.name.lower(): int(member) for member in enum} | more


def _text(value: object) -> str:
    # Reject whitespace: the kernel's names never contain any (dev_valid_name), and a crafted name
    # could inject lines into a report.
    if not isinstance(value, str) or not value or _SPACE.search(value):
        raise ValueError(f"{shown(value)} is not a name")
    return value


def interface(value: object) -> str:
    """Parse an interface name, following the kernel's rules (dev_valid_name)."""
    name = value if isinstance(value, str) and _NAME.fullmatch(value) else ""
    if name in ("", ".", "..") or len(name.encode("utf-8", "surrogateescape")) > _NAME_MAX:
        raise ValueError(f"{shown(value)} is not the name of an interface")
    return name


def interface_selector(value: object) -> str:
    """Parse an interface name in a policy rule.

    For rules, the kernel accepts names that no interface can have, such as ``eth0:1``.
    """
    if (
        not isinstance(value, str)
        or not value
        or len(value.encode("utf-8", "surrogateescape")) > _NAME_MAX
    ):
        raise ValueError(f"{shown(value)} is not a name for a rule")
    return value


def address6(value: object) -> IPv6Address:
    """Parse an IPv6 address in ip's notation, which may end in a dotted quad."""
    return prefix6(value, 128).network_address


def prefix6(value: object, length: int | None = None) -> IPv6Network:
    """Parse an IPv6 prefix in ip's notation; with ``length``, a plain address."""
    text = (
        "::/0"
        if value == "default"
        else value
        if isinstance(value, str) and "%" not in value
        else ""
    )
    try:
        return IPv6Network(text if length is None else (text, length))
    except ValueError:
        raise ValueError(
            f"{shown(value)} is not an IPv6 {'prefix' if length is None else 'address'}"
        ) from None


def _texts(value: object) -> tuple[str, ...]:
    return parse_items(value, _text)


def _inside(
    key: str,
    parse: Callable[[Any], Any],
    default: object = None,
) -> Callable[[object], Any]:
    """Return a parser that takes a JSON object, and returns the value of one of its keys."""
    keys = Keys(Key(key, key, parse, default))
    return lambda value: keys.read(value)[key]


uint32 = number_parser()
byte = number_parser(_BYTE)
group = number_parser(names={"default": 0})
table = number_parser(names=names_of(Table))
# More names that are built into ip (lib/rt_names.c).
_MORE_PROTOCOLS = {
    "none": 0,
    "gated": 8,
    "mrt": 10,
    "dnrouted": 13,
    "xorp": 14,
    "ntk": 15,
    "babel": 42,
    "openr": 99,
    "isis": 187,
    "rip": 189,
    "eigrp": 192,
}
protocol = number_parser(_BYTE, names_of(Protocol, **_MORE_PROTOCOLS))
_preference = number_parser(_BYTE, names_of(Preference))
_type = number_parser(_BYTE, names_of(RouteType, nat=10, xresolve=11))
_scope = number_parser(_BYTE, names_of(Scope, **{"global": 0}))
# Numbers from if_arp.h, names from lib/ll_types.c.
_MORE_HARDWARE = {
    "generic": 0,
    "eether": 2,
    "ax25": 3,
    "pronet": 4,
    "chaos": 5,
    "ieee802": 6,
    "arcnet": 7,
    "atalk": 8,
    "dlci": 15,
    "atm": 19,
    "metricom": 23,
    "ieee1394": 24,
    "slip": 256,
    "cslip": 257,
    "slip6": 258,
    "cslip6": 259,
    "rsrvd": 260,
    "adapt": 264,
    "rose": 270,
    "x25": 271,
    "hwx25": 272,
    "can": 280,
    "ppp": 512,
    "hdlc": 513,
    "lapb": 516,
    "ddcmp": 517,
    "rawhdlc": 518,
    "ipip": 768,
    "tunnel6": 769,
    "frad": 770,
    "skip": 771,
    "ltalk": 773,
    "fddi": 774,
    "bif": 775,
    "sit": 776,
    "ip/ddp": 777,
    "gre": 778,
    "pimreg": 779,
    "hippi": 780,
    "ash": 781,
    "econet": 782,
    "irda": 783,
    "fcpp": 784,
    "fcal": 785,
    "fcpl": 786,
    **{f"fcfb{number}": 787 + number for number in range(13)},
    "tr": 800,
    "ieee802.11": 801,
    "ieee802.11/prism": 802,
    "ieee802.11/radiotap": 803,
    "ieee802.15.4": 804,
    "ieee802.15.4/monitor": 805,
    "phonet": 820,
    "phonet_pipe": 821,
    "caif": 822,
    "gre6": 823,
    "netlink": 824,
    "6lowpan": 825,
    "none": 0xFFFE,
    "void": 0xFFFF,
}
_hardware = number_parser(0xFFFF, names_of(Hardware, **_MORE_HARDWARE))


# Parsers for addresses and prefix lengths.
ADDRESS: dict[Family, Callable[[Any], Any]] = {Family.IPV4: parse_address, Family.IPV6: address6}
LENGTH = {family: number_parser(family.bits) for family in Family}


# --- links and addresses --------------------------------------------------------------------------


_FLAGS = ("UP", "LOWER_UP", "POINTOPOINT")
_LINK = Keys(
    Key("flags", "flags", _texts),
    Key("ifindex", "index", number_parser(_INT32)),
    Key("ifname", "name", interface),
    Key("link_type", "hardware", _hardware),
    Key("master", "master", interface, None),
    Key("group", "group", group, 0),
    Key("mtu", "mtu", uint32, 0),
    Key("address", "mac", _text, None),
    Key("linkinfo", "kind", _inside("info_kind", _text), None, lambda name: {"info_kind": name}),
)
_FLAGS6 = ("tentative", "optimistic", "deprecated", "temporary")
_ADDRESSES = {
    family: Keys(
        Key("local", "local", ADDRESS[family]),
        Key("address", "peer", ADDRESS[family], None),
        Key("metric", "metric", uint32, 0),
        Key("prefixlen", "prefix_length", LENGTH[family]),
        Key("scope", "scope", _scope, Scope.UNIVERSE),
        Key("secondary", "is_secondary", is_set, False),
        Key("noprefixroute", "has_prefix_route", is_unset, True, operator.not_),
        *(Key(flag, f"is_{flag}", is_set, False) for flag in _FLAGS6 if family is Family.IPV6),
    )
    for family in Family
}
_INTERFACE = Keys(
    Key("ifname", "dev", interface),
    Key("addr_info", "found", lambda items: parse_items(items, _read_address), ()),
)


def read_link(value: object) -> Link:
    """Parse one item from ``ip -j -N -d link show``."""
    fields = _LINK.read(value)
    flags = fields.pop("flags")
    is_up, has_carrier, is_point_to_point = (word in flags for word in _FLAGS)
    fields["mac"] = mac_address(fields["hardware"], fields["mac"])
    return Link(
        is_up=is_up,
        has_carrier=has_carrier,
        is_point_to_point=is_point_to_point,
        **fields,
    )


def write_link(link: Link) -> dict[str, Any]:
    """Convert a link to the format that ``read_link`` accepts."""
    flags = zip(_FLAGS, (link.is_up, link.has_carrier, link.is_point_to_point), strict=True)
    return _LINK.write(
        {
            "flags": tuple(word for word, is_set in flags if is_set),
            **attrs.asdict(link, recurse=False),
        }
    )


def read_addresses(value: object) -> tuple[Address, ...]:
    """Parse one item from ``ip -j -N address show``, and return the interface's addresses."""
    fields = _INTERFACE.read(value)
    return tuple(made(fields["dev"]) for made in fields["found"] if made is not None)


def _read_address(value: object) -> Callable[[str], Address] | None:
    family = value.get("family", "inet") if isinstance(value, Mapping) else "inet"
    # Some versions of ip print {} for each address that -4 filters out.
    if value == {} or family not in ("inet", "inet6"):
        return None
    if family == "inet":
        return partial(Address, **_ADDRESSES[Family.IPV4].read(value))
    fields = _ADDRESSES[Family.IPV6].read(value)
    # An optimistic address is usable before duplicate address detection finishes.
    fields["is_tentative"] &= not fields.pop("is_optimistic")
    return partial(Address6, **fields)


def write_addresses(addresses: Iterable[Address]) -> list[dict[str, Any]]:
    """Convert addresses to the format that ``read_addresses`` accepts, grouped by interface."""
    return [
        {"ifname": dev, "addr_info": [*map(_write_address, run)]}
        for dev, run in groupby(addresses, lambda address: address.dev)
    ]


def _write_address(address: Address) -> dict[str, Any]:
    family = Family.of(address.local)
    fields = {**attrs.asdict(address, recurse=False), "is_optimistic": False}
    return {
        "family": "inet" if family is Family.IPV4 else "inet6",
        **_ADDRESSES[family].write(fields),
    }


# --- routes and nexthop objects -------------------------------------------------------------------


def _destination(value: object) -> IPv4Network:
    if value == "default":
        return DEFAULT_DESTINATION
    if isinstance(value, str) and "/" not in value:
        return IPv4Network((int(parse_address(value)), 32))
    return IPv4Network(split_prefix(value, Family.IPV4)[1])


def _mtu(value: object) -> int | None:
    return next(
        (mtu for mtu in parse_items(value, _inside("mtu", uint32)) if mtu is not None),
        None,
    )


def _encap(value: object) -> str:
    word = _text(value)
    return "" if word in BY_DEVICE else word


def _seconds(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{shown(value)} is not a whole number of seconds")
    return value


def _hop_keys(parse_gateway: Callable[[Any], Any]) -> tuple[Key, ...]:
    return (
        Key("flags", "flags", _texts, ()),
        Key("gateway", "gateway", parse_gateway, None),
        Key(
            "via",
            "via",
            _inside("host", parse_any_address, NEEDED),
            None,
            lambda via: {"host": str(via)},
        ),
        Key("dev", "dev", interface, None),
        Key("weight", "weight", uint32, 1),
        Key("encap", "encap", _encap, ""),
    )


_NO_HOP = NextHop()
_HOPS = {family: Keys(*_hop_keys(ADDRESS[family])) for family in Family}


def _route_keys(family: Family) -> Keys:
    keys = (
        *_HOPS[family].keys,
        Key("type", "type", lambda value: RouteType(_type(value)), RouteType.UNICAST),
        Key(
            "dst",
            "destination",
            _destination if family is Family.IPV4 else prefix6,
            show=destination_words,
        ),
        Key("tos", "tos", byte, 0),
        Key("nhid", "nexthop_id", uint32, None),
        Key("table", "table", table, Table.MAIN),
        Key("protocol", "protocol", protocol, Protocol.BOOT),
        Key("scope", "scope", _scope, Scope.UNIVERSE),
        Key("prefsrc", "source", ADDRESS[family], None),
        Key("metric", "metric", uint32, 0),
        Key("metrics", "mtu", _mtu, None, lambda mtu: [{"mtu": mtu}]),
        Key(
            "nexthops",
            "hops",
            lambda items: parse_items(items, lambda item: _take_hop(_HOPS[family].read(item))),
            None,
            list,
        ),
    )
    if family is Family.IPV4:
        return Keys(*keys)
    return Keys(
        *keys,
        Key("from", "source_prefix", prefix6, None),
        Key("pref", "preference", lambda value: Preference(_preference(value)), Preference.MEDIUM),
        Key("expires", "expires", _seconds, None),
    )


_ROUTES = {family: _route_keys(family) for family in Family}
_MEMBER = Keys(Key("id", "id", uint32), Key("weight", "weight", uint32, 1))
_NEXTHOP = Keys(
    *_hop_keys(parse_any_address),
    Key("id", "id", uint32),
    Key(
        "group",
        "members",
        lambda items: parse_items(items, lambda item: tuple(_MEMBER.read(item).values())),
        (),
    ),
)


def read_route(value: object, family: Family = Family.IPV4) -> Route:
    """Parse one item from ``ip -j -N route show table all`` for one family."""
    fields = _ROUTES[family].read(_without_tunnel(value))
    hop = _take_hop(fields)
    if fields["hops"] is None:
        # For a blackhole nexthop object, the kernel shows lo as the device, but no packet leaves
        # through lo.
        fields["hops"] = () if fields["type"] >= RouteType.BLACKHOLE or hop == _NO_HOP else (hop,)
    if family is Family.IPV4:
        return Route(**fields)
    is_expired = fields["expires"] is not None and fields["expires"] <= 0
    hops = [attrs.evolve(hop, is_dead=hop.is_dead or is_expired) for hop in fields["hops"]]
    # Ignore the preference of a multipath route, because each next hop has its own preference, and
    # ip prints only one.
    preference = fields["preference"] if len(hops) < 2 else Preference.MEDIUM
    return Route6(**{**fields, "hops": in_order(hops), "preference": preference})


def is_of_other_family(value: object, family: Family) -> bool:
    """Return whether an item of ip's list is a route of the other family."""
    if not isinstance(value, Mapping):
        return False
    destination = str(value.get("dst"))
    if family is Family.IPV6:
        return "." in destination and ":" not in destination
    # A default route has no colon, but only IPv6 routes have the key "pref".
    return ":" in destination or "pref" in value


def _without_tunnel(value: object) -> object:
    """Return a route without its tunnel's destination and tos.

    ip prints the keys "dst" and "tos" for the route, and again for its tunnel. The first "dst" and
    the last "tos" are the route's. For an IPv4 tunnel, ip always prints the tunnel's tos, so a
    single "tos" is the tunnel's.
    """
    if not isinstance(value, Mapping) or "encap" not in value:
        return value
    fields = {**value, "dst": getattr(value, "first", value).get("dst")}
    if value["encap"] == "ip" and "tos" not in getattr(value, "duplicates", ()):
        fields.pop("tos", None)
    return fields


def write_route(route: Route) -> dict[str, Any]:
    """Convert a route to the format that ``read_route`` accepts."""
    family = route.family
    fields = {**attrs.asdict(route, recurse=False), **_hop_fields(_NO_HOP, family), "hops": None}
    single = route.hops[0] if len(route.hops) == 1 else None
    if single is not None and single.weight == 1 and single != _NO_HOP:
        fields |= _hop_fields(single, family)
    elif route.hops:
        fields["hops"] = tuple(_HOPS[family].write(_hop_fields(hop, family)) for hop in route.hops)
    return _ROUTES[family].write(fields)


def _take_hop(fields: dict[str, Any]) -> NextHop:
    dev, gateway, via, flags, weight, encap = map(
        fields.pop,
        ("dev", "gateway", "via", "flags", "weight", "encap"),
    )
    return NextHop(
        dev,
        gateway or via,
        "onlink" in flags,
        weight,
        "dead" in flags,
        "linkdown" in flags,
        encap,
    )


def _hop_fields(hop: NextHop, family: Family) -> dict[str, Any]:
    is_via = hop.gateway is not None and Family.of(hop.gateway) is not family
    fields = {
        "dev": hop.dev,
        "gateway": None,
        "via": None,
        "weight": hop.weight,
        "encap": hop.encap,
    }
    return {
        **fields,
        "via" if is_via else "gateway": hop.gateway,
        "flags": tuple(hop.flag_words().split()),
    }


_LABEL = Keys(
    Key("address", "address", address6),
    Key("prefixlen", "prefix_length", LENGTH[Family.IPV6]),
    Key("ifname", "dev", interface, None),
    Key("label", "label", uint32),
)


def read_label(value: object) -> AddressLabel:
    """Parse one item from ``ip -j addrlabel``."""
    fields = _LABEL.read(value)
    prefix = IPv6Network((fields["address"], fields["prefix_length"]), strict=False)
    return AddressLabel(prefix, fields["label"], fields["dev"])


def write_label(label: AddressLabel) -> dict[str, Any]:
    """Convert an address label to the format that ``read_label`` accepts."""
    prefix = label.prefix
    fields = {"address": prefix.network_address, "prefix_length": prefix.prefixlen}
    return _LABEL.write({**fields, "dev": label.dev, "label": label.label})


_ROUTER = Keys(Key("dev", "dev", interface), Key("dst", "gateway", address6))


def read_router(value: object) -> Router:
    """Parse one item from ``ip -j -6 neigh show``."""
    fields = _ROUTER.read(value)
    return fields["dev"], fields["gateway"]


def write_router(router: Router) -> dict[str, Any]:
    """Convert a router to the format that ``read_router`` accepts."""
    return _ROUTER.write(dict(zip(("dev", "gateway"), router, strict=True)))


def read_nexthop(value: object) -> NexthopObject:
    """Parse one item from ``ip -j -N nexthop show``."""
    fields = _NEXTHOP.read(value)
    hop = _take_hop(fields)
    return NexthopObject(hop=None if hop == _NO_HOP else hop, **fields)
