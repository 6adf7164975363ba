"""The state of a host at one moment, limited to what a check needs.

Of large tables, only the relevant entries are read. The lookups are the ones that a socket on this host makes, and all
of them must succeed. An unconnected datagram uses the first lookup. A connecting socket repeats the lookup with the
source that the first answer chose (ip_route_connect in include/net/route.h). That matters if a policy rule selects by
source, or if an entry names a source that isn't an address of this host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from ipaddress import IPv4Address
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

import attrs

from hostrouting.config.routing import Config, RouteOverlap
from hostrouting.kernel.nexthops import (
    SourceKey,
    contested_defaults,
    in_turn,
    inherited_route,
    source_key,
    spread,
    unicast_defaults,
)
from hostrouting.kernel.port import RouteBackend, at_one_moment
from hostrouting.kernel.rules import KERNEL_RULES, LOOPBACK
from hostrouting.model.errors import RouteError
from hostrouting.model.links import Address, Hardware, Link, is_like
from hostrouting.model.prefixes import Prefix, PrefixSet, ends, numbers
from hostrouting.model.routes import Lookup, NextHop, Route, RouteType
from hostrouting.model.rules import Rule
from hostrouting.overlap._coverage import Coverage, Interval
from phases import CancelScope

if TYPE_CHECKING:
    from hostrouting.kernel.fib import Fib


class ContestedDefaultError(RouteError):
    """The error for default routes with one metric but several interfaces, so that the expected one is unknown."""


class NoUplinkError(RouteError):
    """The error for a host that has none of the uplinks in the config."""


class _Tables(NamedTuple):
    """Everything that is read before any lookup; see ``State``."""

    uplinks: tuple[str, ...]
    default: Route | None
    links: tuple[Link, ...]
    addresses: tuple[Address, ...]
    rules: tuple[Rule, ...] = ()
    routes: tuple[Route, ...] = ()


class Probe(NamedTuple):
    """The answer to a lookup.

    Args:
        lookup: the answer.
        source: the source of the lookup, or None for the first lookup, which chooses one.
        is_tcp: whether the lookup is for TCP rather than UDP.
    """

    lookup: Lookup
    source: IPv4Address | None = None
    is_tcp: bool = False


# No code compares or prints a State, and generating the methods for that takes as long as querying the kernel.
@attrs.frozen(eq=False, repr=False, slots=False)
class State:
    """Everything that a check needs to know about a host.

    Args:
        uplinks: the interfaces through which the cluster may be reached, sorted.
        default: the default route to compare with, reduced to its live hops through uplinks, or None if the uplinks
            have none. This is allowed if the config names the uplinks.
        named: the patterns for the uplinks in the config, or None if it names none. With named uplinks, a default route
            through another interface may win.
        links: all interfaces.
        addresses: the host's addresses.
        rules: the policy rules, in the order in which the kernel evaluates them.
        routes: the entries of every table.
        intervals: the intervals of the expected CIDRs, in address order.
        probes: the kernel's answers for each probed address. The first one is for unconnected UDP.
    """

    uplinks: tuple[str, ...]
    default: Route | None
    named: tuple[str, ...] | None
    links: Sequence[Link]
    addresses: Sequence[Address]
    rules: Sequence[Rule]
    routes: Sequence[Route]
    intervals: Sequence[Interval]
    probes: Mapping[int, tuple[Probe, ...]]

    @property
    def next_hops(self) -> tuple[NextHop, ...]:
        """Return the next hops of the default route, or none if the uplinks have no default route."""
        return () if self.default is None else self.default.hops

    @property
    def asks_local_first(self) -> bool:
        """Return whether table local is looked up first, which is the default."""
        return _asks_local_first(self.rules)

    @cached_property
    def fib(self) -> Fib:
        """Return a model of the tables and rules that were read."""
        from hostrouting.kernel.fib import Fib

        return Fib(self.rules, self.routes, self.addresses, links=self.links, lacks_unknown=True)


def _asks_local_first(rules: Sequence[Rule]) -> bool:
    return tuple(rules[:1]) == KERNEL_RULES[:1]


def read_host(config: Config, backend: RouteBackend, scope: CancelScope) -> State | None:
    """Read the tables and the matching answers of the kernel.

    Args:
        config: the expected CIDRs and the uplinks.
        backend: the kernel to query.
        scope: the scope that can cancel the call between two reads.

    Returns:
        The state, or None if there is no default route and the config names no uplinks.

    Raises:
        ContestedDefaultError: the default route doesn't show which interface an expected CIDR should leave through.
        NoUplinkError: none of the uplinks that the config names exists.
        RouteError: the kernel can't be queried, relevant routes changed during each read, or an encapsulation decides
            where packets leave.
    """
    judged = config.route_overlap.judged
    state, why_torn = at_one_moment(backend, judged, scope, lambda: read_once(config, backend))
    if why_torn is not None:
        raise why_torn
    return state


def read_once(config: Config, backend: RouteBackend, *, needs_uplinks: bool = True) -> State | None:
    """Read the tables and then the answers once; see ``read_host``.

    Args:
        config: the expected CIDRs and the uplinks.
        backend: the kernel to query.
        needs_uplinks: whether to return None if there is no uplink to compare with.
    """
    tables = _read_tables(config, backend, needs_uplinks=needs_uplinks)
    return None if tables is None else _ask_about(config, tables, backend)


def _read_tables(config: Config, backend: RouteBackend, *, needs_uplinks: bool) -> _Tables | None:
    overlap, defaults, links = config.route_overlap, backend.default_routes(), backend.links()
    default = inherited_route(defaults, config.uplinks)
    devs: tuple[str, ...] = ()
    if config.uplinks is not None:
        devs = named_uplinks(links, config.uplinks)
        if needs_uplinks and not devs:
            raise NoUplinkError(f"there is no interface {','.join(config.uplinks)}, which hostRouting.uplinks names")
    elif default is None and needs_uplinks:
        return None
    elif default is not None:
        devs = default.devs
        if is_contested(config, defaults):
            tied = contested_defaults(defaults)
            named = "; ".join(map(str, tied))
            raise ContestedDefaultError(
                f"table main has {len(tied)} default routes of metric {default.metric} by several interfaces, and which"
                f" the kernel takes may change with each packet: {named}",
                hint="give one of them a lower metric, or name the node's uplinks (hostRouting.uplinks)",
            )
    tables = _Tables(devs, default, links, backend.addresses(), backend.rules())
    if any(rule.source is not None or rule.ip_protocol for rule in tables.rules):
        # Only the complete tables show where connections would go after a fix.
        return tables._replace(routes=tuple(dict.fromkeys((*defaults, *backend.routes()))))
    # Connected routes are the usual cause of shadowing, so one pass over a large table is usually enough.
    connected = [address.prefix for address in tables.addresses if address.dev not in devs]
    single = [(end, 32) for each in tables.addresses for end in (int(each.local), ends(each.prefix)[1])]
    foretold = _coverage(overlap, tables._replace(rules=KERNEL_RULES), (*connected, *single)).suspects(())
    own = {address.local for address in tables.addresses}
    routes = backend.routes_except(devs, inside=foretold, sources=own)
    suspected = _coverage(overlap, tables).suspects(routes)
    if not all(map(PrefixSet(foretold).covers, suspected)):
        routes = backend.routes_except(devs, inside=suspected, sources=own)
    others = (route for route in routes if route.destination.prefixlen or route not in defaults)
    return tables._replace(routes=(*defaults, *others))


def is_contested(config: Config, defaults: Sequence[Route]) -> bool:
    """Return whether default routes with the same metric leave the expected interface of a CIDR in doubt."""
    is_open = any(each.devs is None for each in config.route_overlap.expected_cidrs)
    return config.uplinks is None and is_open and bool(contested_defaults(defaults))


def _coverage(overlap: RouteOverlap, tables: _Tables, besides: Iterable[Prefix] = ()) -> Coverage:
    cidrs = [numbers(expected.cidr) for expected in overlap.expected_cidrs]
    # Also examine CIDRs that the uplinks may not carry, or all CIDRs if there is no default route.
    elsewhere = (
        each.cidr for each in overlap.expected_cidrs if tables.default is None or not each.allows_all(tables.uplinks)
    )
    besides = (*map(numbers, (*overlap.foreseen, *elsewhere)), *besides)
    return Coverage(cidrs, tables.uplinks, tables.rules, besides, [address.local for address in tables.addresses])


def _ask_about(config: Config, tables: _Tables, backend: RouteBackend) -> State:
    uplinks, default, links, addresses, rules, routes = tables
    intervals = _coverage(config.route_overlap, tables).intervals(routes, borders=local_subnets(addresses, uplinks))
    probes = ask(intervals, rules, routes, backend)
    for lookup in (probe.lookup for found in probes.values() for probe in found):
        if lookup.route is not None and lookup.route.encap:
            reason = f"what is sent to {lookup.address} is encapsulated as {lookup.route.encap} (by {lookup.route})"
            raise RouteError(f"{reason}, and where that leaves is decided by other tables")
    return State(uplinks, default, config.uplinks, links, addresses, rules, routes, intervals, probes)


class Asked(Protocol):
    """A kernel to query, which is a ``RouteBackend`` or a model of one."""

    def lookup(
        self, addresses: Sequence[IPv4Address], *, source: IPv4Address | None = None, is_tcp: bool = False
    ) -> Sequence[Lookup]:
        """Look up addresses as ``RouteBackend.lookup`` does."""

    def sources(
        self, entries: Mapping[Route, Sequence[IPv4Address]], *, is_tcp: bool = False
    ) -> Mapping[Route, tuple[IPv4Address, ...]]:
        """Return sources as ``RouteBackend.sources`` does."""


def ask(
    intervals: Sequence[Interval], rules: Sequence[Rule], routes: Iterable[Route], asked: Asked
) -> dict[int, tuple[Probe, ...]]:
    """Make every lookup that a socket may make, except those whose answer is known.

    Args:
        intervals: the intervals to probe.
        rules: the rules of the host. If no rule selects by source, a second lookup can only differ if the entry names a
            source that isn't an address of this host. If no rule selects by protocol, TCP needs no lookups of its own.
        routes: the entries of every table, in the kernel's order.
        asked: the kernel to query.

    Returns:
        The answers for each probe. Those for UDP come first, and for each protocol the answer without a source comes
        first.

    Raises:
        RouteError: the kernel can't be queried.
    """
    has_source = any(rule.source is not None for rule in rules)
    has_protocol = any(rule.ip_protocol and not rule.has_ports for rule in rules)
    # A rule for a source may also apply to packets to this host's addresses, if it is evaluated first.
    is_local_safe = _asks_local_first(rules)
    look_up = in_turn(asked.lookup, routes)
    found: dict[int, list[Probe]] = {interval.probed: [] for interval in intervals}
    addresses = [IPv4Address(probed) for probed in found]
    for is_tcp in (False, True) if has_protocol else (False,):
        by_key: dict[SourceKey, tuple[Route, list[int]]] = {}
        for lookup in look_up(addresses, is_tcp=is_tcp):
            number, route = int(lookup.address), lookup.route
            found[number].append(Probe(lookup, None, is_tcp))
            if route is None or (route.type is RouteType.LOCAL and is_local_safe):
                continue
            if has_source or route.source is not None:
                by_key.setdefault(source_key(route), (route, []))[1].append(number)
        for source, numbers_ in sorted(_by_source(by_key.values(), intervals, asked, is_tcp=is_tcp).items()):
            from_it = [IPv4Address(number) for number in numbers_]
            if not has_source and asked.lookup(from_it[:1], source=source, is_tcp=is_tcp)[0].route is not None:
                continue
            for lookup in look_up(from_it, source=source, is_tcp=is_tcp):
                found[int(lookup.address)].append(Probe(lookup, source, is_tcp))
    return {probed: tuple(probes) for probed, probes in found.items()}


def _by_source(
    groups: Iterable[tuple[Route, list[int]]], intervals: Sequence[Interval], asked: Asked, *, is_tcp: bool
) -> dict[IPv4Address, list[int]]:
    """Return the probes to look up from each source.

    Each group is an entry with the probes that use it.
    """
    chosen: Mapping[Route, tuple[IPv4Address, ...]] = {}
    if unnamed := [group for group in groups if group[0].source is None]:
        ranges = {
            interval.probed: range(interval.first, interval.last + 1)
            for interval in intervals
            if interval.first == interval.probed
        }
        inside = {route: chain.from_iterable(map(ranges.__getitem__, probed)) for route, probed in unnamed}
        flows = {route: spread(route, map(IPv4Address, addresses)) for route, addresses in inside.items()}
        chosen = asked.sources(flows, is_tcp=is_tcp)
    found: dict[IPv4Address, list[int]] = {}
    for route, probed in groups:
        for source in chosen[route] if route.source is None else (route.source,):
            found.setdefault(source, []).extend(probed)
    return found


def pending_devs(links: Sequence[Link], addresses: Sequence[Address], uplinks: Sequence[str]) -> tuple[str, ...]:
    """Return the InfiniBand interfaces without an IPv4 address, which may still get connected routes."""
    with_address = {address.dev for address in addresses} | set(uplinks)
    return tuple(
        sorted(link.name for link in links if link.hardware == Hardware.INFINIBAND and link.name not in with_address)
    )


def named_uplinks(links: Sequence[Link], patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the interfaces that a config names as uplinks, sorted and without the loopback interface."""
    return tuple(sorted(link.name for link in links if link.name != LOOPBACK and is_like(link.name, patterns)))


def usable_devs(links: Sequence[Link], devs: Sequence[str]) -> list[str]:
    """Return the given interfaces through which the kernel accepts and uses a route."""
    vrfs = {link.name for link in links if link.kind == "vrf"}
    return [
        link.name
        for link in links
        if link.name in devs and link.is_up and link.has_carrier and (link.master is None or link.master in vrfs)
    ]


def local_subnets(addresses: Iterable[Address], devs: Sequence[str]) -> dict[Prefix, str]:
    """Return the subnets of some interfaces, mapped to the interfaces.

    Args:
        addresses: the host's addresses.
        devs: the names of the interfaces.

    Returns:
        The subnets, except those of a single address, which contain no other host.
    """
    own = (address for address in addresses if address.dev in devs and address.prefix_length < 32)
    return {address.prefix: address.dev for address in own}


def rival_defaults(state: State) -> list[Route]:
    """Return the live default routes through interfaces that the chosen default route doesn't use.

    If the config names uplinks, return only those that use an uplink.
    """
    if state.default is None:
        return []
    known = set(state.default.devs)

    def is_rival(route: Route) -> bool:
        return any(dev not in known and (dev in state.uplinks or state.named is None) for dev in route.devs)

    return list(filter(is_rival, unicast_defaults(state.routes)))
