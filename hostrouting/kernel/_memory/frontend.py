"""net/ipv4/fib_frontend.c: requests for routes, and the routes that follow addresses and links."""

from __future__ import annotations

import contextlib
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

from hostrouting.kernel._memory.device import Device, InAddress, RefusedError
from hostrouting.kernel._memory.semantics import (
    Event,
    fib_create_info,
    fib_sync_down_addr,
    fib_sync_down_dev,
    fib_sync_up,
    inet_addr_type,
)
from hostrouting.kernel._memory.trie import Insert, fib_flush, fib_table_delete, fib_table_insert
from hostrouting.model.routes import NextHop, Protocol, Route, RouteType, Scope, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.kernel._memory.net import Net

__all__ = [
    "fib_add_ifaddr",
    "fib_addr_added",
    "fib_addr_deleted",
    "fib_del_ifaddr",
    "fib_disable_ip",
    "fib_new_route",
]


def fib_new_route(net: Net, cfg: Route, how: Insert) -> None:
    """Add a route (inet_rtm_newroute).

    Raises:
        RefusedError: as fib_create_info and fib_table_insert.
    """
    net.new_table(cfg.table)
    fib_table_insert(net, cfg, fib_create_info(net, cfg), how)


def _append(net: Net, cfg: Route) -> None:
    fib_new_route(net, cfg, Insert.APPEND)


def _fib_magic(
    net: Net,
    command: Callable[[Net, Route], None],
    kind: RouteType,
    destination: tuple[int, int],
    dev: Device,
    primary: InAddress,
    metric: int = 0,
) -> None:
    """Add or delete a route of the kernel's own; refusals are nobody's business."""
    cfg = Route(
        destination=IPv4Network(destination),
        hops=(NextHop(dev.name),),
        type=kind,
        table=Table.MAIN if kind is RouteType.UNICAST else Table.LOCAL,
        protocol=Protocol.KERNEL,
        scope=Scope.HOST if kind is RouteType.LOCAL else Scope.LINK,
        metric=metric,
        source=IPv4Address(primary.local),
    )
    with contextlib.suppress(RefusedError):
        command(net, cfg)


def _connected_type(dev: Device) -> RouteType:
    return RouteType.LOCAL if dev.is_loopback else RouteType.UNICAST


def fib_add_ifaddr(net: Net, dev: Device, ifa: InAddress) -> None:
    """Add the local, connected and broadcast routes of an address."""
    prefix = ifa.address & ifa.mask
    primary = ifa
    if ifa.is_secondary:
        found = dev.by_prefix(prefix, ifa.mask)
        if found is None:
            return
        primary = found
    _fib_magic(net, _append, RouteType.LOCAL, (ifa.local, 32), dev, primary)
    if not dev.is_up or ifa.is_secondary or not _has_subnet(ifa):
        return
    if ifa.has_prefix_route:
        _fib_magic(net, _append, _connected_type(dev), (prefix, ifa.length), dev, primary, ifa.metric)
    if ifa.length < 31:
        _fib_magic(net, _append, RouteType.BROADCAST, (_broadcast(ifa), 32), dev, primary)


def _has_subnet(ifa: InAddress) -> bool:
    prefix = ifa.address & ifa.mask
    # ipv4_is_zeronet: 0.0.0.0, no longer 0/8.
    return prefix != 0 and (prefix != ifa.local or ifa.length < 32)


def _broadcast(ifa: InAddress) -> int:
    return ifa.address | (0xFFFFFFFF & ~ifa.mask)


def fib_del_ifaddr(net: Net, dev: Device, ifa: InAddress, promoting: InAddress | None = None) -> None:
    """Delete the routes of an address, as far as no other address needs them.

    Args:
        net: the namespace.
        dev: the device.
        ifa: the address.
        promoting: the primary that is about to go while ``ifa`` stays (iprim).
    """
    primary = ifa
    has_subnet = False
    if ifa.is_secondary:
        found = dev.by_prefix(ifa.address & ifa.mask, ifa.mask)
        if found is None:
            return
        primary = found
    elif _has_subnet(ifa):
        if ifa.has_prefix_route:
            prefix = (ifa.address & ifa.mask, ifa.length)
            _fib_magic(net, fib_table_delete, _connected_type(dev), prefix, dev, primary)
        has_subnet = True
    needed = _still_needed(dev, ifa, primary, promoting)
    if has_subnet and ifa.length < 31:
        for address in (_broadcast(ifa), ifa.address & ifa.mask):
            if address not in needed.broadcasts:
                _fib_magic(net, fib_table_delete, RouteType.BROADCAST, (address, 32), dev, primary)
    if not needed.local:
        _fib_magic(net, fib_table_delete, RouteType.LOCAL, (ifa.local, 32), dev, primary)
        local = IPv4Address(ifa.local)
        if needed.is_gone and inet_addr_type(net, local, Table.LOCAL) is not RouteType.LOCAL and ifa.local:
            fib_sync_down_addr(net, local)
            fib_flush(net)


class _Needed:
    """What the other addresses of a device still need of a deleted one's routes."""

    def __init__(self) -> None:
        self.local = False
        self.is_gone = True
        self.broadcasts: set[int] = set()


def _still_needed(dev: Device, ifa: InAddress, primary: InAddress, promoting: InAddress | None) -> _Needed:
    needed = _Needed()
    for other in dev.addresses:
        if other is ifa:
            needed.is_gone = False
            continue
        if promoting is not None and other.has_subnet_of(promoting):
            continue
        others_primary = _primary_of(dev, other, primary)
        # Routes of another preferred source aren't shared.
        if others_primary is None or others_primary.local != primary.local:
            continue
        needed.local = needed.local or other.local == ifa.local
        if others_primary is other and other.length < 31 and other.address & other.mask:
            needed.broadcasts |= {_broadcast(other), other.address & other.mask}
    return needed


def _primary_of(dev: Device, ifa: InAddress, primary: InAddress) -> InAddress | None:
    if not ifa.is_secondary:
        return ifa
    return primary if ifa.has_subnet_of(primary) else dev.by_prefix(ifa.address, ifa.mask)


def fib_addr_added(net: Net, dev: Device, ifa: InAddress) -> None:
    """An address is there (fib_inetaddr_event, NETDEV_UP)."""
    fib_add_ifaddr(net, dev, ifa)
    fib_sync_up(net, dev, revive=True)


def fib_addr_deleted(net: Net, dev: Device, ifa: InAddress) -> None:
    """An address is gone (fib_inetaddr_event, NETDEV_DOWN); with the last one everything on the device goes."""
    fib_del_ifaddr(net, dev, ifa)
    if not dev.addresses:
        fib_disable_ip(net, dev, Event.DOWN, force=True)


def fib_disable_ip(net: Net, dev: Device, event: Event, *, force: bool) -> None:
    """Take the routes of a device out."""
    fib_sync_down_dev(net, dev, event, force=force)
    fib_flush(net)
