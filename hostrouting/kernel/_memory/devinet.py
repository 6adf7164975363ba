"""Links, their addresses and the resulting routes, as in net/ipv4/devinet.c and fib_frontend.c."""

from __future__ import annotations

import contextlib
import errno as errnos
from ipaddress import IPv4Address, IPv4Network

import attrs

from hostrouting.kernel._memory.net import Device, Net, WriteMode, fib_table_delete
from hostrouting.kernel._memory.semantics import (
    fib_new_route,
    fib_sync_down_dev,
    fib_sync_up,
    inet_addr_type,
    nexthop_flush_dev,
)
from hostrouting.kernel.refusals import NetlinkError
from hostrouting.kernel.rules import LOOPBACK
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.links import Address
from hostrouting.model.routes import NextHop, Protocol, Route, RouteType, Scope, Table

_ANY = IPv4Address(0)

# --- links ----------------------------------------------------------------------------------------


def add_device(net: Net, dev: Device) -> None:
    """Register a device.

    Raises:
        NetlinkError: EEXIST.
    """
    if dev.name in net.devices:
        raise NetlinkError(errnos.EEXIST, f"there is an interface named {dev.name!r}")
    net.devices[dev.name] = dev
    net.changes += 1


def set_device_up(net: Net, dev: Device, *, is_up: bool) -> None:
    """Set a device up or down, and update its routes (dev_change_flags)."""
    if dev.is_up == is_up:
        return
    dev.is_up = is_up
    net.changes += 1
    if not is_up:
        fib_sync_down_dev(net, dev)
        nexthop_flush_dev(net, dev)
        return
    if dev.name == LOOPBACK:
        # inetdev_event assigns 127.0.0.1/8 to lo unless lo already has this address.
        with contextlib.suppress(NetlinkError):
            inet_insert_ifa(
                net,
                dev,
                Address(LOOPBACK, IPv4Address("127.0.0.1"), 8, scope=Scope.HOST),
            )
    for ifa in dev.addresses:
        _fib_add_ifaddr(net, dev, ifa)
    fib_sync_up(net, dev, revive=True)


def carrier_changed(net: Net, dev: Device, *, is_plugged: bool) -> None:
    """Plug or unplug the cable.

    While the device is down, its cable has no effect on routes (linkwatch_do_dev).
    """
    if dev.is_plugged == is_plugged:
        return
    dev.is_plugged = is_plugged
    net.changes += 1
    _state_changed(net, dev)


def set_group(net: Net, dev: Device, group: int) -> None:
    """Move a device to an interface group, and update its routes (do_setlink)."""
    dev.group = group
    net.changes += 1
    _state_changed(net, dev)


def _state_changed(net: Net, dev: Device) -> None:
    """Mark the hops through a device according to its carrier (netdev_state_change)."""
    if dev.is_plugged:
        fib_sync_up(net, dev, revive=False)
    elif dev.is_up:
        fib_sync_down_dev(net, dev, is_dead=False)
        nexthop_flush_dev(net, dev)


def delete_device(net: Net, dev: Device) -> None:
    """Unregister a device: set it down, delete its addresses, then its remaining routes.

    Raises:
        NetlinkError: EOPNOTSUPP for the loopback.
    """
    if dev.name == LOOPBACK:
        raise NetlinkError(errnos.EOPNOTSUPP)
    set_device_up(net, dev, is_up=False)
    while dev.addresses:
        _inet_del_ifa(net, dev, dev.addresses[0], keeps_secondaries=True)
    net.change_entries(
        lambda route: None if any(hop.dev == dev.name for hop in route.hops) else route
    )
    del net.devices[dev.name]
    for other in net.devices.values():
        if other.master == dev.name:
            other.master = None
    net.changes += 1


# --- addresses ------------------------------------------------------------------------------------


def inet_insert_ifa(net: Net, dev: Device, ifa: Address) -> None:
    """Add an address to a device.

    The address is secondary if the device already has an address in the same subnet. The address
    0.0.0.0 is silently ignored.

    Raises:
        NetlinkError: EEXIST, EINVAL.
    """
    if ifa.local == _ANY:
        return
    position = 0
    for behind, other in enumerate(dev.addresses, start=1):
        if not other.is_secondary and ifa.scope <= other.scope:
            position = behind
        if ifa.network == other.network:
            if other.local == ifa.local:
                raise NetlinkError(errnos.EEXIST, "ipv4: Address already assigned")
            if other.scope != ifa.scope:
                raise NetlinkError(errnos.EINVAL, "ipv4: Invalid scope value")
            ifa = attrs.evolve(ifa, is_secondary=True)
    dev.addresses.insert(len(dev.addresses) if ifa.is_secondary else position, ifa)
    net.changes += 1
    _fib_add_ifaddr(net, dev, ifa)
    fib_sync_up(net, dev, revive=True)


def inet_del_ifa(
    net: Net,
    dev: Device,
    local: IpAddress,
    length: int,
) -> None:
    """Remove the first matching address from a device.

    If the address is primary, the secondary addresses in its subnet are removed, too.

    Raises:
        NetlinkError: EADDRNOTAVAIL.
    """
    for ifa in dev.addresses:
        if (ifa.local, ifa.prefix_length) == (local, length):
            _inet_del_ifa(net, dev, ifa, keeps_secondaries=False)
            return
    raise NetlinkError(errnos.EADDRNOTAVAIL, "ipv4: Address not found")


def _inet_del_ifa(
    net: Net,
    dev: Device,
    ifa: Address,
    *,
    keeps_secondaries: bool,
) -> None:
    net.changes += 1
    if not ifa.is_secondary and not keeps_secondaries:
        for other in dev.addresses[dev.addresses.index(ifa) + 1 :]:
            if other.is_secondary and other.network == ifa.network:
                dev.addresses.remove(other)
                _fib_addr_deleted(net, dev, other)
    dev.addresses.remove(ifa)
    _fib_addr_deleted(net, dev, ifa)


# --- the routes of addresses ----------------------------------------------------------------------


def _routes_of(net: Net, dev: Device, ifa: Address) -> dict[str, Route]:
    """Return an address's local route, and its connected and broadcast routes, if it has any."""
    primary = _primary_of(dev, ifa)
    if primary is None:
        return {}
    routes = {"local": _kernel_route(dev, primary, RouteType.LOCAL, IPv4Network(ifa.local))}
    first = ifa.network.network_address
    # ipv4_is_zeronet matches only 0.0.0.0, not all of 0.0.0.0/8.
    if ifa.is_secondary or first == _ANY or (first == ifa.local and ifa.prefix_length == 32):
        return routes
    if ifa.has_prefix_route:
        kind = RouteType.LOCAL if dev.name == LOOPBACK else RouteType.UNICAST
        routes["connected"] = _kernel_route(dev, primary, kind, ifa.network, ifa.metric)
    if ifa.prefix_length < 31:
        if net.has_network_broadcasts:
            routes["network"] = _kernel_route(dev, primary, RouteType.BROADCAST, IPv4Network(first))
        last = IPv4Network(ifa.network.broadcast_address)
        routes["broadcast"] = _kernel_route(dev, primary, RouteType.BROADCAST, last)
    return routes


def _primary_of(dev: Device, ifa: Address) -> Address | None:
    """Return a primary address itself, or a secondary address's primary one, if there is one."""
    if not ifa.is_secondary:
        return ifa
    return next((other for other in dev.addresses if other.network == ifa.network), None)


def _kernel_route(
    dev: Device,
    primary: Address,
    kind: RouteType,
    destination: IpNetwork,
    metric: int = 0,
) -> Route:
    """Return a route that the kernel creates for an address (fib_magic)."""
    return Route(
        destination=destination,
        hops=(NextHop(dev.name),),
        type=kind,
        table=Table.MAIN if kind is RouteType.UNICAST else Table.LOCAL,
        protocol=Protocol.KERNEL,
        scope=Scope.HOST if kind is RouteType.LOCAL else Scope.LINK,
        metric=metric,
        source=primary.local,
    )


def _fib_add_ifaddr(net: Net, dev: Device, ifa: Address) -> None:
    """Add an address's routes, ignoring errors. If the device is down, add only the local route."""
    for what, route in _routes_of(net, dev, ifa).items():
        if dev.is_up or what == "local":
            with contextlib.suppress(NetlinkError):
                fib_new_route(net, route, WriteMode.APPEND)


def _fib_addr_deleted(net: Net, dev: Device, ifa: Address) -> None:
    """Delete the routes of a deleted address that no other address needs.

    If this was the device's last address, all of its routes are deleted (fib_inetaddr_event,
    NETDEV_DOWN).
    """
    needed = [route for other in dev.addresses for route in _routes_of(net, dev, other).values()]
    gone = {what: route for what, route in _routes_of(net, dev, ifa).items() if route not in needed}
    for route in gone.values():
        with contextlib.suppress(NetlinkError):
            fib_table_delete(net, attrs.evolve(route, metric=0))
    if "local" in gone and inet_addr_type(net, ifa.local, Table.LOCAL) is not RouteType.LOCAL:
        # In table main, and only there, routes with this source address are removed
        # (fib_sync_down_addr).
        net.change_entries(
            lambda route: None if route.source == ifa.local and route.table == Table.MAIN else route
        )
    if not dev.addresses:
        fib_sync_down_dev(net, dev, force=True)
