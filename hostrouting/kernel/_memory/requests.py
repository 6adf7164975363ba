"""Requests as ``RouteBackend`` takes them: what is judged before the kernel is asked, and then the asking."""

from __future__ import annotations

import errno as errnos
from typing import TYPE_CHECKING

import attrs

from hostrouting.kernel._memory.device import RefusedError
from hostrouting.kernel._memory.frontend import fib_new_route
from hostrouting.kernel._memory.trie import Insert, fib_table_delete
from hostrouting.model.routes import Scope

if TYPE_CHECKING:
    from hostrouting.kernel._memory.net import Net
    from hostrouting.model.routes import NextHop, Route

__all__ = ["delete_route", "new_route"]

_UINT32 = 2**32 - 1
_ECN = 0x03


def _check_request(net: Net, route: Route, hops: tuple[NextHop, ...]) -> None:
    """What is refused before the kernel is asked: numbers that don't fit, and names of no interface.

    Raises:
        RefusedError: EINVAL, ENODEV.
    """
    numbers = (
        ("table", route.table, 1, _UINT32),
        ("metric", route.metric, 0, _UINT32),
        ("mtu", route.mtu or 0, 0, _UINT32),
        ("protocol", route.protocol, 0, 255),
        ("scope", route.scope, 0, 255),
        ("tos", route.tos, 0, 255),
        *(("weight", hop.weight, 1, 256) for hop in route.hops),
    )
    for name, number, least, most in numbers:
        if not least <= number <= most:
            raise RefusedError(errnos.EINVAL, f"{name} {number} is not in {least}-{most}")
    if route.nexthop_id is None:
        for hop in hops:
            if hop.dev is not None:
                net.device(hop.dev)


def new_route(net: Net, route: Route, *, how: Insert) -> None:
    """Add a route, or put it in the place of another.

    Raises:
        RefusedError: as fib_new_route.
    """
    _check_request(net, route, route.hops)
    if route.tos & _ECN:
        raise RefusedError(errnos.EINVAL, "Invalid dsfield (tos): ECN bits must be 0")
    fib_new_route(net, route, how)


def delete_route(net: Net, route: Route) -> None:
    """Delete exactly this route.

    Raises:
        RefusedError: ESRCH, ENODEV, EINVAL.
    """
    _check_request(net, route, route.hops[:1])
    # The kernel's own match is looser than the port's: a metric of 0 is any, no gateway is any.
    if not _is_present(net, route):
        raise RefusedError(errnos.ESRCH, "no such route")
    fib_table_delete(net, attrs.evolve(route, scope=Scope.NOWHERE, hops=route.hops[:1], source=None))


def _is_present(net: Net, route: Route) -> bool:
    table = net.tables.get(route.table)
    if table is None or route.nexthop_id is not None:
        return False
    for alias in table.aliases(route.destination):
        entry = alias.show(ignores_linkdown=net.ignores_linkdown)
        if (
            entry.key == route.key
            and entry.type is route.type
            and entry.protocol == route.protocol
            and _has_first_hop(entry, route)
        ):
            return True
    return False


def _has_first_hop(entry: Route, route: Route) -> bool:
    if not entry.hops or not route.hops:
        return not entry.hops and not route.hops
    there, meant = entry.hops[0], route.hops[0]
    return there.gateway == meant.gateway and meant.dev in (None, there.dev)
