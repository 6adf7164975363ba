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


class Deletable:
    """The routes that are there, each to be taken once.

    Args:
        entries: of the tables concerned.
    """

    def __init__(self, entries: Iterable[Route]) -> None:
        self._devs: dict[tuple[object, ...], list[str | None]] = {}
        for entry in entries:
            self._devs.setdefault(_identity(entry), []).append(_first_dev(entry))

    def take(self, route: Route) -> None:
        """Find a route, and count it as gone; a hop without a device means any device.

        Raises:
            RefusedError: it isn't there (ESRCH).
        """
        devs, dev = self._devs.get(_identity(route), []), _first_dev(route)
        if not devs or (dev is not None and dev not in devs):
            raise RefusedError(errnos.ESRCH, "no such route")
        devs.remove(devs[0] if dev is None else dev)


def _identity(route: Route) -> tuple[object, ...]:
    """All that must match but the device of the first hop; as numbers, which are hashed fast."""
    destination = route.destination
    prefix = (int(destination.network_address), destination.prefixlen)
    key = (route.table, *prefix, route.tos, route.metric, route.type, route.protocol, route.nexthop_id)
    # The hops of a nexthop object are its own.
    return key if route.nexthop_id is not None or not route.hops else (*key, route.hops[0].gateway)


def _first_dev(route: Route) -> str | None:
    return route.hops[0].dev if route.hops and route.nexthop_id is None else None
