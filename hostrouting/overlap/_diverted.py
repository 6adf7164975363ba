"""Find the packets that a plan diverts although no expected CIDR requires it.

A config may list more than the fix for its expected CIDRs, or less: for example, the routes of the
fix without its ``keep``. The models of the host before and after the plan are compared
(``_losses``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

import attrs

from hostrouting.config.routing import Config, Keep
from hostrouting.kernel.port import RouteBackend
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, numbers
from hostrouting.model.links import is_like
from hostrouting.model.routes import Route, Table, destination_words
from hostrouting.model.text import shortened
from hostrouting.model.values import frozen
from hostrouting.overlap._diversions import Diversions
from hostrouting.overlap._group import findings_and_notes
from hostrouting.overlap._judge import Judge
from hostrouting.overlap._keep import Keeping, KeepSearch
from hostrouting.overlap._losses import (
    Loss,
    changed_prefixes,
    lines_with_losses,
    losses,
    taken_away,
)
from hostrouting.overlap._modelled_host import ModelledHost
from hostrouting.overlap._read import Moment, read_host
from hostrouting.overlap._state import State
from hostrouting.overlap.proposals import OFFER
from phases import CancelScope

# A host may have thousands of gateways at failing addresses, such as one for each node. To look all
# of them up would take long, and tell nothing else.
_GATEWAYS_MAX = 64

# A sentence names at most this many destinations.
_SHOWN_DESTINATIONS = 4


@frozen
class Diverted:
    """Packets that a plan diverts.

    Args:
        others: a sentence for each kind of packets, except those in ``kept``.
        kept: a clause for each kind of packets that would stay on InfiniBand with ``keep``.
        keep: the entries that would keep these packets on InfiniBand.
        how_to_keep: a sentence with the advice to add ``keep``, or an empty string.
    """

    others: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    keep: tuple[Keep, ...] = ()
    how_to_keep: str = ""

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return a sentence for each kind of packets; those in ``kept`` come with the advice."""
        return (*self.others, *(f"{clause}; {self.how_to_keep}" for clause in self.kept))


def diverted(
    config: Config,
    before: ModelledHost,
    after: ModelledHost,
    ipv4: RouteBackend,
    scope: CancelScope,
) -> Diverted:
    """Return the packets that a plan diverts.

    Packets to failing expected addresses are meant to be diverted. Such packets only count if an
    interface other than an uplink has their source, if the address is the gateway of another
    program's route, or if neighbours of an interface other than InfiniBand may have the address.

    Args:
        config: the planned config.
        before: the host before the plan, without places.
        after: the host after the plan, without places.
        ipv4: see ``uplinks.read_uplinks``.
        scope: cancels the reads of the models.
    """
    failing = _failing(config, before, ipv4, scope)
    found = losses(before, after, failing)
    unasked = [loss for loss in found if loss.source is not None or not loss.is_intended]
    named = (
        *_lost_gateways(failing, before, after),
        *_lost_mtus(before, after),
        *_lost_neighbours(found, config, before),
    )
    if not any(map(_is_to_own_network, unasked)):
        return Diverted((*named, *taken_away(unasked)))
    after = attrs.evolve(after, places=_judged(config, after, ipv4, scope).places)
    keeping = _keeping(config, before, after, found, failing)
    kept = [loss for loss in unasked if _is_from(keeping.kept, loss)]
    offered = [loss for loss in unasked if _is_from(keeping.offers, loss)]
    others = [loss for loss in unasked if loss not in kept and loss not in offered]
    how = _how_to_keep(kept, keeping.keep, config)
    sentences = (*named, *taken_away(others), *_offered(offered, keeping, config))
    return Diverted(sentences, tuple(taken_away(kept)), keeping.keep, how)


def _failing(
    config: Config,
    host: ModelledHost,
    ipv4: RouteBackend,
    scope: CancelScope,
) -> list[IpNetwork]:
    """Return the failing expected addresses; if the uplinks are unknown, all expected ones."""
    overlap = config.route_overlap.of(host.state.family)
    moment = _judged(config, host, ipv4, scope)
    if moment.state.uplinks.unknown is not None:
        return [each.cidr for each in overlap.expected_cidrs]
    findings, _ = findings_and_notes(overlap, moment.state, moment.places)
    return [part for finding in findings for part in finding.ranges]


def _lost_gateways(
    failing: Iterable[IpNetwork],
    before: ModelledHost,
    after: ModelledHost,
) -> Iterator[str]:
    """Yield a sentence for each gateway of another program's route whose packets a plan diverts.

    A fix never diverts packets to a gateway (``_constraint``), but a config may list the fix of
    another host.
    """
    reached = PrefixSet(map(numbers, failing), before.state.family.bits)
    routes: dict[IpAddress, Route] = {}
    for gateway, route in _gateways_of_others(before.state.routes):
        if reached.overlaps(int(gateway), int(gateway)):
            routes.setdefault(gateway, route)
    gateways = [*routes][:_GATEWAYS_MAX]
    led = zip(before.model.lookup(gateways), after.model.lookup(gateways), strict=True)
    for gateway, (old, new) in zip(gateways, led, strict=True):
        if old.route is None or new.route is None or old.route.devs == new.route.devs:
            continue
        yield (
            f"packets no longer go to {gateway}, the gateway of {routes[gateway]}, through "
            f"{','.join(old.route.devs)}, but through {','.join(new.route.devs)}"
        )


def _gateways_of_others(routes: Iterable[Route]) -> Iterator[tuple[IpAddress, Route]]:
    """Yield the gateways of other programs' routes in table main, with their routes."""
    for route in routes:
        if route.table == Table.MAIN and not route.is_ours:
            yield from ((hop.gateway, route) for hop in route.hops if hop.gateway is not None)


def _lost_mtus(before: ModelledHost, after: ModelledHost) -> Iterator[str]:
    """Yield a sentence for each mtu of a route that a new route of the plan precedes without one.

    The packets leave through the same interface as before, so they are no ``Loss``.
    """
    if all(route.mtu is None for route in before.state.routes):
        return
    found: dict[tuple[int | None, tuple[str, ...]], list[str]] = {}
    for prefix in changed_prefixes(before, after):
        old = _main_route(before, prefix)
        new = _main_route(after, prefix)
        if old is not None and new is not None and _loses_mtu(old, new, before.state):
            found.setdefault((old.mtu, new.devs), []).append(destination_words(new.destination))
    for (mtu, devs), destinations in found.items():
        shown = shortened(destinations, " ", _SHOWN_DESTINATIONS)
        yield (
            f"packets to {shown} through {','.join(devs)} lose their route's mtu of {mtu}, and"
            " larger ones may be dropped; static routes get the mtu of the default route"
        )


def _loses_mtu(old: Route, new: Route, state: State) -> bool:
    """Return whether a route through the same interface allows larger packets than the old one."""
    if old.mtu is None or old.devs != new.devs:
        return False
    usual = min((state.mtus.get(dev, old.mtu + 1) for dev in new.devs), default=0)
    return (new.mtu or usual) > old.mtu


def _main_route(host: ModelledHost, prefix: Prefix) -> Route | None:
    """Return the route of table main for a whole prefix, or None."""
    lengths = host.model.fib.tables.get(Table.MAIN, {})
    bits = host.state.family.bits
    for length in range(prefix[1], -1, -1):
        network = prefix[0] >> (bits - length) << (bits - length)
        if routes := lengths.get(length, {}).get(network):
            return routes[0]
    return None


def _lost_neighbours(
    found: Iterable[Loss],
    config: Config,
    before: ModelledHost,
) -> Iterator[str]:
    """Yield a sentence for each network of failing addresses, except for InfiniBand's.

    InfiniBand's neighbours aren't reached by packets without a source.
    """
    is_infiniband = _infiniband(config, before)
    for line in lines_with_losses(found):
        loss = line.of_neighbours
        if loss is None or not loss.is_intended:
            continue
        devs = tuple(dev for dev in loss.neighbours_of if not is_infiniband(dev))
        if devs:
            # If packets from the interfaces' own addresses are lost, too, another sentence says so.
            # Then this sentence has no clause that excepts them.
            are_own_lost = not {*devs}.isdisjoint(line.senders)
            loss = attrs.evolve(loss, neighbours_of=devs, spares_own=not are_own_lost)
            yield from taken_away([loss])


def _judged(
    config: Config,
    host: ModelledHost,
    ipv4: RouteBackend,
    scope: CancelScope,
) -> Moment:
    """Read a modelled host, and judge its places as a check does."""
    overlap = config.route_overlap.of(host.state.family)
    if not overlap.expected_cidrs:
        return Moment(host.state, host.places)
    moment = read_host(attrs.evolve(config, route_overlap=overlap), host.model, scope, ipv4)
    Judge(overlap, moment.state).judge(moment.places)
    return moment


def _is_from(devs: Container[str], loss: Loss) -> bool:
    """Return whether a loss is of packets from one of ``devs`` to that interface's neighbours."""
    return _is_to_own_network(loss) and loss.sender in devs


def _is_to_own_network(loss: Loss) -> bool:
    """Return whether a loss is of packets from an interface's address to its neighbours."""
    return loss.source is not None and loss.sender in loss.neighbours_of


def _keeping(
    config: Config,
    before: ModelledHost,
    after: ModelledHost,
    found: tuple[Loss, ...],
    failing: Sequence[IpNetwork],
) -> Keeping:
    """Return the interfaces that can be kept without making an expected address fail."""
    is_infiniband = _infiniband(config, after)
    # An installed route may divert packets once their rules of keep are removed.
    ours = [route for route in after.state.routes if route.is_ours]
    return KeepSearch(before, after, found, failing, config, is_infiniband, ours).find()


def _infiniband(config: Config, host: ModelledHost) -> Callable[[str], bool]:
    """Return a function that returns whether an interface is an InfiniBand interface."""
    containers = config.route_overlap.of(host.state.family).container_devs
    return Diversions(host.state, containers).is_infiniband


# --- the words ------------------------------------------------------------------------------------


def _offered(offered: Sequence[Loss], keeping: Keeping, config: Config) -> Iterator[str]:
    entries = [keeping.offers[dev] for dev in _senders(offered)]
    how = _how_to_keep(offered, entries, config)
    but = "".join(f", but {line}" for line in keeping.offers_lose)
    for clause in taken_away(offered):
        yield f"{clause}; {how}{but}"


def _how_to_keep(found: Iterable[Loss], keep: Sequence[Keep], config: Config) -> str:
    """Return the advice to add ``keep`` entries for the interfaces that send the lost packets."""
    devs = _senders(found)
    listed = tuple(entry.dev for entry in config.static_routes.keep)
    is_listed = any(is_like(dev, listed) for dev in devs)
    adding = f"{OFFER}, as its first entry" if is_listed else OFFER
    entries = ", ".join(json.dumps(entry.to_mapping()) for entry in keep)
    where = "on their interfaces" if len(devs) > 1 else f"on {''.join(devs)}"
    return f"to keep them {where}, {adding}: {entries}"


def _senders(found: Iterable[Loss]) -> list[str]:
    return [*dict.fromkeys(loss.sender for loss in found)]
