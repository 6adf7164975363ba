"""Tell which traffic a fix takes away, or moves to another interface.

This module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from hostrouting.kernel.fib import Fib
from hostrouting.model.family import Family
from hostrouting.overlap._keep import Keeping
from hostrouting.overlap._losses import Loss, taken_away
from hostrouting.overlap._state import State
from hostrouting.overlap.proposals import OFFER, HostSettings


def cautions(
    state: State,
    settings: HostSettings,
    lost: Iterable[Loss],
    fixed: Fib,
    keeping: Keeping,
) -> Iterator[str]:
    """Yield a line for each kind of traffic that a fix moves.

    Args:
        state: the host's state before the fix.
        settings: the host's DNS servers, and the interfaces that drop packets if the reply would
            leave elsewhere.
        lost: what the fix takes away.
        fixed: the tables after the fix.
        keeping: the interfaces from whose addresses the fix diverts packets.
    """
    yield from taken_away(lost, lambda loss: _about_neighbours(loss, settings, keeping))
    yield from keeping.refused
    if settings.unread:
        yield f"what else the fix moves isn't known: {settings.unread}"
    for server in settings.nameservers if state.family is Family.IPV4 else ():
        now = state.fib.lookup(server).route
        then = fixed.lookup(server).route
        if now is not None and then is not None and now.devs != then.devs:
            moved = f"through {','.join(then.devs)}, not {','.join(now.devs)}"
            yield f"the node then reaches the DNS server {server} of resolv.conf {moved}"


def _about_neighbours(loss: Loss, settings: HostSettings, keeping: Keeping) -> str:
    """Return clauses about the packets that interfaces keep, and those that they drop."""
    devs = loss.neighbours_of
    if keeping.kept.issuperset(devs):
        return ", except from these interfaces' own addresses; with keep, such packets stay on them"
    dropped = _dropped((dev for dev in devs if dev not in keeping.kept), settings)
    offers = [keeping.offers[dev] for dev in devs if dev in keeping.offers]
    if not offers:
        return dropped
    entries = ", ".join(json.dumps(entry.to_mapping()) for entry in offers)
    but = "".join(f", but {line}" for line in keeping.offers_lose)
    return (
        f"{dropped}; {OFFER}: {entries}, and packets from "
        f"these interfaces' own addresses stay on them{but}"
    )


def _dropped(devs: Iterable[str], settings: HostSettings) -> str:
    """Return a clause with the interfaces that drop neighbours' packets, or an empty string."""
    strict = ",".join(dev for dev in devs if dev in settings.strict_devs)
    return f", and drops what they send to {strict}, as rp_filter is 1 there" if strict else ""
