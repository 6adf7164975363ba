"""Make the notes about a host as a whole, which don't depend on a single CIDR.

This module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from operator import attrgetter

from hostrouting.config.routing import ExpectedCidr, RouteOverlap
from hostrouting.kernel.default_routes import default_route
from hostrouting.kernel.rules import is_about_other_packets, loopback_of
from hostrouting.kernel.selection import devs_below_mtu
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix, PrefixIndex, numbers
from hostrouting.model.links import Hardware, Link, is_infiniband
from hostrouting.model.routes import Route, RouteType, Table, word_of
from hostrouting.model.text import shortened, with_runs
from hostrouting.model.verified_uplinks import (
    VERIFIED_PATH,
    find_renamed,
    find_swapped,
    master_of,
)
from hostrouting.overlap._fewest_prefixes import summary_of
from hostrouting.overlap._places import Place, Places, SocketLookup, Span
from hostrouting.overlap._state import State
from hostrouting.overlap.findings import Note, NoteKind, UplinkChoice
from hostrouting.overlap.uplinks import Uplinks, container_devs, how_to_name, is_of_vpn

# Limits for human-readable lines.
_SHOWN_ADDRESSES = 8
_SHOWN_ROUTES = 4
# The end of a note on an interface that has taken a verified uplink's place.
_IF_RIGHT = (
    "; if that is right, run hostrouting apply, or else name the right one in hostRouting.uplinks"
)


def notes_on_host(overlap: RouteOverlap, state: State, places: Places) -> Iterable[Note]:
    """Yield the notes on a host's default routes, interfaces, source addresses and policy rules."""
    of_pods = container_devs(overlap, state.links)
    if any(expected.devs is None for expected in overlap.expected_cidrs):
        yield from _about_defaults(state, places, of_pods, overlap)
    yield from _by_other_defaults(state, places)
    yield from _pending(state)
    yield from _without_carrier(state)
    yield from _foreign_sources(state, places)
    yield from _beyond_mtu(state, places)
    yield from _led_to_router(state, places)
    yield from _detours_to_pods(state, places, of_pods - {*state.uplinks.devs})
    loopback = loopback_of(state.links)
    others = [
        str(rule.preference) for rule in state.rules if is_about_other_packets(rule, loopback)
    ]
    if others:
        text = (
            "policy rules on marks, users, interfaces, ports etc. weren't judged:"
            f" preference {', '.join(others)}"
        )
        yield Note(NoteKind.RULE, text)


def _about_defaults(
    state: State,
    places: Places,
    of_pods: Collection[str],
    overlap: RouteOverlap,
) -> Iterable[Note]:
    """Yield the notes on default routes that don't show which interface is the uplink."""
    if state.family is Family.IPV4:
        yield from _replaced_by_namesakes(state.uplinks)
    yield from _through_infiniband(state)
    if state.uplinks.is_verified and state.family is Family.IPV4:
        # A note on a default route that has moved names the uplink's former name, too.
        yield from [*_moved(state)] or _renamed(state)
        return
    if state.uplinks.is_configured:
        yield from _beside_uplinks(state, places)
        yield from _including_infiniband(state)
    default = state.uplinks.default
    if default is None:
        return
    if state.uplinks.gone and state.family is Family.IPV4:
        yield _replaced(state.uplinks)
    yield from _through_containers(state, {*of_pods}, overlap)
    yield from _several_defaults(state, default, overlap)


def _several_defaults(state: State, default: Route, overlap: RouteOverlap) -> Iterable[Note]:
    """Yield a note if several interfaces have a default route, and each may be the uplink."""
    rivals = _rival_defaults(state, default)
    if not rivals:
        return
    # ``default`` has only the next hops on uplinks. If an IPv6 default route has others, too, the
    # whole route is already among the rivals.
    if default in state.routes or state.family is Family.IPV4:
        rivals = [default, *rivals]
    rivals.sort(key=attrgetter("metric"))
    devs = tuple(sorted({dev for route in rivals for dev in route.devs}))
    listed = "; ".join(map(str, rivals))
    winner = default.devs
    choices: tuple[UplinkChoice, ...] = ()
    if state.uplinks.named is None:
        naming = how_to_name(rivals, state.routes, overlap.expected_cidrs, state.links)
        settling = f"and the one through {','.join(winner)} wins; {naming}"
        choices = naming.choices
    elif state.family is Family.IPV4:
        settling = f"and expected CIDRs that name no interface use {default}"
    else:
        settling = (
            "and of those with the same metric"
            " the kernel takes one of the highest preference whose router answers;"
            " a route for each expected CIDR settles it"
        )
        winner = ()
    text = f"several interfaces have a default route, {settling}; {listed}"
    yield Note(NoteKind.CONTESTED, text, devs=devs, winner=winner, choices=choices)


def _beside_uplinks(state: State, places: Places) -> Iterable[Note]:
    """Yield a note if the default route's interface seems to be the uplink, and isn't named.

    There are two signs. The config names only InfiniBand interfaces as uplinks. Or expected packets
    take the default route, and no named uplink has a default route. If all named uplinks are ports
    of a bridge or bond, the second sign doesn't count, because the fix says so.
    """
    fabric = _infiniband(state)
    best = _best_default(state)
    if best is None or not fabric.isdisjoint(best.devs):
        return
    named = ",".join(state.uplinks.devs)
    if fabric.issuperset(state.uplinks.devs):
        only, when = f"InfiniBand, {named},", "unless the cluster is reached through InfiniBand"
    elif _are_ports(state) or is_of_vpn(best):
        return
    elif _take_other_default(state, places):
        # The config may also be right, if the named interface has lost its default route.
        only, when = f"{named},", f"only if the cluster is reached through {','.join(best.devs)}"
    else:
        return
    text = (
        f"hostRouting.uplinks names only {only} but another interface has the default route"
        f' ({best}): {when}, set "uplinks": {json.dumps(best.devs)}, then: hostrouting apply'
    )
    yield Note(NoteKind.CONTESTED, text, devs=best.devs)


def _by_other_defaults(state: State, places: Places) -> Iterable[Note]:
    """Yield a note for each CIDR whose ``devs`` let it follow another default route.

    The ``devs`` name an uplink, too: they may be meant for a part of the CIDR, such as a storage
    network, while the rest of it belongs to the uplink.
    """
    found: dict[ExpectedCidr, Route] = {}
    for place in places:
        expected, judgement = place.deciding_cidr, place.unconnected
        route = judgement.route
        if expected.devs is None or judgement.is_failure:
            continue
        if route is None or route not in state.defaults:
            continue
        is_of_uplink = any(expected.is_expected(dev, ()) for dev in state.uplinks.devs)
        if is_of_uplink and state.uplinks.default not in (None, route):
            found.setdefault(expected, route)
    through = ",".join(state.uplinks.devs)
    for expected, route in found.items():
        entry = json.dumps({"destination": str(expected.cidr)})
        text = (
            f"{expected.cidr} follows {route}, as its devs allow; if only a part of it is meant,"
            f" add {entry} to hostRouting.staticRoutes.routes, which leads the rest through"
            f" {through}, then: hostrouting apply"
        )
        yield Note(NoteKind.CONTESTED, text, expected.cidr, route.devs)


def _including_infiniband(state: State) -> Iterable[Note]:
    """Yield a note if the config names InfiniBand interfaces as uplinks besides others.

    There is no note if the default route leads through InfiniBand.
    """
    fabric = _infiniband(state)
    devs = [dev for dev in state.uplinks.devs if dev in fabric]
    best = _best_default(state)
    is_by_fabric = best is not None and not fabric.isdisjoint(best.devs)
    if not devs or is_by_fabric or fabric.issuperset(state.uplinks.devs):
        return
    named = ", ".join(map(json.dumps, state.uplinks.named or ()))
    text = (
        f"the uplinks ({named}) include {', '.join(with_runs(devs))}:"
        " packets that leave through InfiniBand count as expected; unless the cluster is reached"
        " through it, name only the node's NICs in hostRouting.uplinks, then: hostrouting apply"
    )
    yield Note(NoteKind.CONTESTED, text, devs=tuple(devs))


def _through_infiniband(state: State) -> Iterable[Note]:
    """Yield a note if every default route leads through InfiniBand, and no uplink is named.

    On some hosts, InfiniBand leads to the cluster. On most, the NIC's default route is missing.
    """
    uplinks = state.uplinks
    # The uplinks of IPv4 are IPv6's, too, and one note is enough.
    is_verified = uplinks.is_verified and state.family is Family.IPV4
    defaults = {dev for route in state.defaults for dev in route.devs}
    is_only_one = defaults.issuperset(uplinks.devs) and _infiniband(state).issuperset(defaults)
    if not uplinks.devs or not is_only_one or not (is_verified or uplinks.named is None):
        return
    names = json.dumps(uplinks.devs)
    text = (
        f"only InfiniBand has a default route, so {','.join(uplinks.devs)} counts as the uplink;"
        f' if the cluster is reached through it, set hostRouting\'s "uplinks": {names}; if it'
        " isn't, add the NIC's default route, or name the NIC in hostRouting.uplinks;"
        " then: hostrouting apply"
    )
    yield Note(NoteKind.CONTESTED, text, devs=uplinks.devs)


def _best_default(state: State) -> Route | None:
    """Return the best default route of a NIC or, if no NIC has one, of a VPN."""
    of_nics = [route for route in state.defaults if not is_of_vpn(route)]
    return default_route(of_nics or state.defaults)


def _are_ports(state: State) -> bool:
    return all(master_of(dev, state.links) for dev in state.uplinks.devs)


def _take_other_default(state: State, places: Places) -> bool:
    """Return whether expected packets take a default route, and the uplinks are up but have none.

    Only IPv4 counts, because an IPv6 router on any link can advertise a default route.
    """
    if state.uplinks.default is not None or state.family is Family.IPV6:
        return False
    uplinks = (link for link in state.links if link.name in state.uplinks.devs)
    if not all(link.is_up and link.has_carrier for link in uplinks):
        return False
    return any(
        place.unconnected.is_failure
        and place.unconnected.route in state.defaults
        and place.deciding_cidr.devs is None
        for place in places
    )


def _infiniband(state: State) -> set[str]:
    return {link.name for link in state.links if is_infiniband(link)}


def _through_containers(
    state: State,
    of_pods: set[str],
    overlap: RouteOverlap,
) -> Iterable[Note]:
    """Yield a note for each default route through a container's interface."""
    others = [route for route in state.defaults if of_pods.isdisjoint(route.devs)]
    for route in state.defaults:
        if of_pods.isdisjoint(route.devs):
            continue
        naming = how_to_name(others, state.routes, overlap.expected_cidrs, state.links)
        text = (
            f"{route} may be a container's default route,"
            f" as {','.join(route.devs)} is in containerDevs; {naming}"
        )
        yield Note(NoteKind.CONTESTED, text, devs=route.devs, choices=naming.choices)


def _replaced(uplinks: Uplinks) -> Note:
    text = (
        f"the default route's interface, {','.join(uplinks.devs)}, counts as the uplink now,"
        f" because {','.join(uplinks.gone)}, with which the check passed, is gone{_IF_RIGHT}"
    )
    return Note(NoteKind.MOVED, text, devs=uplinks.devs)


def _replaced_by_namesakes(uplinks: Uplinks) -> Iterable[Note]:
    """Yield a note for each verified uplink that is gone, and whose name another NIC has now.

    Until ``apply`` records that NIC's MAC address, a swap of names would go unnoticed.
    """
    for was, link in uplinks.replaced:
        text = (
            f"{link.name} ({link.mac}) counts as the uplink now,"
            f" because {was.name} ({was.mac}), with which the check passed, is gone{_IF_RIGHT}"
        )
        yield Note(NoteKind.MOVED, text, devs=(link.name,))


def _renamed(state: State) -> Iterable[Note]:
    """Yield a note for each verified uplink whose recorded name another NIC has now.

    ``apply`` records the uplink's new name. Until then, that NIC would count as the uplink if the
    uplink's MAC address disappeared.
    """
    for was, present in find_renamed(state.uplinks.verified, state.links):
        name = ",".join(present)
        text = (
            f"{name} ({was.mac}) stays the uplink, but its name was {was.name} when the check"
            f" passed, and another NIC is {was.name} now; run hostrouting apply to record {name}"
        )
        yield Note(NoteKind.MOVED, text, devs=present)


def _moved(state: State) -> Iterable[Note]:
    """Yield a note if another interface's default route wins over the verified uplinks'."""
    best = default_route(state.defaults)
    uplinks = state.uplinks
    if best is None:
        return
    others = [dev for dev in best.devs if dev not in uplinks.devs]
    if not others:
        return
    was = ",".join(uplinks.devs)
    to = ",".join(others)
    passed_as = _passed_as(uplinks)
    if passed_as == was:
        passed = f"{was}, with which the check passed,"
    else:
        passed = f"{was} ({passed_as} when the check passed)"
    what = f"the default route has moved from {passed} to {to}"
    undo = "remove that default route, or give it a higher metric"
    if len(others) < len(best.devs):
        what = f"the default route has a hop on {to}, too, but the check passed with {passed_as}"
        undo = "remove that hop"
    accept = _how_to_accept(best.devs, state)
    what_to_do = f"if {to} is to be an uplink, {accept}; if it isn't, {undo}"
    if not _infiniband(state).isdisjoint(others):  # InfiniBand is never the way to the cluster
        what_to_do = undo
    port = _port_of(uplinks.devs, others, state)
    if port is not None:  # until the bridge has a lease, the port has the default route
        what = f"{port} has become a port of {was}"
        what_to_do = f"move {port}'s address and routes to {was}"
    since = "" if uplinks.since is None else f" (since {uplinks.since})"
    text = (
        f"{what} ({best}): {was} stays the uplink{since}, and our routes stay on it; {what_to_do}"
    )
    yield Note(NoteKind.MOVED, text, devs=tuple(others))


def _how_to_accept(devs: tuple[str, ...], state: State) -> str:
    """Return advice on how the interfaces of a default route become the uplinks."""
    # If one of ``devs`` was the name of a verified uplink, the gate refuses it in ``uplinks``.
    if find_swapped(state.uplinks.verified, state.links, devs):
        return f"rm /{VERIFIED_PATH} && hostrouting apply"
    return f'set hostRouting\'s "uplinks": {json.dumps(devs)}, then hostrouting apply'


def _passed_as(uplinks: Uplinks) -> str:
    """Return the names that the uplinks had when the check passed."""
    return ",".join(sorted({uplink.name for uplink in uplinks.verified}))


def _port_of(masters: Container[str], devs: Iterable[str], state: State) -> str | None:
    """Return the first of ``devs`` that is a port of one of ``masters``, or None."""
    for dev in devs:
        if dev in state.ports and state.ports[dev].master in masters:
            return dev
    return None


def _rival_defaults(state: State, default: Route) -> list[Route]:
    """Return the default routes through interfaces that the chosen default route doesn't use.

    If uplinks are named, the IPv4 routes must lead through an uplink. For IPv6, see
    ``_rival_defaults6``.
    """
    uplinks = {*state.uplinks.devs}
    if state.family is Family.IPV6 and state.uplinks.named is not None:
        return _rival_defaults6(state, default)
    devs = {dev for route in state.defaults for dev in route.devs} - {*default.devs}
    if state.uplinks.named is not None:
        devs &= uplinks
    return [route for route in state.defaults if not devs.isdisjoint(route.devs)]


def _rival_defaults6(state: State, default: Route) -> list[Route]:
    """Return IPv6 default routes that the kernel may prefer to the chosen default route.

    These routes have the metric of the chosen route, and lead through interfaces that aren't
    uplinks.
    """
    uplinks = {*state.uplinks.devs}
    same_metric = [route for route in state.defaults if route.metric == default.metric]
    return [route for route in same_metric if not uplinks.issuperset(route.devs)]


def _pending(state: State) -> Iterable[Note]:
    # The Azure agent assigns only IPv4 addresses to InfiniBand interfaces.
    is_4 = state.family is Family.IPV4
    for dev in state.uplinks.pending if is_4 else ():
        text = (
            f"{dev} is an InfiniBand interface without an IPv4 address;"
            " once it has one, its subnet's route comes too"
        )
        yield Note(NoteKind.PENDING, text, devs=(dev,))


def _without_carrier(state: State) -> Iterable[Note]:
    for link in state.links:
        if link.name in state.uplinks.devs and not link.has_carrier:
            text = (
                f"{link.name} has no carrier:"
                " until it has one, nothing that is sent through it arrives"
            )
            yield Note(NoteKind.LINK, text, devs=(link.name,))


def _foreign_sources(state: State, places: Places) -> Iterable[Note]:
    """Yield a note for each route through an uplink whose src is an address of another network."""
    uplinks = {*state.uplinks.devs}
    owners = {address.local: address.dev for address in state.addresses}
    # The addresses of these interfaces belong to no network.
    anywhere = {link.name for link in state.links if _has_no_network(link)}
    for route in dict.fromkeys(_sent(places)):
        if route.source is None or not uplinks.issuperset(route.devs):
            continue
        owner = owners.get(route.source)
        if owner is None or owner in anywhere or owner in uplinks:
            continue
        text = (
            f"what {route} sends has the source {route.source}, an address of {owner}:"
            " the network may drop it"
        )
        yield Note(NoteKind.SOURCE, text, devs=(owner,))


def _has_no_network(link: Link) -> bool:
    return link.kind == "dummy" or link.hardware == Hardware.LOOPBACK


def _beyond_mtu(state: State, places: Places) -> Iterable[Note]:
    """Yield a note for the routes of each interface that have an mtu above the interface's."""
    found: dict[tuple[str, int | None], list[str]] = {}
    for route in dict.fromkeys(_sent(places)):
        for dev in devs_below_mtu(route, state.mtus):
            found.setdefault((dev, route.mtu), []).append(str(route))
    for (dev, _), routes in found.items():
        has = "has" if len(routes) == 1 else "have"
        text = (
            f"{shortened(routes, ', ', _SHOWN_ROUTES)} {has} an mtu above that of {dev}"
            f" ({state.mtus[dev]}): larger packets are lost without an error"
        )
        yield Note(NoteKind.MTU, text, devs=(dev,))


def _led_to_router(state: State, places: Places) -> Iterator[Note]:
    """Yield a note for each route that sends packets to neighbours on an uplink via a router."""
    connected = _connected(state)
    if not connected:
        return
    local = {span for span in places.spans if span.place.unconnected.is_local}
    for (route, subnet), spans in _spans_by_router(state, places, connected).items():
        parts = summary_of(sorted(spans), places.spans, local, state.family)
        shown = shortened([*map(str, parts)], " ", _SHOWN_ADDRESSES)
        text = (
            f"{shown}, in the subnet of {','.join(route.devs)}, goes to the router by {route},"
            f" and not by {connected[subnet]}: unless the link keeps its hosts apart,"
            f" neighbours there aren't reached reliably; {_how_to_reach(route, connected[subnet])}"
        )
        yield Note(NoteKind.ON_LINK, text, devs=route.devs, ranges=tuple(parts))


def _how_to_reach(route: Route, connected: Route) -> str:
    """Return how to reach neighbours on the link that a route leads to the router."""
    if route.is_ours:
        key = '"gateway": "onlink" in its entry of hostRouting.staticRoutes.routes'
        return f"if they are on the link, set {key}, then: hostrouting apply"
    if route.table == Table.MAIN:
        return "if they are on the link, remove that route where it is configured"
    table = word_of(route.table, Table)
    missing = f"{connected.destination} dev {','.join(connected.devs)}"
    return f"if they are on the link, add the route {missing} to table {table}, too"


def _spans_by_router(
    state: State,
    places: Places,
    connected: Mapping[Prefix, Route],
) -> dict[tuple[Route, Prefix], set[Span]]:
    """Return the spans in subnets that are reached via a router, by route and subnet."""
    index = PrefixIndex(connected, state.family.bits)
    routers = _routers(state)
    found: dict[tuple[Route, Prefix], set[Span]] = {}
    for place in places:
        subnet = next(index.around((int(place.probe), state.family.bits)), None)
        if subnet is None:
            continue
        for route in (each.route for each in place.lookups if each.route is not None):
            hops = {(hop.dev, hop.gateway) for hop in route.hops}
            if hops and hops <= routers and route.devs == connected[subnet].devs:
                found.setdefault((route, subnet), set()).update(place.spans)
    return found


def _routers(state: State) -> set[tuple[str | None, IpAddress | None]]:
    """Return the gateways of the default routes in all tables, each with its interface."""
    defaults = [route for route in state.routes if route.destination.prefixlen == 0]
    hops = [hop for route in defaults for hop in route.hops if hop.gateway is not None]
    return {(hop.dev, hop.gateway) for hop in hops}


def _connected(state: State) -> dict[Prefix, Route]:
    """Return main's routes to the subnets of the uplinks' addresses."""
    subnets = {*state.uplinks.subnets}
    found: dict[Prefix, Route] = {}
    for route in state.routes:
        is_direct = route.table == Table.MAIN and all(hop.gateway is None for hop in route.hops)
        prefix = numbers(route.destination)
        if is_direct and len(route.devs) == 1 and (prefix, route.devs[0]) in subnets:
            found.setdefault(prefix, route)
    return found


def _detours_to_pods(state: State, places: Places, of_pods: Collection[str]) -> Iterable[Note]:
    """Yield notes on sources: connections from them to this host's pods leave through an uplink."""
    if not of_pods:
        return
    uplinks = {*state.uplinks.devs}
    by_source: dict[IpAddress, list[IpAddress]] = {}
    for place in places:
        for first in _without_source(place):
            if not _leads_into(first, of_pods):
                continue
            for lookup in place.lookups:
                if lookup.source is None or lookup.is_reply or not _leads_into(lookup, uplinks):
                    continue
                by_source.setdefault(lookup.source, []).append(lookup.address)
    for source, addresses in by_source.items():
        pods = shortened([*dict.fromkeys(map(str, addresses))], " ", _SHOWN_ADDRESSES)
        text = (
            f"connections from {source} to pods of this host ({pods})"
            f" leave through {','.join(state.uplinks.devs)},"
            " because a policy rule for that source decides"
        )
        yield Note(NoteKind.SOURCE, text, devs=state.uplinks.devs)


def _leads_into(lookup: SocketLookup, devs: Collection[str]) -> bool:
    """Return whether a lookup's packets leave only through interfaces in ``devs``."""
    if lookup.route is None or not lookup.route.devs:
        return False
    return {*lookup.route.devs} <= {*devs}


def _sent(places: Places) -> Iterator[Route]:
    """Yield the unicast routes that match lookups without a source."""
    for place in places:
        for lookup in _without_source(place):
            if lookup.route is not None and lookup.route.type is RouteType.UNICAST:
                yield lookup.route


def _without_source(place: Place) -> Iterator[SocketLookup]:
    return (lookup for lookup in place.lookups if lookup.source is None)
