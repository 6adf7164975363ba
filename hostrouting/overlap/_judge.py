"""Judge each place: its lookups are as expected, failing, or worth a note.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial

from hostrouting.config.routing import ExpectedCidr, RouteOverlap
from hostrouting.kernel.rules import Flow
from hostrouting.model.family import Family
from hostrouting.model.integer_prefixes import numbers
from hostrouting.model.links import is_like
from hostrouting.model.routes import Protocol, Route, RouteType, Table
from hostrouting.overlap._exemptions import Bounds
from hostrouting.overlap._places import Judgement, Places, SocketLookup, distinct
from hostrouting.overlap._state import State
from hostrouting.overlap.findings import FindingKind, NoteKind

# Kinds of notes that are reported even if only one of an address's lookups shows them.
_TOLD_OF_ANY_LOOKUP = (NoteKind.LOCAL, NoteKind.BROADCAST, NoteKind.CNI_DISCARD)


class Judge:
    """The judge of lookups on one host.

    Args:
        overlap: the expected CIDRs, and any other interfaces allowed to carry their traffic.
        state: the host's state.
    """

    def __init__(self, overlap: RouteOverlap, state: State) -> None:
        self._overlap = overlap
        self._state = state
        self._bounds = Bounds(
            overlap.container_devs,
            state.family,
            state.uplinks,
            state.addresses,
            state.routes,
        )
        self._is_of_pods = cache(partial(is_like, patterns=overlap.container_devs))

    def judge(self, places: Places) -> None:
        """Judge the lookups of all places, for each expected CIDR that contains them."""
        for expected in dict.fromkeys(self._overlap.expected_cidrs):
            for place in distinct(places.overlapping(numbers(expected.cidr))):
                place.judgements[expected] = self.judge_place(place.lookups, expected)

    def judge_place(
        self,
        lookups: Sequence[SocketLookup],
        expected: ExpectedCidr,
    ) -> tuple[Judgement, ...]:
        """Judge a place's lookups for one expected CIDR that contains the place.

        Returns:
            The judgement of an unconnected datagram. After it come the judgements of other lookups
            that add something (``_worth_telling``).
        """
        if len(lookups) == 1:
            return tuple(self._judge_sending(lookups, expected))
        sending = [lookup for lookup in lookups if sends_packets(lookup, lookups)]
        unconnected, *others = sorted(self._judge_sending(sending, expected), key=_rank)
        return unconnected, *sorted(_worth_telling(unconnected, others), key=_by_source)

    def judge_each_lookup(self, lookups: Sequence[SocketLookup]) -> list[Judgement]:
        """Judge each lookup of a place once, including those that only select a source.

        A lookup may fail in one expected CIDR, and not in another. Each lookup is judged for the
        first CIDR in which it fails, or for the first CIDR of all if it fails nowhere.
        """
        by_cidr = [
            self._judge_with_others(lookups, expected) for expected in self._overlap.expected_cidrs
        ]
        by_lookup = zip(*by_cidr, strict=True)
        return [next(filter(_is_failure, found), found[0]) for found in by_lookup]

    def _judge_with_others(
        self,
        lookups: Sequence[SocketLookup],
        expected: ExpectedCidr,
    ) -> list[Judgement]:
        """Judge together the lookups that send packets, and each other lookup alone."""
        sending = [lookup for lookup in lookups if sends_packets(lookup, lookups)]
        judged = iter(self._judge_sending(sending, expected))
        return [
            next(judged) if sends_packets(lookup, lookups) else self._judge_alone(lookup, expected)
            for lookup in lookups
        ]

    def _judge_sending(
        self,
        lookups: Sequence[SocketLookup],
        expected: ExpectedCidr,
    ) -> list[Judgement]:
        """Judge the lookups that send packets: BLACKHOLE where TCP refuses to connect."""
        judgements = [self._judge_alone(lookup, expected) for lookup in lookups]
        # If a datagram's address is local or broadcast, report only that. Whether TCP is refused
        # doesn't matter then.
        if judgements[0].is_local:
            return judgements
        return [
            judgement._replace(kind=FindingKind.BLACKHOLE, devs=())
            if _is_refused(judgement, lookups)
            else judgement
            for judgement in judgements
        ]

    def _judge_alone(self, lookup: SocketLookup, expected: ExpectedCidr) -> Judgement:
        """Judge a lookup without regard to the place's other lookups."""
        route = lookup.route
        if route is None:
            return self._of_unrouted(lookup, expected)
        # A local or broadcast address that no route can change is a note. If a router has the
        # address, too, it is a failure.
        ends_here = self._ends_here(route)
        is_broadcast = _type_for_sockets(route) is RouteType.BROADCAST
        if (ends_here or is_broadcast) and self._is_beyond_routes(lookup, route):
            kind = NoteKind.LOCAL if ends_here else NoteKind.BROADCAST
            return self._of_local(kind, lookup, route, expected)
        # Packets that match a wider local entry don't leave this host either, whatever the entry's
        # device is.
        devs = ("lo",) if ends_here else route.devs
        foreign = self._unexpected(devs, expected)
        if devs and not foreign:  # through expected interfaces only: fine
            found = self._of_expected(lookup, route, devs)
        else:  # a note for an allowed or a pod's interface, or else a failure
            found = self._of_foreign(lookup, route, devs, foreign, expected)
        # The kernel refuses connect() to a broadcast address (tcp_v4_connect), even if the route
        # uses an expected interface.
        if is_broadcast and found.kind is not FindingKind.OVERLAP:
            return Judgement(FindingKind.BLACKHOLE, lookup, (), route)
        return found

    def _ends_here(self, route: Route) -> bool:
        """Return whether an entry delivers packets to this host: a local or IPv6 anycast entry."""
        if route.type is RouteType.LOCAL:
            return True
        is_anycast = route.type is RouteType.ANYCAST and route.protocol == Protocol.KERNEL
        return is_anycast and self._state.family is Family.IPV6

    def _unexpected(self, devs: Iterable[str], expected: ExpectedCidr) -> tuple[str, ...]:
        uplinks = self._state.uplinks.devs
        return tuple(dev for dev in devs if not expected.is_expected(dev, uplinks))

    def _is_beyond_routes(self, lookup: SocketLookup, route: Route) -> bool:
        """Return whether an entry is a host route in table local, which always wins.

        Until the first policy rule is added (fib_trie_unmerge), tables local and main share one
        trie. While the tables share a trie, the kernel reports main for the entries of both, and a
        longer prefix in main precedes a shorter one in local.
        """
        if route.destination.prefixlen < self._state.family.bits:
            return False
        entry = self._state.fib.longest_match(Table.LOCAL, Flow(lookup.address))
        if entry is None:
            return False
        return (entry.destination, entry.type) == (route.destination, route.type)

    def _of_local(
        self,
        kind: NoteKind,
        lookup: SocketLookup,
        route: Route,
        expected: ExpectedCidr,
    ) -> Judgement:
        """Judge a lookup of a local or broadcast address that no route can change."""
        if (lost := self._bounds.lost_router(lookup.address)) is not None:
            default, own = lost
            return Judgement(FindingKind.GATEWAY, lookup, default.devs, default, gateway=own)
        others = {*self._unexpected(route.devs, expected)} - {"lo"}
        if others and self._are_exempt_pods(others, expected):
            network = self._state.family.network((int(lookup.address), self._state.family.bits))
            subnet = self._bounds.uplink_subnet_around(network)
            return Judgement(
                kind, lookup, route.devs, route, is_answered=True, uplink_subnet=subnet
            )
        return Judgement(kind, lookup, route.devs, route, is_lost=bool(others))

    def _of_expected(self, lookup: SocketLookup, route: Route, devs: tuple[str, ...]) -> Judgement:
        port = next((port for dev in devs if (port := self._state.ports.get(dev))), None)
        if port is not None:
            return Judgement(FindingKind.PORT, lookup, devs, route, port=port)
        gateway = self._bounds.local_gateway(route)
        kind = None if gateway is None else FindingKind.GATEWAY
        return Judgement(kind, lookup, devs, route, gateway=gateway)

    def _of_foreign(
        self,
        lookup: SocketLookup,
        route: Route,
        devs: tuple[str, ...],
        foreign: tuple[str, ...],
        expected: ExpectedCidr,
    ) -> Judgement:
        """Judge a lookup whose result contains an unexpected interface, or no interface."""
        not_allowed = [dev for dev in foreign if not self._is_allowed(dev, expected)]
        if not devs or not self._are_exempt_pods(not_allowed, expected):  # no exemption
            return Judgement(
                FindingKind.OVERLAP,
                lookup,
                devs,
                route,
                would_be_exempt=self._leads_to_pods(lookup, route, foreign),
            )
        # The exemption's bounds don't cover the route through a pod's interface.
        if not_allowed and (bound := self._bounds.why_beyond(route, lookup.address)):
            return Judgement(FindingKind.OVERLAP, lookup, devs, route, bound=bound)
        if len(not_allowed) < len(foreign):  # some of the interfaces are in allowedDevs
            return Judgement(NoteKind.ALLOWED, lookup, foreign, route)
        is_wide = route.destination.prefixlen < self._state.family.bits
        subnet = self._bounds.uplink_subnet_around(route.destination) if is_wide else ""
        return Judgement(NoteKind.CONTAINER, lookup, foreign, route, uplink_subnet=subnet)

    def _is_allowed(self, dev: str, expected: ExpectedCidr) -> bool:
        # A CIDR with its own list of interfaces allows no others.
        return expected.devs is None and is_like(dev, self._overlap.allowed_devs)

    def _are_exempt_pods(self, devs: Iterable[str], expected: ExpectedCidr) -> bool:
        """Return whether each interface is a pod's and thus exempt.

        In a CIDR with its own ``devs``, no interface is exempt.
        """
        return all(expected.devs is None and self._is_of_pods(dev) for dev in devs)

    def _leads_to_pods(
        self,
        lookup: SocketLookup,
        route: Route,
        foreign: Sequence[str],
    ) -> bool:
        """Return whether a route leads to pods, whatever interfaces the expected CIDR names."""
        if not foreign or not all(map(self._is_of_pods, foreign)):
            return False
        return not self._bounds.why_beyond(route, lookup.address)

    def _of_unrouted(self, lookup: SocketLookup, expected: ExpectedCidr) -> Judgement:
        discarded_by = lookup.result.discarded_by
        if discarded_by is None:
            return Judgement(FindingKind.NO_ROUTE, lookup)
        # The kernel doesn't report which entry discards a packet, so ask the model.
        entry = self._state.fib.decide(lookup.flow).route
        if entry is None:
            return Judgement(FindingKind.BLACKHOLE, lookup)
        if entry.type is not discarded_by:
            # The model's entry doesn't discard the packet, so the kernel itself refuses to send.
            # For example, it sends nothing from a loopback address through another interface. Only
            # a unicast entry is then reported.
            named = entry if entry.type is RouteType.UNICAST else None
            return Judgement(FindingKind.BLACKHOLE, lookup, (), named)
        is_block = self._bounds.is_block(entry, expected.cidr)
        if is_block and expected.devs is None:
            return Judgement(NoteKind.CNI_DISCARD, lookup, (), entry)
        return Judgement(FindingKind.BLACKHOLE, lookup, (), entry, would_be_exempt=is_block)


def _worth_telling(unconnected: Judgement, others: Sequence[Judgement]) -> list[Judgement]:
    """Return the judgements that the unconnected datagram's doesn't cover, each once."""
    without_source = {
        (each.kind, each.devs) for each in (unconnected, *others) if each.lookup.source is None
    }
    told_groups = {unconnected.group}
    worth_telling: list[Judgement] = []
    for judgement in others:
        lookup = judgement.lookup
        if not judgement.is_failure and judgement.kind not in _TOLD_OF_ANY_LOOKUP:
            continue
        if lookup.source is not None and (judgement.kind, judgement.devs) in without_source:
            continue
        # A reply that fails like a connection from the same source isn't reported, too.
        as_connection = judgement._replace(lookup=lookup._replace(is_reply=False))
        if told_groups.isdisjoint((judgement.group, as_connection.group)):
            told_groups.add(judgement.group)
            worth_telling.append(judgement)
    return worth_telling


def sends_packets(lookup: SocketLookup, lookups: Sequence[SocketLookup]) -> bool:
    """Return whether packets are sent according to a lookup, so that the lookup is judged.

    If TCP repeats a lookup with a source over IPv4, the first lookup, without a source, sends
    nothing. If an IPv6 socket retries a failed lookup with a source, the failed one sends nothing.

    Args:
        lookup: the lookup of a socket.
        lookups: all lookups of its place.
    """
    if lookup.source is not None:
        return True
    again = [each for each in _with_selected_source(lookups) if each.is_tcp == lookup.is_tcp]
    if not again:
        return True
    if lookup.address.version == 6:
        return lookup.route is not None or all(each.route is None for each in again)
    return not lookup.is_tcp


def _with_selected_source(lookups: Iterable[SocketLookup]) -> list[SocketLookup]:
    return [each for each in lookups if each.source is not None and not each.is_reply]


def _type_for_sockets(route: Route) -> RouteType:
    """Return a route's type, or unicast for an IPv6 broadcast or multicast route.

    Sockets use such a route like any other route.
    """
    is_for_many = route.type in (RouteType.BROADCAST, RouteType.MULTICAST)
    return RouteType.UNICAST if is_for_many and route.family is Family.IPV6 else route.type


def _is_multicast(route: Route | None) -> bool:
    return route is not None and _type_for_sockets(route) is RouteType.MULTICAST


def _is_refused(judgement: Judgement, lookups: Sequence[SocketLookup]) -> bool:
    """Return whether TCP refuses to connect because of an entry's type (tcp_v4_connect).

    The kernel may still send unconnected datagrams through such an entry.
    """
    if judgement.kind is NoteKind.BROADCAST:
        return True
    may_leave = judgement.kind in (None, NoteKind.CONTAINER, NoteKind.ALLOWED)
    return may_leave and _is_multicast(judgement.route) and _refuses_tcp(lookups)


def _refuses_tcp(lookups: Sequence[SocketLookup]) -> bool:
    """Return whether the last TCP lookup matches a multicast entry.

    TCP repeats the lookup once it has selected a source address.
    """
    sent = [lookup for lookup in lookups if not lookup.is_reply]
    of_tcp = [lookup for lookup in sent if lookup.is_tcp] or sent
    last = _with_selected_source(of_tcp) or of_tcp
    return any(_is_multicast(lookup.route) for lookup in last)


def _rank(judgement: Judgement) -> tuple[bool, bool, bool]:
    """Return a sort key: unconnected datagrams come first, and of these, failures come first.

    If the kernel alternates between default routes, unconnected datagrams have several judgements.
    """
    lookup = judgement.lookup
    is_later = lookup.is_tcp or lookup.source is not None
    return is_later, lookup.is_reply, not (is_later or judgement.is_failure)


def _by_source(judgement: Judgement) -> tuple[bool, int]:
    return judgement.lookup.is_reply, int(judgement.lookup.source or 0)


def _is_failure(judgement: Judgement) -> bool:
    return judgement.is_failure
