"""Afterwards: is every route seen to win?"""

from __future__ import annotations

import os
from bisect import bisect_left
from itertools import takewhile
from typing import TYPE_CHECKING

from hostrouting.backends._attempts import uncollected
from hostrouting.errors import RouteError
from hostrouting.model import Table
from hostrouting.proof import unproven

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ipaddress import IPv4Network

    from hostrouting.backends import RouteBackend
    from hostrouting.model import Lookup, Route

__all__ = ["verify_routes"]

_NAMED_MAX = 5


def verify_routes(wanted: Sequence[Route], backend: RouteBackend) -> None:
    """See every route win at an address that no longer prefix covers: by the tables, else by asking the kernel.

    Args:
        wanted: routes of table main that must win.
        backend: the kernel.

    Raises:
        RouteError: one doesn't: it is in the table, but a rule, a lower metric or longer prefixes beat it. The
            error names the winner.
    """
    if not wanted:
        return
    main, local = backend.routes(Table.MAIN), backend.routes(Table.LOCAL)
    with uncollected():
        left = unproven(wanted, rules=backend.rules(), main=main, local=local)
    if not left:
        return
    probes = {route: address for route, address in left if address is not None}
    answers = backend.lookup(tuple(probes.values()))
    # Of several wanted metrics of a destination the lowest carries the packets; the others stand by.
    keys = {route.key for route in wanted}
    losers = [
        _beaten(route, answer)
        for route, answer in zip(probes, answers, strict=True)
        if not _wins(route, answer) and not _stands_by(route, answer, keys)
    ]
    losers += _covered([route for route, address in left if address is None], (*main, *local))
    if losers:
        rest = len(losers) - _NAMED_MAX
        raise RouteError("\n".join([*losers[:_NAMED_MAX], *([f"and {rest} more"] if rest > 0 else [])]))


def _wins(route: Route, answer: Lookup) -> bool:
    winner = answer.route
    return winner is not None and winner.key == route.key and winner.has_same_next_hops(route)


def _beaten(route: Route, answer: Lookup) -> str:
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


def _covered(routes: Sequence[Route], table: Sequence[Route]) -> list[str]:
    """Routes whose every address belongs to longer prefixes; fine as long as those are all ours."""
    if not routes:
        return []
    others = sorted((r for r in table if not r.is_ours), key=lambda r: (r.destination.network_address, r.destination))
    firsts = [r.destination.network_address for r in others]
    losers: list[str] = []
    for route in routes:
        inside = others[bisect_left(firsts, route.destination.network_address) :]
        within = takewhile(lambda r, d=route.destination: r.destination.network_address in d, inside)  # type: ignore[misc]
        other = next((r for r in within if r.destination.prefixlen > route.destination.prefixlen), None)
        if other is not None:
            losers.append(
                f"{route} is in the table but never wins: longer prefixes cover all of it, for example {other}"
            )
    return losers
