"""Find the IPv4 routes that a host's kernel would refuse to add.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

from hostrouting.kernel._memory.net import Device, Net, WriteMode, fib_table_insert
from hostrouting.kernel._memory.semantics import fib_create_info
from hostrouting.kernel.known_host import KnownHost
from hostrouting.kernel.refusals import NetlinkError
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.kernel.selection import copier
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.integer_prefixes import PrefixSet, ends, numbers
from hostrouting.model.lookups import RouteFailure
from hostrouting.model.routes import Route


def refused_in_memory(known: KnownHost, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
    """Return the IPv4 routes that the in-memory kernel refuses when they are added in order.

    The result is empty in two cases: the host has VRFs, which aren't modelled, or an address has an
    unknown interface.
    """
    devs = {link.name for link in known.links}
    has_vrf = any(link.kind == "vrf" for link in known.links)
    if has_vrf or any(address.dev not in devs for address in known.addresses):
        return ()
    net = _load(known)
    gateways = _gateways(routes)
    # The kernel looks up the gateways of each route. Here, routes that differ only in their
    # destinations share one lookup, until an added route covers a gateway.
    accepted: dict[tuple[object, ...], Callable[[IpNetwork], Route]] = {}
    refused: list[RouteFailure] = []
    for route in routes:
        net.tables.setdefault(route.table, {})
        like = attrs.astuple(route, recurse=False)[1:]  # all but the destination
        try:
            if like not in accepted:
                accepted[like] = copier(fib_create_info(net, route))
            fib_table_insert(net, accepted[like](route.destination), WriteMode.REPLACE)
        except NetlinkError as refusal:
            refused.append(RouteFailure(route, refusal.errno, refusal.message))
        if gateways.overlaps(*ends(numbers(route.destination), gateways.bits)):
            accepted.clear()
    return tuple(refused)


def _gateways(routes: Iterable[Route]) -> PrefixSet:
    bits = Family.IPV4.bits
    gateways = {hop.gateway for route in routes for hop in route.hops}
    return PrefixSet(
        (
            (int(gateway), bits)
            for gateway in gateways
            if gateway is not None and Family.of(gateway) is Family.IPV4
        ),
        bits,
    )


def _load(known: KnownHost) -> Net:
    net = Net(known.kernel)
    net.rules[:] = known.rules
    net.is_merged = known.rules == KERNEL_RULES if known.is_merged is None else known.is_merged
    for link in known.links:
        dev = Device(link.index, link.name, link.kind, link.hardware, link.master, link.is_up)
        # While a device is down, a dump doesn't show whether the cable is plugged in. Assume that
        # it is.
        dev.is_plugged = link.has_carrier or not link.is_up
        net.devices[link.name] = dev
    for address in known.addresses:
        net.device(address.dev).addresses.append(address)
    # Dumps list tables with the same low byte from newest to oldest, so create the tables in
    # reverse order.
    tables = dict.fromkeys(route.table for route in known.routes)
    net.tables.update({table: {} for table in reversed(tables)})
    for route in known.routes:
        net.there(route).append(_as_held(route))
    return net


def _as_held(route: Route) -> Route:
    """Return a dumped route as the kernel holds it.

    The kernel removes a route once all its hops are dead. So if a dump shows all hops as dead, some
    of them must be alive: they have no carrier, and only the sysctl ignore_routes_with_linkdown
    makes the kernel show them as dead. Such hops are returned as alive.
    """
    if not route.is_dead:
        return route
    hops = (attrs.evolve(hop, is_dead=not hop.is_linkdown) for hop in route.hops)
    return attrs.evolve(route, hops=tuple(hops))
