"""Refusals of any kernel, the real one and the one in memory: of a request, and of one that the port forbids to make.

A backend asks for no route that fits into no message, and for the deletion of none that isn't there.
"""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Iterable

from hostrouting.model.prefixes import numbers
from hostrouting.model.routes import Route

_BYTE_MAX, _UINT32_MAX, WEIGHT_MAX = 0xFF, 0xFFFFFFFF, 256


class NetlinkError(Exception):
    """The kernel's refusal of one request; it never leaves the backend.

    Args:
        errno: its reason.
        message: its own sentence (ext-ACK), or the errno in words.
    """

    def __init__(self, errno: int, message: str = "") -> None:
        self.errno = errno
        self.message: str = message or os.strerror(errno)
        super().__init__(self.message)


def refuse_unwritable(route: Route) -> None:
    """Refuse a route with a number that fits into no message.

    Raises:
        NetlinkError: EINVAL.
    """
    limited = (
        ("table", route.table, 1, _UINT32_MAX),  # 0 isn't one: the kernel would take main (fib_new_table)
        ("metric", route.metric, 0, _UINT32_MAX),
        ("mtu", route.mtu or 0, 0, _UINT32_MAX),
        ("nexthop id", route.nexthop_id or 0, 0, _UINT32_MAX),
        ("protocol", route.protocol, 0, _BYTE_MAX),
        ("scope", route.scope, 0, _BYTE_MAX),
        ("tos", route.tos, 0, _BYTE_MAX),
        *(("weight", hop.weight, 1, WEIGHT_MAX) for hop in route.hops),
    )
    for name, value, least, most in limited:
        if not least <= value <= most:
            raise NetlinkError(errnos.EINVAL, f"{name} {value} is not in {least}-{most}")


class Deletable:
    """The routes that are there, each to be taken once: which of a batch of deletions may be asked for.

    The kernel's own match is looser than what ``RouteBackend.delete`` promises: a metric of 0 is any metric, and a
    device without a gateway is that device with any gateway (fib_nh_match in net/ipv4/fib_semantics.c). Asking for a
    route that isn't there could so take another one away. So the tables are read first; only entries with the
    destination of a route to delete are kept, however many others there are.

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
            NetlinkError: it isn't there (ESRCH).
        """
        devs, dev = self._devs.get(_identity(route), []), _first_dev(route)
        if not devs or (dev is not None and dev not in devs):
            raise NetlinkError(errnos.ESRCH, "no such route")
        devs.remove(devs[0] if dev is None else dev)


def _identity(route: Route) -> tuple[object, ...]:
    """All that must match but the device of the first hop; as numbers, which are hashed fast."""
    prefix = numbers(route.destination)
    key = (route.table, *prefix, route.tos, route.metric, route.type, route.protocol, route.nexthop_id)
    # The hops of a nexthop object are its own.
    return key if route.nexthop_id is not None or not route.hops else (*key, route.hops[0].gateway)


def _first_dev(route: Route) -> str | None:
    return route.hops[0].dev if route.hops and route.nexthop_id is None else None
