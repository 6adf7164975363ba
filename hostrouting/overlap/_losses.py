"""Find the packets that worked, and that a change of the host leads elsewhere or drops.

This module does no I/O.

Whatever is proposed or advised is proven by this: applied to a model, it must take away nothing but
what the text with it names. Only the prefixes that the change may affect are compared. They are cut
at each prefix of either model, and both models are asked about one address of each place: for a
packet without a source, for one from each of the host's own addresses, and for one that comes in.

A packet to a failing address didn't work, so leading it elsewhere is no loss, with two exceptions:
a neighbour in the connected network of the interface that carries the packet, which may be wanted
there, and a packet from that interface's own address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain

import attrs

from hostrouting.kernel.fib import Fib
from hostrouting.kernel.rules import NO_SOURCE, TCP, UDP, Flow
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, PrefixIndex, PrefixSet, numbers
from hostrouting.model.links import Address
from hostrouting.model.routes import Route, Route6, RouteType, destination_words
from hostrouting.model.rules import Rule
from hostrouting.model.text import shortened
from hostrouting.overlap._ask import separates_tcp
from hostrouting.overlap._cut import Cutter
from hostrouting.overlap._fewest_prefixes import summary_of
from hostrouting.overlap._fixed import ModelledHost
from hostrouting.overlap._places import Place, Places, Span

# A limit for human-readable lines.
_SHOWN = 8


@attrs.frozen
class Loss:
    """Packets that worked, and that a change leads elsewhere or drops.

    Args:
        ranges: their destinations.
        source: the own address that sends them, or None if no source is chosen.
        sender: the interface that has the source, or an empty string.
        arrives_on: for packets from outside to an address of this host, the interface through which
            they come in, or else an empty string.
        before: the interfaces that carried them; the loopback interface if they were delivered.
        after: the interfaces that they take; empty if they are dropped.
        network: the connected network that the destinations are in, if the interfaces that carried
            the packets are connected to it, or else None.
        neighbours_of: the interfaces that are connected to this network.
    """

    ranges: tuple[IpNetwork, ...]
    source: IpAddress | None
    sender: str
    arrives_on: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    network: IpNetwork | None = None
    neighbours_of: tuple[str, ...] = ()


def losses(
    before: ModelledHost,
    after: ModelledHost,
    intended: Iterable[IpNetwork] = (),
) -> tuple[Loss, ...]:
    """Return what a change of a host takes away.

    Args:
        before: the host before the change.
        after: the host after the change, whose model was made from the same host.
        intended: the failing addresses that the change is to lead elsewhere.
    """
    changed = _changed(before, after)
    return _Comparison(before, after, changed, [*intended]).losses() if changed else ()


def taken_away(found: Iterable[Loss]) -> list[str]:
    """Return a line for each kind of loss."""
    by_words: dict[tuple[str, str], list[str]] = {}
    found = [*found]
    for loss in found:
        if not _is_implied(loss, found):
            shown = map(destination_words, loss.ranges)
            by_words.setdefault(_words(loss), []).extend(shown)
    return [
        f"{start} {shortened([*dict.fromkeys(shown)], ' ', _SHOWN)} {end}"
        for (start, end), shown in by_words.items()
    ]


def _is_implied(loss: Loss, found: Iterable[Loss]) -> bool:
    """Return whether packets without a source are lost in the same way."""
    plain = attrs.evolve(loss, source=None, sender="")
    return loss.source is not None and any(plain == other for other in found)


def _words(loss: Loss) -> tuple[str, str]:
    """Return the words before and after the destinations."""
    if loss.arrives_on:
        return f"what comes in through {loss.arrives_on} for", "is no longer delivered"
    whose = "" if loss.source is None else f" from {loss.source} ({loss.sender})"
    instead = f"instead of {','.join(loss.before)}"
    if not loss.after:
        return f"packets{whose} to", f"are then dropped {instead}"
    return f"packets{whose} to", f"then leave through {','.join(loss.after)} {instead}"


# --- where results may differ ---------------------------------------------------------------------


def _changed(before: ModelledHost, after: ModelledHost) -> list[Prefix]:
    """Return the prefixes outside of which both models give the same results."""
    old = before.model.changed
    new = after.model.changed
    if new[: len(old)] == old:
        new = new[len(old) :]
        old = ()
    return [*dict.fromkeys((*old, *new))]


@attrs.frozen
class _Result:
    """The interfaces and next hops that a packet takes.

    Args:
        devs: the interfaces that carry it; empty if it is dropped.
        hops: the next hops.
        destination: the destination of the entry.
    """

    devs: tuple[str, ...] = ()
    hops: frozenset[tuple[str | None, IpAddress | None]] = frozenset()
    destination: IpNetwork | None = attrs.field(default=None, eq=False)


_DROPPED = _Result()
# Such packets aren't compared: few programs send them.
_BROADCAST = _Result(("broadcast",))


class _Sender:
    """The addresses of this host that no rule or route tells apart.

    Args:
        source: one of them, or ``NO_SOURCE``.
        addresses: all of them.
    """

    def __init__(self, source: IpAddress) -> None:
        self.source = source
        self.addresses: list[Address] = []


# The source, the interface through which the packet comes in, and the results.
_Key = tuple[Address | None, str, tuple[str, ...], tuple[str, ...], IpNetwork | None]


class _Comparison:
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
        self._changed = PrefixIndex(changed, self._bits)
        self._is_changed = PrefixSet(changed, self._bits)
        self._is_intended = PrefixSet(map(numbers, intended), self._bits).covers
        self._rules = (*before.model.known.rules, *after.model.known.rules)
        self._routes = (*after.model.known.routes, *before.model.known.routes)
        vrfs = {link.name for link in state.links if link.kind == "vrf"}
        in_vrf = {link.name for link in state.links if link.master in vrfs}
        self._own = [
            address
            for address in state.addresses
            if address.is_usable
            and not address.local.is_link_local
            and not address.local.is_loopback
            and address.dev not in in_vrf
        ]
        self._own_addresses = {address.local for address in state.addresses}
        self._networks = _connected(state.addresses, self._bits)
        self._connected = PrefixIndex(self._networks, self._bits)
        self._protocols = (UDP, TCP) if separates_tcp(self._rules) else (UDP,)
        self._places = self._cut(changed, intended)

    def _cut(self, changed: Sequence[Prefix], intended: Iterable[IpNetwork]) -> Places:
        borders = chain(map(numbers, intended), self._networks)
        cutter = Cutter(self._family, changed, (), self._rules, [(0, 0)])
        routes = dict.fromkeys(self._routes)
        return cutter.cut(routes, borders)

    def losses(self) -> tuple[Loss, ...]:
        groups: dict[_Key, list[Span]] = {}
        senders = self._senders()
        for place in self._places:
            for key in dict.fromkeys(self._lost(place, senders)):
                groups.setdefault(key, []).extend(place.spans)
        sent = [self._loss(key, sorted(spans, key=_first)) for key, spans in groups.items()]
        return (*sent, *self._unheard())

    def _loss(self, key: _Key, spans: Sequence[Span]) -> Loss:
        source, arrives_on, before, after, network = key
        return Loss(
            self._ranges(spans),
            None if source is None else source.local,
            "" if source is None else source.dev,
            arrives_on,
            before,
            after,
            network,
            () if network is None else tuple(self._networks[numbers(network)]),
        )

    def _ranges(self, spans: Sequence[Span]) -> tuple[IpNetwork, ...]:
        """Return few prefixes that cover spans, each inside one that has changed."""
        by_prefix: dict[Prefix, list[Span]] = {}
        for span in spans:
            prefix = next(self._changed.around((span.first, self._bits)))
            by_prefix.setdefault(prefix, []).append(span)
        return tuple(chain.from_iterable(map(self._summary, by_prefix, by_prefix.values())))

    def _summary(self, prefix: Prefix, spans: Sequence[Span]) -> Sequence[IpNetwork]:
        size = sum(span.last - span.first + 1 for span in spans)
        if size == 1 << (self._bits - prefix[1]):
            return [self._family.network(prefix)]
        return summary_of(spans, self._places.spans, self._local, self._family)

    @cached_property
    def _local(self) -> set[Span]:
        """The spans of local and broadcast addresses."""
        kinds = (RouteType.LOCAL, RouteType.BROADCAST)
        local = set[Span]()
        for place in self._places:
            route = self._old.decide(Flow(place.probe)).route
            if route is not None and route.type in kinds:
                local.update(place.spans)
        return local

    # --- what is sent ---------------------------------------------------------------------------

    def _senders(self) -> list[_Sender]:
        """Return a sender without a source, and one for each kind of own addresses."""
        prefixes = _source_prefixes(self._rules, self._routes)
        kinds: dict[frozenset[IpNetwork], _Sender] = {}
        for address in self._own:
            kind = frozenset(prefix for prefix in prefixes if address.local in prefix)
            sender = kinds.setdefault(kind, _Sender(address.local))
            sender.addresses.append(address)
        return [_Sender(NO_SOURCE), *kinds.values()]

    def _lost(self, place: Place, senders: Iterable[_Sender]) -> Iterator[_Key]:
        """Yield the losses of packets from this host to a place."""
        here = (self._loopback,)
        for sender in senders:
            for protocol in self._protocols:
                flow = Flow(place.probe, sender.source, protocol)
                before = _result(self._old, flow)
                after = _result(self._new, flow)
                is_found = after.devs == here and place.probe in self._own_addresses
                if before in (_DROPPED, after) or _BROADCAST in (before, after) or is_found:
                    continue
                network = self._neighbourhood(place.probe, before)
                for address in sender.addresses or (None,):
                    if not self._is_meant(place.probe, address, before, after, network):
                        yield address, "", *_shown(before, after), network

    def _neighbourhood(self, probe: IpAddress, before: _Result) -> IpNetwork | None:
        """Return the connected network of interfaces that carry packets to one of its addresses."""
        for prefix in self._connected.around((int(probe), self._bits)):
            if not {*before.devs}.isdisjoint(self._networks[prefix]):
                return self._family.network(prefix)
        return None

    def _is_meant(
        self,
        probe: IpAddress,
        source: Address | None,
        before: _Result,
        after: _Result,
        network: IpNetwork | None,
    ) -> bool:
        """Return whether packets from a source are to leave otherwise than before."""
        if source is not None and self._stays(probe, source, before, after):
            return True
        if not self._is_intended((int(probe), self._bits)):
            return False
        if source is None:
            return network is None
        if source.dev in self._uplinks or source.dev == self._loopback:
            return True
        return source.dev not in before.devs and source.network != network

    def _stays(
        self,
        probe: IpAddress,
        source: Address,
        before: _Result,
        after: _Result,
    ) -> bool:
        """Return whether packets now stay in the network of the interface that has their source."""
        if after.devs != (source.dev,) or probe not in source.network:
            return False
        if before.destination is None or self._uplinks.issuperset(before.devs):
            return True
        # A longer one is of something else, such as this host's pods.
        return before.destination.prefixlen <= source.network.prefixlen

    # --- what arrives ---------------------------------------------------------------------------

    def _unheard(self) -> Iterator[Loss]:
        """Yield the losses of packets that come in for this host's addresses."""
        senders = [NO_SOURCE, *self._strangers()]
        for address in self._own:
            number = int(address.local)
            if not self._is_changed.overlaps(number, number):
                continue
            for iif in self._entrances(address):
                flows = [
                    Flow(address.local, sender, protocol, iif=iif)
                    for sender in senders
                    for protocol in self._protocols
                ]
                unheard = [flow for flow in flows if self._is_unheard(flow)]
                if unheard:
                    single = self._family.network((number, self._bits))
                    after = _result(self._new, unheard[0]).devs
                    yield Loss((single,), None, "", iif, (self._loopback,), after)

    def _is_unheard(self, flow: Flow) -> bool:
        here = (self._loopback,)
        return _result(self._old, flow).devs == here and _result(self._new, flow).devs != here

    def _entrances(self, address: Address) -> list[str]:
        """Return the interfaces through which packets to an own address may come in."""
        own = [] if address.dev == self._loopback else [address.dev]
        return [*dict.fromkeys((*own, *sorted(self._uplinks)))]

    def _strangers(self) -> Iterator[IpAddress]:
        """Yield a foreign address for each source prefix of the rules."""
        own = {address.local for address in self._own}
        for prefix in _source_prefixes(self._rules, ()):
            first, last = int(prefix[0]), int(prefix[-1])
            numbers_inside = range(first, min(last, first + len(own)) + 1)
            inside = map(self._family.address, numbers_inside)
            yield from (each for each in inside if each not in own)


def _first(span: Span) -> int:
    return span.first


def _connected(addresses: Iterable[Address], bits: int) -> Mapping[Prefix, dict[str, None]]:
    """Return the connected networks, each with the interfaces."""
    networks: dict[Prefix, dict[str, None]] = {}
    for address in addresses:
        if address.prefix_length < bits:
            networks.setdefault(address.prefix, {})[address.dev] = None
    return networks


def _source_prefixes(rules: Iterable[Rule], routes: Iterable[Route]) -> list[IpNetwork]:
    of_rules = (rule.source for rule in rules)
    of_routes = (route.source_prefix for route in routes if isinstance(route, Route6))
    prefixes = (prefix for prefix in chain(of_rules, of_routes) if prefix is not None)
    return [*dict.fromkeys(prefixes)]


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
    return _Result(route.devs, live, route.destination)


def _shown(before: _Result, after: _Result) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the interfaces, with the gateways where only these differ."""
    if before.devs != after.devs:
        return before.devs, after.devs
    return _with_gateways(before), _with_gateways(after)


def _with_gateways(result: _Result) -> tuple[str, ...]:
    return tuple(sorted(f"{dev} {f'via {to}' if to else 'on-link'}" for dev, to in result.hops))
