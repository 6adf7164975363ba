"""Perform the same lookups as a socket on this host.

All of them must succeed. An unconnected datagram uses the first lookup. A connecting socket repeats
the lookup with the source address selected by the first one (ip_route_connect in
include/net/route.h). The second result may differ if a policy rule matches on the source, or if an
entry has a src that isn't one of this host's addresses.

A server answers from the address at which it was called, whatever source a connection would get. So
lookups are also made with each address of an uplink as the source, if a rule or route may treat
such packets unlike those without a source.

Over IPv6, every socket retries a failed lookup, with a source that the kernel selects from all of
the host's addresses. A successful lookup is repeated whenever a route or rule changes
(ip6_dst_lookup_tail in net/ipv6/ip6_output.c).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from hostrouting.kernel.default_routes import in_turn
from hostrouting.kernel.port import Lookups
from hostrouting.kernel.rules import KERNEL_RULES, LOOPBACK, NO_SOURCE, TCP, UDP, Flow
from hostrouting.kernel.sources import SourceKey, source_key, spread
from hostrouting.model.answers import Lookup
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix, numbers
from hostrouting.model.links import Address, AddressLabel
from hostrouting.model.routes import Route, Route6, RouteType, Scope, Table
from hostrouting.model.rules import Rule
from hostrouting.overlap._cut import Interval

if TYPE_CHECKING:
    from hostrouting.kernel.fib import Fib


class Probe(NamedTuple):
    """The result of a lookup.

    Args:
        lookup: the result.
        source: source address used for the lookup, or None for the first lookup, which selects one.
        is_tcp: whether the lookup is for TCP rather than UDP.
        is_reply: whether the lookup is for replies from ``source``, which no connection selects.
    """

    lookup: Lookup
    source: IpAddress | None = None
    is_tcp: bool = False
    is_reply: bool = False

    @property
    def flow(self) -> Flow:
        """Return the key of the lookup."""
        return Flow(self.lookup.address, self.source or NO_SOURCE, TCP if self.is_tcp else UDP)


def asks_local_first(rules: Sequence[Rule]) -> bool:
    """Return whether table local is looked up first, as it is by default."""
    return tuple(rules[:1]) == KERNEL_RULES[:1]


def selects_source(rules: Iterable[Rule], routes: Iterable[Route], family: Family) -> bool:
    """Return whether any policy rule or IPv6 route matches on the source address."""
    if any(rule.source is not None for rule in rules):
        return True
    of_6 = routes if family is Family.IPV6 else ()
    return any(isinstance(route, Route6) and route.source_prefix is not None for route in of_6)


def separates_tcp(rules: Iterable[Rule]) -> bool:
    """Return whether a policy rule may lead TCP elsewhere than UDP."""
    return any(rule.ip_protocol and not rule.has_ports for rule in rules)


def replying(
    addresses: Iterable[Address], devs: Collection[str], rules: Sequence[Rule]
) -> list[IpAddress]:
    """Return the addresses at which a server may be called, if replies from there may match other rules or routes.

    Args:
        addresses: the host's addresses. IPv6 addresses count whatever the rules, because routes may
            match on the source too.
        devs: the uplinks. Addresses on the loopback interface count too, because hosts with BGP
            have theirs there.
        rules: the policy rules. If one matches on the protocol, every address counts: replies from
            an address that no rule names follow TCP's lookup without a source, which isn't judged
            if connections only use it to choose their source.
    """
    has_protocol = separates_tcp(rules)
    prefixes = [
        (rule.source, NO_SOURCE in rule.source) for rule in rules if rule.source is not None
    ]
    called = (
        address.local
        for address in addresses
        if (address.dev in devs or address.dev == LOOPBACK)
        and address.scope == Scope.UNIVERSE
        and address.is_usable
        if not address.local.is_link_local
    )
    return [
        each
        for each in called
        if each.version == 6
        or has_protocol
        or any((each in prefix) != has_none for prefix, has_none in prefixes)
    ]


def source_borders(
    addresses: Iterable[Address], labels: Iterable[AddressLabel]
) -> Iterator[Prefix]:
    """Yield prefixes at whose boundaries the kernel may select another IPv6 source for the same next hop.

    The kernel compares the destination's label, scope and leading bits with those of each address,
    and whether both are ORCHIDs (ipv6_get_saddr_eval).
    """
    from hostrouting.kernel.fib6 import ORCHID, SITE_LOCAL

    yield from map(numbers, (ORCHID, SITE_LOCAL, *(label.prefix for label in labels)))
    for address in addresses:
        for length in range(1, address.prefix_length + 1):
            yield int(address.local) >> (128 - length) << (128 - length), length


def _without_owner(lookup: Lookup) -> Lookup:
    """Return a lookup result that can be compared with a model's.

    The next hops of an IPv6 multipath route may have different owners, but a lookup only reports
    the selected hop's owner.
    """
    if not (isinstance(lookup.route, Route6) and len(lookup.route.hops) > 1):
        return lookup
    return lookup._replace(route=attrs.evolve(lookup.route, protocol=0, mtu=None, source=None))


def modelled_lookups(fib: Fib) -> Callable[..., list[Lookup]]:
    """Return a function that looks up addresses in a model, with every default route that the kernel may choose."""

    def look_up(addresses: Sequence[IpAddress], **flow: Any) -> list[Lookup]:
        return [fib.lookup(address, **flow) for address in addresses]

    return in_turn(look_up, fib.routes)


def is_modelled(probe: Probe, look_up: Callable[..., list[Lookup]]) -> bool:
    """Return whether a model's lookups give the same result as the kernel's."""
    lookup, source, is_tcp, _ = probe
    return _without_owner(lookup) in map(
        _without_owner, look_up([lookup.address], source=source, is_tcp=is_tcp)
    )


def source_key_to(address: IpAddress, entry: Route | None) -> SourceKey:
    """Return the attributes that determine a source address; for IPv6, they include the destination."""
    return (
        *((address,) if address.version == 6 else ()),
        *(() if entry is None else source_key(entry)),
    )


def ask(
    intervals: Sequence[Interval],
    rules: Sequence[Rule],
    routes: Sequence[Route],
    asked: Lookups,
    family: Family,
    replying: Sequence[IpAddress] = (),
) -> dict[int, tuple[Probe, ...]]:
    """Perform every lookup that a socket may perform, except those with a known result.

    Args:
        intervals: the intervals to probe.
        rules: the host's policy rules. A second lookup is only needed if a rule or route matches on
            the source, or if the entry found first has a src that isn't one of this host's
            addresses. Separate lookups for TCP are only needed if a rule matches on the protocol.
        routes: the entries in all tables, in the kernel's order.
        asked: the kernel to query.
        family: the address family.
        replying: the addresses at which a server may be called.

    Returns:
        The results for each probe, UDP first. For each protocol, the result without a source comes
        first.

    Raises:
        RouteError: the kernel can't be queried.
    """
    has_source = selects_source(rules, routes, family)
    # A source rule that precedes table local also applies to packets for this host's own addresses.
    is_local_safe = asks_local_first(rules)
    look_up = in_turn(asked.lookup, routes)
    found: dict[int, list[Probe]] = {interval.probed: [] for interval in intervals}
    addresses = [family.address(probed) for probed in found]

    def may_have_source(lookup: Lookup) -> bool:
        """Return whether a source may change a result.

        For this host's addresses, that takes a rule before local.
        """
        route = lookup.route
        if family is Family.IPV6 and has_source and route is not None and route.table == Table.MAIN:
            return True  # table main may have local entries too, and a source rule may precede main
        return route is None or route.type is not RouteType.LOCAL or not is_local_safe

    for is_tcp in (False, True) if separates_tcp(rules) else (False,):
        firsts = look_up(addresses, is_tcp=is_tcp)
        for lookup in firsts:
            found[int(lookup.address)].append(Probe(lookup, None, is_tcp))
        beyond = [lookup for lookup in firsts if may_have_source(lookup)]
        again = [
            each
            for each in beyond
            if has_source or (each.route is not None and each.route.source is not None)
        ]
        by_source = _by_source(again, intervals, asked, family, is_tcp=is_tcp)
        for source, numbers_ in sorted(by_source.items()):
            from_it = [family.address(number) for number in numbers_]
            if (
                not has_source
                and asked.lookup(from_it[:1], source=source, is_tcp=is_tcp)[0].route is not None
            ):
                continue
            for lookup in look_up(from_it, source=source, is_tcp=is_tcp):
                found[int(lookup.address)].append(Probe(lookup, source, is_tcp))
        # In IPv4, a connection to a local entry in another table gets its destination as the
        # source, but replies to that address may have another source.
        answered = [
            each
            for each in firsts
            if may_have_source(each) or (each.route and each.route.table != Table.LOCAL)
        ]
        for source in replying if has_source else ():
            known = {*by_source.get(source, ())}
            unasked = dict.fromkeys(
                each.address for each in answered if int(each.address) not in known
            )
            for lookup in look_up([*unasked], source=source, is_tcp=is_tcp):
                found[int(lookup.address)].append(Probe(lookup, source, is_tcp, is_reply=True))
    return {probed: tuple(probes) for probed, probes in found.items()}


def _by_source(
    lookups: Iterable[Lookup],
    intervals: Sequence[Interval],
    asked: Lookups,
    family: Family,
    *,
    is_tcp: bool,
) -> dict[IpAddress, list[int]]:
    """Map each source address to the probes to look up from it, given the results without a source."""
    # Groups of probes with the same sources, and their entry.
    groups: dict[SourceKey, tuple[Route, list[int]]] = {}
    failed: list[IpAddress] = []
    for address, route, _ in lookups:
        if route is None:
            failed.append(address)
        else:
            groups.setdefault(source_key_to(address, route), (route, []))[1].append(int(address))
    found: dict[IpAddress, list[int]] = {}
    ranges = {
        each.probed: range(each.first, each.last + 1)
        for each in intervals
        if each.first == each.probed
    }
    left = list(groups.values())
    while left:
        # Each query returns one set of sources per entry, so groups that share an entry need
        # separate queries.
        turn: dict[Route, list[int]] = {}
        later = [
            (route, probed)
            for route, probed in left
            if turn.setdefault(route, probed) is not probed
        ]
        unnamed = {route: probed for route, probed in turn.items() if route.source is None}
        inside = (
            (route, chain.from_iterable(map(ranges.__getitem__, probed)))
            for route, probed in unnamed.items()
        )
        flows = {route: spread(route, map(family.address, numbers_)) for route, numbers_ in inside}
        chosen = asked.sources(flows, is_tcp=is_tcp) if flows else {}
        for route, probed in turn.items():
            for source in chosen[route] if route.source is None else (route.source,):
                found.setdefault(source, []).extend(probed)
        left = later
    for address, source in (
        asked.sources_of_unrouted(failed, is_tcp=is_tcp).items() if failed else ()
    ):
        found.setdefault(source, []).append(int(address))
    return found
