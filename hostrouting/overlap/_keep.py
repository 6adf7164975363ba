"""Find the interfaces whose own packets a fix leads away, to keep them there.

This module does no I/O.

A route that wins against a connected network takes away all packets to it, also those that sockets
send from the interface's own address: answers to its neighbours, and connections of programs that
have bound the address. ``keep`` gives such an interface a table of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import attrs

from hostrouting.config.routing import Config, Keep, RouteOverlap, StaticRoutes
from hostrouting.kernel.fib import Fib
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import PrefixIndex, ends, numbers
from hostrouting.model.links import Address, is_like
from hostrouting.model.parsing import is_device
from hostrouting.model.routes import Route, Scope
from hostrouting.overlap._fixed import ModelledHost
from hostrouting.overlap._rules import routing_of, with_added
from hostrouting.overlap._state import State

# InfiniBand interfaces as named by the kernel and by systemd.
_INFINIBAND = "ib*"


def cut_off(state: State, added: Iterable[Route], fixed: Fib) -> list[Address]:
    """Return the addresses from which packets no longer reach all neighbours of their interface.

    Args:
        state: the host's state before the fix.
        added: the fix's routes.
        fixed: the tables after the fix.
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
        and any(_leaves(fixed, to, address) for to in _neighbours(address, index, own))
    ]


def keepable(state: State) -> list[Address]:
    """Return the addresses that can be kept: of an interface that is up, and of no other one."""
    vrfs = {link.name for link in state.links if link.kind == "vrf"}
    usable = {
        link.name
        for link in state.links
        if link.is_up and (link.master is None or link.master in vrfs) and is_device(link.name)
    } - {*state.uplinks.devs}
    owners: dict[IpAddress, set[str]] = {}
    for address in state.addresses:
        owners.setdefault(address.local, set()).add(address.dev)
    return [
        address
        for address in state.addresses
        if address.dev in usable
        and address.scope == Scope.UNIVERSE
        and len(owners[address.local]) == 1
    ]


def _neighbours(
    address: Address,
    index: PrefixIndex,
    own: Container[IpAddress],
) -> Iterator[IpAddress]:
    """Yield an address of each longer prefix in an address's connected network.

    The first one may be a broadcast address.
    """
    for prefix in index.meeting(address.prefix):
        if prefix[1] > address.prefix_length:
            first, last = ends(prefix, Family.IPV4.bits)
            all_but_first = map(Family.IPV4.address, range(min(first + 1, last), last + 1))
            yield from islice((other for other in all_but_first if other not in own), 1)


def _leaves(fib: Fib, to: IpAddress, address: Address) -> bool:
    """Return whether a packet from an address leaves through another interface than its own."""
    route = fib.lookup(to, address.local).route
    return route is None or route.devs != (address.dev,)


def entries_for(devs: Sequence[str], state: State) -> tuple[Keep, ...]:
    """Return entries that match exactly some interfaces.

    They may also match InfiniBand interfaces that are down or have no address, which is likely to
    change.
    """
    ready = {link.name for link in state.links if link.is_up}
    ready.intersection_update(address.dev for address in state.addresses)
    known = ready.union(state.uplinks.devs)
    matched = {name for name in known if is_like(name, (_INFINIBAND,))}
    if len(devs) > 1 and {*devs} == matched:
        return (Keep(_INFINIBAND),)
    return tuple(map(Keep, devs))


@attrs.frozen
class Keeping:
    """The interfaces whose own packets a fix leads away.

    Args:
        keep: the proposed entries.
        kept: the interfaces that these keep.
        lost: the others.
        offers: the entries that would keep these, by interface, if that works.
    """

    keep: tuple[Keep, ...] = ()
    kept: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    offers: Mapping[str, Keep] = attrs.field(factory=dict[str, Keep])


def find_keep(
    host: ModelledHost,
    before: State,
    config: Config,
    is_infiniband: Callable[[str], bool],
) -> Keeping:
    """Find which interfaces to keep, and prove on the model that it works and harms nothing.

    InfiniBand's are proposed, as nothing else reaches their neighbours. Others are offered.

    Args:
        host: the host after the fix.
        before: its state before the fix.
        config: the config, with the rules of the fix.
        is_infiniband: whether an interface is one of InfiniBand.
    """
    cut = {*cut_off(before, host.model.added, host.model.fib)}
    keeping = [address for address in keepable(before) if address in cut]
    devs = _in_order(before, (address.dev for address in keeping))
    fabric = [dev for dev in devs if is_infiniband(dev)]
    others = [dev for dev in devs if not is_infiniband(dev)]
    keep = entries_for(fabric, before)
    offers = {dev: Keep(dev) for dev in others}
    if not _is_proven(host, (*keep, *offers.values()), keeping, config):
        offers = {}
        of_fabric = [address for address in keeping if address.dev in fabric]
        if not _is_proven(host, keep, of_fabric, config):
            keep = ()
            fabric = []
    lost = {address.dev for address in cut.difference(keeping)} | {*devs} - {*fabric}
    return Keeping(keep, frozenset(fabric), frozenset(lost), offers)


def _in_order(state: State, devs: Iterable[str]) -> list[str]:
    wanted = {*devs}
    return [link.name for link in state.links if link.name in wanted]


def _is_proven(
    host: ModelledHost,
    keep: Sequence[Keep],
    addresses: Sequence[Address],
    config: Config,
) -> bool:
    """Return whether entries keep addresses, and whether nothing fails that doesn't fail now."""
    if not keep:
        return True
    after = with_kept(host, keep, config)
    if after is None:
        return False
    still = {*cut_off(after.state, host.model.added, after.model.fib)}
    if not still.isdisjoint(addresses):
        return False
    return _is_harmless(host, after, config.route_overlap)


def is_kept(
    host: ModelledHost,
    keep: Sequence[Keep],
    packets: Iterable[tuple[IpAddress, Address]],
    config: Config,
) -> bool:
    """Return whether entries have packets stay on their interfaces, and harm nothing.

    Args:
        host: the host.
        keep: the entries.
        packets: for each packet, the destination and the address that sends it.
        config: see ``with_kept``.
    """
    after = with_kept(host, keep, config)
    if after is None or any(_leaves(after.model.fib, to, address) for to, address in packets):
        return False
    return _is_harmless(host, after, config.route_overlap)


def _is_harmless(before: ModelledHost, after: ModelledHost, overlap: RouteOverlap) -> bool:
    overlap = overlap.of(before.state.family)
    return _failing(after, overlap) <= _failing(before, overlap)


def _failing(host: ModelledHost, overlap: RouteOverlap) -> set[tuple[object, ...]]:
    return {
        (again.expected, again.place, judgement.kind, judgement.devs, judgement.lookup.source)
        for again in host.judged(overlap)
        for judgement in again.judgements
        if judgement.is_failure
    }


def with_kept(host: ModelledHost, keep: Sequence[Keep], config: Config) -> ModelledHost | None:
    """Return the host with some interfaces kept, or None if that is refused.

    Args:
        host: the host after the fix.
        keep: the entries.
        config: the config, whose other entries may contradict these.
    """
    wanted = config.static_routes
    everything = attrs.evolve(wanted, enabled=True, keep=(*wanted.keep, *keep))
    try:
        routing_of(host.state, everything, config.uplinks)
        routing = routing_of(host.state, StaticRoutes(enabled=True, keep=keep), config.uplinks)
    except RouteError:
        return None
    rules = with_added(host.state.rules, routing.rules)
    model = host.model.with_routes(routing.routes).with_rules(rules)
    state = attrs.evolve(host.state, rules=rules, routes=model.known.routes, is_merged=False)
    return attrs.evolve(host, state=state, model=model)
