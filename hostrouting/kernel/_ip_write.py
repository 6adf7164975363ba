"""Pure: values of ``hostrouting.model`` as ``ip -j -N -d`` would print them, with the keys that ``_ip_read`` reads."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address
from itertools import groupby
from typing import TYPE_CHECKING, Any

from hostrouting.model.routes import DEFAULT_DESTINATION
from hostrouting.model.rules import RuleAction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.model.links import Address, Link
    from hostrouting.model.routes import NextHop, NexthopObject, Route
    from hostrouting.model.rules import Rule

__all__ = ["write_addresses", "write_link", "write_nexthop", "write_route", "write_rule"]

_ALL_BITS = 0xFFFFFFFF


def write_link(link: Link) -> dict[str, Any]:
    """A link as ``read_link`` reads it."""
    flags = (("UP", link.is_up), ("LOWER_UP", link.has_carrier))
    return {
        "ifindex": link.index,
        "ifname": link.name,
        "flags": [word for word, is_set in flags if is_set],
        "link_type": f"[{link.hardware}]",
        **_given(master=link.master, linkinfo=None if link.kind is None else {"info_kind": link.kind}),
    }


def write_addresses(addresses: Iterable[Address]) -> list[dict[str, Any]]:
    """Addresses as ``read_addresses`` reads them, an item for each run of the same interface."""
    return [
        {"ifname": dev, "addr_info": [_write_address(address) for address in run]}
        for dev, run in groupby(addresses, lambda address: address.dev)
    ]


def _write_address(address: Address) -> dict[str, Any]:
    return {
        "family": "inet",
        "local": str(address.local),
        **_given(address=address.peer, metric=address.metric or None),
        "prefixlen": address.prefix_length,
        "scope": f"{address.scope}",
        **_set(secondary=address.is_secondary, noprefixroute=not address.has_prefix_route),
    }


def write_route(route: Route) -> dict[str, Any]:
    """A route as ``read_route`` reads it; every number that ip would show with ``-d`` is there."""
    single = route.hops[0] if len(route.hops) == 1 and _is_plain(route.hops[0]) else None
    return {
        "type": f"{route.type}",
        "dst": _write_destination(route.destination),
        **_given(tos=f"{route.tos:#04x}" if route.tos else None, nhid=route.nexthop_id),
        **(_write_way(single) if single else {}),
        "table": f"{route.table}",
        "protocol": f"{route.protocol}",
        "scope": f"{route.scope}",
        **_given(prefsrc=route.source, metric=route.metric or None),
        "flags": _write_flags(single) if single else [],
        **_given(metrics=None if route.mtu is None else [{"mtu": route.mtu}]),
        **({"nexthops": [_write_hop(hop) for hop in route.hops]} if route.hops and not single else {}),
    }


def _is_plain(hop: NextHop) -> bool:
    return hop.weight == 1 and (hop.dev is not None or hop.gateway is not None)


def _write_destination(network: IPv4Network) -> str:
    if network == DEFAULT_DESTINATION:
        return "default"
    return str(network.network_address) if network.prefixlen == 32 else str(network)


def _write_hop(hop: NextHop) -> dict[str, Any]:
    return {**_write_way(hop), "weight": hop.weight, "flags": _write_flags(hop)}


def _write_way(hop: NextHop) -> dict[str, Any]:
    is_ipv6 = isinstance(hop.gateway, IPv6Address)
    return _given(
        gateway=None if is_ipv6 else hop.gateway,
        via={"family": "inet6", "host": str(hop.gateway)} if is_ipv6 else None,
        dev=hop.dev,
    )


def _write_flags(hop: NextHop) -> list[str]:
    return hop.flag_words().split()


def write_nexthop(nexthop: NexthopObject) -> dict[str, Any]:
    """A nexthop object as ``read_nexthop`` reads it."""
    if nexthop.members:
        return {"id": nexthop.id, "group": [{"id": id_, "weight": weight} for id_, weight in nexthop.members]}
    if nexthop.hop is None:
        return {"id": nexthop.id, "blackhole": None}
    way = _given(gateway=nexthop.hop.gateway, dev=nexthop.hop.dev)
    return {"id": nexthop.id, **way, "flags": _write_flags(nexthop.hop)}


def write_rule(rule: Rule) -> dict[str, Any]:
    """A rule as ``read_rule`` reads it; ``ports`` and ``unknown``, our own, stand for what we know no more of."""
    is_marked = rule.mark is not None
    has_table = rule.action is RuleAction.TO_TABLE and not rule.is_l3mdev
    is_plain = rule.action in (RuleAction.TO_TABLE, RuleAction.GOTO, RuleAction.NOP)
    return {
        "priority": rule.preference,
        **_flag("not", rule.is_inverted),
        **({"src": "all"} if rule.source is None else _write_selector("src", rule.source)),
        **({} if rule.destination is None else _write_selector("dst", rule.destination)),
        **_given(
            tos=f"{rule.tos:#04x}" if rule.tos else None,
            fwmark=f"{rule.mark:#x}" if rule.mark is not None else None,
            fwmask=f"{rule.mark_mask:#x}" if is_marked and rule.mark_mask != _ALL_BITS else None,
            iif=rule.iif,
            oif=rule.oif,
            uid_start=rule.uid_range[0] if rule.uid_range is not None else None,
            uid_end=rule.uid_range[1] if rule.uid_range is not None else None,
            ipproto=f"{rule.ip_protocol}" if rule.ip_protocol else None,
        ),
        **_flag("ports", rule.has_ports),
        **_flag("unknown", rule.has_unknown),
        **_flag("l3mdev", rule.is_l3mdev),
        **_given(
            table=f"{rule.table}" if has_table else None,
            suppress_prefixlen=rule.suppress_prefix_length,
            suppress_ifgroup=None if rule.suppress_group is None else f"{rule.suppress_group}",
            goto=_write_goto(rule),
        ),
        **_flag("nop", rule.action is RuleAction.NOP),
        **({} if is_plain else {"action": f"{rule.action}"}),
        "protocol": f"{rule.protocol}",
    }


def _write_goto(rule: Rule) -> int | str | None:
    if rule.action is not RuleAction.GOTO:
        return None
    return "none" if rule.goto is None else rule.goto


def _write_selector(key: str, network: IPv4Network) -> dict[str, Any]:
    return {key: str(network.network_address), f"{key}len": network.prefixlen}


def _given(**values: object) -> dict[str, Any]:
    """Those that aren't None; addresses as text."""
    return {
        key: str(value) if isinstance(value, IPv4Address | IPv6Address) else value
        for key, value in values.items()
        if value is not None
    }


def _set(**flags: bool) -> dict[str, Any]:
    return {key: True for key, is_set in flags.items() if is_set}


def _flag(key: str, is_set: bool) -> dict[str, Any]:
    return {key: None} if is_set else {}
