"""A model of the kernel's IPv6 route lookup and source address selection; see fib.py for IPv4.

This module does no I/O. Lookups follow net/ipv6/ip6_fib.c and net/ipv6/route.c, and source address
selection follows net/ipv6/addrconf.c.
"""

from __future__ import annotations

import errno as errnos
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from ipaddress import IPv6Address, IPv6Network
from typing import ClassVar

import attrs

from hostrouting.kernel.fib import Fib
from hostrouting.kernel.nexthops import Router
from hostrouting.kernel.rules import NO_SOURCE, TCP, UDP, Flow
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.links import Address6, AddressLabel
from hostrouting.model.lookups import Lookup, RouteFailure
from hostrouting.model.routes import Preference, Route, Route6, RouteType, Table

_BITS = 128
_ANY = IPv6Address(0)
_SCORES = {Preference.HIGH: 3, Preference.MEDIUM: 2, Preference.LOW: 1}

# The kernel's default labels (net/ipv6/addrlabel.c), sorted by descending prefix length.
LABELS = tuple(
    AddressLabel(IPv6Network(prefix), label)
    for prefix, label in (
        ("::1/128", 0),
        ("::/96", 3),
        ("::ffff:0:0/96", 4),
        ("2001::/32", 6),
        ("2001:10::/28", 7),
        ("2002::/16", 2),
        ("3ffe::/16", 12),
        ("fec0::/10", 11),
        ("fc00::/7", 5),
        ("::/0", 1),
    )
)
# Source address selection depends on whether addresses are in these prefixes, regardless of their
# labels.
ORCHID = IPv6Network("2001:10::/28")
SITE_LOCAL = IPv6Network("fec0::/10")
# The kernel doesn't avoid a deprecated source in these prefixes (IPV6_ADDR_MAPPED,
# IPV6_ADDR_COMPATv4 and IPV6_ADDR_LOOPBACK).
_NEVER_AVOIDED = (IPv6Network("::ffff:0:0/96"), IPv6Network("::/96"))
_LOOPBACK = IPv6Address(1)
# Entries of these types have the flag RTF_REJECT (ip6_route_info_create).
_REJECTING = (RouteType.BLACKHOLE, RouteType.UNREACHABLE, RouteType.PROHIBIT, RouteType.THROW)
_LINK_LOCAL = IPv6Network("fe80::/10")
_OF_LINK, _OF_SITE, _GLOBAL = 2, 5, 14  # IPV6_ADDR_SCOPE_*


@attrs.define(eq=False, slots=False)
class Fib6(Fib):
    """A host's IPv6 policy rules and FIB entries."""

    family: ClassVar[Family] = Family.IPV6

    def longest_match(self, table: int, flow: Flow) -> Route | None:
        """Return the entry that the kernel selects in a table, whatever its type."""
        candidates = list(self._candidates(table, flow))
        # Avoid silent routers at first. If no other entry matches, use one through a silent router
        # (fib6_table_lookup).
        for silent in dict.fromkeys((self.silent_routers, frozenset[Router]())):
            for entries in candidates:
                if (found := _best(entries, flow, silent)) is not None:
                    return found
        return None

    def _candidates(self, table: int, flow: Flow) -> Iterator[list[Route]]:
        """Yield a list of entries for each matching destination and source prefix, best first.

        The kernel compares the length of the destination first, and then the length of the source
        prefix. One destination may have entries with a source prefix and others without. The others
        are then skipped, except for ::/0, or if another entry has matched before
        (fib6_node_lookup_1, fib6_backtrack).
        """
        number = int(flow.address)
        lengths = self.tables.get(table, {})
        # A packet without a source is looked up with the source ``::``. So a source prefix such as
        # ::/1 matches.
        source = _ANY if flow.source == NO_SOURCE else flow.source
        has_found = False
        for length in sorted(lengths, reverse=True):
            entries = lengths[length].get(number >> (_BITS - length) << (_BITS - length))
            if entries is None:
                continue
            by_source = _by_source_prefix(entries)
            plain = by_source.pop(None, None)
            for group in _around(by_source, source):
                has_found = True
                yield group
            is_skipped = bool(by_source) and length > 0 and not has_found
            if plain is not None and not is_skipped:
                has_found = True
                yield plain

    def lookup(
        self,
        address: IpAddress,
        source: IpAddress | None = None,
        *,
        is_tcp: bool = False,
    ) -> Lookup:
        """Return the best route, like ``RouteBackend.lookup`` (inet6_rtm_getroute)."""
        chosen = NO_SOURCE if source is None or source.is_unspecified else source
        decision = self.decide(Flow(address, chosen, TCP if is_tcp else UDP))
        return Lookup(address, None if decision.errno else decision.route, decision.errno or None)

    def finds_gateway(self, gateway: IpAddress, dev: str) -> bool:
        """Return whether the kernel accepts a gateway of a route in main (ip6_route_check_nh)."""
        if gateway.is_link_local:
            return True
        found = self.find(Table.MAIN, Flow(gateway, oif=dev))
        if found is None or found.type is not RouteType.UNICAST or self.is_local(gateway):
            return False
        return all(hop.gateway is None for hop in found.hops if hop.dev == dev)

    def contradicts(self, gateway: IpAddress, dev: str) -> bool:
        """Return whether table main leads to an onlink gateway through another interface.

        The kernel refuses such a gateway (ip6_route_check_nh_onlink). Routes to ::/N, such as
        default routes, and routes that discard packets don't count.
        """
        found = self.find(Table.MAIN, Flow(gateway))
        if found is None or found.destination.network_address.is_unspecified:
            return False
        if found.type in _REJECTING or dev in found.devs:
            return False
        # Among routes with the same destination and metric, the kernel prefers a route through
        # ``dev``.
        own = self.find(Table.MAIN, Flow(gateway, oif=dev))
        if own is None:
            return True
        return (own.destination, own.metric) != (found.destination, found.metric)

    def refused_hops(self, routes: Sequence[Route]) -> Iterator[RouteFailure]:
        """Yield a failure for each next hop that the kernel would refuse to add (ip6_validate_gw).

        Args:
            routes: routes that are already in the tables, in the order in which the kernel adds
                them. For the lookup of a route's gateway, this route and the later ones don't exist
                yet.
        """
        # Cache by gateway, because thousands of routes may share one gateway.
        around = cache(partial(_positions_around, routes))
        refusal = cache(self._refusal_without)
        for number, route in enumerate(routes):
            for hop in route.hops:
                if hop.gateway is None or hop.dev is None:
                    continue
                later = [at for at in around(hop.gateway) if at >= number]
                absent = frozenset(routes[at].key for at in later)
                if hop.dev == self.loopback:
                    why = "Egress device can not be loopback device for this route"
                    yield RouteFailure(route, errnos.EINVAL, why)
                elif why := refusal(hop.gateway, hop.dev, absent, is_onlink=hop.onlink):
                    yield RouteFailure(route, errnos.EHOSTUNREACH, why, is_by_kernel=False)

    def _refusal_without(
        self,
        gateway: IpAddress,
        dev: str,
        absent: frozenset[tuple[object, ...]],
        *,
        is_onlink: bool,
    ) -> str:
        """Return why the kernel would refuse a gateway; empty if it would accept it.

        Args:
            gateway: the gateway of a next hop.
            dev: the interface of that next hop.
            absent: the keys of entries that the kernel doesn't have yet when it checks the gateway.
            is_onlink: whether the next hop is marked onlink.
        """
        known = self
        if absent:
            left = tuple(entry for entry in self.routes if entry.key not in absent)
            known = attrs.evolve(self, routes=left)
        if is_onlink:
            if known.contradicts(gateway, dev):
                return f"another route leads to {gateway} through another interface than {dev}"
        elif not known.finds_gateway(gateway, dev):
            return f"no route of scope link reaches {gateway} on {dev}"
        return ""

    def sources_to(self, address: IpAddress, route: Route | None) -> tuple[IpAddress, ...]:
        """Return the sources that an entry's next hops select for a destination.

        See ip6_route_get_saddr.

        Args:
            address: the destination of the packets.
            route: the entry, whose interface's addresses the kernel prefers. None if no entry
                matches.
        """
        return tuple(
            sorted(
                {
                    source
                    for sources in self._by_hop(address, route, _RANKS)
                    for source in sources[:1]
                }
            )
        )

    def possible_sources_to(
        self,
        address: IpAddress,
        route: Route | None,
        *,
        is_ordered: bool = True,
    ) -> Sequence[tuple[IpAddress, ...]]:
        """Return the sources that the kernel may select for a destination.

        The result has a tuple of sources for each interface of the entry. If ``labels`` is None,
        the labels don't decide: a tuple has all addresses that are otherwise equally good.

        Args:
            address: the destination of the packets.
            route: the entry, or None if no entry matches; see ``sources_to``.
            is_ordered: whether the host's addresses are in the order in which the kernel considers
                them. If the order is unknown, each tuple has the first of the equally good
                addresses of each of the host's interfaces.
        """
        ranks = _RANKS if self.labels is not None else _RANKS_BEFORE_LABELS
        found = self._by_hop(address, route, ranks)
        return (
            found if self.labels is None or not is_ordered else [sources[:1] for sources in found]
        )

    def _by_hop(
        self,
        address: IpAddress,
        route: Route | None,
        ranks: int,
    ) -> list[tuple[IpAddress, ...]]:
        """Return the best sources for each interface of an entry; see ``_best_sources``."""
        if route is not None and route.source is not None:
            return [(route.source,)]
        return [
            self._best_sources(address, dev, ranks)
            for dev in ((None,) if route is None else route.devs)
        ]

    def _best_sources(
        self,
        address: IpAddress,
        dev: str | None,
        ranks: int,
    ) -> tuple[IpAddress, ...]:
        """Return the best source addresses for packets through an interface, in the kernel's order.

        The kernel compares the addresses of all interfaces by a list of criteria
        (IPV6_SADDR_RULE_*). Only the first ``ranks`` criteria are compared here
        (__ipv6_dev_get_saddr, ipv6_get_saddr_eval). Temporary addresses, if any, are assumed to be
        preferred (sysctl use_tempaddr=2).
        """
        scope = _scope(address)
        label = self._label(address, dev)
        is_orchid = address in ORCHID

        def rank(source: Address6) -> tuple[int, ...]:
            """Return a number for each criterion of RFC 6724, in order. The highest rank wins."""
            its_scope = _scope(source.local)
            # Of the scopes that reach the destination, the narrowest is best. Otherwise, the widest
            # scope is.
            by_scope = -its_scope if its_scope >= scope else its_scope - _BITS
            common_bits = _BITS - (int(source.local) ^ int(address)).bit_length()
            return (
                source.local == address,
                by_scope,
                not _is_avoided(source),
                source.dev == dev,
                self._label(source.local, source.dev) == label,
                source.is_temporary,
                (source.local in ORCHID) == is_orchid,
                min(common_bits, source.prefix_length),
            )[:ranks]

        best_rank: tuple[int, ...] = ()
        best: list[Address6] = []
        for each in self.addresses():
            if not isinstance(each, Address6) or each.is_tentative:
                continue
            its_rank = rank(each)
            if its_rank > best_rank:
                best_rank = its_rank
                best = []
            if its_rank == best_rank:
                best.append(each)
        if ranks == _RANKS:
            best = _first_of_each_dev(best)
        return tuple(each.local for each in best)

    def _label(self, address: IpAddress, dev: str | None) -> int:
        """Return an address's label on an interface (__ipv6_addr_label)."""
        labels = LABELS if self.labels is None else self.labels
        return next(
            (each.label for each in labels if each.dev in (None, dev) and address in each.prefix),
            _NO_LABEL,
        )


_RANKS = 8  # the number of criteria by which the kernel compares source addresses
_RANKS_BEFORE_LABELS = 4  # the number of criteria before the labels
_NO_LABEL = 0xFFFFFFFF  # IPV6_ADDR_LABEL_DEFAULT

MODELS: dict[Family, type[Fib]] = {Family.IPV4: Fib, Family.IPV6: Fib6}


def _is_avoided(source: Address6) -> bool:
    """Return whether ``source`` is deprecated, so that the kernel prefers other sources."""
    return source.is_deprecated and not any(source.local in prefix for prefix in _NEVER_AVOIDED)


def _first_of_each_dev(addresses: Iterable[Address6]) -> list[Address6]:
    """Return the first address of each interface.

    Among equally good addresses of one interface, the kernel selects the first, regardless of the
    order of the interfaces.
    """
    firsts: dict[str, Address6] = {}
    for each in addresses:
        firsts.setdefault(each.dev, each)
    return [*firsts.values()]


def _positions_around(routes: Sequence[Route], gateway: IpAddress) -> list[int]:
    """Return the positions of the routes that contain a gateway."""
    return [number for number, route in enumerate(routes) if gateway in route.destination]


def _around(
    by_source: Mapping[IPv6Network | None, list[Route]],
    source: IpAddress,
) -> Iterator[list[Route]]:
    """Yield the groups of entries whose source prefix contains a source, longest prefix first."""
    around = [prefix for prefix in by_source if prefix is not None and source in prefix]
    for prefix in sorted(around, key=lambda prefix: prefix.prefixlen, reverse=True):
        yield by_source[prefix]


def _by_source_prefix(entries: Iterable[Route]) -> dict[IPv6Network | None, list[Route]]:
    found: dict[IPv6Network | None, list[Route]] = {}
    for entry in entries:
        prefix = entry.source_prefix if isinstance(entry, Route6) else None
        found.setdefault(prefix, []).append(entry)
    return found


def _best(entries: list[Route], flow: Flow, silent: frozenset[Router]) -> Route | None:
    """Return the entry that the kernel selects from a list sorted by metric (find_rr_leaf).

    Of the entries with the lowest metric, the usable ones are candidates. If none of them is
    usable, all usable entries are candidates, whatever their metrics. The candidate with the
    highest preference wins.
    """
    usable = [entry for entry in entries if _is_usable(entry, flow, silent)]
    first = [entry for entry in usable if entry.metric == entries[0].metric]
    return max(first or usable, key=_score, default=None)


def _is_usable(entry: Route, flow: Flow, silent: frozenset[Router]) -> bool:
    if entry.is_dead:
        return False
    live = (hop for hop in entry.hops if not hop.is_dead and flow.oif in (None, hop.dev))
    return not entry.hops or any((hop.dev, hop.gateway) not in silent for hop in live)


def _score(entry: Route) -> int:
    return _SCORES[entry.preference] if isinstance(entry, Route6) else 0


def _scope(address: IpAddress) -> int:
    # For an address in ::ffff:0:0/96, Python 3.13's is_loopback and is_link_local describe the
    # mapped IPv4 address.
    if address == _LOOPBACK or address in _LINK_LOCAL:
        return _OF_LINK
    return _OF_SITE if address in SITE_LOCAL else _GLOBAL
