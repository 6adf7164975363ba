"""Tell which traffic outside of the expected CIDRs a fix moves to another interface.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from shlex import quote

from hostrouting.kernel.fib import Fib
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.integer_prefixes import PrefixIndex, numbers
from hostrouting.model.routes import Route
from hostrouting.model.text import shortened
from hostrouting.overlap._state import State
from hostrouting.overlap.proposals import HostSettings

# A limit for human-readable lines.
_SHOWN_PLACES = 8


def cautions(
    state: State, settings: HostSettings, added: Iterable[Route], fixed: Fib
) -> Iterator[str]:
    """Yield a line for each kind of traffic that a fix moves.

    Args:
        state: the host's state before the fix.
        settings: the host's DNS servers, and the interfaces that drop packets if the reply would
            leave elsewhere.
        added: the fix's routes.
        fixed: the tables after the fix.
    """
    family, places = state.family, {numbers(route.destination): route.devs for route in added}
    nested = PrefixIndex(places, family.bits)
    neighbours: dict[IpNetwork, list[str]] = {}
    for address in state.addresses:
        if address.dev not in state.uplinks.devs and address.prefix_length < family.bits:
            neighbours.setdefault(address.network, []).append(address.dev)
    for subnet, devs in neighbours.items():
        inside = [place for place in nested.meeting(numbers(subnet)) if place[1] > subnet.prefixlen]
        by = sorted({dev for place in inside for dev in places[place]} - {*devs})
        if by:
            parts = shortened([str(family.network(place)) for place in inside], " ", _SHOWN_PLACES)
            strict = [dev for dev in devs if dev in settings.strict_devs]
            drops = (
                f", and drops what they send to {','.join(strict)}, as rp_filter is 1 there"
                if strict
                else ""
            )
            yield (
                f"the node then reaches neighbours of {', '.join(dict.fromkeys(devs))} in {subnet} through "
                f"{','.join(by)} ({parts}){drops}; if an interface must still answer them itself, give it a table: "
                f"{family.ip} route add {subnet} dev {quote(devs[0])} table 100; "
                f"{family.ip} rule add from ITS-ADDRESS lookup 100"
            )
    if settings.unread:
        yield f"what else the fix moves isn't known: {settings.unread}"
    for server in settings.nameservers if family is Family.IPV4 else ():
        now, then = state.fib.lookup(server).route, fixed.lookup(server).route
        if now is not None and then is not None and now.devs != then.devs:
            moved = f"through {','.join(then.devs)}, not {','.join(now.devs)}"
            yield f"the node then reaches the DNS server {server} of resolv.conf {moved}"
