"""Routes and look-ups as messages of rtnetlink(7), and back.

Everything that decides which entry a request means is named in it: the kernel takes what is missing for a
wildcard or for zero, and a missing RTA_DST for the default route.
"""

from __future__ import annotations

import errno as errnos
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address

import attrs

from hostrouting.backends import _rtnetlink as rtnl
from hostrouting.model import NextHop, Route, RouteType, Scope

_ANY = "0.0.0.0"  # noqa: S104 - of a destination that the kernel leaves out, nothing is bound


def dump_routes(table: int | None, protocol: int = 0) -> rtnl.Request:
    """Ask for the entries of a table, or of all; the kernel filters (a strict-check socket is needed)."""
    attributes = () if table is None else (("RTA_TABLE", table),)
    return rtnl.Request(rtnl.RTM_GETROUTE, rtnl.DUMP, {"family": socket.AF_INET, "proto": protocol}, attributes)


def lookup_route(address: IPv4Address) -> rtnl.Request:
    """Ask which entry wins for root's packet: without RTA_UID the kernel answers for the uid of the caller."""
    return rtnl.Request(
        rtnl.RTM_GETROUTE,
        rtnl.GET,
        {"family": socket.AF_INET, "dst_len": 32, "flags": rtnl.RTM_F_FIB_MATCH | rtnl.RTM_F_LOOKUP_TABLE},
        (("RTA_DST", str(address)), ("RTA_UID", 0)),
    )


def is_entry(message: rtnl.Message) -> bool:
    """Whether a message of a dump is an entry of the IPv4 FIB, not a cached exception to one."""
    return bool(message["family"] == socket.AF_INET and not message["flags"] & rtnl.RTM_F_CLONED)


def decode_route(message: rtnl.Message, names: rtnl.Names) -> Route:
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


def _decode_hops(message: rtnl.Message, names: rtnl.Names) -> tuple[NextHop, ...]:
    several = message.get_attr("RTA_MULTIPATH")
    if several is not None:
        return tuple(_decode_hop(hop, hop["oif"], hop["hops"] + 1, names) for hop in several)
    oif = message.get_attr("RTA_OIF")
    # A blackhole of a nexthop object shows lo, which no packet sees.
    if message["type"] >= RouteType.BLACKHOLE or (oif is None and _decode_gateway(message) is None):
        return ()
    return (_decode_hop(message, oif, 1, names),)


def _decode_hop(message: rtnl.Message, oif: int | None, weight: int, names: rtnl.Names) -> NextHop:
    flags = message["flags"]
    return NextHop(
        dev=names[oif] if oif else None,
        gateway=_decode_gateway(message),
        onlink=bool(flags & rtnl.RTNH_F_ONLINK),
        weight=weight,
        is_dead=bool(flags & rtnl.RTNH_F_DEAD),
        is_linkdown=bool(flags & rtnl.RTNH_F_LINKDOWN),
    )


def _decode_gateway(message: rtnl.Message) -> IPv4Address | IPv6Address | None:
    gateway = message.get_attr("RTA_GATEWAY")
    if gateway is not None:
        return IPv4Address(gateway)
    via = message.get_attr("RTA_VIA")
    if via is None:
        return None
    return IPv6Address(via["addr"]) if via["family"] == socket.AF_INET6 else IPv4Address(via["addr"])


def new_route(flags: int, route: Route, indexes: rtnl.Indexes) -> rtnl.Request:
    """Ask for a route to be added or replaced, naming all of it.

    Args:
        flags: ADD or REPLACE.
        route: what it is about.
        indexes: of the interfaces.

    Raises:
        RefusedError: an interface doesn't exist, or a number doesn't fit into the message.
    """
    return _request(rtnl.RTM_NEWROUTE, flags, route, route.type, indexes)


def delete_route(route: Route, indexes: rtnl.Indexes) -> rtnl.Request:
    """Ask for a route to be deleted, naming what tells it from others (fib_table_delete, fib_nh_match).

    Raises:
        RefusedError: as for ``new_route``.
    """
    # Scope 0 would mean universe, and ESRCH for a route on the link: only NOWHERE means any. Of several hops the
    # kernel compares the first only; a source or an MTU that isn't named is any.
    named = attrs.evolve(route, scope=Scope.NOWHERE, hops=route.hops[:1], source=None, mtu=None)
    # A blackhole of a nexthop object is shown as one, but stored as unicast; 0 is any type.
    kind = route.type if route.nexthop_id is None else 0
    return _request(rtnl.RTM_DELROUTE, rtnl.DELETE, named, kind, indexes)


def _request(kind: int, flags: int, route: Route, route_type: int, indexes: rtnl.Indexes) -> rtnl.Request:
    _refuse_unwritable(route)
    fields = {
        "family": socket.AF_INET,
        "dst_len": route.destination.prefixlen,
        "tos": route.tos,
        "table": route.table if route.table in rtnl.BYTE else rtnl.RT_TABLE_COMPAT,
        "proto": route.protocol,
        "scope": route.scope,
        "type": route_type,
    }
    attributes: list[tuple[str, object]] = [
        ("RTA_DST", str(route.destination.network_address)),
        ("RTA_TABLE", route.table),
        ("RTA_PRIORITY", route.metric),
    ]
    if route.source is not None:
        attributes.append(("RTA_PREFSRC", str(route.source)))
    if route.mtu is not None:
        attributes.append(("RTA_METRICS", {"attrs": [("RTAX_MTU", route.mtu)]}))
    if route.nexthop_id is not None:
        # Its hops are the object's, and the kernel refuses to be told them too.
        attributes.append(("RTA_NH_ID", route.nexthop_id))
    elif len(route.hops) > 1:
        attributes.append(("RTA_MULTIPATH", [_encode_leg(hop, indexes) for hop in route.hops]))
    elif route.hops:
        hop = route.hops[0]
        fields["flags"] = rtnl.RTNH_F_ONLINK if hop.onlink else 0
        attributes += _encode_gateway(hop)
        if hop.dev is not None:
            attributes.append(("RTA_OIF", indexes[hop.dev]))
    return rtnl.Request(kind, flags, fields, tuple(attributes))


def _encode_leg(hop: NextHop, indexes: rtnl.Indexes) -> dict[str, object]:
    return {
        "oif": indexes[hop.dev] if hop.dev is not None else 0,
        "hops": hop.weight - 1,
        "flags": rtnl.RTNH_F_ONLINK if hop.onlink else 0,
        "attrs": _encode_gateway(hop),
    }


def _encode_gateway(hop: NextHop) -> list[tuple[str, object]]:
    if hop.gateway is None:
        return []
    if isinstance(hop.gateway, IPv4Address):
        return [("RTA_GATEWAY", str(hop.gateway))]
    # RFC 8950. Rebuilt from its bytes: an IPv6 address may carry a zone, which RTA_VIA doesn't.
    return [("RTA_VIA", {"family": socket.AF_INET6, "addr": str(IPv6Address(hop.gateway.packed))})]


def _refuse_unwritable(route: Route) -> None:
    # Table 0 isn't one: the kernel would take main (fib_new_table).
    numbers = (
        ("table", route.table, rtnl.TABLES),
        ("metric", route.metric, rtnl.UINT32),
        ("mtu", route.mtu or 0, rtnl.UINT32),
        ("nexthop id", route.nexthop_id or 0, rtnl.UINT32),
        ("protocol", route.protocol, rtnl.BYTE),
        ("scope", route.scope, rtnl.BYTE),
        ("tos", route.tos, rtnl.BYTE),
        *(("weight", hop.weight, range(1, 257)) for hop in route.hops),
    )
    for name, number, allowed in numbers:
        if number not in allowed:
            raise rtnl.RefusedError(errnos.EINVAL, f"{name} {number} is not in {allowed[0]}-{allowed[-1]}")
