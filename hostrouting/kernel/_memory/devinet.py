"""net/ipv4/devinet.c: addresses, and the links that carry them."""

from __future__ import annotations

import contextlib
import errno as errnos

from hostrouting.kernel._memory.device import LOOPBACK, Device, InAddress, RefusedError
from hostrouting.kernel._memory.frontend import (
    fib_add_ifaddr,
    fib_addr_added,
    fib_addr_deleted,
    fib_del_ifaddr,
    fib_disable_ip,
)
from hostrouting.kernel._memory.net import Net
from hostrouting.kernel._memory.semantics import Event, fib_sync_down_dev, fib_sync_up
from hostrouting.model.links import Hardware
from hostrouting.model.routes import Scope

__all__ = [
    "add_device",
    "carrier_changed",
    "delete_device",
    "find_address",
    "inet_del_ifa",
    "inet_insert_ifa",
    "new_net",
    "set_device_up",
]

_LOOPBACK_ADDRESS = 0x7F000001


def new_net(*, promotes_secondaries: bool, ignores_linkdown: bool) -> Net:
    """A namespace as ``unshare -n`` makes it, with ``lo`` up."""
    net = Net(promotes_secondaries, ignores_linkdown)
    add_device(net, Device(net.next_index(), LOOPBACK, hardware=Hardware.LOOPBACK))
    set_device_up(net, net.devices[LOOPBACK], is_up=True)
    return net


def add_device(net: Net, dev: Device) -> None:
    """Register a device.

    Raises:
        RefusedError: EEXIST.
    """
    if dev.name in net.devices:
        raise RefusedError(errnos.EEXIST, f"there is an interface named {dev.name!r}")
    net.devices[dev.name] = dev
    net.changes += 1


def set_device_up(net: Net, dev: Device, *, is_up: bool) -> None:
    """Set IFF_UP (dev_change_flags)."""
    if dev.is_up == is_up:
        return
    dev.is_up = is_up
    net.changes += 1
    if not is_up:
        fib_disable_ip(net, dev, Event.DOWN, force=False)
        return
    if dev.is_loopback:
        # inetdev_event gives lo its address, unless it has that one.
        with contextlib.suppress(RefusedError):
            inet_insert_ifa(net, dev, InAddress(_LOOPBACK_ADDRESS, _LOOPBACK_ADDRESS, 8, scope=Scope.HOST))
    for ifa in dev.addresses:
        fib_add_ifaddr(net, dev, ifa)
    fib_sync_up(net, dev, revive=True)


def carrier_changed(net: Net, dev: Device, *, is_plugged: bool) -> None:
    """Plug the cable in or out; a device that is down doesn't notice (linkwatch_do_dev)."""
    if dev.is_plugged == is_plugged:
        return
    dev.is_plugged = is_plugged
    net.changes += 1
    if not dev.is_up:
        return
    if is_plugged:
        fib_sync_up(net, dev, revive=False)
    else:
        fib_sync_down_dev(net, dev, Event.CHANGE, force=False)


def delete_device(net: Net, dev: Device) -> None:
    """Unregister a device: it goes down, loses its addresses one by one, then all that is left of its routes.

    Raises:
        RefusedError: EOPNOTSUPP for the loopback.
    """
    if dev.is_loopback:
        raise RefusedError(errnos.EOPNOTSUPP, "Operation not supported")
    set_device_up(net, dev, is_up=False)
    while dev.addresses:
        _inet_del_ifa(net, dev, dev.addresses[0], promotes=False, keeps_secondaries=True)
    fib_disable_ip(net, dev, Event.UNREGISTER, force=True)
    del net.devices[dev.name]
    for other in net.devices.values():
        if other.master == dev.name:
            other.master = None
    net.changes += 1


def find_address(dev: Device, local: int, length: int) -> InAddress:
    """The first of a device's addresses with this prefix length.

    Raises:
        RefusedError: EADDRNOTAVAIL.
    """
    for ifa in dev.addresses:
        if (ifa.local, ifa.length) == (local, length):
            return ifa
    raise RefusedError(errnos.EADDRNOTAVAIL, "ipv4: Address not found")


def inet_insert_ifa(net: Net, dev: Device, ifa: InAddress) -> None:
    """Give a device an address: a secondary one if it has another of the same subnet.

    Raises:
        RefusedError: EEXIST, EINVAL.
    """
    position = 0
    for behind, other in enumerate(dev.addresses, start=1):
        if not other.is_secondary and ifa.scope <= other.scope:
            position = behind
        if ifa.has_subnet_of(other):
            if other.local == ifa.local:
                raise RefusedError(errnos.EEXIST, "ipv4: Address already assigned")
            if other.scope != ifa.scope:
                raise RefusedError(errnos.EINVAL, "ipv4: Invalid scope value")
            ifa.is_secondary = True
    dev.addresses.insert(len(dev.addresses) if ifa.is_secondary else position, ifa)
    net.changes += 1
    fib_addr_added(net, dev, ifa)


def inet_del_ifa(net: Net, dev: Device, ifa: InAddress) -> None:
    """Take an address away; with a primary its secondaries go, or the first of them takes its place."""
    _inet_del_ifa(net, dev, ifa, promotes=net.promotes_secondaries, keeps_secondaries=False)


def _inet_del_ifa(net: Net, dev: Device, ifa: InAddress, *, promotes: bool, keeps_secondaries: bool) -> None:
    net.changes += 1
    promoted: InAddress | None = None
    siblings: list[InAddress] = []
    if not ifa.is_secondary and not keeps_secondaries:
        after = dev.addresses[dev.addresses.index(ifa) + 1 :]
        siblings = [other for other in after if other.is_secondary and other.has_subnet_of(ifa)]
        if promotes and siblings:
            promoted = siblings[0]
            # While all addresses are still there: their routes come back with the new source.
            for other in siblings:
                fib_del_ifaddr(net, dev, other, ifa)
        else:
            for other in siblings:
                dev.addresses.remove(other)
                fib_addr_deleted(net, dev, other)
    position = dev.addresses.index(ifa)
    dev.addresses.remove(ifa)
    fib_addr_deleted(net, dev, ifa)
    if promoted is None:
        return
    _move_to_primaries(dev, promoted, ifa, position)
    promoted.is_secondary = False
    fib_addr_added(net, dev, promoted)
    for other in siblings[1:]:
        fib_add_ifaddr(net, dev, other)


def _move_to_primaries(dev: Device, promoted: InAddress, gone: InAddress, position: int) -> None:
    """Put a promoted address behind the last primary that comes after the gone one's place."""
    behind = dev.addresses[position:]
    if behind and behind[0] is promoted:
        # prev_prom is NULL: nothing but the gone one stood before it.
        return
    dev.addresses.remove(promoted)
    for there, other in enumerate(dev.addresses[position:], start=position + 1):
        if not other.is_secondary and gone.scope <= other.scope:
            position = there
    dev.addresses.insert(position, promoted)
