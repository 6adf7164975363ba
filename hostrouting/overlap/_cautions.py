"""Tell which traffic outside of the expected CIDRs a fix moves to another interface.

This module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence

from hostrouting.kernel.fib import Fib
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, PrefixIndex, numbers
from hostrouting.model.routes import Route, RouteType, Table
from hostrouting.model.text import shortened
from hostrouting.overlap._keep import Keeping
from hostrouting.overlap._state import State
from hostrouting.overlap.proposals import HostSettings

# A limit for human-readable lines.
_SHOWN_PREFIXES = 8


def cautions(
    state: State,
    settings: HostSettings,
    added: Iterable[Route],
    fixed: Fib,
    keeping: Keeping,
) -> Iterator[str]:
    """Yield a line for each kind of traffic that a fix moves.

    Args:
        state: the host's state before the fix.
        settings: the host's DNS servers, and the interfaces that drop packets if the reply would
            leave elsewhere.
        added: the fix's routes.
        fixed: the tables after the fix.
        keeping: the interfaces whose own packets the fix leads away.
    """
    yield from _moved_neighbours(state, settings, added, keeping)
    yield from _lost_routes(state, keeping.kept)
    if settings.unread:
        yield f"what else the fix moves isn't known: {settings.unread}"
    for server in settings.nameservers if state.family is Family.IPV4 else ():
        now = state.fib.lookup(server).route
        then = fixed.lookup(server).route
        if now is not None and then is not None and now.devs != then.devs:
            moved = f"through {','.join(then.devs)}, not {','.join(now.devs)}"
            yield f"the node then reaches the DNS server {server} of resolv.conf {moved}"


def _moved_neighbours(
    state: State,
    settings: HostSettings,
    added: Iterable[Route],
    keeping: Keeping,
) -> Iterator[str]:
    """Yield a line for each connected network to which added routes lead through another link."""
    family = state.family
    devs_of = {numbers(route.destination): route.devs for route in added}
    index = PrefixIndex(devs_of, family.bits)
    for subnet, devs in _connected(state).items():
        inside = [
            prefix for prefix in index.meeting(numbers(subnet)) if prefix[1] > subnet.prefixlen
        ]
        through = sorted({dev for prefix in inside for dev in devs_of[prefix]} - {*devs})
        if not through:
            continue
        parts = shortened([str(family.network(prefix)) for prefix in inside], " ", _SHOWN_PREFIXES)
        yield (
            f"the node then sends to neighbours of {', '.join(dict.fromkeys(devs))} in {subnet} "
            f"through {','.join(through)} ({parts}){_own_packets(devs, state, settings, keeping)}"
        )


def _lost_routes(state: State, kept: Collection[str]) -> Iterator[str]:
    """Yield a line for each network in which kept interfaces' packets pass by longer routes."""
    bits = state.family.bits
    devs_of = _routes_elsewhere(state) if kept else {}
    index = PrefixIndex(devs_of, bits)
    for subnet, devs in _connected(state).items():
        senders = [dev for dev in dict.fromkeys(devs) if dev in kept]
        if not senders:
            continue
        lost: list[str] = []
        for prefix in index.meeting(numbers(subnet)):
            is_longer = prefix[1] > subnet.prefixlen
            if is_longer and not {*kept}.issuperset(devs_of[prefix]):
                lost.append(f"{state.family.network(prefix)} through {','.join(devs_of[prefix])}")
        if lost:
            listed = shortened(lost, ", ", _SHOWN_PREFIXES)
            yield f"packets from the addresses of {', '.join(senders)} no longer go to {listed}"


def _own_packets(
    devs: Sequence[str],
    state: State,
    settings: HostSettings,
    keeping: Keeping,
) -> str:
    """Return a clause on packets from the interfaces' own addresses, and on those to them."""
    if keeping.kept.issuperset(devs):
        return ", except from these interfaces' own addresses: with keep, such packets stay on them"
    dropped = _dropped((dev for dev in devs if dev not in keeping.kept), settings)
    offers = [keeping.offers[dev] for dev in dict.fromkeys(devs) if dev in keeping.offers]
    if offers:
        entries = json.dumps([entry.to_mapping() for entry in offers])
        return (
            f'{dropped}; add to hostRouting.staticRoutes: "keep": {entries}, and packets from '
            "these interfaces' own addresses stay on them"
        )
    is_lost = state.family is Family.IPV6 or not keeping.lost.isdisjoint(devs)
    also = ", also from these interfaces' own addresses" if is_lost else ""
    return f"{also}{dropped}"


def _routes_elsewhere(state: State) -> dict[Prefix, tuple[str, ...]]:
    """Return the destinations of main's routes through other interfaces than the uplinks."""
    return {
        numbers(route.destination): route.devs
        for route in state.routes
        if route.table == Table.MAIN
        and route.type is RouteType.UNICAST
        and {*route.devs}.isdisjoint(state.uplinks.devs)
    }


def _connected(state: State) -> dict[IpNetwork, list[str]]:
    """Return the networks of interfaces other than the uplinks, each with the interfaces."""
    usable = {link.name for link in state.links if link.is_up}.difference(state.uplinks.devs)
    connected: dict[IpNetwork, list[str]] = {}
    for address in state.addresses:
        if address.dev in usable and address.prefix_length < state.family.bits:
            connected.setdefault(address.network, []).append(address.dev)
    return connected


def _dropped(devs: Iterable[str], settings: HostSettings) -> str:
    """Return a clause with the interfaces that drop what neighbours send, or an empty string."""
    strict = ",".join(dev for dev in devs if dev in settings.strict_devs)
    return f", and drops what they send to {strict}, as rp_filter is 1 there" if strict else ""
