"""Put the packets that a fix takes away into words, with what the operator can do about them.

This module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hostrouting.kernel.fib import Fib
from hostrouting.model.family import Family
from hostrouting.overlap._keep import Keeping
from hostrouting.overlap._losses import Loss, LossLine, lines_with_losses, own_addresses
from hostrouting.overlap._state import State
from hostrouting.overlap.proposals import OFFER, HostSettings


class Caution(NamedTuple):
    """Traffic that a fix moves.

    Args:
        fact: the packets, and where they go after the fix.
        details: how a user can keep the packets where they are, or an empty string.
    """

    fact: str
    details: str = ""

    def __str__(self) -> str:
        return f"{self.fact}; {self.details}" if self.details else self.fact


def cautions_about(
    state: State,
    settings: HostSettings,
    lost: Iterable[Loss],
    after: Fib,
    keeping: Keeping,
) -> Iterator[Caution]:
    """Yield a caution for each kind of traffic that a fix moves.

    Args:
        state: the host's state before the fix.
        settings: the host's DNS servers, and its interfaces with a strict rp_filter.
        lost: the packets that the fix diverts or drops.
        after: the tables after the fix.
        keeping: the interfaces from whose addresses the fix diverts packets.
    """
    for line in lines_with_losses(lost):
        if line.of_neighbours is None:
            yield Caution(line.text)
        else:
            yield _about_neighbours(line, line.of_neighbours, settings, keeping)
    yield from map(Caution, keeping.refused)
    if settings.unread:
        yield Caution(f"what else the fix moves isn't known: {settings.unread}")
    for server in settings.nameservers if state.family is Family.IPV4 else ():
        now = state.fib.lookup(server).route
        then = after.lookup(server).route
        if now is not None and then is not None and now.devs != then.devs:
            moved = f"through {','.join(then.devs)}, not {','.join(now.devs)}"
            yield Caution(f"the node then reaches the DNS server {server} of resolv.conf {moved}")


def _about_neighbours(
    line: LossLine,
    loss: Loss,
    settings: HostSettings,
    keeping: Keeping,
) -> Caution:
    """Return a caution on packets to neighbours that the fix moves, and on how to keep them."""
    devs = loss.neighbours_of
    them = "it" if len(devs) == 1 else "them"
    if keeping.kept.issuperset(devs):
        return Caution(line.text, f"with keep, such packets stay on {them}")
    fact = f"{line.text}{_drop_clause((dev for dev in devs if dev in line.senders), settings)}"
    offers = [keeping.offers[dev] for dev in devs if dev in keeping.offers]
    if not offers:
        return Caution(fact)
    entries = ", ".join(json.dumps(entry.to_mapping()) for entry in offers)
    but = "".join(f", but {each}" for each in keeping.offers_lose)
    own = f"to keep packets from {own_addresses(devs)} on {them}"
    return Caution(fact, f"{own}, {OFFER}: {entries}{but}")


def _drop_clause(devs: Iterable[str], settings: HostSettings) -> str:
    """Return a clause on the interfaces that drop neighbours' packets, or an empty string."""
    strict = ",".join(dev for dev in devs if dev in settings.strict_devs)
    return f", and drops what they send to {strict}, as rp_filter is 1 there" if strict else ""
