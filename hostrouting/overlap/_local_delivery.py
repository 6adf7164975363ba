"""Tell whether packets to this host are delivered. If policy rules bypass table local, some aren't.

This module does no I/O.

The kernel delivers a packet if the lookup of its destination returns a route of type local. The
policy rule of preference 0 makes the kernel search table local first. Cilium and other programs
move that rule, and may leave it out. This host may then miss packets sent to it, even if all
packets that it sends leave as expected.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import attrs

from hostrouting.config.routing import ExpectedCidr
from hostrouting.kernel.port import Lookups
from hostrouting.kernel.rules import KERNEL_RULES, LOOPBACK, NO_SOURCE, TCP, UDP, Flow, kernel_rules
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, numbers
from hostrouting.model.links import Address
from hostrouting.model.lookups import Lookup
from hostrouting.model.routes import Protocol, Route, RouteType, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.overlap._ask import (
    asks_local_first,
    called_addresses,
    is_told_apart,
    selects_source,
    separates_tcp,
)
from hostrouting.overlap._cut import Cutter
from hostrouting.overlap._state import State
from hostrouting.overlap.summary import decided_by

# The types of the entries that deliver packets to this host. An own address may also be the
# broadcast or anycast address of a subnet.
_DELIVERING = (RouteType.LOCAL, RouteType.BROADCAST, RouteType.ANYCAST)


class _Lost(NamedTuple):
    """A packet to this host that isn't delivered.

    Args:
        words: how the packet is sent, such as ``to 10.0.0.4 through eth0``.
        flow: the key of the packet's lookup.
        route: the entry that the lookup matches; None if no entry matches.
    """

    words: str
    flow: Flow
    route: Route | None


def why_not_received(state: State, expected: Iterable[ExpectedCidr], kernel: Lookups) -> str:
    """Return why this host doesn't receive packets to its addresses, or an empty string.

    Three kinds of addresses count: those on uplinks, those inside an expected CIDR, and, if replies
    from them are judged, those on the loopback interface.

    Args:
        state: the host's state.
        expected: the expected CIDRs.
        kernel: the kernel to ask about packets from this host.
    """
    cidrs = [numbers(each.cidr) for each in expected]
    lost = _first_lost(state, cidrs, kernel)
    if lost is None:
        return ""
    address = lost.flow.address
    found = state.fib.longest_match(Table.LOCAL, Flow(address))
    is_hidden = found is not None and found.destination.prefixlen == state.family.bits
    what = f"what is sent {lost.words} isn't delivered: {_what_decides(lost, state)}"
    if found is None or lost.route != found:
        what += ", not table local"
    steps = []
    if asks := _have_local_asked(lost.flow, state, cidrs):
        steps.append(f"have that table asked first: {asks}")
    if not _is_local(found):
        missing = f"add the entry that it lacks: {_missing_entry(address, state)}"
        steps.append(f"remove {found}" if is_hidden else missing)
    return "; ".join((what, *steps))


def _what_decides(lost: _Lost, state: State) -> str:
    """Return a clause with the route or rule that decides about a packet that isn't delivered."""
    if lost.route is not None:
        return f"{lost.route} decides"
    decision = state.fib.decide(lost.flow)
    if decision.rule is not None and decision.route is None:
        return decided_by(decision.rule)
    return "no route does"


def _first_lost(state: State, cidrs: Sequence[Prefix], kernel: Lookups) -> _Lost | None:
    asked = [*_addresses_to_ask_about(state, PrefixSet(cidrs, state.family.bits))]
    is_first = asks_local_first(state.rules)
    if is_first:
        # Table local decides before all others, so packets to its entries are delivered.
        entries = _entries_of_local(state)
        asked = [address for address in asked if address.local not in entries]
        if not asked:
            return None
    # Ask the kernel about packets from this host, and the model about packets that come in.
    from_here = _lost_from_here(_sent_to(asked, state, is_first=is_first), state, kernel)
    # As long as no IPv6 rule was ever added to the kernel's own, the kernel searches local and main
    # without looking at the rules.
    usual = {*kernel_rules(Family.IPV6)}
    if state.family is Family.IPV6 and {*state.rules} <= usual:
        return from_here
    for flow, words in _arriving(asked, cidrs, state):
        route = state.fib.decide(flow).route
        if not _is_local(route):
            return _Lost(f"to {flow.address}{words} through {flow.iif}", flow, route)
    return from_here


def _sent_to(asked: Iterable[Address], state: State, *, is_first: bool) -> list[IpAddress]:
    """Return the own addresses to which this host must be able to send packets.

    If table local isn't asked first, another rule may lead away packets to loopback addresses. So
    these are included then.
    """
    own = [address.local for address in asked]
    if not is_first:
        own += [each.local for each in state.addresses if each.local.is_loopback]
    return [*dict.fromkeys(own)]


def _addresses_to_ask_about(state: State, cidrs: PrefixSet) -> Iterator[Address]:
    """Yield this host's addresses at which packets must arrive."""
    called: Collection[IpAddress] = ()
    if selects_source(state.rules, state.routes, state.family):
        called = {*called_addresses(state.addresses, (), state.rules)}
    for address in _usable(state):
        local = address.local
        is_called = address.dev in state.uplinks.devs or local in called
        if is_called or cidrs.covers((int(local), state.family.bits)):
            yield address


def _usable(state: State) -> Iterator[Address]:
    """Yield the addresses on interfaces that are up, except link-local ones and those in VRFs."""
    vrfs = _vrfs(state)
    # The lookup of a packet that comes in through a port of a VRF starts in the VRF's table.
    left_out = {link.name for link in state.links if not link.is_up or link.master in vrfs}
    for address in state.addresses:
        is_of_link = state.family is Family.IPV6 and address.local.is_link_local
        if address.is_usable and not is_of_link and address.dev not in left_out:
            yield address


def _entries_of_local(state: State) -> set[IpAddress]:
    """Return the addresses for which table local has an entry of its own that delivers packets.

    An entry of type local isn't enough, because another entry for the address may precede it: ``ip
    route prepend`` adds such an entry.
    """
    local = set[IpAddress]()
    first: dict[IpAddress, Route] = {}
    for route in state.routes:
        if route.table == Table.LOCAL and route.destination.prefixlen == state.family.bits:
            address = route.destination.network_address
            if address not in first or route.metric < first[address].metric:
                first[address] = route
            if route.type is RouteType.LOCAL:
                local.add(address)
    return {address for address in local if first[address].type in _DELIVERING}


def _is_local(route: Route | None) -> bool:
    # A local address may also be the broadcast address of another subnet, and a lookup may find the
    # entry for that.
    return route is not None and route.type in (RouteType.LOCAL, RouteType.BROADCAST)


def _arriving(
    asked: Sequence[Address],
    cidrs: Sequence[Prefix],
    state: State,
) -> Iterator[tuple[Flow, str]]:
    """Yield the lookups of packets that come in for addresses of this host.

    If the sender isn't a neighbour, the lookup comes with a clause such as ``from 10.0.0.9``.
    """
    rules = _deciding(asked, state)
    clients = {client: f" from {client}" for client in _clients(rules, state, cidrs)}
    protocols = (UDP, TCP) if separates_tcp(state.rules) else (UDP,)
    for local in asked:
        for dev in _entrances(local, state):
            senders = dict.fromkeys(_senders(local, dev, state), "")
            for sender, words in {**senders, **clients}.items():
                for protocol in protocols:
                    yield Flow(local.local, sender, protocol, iif=dev), words


def _entrances(local: Address, state: State) -> Sequence[str]:
    """Return the interfaces through which packets to an address come in.

    Nothing comes in through lo or a dummy interface. Packets to the addresses of such interfaces
    come in through the uplinks.
    """
    dummies = {link.name for link in state.links if link.kind == "dummy"}
    if local.dev != LOOPBACK and local.dev not in dummies:
        return (local.dev,)
    down = {link.name for link in state.links if not link.is_up}
    return [dev for dev in state.uplinks.devs if dev not in down]


def _deciding(asked: Iterable[Address], state: State) -> Sequence[Rule]:
    """Return the rules that may decide about packets to addresses of this host.

    If table local has an entry for each of these addresses, the rules behind its own rule don't
    matter.
    """
    position = next((at for at, rule in enumerate(state.rules) if _asks_local(rule)), None)
    before = state.rules[:position]
    entries = _entries_of_local(state)
    may_be_passed = any(rule.action is RuleAction.GOTO for rule in before)
    if may_be_passed or any(each.local not in entries for each in asked):
        return state.rules
    return before


def _asks_local(rule: Rule) -> bool:
    """Return whether a rule looks up table local for every packet."""
    return attrs.evolve(rule, preference=0, protocol=Protocol.KERNEL) == KERNEL_RULES[0]


def _clients(
    rules: Iterable[Rule],
    state: State,
    cidrs: Sequence[Prefix],
) -> Collection[IpAddress]:
    """Return expected addresses of other hosts: examples of all senders of packets to this host.

    Rules may match on the source. Addresses that lie in the same source prefixes of rules are
    matched by the same rules, so one of them is enough.
    """
    sources = {rule.source for rule in rules if rule.source is not None}
    if not sources:
        return ()
    clients: dict[frozenset[IpNetwork], IpAddress] = {}
    for client in _possible_clients(sources, state, cidrs):
        matching = frozenset(source for source in sources if client in source)
        clients[matching] = client
    return clients.values()


def _possible_clients(
    sources: Iterable[IpNetwork],
    state: State,
    cidrs: Sequence[Prefix],
) -> Iterable[IpAddress]:
    """Return the first expected addresses, and those where a source prefix of rules begins or ends.

    A client is another host, so it has none of this host's addresses.
    """
    local = {int(address.local) for address in state.addresses}
    edges = {number + 1 for number in local}
    for source in sources:
        edges |= {int(source[0]), int(source[-1]) + 1}
    ordered = sorted(edges)
    candidates = set[int]()
    for span in Cutter(state.family, cidrs, (), (), ()).cut(()).spans:
        candidates.add(span.first)
        inside = slice(bisect_left(ordered, span.first), bisect_right(ordered, span.last))
        candidates.update(ordered[inside])
    return map(state.family.address, sorted(candidates - local))


def _senders(local: Address, dev: str, state: State) -> list[IpAddress]:
    """Return a likely sender of packets that come in through an interface, or an empty list.

    A likely sender is the interface's gateway, or else a neighbour. The kernel drops packets that
    come from an address of this host.
    """
    own = {address.local for address in state.addresses}
    likely = [*_gateways(dev, state), *_neighbours(local), local.local + 1]
    return [each for each in likely if each not in own][:1]


def _gateways(dev: str, state: State) -> Iterator[IpAddress]:
    """Yield the gateways of an interface's default routes, if they are of the host's family."""
    for route in state.defaults:
        for hop in route.hops:
            gateway = hop.gateway if hop.dev == dev else None
            if gateway is not None and Family.of(gateway) is state.family:
                yield gateway


def _neighbours(local: Address) -> Iterator[IpAddress]:
    """Yield the addresses next to an address that are inside the same network."""
    first, last = local.network[0], local.network[-1]
    for step in (1, -1, 2, -2):
        if int(first) < int(local.local) + step < int(last):
            yield local.local + step


def _lost_from_here(own: Sequence[IpAddress], state: State, kernel: Lookups) -> _Lost | None:
    """Return a packet from this host to one of its own addresses that isn't delivered, or None.

    Packets without a source are tried first, because unconnected sockets send them.
    """
    for is_tcp in (False, True) if separates_tcp(state.rules) else (False,):
        plain = kernel.lookup(own, is_tcp=is_tcp)
        sent: list[tuple[IpAddress | None, Sequence[Lookup]]] = [(None, plain)]
        for source, addresses in _by_source(plain, state).items():
            sent.append((source, kernel.lookup(addresses, source=source, is_tcp=is_tcp)))
        for chosen, lookups in sent:
            for lookup in lookups:
                if not _is_local(lookup.route):
                    words = "" if chosen is None else f" from {chosen}"
                    flow = Flow(lookup.address, chosen or NO_SOURCE, TCP if is_tcp else UDP)
                    words = f"by this host{words} to {lookup.address}, its own address,"
                    return _Lost(words, flow, lookup.route)
    return None


def _by_source(plain: Iterable[Lookup], state: State) -> dict[IpAddress, list[IpAddress]]:
    """Map each source that rules distinguish to the addresses of this host that it may send to.

    The source of a connection is the src of the entry, or else the destination itself. A server
    replies from the address at which it was called.
    """
    if not selects_source(state.rules, state.routes, state.family):
        return {}
    by_source: dict[IpAddress, list[IpAddress]] = {}
    for lookup in plain:
        source = lookup.address
        if lookup.route is not None and lookup.route.source is not None:
            source = lookup.route.source
        if is_told_apart(source, state.rules):
            by_source.setdefault(source, []).append(lookup.address)
    everything = [lookup.address for lookup in plain]
    called = called_addresses(state.addresses, state.uplinks.devs, state.rules)
    return by_source | dict.fromkeys(called, everything)


def _missing_entry(address: IpAddress, state: State) -> str:
    """Return the command for the entry that the kernel itself adds with an address."""
    dev = next((each.dev for each in state.addresses if each.local == address), LOOPBACK)
    scope = " scope host" if state.family is Family.IPV4 else ""
    return f"{state.family.ip} route add local {address} dev {dev} table local proto kernel{scope}"


def _loss(state: State, preference: int) -> str:
    """Return a clause on the packets that a new rule for table local loses, or an empty string."""
    from hostrouting.overlap._advice import loss_by_rule

    return loss_by_rule(state, Rule(preference, table=Table.LOCAL))


def _have_local_asked(flow: Flow, state: State, cidrs: Sequence[Prefix]) -> str:
    """Return the advice to look up table local first, or "" if the kernel already does."""
    first = [rule for rule in state.rules if rule.preference == 0]
    others = [rule for rule in first if not _asks_local(rule)]
    steps = []
    if len(first) == len(others):
        preference = _behind_vrfs(flow, state, cidrs)
        command = f"{state.family.ip} rule add preference {preference} lookup local"
        steps.append(f"{command}{_loss(state, preference)}")
        if preference == 0 and _vrfs(state):
            steps[0] += " (this host then also receives what its VRFs send to such addresses)"
    if others:
        # fib_nl_newrule inserts a new rule behind the existing rules of the same preference.
        steps.append(
            "delete each other rule of preference 0 and add it again,"
            " which puts it behind that of table local"
        )
    return "; then ".join(steps)


def _behind_vrfs(flow: Flow, state: State, cidrs: Sequence[Prefix]) -> int:
    """Return a preference behind the VRFs' rule for a new rule that looks up table local, or 0.

    A packet in a VRF must stay in the VRF, even if its destination is an address of this host
    outside of the VRF. So on a host with VRFs, the new rule should come behind the VRFs' rule. The
    result is 0 on a host without VRFs, or if the new rule fixes nothing there.
    """
    decides = state.fib.decide(flow).rule
    of_vrfs = [rule.preference for rule in state.rules if rule.is_l3mdev]
    if decides is None or not of_vrfs or not _vrfs(state):
        return 0
    rule = Rule(decides.preference - 1, table=Table.LOCAL)
    if rule.preference <= max(of_vrfs):
        return 0
    rules = sorted((*state.rules, rule), key=attrgetter("preference"))
    after = attrs.evolve(state, rules=tuple(rules), is_merged=False)
    lost = _first_lost(after, cidrs, after.model)
    return rule.preference if lost is None else 0


def _vrfs(state: State) -> set[str]:
    return {link.name for link in state.links if link.kind == "vrf"}
