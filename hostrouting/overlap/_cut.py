"""Cut the expected CIDRs into places.

This module does no I/O.

Routes and rules match prefixes, so the result of a lookup can only change where a prefix begins or
ends. Prefixes are either nested or disjoint. All addresses with the same innermost prefix therefore
have the same result, even if they form several spans, so one lookup is enough::

    172.16.0.0/16     |--------------------------------|      expected
    172.16.0.0/16     |--------------------------------|      dev ib0
    172.16.1.0/24            |---|                            via 10.1.0.1 dev eth0
    172.16.3.10/32                      |                     local ib0
    places                |  a   | b |  a   |c|     a      |      3 probes: 172.16.0.0, 172.16.1.0,
                                                                           172.16.3.10

Most routes in a large FIB are *plain*: they lead through the uplinks (``kernel.selection``). A
*suspect* is a prefix in which packets may leave through other interfaces. Suspects are the
destinations of rules and of routes that aren't plain, and prefixes that the caller names. All
suspects cut. A plain route changes the result only inside a suspect, so it cuts only there.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address
from itertools import pairwise

from hostrouting.kernel.rules import Flow, matches
from hostrouting.kernel.selection import is_plain
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix, PrefixIndex, PrefixSet, ends, numbers
from hostrouting.model.parsing import reserved_blocks
from hostrouting.model.routes import Route, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.overlap._places import Place, Places, Span


class Cutter:
    """A cutter of the expected CIDRs that ignores plain routes outside of suspects.

    Args:
        family: the CIDRs' address family.
        cidrs: the CIDRs, which may be nested.
        plain_devs: the uplinks, through which plain routes lead.
        rules: the policy rules, in evaluation order.
        suspects: prefixes that cut even if no route or rule has them.
        sources: the host's addresses. A route with any other src isn't plain: connections through
            it may fail.
        subnets: the uplinks' subnets. A route to addresses in such a subnet isn't plain if it goes
            via a default route's gateway: it sends packets for neighbours to the router.
        mtus: the interfaces' MTUs. A route with a larger MTU than its interface isn't plain: it
            loses packets.
    """

    def __init__(
        self,
        family: Family,
        cidrs: Sequence[Prefix],
        plain_devs: Iterable[str],
        rules: Sequence[Rule],
        suspects: Iterable[Prefix],
        sources: Iterable[IpAddress] = (),
        subnets: Iterable[Prefix] = (),
        mtus: Mapping[str, int] | None = None,
    ) -> None:
        self._family = family
        self._cidrs = cidrs
        self._expected = PrefixSet(cidrs, family.bits)
        self._devs = frozenset(plain_devs)
        self._sources = frozenset(sources)
        self._subnets = PrefixSet(subnets, family.bits)
        self._mtus = mtus or {}
        # The suspects that don't depend on routes.
        self._named = {*suspects}
        for rule in rules:
            if rule.destination is not None:
                self._named.add(numbers(rule.destination))
        if not _falls_through_to_default(rules):
            self._named.add((0, 0))  # all addresses are suspects

    def suspects(self, routes: Iterable[Route], possible: Iterable[Prefix] = ()) -> list[Prefix]:
        """Return the suspects inside the CIDRs, and the CIDRs inside a suspect.

        Outside of these prefixes, ``cut`` doesn't need the plain routes.

        Args:
            routes: the entries in all tables. Plain entries through the expected interfaces may be
                omitted.
            possible: destinations of suspects that the tables probably contain in addition to
                ``routes``.

        Returns:
            The prefixes, all inside the CIDRs and possibly nested.
        """
        suspects = {*self._named, *possible}
        for route in routes:
            if route.tos == 0 and not self._is_plain(route):
                suspects.add(numbers(route.destination))
        is_suspect = PrefixSet(suspects, self._family.bits).covers
        inside = filter(self._expected.covers, suspects)
        return sorted({*inside, *filter(is_suspect, self._cidrs)})

    def cut(self, routes: Iterable[Route], borders: Iterable[Prefix] = ()) -> Places:
        """Cut the CIDRs into places.

        No fix may cover a gateway. So in suspects, each gateway behind another interface is a place
        of its own.

        Args:
            routes: the entries in all tables.
            borders: additional prefixes that cut only in suspects.

        Returns:
            The places, without the family's reserved blocks.
        """
        suspects = {*self._named}
        in_suspects_only = {*borders}
        entries = [*routes]
        routers = {gateway for route in entries for gateway in self._routers_of(route)}
        for route in entries:
            is_plain = self._is_plain(route) and not self._leads_neighbours(route, routers)
            if route.tos == 0 and self._overlaps(destination := numbers(route.destination)):
                (in_suspects_only if is_plain else suspects).add(destination)
            if not is_plain:
                in_suspects_only.update(self._gateways(route))
        is_suspect = PrefixSet(suspects, self._family.bits).covers
        reserved = map(numbers, reserved_blocks(self._family))
        cuts = {*self._cidrs, *reserved, *suspects, *filter(is_suspect, in_suspects_only)}
        return _cut_at([*filter(self._expected.covers, cuts)], self._family)

    def _is_plain(self, route: Route) -> bool:
        return is_plain(route, self._devs, self._sources, self._mtus)

    def _routers_of(self, route: Route) -> Iterator[IpAddress]:
        """Yield a default route's gateways on the uplinks; nothing for any other route."""
        if route.destination.prefixlen == 0:
            for hop in route.hops:
                if hop.gateway is not None and hop.dev in self._devs:
                    yield hop.gateway

    def _leads_neighbours(self, route: Route, routers: Container[IpAddress]) -> bool:
        """Return whether a route leads a part of an uplink's subnet to a router."""
        is_to_router = any(hop.gateway in routers for hop in route.hops if hop.gateway is not None)
        return is_to_router and self._subnets.covers(numbers(route.destination))

    def _overlaps(self, prefix: Prefix) -> bool:
        return self._expected.overlaps(*ends(prefix, self._family.bits))

    def _gateways(self, route: Route) -> Iterator[Prefix]:
        """Yield the gateways of a route that belong to the route's own family."""
        for hop in route.hops:
            if hop.gateway is not None and Family.of(hop.gateway) is self._family:
                yield int(hop.gateway), self._family.bits


def _falls_through_to_default(rules: Sequence[Rule]) -> bool:
    """Return whether packets that match only plain routes always reach main's default route.

    Packets fall through if a rule looks up main for every packet, and no rule before it jumps or
    discards. Three kinds of rules before main's rule don't matter:

    - rules that select a destination, because the destination is a suspect anyway
    - rules that match no packet that a check looks up, such as ``fwmark 1 lookup 100``
    - rules that look up another table, because each of its routes is plain or a suspect

    A rule that matches only some packets can't be main's rule: for example, ``from 10.0.0.4 lookup
    main``. But if such a rule jumps or discards, as ``from 10.0.0.4 blackhole`` does, not all
    packets fall through.
    """
    # Rules with a destination are skipped before, so the flow may have any destination.
    anywhere = Flow(IPv4Address(0))
    for rule in rules:
        if rule.destination is not None:
            if rule.is_inverted:
                return False
            continue
        may_spare = _may_spare_packets(rule)
        if rule.action is RuleAction.NOP or not (may_spare or matches(rule, anywhere)):
            continue
        if rule.action is not RuleAction.TO_TABLE:
            return False
        if rule.table == Table.MAIN and not may_spare and not _suppresses(rule):
            return True
    return False


def _may_spare_packets(rule: Rule) -> bool:
    """Return whether a rule may match some of the packets to an address, and not the others."""
    has_protocol = bool(rule.ip_protocol) or rule.has_ports
    return rule.source is not None or bool(rule.iif) or has_protocol or rule.has_unknown


def _suppresses(rule: Rule) -> bool:
    return rule.suppress_prefix_length is not None or rule.suppress_group is not None


def _cut_at(cuts: Sequence[Prefix], family: Family) -> Places:
    """Assign each address in the prefixes to the place of the innermost prefix that contains it."""
    bits = family.bits
    reserved = PrefixSet(map(numbers, reserved_blocks(family)), bits)
    index = PrefixIndex(cuts, bits)
    edges = set[int]()
    for cut in cuts:
        first, last = ends(cut, bits)
        edges |= {first, last + 1}
    places: dict[Prefix, Place] = {}
    spans: list[Span] = []
    for first, behind in pairwise(sorted(edges)):
        inner = next(index.around((first, bits)), None)
        if inner is None or reserved.covers((first, bits)):
            continue
        if inner not in places:
            places[inner] = Place(family.address(first))
        span = Span(first, behind - 1, places[inner])
        span.place.spans.append(span)
        spans.append(span)
    return Places(spans, family)
