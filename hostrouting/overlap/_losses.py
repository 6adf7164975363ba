"""Find packets that work now, but that a change would divert or drop.

This module does no I/O.

``_cautions`` puts the losses into words. Each proposed change is proven by this comparison of two
models of the host, before and after the change: it must take away only the packets that its text
names. Only the prefixes that the change may affect are compared. The prefixes are cut into places
wherever a route or rule of one of the models begins or ends. Then both models are asked about one
address of each place. Three kinds of packets are compared: without a source, from each of the
host's own addresses, and from outside.

A packet to a failing address isn't a loss, because the change is meant to divert the packet. But in
two cases, the packet may be wanted on the interface that carries it now, and is a loss: the
destination is in that interface's connected network, or the source is one of its addresses.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import attrs

from hostrouting.kernel.fib import Fib
from hostrouting.kernel.rules import LOOPBACK, NO_SOURCE, TCP, UDP, Flow
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, PrefixIndex, PrefixSet, ends, numbers
from hostrouting.model.links import Address
from hostrouting.model.routes import Route, RouteType, destination_words
from hostrouting.model.text import shortened, with_runs
from hostrouting.model.values import frozen
from hostrouting.overlap._affected import affected
from hostrouting.overlap._ask import asks_local_first, selects_source, separates_tcp
from hostrouting.overlap._cut import Cutter
from hostrouting.overlap._fewest_prefixes import networks_of, summary_of
from hostrouting.overlap._modelled_host import ModelledHost
from hostrouting.overlap._places import Place, Places, Span
from hostrouting.overlap._senders import OwnAddresses, Senders
from hostrouting.overlap._state import State

# A line of text lists at most this many items.
_SHOWN = 8
# If a loss has more prefixes than this, a single prefix around them is shown.
_EXACT_MAX = 6
# These words replace the names of several interfaces in a loss. Each of the interfaces carries the
# packets from its own addresses, before the change or after it.
_THEIR_INTERFACES = ("their interfaces",)
# At most this many packets from own addresses are compared. With hundreds of prefixes, and hundreds
# of addresses that rules distinguish, a comparison would take minutes.
_COMPARED_MAX = 50_000


@frozen
class Loss:
    """Packets that work now, but that a change diverts or drops.

    Args:
        ranges: the packets' destinations, or a prefix around them if these are many.
        source: the local address that sends the packets. The source may be an example of several
            addresses of its interface. None for packets without a chosen source.
        sender: the interface that has the source, or an empty string.
        arrives_on: the interface through which packets from outside come in, or an empty string for
            packets from this host.
        before: the interfaces that carry the packets before the change; the loopback interface if
            the packets are delivered here. If only the gateways change, they are included.
        after: the interfaces that carry the packets after the change; empty if the packets are
            dropped. If only the gateways change, they are included.
        network: the connected network of an interface in ``before`` that contains the destinations,
            or None.
        neighbours_of: the interfaces that are connected to ``network``.
        is_intended: whether the destinations are failing addresses, to which the change diverts
            packets on purpose.
        is_partial: whether the ranges contain other addresses, too, because the exact prefixes are
            too many.
        spares_own: whether packets to ``network`` from the addresses of ``neighbours_of`` stay.
        is_tied: whether the packets go to the sender's network, through the uplinks before the
            change and through the sender's interface after it.
        uncompared: 0, or the number of packets if they are too many to compare. Then the losses are
            unknown, and ``losses`` returns only this ``Loss``.
    """

    ranges: tuple[IpNetwork, ...]
    source: IpAddress | None
    sender: str
    arrives_on: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    network: IpNetwork | None = None
    neighbours_of: tuple[str, ...] = ()
    is_intended: bool = False
    is_partial: bool = False
    spares_own: bool = attrs.field(default=False, eq=False)
    is_tied: bool = False
    uncompared: int = 0

    @property
    def is_forbidden(self) -> bool:
        """Return whether a change with this loss must not be proposed."""
        return bool(self.arrives_on) or (self.source is None and not self.is_intended)

    @property
    def is_unknown(self) -> bool:
        """Return whether the packets weren't compared, because there are too many."""
        return self.uncompared > 0


def losses(
    before: ModelledHost,
    after: ModelledHost,
    intended: Iterable[IpNetwork] = (),
) -> tuple[Loss, ...]:
    """Return the packets that a change of a host diverts or drops.

    Args:
        before: the host before the change.
        after: the host after the change, with a model made from that of ``before``.
        intended: the failing addresses whose packets the change diverts on purpose.
    """
    changed = changed_prefixes(before, after)
    return _Comparison(before, after, changed, [*intended]).losses() if changed else ()


def taken_away(found: Iterable[Loss]) -> list[str]:
    """Return lines that say which packets are lost, one for each kind of loss."""
    return [each.text for each in lines_with_losses(found)]


class LossLine(NamedTuple):
    """A line that says which packets are lost.

    Args:
        text: the line.
        of_neighbours: the loss, if the packets have no source and go to neighbours; else None.
        senders: the interfaces that have the sources of the lost packets.
    """

    text: str
    of_neighbours: Loss | None = None
    senders: Sequence[str] = ()


def lines_with_losses(found: Iterable[Loss]) -> Iterator[LossLine]:
    """Yield lines that say which packets are lost, one for each kind of loss."""
    by_packets: dict[Loss, list[Loss]] = {}
    for loss in found:
        by_packets.setdefault(attrs.evolve(loss, source=None, sender=""), []).append(loss)
    for plain, of_sources in _through_their_own(by_packets).items():
        devs = [*dict.fromkeys(loss.sender for loss in of_sources if loss.source is not None)]
        if plain not in of_sources:
            named = ", ".join(with_runs(devs))
            yield LossLine(f"packets from the addresses of {named} {_no_longer(plain)}")
        elif plain.network is None:
            yield LossLine(_words(plain))
        else:
            yield LossLine(f"{_words(plain)}{_own_clause(plain, devs)}", plain, devs)


def _through_their_own(by_packets: Mapping[Loss, list[Loss]]) -> dict[Loss, list[Loss]]:
    """Join losses of packets that use their senders' own interfaces, either before or after."""
    joined: dict[Loss, list[Loss]] = {}
    for plain, of_sources in by_packets.items():
        if all(_is_of_sender(loss, loss.before) for loss in of_sources):
            kind = attrs.evolve(plain, before=_THEIR_INTERFACES)
        elif all(_is_of_sender(loss, loss.after) for loss in of_sources):
            kind = attrs.evolve(plain, after=_THEIR_INTERFACES)
        else:
            kind = plain
        joined.setdefault(kind, []).extend(of_sources)
    by_carriers: dict[Loss, list[Loss]] = {}
    for kind, of_sources in joined.items():
        before = {loss.before for loss in of_sources}
        after = {loss.after for loss in of_sources}
        carried = attrs.evolve(
            kind,
            before=before.pop() if len(before) == 1 else _THEIR_INTERFACES,
            after=after.pop() if len(after) == 1 else _THEIR_INTERFACES,
        )
        by_carriers[carried] = of_sources
    return by_carriers


def _lost_by_senders(found: Iterable[Loss], bits: int) -> dict[str, PrefixSet]:
    """Return the addresses that each interface's own packets no longer reach through it."""
    taken: dict[str, list[IpNetwork]] = {}
    for loss in found:
        if _is_of_sender(loss, loss.before):
            taken.setdefault(loss.sender, []).extend(loss.ranges)
    return {dev: PrefixSet(map(numbers, ranges), bits) for dev, ranges in taken.items()}


def _with_spared(found: Sequence[Loss], bits: int) -> Iterator[Loss]:
    """Yield all losses of packets from this host, with ``spares_own``."""
    unspared = _lost_by_senders(found, bits)
    for loss in found:
        devs = [dev for dev in loss.neighbours_of if dev in unspared]
        if devs and loss.is_intended:
            spans = [ends(numbers(part), bits) for part in loss.ranges]
            devs = [dev for dev in devs if any(unspared[dev].overlaps(*span) for span in spans)]
        yield attrs.evolve(loss, spares_own=not devs)


def _is_of_sender(loss: Loss, carriers: tuple[str, ...]) -> bool:
    return carriers == (loss.sender,) != (LOOPBACK,)


def _words(loss: Loss) -> str:
    """Return a clause about lost packets that have no source, or that come in from other hosts."""
    if loss.is_unknown:
        return f"what is lost isn't known: that takes {loss.uncompared:,} lookups"
    to = _shown_ranges(loss)
    after = ",".join(loss.after)
    if loss.arrives_on:
        return f"what comes in through {loss.arrives_on} for {to} is no longer delivered"
    if loss.network is not None and after:
        devs = ", ".join(with_runs(loss.neighbours_of))
        network = _network_words(loss)
        return f"the node then sends to neighbours of {devs} in {network} through {after}"
    return f"packets {_no_longer(loss)}"


def _network_words(loss: Loss) -> str:
    """Return a loss's ranges if these are few parts of its connected network, or the network."""
    networks = {*loss.ranges}
    size = sum(network.num_addresses for network in networks)
    is_part = loss.network is not None and size < loss.network.num_addresses
    if is_part and len(networks) <= _EXACT_MAX:
        return " ".join(map(str, loss.ranges))
    return str(loss.network)


def _no_longer(loss: Loss) -> str:
    if loss.before == (LOOPBACK,):
        return f"to {_shown_ranges(loss)} are no longer delivered to this host"
    before = ",".join(loss.before)
    instead = f", but through {','.join(loss.after)}" if loss.after else ": they are dropped"
    return f"no longer go to {_shown_ranges(loss)} through {before}{instead}"


def _own_clause(loss: Loss, senders: Sequence[str]) -> str:
    """Return a clause on whether the interfaces' own addresses still reach neighbours."""
    devs = [dev for dev in loss.neighbours_of if dev in senders]
    if not devs and loss.spares_own and loss.after:
        return f", except from {own_addresses(loss.neighbours_of)}"
    if len(devs) == len(loss.neighbours_of):
        return f", also from {own_addresses(devs)}"
    return f", also from the addresses of {', '.join(with_runs(devs))}" if devs else ""


def own_addresses(devs: Sequence[str]) -> str:
    """Return words such as ``this interface's own addresses``, for interfaces named before."""
    owners = "this interface's" if len(devs) == 1 else "these interfaces'"
    return f"{owners} own addresses"


def _shown_ranges(loss: Loss) -> str:
    if any(not part.prefixlen for part in loss.ranges):
        return "other addresses"
    inside = "addresses in " if loss.is_partial else ""
    return inside + shortened([*map(destination_words, loss.ranges)], " ", _SHOWN)


# --- where results may differ ---------------------------------------------------------------------


def changed_prefixes(before: ModelledHost, after: ModelledHost) -> list[Prefix]:
    """Return the prefixes in which the models of two hosts may give different results."""
    old = before.model.changed
    new = after.model.changed
    if new[: len(old)] == old:
        new = new[len(old) :]
        old = ()
    return [*dict.fromkeys((*old, *new))]


@frozen
class _Result:
    """The interfaces and next hops that a packet takes.

    Args:
        devs: the interfaces that carry the packet; empty if the packet is dropped.
        hops: the next hops through which the packet may leave.
        route: the entry that the packet matches; None if it doesn't matter.
    """

    devs: tuple[str, ...] = ()
    hops: frozenset[tuple[str | None, IpAddress | None]] = frozenset()
    route: Route | None = attrs.field(default=None, eq=False)


_DROPPED = _Result()
# Broadcast packets aren't compared, because few programs send them.
_BROADCAST = _Result(("broadcast",))


class _Change(NamedTuple):
    """How a change affects packets that are reported together; see ``Loss``.

    Args:
        senders: the own addresses that send the packets, or the sender without a source.
        before: the interfaces before the change, with gateways if only gateways change.
        after: the interfaces after the change, with gateways if only gateways change.
        devs: the interfaces before the change, without gateways.
        network: see ``Loss``.
        is_intended: see ``Loss``.
        homes: see ``_Comparison._homes``; without ``ties``.
        ties: see ``_Comparison._ties``.
        is_by_source: whether packets without a source stay, or are led elsewhere than these.
    """

    senders: Senders
    before: tuple[str, ...]
    after: tuple[str, ...]
    devs: tuple[str, ...]
    network: IpNetwork | None
    is_intended: bool
    homes: frozenset[Prefix]
    ties: frozenset[Prefix]
    is_by_source: bool = False


class _Comparison:
    """The comparison of the packets that a host sends and receives before and after a change.

    ``_changes`` compares the packets to one place, ``_losses_of_incoming`` those that come in.
    """

    def __init__(
        self,
        before: ModelledHost,
        after: ModelledHost,
        changed: Sequence[Prefix],
        intended: Sequence[IpNetwork],
    ) -> None:
        state = before.state
        self._family = state.family
        self._bits = state.family.bits
        self._uplinks = {*state.uplinks.devs}
        self._old = before.model.fib
        self._new = after.model.fib
        self._loopback = self._old.loopback
        # The uplinks and lo. A check asks about replies from their addresses (called_addresses).
        self._of_cluster = {*self._uplinks, self._loopback}
        self._changed = PrefixIndex(changed, self._bits)
        self._is_changed = PrefixSet(changed, self._bits)
        self._is_intended = PrefixSet(map(numbers, intended), self._bits).covers
        self._rules = (*before.model.known.rules, *after.model.known.rules)
        routes = chain(after.model.known.routes, before.model.known.routes)
        self._routes = tuple(dict.fromkeys(routes))
        still = {*after.model.known.addresses}
        own = [address for address in _sending(state) if address in still]
        rules = (before.model.known.rules, after.model.known.rules)
        self._still_own = own
        sending = affected(own, self._old, self._new)
        self._senders = OwnAddresses(sending, rules, self._routes, self._bits)
        known = before.model.known
        self._old_selects_source = selects_source(known.rules, known.routes, self._family)
        self._own_addresses = {address.local for address in state.addresses}
        self._gone = self._own_addresses - {address.local for address in still}
        self._networks = _connected(own, self._bits)
        self._connected = PrefixIndex(self._networks, self._bits)
        self._protocols = (UDP, TCP) if separates_tcp(self._rules) else (UDP,)
        self._places = self._cut(changed, intended)
        # The places as cut without the intended ranges; see ``_places_with_equal_lookups``.
        self._undivided = self._cut(changed, ()) if intended else self._places

    def _cut(self, changed: Sequence[Prefix], intended: Iterable[IpNetwork]) -> Places:
        borders = chain(map(numbers, intended), self._networks)
        cutter = Cutter(self._family, changed, (), self._rules, [(0, 0)])
        return cutter.cut(self._routes, borders)

    def losses(self) -> tuple[Loss, ...]:
        alike = self._places_with_equal_lookups()
        count = self._count(places[0] for places in alike)
        if count > _COMPARED_MAX:
            return (Loss((), None, "", "", (), (), uncompared=count),)
        groups: dict[_Change, list[Span]] = {}
        for places in alike:
            spans = [span for place in places for span in place.spans]
            for change in dict.fromkeys(self._changes(places[0])):
                groups.setdefault(change, []).extend(spans)
        sent: list[Loss] = []
        for change, spans in groups.items():
            sent += self._losses(change, sorted(spans, key=_first))
        return (*_with_spared(sent, self._bits), *self._losses_of_incoming())

    def _places_with_equal_lookups(self) -> Collection[list[Place]]:
        """Return lists of places with equal lookups; comparing one place of each list is enough.

        Many own addresses between the failing ones cut the intended ranges into many places.
        """
        alike: dict[tuple[Place, bool], list[Place]] = {}
        for place in self._places:
            single = (int(place.probe), self._bits)
            (span,) = self._undivided.overlapping(single)
            alike.setdefault((span.place, self._is_intended(single)), []).append(place)
        return alike.values()

    def _count(self, places: Iterable[Place]) -> int:
        """Return how many packets must be compared: those from own addresses to some places."""
        probes = (int(place.probe) for place in places)
        senders = sum(len(self._senders.senders_to(each)) - 1 for each in probes)
        return senders * len(self._protocols)

    def _losses(self, change: _Change, spans: Sequence[Span]) -> Iterator[Loss]:
        """Yield a loss for each source whose packets a change loses."""
        network = change.network
        losing = self._losing_sources(change, spans)
        lost = [address for address in losing if not _stays(address, change.homes, change)]
        if not lost:
            return
        ranges, is_partial = self._ranges(spans, network)
        plain = Loss(
            ranges,
            None,
            "",
            "",
            change.before,
            change.after,
            network,
            () if network is None else self._neighbours_of(network, change.devs),
            change.is_intended,
            is_partial,
        )
        for address in lost:
            if address is None:
                yield plain
            else:
                is_tied = _stays(address, change.ties, change)
                owner = address.dev
                yield attrs.evolve(plain, source=address.local, sender=owner, is_tied=is_tied)

    def _neighbours_of(self, network: IpNetwork, carriers: Sequence[str]) -> tuple[str, ...]:
        """Return the interfaces connected to a network; uplinks only if they carry its packets."""
        devs = self._networks[numbers(network)]
        uplinks = tuple(dev for dev in devs if dev in self._uplinks and dev in carriers)
        return uplinks or tuple(dev for dev in devs if dev not in self._uplinks)

    def _losing_sources(
        self,
        change: _Change,
        spans: Iterable[Span],
    ) -> Sequence[Address | None]:
        """Return the sources whose packets a change loses; None for packets without a source.

        - A change that isn't intended loses the packets from all sources.
        - An intended change that only moves packets with a source, as ``keep`` does, or moves them
          elsewhere than others, loses those from other interfaces than the cluster's.
        - An intended change of packets to neighbours loses those from near sources, except from
          the cluster's interfaces.
        - An intended change of packets that this host has received itself loses none if they go to
          this host's own addresses. Otherwise, a local route led them here, and it loses those
          without a source.
        """
        if not change.is_intended:
            return change.senders.addresses
        if change.is_by_source:
            return self._of_others(change.senders.addresses)
        if change.devs != (self._loopback,):
            return self._of_others(change.senders.near(change.devs, change.network))
        if all(span.place.probe in self._own_addresses for span in spans):
            return []
        return [each for each in change.senders.addresses if each is None]

    def _of_others(self, senders: Iterable[Address | None]) -> list[Address | None]:
        """Return the senders that aren't addresses of the cluster's interfaces."""
        return [each for each in senders if each is None or each.dev not in self._of_cluster]

    def _ranges(
        self,
        spans: Sequence[Span],
        network: IpNetwork | None,
    ) -> tuple[tuple[IpNetwork, ...], bool]:
        """Return few prefixes that cover spans, and whether they contain any other addresses.

        Each prefix is inside a changed prefix.
        """
        ranges: list[IpNetwork] = []
        is_partial = False
        for prefix, inside in self._by_changed_prefix(spans, network).items():
            exact = summary_of(inside, self._places.spans, self._local, self._family)
            is_short = len(exact) <= _EXACT_MAX
            ranges += exact if is_short else [self._family.network(prefix)]
            is_partial = is_partial or not (is_short or exact == [self._family.network(prefix)])
        if network is not None:
            return tuple(ranges), False
        ordered = sorted({*ranges})
        joined = [Span(*ends(numbers(each), self._bits), spans[0].place) for each in ordered]
        return networks_of(joined, self._family), is_partial

    def _by_changed_prefix(
        self,
        spans: Iterable[Span],
        network: IpNetwork | None,
    ) -> dict[Prefix, list[Span]]:
        """Return spans by the changed prefix around each, or by ``network`` if that is smaller."""
        by_prefix: dict[Prefix, list[Span]] = {}
        for span in spans:
            prefix = next(self._changed.around((span.first, self._bits)))
            if network is not None and prefix[1] < network.prefixlen:
                prefix = numbers(network)
            by_prefix.setdefault(prefix, []).append(span)
        return by_prefix

    @cached_property
    def _local(self) -> set[Span]:
        """Return the spans of local and broadcast addresses."""
        kinds = (RouteType.LOCAL, RouteType.BROADCAST)
        local = set[Span]()
        for place in self._places:
            route = self._old.decide(Flow(place.probe)).route
            if route is not None and route.type in kinds:
                local.update(place.spans)
        return local

    # --- what is sent ---------------------------------------------------------------------------

    def _changes(self, place: Place) -> Iterator[_Change]:
        """Yield a ``_Change`` for each sender whose packets to a place are diverted or dropped."""
        if place.probe in self._gone:
            return
        number = int(place.probe)
        senders = self._senders.senders_to(number)
        depend_on_source = self._senders.depend_on_source(number)
        for protocol in self._protocols:
            plain = Flow(place.probe, protocol=protocol)
            plain_before = _result(self._old, plain)
            plain_after = _result(self._new, plain)
            for each in senders:
                before = plain_before
                after = plain_after
                if depend_on_source:
                    flow = Flow(place.probe, each.source, protocol)
                    after = _result(self._new, flow)
                    if self._old_selects_source:
                        before = _result(self._old, flow)
                if self._is_loss(place.probe, before, after):
                    change = self._change(place, each, before, after)
                    is_plain = plain_before != plain_after == after
                    yield change._replace(is_by_source=not is_plain)

    def _is_loss(self, address: IpAddress, before: _Result, after: _Result) -> bool:
        """Return whether a change diverts or drops packets that were sent before.

        Packets to an own address that are delivered here after the change aren't lost.
        """
        if before in (_DROPPED, after) or _BROADCAST in (before, after):
            return False
        return after.devs != (self._loopback,) or address not in self._own_addresses

    def _change(
        self,
        place: Place,
        senders: Senders,
        before: _Result,
        after: _Result,
    ) -> _Change:
        number = int(place.probe)
        around = [*self._connected.around((number, self._bits))]
        of_devs = (each for each in around if not {*before.devs}.isdisjoint(self._networks[each]))
        network = next(of_devs, None)
        has_same_devs = before.devs == after.devs
        homes = self._homes(around, before, after)
        ties = self._ties(homes, before)
        return _Change(
            senders,
            _with_gateways(before) if has_same_devs else before.devs,
            _with_gateways(after) if has_same_devs else after.devs,
            before.devs,
            None if network is None else self._family.network(network),
            self._is_intended((number, self._bits)),
            homes - ties,
            ties,
        )

    def _homes(
        self,
        around: Iterable[Prefix],
        before: _Result,
        after: _Result,
    ) -> frozenset[Prefix]:
        """Return the connected networks in which packets go straight to their destination.

        The packets leave through a single interface after the change, which has these networks.

        Args:
            around: the connected networks that contain the destination.
            before: how the packets leave before the change.
            after: how the packets leave after the change.
        """
        if len(after.devs) != 1:
            return frozenset()
        shortest = 0
        # A longer entry inside a connected network led to another network, such as that of this
        # host's pods or of an uplink. A static route of ours through an uplink is different: it
        # corrects what shadows an expected CIDR, and keep is meant to precede it.
        if before.route is not None and not self._is_correction(before.route):
            shortest = before.route.destination.prefixlen
            # So did one to all of it that leads to another network, such as a VPN's.
            shortest += self._is_beyond(before.route)
        return frozenset(
            each for each in around if each[1] >= shortest and after.devs[0] in self._networks[each]
        )

    def _ties(self, homes: frozenset[Prefix], before: _Result) -> frozenset[Prefix]:
        """Return the networks of ``homes`` whose packets a route through the uplinks carries."""
        route = before.route
        if route is None or self._is_correction(route) or not self._uplinks.issuperset(route.devs):
            return frozenset()
        return homes & {numbers(route.destination)}

    def _is_beyond(self, route: Route) -> bool:
        """Return whether a route leads neither to a connected network nor through the uplinks."""
        connected = self._networks.get(numbers(route.destination), {})
        return self._uplinks.isdisjoint(route.devs) and connected.keys().isdisjoint(route.devs)

    def _is_correction(self, route: Route) -> bool:
        return route.is_ours and self._uplinks.issuperset(route.devs)

    # --- what arrives ---------------------------------------------------------------------------

    def _losses_of_incoming(self) -> Iterator[Loss]:
        """Yield a loss for each address of this host at which packets no longer arrive."""
        if asks_local_first(self._old.rules) and asks_local_first(self._new.rules):
            return
        senders = [NO_SOURCE, *self._other_senders()]
        for address in self._still_own:
            number = int(address.local)
            if not self._is_changed.overlaps(number, number):
                continue
            for iif in self._incoming_devs(address):
                flow = self._undelivered_flow(address.local, iif, senders)
                if flow is not None:
                    single = self._family.network((number, self._bits))
                    after = _result(self._new, flow).devs
                    yield Loss((single,), None, "", iif, (self._loopback,), after)

    def _undelivered_flow(
        self,
        address: IpAddress,
        iif: str,
        senders: Iterable[IpAddress],
    ) -> Flow | None:
        """Return the first flow to a local address that is no longer delivered after the change."""
        for sender in senders:
            for protocol in self._protocols:
                flow = Flow(address, sender, protocol, iif=iif)
                if self._is_undelivered(flow):
                    return flow
        return None

    def _is_undelivered(self, flow: Flow) -> bool:
        here = (self._loopback,)
        return _result(self._old, flow).devs == here and _result(self._new, flow).devs != here

    def _incoming_devs(self, address: Address) -> list[str]:
        """Return the interfaces through which packets to an own address may come in."""
        own = [] if address.dev == self._loopback else [address.dev]
        return [*dict.fromkeys((*own, *sorted(self._uplinks)))]

    def _other_senders(self) -> Iterator[IpAddress]:
        """Yield addresses that aren't this host's, from each source prefix of the rules."""
        own = {address.local for address in self._still_own}
        for prefix in dict.fromkeys(rule.source for rule in self._rules):
            if prefix is None:
                continue
            first, last = int(prefix[0]), int(prefix[-1])
            # Of more addresses than this host has, at least one isn't this host's.
            numbers_inside = range(first, min(last, first + len(own)) + 1)
            inside = map(self._family.address, numbers_inside)
            yield from (each for each in inside if each not in own)


def _sending(state: State) -> Iterator[Address]:
    """Yield the addresses from which packets leave to other hosts, without addresses in VRFs."""
    vrfs = {link.name for link in state.links if link.kind == "vrf"}
    usable = {link.name for link in state.links if link.is_up and link.master not in vrfs}
    for address in state.addresses:
        if address.dev in usable and address.is_usable and not _stays_on_link(address.local):
            yield address


def _stays_on_link(address: IpAddress) -> bool:
    return address.is_link_local or address.is_loopback


def _stays(source: Address | None, networks: Container[Prefix], change: _Change) -> bool:
    """Return whether packets leave through their source's interface, into its network."""
    if source is None:
        return False
    return change.after == (source.dev,) and source.prefix in networks


def _first(span: Span) -> int:
    return span.first


def _connected(addresses: Iterable[Address], bits: int) -> Mapping[Prefix, dict[str, None]]:
    """Return the networks of addresses, each with the interfaces that have an address in it."""
    networks: dict[Prefix, dict[str, None]] = {}
    for address in addresses:
        if address.prefix_length < bits:
            networks.setdefault(address.prefix, {})[address.dev] = None
    return networks


def _result(fib: Fib, flow: Flow) -> _Result:
    decision = fib.decide(flow)
    route = decision.route
    if route is None or decision.errno:
        return _DROPPED
    if route.type is RouteType.LOCAL or (flow.iif and route.type is RouteType.BROADCAST):
        return _Result((fib.loopback,))
    if route.type is RouteType.BROADCAST:
        return _BROADCAST
    live = frozenset((hop.dev, hop.gateway) for hop in route.hops if not hop.is_dead)
    return _Result(route.devs, live, route)


def _with_gateways(result: _Result) -> tuple[str, ...]:
    return tuple(sorted(f"{dev} {f'via {to}' if to else 'on-link'}" for dev, to in result.hops))
