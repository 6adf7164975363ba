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
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.links import Address
from hostrouting.model.routes import Protocol, Route, RouteType
from hostrouting.overlap._ask import asks_local_first, separates_tcp
from hostrouting.overlap._places import Places
from hostrouting.overlap._read import Moment
from hostrouting.overlap._state import State


def why_not_received(moment: Moment) -> str:
    """Return why this host doesn't receive what is sent to its addresses, or an empty string."""
    state = moment.state
    if asks_local_first(state.rules):
        return ""
    # As long as IPv6 has never had another rule, the kernel searches local and main, whatever the
    # rules say.
    usual = {*kernel_rules(Family.IPV6)}
    may_ignore_rules = state.family is Family.IPV6 and {*state.rules} <= usual
    if not may_ignore_rules:
        for flow, words in _arriving(state, moment.places):
            route = state.fib.decide(flow).route
            if not _is_local(route):
                return _sentence(f"to {flow.address}{words} through {flow.iif}", route, state)
    for lookup in moment.local_lookups:
        if not _is_local(lookup.route):
            sent = f"by this host to {lookup.address}, its own address,"
            return _sentence(sent, lookup.route, state)
    return ""


def _is_local(route: Route | None) -> bool:
    # An address may also be the broadcast address of another subnet.
    return route is not None and route.type in (RouteType.LOCAL, RouteType.BROADCAST)


def _arriving(state: State, places: Places) -> Iterator[tuple[Flow, str]]:
    """Yield packets that come in through each uplink for its addresses.

    Each packet comes with words for an unusual sender.
    """
    clients = {client: f" from {client}" for client in _clients(state, places)}
    protocols = (UDP, TCP) if separates_tcp(state.rules) else (UDP,)
    for local in state.addresses:
        if local.dev not in state.uplinks.devs:
            continue
        if not local.is_usable or local.local.is_link_local:
            continue
        for sender, words in {_sender(local, state): "", **clients}.items():
            for protocol in protocols:
                yield Flow(local.local, sender, protocol, iif=local.dev), words


def _clients(state: State, places: Places) -> Collection[IpAddress]:
    """Return an expected address for each combination of rules that may divert its packets.

    Such rules match the address as the source.
    """
    sources = {rule.source for rule in state.rules if rule.source is not None}
    if not sources:
        return ()
    local = {int(address.local) for address in state.addresses}  # no client has one of these
    edges = {number + 1 for number in local}
    for source in sources:
        edges |= {int(source[0]), int(source[-1]) + 1}
    ordered = sorted(edges)
    candidates = set[int]()
    for span in places.spans:
        candidates.add(span.first)
        inside = slice(bisect_left(ordered, span.first), bisect_right(ordered, span.last))
        candidates.update(ordered[inside])
    clients: dict[frozenset[IpNetwork], IpAddress] = {}
    for client in map(state.family.address, sorted(candidates - local)):
        matching = frozenset(source for source in sources if client in source)
        clients[matching] = client
    return clients.values()


def _sender(local: Address, state: State) -> IpAddress:
    """Return a likely sender of packets to an uplink's address.

    That is the uplink's gateway, or else the next address.
    """
    for route in state.defaults:
        for hop in route.hops:
            if hop.dev != local.dev or hop.gateway is None:
                continue
            if hop.gateway.version == local.local.version:
                return hop.gateway
    return local.local + 1


def _sentence(sent: str, found: Route | None, state: State) -> str:
    whose = f"{found} decides" if found is not None else "no route does"
    return (
        f"what is sent {sent} isn't delivered: {whose}, not table local;"
        f" have that table asked first: {_fix(state)}"
    )


def _fix(state: State) -> str:
    """Return how to have table local searched first, even with other rules of preference 0."""
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
            "delete each other rule of preference 0 and add it again,"
            " which puts it behind that of table local"
        )
    return "; then ".join(steps)
