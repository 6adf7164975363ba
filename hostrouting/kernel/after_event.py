"""Compute a host's state right after an event, using the in-memory kernel."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address
from typing import NamedTuple

import attrs

from hostrouting.kernel._memory import devinet
from hostrouting.kernel._memory.net import Device, Net, WriteMode, fib_tables_dump
from hostrouting.kernel._memory.semantics import fib_new_route
from hostrouting.kernel.default_routes import unicast_defaults
from hostrouting.kernel.nexthops import with_shares
from hostrouting.kernel.refusals import NetlinkError
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.sources import Sources
from hostrouting.model.answers import RouteFailure
from hostrouting.model.errors import RouteError
from hostrouting.model.events import EventKind, HostEvent
from hostrouting.model.family import IpAddress
from hostrouting.model.links import Address
from hostrouting.model.routes import Protocol, Route, Route6


def after(snapshot: Snapshot, event: HostEvent, restored: Iterable[Route] = ()) -> Snapshot:
    """Return a host's state after an event.

    Args:
        snapshot: a snapshot of the host.
        event: an event on one of the host's interfaces or network managers.
        restored: routes that a program restores afterwards. Routes that the kernel would reject are
            skipped.

    Raises:
        RouteError: the in-memory kernel refuses the event.
    """
    if event.kind is EventKind.EXPIRED:
        return _without_router(snapshot, event)
    try:
        return _dump(snapshot, _after(snapshot, event, restored))
    except NetlinkError as refusal:
        raise RouteError(
            f"the in-memory kernel refuses it: {refusal.message}", errno=refusal.errno
        ) from refusal


def _after(snapshot: Snapshot, event: HostEvent, restored: Iterable[Route]) -> Net:
    net = _load(snapshot)
    if event.kind is EventKind.RESTART:
        managers = [manager for manager in snapshot.managers if manager.name == event.subject]
        net.change_entries(
            lambda route: None if any(manager.drops(route) for manager in managers) else route
        )
    else:
        _meet(net, net.device(event.subject), event, snapshot)
    for route in restored:
        with suppress(NetlinkError):
            fib_new_route(net, route, WriteMode.REPLACE)
    return net


def refusals_in_memory(snapshot: Snapshot, routes: Iterable[Route]) -> tuple[RouteFailure, ...]:
    """Return the IPv4 routes that the in-memory kernel refuses when they are added to a host one after the other.

    The result is empty for a host with VRFs, which aren't modelled, or if the snapshot lacks an
    address's interface.
    """
    known = {link.name for link in snapshot.links}
    if any(link.kind == "vrf" for link in snapshot.links) or any(
        each.dev not in known for each in snapshot.addresses
    ):
        return ()
    net, refusals = _load(snapshot), list[RouteFailure]()
    for route in routes:
        try:
            fib_new_route(net, route, WriteMode.REPLACE)
        except NetlinkError as refusal:
            refusals.append(RouteFailure(route, refusal.errno, refusal.message))
    return tuple(refusals)


def _load(snapshot: Snapshot) -> Net:
    net = Net(snapshot.kernel)
    net.rules[:] = snapshot.rules
    net.is_merged = (
        snapshot.rules == KERNEL_RULES if snapshot.is_merged is None else snapshot.is_merged
    )
    for link in snapshot.links:
        dev = Device(link.index, link.name, link.kind, link.hardware, link.master, link.is_up)
        # For a device that is down, the carrier state is unknown. Assume that the cable is plugged
        # in.
        dev.is_plugged = link.has_carrier or not link.is_up
        net.devices[link.name] = dev
    for address in snapshot.addresses:
        net.device(address.dev).addresses.append(address)
    # Dumps list tables with the same low byte from newest to oldest, so create the tables in
    # reverse order.
    net.tables.update(
        {table: {} for table in reversed(dict.fromkeys(route.table for route in snapshot.routes))}
    )
    for route in snapshot.routes:
        # The kernel removes a route when all its hops die. So if a dump shows all hops as dead,
        # those without a carrier are only ignored because of the sysctl
        # ignore_routes_with_linkdown.
        hops = (
            [attrs.evolve(hop, is_dead=not hop.is_linkdown) for hop in route.hops]
            if route.is_dead
            else route.hops
        )
        net.there(route).append(attrs.evolve(route, hops=tuple(hops)) if route.is_dead else route)
    return net


def _dump(snapshot: Snapshot, net: Net) -> Snapshot:
    links = [
        attrs.evolve(link, is_up=dev.is_up, has_carrier=dev.has_carrier, master=dev.master)
        for link in snapshot.links
        if (dev := net.devices.get(link.name)) is not None
    ]
    ignoring = {*(snapshot.ignoring_linkdown or ())}
    without_carrier = {
        dev.name for dev in net.devices.values() if dev.is_up and not dev.has_carrier
    }
    shown = (_as_shown(route, ignoring) for route in fib_tables_dump(net, None))
    # As the reader for Linux does.
    routes = tuple(with_shares(route, without_carrier.__contains__) for route in shown)
    return with_sources(
        attrs.evolve(snapshot, links=tuple(links), addresses=net.addresses(), routes=routes),
        snapshot,
    )


def with_sources(later: Snapshot, known: Snapshot) -> Snapshot:
    """Return a snapshot with the source addresses of its connections.

    This assumes that interfaces were registered in index order.

    Args:
        later: the host after the event.
        known: the original snapshot. If its sources imply a different registration order, the
            result has no sources.
    """
    before, now = Sources(known.addresses), Sources(later.addresses)
    told: list[tuple[Route, tuple[IpAddress, ...]]] = []
    by_order = (
        before.of(route) == sources for route, sources in known.sources if route.nexthop_id is None
    )
    if later.rules != KERNEL_RULES and all(by_order):
        told = [(route, now.of(route)) for route in later.routes if route.nexthop_id is None]
    return attrs.evolve(later, sources=tuple(told))


def _as_shown(route: Route, ignoring: set[str]) -> Route:
    """Return a route, marked as dead if every hop is dead or ignored for lack of a carrier."""
    if not route.hops or not all(
        hop.is_dead or (hop.is_linkdown and hop.dev in ignoring) for hop in route.hops
    ):
        return route
    return attrs.evolve(route, hops=tuple(attrs.evolve(hop, is_dead=True) for hop in route.hops))


# --- the events -----------------------------------------------------------------------------------


def _meet(net: Net, dev: Device, event: HostEvent, snapshot: Snapshot) -> None:
    if event.kind is EventKind.FLAP:
        devinet.set_device_up(net, dev, is_up=False)
        devinet.set_device_up(net, dev, is_up=True)
    elif event.kind is EventKind.CARRIER_LOST:
        devinet.carrier_changed(net, dev, is_plugged=False)
    elif event.address is None:
        devinet.delete_device(net, dev)
    else:
        devinet.set_device_up(net, dev, is_up=True)
        address = Address(dev.name, event.address.ip, event.address.network.prefixlen)
        old = None if event.gateway is None else lease_of(snapshot, dev.name)
        with suppress(NetlinkError):
            devinet.inet_insert_ifa(
                net, dev, attrs.evolve(address, metric=old.address.metric if old else 0)
            )
        if old is not None:
            _renew(net, dev, event, old)


def _renew(net: Net, dev: Device, event: HostEvent, old: Lease) -> None:
    """Replace a lease's routes and then remove the old address, as networkd does when the address changes."""
    net.change_entries(lambda route: None if route in old.routes else route)
    default = attrs.evolve(
        old.default, hops=(attrs.evolve(old.default.hops[0], gateway=event.gateway),)
    )
    if default.source is not None and event.address is not None:
        default = attrs.evolve(default, source=event.address.ip)
    with suppress(NetlinkError):
        fib_new_route(net, default, WriteMode.APPEND)
    devinet.inet_del_ifa(net, dev, old.address.local, old.address.prefix_length)


def _without_router(snapshot: Snapshot, event: HostEvent) -> Snapshot:
    """Return a snapshot in which the routes that a router has advertised have just expired."""
    if snapshot.ipv6 is None:
        return snapshot

    def later(route: Route) -> Route:
        if not isinstance(route, Route6) or route.expires is None:
            return route
        gone = (event.subject, event.gateway)
        hops = [
            attrs.evolve(hop, is_dead=hop.is_dead or (hop.dev, hop.gateway) == gone)
            for hop in route.hops
        ]
        expires = 0 if all(hop.is_dead for hop in hops) else route.expires
        return attrs.evolve(route, hops=tuple(hops), expires=expires)

    return attrs.evolve(
        snapshot, ipv6=attrs.evolve(snapshot.ipv6, routes=tuple(map(later, snapshot.ipv6.routes)))
    )


class Lease(NamedTuple):
    """An interface's DHCP lease: its address, gateway, default route and all of its routes."""

    address: Address
    gateway: IPv4Address
    default: Route
    routes: list[Route]


def lease_of(snapshot: Snapshot, dev: str) -> Lease | None:
    """Return an interface's lease, or None without a primary address or a DHCP default route via an IPv4 gateway."""
    of_dhcp = [
        route
        for route in snapshot.routes
        if route.protocol == Protocol.DHCP and route.nexthop_id is None
    ]
    routes = [route for route in of_dhcp if [hop.dev for hop in route.hops] == [dev]]
    local = [
        each
        for each in snapshot.addresses
        if each.dev == dev and each.prefix_length and not each.is_secondary
    ]
    for default in unicast_defaults(routes):
        gateway = default.hops[0].gateway
        if local and isinstance(gateway, IPv4Address):
            ranks = [(each.local != default.source, gateway not in each.network) for each in local]
            return Lease(local[ranks.index(min(ranks))], gateway, default, routes)
    return None
