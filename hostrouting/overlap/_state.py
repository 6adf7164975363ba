"""Read a consistent snapshot of the host state that a check needs.

Only the relevant entries of large tables are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from ipaddress import IPv6Address
from typing import TYPE_CHECKING

import attrs

from hostrouting.config.routing import Config, ExpectedCidr, RouteOverlap
from hostrouting.kernel.default_routes import unicast_defaults
from hostrouting.kernel.merging import are_merged
from hostrouting.kernel.nexthops import Router
from hostrouting.kernel.port import RouteBackend, read_consistently
from hostrouting.model.answers import Lookup
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, ends, numbers
from hostrouting.model.links import Address, AddressLabel, Link
from hostrouting.model.parsing import is_inside
from hostrouting.model.routes import Route, Route6, RouteType, Table
from hostrouting.model.rules import Rule
from hostrouting.overlap._ask import (
    Probe,
    ask,
    asks_local_first,
    replying,
    selects_source,
    separates_tcp,
    source_borders,
)
from hostrouting.overlap._bounds import CNI_PROTOCOLS, LINK_LOCAL
from hostrouting.overlap._cut import Coverage, Interval, intervals_in
from hostrouting.overlap.uplinks import Uplinks, find_uplinks, ipv4_defaults_for
from phases import CancelScope

if TYPE_CHECKING:
    from hostrouting.kernel.fib import Fib


# eq and repr are off because they aren't needed, and generating them takes as long as querying the
# kernel.
@attrs.frozen(eq=False, repr=False, slots=False)
class State:
    """The state of a host, as needed by a check.

    Args:
        family: the CIDRs' address family.
        uplinks: the interfaces that may carry traffic to the cluster.
        links: all interfaces.
        addresses: the host's addresses.
        rules: the policy rules, in evaluation order.
        routes: the entries in all tables.
        intervals: the intervals in the expected CIDRs, in address order.
        inside: the intervals that overlap each expected CIDR.
        probes: maps each probed address to its lookup results. The first one is for unconnected
            UDP.
        silent_routers: routers that the kernel skips because they don't respond; always empty for
            IPv4.
        labels: the labels of IPv6 addresses if a rule or route matches on the source address, or
            else None.
        own_lookups: the lookups of this host's addresses, or empty if table local is searched first
            anyway.
        is_merged: whether tables local and main share one trie, or None if that is unknown or has
            no effect.
    """

    family: Family
    uplinks: Uplinks
    links: Sequence[Link]
    addresses: Sequence[Address]
    rules: Sequence[Rule]
    routes: Sequence[Route] = ()
    intervals: Sequence[Interval] = ()
    inside: Mapping[ExpectedCidr, Sequence[Interval]] = attrs.field(
        factory=dict[ExpectedCidr, Sequence[Interval]]
    )
    probes: Mapping[int, tuple[Probe, ...]] = attrs.field(factory=dict[int, tuple[Probe, ...]])
    silent_routers: frozenset[Router] = frozenset()
    labels: Sequence[AddressLabel] | None = None
    own_lookups: Sequence[Lookup] = ()
    is_merged: bool | None = None

    @cached_property
    def defaults(self) -> Sequence[Route]:
        """Return the unicast default routes in table main, including dead ones."""
        return unicast_defaults(self.routes)

    @property
    def default_expires(self) -> int | None:
        """Return how many more seconds an uplink has a default route, or None if there is none or one never expires."""
        uplinks = {*self.uplinks.devs}
        live = (route for route in self.defaults if not uplinks.isdisjoint(route.devs))
        lifetimes = [route.expires for route in live if isinstance(route, Route6)]
        known = [lifetime for lifetime in lifetimes if lifetime is not None]
        return max(known, default=None) if len(known) == len(lifetimes) else None

    @cached_property
    def fib(self) -> Fib:
        """Return a model of these tables and rules."""
        from hostrouting.kernel.fib6 import MODELS

        known, silent = (self.rules, self.routes, self.addresses), self.silent_routers
        fib = MODELS[self.family](
            *known, links=self.links, lacks_unknown=True, silent_routers=silent, labels=self.labels
        )
        return fib if self.is_merged is None else attrs.evolve(fib, is_merged=self.is_merged)


def read_host(
    config: Config, backend: RouteBackend, scope: CancelScope, ipv4: RouteBackend | None = None
) -> State:
    """Read the tables and look up the expected CIDRs in the kernel, retrying if the tables change in between.

    Args:
        config: the expected CIDRs, all in the backend's family, and the uplinks.
        backend: the kernel to query.
        scope: cancellation scope, checked between reads.
        ipv4: see ``uplinks.read_uplinks``.

    Returns:
        The state. It has no lookups if the uplinks are unknown.

    Raises:
        RouteError: the kernel can't be queried, relevant routes changed during every read, the
            outgoing interface depends on an encapsulation, or the kernel may choose an IPv4-mapped
            source.
    """
    watching = watched(config, backend, ipv4)
    state, why_torn = read_consistently(watching, scope, lambda: read_once(config, backend, ipv4))
    if why_torn is not None:
        raise why_torn
    return state


def watched(
    config: Config, backend: RouteBackend, ipv4: RouteBackend | None
) -> list[tuple[RouteBackend, Sequence[Prefix]]]:
    """Return the backends to watch during a read, with their prefixes.

    For IPv6, include the IPv4 default route.
    """
    also = [] if ipv4 is None or backend.family is Family.IPV4 else [(ipv4, [(0, 32)])]
    return [(backend, config.route_overlap.judged), *also]


def read_once(
    config: Config,
    backend: RouteBackend,
    ipv4: RouteBackend | None = None,
    *,
    needs_uplinks: bool = True,
) -> State:
    """Read the tables and then perform the lookups, without retrying; see ``read_host``.

    Args:
        config: the expected CIDRs and the uplinks.
        backend: the kernel to query.
        ipv4: see ``uplinks.read_uplinks``.
        needs_uplinks: whether to skip the lookups if there is no uplink to compare with.
    """
    tables, coverage = _read_tables(config, backend, ipv4)
    return (
        tables
        if needs_uplinks and tables.uplinks.unknown
        else _with_lookups(config, tables, coverage, backend)
    )


def _read_tables(
    config: Config, backend: RouteBackend, ipv4: RouteBackend | None
) -> tuple[State, Coverage]:
    """Return the state without lookups, and the coverage that determines which lookups to make."""
    overlap, links, addresses, family = (
        config.route_overlap,
        backend.links(),
        backend.addresses(),
        backend.family,
    )
    ipv4_defaults = ipv4_defaults_for(config, backend, ipv4)
    uplinks = find_uplinks(config, links, addresses, (), ipv4_defaults)
    tables = State(family, uplinks, links, addresses, backend.rules())
    if uplinks.named is None:
        uplinks = find_uplinks(config, links, addresses, backend.default_routes())
        return _with_routes(overlap, attrs.evolve(tables, uplinks=uplinks), backend)
    # An IPv6 table ends with its default routes. To avoid reading it twice, assume that there is a
    # default route.
    assumed = attrs.evolve(uplinks, default=Route(family.network((0, 0)), ()))
    found, coverage = _with_routes(overlap, attrs.evolve(tables, uplinks=assumed), backend)
    uplinks = find_uplinks(config, links, addresses, found.routes, ipv4_defaults)
    if uplinks.default is None:
        found, coverage = _with_routes(overlap, tables, backend)
    return attrs.evolve(found, uplinks=uplinks), coverage


def _with_routes(
    overlap: RouteOverlap, tables: State, backend: RouteBackend
) -> tuple[State, Coverage]:
    """Return the state with the routes that matter, and the coverage that determines which routes these are."""
    family, bits, devs = tables.family, tables.family.bits, tables.uplinks.devs
    # No packet leaves from an address in 127.0.0.0/8.
    sources = {address.local for address in tables.addresses if not address.local.is_loopback}
    coverage = _coverage(overlap, tables, sources)
    if any(
        rule.source is not None or rule.ip_protocol for rule in tables.rules
    ) or not asks_local_first(tables.rules):
        # The full tables are needed to predict where connections would go after a fix, and what
        # this host receives.
        return attrs.evolve(tables, routes=backend.routes()), coverage
    # Connected routes are the usual cause of shadowing, so a single pass over a large table is
    # usually enough.
    connected = [address.prefix for address in tables.addresses if address.dev not in devs]
    # The broadcast address is the last address of an IPv4 subnet; the anycast address is the first
    # of an IPv6 subnet.
    end = 1 if family is Family.IPV4 else 0
    pairs = ((int(address.local), ends(address.prefix, bits)[end]) for address in tables.addresses)
    single = [(each, bits) for pair in pairs for each in pair]
    foretold = coverage.suspects((), (*connected, *single))
    # The kernel refuses an IPv6 route via a gateway that it reaches through another gateway. The
    # route to the gateway may be a plain one, so the plain routes in the uplinks' subnets are
    # needed.
    subnets = (
        []
        if family is Family.IPV4
        else [each.prefix for each in tables.addresses if each.dev in devs]
    )
    routes = backend.routes_except(devs, inside=(*foretold, *subnets), sources=sources)
    if selects_source((), routes, family):
        return attrs.evolve(tables, routes=backend.routes()), coverage
    suspected = [*coverage.suspects(routes), *_around_blocks(overlap, routes)]
    if not all(map(PrefixSet(foretold, bits).covers, suspected)):
        routes = backend.routes_except(devs, inside=(*suspected, *subnets), sources=sources)
    return attrs.evolve(tables, routes=routes), coverage


def _around_blocks(overlap: RouteOverlap, routes: Iterable[Route]) -> list[Prefix]:
    """Return the expected CIDRs in which routes to other nodes tell whether a blackhole route is for a CNI's block."""
    discards = (
        route
        for route in routes
        if route.type is RouteType.BLACKHOLE and route.protocol in CNI_PROTOCOLS
    )
    blocks = [route.destination for route in discards]
    cidrs = (expected.cidr for expected in overlap.expected_cidrs)
    return [numbers(cidr) for cidr in cidrs if any(is_inside(block, cidr) for block in blocks)]


def _coverage(overlap: RouteOverlap, tables: State, sources: Collection[IpAddress]) -> Coverage:
    cidrs, uplinks = [numbers(expected.cidr) for expected in overlap.expected_cidrs], tables.uplinks
    # Also look up CIDRs that aren't allowed on the uplinks, or all CIDRs if there is no default
    # route.
    elsewhere = (
        each.cidr
        for each in overlap.expected_cidrs
        if uplinks.default is None or not each.allows_all(uplinks.devs)
    )
    besides = map(numbers, (*overlap.foreseen, *elsewhere))
    return Coverage(tables.family, cidrs, uplinks.devs, tables.rules, besides, sources)


def _refuse_mapped(addresses: Iterable[Address]) -> None:
    """Raise a RouteError if the kernel may choose an IPv4-mapped source, with which sockets fail (EAFNOSUPPORT)."""
    for own in addresses:
        mapped = (
            own.local.ipv4_mapped if isinstance(own.local, IPv6Address) and own.is_usable else None
        )
        if mapped is not None:
            reason = f"IPv6 sockets can't send from ::ffff:{mapped}, an address of {own.dev} that the kernel may choose"
            raise RouteError(f"{reason}: remove it")


def _with_lookups(
    config: Config, tables: State, coverage: Coverage, backend: RouteBackend
) -> State:
    family, rules, routes = tables.family, tables.rules, tables.routes
    _refuse_mapped(tables.addresses)
    labels: Sequence[AddressLabel] | None = None
    borders = [subnet for subnet, _ in tables.uplinks.subnets]
    if family is Family.IPV4:
        borders.append(LINK_LOCAL)
    if family is Family.IPV6 and selects_source(rules, routes, family):
        labels = backend.address_labels()
        borders += source_borders(tables.addresses, labels)
    intervals = coverage.intervals(routes, borders)
    called = replying(tables.addresses, tables.uplinks.devs, rules)
    probes = ask(intervals, rules, routes, backend, family, called)
    for lookup in (probe.lookup for found in probes.values() for probe in found):
        if lookup.route is not None and lookup.route.encap:
            reason = f"what is sent to {lookup.address} is encapsulated as {lookup.route.encap} (by {lookup.route})"
            raise RouteError(f"{reason}, and where that leaves is decided by other tables")
    devs = {*tables.uplinks.devs}
    own = [
        a.local for a in tables.addresses if a.is_usable and (a.dev in devs or a.local.is_loopback)
    ]
    own = [each for each in own if not each.is_link_local]
    protocols = (
        () if asks_local_first(rules) else (False, True) if separates_tcp(rules) else (False,)
    )
    own_lookups = [lookup for is_tcp in protocols for lookup in backend.lookup(own, is_tcp=is_tcp)]
    cidrs = config.route_overlap.expected_cidrs
    inside = {
        expected: intervals_in(intervals, numbers(expected.cidr), family.bits) for expected in cidrs
    }
    found = attrs.evolve(
        tables,
        intervals=intervals,
        inside=inside,
        probes=probes,
        own_lookups=own_lookups,
        labels=labels,
    )
    # It only matters whether the tables are merged if table local has entries that a longer one in
    # main could precede.
    wide = (
        route
        for route in routes
        if route.table == Table.LOCAL and route.destination.prefixlen < family.bits
    )
    is_asked = family is Family.IPV4 and any(not route.destination.is_loopback for route in wide)
    merged = are_merged(tables.addresses, rules, routes, backend) if is_asked else None
    return attrs.evolve(found, silent_routers=backend.silent_routers(), is_merged=merged)
