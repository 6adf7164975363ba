"""Pure: which failures of connections stay once the first look-ups are mended, and what mends these.

A mended address has another first answer, so its connections have another source, and may meet other rules.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from hostrouting.kernel.rules import NO_SOURCE
from hostrouting.overlap.coverage import networks_of
from hostrouting.overlap.findings import Unmendable
from hostrouting.overlap.judge import sort_answers
from hostrouting.overlap.reading import ask
from hostrouting.overlap.wording import decided_by, ways_past

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ipaddress import IPv4Address

    from hostrouting.config.overlap import RouteOverlap
    from hostrouting.kernel.fib import Fib
    from hostrouting.model.routes import Lookup, Route
    from hostrouting.overlap.coverage import Tile
    from hostrouting.overlap.judge import Outcome
    from hostrouting.overlap.reading import Reading


def left_of_connections(overlap: RouteOverlap, reading: Reading, mended: Fib) -> tuple[Unmendable, ...]:
    """Judge the mended host again, with its new sources.

    Args:
        overlap: the expected CIDRs.
        reading: the host as it is.
        mended: its tables as they would be.

    Returns:
        What still fails of connections, and of TCP: static routes are for the first look-up of a datagram.
    """
    answers = ask(tuple(reading.answers), reading.rules, reading.addresses, partial(_look_up, mended))
    after = attrs.evolve(reading, routes=mended.routes, answers=answers)
    left: dict[tuple[tuple[str, ...], str], dict[Tile, None]] = {}
    for cidr, outcomes in sort_answers(overlap, after).items():
        for tile in reading.tiling.of(cidr.cidr):
            for outcome in outcomes[tile.question][1:]:
                reason = _reason(outcome, mended, reading.default)
                left.setdefault((outcome.devs, reason), {})[tile] = None
    return tuple(
        Unmendable(networks_of(sorted(tiles, key=lambda tile: tile.first)), devs, reason)
        for (devs, reason), tiles in left.items()
    )


def _look_up(
    fib: Fib, addresses: Sequence[IPv4Address], *, source: IPv4Address | None = None, is_tcp: bool = False
) -> list[Lookup]:
    return [fib.lookup(address, source, is_tcp=is_tcp) for address in addresses]


def _reason(outcome: Outcome, fib: Fib, default: Route) -> str:
    answer = outcome.answer
    rule = fib.decide(answer.lookup.address, answer.source or NO_SOURCE, is_tcp=answer.is_tcp).rule
    whose = "TCP" if answer.source is None else f"connections from {answer.source}"
    if rule is None:
        return f"no policy rule leads {whose} to a route: add one, as: ip rule add preference 32766 lookup main"
    return f"{decided_by(rule)} for {whose}: {ways_past(rule, default)}"
