"""Which routes a batch of deletions may ask the kernel for.

Its own match is looser than what ``RouteBackend.delete`` promises: a metric of 0 is any metric, and a device
without a gateway is that device with any gateway (fib_nh_match in net/ipv4/fib_semantics.c). Asking for a route
that isn't there could so take another one away. So the tables are read first; only entries with the destination of a
route to delete are kept, however many others there are.
"""

from __future__ import annotations

import errno as errnos
from typing import TYPE_CHECKING

from hostrouting.kernel.rtnetlink.constants import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.model.routes import Route

__all__ = ["Deletable"]


class Deletable:
    """The routes that are there, each to be taken once.

    Args:
        entries: of the tables concerned.
    """

    def __init__(self, entries: Iterable[Route]) -> None:
        self._entries: dict[tuple[int, ...], list[Route]] = {}
        for entry in entries:
            self._entries.setdefault(_identity(entry), []).append(entry)

    def take(self, route: Route) -> None:
        """Find a route, and count it as gone.

        Raises:
            RefusedError: it isn't there (ESRCH).
        """
        candidates = self._entries.get(_identity(route), [])
        for entry in candidates:
            if _goes_the_same_way(entry, route):
                candidates.remove(entry)
                return
        raise RefusedError(errnos.ESRCH, "no such route")


def _identity(route: Route) -> tuple[int, ...]:
    """Table, destination, tos and metric (``Route.key``), type and protocol, as numbers: they are hashed fast."""
    address = int(route.destination.network_address)
    return (route.table, address, route.destination.prefixlen, route.tos, route.metric, route.type, route.protocol)


def _goes_the_same_way(entry: Route, route: Route) -> bool:
    """Whether both have the same nexthop object or first hop; a hop without a device means any device."""
    if entry.nexthop_id is not None or route.nexthop_id is not None:
        return entry.nexthop_id == route.nexthop_id
    if not entry.hops or not route.hops:
        return not entry.hops and not route.hops
    there, meant = entry.hops[0], route.hops[0]
    return there.gateway == meant.gateway and meant.dev in (None, there.dev)
