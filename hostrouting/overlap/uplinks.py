"""Determine a host's uplinks, and wait for their default route and addresses."""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import attrs

from hostrouting.config.routing import Config, ExpectedCidr, RouteOverlap
from hostrouting.kernel.default_routes import (
    contested_defaults,
    default_beside_main,
    default_route,
    inherited_route,
    missing_uplink,
    tables_for_all,
    unicast_defaults,
    uplink_patterns,
)
from hostrouting.kernel.port import RouteBackend, read_default_routes, read_routes
from hostrouting.kernel.rules import LOOPBACK
from hostrouting.kernel.waiting import look_until
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, numbers, uncovered_addresses
from hostrouting.model.links import VPN_DEVS, Address, Hardware, Link, is_infiniband, is_like
from hostrouting.model.parsing import is_device
from hostrouting.model.routes import Route, Table
from hostrouting.model.text import shortened
from hostrouting.model.values import frozen
from hostrouting.model.verified_uplinks import (
    VerifiedUplink,
    find_awaited_uplinks,
    find_replaced,
    find_swapped,
    find_verified,
    is_port_of,
    is_vpn_instead,
)
from hostrouting.overlap.findings import UnknownReason, UplinkChoice
from phases import CancelScope

# A line of text lists at most this many choices.
_SHOWN_CHOICES = 4
# The end of advice to edit the config.
_THEN = ", then: hostrouting apply"


@frozen(eq=False, repr=False)
class Uplinks:
    """A host's uplinks in one address family: the interfaces that may carry traffic to the cluster.

    Args:
        devs: the uplinks' sorted names.
        named: the uplinks' name patterns, if they aren't those of the family's default route;
            otherwise None. The patterns come from the config or the verified uplinks. For IPv6,
            they can also be the interfaces of the IPv4 default route, because any router on a link
            can advertise an IPv6 default route.
        default: the default route to compare with, or None if there is none. Its hops are limited
            to live ones on uplinks. If the uplinks are named, a default route through another
            interface may precede it.
        contested: default routes that make the expected interface ambiguous. Either several default
            routes with the lowest metric lead through different interfaces, or one through a
            container's interface precedes the others. For IPv6, these may be IPv4 default routes.
        unknown: why there is nothing to compare with; None if there is.
        is_configured: whether the config names the uplinks.
        is_verified: whether the uplinks are the verified ones, because the config names none.
        verified: the verified uplinks, if ``is_verified`` is set.
        replaced: the verified uplinks whose MAC address is gone, each with the uplink that has its
            name now.
        since: when the verified uplinks were recorded. None if that isn't known, if the uplinks
            aren't the verified ones, or if an uplink has been replaced.
        gone: the names of the verified uplinks, if none of them exists any more.
        awaited: a phrase about the verified uplinks that may still appear, or None.
        subnets: the subnets of the uplinks' addresses, each with its uplink. /32s and /128s are
            left out, because they contain no other addresses.
        pending: the InfiniBand interfaces without an address of the family. An IPv4 address may
            still come, and with it a connected route. IPv6 addresses don't come late.
    """

    devs: tuple[str, ...] = ()
    named: tuple[str, ...] | None = None
    default: Route | None = None
    contested: tuple[Route, ...] = ()
    unknown: UnknownReason | None = None
    is_configured: bool = False
    is_verified: bool = False
    verified: tuple[VerifiedUplink, ...] = ()
    replaced: tuple[tuple[VerifiedUplink, Link], ...] = ()
    since: str | None = None
    gone: tuple[str, ...] = ()
    awaited: str | None = None
    subnets: tuple[tuple[Prefix, str], ...] = ()
    pending: tuple[str, ...] = ()


def find_uplinks(
    config: Config,
    links: Sequence[Link],
    addresses: Sequence[Address],
    defaults: Sequence[Route],
    ipv4_defaults: Sequence[Route] | None = None,
) -> Uplinks:
    """Determine a host's uplinks from its interfaces and default routes.

    Args:
        config: the config, which may name the uplinks.
        links: the host's interfaces.
        addresses: the host's addresses.
        defaults: entries for one family that include the default routes, in the kernel's order.
        ipv4_defaults: the IPv4 default routes, which may determine the uplinks for IPv6. None if
            ``defaults`` are for IPv4, or if the IPv4 routes don't matter.
    """
    recorded = config.verified if config.uplinks is None else ()
    verified = find_verified(recorded, links)
    named = uplink_patterns(config.uplinks, verified, ipv4_defaults)
    contested = () if verified else _contested(config, links, ipv4_defaults or ())
    default = inherited_route(defaults, named)
    if named is not None:
        devs = _matching(links, named)
    else:
        devs = () if default is None else default.devs
        contested = contested or _contested(config, links, defaults)
    uplinks = Uplinks(
        devs,
        named,
        default,
        contested,
        is_configured=config.uplinks is not None,
        replaced=_replaced(config.verified, links, devs),
        subnets=_subnets(addresses, devs),
        pending=_pending(links, {*devs, *(address.dev for address in addresses)}),
    )
    if verified:
        since = None if uplinks.replaced else recorded[0].since
        return attrs.evolve(uplinks, is_verified=True, verified=recorded, since=since)
    return attrs.evolve(
        uplinks,
        unknown=_why_unknown(config, links, devs, default, contested),
        gone=tuple(uplink.name for uplink in recorded),
        awaited=find_awaited_uplinks(recorded, links),
    )


def _replaced(
    verified: Iterable[VerifiedUplink],
    links: Sequence[Link],
    devs: Container[str],
) -> tuple[tuple[VerifiedUplink, Link], ...]:
    return tuple(pair for pair in find_replaced(verified, links) if pair[1].name in devs)


def _matching(links: Iterable[Link], patterns: tuple[str, ...]) -> tuple[str, ...]:
    names = [link.name for link in links if link.name != LOOPBACK]
    return tuple(sorted(name for name in names if is_like(name, patterns)))


def _why_unknown(
    config: Config,
    links: Sequence[Link],
    devs: tuple[str, ...],
    default: Route | None,
    contested: tuple[Route, ...],
) -> UnknownReason | None:
    if config.uplinks is not None:
        return _why_not_as_named(config.uplinks, config.verified, links, devs)
    if contested:
        return UnknownReason.CONTESTED_DEFAULT
    # Expected CIDRs that name their interfaces need no default route.
    expected = config.route_overlap.expected_cidrs
    is_needed = not expected or any(each.devs is None for each in expected)
    return UnknownReason.NO_DEFAULT_ROUTE if default is None and is_needed else None


def _why_not_as_named(
    named: tuple[str, ...],
    verified: Sequence[VerifiedUplink],
    links: Sequence[Link],
    devs: tuple[str, ...],
) -> UnknownReason | None:
    """Return why the interfaces that the config names aren't this host's uplinks, or None."""
    swapped = find_swapped(verified, links, named)
    if swapped:
        is_port = all(is_port_of(was.name, name, links) for was, name in swapped)
        return UnknownReason.NO_UPLINK if is_port else UnknownReason.SWAPPED
    return None if devs else UnknownReason.NO_UPLINK


def _subnets(addresses: Iterable[Address], devs: tuple[str, ...]) -> tuple[tuple[Prefix, str], ...]:
    return tuple(
        (address.prefix, address.dev)
        for address in addresses
        if address.dev in devs and address.prefix_length < address.local.max_prefixlen
    )


def _pending(links: Iterable[Link], ready: Container[str]) -> tuple[str, ...]:
    infiniband = [link.name for link in links if link.hardware == Hardware.INFINIBAND]
    return tuple(sorted(dev for dev in infiniband if dev not in ready))


def _contested(
    config: Config,
    links: Iterable[Link],
    defaults: Sequence[Route],
) -> tuple[Route, ...]:
    """Return the default routes that make the expected interface ambiguous; see ``Uplinks``."""
    expected = config.route_overlap.expected_cidrs
    if config.uplinks is not None or all(each.devs is not None for each in expected):
        return ()
    live = [route for route in unicast_defaults(defaults) if route.devs]
    if config.verified and len({route.devs for route in live}) > 1:
        # The verified uplinks are gone. Any of these routes may be that of the new uplink.
        return tuple(live)
    if live and is_vpn_instead(config.verified, [*links], live[0].devs):
        return (live[0],)
    carriers = _carriers(live, links)
    of_others = container_devs(config.route_overlap, carriers) | _vpn_devs(carriers)
    return _won_through(of_others, defaults, live) or tuple(contested_defaults(defaults))


def _carriers(routes: Iterable[Route], links: Iterable[Link]) -> list[Link]:
    """Return the links through which some routes lead."""
    devs = {dev for route in routes for dev in route.devs}
    return [link for link in links if link.name in devs]


def _won_through(
    devs: set[str],
    defaults: Sequence[Route],
    live: Iterable[Route],
) -> tuple[Route, ...]:
    """Return the best default route, and the routes through other interfaces that it precedes.

    The result is empty if the best default route precedes none, or isn't a container's or VPN's.

    Args:
        devs: the interfaces of containers and VPNs.
        defaults: entries that include the default routes.
        live: the default routes with live next hops.
    """
    best = default_route(defaults)
    if best is None or not devs.issuperset(best.devs):
        return ()
    others = [route for route in live if not devs.issuperset(route.devs)]
    return (best, *others) if others else ()


def _vpn_devs(links: Iterable[Link]) -> set[str]:
    return {link.name for link in links if is_like(link.name, VPN_DEVS)}


def container_devs(overlap: RouteOverlap, links: Iterable[Link]) -> set[str]:
    """Return the interfaces that may be a container's, except bridges.

    A bridge may be the node's own (azure0).
    """
    return {
        link.name
        for link in links
        if link.kind != "bridge" and is_like(link.name, overlap.container_devs)
    }


@frozen
class Naming:
    """How to name the uplinks, as a text and as the choices that it offers."""

    text: str
    choices: tuple[UplinkChoice, ...] = ()

    def __str__(self) -> str:
        return self.text


class _Loss(NamedTuple):
    """Expected packets that fail with a choice of uplinks.

    Args:
        words: a clause without the interfaces.
        devs: the interfaces that carry the packets now.
    """

    words: str
    devs: tuple[str, ...]

    def __str__(self) -> str:
        return f" (then {self.words.format(','.join(self.devs))})"


def how_to_name(
    defaults: Iterable[Route],
    routes: Sequence[Route] = (),
    cidrs: Collection[ExpectedCidr] = (),
    links: Iterable[Link] = (),
) -> Naming:
    """Return how to name the interfaces of one of several default routes as uplinks.

    The result has a choice for each route, ready to paste, with a clause on the expected packets
    that fail with this choice. The choices are ordered by metric, but a VPN's comes last. If other
    routes make expected packets fail with each choice, the first choice names all interfaces.
    InfiniBand interfaces are never named. If a config can't name an interface, the result is
    general advice.

    Args:
        defaults: the default routes to choose from, by metric.
        routes: the entries of all tables.
        cidrs: the expected CIDRs.
        links: the host's links.
    """
    defaults = sorted(defaults, key=is_of_vpn)  # a stable sort, so NICs stay ordered by metric
    named = _devs_to_name(defaults, links)
    all_devs = tuple(sorted({dev for devs in named for dev in devs}))
    if not all_devs or not all(map(is_device, all_devs)):
        return Naming("name the node's uplinks (hostRouting.uplinks)")
    inside = [*_inside(routes, cidrs)]
    losses = [_broken_by(devs, all_devs, inside) for devs in named]
    choices = [UplinkChoice(all_devs)] if all(losses) else []
    words = [json.dumps(all_devs)] if all(losses) else []
    winner = () if _are_covered_by_ours(routes, cidrs) else _winning_devs(defaults)
    for devs, broken in zip(named, losses, strict=True):
        loss = broken or _default_broken_by(devs, winner)
        choices.append(UplinkChoice(devs, loss.devs if loss else ()))
        words.append(f"{json.dumps(devs)}{loss or ''}")
    answers = shortened(words, " or ", _SHOWN_CHOICES)
    text = f"name the node's uplinks: set hostRouting's \"uplinks\": {answers}"
    return Naming(text, tuple(choices))


def _devs_to_name(defaults: Iterable[Route], links: Iterable[Link]) -> list[tuple[str, ...]]:
    """Return the interfaces of each default route that aren't InfiniBand, without duplicates."""
    fabric = {link.name for link in links if is_infiniband(link)}
    named = (tuple(dev for dev in route.devs if dev not in fabric) for route in defaults)
    return [*dict.fromkeys(filter(None, named))]


def _winning_devs(defaults: Sequence[Route]) -> tuple[str, ...]:
    """Return the interfaces of the default route with the lowest metric, if it is a NIC's."""
    winner = min(defaults, key=attrgetter("metric"))
    is_tie = sum(route.metric == winner.metric for route in defaults) > 1
    return () if is_tie or is_of_vpn(winner) else winner.devs


def _are_covered_by_ours(routes: Iterable[Route], cidrs: Iterable[ExpectedCidr]) -> bool:
    """Return whether no packet to an expected CIDR takes a default route, because of our routes.

    Expected CIDRs that name their interfaces are ignored. The result is False without others.
    """
    networks = [each.cidr for each in cidrs if each.devs is None]
    if not networks:
        return False
    bits = networks[0].max_prefixlen
    ours = [numbers(route.destination) for route in routes if route.is_ours and route.devs]
    expected = [*map(numbers, networks)]
    is_inside = PrefixSet(ours, bits).covers
    uncovered = uncovered_addresses([*ours, *expected], bits)
    return all(is_inside(cidr) or uncovered[cidr] is None for cidr in expected)


def _inside(routes: Iterable[Route], cidrs: Iterable[ExpectedCidr]) -> Iterator[Route]:
    """Yield other programs' routes in main that overlap an expected CIDR, except default routes.

    Of several routes to a destination, only the one with the lowest metric counts. Expected CIDRs
    that name their interfaces are ignored.
    """
    networks = [each.cidr for each in cidrs if each.devs is None]
    best: dict[tuple[IpNetwork, int], Route] = {}
    for route in routes:
        is_default = route.destination.prefixlen == 0
        is_theirs = route.table == Table.MAIN and not is_default and not route.is_ours
        if is_theirs and any(map(route.destination.overlaps, networks)):
            rivals = (best.get((route.destination, route.tos), route), route)
            best[route.destination, route.tos] = min(rivals, key=attrgetter("metric"))
    yield from best.values()


def _broken_by(
    devs: Collection[str],
    all_devs: Collection[str],
    routes: Iterable[Route],
) -> _Loss | None:
    """Return the packets by a route that fail if only ``devs`` are uplinks, or None."""
    for route in routes:
        others = tuple(dev for dev in route.devs if dev in all_devs and dev not in devs)
        if others:
            return _Loss(f"{route.destination} through {{}} fails the check", others)
    return None


def _default_broken_by(devs: Collection[str], winner: tuple[str, ...]) -> _Loss | None:
    """Return the packets of the winning default route if none of its interfaces is in ``devs``."""
    if not winner or not {*winner}.isdisjoint(devs):
        return None
    return _Loss("CIDRs by the default route through {} fail the check", winner)


def contested_error(
    uplinks: Uplinks,
    routes: Sequence[Route] = (),
    cidrs: Collection[ExpectedCidr] = (),
    links: Sequence[Link] = (),
) -> RouteError:
    """Return the error for default routes that make the expected interface ambiguous.

    Args:
        uplinks: the uplinks, which are contested.
        routes: see ``how_to_name``.
        cidrs: see ``how_to_name``.
        links: see ``how_to_name``.
    """
    contested = uplinks.contested
    best, *others = contested
    if uplinks.gone and len({route.devs for route in contested}) == 1:
        return _only_vpn_is_left(uplinks, links)
    choices: Sequence[Route] = contested
    if uplinks.gone:
        why = f"{_gone(uplinks)}, and several interfaces have {_a_default(best)}"
        choices = [route for route in contested if not is_of_vpn(route)] or contested
    elif is_of_vpn(best):
        why = f"the {_whose(best)}default route that wins is a VPN's, by the name of {_devs(best)}"
    elif any(route.metric != best.metric for route in others):
        why = (
            f"the {_whose(best)}default route that wins may be a container's,"
            f" as {_devs(best)} is in containerDevs"
        )
        choices = others
    else:
        naming = how_to_name(contested, routes, cidrs, links)
        return _same_metric(contested, f"{naming}{_THEN}")
    hint = f"{how_to_name(choices, routes, cidrs, links)}{_THEN}"
    return RouteError(f"{why}: {_listed(contested)}", hint=hint)


def is_of_vpn(route: Route) -> bool:
    """Return whether a route leads through an interface that is a VPN's by its name."""
    return any(is_like(dev, VPN_DEVS) for dev in route.devs)


def _only_vpn_is_left(uplinks: Uplinks, links: Sequence[Link]) -> RouteError:
    """Return the error for a verified uplink that is gone, if only a VPN has a default route."""
    best = uplinks.contested[0]
    named = f"{how_to_name(uplinks.contested, links=links)}{_THEN}"
    return RouteError(
        f"{_gone(uplinks)}, and only a VPN, by the name of {_devs(best)},"
        f" has {_a_default(best)}: {best}",
        hint=f"bring {','.join(uplinks.gone)} back, or, if that VPN is wanted, {named}",
    )


def _same_metric(contested: Sequence[Route], naming: str) -> RouteError:
    """Return the error for default routes with the same metric, given how to name the uplink."""
    best = contested[0]
    lower = "give one of them a lower metric, or " if best.family is Family.IPV4 else ""
    return RouteError(
        f"table main has {len(contested)} {_whose(best)}default routes with metric {best.metric}"
        " through several interfaces,"
        f" and the kernel may choose another one for each packet: {_listed(contested)}",
        hint=f"{lower}{naming}",
    )


def _gone(uplinks: Uplinks) -> str:
    return f"{','.join(uplinks.gone)}, with which the check passed, is gone"


def _a_default(route: Route) -> str:
    return "a default route" if route.family is Family.IPV4 else "an IPv6 default route"


def _whose(route: Route) -> str:
    return "" if route.family is Family.IPV4 else "IPv6 "


def _devs(route: Route) -> str:
    return ",".join(route.devs)


def _listed(routes: Iterable[Route]) -> str:
    return "; ".join(map(str, routes))


# --- reading and waiting --------------------------------------------------------------------------


def read_uplinks(
    config: Config,
    backend: RouteBackend,
    ipv4: RouteBackend | None = None,
) -> Uplinks:
    """Read only the facts that determine the uplinks, and return the uplinks.

    Args:
        config: the config, which may name the uplinks.
        backend: the kernel to query.
        ipv4: the host's IPv4 backend, or None to ignore the IPv4 default route.
    """
    facts = backend.facts()
    defaults = read_default_routes(backend)
    of_ipv4 = ipv4_defaults_for(config, backend, ipv4)
    return find_uplinks(config, facts.links, facts.addresses, defaults, of_ipv4)


def ipv4_defaults_for(
    config: Config,
    backend: RouteBackend,
    ipv4: RouteBackend | None,
) -> Sequence[Route] | None:
    """Return the IPv4 default routes if the uplinks for IPv6 depend on them, or else None."""
    is_asked = config.uplinks is None and backend.family is Family.IPV6 and ipv4 is not None
    return read_default_routes(ipv4) if is_asked and ipv4 is not None else None


def awaited_devs(config: Config, backend: RouteBackend) -> tuple[str, ...]:
    """Return the InfiniBand interfaces without an IPv4 address that a check should wait for.

    Args:
        config: the config. Without ``settle_seconds``, interfaces that are down are skipped.
        backend: the kernel to query.
    """
    overlap = config.route_overlap.of(Family.IPV4)
    if backend.family is not Family.IPV4 or not overlap.expected_cidrs:
        return ()
    if not overlap.address_seconds:
        return ()
    facts = backend.facts()
    links = facts.links
    uplinks = find_uplinks(config, links, facts.addresses, read_default_routes(backend))
    if uplinks.contested:
        return ()
    if overlap.settle_seconds is None:
        links = tuple(link for link in links if link.is_up)
    names = {link.name for link in links}
    return tuple(dev for dev in uplinks.pending if dev in names)


def wait_for_addresses(
    config: Config,
    backend: RouteBackend,
    ipv4: RouteBackend | None,
    scope: CancelScope,
    started: float,
) -> None:
    """Wait for an uplink's default route and then InfiniBand addresses, each up to its limit."""

    def find_default() -> str | None:
        uplinks = read_uplinks(config, backend, ipv4)
        if uplinks.awaited is not None:
            return uplinks.awaited
        if config.uplinks is not None and uplinks.unknown is not None:
            # A named interface may have become another one. Then waiting doesn't help.
            return None if _are_others(uplinks) else _awaited_named(backend, config.uplinks)
        on = "" if uplinks.named is None else f" on {','.join(uplinks.named)}"
        whose = "" if backend.family is Family.IPV4 else "IPv6 "
        is_known = config.uplinks is not None or uplinks.is_verified
        is_needed = is_known or uplinks.unknown is not None
        is_awaited = is_needed and not (uplinks.default or uplinks.contested)
        is_awaited = is_awaited and not _has_default_beside_main(backend, uplinks.named)
        return f"the {whose}default route{on}" if is_awaited else None

    def find_pending() -> str | None:
        devs = awaited_devs(config, backend)
        return f"an address on {', '.join(devs)}" if devs else None

    # If the uplinks are known, the check runs even without a default route.
    missing = look_until(backend, scope, started, config.wait_seconds, find_default)
    if missing is None or read_uplinks(config, backend).devs:
        look_until(backend, scope, started, config.route_overlap.address_seconds, find_pending)


def _are_others(uplinks: Uplinks) -> bool:
    """Return whether the interfaces that a config names exist, but aren't the verified uplinks."""
    return uplinks.unknown is UnknownReason.SWAPPED or bool(uplinks.devs)


def _awaited_named(backend: RouteBackend, named: tuple[str, ...]) -> str | None:
    return None if _has_default_beside_main(backend, named) else missing_uplink(named)


def _has_default_beside_main(backend: RouteBackend, named: tuple[str, ...] | None) -> bool:
    """Return whether a table other than main has a default route for every packet.

    With such a route, the wait ends, because the host may never get a default route in main.
    """
    tables = tables_for_all(backend.facts().rules)
    return any(
        default_beside_main(read_routes(backend, table), (table,), named) for table in tables
    )
