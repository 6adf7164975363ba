"""Tell whether packets to this host are delivered, as the policy rules may bypass table local.

This module does no I/O.

The kernel delivers a packet if the lookup of its destination returns a route of type local. The
policy rule of preference 0 makes the kernel search table local first. Cilium and other programs
move that rule, and may leave it out. Then this host doesn't receive some or all of the packets sent
to it, although all packets that it sends leave as expected.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator

import attrs

from hostrouting.kernel.rules import KERNEL_RULES, TCP, UDP, Flow, kernel_rules
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.links import Address
from hostrouting.model.routes import Protocol, Route, RouteType
from hostrouting.overlap._ask import asks_local_first, separates_tcp
from hostrouting.overlap._state import State


def why_not_received(state: State) -> str:
    """Return why this host doesn't receive what is sent to one of its addresses, or an empty string if it does."""
    if asks_local_first(state.rules):
        return ""
    # As long as IPv6 has never had another rule, the kernel searches local and main, whatever the
    # rules say.
    may_ignore_rules = state.family is Family.IPV6 and {*state.rules} <= {
        *kernel_rules(Family.IPV6)
    }
    for flow, words in () if may_ignore_rules else _arriving(state):
        if not _is_local(found := state.fib.decide(flow).route):
            return _sentence(f"to {flow.address}{words} through {flow.iif}", found, state)
    for lookup in state.own_lookups:
        if not _is_local(lookup.route):
            return _sentence(
                f"by this host to {lookup.address}, its own address,", lookup.route, state
            )
    return ""


def _is_local(route: Route | None) -> bool:
    # An address may also be the broadcast address of another subnet.
    return route is not None and route.type in (RouteType.LOCAL, RouteType.BROADCAST)


def _arriving(state: State) -> Iterator[tuple[Flow, str]]:
    """Yield packets that come in through each uplink for its addresses, each with words for an unusual sender."""
    clients = {client: f" from {client}" for client in _clients(state)}
    protocols = (UDP, TCP) if separates_tcp(state.rules) else (UDP,)
    for own in state.addresses:
        if own.dev in state.uplinks.devs and own.is_usable and not own.local.is_link_local:
            for sender, words in {_sender(own, state): "", **clients}.items():
                yield from (
                    (Flow(own.local, sender, protocol, iif=own.dev), words)
                    for protocol in protocols
                )


def _clients(state: State) -> Collection[IpAddress]:
    """Return an expected address for each combination of rules that match it as the source and may divert packets."""
    sources = {rule.source for rule in state.rules if rule.source is not None}
    if not sources:
        return ()
    own = {int(address.local) for address in state.addresses}  # no client has one of these
    edges = sorted(
        {edge for each in sources for edge in (int(each[0]), int(each[-1]) + 1)}
        | {n + 1 for n in own}
    )
    numbers_ = {interval.first for interval in state.intervals}
    for interval in state.intervals:
        numbers_.update(
            edges[bisect_left(edges, interval.first) : bisect_right(edges, interval.last)]
        )
    clients = map(state.family.address, sorted(numbers_ - own))
    return {
        frozenset(each for each in sources if client in each): client for client in clients
    }.values()


def _sender(own: Address, state: State) -> IpAddress:
    """Return a likely sender of packets to an uplink's address: the uplink's gateway, or else the next address."""
    hops = (hop for route in state.defaults for hop in route.hops if hop.dev == own.dev)
    gateways = (
        hop.gateway
        for hop in hops
        if hop.gateway is not None and hop.gateway.version == own.local.version
    )
    return next(gateways, own.local + 1)


def _sentence(sent: str, found: Route | None, state: State) -> str:
    whose = f"{found} decides" if found is not None else "no route does"
    return f"what is sent {sent} isn't delivered: {whose}, not table local; have that table asked first: {_fix(state)}"


def _fix(state: State) -> str:
    """Return how to make the kernel search table local first, even if there are other rules of preference 0."""
    first = [rule for rule in state.rules if rule.preference == 0]
    others = [
        rule for rule in first if attrs.evolve(rule, protocol=Protocol.KERNEL) != KERNEL_RULES[0]
    ]
    steps = (
        [f"{state.family.ip} rule add preference 0 lookup local"]
        if len(first) == len(others)
        else []
    )
    if others:
        # fib_nl_newrule inserts a rule behind those of the same preference.
        steps.append(
            "delete each other rule of preference 0 and add it again, which puts it behind that of table local"
        )
    return "; then ".join(steps)
