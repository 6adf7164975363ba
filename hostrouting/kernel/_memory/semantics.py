"""Validate new routes, and update routes when a link changes, as net/ipv4/fib_semantics.c does."""

from __future__ import annotations

import errno as errnos
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

import attrs

from hostrouting.kernel._memory.net import Device, Net, WriteMode, fib_table_insert, info_of
from hostrouting.kernel.fib import BROADCAST
from hostrouting.kernel.refusals import NetlinkError
from hostrouting.kernel.rules import Flow
from hostrouting.model.family import IpAddress
from hostrouting.model.routes import NextHop, Route, RouteType, Scope, Table

# The minimum scope for each route type (fib_props).
_LEAST_SCOPE = {
    RouteType.LOCAL: Scope.HOST,
    RouteType.BROADCAST: Scope.LINK,
    RouteType.ANYCAST: Scope.LINK,
}
_WITHOUT_HOPS = (RouteType.BLACKHOLE, RouteType.UNREACHABLE, RouteType.PROHIBIT, RouteType.THROW)

_ANY = IPv4Address(0)
_MOST_MTU = 65535 - 15  # ip_metrics_convert
_INVALID_GATEWAY = "Nexthop has invalid gateway"


def fib_new_route(net: Net, cfg: Route, how: WriteMode) -> None:
    """Add a route (inet_rtm_newroute).

    Raises:
        NetlinkError: any errno from fib_create_info or fib_table_insert.
    """
    net.tables.setdefault(cfg.table, {})  # tables are never removed
    fib_table_insert(net, fib_create_info(net, cfg), how)


def fib_create_info(net: Net, cfg: Route) -> Route:
    """Validate a route, and return the route as a dump shows it.

    Raises:
        NetlinkError: EINVAL, ENODEV, ENETDOWN, ENETUNREACH, EHOSTUNREACH, or EACCES for a
            prohibited gateway.
    """
    if _LEAST_SCOPE.get(cfg.type, Scope.UNIVERSE) > cfg.scope:
        raise NetlinkError(errnos.EINVAL, "Invalid scope")
    if cfg.nexthop_id is not None:
        raise NetlinkError(errnos.EINVAL, "Nexthop id does not exist")
    # RTA_PREFSRC 0.0.0.0 means no source.
    source = None if cfg.source == _ANY else cfg.source
    hops: tuple[NextHop, ...] = ()
    if cfg.type in _WITHOUT_HOPS:
        _refuse_hops(cfg.hops)
    else:
        hops = _create_hops(net, cfg)
        if source is not None and not _fib_valid_prefsrc(net, cfg, source):
            raise NetlinkError(errnos.EINVAL, "Invalid prefsrc address")
    route = attrs.evolve(
        cfg,
        hops=hops,
        source=source,
        mtu=min(cfg.mtu, _MOST_MTU) if cfg.mtu else None,
    )
    return attrs.evolve(route, hops=_shared_hops(net, route))


def _refuse_hops(hops: tuple[NextHop, ...]) -> None:
    if len(hops) > 1 or any(hop.dev is not None or _gateway_of(hop) for hop in hops):
        why = "Gateway, device and multipath can not be specified for this route type"
        raise NetlinkError(errnos.EINVAL, why)


def _shared_hops(net: Net, route: Route) -> tuple[NextHop, ...]:
    """Return a route's hops with the flags (dead, linkdown) that they have in existing routes.

    Routes with the same attributes share one fib_info, and so the flags of its hops. For most
    routes, these are the flags of new hops. They can differ for a route with several hops or with
    an IPv6 gateway.
    """
    is_gateway6 = any(isinstance(hop.gateway, IPv6Address) for hop in route.hops)
    if len(route.hops) > 1 or is_gateway6:
        info = info_of(route)
        for entries in net.lists():
            for entry in entries:
                if info_of(entry) == info:
                    return entry.hops
    return route.hops


def _create_hops(net: Net, cfg: Route) -> tuple[NextHop, ...]:
    if cfg.scope > Scope.HOST:
        raise NetlinkError(errnos.EINVAL, "Invalid scope")
    wanted = cfg.hops or (NextHop(),)
    if cfg.scope != Scope.HOST:
        return tuple(_fib_check_nh(net, hop, cfg) for hop in wanted)
    if len(wanted) > 1:
        raise NetlinkError(errnos.EINVAL, "Route with host scope can not have multiple nexthops")
    if _gateway_of(wanted[0]):
        raise NetlinkError(errnos.EINVAL, "Route with host scope can not have a gateway")
    if wanted[0].dev is None:
        raise NetlinkError(errnos.ENODEV)
    return (NextHop(net.device(wanted[0].dev).name, None, wanted[0].onlink),)


def _gateway_of(hop: NextHop) -> IpAddress | None:
    # RTA_GATEWAY 0.0.0.0 means no gateway.
    return None if hop.gateway == _ANY else hop.gateway


def _fib_check_nh(net: Net, hop: NextHop, cfg: Route) -> NextHop:
    dev = None if hop.dev is None else net.device(hop.dev)
    gateway = _gateway_of(hop)
    # Weights exist only in RTA_MULTIPATH, so a single hop has none.
    weight = hop.weight if len(cfg.hops) > 1 else 1
    if isinstance(gateway, IPv6Address):
        # For IPv6 gateways, the kernel doesn't set RTNH_F_LINKDOWN here.
        return NextHop(_up(dev).name, gateway, hop.onlink, weight)
    if gateway is None:
        if hop.onlink:
            raise NetlinkError(
                errnos.EINVAL,
                "Invalid flags for nexthop - PERVASIVE and ONLINK can not be set",
            )
        found = _up(dev)
    elif hop.onlink:
        found = _fib_check_onlink(net, dev, gateway, cfg.scope)
    else:
        found = _lookup_gateway(net, Flow.to_gateway(gateway, hop.dev, cfg.scope), cfg.table)
    return NextHop(found.name, gateway, hop.onlink, weight, is_linkdown=not found.has_carrier)


def _up(dev: Device | None) -> Device:
    if dev is None:
        raise NetlinkError(errnos.ENODEV, "Nexthop device required")
    if not dev.is_up:
        raise NetlinkError(errnos.ENETDOWN, "Nexthop device is not up")
    return dev


def _fib_check_onlink(
    net: Net,
    dev: Device | None,
    gateway: IpAddress,
    scope: int,
) -> Device:
    if scope >= Scope.LINK:
        raise NetlinkError(errnos.EINVAL, "Nexthop has invalid scope")
    dev = _up(dev)
    if inet_addr_type(net, gateway, Table.LOCAL) is not RouteType.UNICAST:
        raise NetlinkError(errnos.EINVAL, _INVALID_GATEWAY)
    return dev


def _lookup_gateway(net: Net, flow: Flow, table: int) -> Device:
    """Return the output device for a gateway: that of the table's entry, or else by the rules."""
    route = net.find(table, flow) if table != Table.MAIN else None
    if route is None or not route.hops:
        decision = net.decide(flow)
        if decision.route is None or decision.errno:
            raise NetlinkError(decision.errno, _INVALID_GATEWAY)
        route = decision.route
    if route.type not in (RouteType.UNICAST, RouteType.LOCAL):
        raise NetlinkError(errnos.EINVAL, _INVALID_GATEWAY)
    hop = net.hop(route, flow) or route.hops[0]
    # The gateway may be a local address on a device that is down.
    return _up(net.device(hop.dev or ""))


def inet_addr_type(net: Net, address: IpAddress, table: int) -> RouteType:
    """Return an address's type in a table, such as local or broadcast (inet_addr_type_table)."""
    if address in (_ANY, BROADCAST):
        return RouteType.BROADCAST
    if address.is_multicast:
        return RouteType.MULTICAST
    found = net.find(table, Flow(address))
    return RouteType.UNICAST if found is None or found.type in _WITHOUT_HOPS else found.type


def _fib_valid_prefsrc(net: Net, cfg: Route, source: IpAddress) -> bool:
    if cfg.type is RouteType.LOCAL and source == cfg.destination.network_address:
        return True
    tables = {Table.LOCAL if cfg.table == Table.MAIN else cfg.table, Table.LOCAL}
    return any(inet_addr_type(net, source, table) is RouteType.LOCAL for table in tables)


def fib_sync_down_dev(
    net: Net,
    dev: Device,
    *,
    is_dead: bool = True,
    force: bool = False,
) -> None:
    """Update the entries through a device that went down, or lost its carrier or last address.

    Args:
        net: the network namespace with the entries.
        dev: the device that the entries use.
        is_dead: True if the device went down; False if it only lost its carrier.
        force: whether routes with scope host change, too: the device has lost its last address.
    """

    def lost(hop: NextHop) -> NextHop:
        return hop if hop.is_dead else attrs.evolve(hop, is_dead=is_dead, is_linkdown=True)

    def changed(route: Route) -> Route | None:
        if route.scope == Scope.HOST and not force:
            return route
        route = _with_hops_of(dev, route, lost)
        return None if route.is_dead else route

    net.change_entries(changed)


def fib_sync_up(net: Net, dev: Device, *, revive: bool) -> None:
    """Mark a device's hops as usable again.

    Args:
        net: the network namespace with the entries.
        dev: the device that is usable again.
        revive: True if the device came up or got an address, so that dead hops are usable. False if
            the device only regained its carrier.
    """

    def back(hop: NextHop) -> NextHop:
        is_linkdown = hop.is_linkdown and revive and not dev.has_carrier
        return attrs.evolve(hop, is_dead=hop.is_dead and not revive, is_linkdown=is_linkdown)

    if dev.is_up:
        net.change_entries(lambda route: _with_hops_of(dev, route, back))


def nexthop_flush_dev(net: Net, dev: Device) -> None:
    """Remove a device's hops from nexthop objects after the device goes down or loses its carrier.

    Also remove the routes that have no hop left.
    """

    def changed(route: Route) -> Route | None:
        if route.nexthop_id is None or not route.hops:
            return route
        left = [hop for hop in route.hops if hop.dev != dev.name]
        if len(left) == 1:
            # For a group with a single member, the kernel shows no weight.
            left = [attrs.evolve(left[0], weight=1)]
        return attrs.evolve(route, hops=tuple(left)) if left else None

    net.change_entries(changed)


def _with_hops_of(dev: Device, route: Route, changed: Callable[[NextHop], NextHop]) -> Route:
    """Apply a function to a route's hops through a device. Leave a nexthop object's hops alone."""
    if route.nexthop_id is not None or not any(hop.dev == dev.name for hop in route.hops):
        return route
    hops = tuple(changed(hop) if hop.dev == dev.name else hop for hop in route.hops)
    return route if hops == route.hops else attrs.evolve(route, hops=hops)
