"""The places into which the expected CIDRs are cut, with what each step of a check finds there.

This module does no I/O.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import attrs

from hostrouting.config.routing import ExpectedCidr
from hostrouting.kernel.rules import NO_SOURCE, TCP, UDP, Flow
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix, ends
from hostrouting.model.links import Address, Link
from hostrouting.model.lookups import Lookup
from hostrouting.model.routes import Route, RouteType
from hostrouting.model.values import frozen
from hostrouting.overlap.findings import FindingKind, NoteKind
from hostrouting.overlap.proposals import Obstacle


class SocketLookup(NamedTuple):
    """A lookup that a socket makes, and its result.

    Args:
        result: the kernel's result: the entry that it found, or an errno.
        source: the source address of the lookup; None if no source is chosen yet.
        is_tcp: whether the lookup is for TCP rather than UDP.
        is_reply: whether the lookup is only for a server's replies from ``source``. False if the
            kernel selects this source for connections, too.
    """

    result: Lookup
    source: IpAddress | None = None
    is_tcp: bool = False
    is_reply: bool = False

    @property
    def address(self) -> IpAddress:
        """Return the destination."""
        return self.result.address

    @property
    def route(self) -> Route | None:
        """Return the matching entry, or None if the packet isn't sent.

        A packet isn't sent if no entry matches, or if an entry discards it. The kernel doesn't
        report which entry discards a packet.
        """
        return self.result.route

    @property
    def flow(self) -> Flow:
        """Return the key of the lookup."""
        return Flow(self.address, self.source or NO_SOURCE, TCP if self.is_tcp else UDP)


class Judgement(NamedTuple):
    """The judgement of a lookup for an expected CIDR.

    Args:
        kind: the kind of failure or note; None if the lookup is as expected.
        lookup: the lookup that was judged.
        devs: the outgoing interfaces to report; for an exemption, only the exempt interfaces.
        route: the matching entry, which may discard packets; None if no entry matches.
        is_lost: whether this local or broadcast address hides an address in the cluster, because it
            is on an unexpected interface such as InfiniBand.
        is_answered: whether a service of this host, such as a DNS cache or kube-proxy, answers at
            this local address. Such an address is on a pods' interface, which is exempt.
        bound: why the exemption for pods' interfaces doesn't cover this failure, or an empty
            string.
        uplink_subnet: in words, the uplink's subnet around an exempt network or an answered
            address; empty if there is none.
        gateway: the local address that is also the gateway of ``route``; None if no address is. If
            packets are sent to that address itself, ``route`` is the default route.
        port: the expected interface that sends the packets, while its master takes the replies;
            usually None.
        would_be_exempt: whether the address fails only because the expected CIDR has its own
            ``devs``. In a CIDR without ``devs``, a route to pods or a CNI's block would be exempt.
    """

    kind: FindingKind | NoteKind | None
    lookup: SocketLookup
    devs: tuple[str, ...] = ()
    route: Route | None = None
    is_lost: bool = False
    is_answered: bool = False
    bound: str = ""
    uplink_subnet: str = ""
    gateway: Address | None = None
    port: Link | None = None
    would_be_exempt: bool = False

    @property
    def address(self) -> IpAddress:
        """Return the destination that was looked up."""
        return self.lookup.address

    @property
    def discarded_by(self) -> RouteType | None:
        """Return the type of the entry that discards packets, or None.

        A broadcast or multicast entry discards connections, too.
        """
        if self.kind is FindingKind.BLACKHOLE and self.lookup.route is not None:
            return self.lookup.route.type
        return self.lookup.result.discarded_by

    @property
    def is_failure(self) -> bool:
        """Return whether ``kind`` is a kind of failure."""
        return isinstance(self.kind, FindingKind)

    @property
    def is_local(self) -> bool:
        """Return whether the address is local or broadcast and thus unaffected by routes."""
        return self.kind in (NoteKind.LOCAL, NoteKind.BROADCAST)

    @property
    def is_to_own_gateway(self) -> bool:
        """Return whether packets to the gateway end here, because this host has its address."""
        route = self.lookup.route
        return self.gateway is not None and route is not None and route.type is RouteType.LOCAL

    @property
    def group(self) -> Hashable:
        """Return a key that is equal for judgements of a CIDR that are reported together."""
        if self.is_failure:
            return (self.kind, self.devs, self.lookup.source, self.lookup.is_reply)
        block = self.route if self.kind is NoteKind.CNI_DISCARD else None
        return (self.kind, self.is_lost, self.is_answered, self.uplink_subnet, block)


class ExpectedFailure(NamedTuple):
    """A lookup that fails for an expected CIDR."""

    expected: ExpectedCidr
    judgement: Judgement


class NeedsRoute(NamedTuple):
    """The constraint of a place that a route fixes.

    Args:
        longer_than: the prefix length that the route must exceed. -1 means that any route fixes the
            place.
        dev: the interface that the route must leave through, or None for the uplinks.
        entry: the entry in table main that covers the place now, or None.
    """

    longer_than: int
    dev: str | None
    entry: Route | None


class Unchanged(NamedTuple):
    """The constraint of a place in which no route may change a lookup.

    Args:
        entry: the entry in table main that covers the place, or None. A route with a shorter prefix
            than this entry may cover the place.
        length_max: the maximum prefix length of a route that may cover the place if ``entry`` is
            None. -1 means that no route may.
    """

    entry: Route | None = None
    length_max: int = -1


class NoRouteFixes(NamedTuple):
    """The constraint of a place that fails, and that no route fixes.

    Args:
        obstacle: why no route fixes the place.
        cover: which other routes may cover the place; by default, none.
    """

    obstacle: Obstacle
    cover: Unchanged = Unchanged()


Constraint = NeedsRoute | NoRouteFixes | Unchanged


@attrs.define(eq=False, repr=False)
class Place:
    """Addresses with the same result in every lookup.

    Cut makes the places. The later steps set the fields that name them below.

    Args:
        probe: the place's first address, which is looked up for the whole place.
        spans: the ranges of consecutive addresses, in order. A place has several spans if more
            specific prefixes lie between the spans.
        lookups: set by ask. The lookups that sockets make, UDP first. For each protocol, lookups
            without a source come first.
        judgements: set by judge. The judgements for each expected CIDR that contains the place, in
            config order. The unconnected datagram's judgement comes first, then those of other
            lookups that differ.
        constraint: set by fix. The constraint on the routes that may cover the place.
        refused: set by fix. Why the installation would refuse a route that fixes the place.
    """

    probe: IpAddress
    spans: list[Span] = attrs.field(factory=list["Span"])
    lookups: tuple[SocketLookup, ...] = ()
    judgements: dict[ExpectedCidr, tuple[Judgement, ...]] = attrs.field(
        factory=dict[ExpectedCidr, tuple[Judgement, ...]]
    )
    constraint: Constraint = attrs.field(factory=Unchanged)
    refused: Obstacle | None = None

    @property
    def size(self) -> int:
        """Return how many addresses the place has."""
        return sum(span.last - span.first + 1 for span in self.spans)

    @property
    def deciding_cidr(self) -> ExpectedCidr:
        """Return the expected CIDR whose judgement decides which routes the place needs.

        The place may fail for several CIDRs. Then the last of these in config order decides.
        """
        failing = [each for each in self.judgements if self.unconnected_for(each).is_failure]
        # The place gets one route for all CIDRs around it, so one CIDR must decide. People tend to
        # write a narrower CIDR after a wider one.
        return (failing or [*self.judgements])[-1]

    @property
    def unconnected(self) -> Judgement:
        """Return the judgement of an unconnected datagram for the deciding CIDR."""
        return self.unconnected_for(self.deciding_cidr)

    def unconnected_for(self, expected: ExpectedCidr) -> Judgement:
        """Return the judgement of an unconnected datagram for an expected CIDR."""
        return self.judgements[expected][0]

    @property
    def other_failures(self) -> Iterator[ExpectedFailure]:
        """Yield the failures of all lookups except the unconnected datagram's."""
        for expected, judgements in self.judgements.items():
            for judgement in judgements[1:]:
                if judgement.is_failure:
                    yield ExpectedFailure(expected, judgement)


class Span(NamedTuple):
    """A range of consecutive addresses in a place.

    Args:
        first: the first address as an integer.
        last: the last address as an integer.
        place: the place that the range belongs to.
    """

    first: int
    last: int
    place: Place


@frozen(eq=False, repr=False)
class Places:
    """The places in the expected CIDRs.

    Args:
        spans: the spans of all places, in address order.
        family: the address family.
    """

    spans: Sequence[Span]
    family: Family

    def __iter__(self) -> Iterator[Place]:
        """Yield each place once, in the order of the probes."""
        return iter(distinct(self.spans))

    def overlapping(self, prefix: Prefix) -> Sequence[Span]:
        """Return the spans that overlap a prefix, in address order."""
        first, last = ends(prefix, self.family.bits)
        start = bisect_left(self.spans, first, key=attrgetter("last"))
        stop = bisect_right(self.spans, last, key=attrgetter("first"))
        return self.spans[start:stop]


def distinct(spans: Iterable[Span]) -> Iterable[Place]:
    """Return the places of spans, each once, in the order of the spans."""
    return dict.fromkeys(span.place for span in spans)
