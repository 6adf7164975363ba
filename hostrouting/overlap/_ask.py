"""Ask the kernel as a socket on this host does.

A socket makes up to three kinds of lookups:

- *Unconnected*: a datagram from an unconnected socket has no source yet.
- *Client*: the first lookup of a connecting socket selects the source. The socket repeats the
  lookup with this source (ip_route_connect in include/net/route.h). The second result may differ
  from the first: a policy rule may match on the source, or an entry may have a src that isn't one
  of this host's addresses.
- *Server*: a server replies from the address at which it was called. For a client, the kernel may
  select another source. So if a rule or route matches on the source, lookups are also made from
  each address on an uplink or on lo.

Over IPv6, every socket retries a failed lookup, with a source that the kernel selects from all of
the host's addresses. A successful lookup is repeated whenever a route or rule changes
(ip6_dst_lookup_tail in net/ipv6/ip6_output.c).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hostrouting.kernel.default_routes import with_every_default
from hostrouting.kernel.port import Lookups, Sent
from hostrouting.kernel.rules import KERNEL_RULES, LOOPBACK, NO_SOURCE
from hostrouting.kernel.sources import SourceKey, source_key_to, spread
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix, numbers
from hostrouting.model.links import Address, AddressLabel
from hostrouting.model.lookups import Lookup
from hostrouting.model.routes import Route, Route6, RouteType, Scope, Table
from hostrouting.model.rules import Rule
from hostrouting.overlap._places import Place, SocketLookup

if TYPE_CHECKING:
    from hostrouting.kernel.fib import Fib


class Sockets:
    """The lookups of all sockets that may send from a host.

    Args:
        kernel: the kernel to query.
        rules: the host's policy rules. If none matches on the protocol, TCP isn't looked up
            separately. If no rule or route matches on the source, servers aren't looked up. Clients
            are then only looked up for entries with a src that the kernel refuses as a source.
        routes: the entries in all tables, in the kernel's order.
        family: the address family of the packets.
        called: the addresses at which a server may be called; see ``called_addresses``.
    """

    def __init__(
        self,
        kernel: Lookups,
        rules: Sequence[Rule],
        routes: Sequence[Route],
        family: Family,
        called: Sequence[IpAddress],
    ) -> None:
        self._kernel = kernel
        self._family = family
        self._called = called
        self._protocols = (False, True) if separates_tcp(rules) else (False,)
        self._look_up = with_every_default(kernel.lookup, routes)
        self._has_source = selects_source(rules, routes, family)
        self._asks_local_first = asks_local_first(rules)

    def ask(self, places: Iterable[Place]) -> dict[Place, tuple[SocketLookup, ...]]:
        """Make the lookups of all sockets, except those whose result an earlier lookup has shown.

        Returns:
            The lookups for each place: all of UDP, then all of TCP. Of each protocol, lookups
            without a source come first.

        Raises:
            RouteError: the kernel can't be queried.
        """
        # Integers are hashed ten times as fast as addresses.
        by_probe = {int(place.probe): place for place in places}
        lookups: dict[int, list[SocketLookup]] = {probe: [] for probe in by_probe}
        for is_tcp in self._protocols:
            for lookup in self._lookups_of(by_probe, is_tcp=is_tcp):
                lookups[int(lookup.address)].append(lookup)
        return {place: tuple(lookups[probe]) for probe, place in by_probe.items()}

    def _lookups_of(self, places: Mapping[int, Place], *, is_tcp: bool) -> Iterator[SocketLookup]:
        # 1. A datagram from an unconnected socket has no source yet.
        firsts = self._look_up([place.probe for place in places.values()], is_tcp=is_tcp)
        for result in firsts:
            yield SocketLookup(result, None, is_tcp)
        # 2. A client connects from the source that the kernel has selected by the first lookup.
        again = [result for result in firsts if self._needs_client_lookup(result)]
        by_source = self._by_source(again, places, is_tcp=is_tcp)
        yield from self._of_clients(by_source, is_tcp=is_tcp)
        # 3. A server replies from the address at which it was called.
        if self._has_source:
            answered = [each.address for each in firsts if self._needs_server_lookup(each)]
            yield from self._of_servers(answered, by_source, is_tcp=is_tcp)

    def _of_clients(
        self,
        by_source: Mapping[IpAddress, Sequence[IpAddress]],
        *,
        is_tcp: bool,
    ) -> Iterator[SocketLookup]:
        for source, probes in sorted(by_source.items()):
            # Without rules or routes that match on sources, a source changes nothing, except if the
            # kernel refuses to send from it. The kernel then refuses for all destinations, so one
            # probe is enough.
            if not self._has_source and self._can_send(source, probes[0], is_tcp=is_tcp):
                continue
            for result in self._look_up(probes, source=source, is_tcp=is_tcp):
                yield SocketLookup(result, source, is_tcp)

    def _of_servers(
        self,
        probes: Iterable[IpAddress],
        connected: Mapping[IpAddress, Sequence[IpAddress]],
        *,
        is_tcp: bool,
    ) -> Iterator[SocketLookup]:
        for source in self._called:
            known = {*connected.get(source, ())}
            unknown = [probe for probe in dict.fromkeys(probes) if probe not in known]
            for result in self._look_up(unknown, source=source, is_tcp=is_tcp):
                yield SocketLookup(result, source, is_tcp, is_reply=True)

    def _needs_client_lookup(self, first: Lookup) -> bool:
        has_src = first.route is not None and first.route.source is not None
        return (self._has_source or has_src) and self._depends_on_source(first)

    def _needs_server_lookup(self, first: Lookup) -> bool:
        # An address may be local by an entry of another table than local. Then an IPv4 client
        # connects from the address itself, but a server may reply from another address.
        is_elsewhere = first.route is not None and first.route.table != Table.LOCAL
        return is_elsewhere or self._depends_on_source(first)

    def _depends_on_source(self, first: Lookup) -> bool:
        """Return whether a lookup with a source may have another result than ``first``.

        For an address of this host, the result depends on the source only if a rule precedes table
        local's rule.
        """
        route = first.route
        if route is None or route.type is not RouteType.LOCAL or not self._asks_local_first:
            return True
        # Over IPv6, main may have local entries, and a rule with a source may precede main's rule.
        return self._family is Family.IPV6 and self._has_source and route.table == Table.MAIN

    def _can_send(self, source: IpAddress, probe: IpAddress, *, is_tcp: bool) -> bool:
        """Return whether the kernel accepts a source, because it is an address of this host."""
        return self._kernel.lookup([probe], source=source, is_tcp=is_tcp)[0].route is not None

    def _by_source(
        self,
        firsts: Iterable[Lookup],
        places: Mapping[int, Place],
        *,
        is_tcp: bool,
    ) -> dict[IpAddress, list[IpAddress]]:
        """Map each source to the probes for which the kernel selects it after the first lookup."""
        # Each entry, with the probes that match it. The kernel selects the same source for all
        # probes of an entry.
        groups: dict[SourceKey, tuple[Route, list[IpAddress]]] = {}
        unrouted: list[IpAddress] = []
        for first in firsts:
            probe = first.address
            route = first.route
            if route is None:
                unrouted.append(probe)
            else:
                groups.setdefault(source_key_to(probe, route), (route, []))[1].append(probe)
        # Each entry whose source the kernel must select, with all probes that match it.
        sent: list[tuple[Sent, list[IpAddress]]] = [
            ((None, [probe]), [probe]) for probe in unrouted
        ]
        by_source: dict[IpAddress, list[IpAddress]] = {}
        for route, probes in groups.values():
            if route.source is not None:
                by_source.setdefault(route.source, []).extend(probes)
                continue
            destinations = spread(route, self._addresses_around(probes, places))
            sent.append(((route, destinations), probes))
        if not sent:
            return by_source
        selected = self._kernel.sources([each for each, _ in sent], is_tcp=is_tcp)
        for (_, probes), sources in zip(sent, selected, strict=True):
            for source in sources:
                by_source.setdefault(source, []).extend(probes)
        return by_source

    def _addresses_around(
        self,
        probes: Iterable[IpAddress],
        places: Mapping[int, Place],
    ) -> Iterator[IpAddress]:
        """Yield all addresses of the span that begins with each probe.

        The next hop of a multipath route depends on the address. So ``spread`` selects some of
        these addresses that use different next hops.
        """
        for probe in probes:
            span = places[int(probe)].spans[0]
            yield from map(self._family.address, range(span.first, span.last + 1))


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
    """Return whether a policy rule, such as ``ipproto tcp``, may treat TCP unlike UDP."""
    return any(rule.ip_protocol and not rule.has_ports for rule in rules)


def called_addresses(
    addresses: Iterable[Address],
    devs: Collection[str],
    rules: Sequence[Rule],
) -> list[IpAddress]:
    """Return own addresses whose replies may leave otherwise than packets without a source.

    Args:
        addresses: the host's addresses. IPv6 addresses always count, because routes may match on
            the source, too.
        devs: the uplinks. Addresses on the loopback interface count, too, because hosts with BGP
            have their addresses there.
        rules: the policy rules. If a rule matches on the protocol, every address counts. For UDP,
            the lookup without a source shows where replies from most addresses leave. For TCP, that
            lookup isn't judged if it only selects a client's source (``sends_packets``).
    """
    has_protocol = separates_tcp(rules)
    return [
        address.local
        for address in addresses
        if (address.dev in devs or address.dev == LOOPBACK)
        and _is_reachable(address)
        and (has_protocol or is_told_apart(address.local, rules))
    ]


def is_told_apart(source: IpAddress, rules: Iterable[Rule]) -> bool:
    """Return whether rules may treat packets from a source unlike packets without a source.

    IPv6 routes may match on the source, too, so all IPv6 addresses count.
    """
    prefixes = (rule.source for rule in rules if rule.source is not None)
    return source.version == 6 or any(
        (source in prefix) != (NO_SOURCE in prefix) for prefix in prefixes
    )


def _is_reachable(address: Address) -> bool:
    is_global = address.scope == Scope.UNIVERSE and not address.local.is_link_local
    return is_global and address.is_usable


def source_borders(
    addresses: Iterable[Address],
    labels: Iterable[AddressLabel],
) -> Iterator[Prefix]:
    """Yield prefixes: at their ends, the kernel may select another IPv6 source for a next hop.

    The kernel compares the destination with each address: label, scope, leading bits, and whether
    both are ORCHIDs (ipv6_get_saddr_eval).
    """
    from hostrouting.kernel.fib6 import ORCHID, SITE_LOCAL

    yield from map(numbers, (ORCHID, SITE_LOCAL, *(label.prefix for label in labels)))
    for address in addresses:
        for length in range(1, address.prefix_length + 1):
            yield int(address.local) >> (128 - length) << (128 - length), length


def _comparable(lookup: Lookup) -> object:
    """Return a lookup result; of an IPv6 multipath route, only the attributes that a model knows.

    The kernel reports the other attributes, such as the MTU, of the selected hop only.
    """
    route = lookup.route
    if not (isinstance(route, Route6) and len(route.hops) > 1):
        return lookup
    return lookup.address, route.key, route.type, route.hops, route.nexthop_id


def modelled_lookups(fib: Fib) -> Callable[..., list[Lookup]]:
    """Return a function that looks up addresses in a model.

    If the kernel may choose between default routes, the function returns a result for each route.
    """

    def look_up(addresses: Sequence[IpAddress], **flow: Any) -> list[Lookup]:
        return [fib.lookup(address, **flow) for address in addresses]

    return with_every_default(look_up, fib.routes)


def is_modelled(lookup: SocketLookup, look_up: Callable[..., list[Lookup]]) -> bool:
    """Return whether the model gives the kernel's result for a lookup."""
    modelled = look_up([lookup.address], source=lookup.source, is_tcp=lookup.is_tcp)
    return _comparable(lookup.result) in map(_comparable, modelled)
