"""Read one moment of a host: its state, and the lookups of all places in the expected CIDRs.

Only the relevant entries of large tables are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from ipaddress import IPv6Address
from typing import TYPE_CHECKING

import attrs

from hostrouting.config.routing import Config, ExpectedCidr, RouteOverlap
from hostrouting.kernel.merged_tables import are_merged
from hostrouting.kernel.port import (
    RouteBackend,
    read_consistently,
    read_default_routes,
    read_routes,
)
from hostrouting.kernel.rules import KERNEL_RULES, is_about_other_packets
from hostrouting.kernel.selection import except_plain
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, ends, numbers
from hostrouting.model.links import Address, Link
from hostrouting.model.parsing import is_inside
from hostrouting.model.routes import Route, RouteType, Table
from hostrouting.model.rules import Rule
from hostrouting.model.values import frozen
from hostrouting.overlap._ask import (
    Sockets,
    asks_local_first,
    called_addresses,
    selects_source,
    source_borders,
)
from hostrouting.overlap._cut import Cutter
from hostrouting.overlap._exemptions import CNI_PROTOCOLS, OF_PLATFORMS
from hostrouting.overlap._local_delivery import why_not_received
from hostrouting.overlap._places import Places
from hostrouting.overlap._state import State
from hostrouting.overlap.uplinks import find_uplinks, ipv4_defaults_for
from phases import CancelScope

if TYPE_CHECKING:
    from hostrouting.kernel.model import Model

# The plain routes inside an IPv4 subnet are read only if its prefix is at least this long.
_NEIGHBOURS_LENGTH_MIN = 16


@frozen(eq=False, repr=False)
class Moment:
    """A host at one moment: no relevant change happened while it was read.

    Args:
        state: the state of the host.
        places: the places in the expected CIDRs, with their lookups.
        not_received: why this host doesn't receive packets to its addresses, or an empty string.
    """

    state: State
    places: Places
    not_received: str = ""


def read_host(
    config: Config,
    backend: RouteBackend,
    scope: CancelScope,
    ipv4: RouteBackend | None = None,
) -> Moment:
    """Read the tables and look up the expected CIDRs, again if the tables change in the meantime.

    Args:
        config: the expected CIDRs, all in the backend's family, and the uplinks.
        backend: the kernel to query.
        scope: cancellation scope, checked between reads.
        ipv4: see ``uplinks.read_uplinks``.

    Returns:
        The host at a moment. There are no places if the uplinks are unknown.

    Raises:
        RouteError: the kernel can't be queried, relevant routes changed during every read, the
            outgoing interface depends on an encapsulation, or the kernel may choose an IPv4-mapped
            source.
    """
    watching = watched(config, backend, ipv4)
    moment, why_torn = read_consistently(watching, scope, lambda: read_once(config, backend, ipv4))
    if why_torn is not None:
        raise why_torn
    return moment


def watched(
    config: Config,
    backend: RouteBackend,
    ipv4: RouteBackend | None,
) -> list[tuple[RouteBackend, Sequence[Prefix]]]:
    """Return the backends to watch during a read, each with the prefixes that matter.

    The expected and the foreseen CIDRs matter. For IPv6, the IPv4 default route matters, too.
    """
    watching: list[tuple[RouteBackend, Sequence[Prefix]]] = [(backend, config.route_overlap.judged)]
    if ipv4 is not None and backend.family is Family.IPV6:
        watching.append((ipv4, [(0, 32)]))
    return watching


def read_once(
    config: Config,
    backend: RouteBackend,
    ipv4: RouteBackend | None = None,
    *,
    needs_uplinks: bool = True,
    received: Iterable[ExpectedCidr] | None = None,
) -> Moment:
    """Read the tables, cut the expected CIDRs, and ask, without retrying; see ``read_host``.

    Args:
        config: the expected CIDRs and the uplinks.
        backend: the kernel to query.
        ipv4: see ``uplinks.read_uplinks``.
        needs_uplinks: whether to skip the lookups if there is no uplink to compare with.
        received: the CIDRs whose local addresses must receive packets. By default, the expected
            CIDRs.
    """
    state, cutter = _state_and_cutter(config, backend, ipv4)
    if needs_uplinks and state.uplinks.unknown:
        return Moment(state, Places((), state.family))
    _refuse_mapped(state.addresses)
    return _cut_and_ask(config, state, cutter, backend, received)


def moment_with(config: Config, moment: Moment, model: Model) -> Moment:
    """Return the moment that a check with another config would have read.

    Args:
        config: the other config. It names other uplinks, or other interfaces for expected CIDRs.
        moment: the moment that was read with the present config.
        model: the model of the host, which answers instead of the kernel.

    Returns:
        The host at a moment. There are no places if the uplinks are unknown.

    Raises:
        RouteError: see ``read_host``.
    """
    state = moment.state
    if config.uplinks is not None:
        uplinks = find_uplinks(config, state.links, state.addresses, state.routes)
        state = attrs.evolve(state, uplinks=uplinks)
    if state.uplinks.unknown:
        return Moment(state, Places((), state.family))
    cutter = _cutter(config.route_overlap, state, _sources(state.addresses))
    return _cut_and_ask(config, state, cutter, model)


def _cut_and_ask(
    config: Config,
    state: State,
    cutter: Cutter,
    backend: RouteBackend,
    received: Iterable[ExpectedCidr] | None = None,
) -> Moment:
    """Cut the expected CIDRs into places, and make the lookups; see ``read_once``."""
    borders = [address.prefix for address in state.addresses]
    if state.family is Family.IPV4:
        borders += OF_PLATFORMS
    elif selects_source(state.rules, state.routes, state.family):
        borders += source_borders(state.addresses, state.labels)
    places = cutter.cut(state.routes, borders)
    _ask(places, state, backend)
    expected = config.route_overlap.expected_cidrs
    cidrs = expected if received is None else received
    _refuse_unknown_masters(places, state, expected)
    if state.is_merged is None:
        state = attrs.evolve(state, is_merged=_read_merged(state, backend))
    return Moment(state, places, why_not_received(state, cidrs, backend))


# --- the state ------------------------------------------------------------------------------------


def _state_and_cutter(
    config: Config,
    backend: RouteBackend,
    ipv4: RouteBackend | None,
) -> tuple[State, Cutter]:
    """Return the cutter, and the state with all that the cutter needs.

    The cutter decides which routes to read. But it depends on the default route and on the
    suspects, which are only known from the routes. So the first read assumes that named uplinks
    have a default route (``_with_routes_if_default``), and that the only suspects are connected
    networks (``_with_routes``). If an assumption is wrong, the table is read again. Usually, both
    are right, and even a large table is read only once.
    """
    facts = backend.facts()
    links = facts.links
    addresses = facts.addresses
    ipv4_defaults = ipv4_defaults_for(config, backend, ipv4)
    uplinks = find_uplinks(config, links, addresses, (), ipv4_defaults)
    state = State(
        backend.family,
        uplinks,
        links,
        addresses,
        facts.rules,
        silent_routers=facts.silent_routers,
        labels=facts.labels,
    )
    if uplinks.named is None:
        uplinks = find_uplinks(config, links, addresses, read_default_routes(backend))
        return _with_routes(config.route_overlap, attrs.evolve(state, uplinks=uplinks), backend)
    found, cutter = _with_routes_if_default(config.route_overlap, state, backend)
    uplinks = find_uplinks(config, links, addresses, found.routes, ipv4_defaults)
    if uplinks.default is None:
        found, cutter = _with_routes(config.route_overlap, state, backend)
    return attrs.evolve(found, uplinks=uplinks), cutter


def _with_routes_if_default(
    overlap: RouteOverlap,
    state: State,
    backend: RouteBackend,
) -> tuple[State, Cutter]:
    """Return the result of ``_with_routes``, assuming that the named uplinks have a default route.

    Whether the uplinks have one isn't known before all routes are read: an IPv6 table ends with the
    default routes.
    """
    # Only the existence of a default route matters, so the assumed one needs no next hops.
    assumed = Route(state.family.network((0, 0)), ())
    uplinks = attrs.evolve(state.uplinks, default=assumed)
    return _with_routes(overlap, attrs.evolve(state, uplinks=uplinks), backend)


def _with_routes(
    overlap: RouteOverlap,
    state: State,
    backend: RouteBackend,
) -> tuple[State, Cutter]:
    """Return the state with the routes that matter, and the cutter that has selected them."""
    sources = _sources(state.addresses)
    cutter = _cutter(overlap, state, sources)
    devs = state.plain_devs
    if _needs_whole_tables(state):
        return attrs.evolve(state, routes=read_routes(backend)), cutter
    assumed = cutter.suspects((), _likely_suspects(state))
    subnets = _subnets_with_plain(state)
    select = partial(except_plain, devs, sources=sources, mtus=state.mtus)
    wanted = select(inside=(*assumed, *subnets))
    routes = tuple(backend.entries(wanted))
    if selects_source((), routes, state.family):  # an IPv6 route has a source prefix
        return attrs.evolve(state, routes=read_routes(backend)), cutter
    suspects = [*cutter.suspects(routes), *_cidrs_with_blocks(overlap, routes)]
    if not all(map(PrefixSet(assumed, state.family.bits).covers, suspects)):
        wanted = select(inside=(*suspects, *subnets))
        routes = tuple(backend.entries(wanted))
    return attrs.evolve(state, routes=routes), cutter


def _sources(addresses: Iterable[Address]) -> set[IpAddress]:
    """Return the addresses that may be a packet's source: all except those in 127.0.0.0/8."""
    return {address.local for address in addresses if not address.local.is_loopback}


def _cutter(overlap: RouteOverlap, state: State, sources: Collection[IpAddress]) -> Cutter:
    cidrs = [numbers(expected.cidr) for expected in overlap.expected_cidrs]
    # A CIDR whose ``devs`` leave out an uplink is a suspect. Without a default route, every CIDR is
    # a suspect.
    elsewhere = [
        expected.cidr
        for expected in overlap.expected_cidrs
        if state.uplinks.default is None or not expected.allows_all(state.uplinks.devs)
    ]
    suspects = [*map(numbers, (*overlap.foreseen, *elsewhere))]
    subnets = [subnet for subnet, _ in state.uplinks.subnets]
    if any(map(_is_before_main, state.rules)):
        # The table that such a rule looks up may lack a subnet's route.
        suspects += subnets
    devs = state.plain_devs
    return Cutter(state.family, cidrs, devs, state.rules, suspects, sources, subnets, state.mtus)


def _needs_whole_tables(state: State) -> bool:
    """Return whether plain routes matter for connections after a fix, or for incoming packets."""
    if not asks_local_first(state.rules):
        return True
    if any(rule.source is not None or rule.ip_protocol for rule in state.rules):
        return True
    # A fix may let main decide instead of a rule before main, and plain routes are in main.
    return any(map(_is_before_main, state.rules))


def _is_before_main(rule: Rule) -> bool:
    is_usual = rule.has_table and rule.table in (Table.LOCAL, Table.MAIN)
    is_about_ours = not is_about_other_packets(rule)
    return rule.preference < KERNEL_RULES[1].preference and not is_usual and is_about_ours


def _likely_suspects(state: State) -> Iterator[Prefix]:
    """Yield the destinations of the routes that the kernel adds with an address.

    Connected routes are the usual cause of shadowing.
    """
    bits = state.family.bits
    # The broadcast address is the last address of an IPv4 subnet; the anycast address is the first
    # of an IPv6 subnet.
    end = 1 if state.family is Family.IPV4 else 0
    for address in state.addresses:
        if address.dev not in state.plain_devs:
            yield address.prefix
        yield int(address.local), bits
        yield ends(address.prefix, bits)[end], bits


def _subnets_with_plain(state: State) -> list[Prefix]:
    """Return the subnets in which even plain routes may matter, apart from expected CIDRs.

    Plain routes in an uplink's subnet may send packets for neighbours to the router. If an IPv6
    route leads to a gateway through another gateway, the kernel refuses routes via the first
    gateway. In another interface's IPv4 subnet, ``keep`` precedes plain routes. Wide IPv4 subnets
    are left out, because they may contain the routes of a whole site.
    """
    if state.family is Family.IPV6:
        return [subnet for subnet, _ in state.uplinks.subnets]
    subnets = {address.prefix for address in state.addresses}
    return [each for each in subnets if each[1] >= _NEIGHBOURS_LENGTH_MIN]


def _cidrs_with_blocks(overlap: RouteOverlap, routes: Iterable[Route]) -> list[Prefix]:
    """Return the expected CIDRs with a blackhole route that a CNI may have added for its block.

    Whether the route is a CNI's depends on plain routes to other nodes in the same CIDR.
    """
    blocks = [
        route.destination
        for route in routes
        if route.type is RouteType.BLACKHOLE and route.protocol in CNI_PROTOCOLS
    ]
    cidrs = [expected.cidr for expected in overlap.expected_cidrs]
    return [numbers(cidr) for cidr in cidrs if any(is_inside(block, cidr) for block in blocks)]


def _read_merged(state: State, backend: RouteBackend) -> bool | None:
    # Merged tables only matter if a longer entry in main could precede one in local.
    if state.family is Family.IPV4 and any(map(_may_be_preceded, state.routes)):
        return are_merged(state.addresses, state.rules, state.routes, backend)
    return None


def _may_be_preceded(route: Route) -> bool:
    is_wide = route.destination.prefixlen < route.family.bits
    return route.table == Table.LOCAL and is_wide and not route.destination.is_loopback


# --- the lookups ----------------------------------------------------------------------------------


def _refuse_mapped(addresses: Iterable[Address]) -> None:
    """Raise a RouteError if the kernel may choose an IPv4-mapped source.

    Sockets fail with such a source (EAFNOSUPPORT).
    """
    for address in addresses:
        if not isinstance(address.local, IPv6Address) or not address.is_usable:
            continue
        if (mapped := address.local.ipv4_mapped) is not None:
            whose = f"::ffff:{mapped}, an address of {address.dev} that the kernel may choose"
            raise RouteError(f"IPv6 sockets can't send from {whose}: remove it")


def _ask(places: Places, state: State, backend: RouteBackend) -> None:
    """Make the lookups of each place.

    Raises:
        RouteError: the outgoing interface depends on an encapsulation.
    """
    called = called_addresses(state.addresses, state.uplinks.devs, state.rules)
    sockets = Sockets(backend, state.rules, state.routes, state.family, called)
    for place, lookups in sockets.ask(places).items():
        place.lookups = lookups
    for place in places:
        for lookup in place.lookups:
            if lookup.route is not None and lookup.route.encap:
                encap = f"encapsulated as {lookup.route.encap} (by {lookup.route})"
                why = "and where that leaves is decided by other tables"
                raise RouteError(f"what is sent to {lookup.address} is {encap}, {why}")


def _refuse_unknown_masters(
    places: Places,
    state: State,
    expected: Sequence[ExpectedCidr],
) -> None:
    """Raise a RouteError if an expected interface is a port, and its master's kind is unknown.

    A bridge takes all replies, and a VRF doesn't. A snapshot may lack the kind.
    """
    masters = _masters_of_unknown_kind(state.links)
    if not masters:
        return
    routes = [lookup.route for place in places for lookup in place.lookups]
    used = {dev for route in routes if route is not None for dev in route.devs}
    for dev in sorted(used & masters.keys()):
        if any(each.is_expected(dev, state.uplinks.devs) for each in expected):
            what = f"{dev} is a port of {masters[dev]}, whose kind isn't known"
            raise RouteError(f"{what} (ip -d link show {masters[dev]})")


def _masters_of_unknown_kind(links: Iterable[Link]) -> dict[str, str]:
    """Map ports to their masters of unknown kind, which may be bridges."""
    kinds = {link.name: link.kind for link in links}
    masters = {link.name: link.master for link in links if link.master is not None}
    return {dev: master for dev, master in masters.items() if kinds.get(master) is None}
