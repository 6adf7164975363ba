"""Pure: the default route that counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.model.routes import Route, RouteType, Table

if TYPE_CHECKING:
    from collections.abc import Iterable


def default_route(routes: Iterable[Route], dev: str | None = None) -> Route | None:
    """The default route that counts: the lowest-metric unicast 0.0.0.0/0 of table main.

    Args:
        routes: entries of any tables, in the kernel's order.
        dev: take only default routes with a live hop on this interface.

    Returns:
        The route; None if there is none with a live hop. Its dead hops, if any, are still in it.
    """
    candidates = [route for route in unicast_defaults(routes) if (dev in route.devs if dev else route.devs)]
    return min(candidates, key=lambda route: route.metric, default=None)


def missing_default_route(routes: Iterable[Route], dev: str | None = None) -> str:
    """Why ``default_route`` finds none, in words.

    Args:
        routes: as for ``default_route``.
        dev: likewise.

    Returns:
        What is missing, with what is there instead.
    """
    on = "" if dev is None else f" on {dev}"
    dead = [route for route in unicast_defaults(routes) if dev is None or any(hop.dev == dev for hop in route.hops)]
    if not dead:
        return f"the default route{on} (table main has no unicast 0.0.0.0/0{on})"
    return f"a live default route{on} (all hops are dead of {dead[0]})"


def unicast_defaults(routes: Iterable[Route]) -> list[Route]:
    """The unicast 0.0.0.0/0 of table main for any tos, be they dead, in the order in which they are given."""
    return [
        route
        for route in routes
        if route.destination.prefixlen == 0
        and route.table == Table.MAIN
        and route.type is RouteType.UNICAST
        and route.tos == 0
    ]
