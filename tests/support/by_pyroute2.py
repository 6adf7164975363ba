"""What there is, as pyroute2 decodes it: the other reader that the one by hand is compared with."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import TYPE_CHECKING, Any

from hostrouting.kernel.rtnetlink import constants as rtnl
from hostrouting.model.links import Address, Link
from hostrouting.model.routes import Lookup, NextHop, Route, RouteType, Table
from hostrouting.model.rules import Rule, RuleAction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ANY = "0.0.0.0"
_UNSET = 0xFFFFFFFF


def routes(table: int | None = None) -> tuple[Route, ...]:
    """The entries of a table, or of all."""
    attributes = [] if table is None else [["RTA_TABLE", table]]
    messages = _ask(rtnl.RTM_GETROUTE, rtnl.DUMP, {"family": socket.AF_INET}, attributes)
    names = rtnl.Names()
    return tuple(decode_route(message, names) for message in messages if not message["flags"] & rtnl.RTM_F_CLONED)


def links() -> tuple[Link, ...]:
    """All interfaces."""
    return decode_links(_ask(rtnl.RTM_GETLINK, rtnl.DUMP, {}, []))


def addresses() -> tuple[Address, ...]:
    """All IPv4 addresses."""
    names = rtnl.Names()
    messages = _ask(rtnl.RTM_GETADDR, rtnl.DUMP, {"family": socket.AF_INET}, [])
    return tuple(decode_address(message, names) for message in messages)


def rules() -> tuple[Rule, ...]:
    """All IPv4 rules."""
    return tuple(map(decode_rule, _ask(rtnl.RTM_GETRULE, rtnl.DUMP, {"family": socket.AF_INET}, [])))


def lookup(wanted: Sequence[IPv4Address]) -> tuple[Lookup, ...]:
    """The entry that wins for each address."""
    from pyroute2.netlink.exceptions import NetlinkError

    flags = rtnl.RTM_F_FIB_MATCH | rtnl.RTM_F_LOOKUP_TABLE
    answers = []
    for address in wanted:
        fields = {"family": socket.AF_INET, "dst_len": 32, "flags": flags}
        try:
            (message,) = _ask(rtnl.RTM_GETROUTE, rtnl.GET, fields, [["RTA_DST", str(address)], ["RTA_UID", 0]])
        except NetlinkError as error:
            answers.append(Lookup(address, None, error.code))
        else:
            answers.append(Lookup(address, decode_route(message, rtnl.Names())))
    return tuple(answers)


@contextmanager
def _socket() -> Iterator[Any]:
    from pyroute2 import IPRoute

    with IPRoute(ext_ack=True, strict_check=True, groups=0) as channel:
        channel.register_policy(_classes())
        # Its nlm_request asks for a key that only NetlinkSocket's own constructor sets.
        channel.status["nlm_generator"] = False
        yield channel


def _classes() -> dict[int, Any]:
    """pyroute2's message classes, with the attributes that it doesn't know."""
    from pyroute2.netlink.rtnl.fibmsg import fibmsg
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
    from pyroute2.netlink.rtnl.rtmsg import rtmsg

    numbered = tuple((number, *row) for number, row in enumerate(rtmsg.nla_map))
    route = type("route", (rtmsg,), {"nla_map": (*numbered, (25, "RTA_UID", "uint32"), (30, "RTA_NH_ID", "uint32"))})
    rule = type("rule", (fibmsg,), {"nla_map": (*fibmsg.nla_map, (25, "FRA_DSCP", "uint8"))})
    for extended in (route, rule):
        # A class inherits the compiled table of its parent, if that was used before.
        extended().compile_nla_table()
    return {
        kind: message_class
        for message_class, first in ((ifinfmsg, 16), (ifaddrmsg, 20), (route, 24), (rule, 32))
        for kind in range(first, first + 3)
    }


def _ask(kind: int, flags: int, fields: dict[str, int], attributes: list[list[object]]) -> tuple[Any, ...]:
    message = _classes()[kind]()
    message.update({name: 0 for name, _ in message.fields})
    message.update(fields)
    message["attrs"] = attributes
    with _socket() as channel:
        return tuple(channel.nlm_request(message, kind, flags))


def _name(name: Any) -> Any:
    """pyroute2 decodes the names that are UTF-8 and leaves others as they are."""
    return None if name is None else os.fsdecode(name.encode() if isinstance(name, str) else name)


def decode_route(message: Any, names: rtnl.Names) -> Route:
    """One entry of the FIB, as dumped or as RTM_F_FIB_MATCH shows it."""
    metrics = message.get_attr("RTA_METRICS")
    source = message.get_attr("RTA_PREFSRC")
    return Route(
        destination=IPv4Network((message.get_attr("RTA_DST") or _ANY, message["dst_len"])),
        hops=_decode_hops(message, names),
        type=_decode_type(message["type"]),
        table=message.get_attr("RTA_TABLE") or message["table"],
        protocol=message["proto"],
        scope=message["scope"],
        metric=message.get_attr("RTA_PRIORITY") or 0,
        tos=message["tos"],
        source=IPv4Address(source) if source is not None else None,
        mtu=metrics.get_attr("RTAX_MTU") if metrics is not None else None,
        nexthop_id=message.get_attr("RTA_NH_ID"),
    )


def _decode_type(number: int) -> RouteType:
    try:
        return RouteType(number)
    except ValueError:
        return RouteType.BLACKHOLE  # nat and xresolve: stored, and to a packet EINVAL as well (fib_props)


def _decode_hops(message: Any, names: rtnl.Names) -> tuple[NextHop, ...]:
    several = message.get_attr("RTA_MULTIPATH")
    if several is not None:
        return tuple(_decode_hop(hop, hop["oif"], hop["hops"] + 1, names) for hop in several)
    oif = message.get_attr("RTA_OIF")
    # A blackhole of a nexthop object shows lo, which no packet sees.
    if message["type"] >= RouteType.BLACKHOLE or (oif is None and _decode_gateway(message) is None):
        return ()
    return (_decode_hop(message, oif, 1, names),)


def _decode_hop(message: Any, oif: int | None, weight: int, names: rtnl.Names) -> NextHop:
    flags = message["flags"]
    return NextHop(
        dev=names[oif] if oif else None,
        gateway=_decode_gateway(message),
        onlink=bool(flags & rtnl.RTNH_F_ONLINK),
        weight=weight,
        is_dead=bool(flags & rtnl.RTNH_F_DEAD),
        is_linkdown=bool(flags & rtnl.RTNH_F_LINKDOWN),
    )


def _decode_gateway(message: Any) -> IPv4Address | IPv6Address | None:
    gateway = message.get_attr("RTA_GATEWAY")
    if gateway is not None:
        return IPv4Address(gateway)
    via = message.get_attr("RTA_VIA")
    if via is None:
        return None
    return IPv6Address(via["addr"]) if via["family"] == socket.AF_INET6 else IPv4Address(via["addr"])


def decode_links(messages: tuple[Any, ...]) -> tuple[Link, ...]:
    """All links of a dump, by index."""
    names = {message["index"]: _name(message.get_attr("IFLA_IFNAME")) for message in messages}
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


def decode_address(message: Any, names: rtnl.Names) -> Address:
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


def decode_rule(message: Any) -> Rule:
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
        iif=_name(message.get_attr("FRA_IIFNAME")),
        oif=_name(message.get_attr("FRA_OIFNAME")),
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


def _selector(message: Any, attribute: str, length: str) -> IPv4Network | None:
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
