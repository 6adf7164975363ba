"""Afterwards: is every route seen to win?"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hostrouting.model.errors import RouteError
from hostrouting.model.prefixes import numbers, own_addresses
from hostrouting.model.routes import Table
from hostrouting.model.text import shortened
from hostrouting.model.uncollected import uncollected
from hostrouting.routes.proof import unproven

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ipaddress import IPv4Network

    from hostrouting.kernel.port import RouteBackend
    from hostrouting.model.routes import Lookup, Route

__all__ = ["verify_routes"]

_NAMED_MAX = 5


def verify_routes(wanted: Sequence[Route], backend: RouteBackend) -> None:
    """See every route win at an address that no longer prefix covers: by the tables, else by asking the kernel.

    Args:
        wanted: routes of table main that must win.
        backend: the kernel.

    Raises:
        RouteError: one doesn't: it is in the table, but a rule, a lower metric or longer prefixes beat it, and the
            error names the winner; or it has been removed meanwhile.
    """
    if not wanted:
        return
    local = backend.routes(Table.LOCAL)
    with uncollected():
        left = unproven(wanted, rules=backend.rules(), main=backend.routes_by_way(Table.MAIN), local=local)
    if not left:
        return
    probes = {route: address for route, address in left if address is not None}
    answers = backend.lookup(tuple(probes.values()))
    # Of several wanted metrics of a destination the lowest carries the packets; the others stand by.
    keys = {route.key for route in wanted}
    beaten = [
        (route, answer)
        for route, answer in zip(probes, answers, strict=True)
        if not _wins(route, answer) and not _stands_by(route, answer, keys)
    ]
    covered = [route for route, address in left if address is None]
    if not beaten and not covered:
        return
    main = backend.routes(Table.MAIN)
    there = {route.key for route in main}
    losers = [_beaten(route, answer, is_there=route.key in there) for route, answer in beaten]
    losers += _covered(covered, main, local)
    if losers:
        raise RouteError(shortened(losers, "\n", _NAMED_MAX))


def _wins(route: Route, answer: Lookup) -> bool:
    winner = answer.route
    return winner is not None and winner.key == route.key and winner.has_same_next_hops(route)


def _beaten(route: Route, answer: Lookup, *, is_there: bool) -> str:
    if not is_there:
        return f"{route} isn't in the table any more: somebody has just removed it; look at: ip monitor route"
    winner = f"by {answer.route}" if answer.route is not None else f"nowhere ({os.strerror(answer.errno or 0)})"
    advice = "look at: ip -4 rule; ip -4 route show table all"
    return f"{route} is in the table but doesn't win: packets to {answer.address} go {winner}; {advice}"


def _stands_by(route: Route, answer: Lookup, wanted: set[tuple[int, IPv4Network, int, int]]) -> bool:
    winner = answer.route
    return (
        winner is not None
        and winner.key in wanted
        and winner.destination == route.destination
        and winner.metric < route.metric
    )


def _covered(routes: Sequence[Route], main: Sequence[Route], local: Sequence[Route]) -> list[str]:
    """Routes whose every address belongs to longer prefixes; fine as long as ours and own addresses would do."""
    places = [numbers(route.destination) for route in routes]
    locals_ = [numbers(route.destination) for route in local]
    ours = [numbers(route.destination) for route in main if route.is_ours]
    beside_locals, beside_ours = own_addresses((*places, *locals_)), own_addresses((*places, *locals_, *ours))
    losers: list[str] = []
    for route, place in zip(routes, places, strict=True):
        if beside_ours[place] is None and beside_locals[place] is not None:
            continue
        longer = (r for r in (*main, *local) if not r.is_ours and r.tos == 0 and _lies_in(r, route))
        example = next((f", for example {other}" for other in longer), "")
        losers.append(f"{route} is in the table but never wins: longer prefixes cover all of it{example}")
    return losers


def _lies_in(other: Route, route: Route) -> bool:
    longer = other.destination.prefixlen > route.destination.prefixlen
    return longer and other.destination.network_address in route.destination
