"""net/ipv4/fib_semantics.c: what a route must be like, and what becomes of routes when links and addresses go."""

from __future__ import annotations

import errno as errnos
from enum import Enum, auto
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

from hostrouting.kernel._memory.device import Device, RefusedError
from hostrouting.kernel._memory.net import FibInfo, Flow, Found, Gateway, Hop, Net
from hostrouting.kernel._memory.rules import fib_lookup
from hostrouting.kernel._memory.trie import fib_table_lookup
from hostrouting.model.routes import NextHop, Route, RouteType, Scope, Table

if TYPE_CHECKING:
    from hostrouting.kernel._memory.net import Answer

__all__ = [
    "Event",
    "fib_create_info",
    "fib_sync_down_addr",
    "fib_sync_down_dev",
    "fib_sync_up",
    "inet_addr_type",
]

# fib_props: the nearest scope that a type may have.
_LEAST_SCOPE = {RouteType.LOCAL: Scope.HOST, RouteType.BROADCAST: Scope.LINK, RouteType.ANYCAST: Scope.LINK}
_WITHOUT_HOPS = (RouteType.BLACKHOLE, RouteType.UNREACHABLE, RouteType.PROHIBIT, RouteType.THROW)

# ip_metrics_convert
_LARGEST_MTU = 65535 - 15

_BROADCAST = IPv4Address("255.255.255.255")
_ANY = IPv4Address(0)
_LOOPBACK6 = IPv6Address("::1")
_INVALID_GATEWAY = "Nexthop has invalid gateway"


class Event(Enum):
    """The NETDEV_* events that routes notice."""

    DOWN = auto()
    CHANGE = auto()
    UNREGISTER = auto()


def fib_create_info(net: Net, cfg: Route) -> FibInfo:
    """The info of a route to be: the one of equal routes that are there, or a new one.

    Raises:
        RefusedError: EINVAL, ENODEV, ENETDOWN, ENETUNREACH, EHOSTUNREACH or a discarding type's errno.
    """
    if _LEAST_SCOPE.get(cfg.type, Scope.UNIVERSE) > cfg.scope:
        raise RefusedError(errnos.EINVAL, "Invalid scope")
    if cfg.nexthop_id is not None:
        raise RefusedError(errnos.EINVAL, "Nexthop id does not exist")
    # RTA_PREFSRC 0.0.0.0 is none.
    source = None if cfg.source == _ANY else cfg.source
    hops: tuple[Hop, ...] = ()
    if cfg.type in _WITHOUT_HOPS:
        if len(cfg.hops) > 1 or any(hop.dev is not None or _gateway_of(hop) for hop in cfg.hops):
            raise RefusedError(errnos.EINVAL, "Gateway, device and multipath can not be specified for this route type")
    else:
        hops = _create_hops(net, cfg)
        if source is not None and not _fib_valid_prefsrc(net, cfg, source):
            raise RefusedError(errnos.EINVAL, "Invalid prefsrc address")
    mtu = min(cfg.mtu, _LARGEST_MTU) if cfg.mtu else None
    onlink = len(cfg.hops) == 1 and cfg.hops[0].onlink
    key = (
        cfg.type,
        cfg.table,
        cfg.protocol,
        cfg.scope,
        cfg.metric,
        source,
        mtu,
        onlink,
        tuple(hop.key for hop in hops),
    )
    return net.infos.get(key) or FibInfo(
        key, cfg.type, cfg.scope, cfg.protocol, cfg.metric, source, mtu, cfg.table, hops
    )


def _create_hops(net: Net, cfg: Route) -> tuple[Hop, ...]:
    if cfg.scope > Scope.HOST:
        raise RefusedError(errnos.EINVAL, "Invalid scope")
    wanted = cfg.hops or (NextHop(),)
    if cfg.scope != Scope.HOST:
        return tuple(_fib_check_nh(net, hop, cfg) for hop in wanted)
    if len(wanted) > 1:
        raise RefusedError(errnos.EINVAL, "Route with host scope can not have multiple nexthops")
    hop = wanted[0]
    if _gateway_of(hop):
        raise RefusedError(errnos.EINVAL, "Route with host scope can not have a gateway")
    if hop.dev is None:
        raise RefusedError(errnos.ENODEV, "No such device")
    return (Hop(net.device(hop.dev), None, hop.onlink, hop.weight, Scope.NOWHERE, is_linkdown=False),)


def _gateway_of(hop: NextHop) -> Gateway | None:
    # RTA_GATEWAY 0.0.0.0 is none; RTA_VIA inet6 :: is one.
    return None if hop.gateway == _ANY else hop.gateway


def _fib_check_nh(net: Net, hop: NextHop, cfg: Route) -> Hop:
    dev = None if hop.dev is None else net.device(hop.dev)
    gateway = _gateway_of(hop)
    if isinstance(gateway, IPv6Address):
        # RTA_VIA has no room for a zone.
        via = IPv6Address(gateway.packed)
        return _hop(hop, _fib_check_nh_v6_gw(dev, via, hop), via, Scope.LINK, sees_carrier=False)
    if gateway is None:
        return _hop(hop, _fib_check_nh_nongw(dev, hop), None, Scope.HOST)
    if hop.onlink:
        return _hop(hop, _fib_check_onlink(net, dev, gateway, cfg.scope), gateway, Scope.LINK)
    found = _lookup_gateway(
        net, Flow(int(gateway), scope=max(cfg.scope + 1, Scope.LINK), oif=dev, ignores_linkstate=True), cfg.table
    )
    if not isinstance(found, Found):
        raise RefusedError(found, _INVALID_GATEWAY)
    if found.alias.info.type not in (RouteType.UNICAST, RouteType.LOCAL):
        raise RefusedError(errnos.EINVAL, _INVALID_GATEWAY)
    # The gateway may be the own address of a device that is down.
    if not found.hop.dev.is_up:
        raise RefusedError(errnos.ENETDOWN, "Network is down")
    return _hop(hop, found.hop.dev, gateway, found.alias.info.scope)


def _hop(hop: NextHop, dev: Device, gateway: Gateway | None, scope: int, *, sees_carrier: bool = True) -> Hop:
    # The check of an IPv6 gateway doesn't take over whether there is carrier.
    return Hop(dev, gateway, hop.onlink, hop.weight, scope, sees_carrier and not dev.has_carrier)


def _fib_check_nh_nongw(dev: Device | None, hop: NextHop) -> Device:
    if hop.onlink:
        raise RefusedError(errnos.EINVAL, "Invalid flags for nexthop - PERVASIVE and ONLINK can not be set")
    if dev is None:
        raise RefusedError(errnos.ENODEV, "No such device")
    if not dev.is_up:
        raise RefusedError(errnos.ENETDOWN, "Device for nexthop is not up")
    return dev


def _fib_check_onlink(net: Net, dev: Device | None, gateway: IPv4Address, scope: int) -> Device:
    if scope >= Scope.LINK:
        raise RefusedError(errnos.EINVAL, "Nexthop has invalid scope")
    dev = _onlink_device(dev)
    if inet_addr_type(net, gateway, Table.LOCAL) is not RouteType.UNICAST:
        raise RefusedError(errnos.EINVAL, _INVALID_GATEWAY)
    return dev


def _onlink_device(dev: Device | None) -> Device:
    if dev is None:
        raise RefusedError(errnos.ENODEV, "Nexthop device required for onlink")
    if not dev.is_up:
        raise RefusedError(errnos.ENETDOWN, "Nexthop device is not up")
    return dev


def _fib_check_nh_v6_gw(dev: Device | None, gateway: IPv6Address, hop: NextHop) -> Device:
    """fib6_nh_init and ip6_validate_gw of net/ipv6/route.c, where the only IPv6 addresses are link-local ones."""
    if hop.onlink:
        dev = _onlink_device(dev)
    if gateway == _LOOPBACK6:
        raise RefusedError(errnos.EINVAL, "Gateway can not be a local address")
    if gateway.is_multicast or gateway.is_unspecified:
        raise RefusedError(errnos.EINVAL, "Invalid gateway address")
    if not gateway.is_link_local and not hop.onlink:
        # There is no IPv6 route that could lead to it.
        raise RefusedError(errnos.EHOSTUNREACH, "No route to host")
    if dev is None:
        raise RefusedError(errnos.EINVAL, "Egress device not specified")
    if dev.is_loopback:
        raise RefusedError(errnos.EINVAL, "Egress device can not be loopback device for this route")
    if not dev.is_up:
        raise RefusedError(errnos.ENETDOWN, "Nexthop device is not up")
    return dev


def _lookup_gateway(net: Net, flow: Flow, table: int) -> Answer:
    """The gateway's own route: by the route's table, and by the rules if that doesn't give one."""
    if table != Table.MAIN and table in net.tables:
        found = fib_table_lookup(net, table, flow)
        if isinstance(found, Found):
            return found
    return fib_lookup(net, flow)


def inet_addr_type(net: Net, address: IPv4Address, table: int) -> RouteType:
    """What kind of address it is, by a table (inet_addr_type_table)."""
    if address in (_ANY, _BROADCAST):
        return RouteType.BROADCAST
    if address.is_multicast:
        return RouteType.MULTICAST
    if table not in net.tables:
        return RouteType.BROADCAST
    found = fib_table_lookup(net, table, Flow(int(address)))
    return found.alias.info.type if isinstance(found, Found) else RouteType.UNICAST


def _fib_valid_prefsrc(net: Net, cfg: Route, source: IPv4Address) -> bool:
    if cfg.type is RouteType.LOCAL and source == cfg.destination.network_address:
        return True
    tables = {Table.LOCAL if cfg.table == Table.MAIN else cfg.table, Table.LOCAL}
    return any(inet_addr_type(net, source, table) is RouteType.LOCAL for table in tables)


def fib_sync_down_addr(net: Net, address: IPv4Address) -> None:
    """Mark the routes of table main that prefer an address as their source; of other tables they stay."""
    for info in net.infos.values():
        if info.source == address and info.table == Table.MAIN:
            info.is_dead = True


def fib_sync_down_dev(net: Net, dev: Device, event: Event, *, force: bool) -> None:
    """Mark what a device takes along.

    Args:
        net: the namespace.
        dev: the device.
        event: what happened to it.
        force: also the routes of host scope: the device's last address is gone, or it is itself.
    """
    for info in net.infos.values():
        if not any(hop.dev is dev for hop in info.hops):
            continue
        dead = 0
        for hop in info.hops:
            if hop.is_dead:
                dead += 1
            elif hop.dev is dev and (force or hop.scope != Scope.NOWHERE):
                hop.is_dead = event is not Event.CHANGE
                hop.is_linkdown = True
                dead += 1
        is_gone = event is Event.UNREGISTER or dead == len(info.hops)
        info.is_dead = info.is_dead or (is_gone and event is not Event.CHANGE)
        info.changed()


def fib_sync_up(net: Net, dev: Device, *, revive: bool) -> None:
    """Bring the hops of a device back.

    Args:
        net: the namespace.
        dev: the device.
        revive: it came up or got an address, so that dead ones live again; else it got carrier.
    """
    if not dev.is_up:
        return
    for info in net.infos.values():
        for hop in info.hops:
            if hop.dev is dev:
                hop.is_dead = hop.is_dead and not revive
                hop.is_linkdown = hop.is_linkdown and revive and not dev.has_carrier
                info.changed()
