"""Find the interfaces to keep, from whose addresses a fix would divert packets.

This module does no I/O.

A route that precedes an interface's connected route diverts all packets to the interface's network.
Among them are packets from the interface's own address: answers to neighbours, and connections of
programs that have bound the address. With ``keep``, packets from the interface's addresses follow a
table of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import attrs

from hostrouting.config.routing import (
    KEEP_PRIORITIES,
    Config,
    Keep,
    RouteOverlap,
    StaticRoutes,
)
from hostrouting.kernel.fib import Fib
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import PrefixIndex, PrefixSet, ends, numbers
from hostrouting.model.links import Address, Link, is_like
from hostrouting.model.parsing import is_device
from hostrouting.model.routes import Route, Scope, Table
from hostrouting.model.rules import Rule
from hostrouting.model.values import frozen
from hostrouting.overlap._losses import Loss, changed_prefixes, losses, taken_away
from hostrouting.overlap._modelled_host import ModelledHost
from hostrouting.overlap._places import Judgement, Place, distinct
from hostrouting.overlap._rules import routing_of, with_added
from hostrouting.overlap._state import State
from hostrouting.routes.verify_policy import verify_policy

# InfiniBand interfaces as named by the kernel and by systemd.
_INFINIBAND = "ib*"


def _cut_off(state: State, added: Iterable[Route], after: Fib) -> list[Address]:
    """Return the addresses whose packets no longer reach all neighbours on their own interface.

    Args:
        state: the host's state before the fix.
        added: the static routes that may lead packets away.
        after: the tables after the fix.
    """
    if state.family is not Family.IPV4:
        return []
    index = PrefixIndex([numbers(route.destination) for route in added], state.family.bits)
    own = {address.local for address in state.addresses}
    return [
        address
        for address in state.addresses
        if address.dev not in state.uplinks.devs
        and address.scope == Scope.UNIVERSE
        and any(_leaves(after, to, address) for to in neighbours(address, index, own))
    ]


def keepable(state: State) -> list[Address]:
    """Return the addresses that can be kept: a single interface has the address, and is up."""
    devs = _keepable_devs(state.links) - {*state.uplinks.devs}
    owners: dict[IpAddress, set[str]] = {}
    for address in state.addresses:
        owners.setdefault(address.local, set()).add(address.dev)
    return [
        address
        for address in state.addresses
        if address.dev in devs
        and address.scope == Scope.UNIVERSE
        and len(owners[address.local]) == 1
    ]


def _keepable_devs(links: Iterable[Link]) -> set[str]:
    """Return the interfaces that are up, can be named in ``keep``, and aren't ports."""
    vrfs = {link.name for link in links if link.kind == "vrf"}
    return {
        link.name
        for link in links
        if link.is_up and (link.master is None or link.master in vrfs) and is_device(link.name)
    }


def neighbours(
    address: Address,
    index: PrefixIndex,
    own: Container[IpAddress],
) -> Iterator[IpAddress]:
    """Yield a neighbour in each prefix of ``index`` that lies in an address's connected network.

    The first address of a prefix is skipped if the prefix has others: it may be a broadcast
    address.
    """
    for prefix in index.meeting(address.prefix):
        if prefix[1] > address.prefix_length:
            first, last = ends(prefix, Family.IPV4.bits)
            all_but_first = map(Family.IPV4.address, range(min(first + 1, last), last + 1))
            yield from islice((other for other in all_but_first if other not in own), 1)


def _leaves(fib: Fib, to: IpAddress, address: Address) -> bool:
    """Return whether a packet leaves through another interface than that of its source."""
    route = fib.lookup(to, address.local).route
    return route is None or route.devs != (address.dev,)


def entries_for(devs: Sequence[str], state: State) -> tuple[Keep, ...]:
    """Return entries of ``staticRoutes.keep`` for some interfaces.

    Usually, there is one entry for each interface. But if ``devs`` are all InfiniBand interfaces in
    use, and more than one, a single entry has the pattern for InfiniBand. The pattern may also
    match interfaces that aren't up or have no address yet.
    """
    ready = {link.name for link in state.links if link.is_up}
    ready.intersection_update(address.dev for address in state.addresses)
    known = ready.union(state.uplinks.devs)
    matched = {name for name in known if is_like(name, (_INFINIBAND,))}
    if len(devs) > 1 and {*devs} == matched:
        return (Keep(_INFINIBAND),)
    return tuple(map(Keep, devs))


@frozen
class Keeping:
    """The interfaces from whose addresses a fix diverts packets, and the effect of keeping them.

    Args:
        host: the host with the proposed entries.
        lost: the packets that the fix with these entries takes away.
        keep: the ``keep`` entries of the fix.
        kept: the interfaces that the proposed entries keep.
        offers: the entries that would keep further interfaces, by interface. Entries that don't
            work are left out.
        offers_lose: a line for each kind of packets that the offered entries take away.
        refused: a line for each reason why no entry is proposed.
    """

    host: ModelledHost
    lost: tuple[Loss, ...]
    keep: tuple[Keep, ...] = ()
    kept: frozenset[str] = frozenset()
    offers: Mapping[str, Keep] = attrs.field(factory=dict[str, Keep])
    offers_lose: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class KeepSearch:
    """The search for interfaces to keep, each proven on the model to work and to harm nothing.

    Entries for InfiniBand interfaces belong to the fix, because no other interface reaches their
    neighbours. Entries for other interfaces don't belong to the fix, but a caution offers them.

    Args:
        before: the host before the fix.
        host: the host after the fix.
        lost: the packets that the fix takes away.
        intended: the failing addresses whose packets the fix diverts on purpose.
        config: the config, with the rules of the fix.
        is_infiniband: returns whether an interface is an InfiniBand interface.
        leading: the static routes that may lead packets away.
    """

    def __init__(
        self,
        before: ModelledHost,
        host: ModelledHost,
        lost: tuple[Loss, ...],
        intended: Sequence[IpNetwork],
        config: Config,
        is_infiniband: Callable[[str], bool],
        leading: Sequence[Route],
    ) -> None:
        self._before = before
        self._host = host
        self._lost = lost
        self._intended = intended
        self._config = config
        self._is_infiniband = is_infiniband
        self._leading = leading

    def find(self) -> Keeping:
        """Find the interfaces to name in ``staticRoutes.keep``."""
        state = self._before.state
        found = Keeping(self._host, self._lost)
        cut = {*_cut_off(state, self._leading, self._host.model.fib)}
        keeping = [address for address in keepable(state) if address in cut]
        devs = _in_order(state, (address.dev for address in keeping))
        fabric = [dev for dev in devs if self._is_infiniband(dev)]
        others = [dev for dev in devs if not self._is_infiniband(dev)]
        if fabric:
            found = self._with_entries(found, fabric, keeping)
        if others:
            found = self._with_offers(found, others, keeping)
        return found

    def _with_entries(
        self,
        found: Keeping,
        devs: Sequence[str],
        addresses: Iterable[Address],
    ) -> Keeping:
        """Return ``found`` with ``keep`` entries for interfaces, or with why it has none."""
        keep = entries_for(devs, self._before.state)
        after = self._kept(keep, addresses, devs)
        if isinstance(after, str):
            return attrs.evolve(found, refused=(_why_not(devs, after),))
        return attrs.evolve(after, keep=keep, kept=frozenset(devs))

    def _with_offers(
        self,
        found: Keeping,
        devs: Sequence[str],
        addresses: Iterable[Address],
    ) -> Keeping:
        """Return ``found`` with offers to keep more interfaces, or with why it has none."""
        offers = {dev: Keep(dev) for dev in devs}
        after = self._kept((*found.keep, *offers.values()), addresses, [*found.kept, *devs])
        if isinstance(after, str):
            return attrs.evolve(found, refused=(*found.refused, _why_not(devs, after)))
        also = [loss for loss in after.lost if loss not in found.lost]
        return attrs.evolve(found, offers=offers, offers_lose=tuple(taken_away(also)))

    def _kept(
        self,
        keep: Sequence[Keep],
        addresses: Iterable[Address],
        devs: Container[str],
    ) -> Keeping | str:
        """Return a ``Keeping`` with the host that has the entries, or why not to propose them."""
        after = with_kept(self._host, keep, self._config)
        if isinstance(after, str):
            return after
        lost = losses(self._before, after, self._intended)
        still = {*_cut_off(after.state, self._leading, after.model.fib)}
        for address in addresses:
            if address.dev in devs and address in still:
                return f"packets from {address.local} would still not stay on {address.dev}"
        unheard = [loss for loss in lost if loss.arrives_on or loss.is_unknown]
        if unheard:
            return taken_away(unheard)[0]
        why = _why_failing(self._host, after, self._config.route_overlap)
        return why or Keeping(after, lost)


def _why_not(devs: Iterable[str], why: str) -> str:
    return f"no keep is proposed for {', '.join(devs)}: {why}"


def _in_order(state: State, devs: Iterable[str]) -> list[str]:
    wanted = {*devs}
    return [link.name for link in state.links if link.name in wanted]


def lost_by_keeping(
    host: ModelledHost,
    keep: Sequence[Keep],
    packets: Iterable[tuple[IpAddress, Address]],
    config: Config,
) -> list[str] | None:
    """Return a line for each kind of packets that entries of ``keep`` take away.

    The result is None in three cases: the entries don't keep the given packets on their interfaces,
    they move packets from other addresses, or an expected address fails with them.

    Args:
        host: the host without the entries.
        keep: the entries to try.
        packets: the packets to keep: for each, the destination and the address that sends it.
        config: see ``with_kept``.
    """
    after = with_kept(host, keep, config)
    if isinstance(after, str):
        return None
    if any(_leaves(after.model.fib, to, address) for to, address in packets):
        return None
    if _why_failing(host, after, config.route_overlap):
        return None
    kept = {address.local for _, address in packets}
    # The offer itself names the packets to the networks of their senders.
    lost = [loss for loss in losses(host, after) if not loss.is_tied]
    # The entries must move only packets from the kept addresses.
    if any(loss.source not in kept for loss in lost):
        return None
    # Entries of keep are meant to take their interfaces' packets from the uplinks. But inside a
    # kept interface's network, another program's longer route may have led packets to an uplink.
    # Such packets are lost.
    uplinks = host.state.uplinks.devs
    return taken_away(
        loss for loss in lost if loss.before != uplinks or _is_inside(loss, host.state.addresses)
    )


def _is_inside(loss: Loss, addresses: Iterable[Address]) -> bool:
    """Return whether the packets of a loss go to a connected network of their sender."""
    bits = Family.IPV4.bits
    networks = PrefixSet((each.prefix for each in addresses if each.dev == loss.sender), bits)
    return any(networks.covers(numbers(part)) for part in loss.ranges)


def _why_failing(before: ModelledHost, after: ModelledHost, overlap: RouteOverlap) -> str:
    """Return a clause on the first address that fails only after a change, or an empty string."""
    overlap = overlap.of(before.state.family)
    changed = PrefixSet(changed_prefixes(before, after), before.state.family.bits)
    spans = (span for span in before.places.spans if changed.overlaps(span.first, span.last))
    places = distinct(spans)
    failing = _failures(before, overlap, places)
    for key, judgement in _failures(after, overlap, places).items():
        if key not in failing:
            source = judgement.lookup.source
            sent = f"packets from {source} to {judgement.address}"
            through = ",".join(judgement.devs) or "no interface"
            return f"{sent} would then leave through {through}"
    return ""


def _failures(
    host: ModelledHost,
    overlap: RouteOverlap,
    places: Iterable[Place],
) -> dict[tuple[object, ...], Judgement]:
    failures: dict[tuple[object, ...], Judgement] = {}
    for again in host.judged(overlap, places):
        for judgement in again.judgements:
            if judgement.is_failure:
                source = judgement.lookup.source
                key = (again.expected, again.place, judgement.kind, judgement.devs, source)
                failures[key] = judgement
    return failures


def with_kept(host: ModelledHost, keep: Sequence[Keep], config: Config) -> ModelledHost | str:
    """Return the host with ``keep`` entries, or why an installation would refuse these entries.

    Args:
        host: the host after the fix.
        keep: the entries of ``staticRoutes.keep`` to add.
        config: the config, whose own entries may contradict the new ones.
    """
    wanted = config.static_routes
    everything = attrs.evolve(wanted, enabled=True, keep=(*wanted.keep, *keep))
    try:
        # Raises if the config's own entries contradict the new ones.
        routing_of(host.state, everything, config.uplinks)
        routing = routing_of(host.state, StaticRoutes(enabled=True, keep=keep), config.uplinks)
        if claimed := _claimed_gateway(routing.routes, host.model.fib):
            return f"apply would refuse it: {claimed}"
        sources = {rule.source for rule in routing.rules}
        others = [
            rule for rule in host.state.rules if not (rule.is_ours and rule.source in sources)
        ]
        rules = with_added(others, routing.rules)
        model = host.model.with_routes(routing.routes).with_rules(rules)
        if _may_come_late(host.state.rules):
            verify_policy(routing, model)
    except RouteError as error:
        return f"apply would refuse it: {error.message}"
    state = attrs.evolve(host.state, rules=rules, routes=model.known.routes, is_merged=False)
    return attrs.evolve(host, state=state, model=model)


def _may_come_late(rules: Iterable[Rule]) -> bool:
    """Return whether a rule other than table local's may decide before the rules of keep."""
    earlier = (rule for rule in rules if rule.preference < KEEP_PRIORITIES[0])
    return any(rule.table != Table.LOCAL or not rule.has_table for rule in earlier)


def _claimed_gateway(routes: Iterable[Route], fib: Fib) -> str:
    """Return a clause if a gateway of the routes is an address of this host, or an empty string."""
    for route in routes:
        for hop in route.hops:
            claim = None if hop.gateway is None else fib.claims_gateway(hop.gateway)
            if claim is not None:
                return f"its gateway {hop.gateway} is in {claim}"
    return ""
