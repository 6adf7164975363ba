"""Find the routes that a kernel would refuse to add, judging by its tables.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from hostrouting.kernel._memory.net import Device, Net, WriteMode
from hostrouting.kernel._memory.semantics import fib_new_route
from hostrouting.kernel.fib6 import Fib6
from hostrouting.kernel.port import RouteBackend, read_routes
from hostrouting.kernel.refusals import NetlinkError
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.family import Family
from hostrouting.model.lookups import RouteFailure
from hostrouting.model.routes import Route


def refused_routes(
    before: Snapshot, after: RouteBackend, routes: Sequence[Route]
) -> tuple[RouteFailure, ...]:
    """Return the routes that the kernel would refuse to add, judging only by its tables.

    Args:
        before: the host before any of the routes is added.
        after: the host with all of them.
        routes: the routes to add, all of one family, in order.
    """
    if after.family is Family.IPV4:
        return _refused_in_memory(before, routes)
    facts = after.facts()
    fib = Fib6(facts.rules, read_routes(after), facts.addresses, links=facts.links)
    return tuple(fib.refused_hops(routes))


def _refused_in_memory(snapshot: Snapshot, routes: Iterable[Route]) -> tuple[RouteFailure, ...]:
    """Return the IPv4 routes that the in-memory kernel refuses when they are added to a host one after the other.

    The result is empty for a host with VRFs, which aren't modelled, or if the snapshot lacks an
    address's interface.
    """
    known = {link.name for link in snapshot.links}
    has_vrf = any(link.kind == "vrf" for link in snapshot.links)
    if has_vrf or any(address.dev not in known for address in snapshot.addresses):
        return ()
    net = _load(snapshot)
    refused: list[RouteFailure] = []
    for route in routes:
        try:
            fib_new_route(net, route, WriteMode.REPLACE)
        except NetlinkError as refusal:
            refused.append(RouteFailure(route, refusal.errno, refusal.message))
    return tuple(refused)


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
    tables = dict.fromkeys(route.table for route in snapshot.routes)
    net.tables.update({table: {} for table in reversed(tables)})
    for route in snapshot.routes:
        net.there(route).append(_as_held(route))
    return net


def _as_held(route: Route) -> Route:
    """Return a dumped route as the kernel holds it.

    The kernel removes a route when all its hops die. So if a dump shows all hops as dead, those
    without a carrier are only ignored because of the sysctl ignore_routes_with_linkdown.
    """
    if not route.is_dead:
        return route
    hops = (attrs.evolve(hop, is_dead=not hop.is_linkdown) for hop in route.hops)
    return attrs.evolve(route, hops=tuple(hops))
