"""Take host snapshots, and query them through a read-only backend."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from ipaddress import IPv4Address
from itertools import chain
from operator import attrgetter

import attrs

from hostrouting.kernel.default_routes import unicast_defaults
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.fib6 import LABELS, Fib6
from hostrouting.kernel.merging import are_merged
from hostrouting.kernel.odd_sources import has_odd_sources
from hostrouting.kernel.port import (
    ChangeListener,
    Facts,
    RouteBackend,
    Sent,
    UnstableHostError,
    Write,
    read_consistently,
    read_routes,
    refuse_datagrams,
)
from hostrouting.kernel.release import passes_discards, separates_on_deletion
from hostrouting.kernel.rules import KERNEL_RULES, NO_SOURCE, TCP, UDP, Flow, kernel_rules
from hostrouting.kernel.selection import EVERYTHING, Entries, Selection
from hostrouting.kernel.snapshot import Ipv6State, Snapshot
from hostrouting.kernel.sources import SourceKey, Sources, flows_through, source_key, spread
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, ends, numbers, uncovered_addresses
from hostrouting.model.jsonable import rfc_3339
from hostrouting.model.links import Address
from hostrouting.model.lookups import Lookup, RouteFailure
from hostrouting.model.routes import Route, Route6, RouteType, Table
from hostrouting.model.rules import Rule
from phases import CancelScope

# The maximum number of entries with the same next hops to try. Entries in earlier tables may shadow
# some of them.
_TRIED_ENTRIES = 16


def take_snapshot(
    backend: RouteBackend,
    backend6: RouteBackend | None = None,
    *,
    inside: Sequence[Prefix] = ((0, 0),),
    scope: CancelScope | None = None,
) -> Snapshot:
    """Take a consistent snapshot of a host, or set ``is_torn`` if the host never stops changing.

    Args:
        backend: the kernel to query.
        backend6: the kernel to query for IPv6, or None to omit IPv6.
        inside: the IPv4 prefixes in which no entry may change.
        scope: cancels the reads.

    Raises:
        RouteError: the kernel can't be queried.
    """
    kernel, scope = os.uname(), scope or CancelScope()

    def read() -> Snapshot:
        facts = backend.facts()
        routes = read_routes(backend)
        return Snapshot(
            links=facts.links,
            addresses=facts.addresses,
            rules=facts.rules,
            routes=routes,
            is_merged=are_merged(facts.addresses, facts.rules, routes, backend),
            sources=_asked_sources(facts.addresses, facts.rules, routes, backend),
            ipv6=None if backend6 is None else _read_ipv6(backend6),
            host=kernel.nodename,
            time=rfc_3339(time.time()),
            kernel=f"{kernel.sysname} {kernel.release}",
        )

    watched = [(backend, inside), *([] if backend6 is None else [(backend6, [(0, 0)])])]
    snapshot, why_torn = read_consistently(watched, scope, read)
    return attrs.evolve(snapshot, is_torn=why_torn is not None)


def _read_ipv6(backend: RouteBackend) -> Ipv6State:
    facts = backend.facts()
    state = Ipv6State(
        facts.addresses,
        facts.rules,
        read_routes(backend),
        facts.silent_routers,
        labels=facts.labels,
    )
    model = SnapshotBackend6(Snapshot(facts.links, (), (), (), ipv6=state))
    return attrs.evolve(state, has_odd_sources=has_odd_sources(state, backend, model))


def _asked_sources(
    addresses: Sequence[Address],
    rules: Sequence[Rule],
    routes: Sequence[Route],
    backend: RouteBackend,
) -> tuple[tuple[Route, tuple[IpAddress, ...]], ...]:
    """Query the relevant source addresses that can't be derived from addresses and entries.

    Returns:
        One entry per set of next hops, with its sources. Entries that no lookup without a source
        selects aren't needed.
    """
    # Sources matter only if a rule selects by source. If a rule has an unknown selector, such as
    # all source ports, the backend may be unable to tell how TCP is routed, so it isn't queried.
    if not any(rule.source is not None for rule in rules) or any(
        rule.has_unknown for rule in rules
    ):
        return ()
    chosen, scopes = Sources(addresses), _scopes_of_objects(routes)
    by_key: dict[SourceKey, list[Route]] = {}
    for route in routes:
        by_key.setdefault(source_key(route), []).append(route)
    doubts = {
        key: entries for key, entries in by_key.items() if chosen.doubtful(entries[0], scopes)
    }
    free = (
        uncovered_addresses((numbers(route.destination) for route in routes), 32) if doubts else {}
    )
    tried: list[IpAddress] = []
    for route in chain.from_iterable(entries[:_TRIED_ENTRIES] for entries in doubts.values()):
        prefix = numbers(route.destination)
        if (first := free[prefix]) is not None:
            first = max(first, 1)  # 0.0.0.0 means this host
            tried += map(
                IPv4Address,
                range(first, min(first + flows_through(route), ends(prefix, 32)[1] + 1)),
            )
    asked: dict[SourceKey, tuple[Route, list[IpAddress]]] = {}
    for found in backend.lookup(tried):
        if found.route is not None and source_key(found.route) in doubts:
            asked.setdefault(source_key(found.route), (found.route, []))[1].append(found.address)
    sent = [(entry, spread(entry, addresses)) for entry, addresses in asked.values()]
    reported = backend.sources(sent)
    return tuple((entry, sources) for (entry, _), sources in zip(sent, reported, strict=True))


def _scopes_of_objects(routes: Sequence[Route]) -> set[int]:
    """Return the scopes of entries with nexthop objects.

    Any of these entries may have set an object's source.
    """
    return {route.scope for route in routes if route.nexthop_id is not None}


_LEAVING = (RouteType.UNICAST, RouteType.BROADCAST, RouteType.ANYCAST, RouteType.MULTICAST)


def _lacks_dev(route: Route) -> bool:
    """Return whether the snapshot lacks a route's interface, for example because a nexthop object is missing."""
    is_known = route.hops and all(hop.dev is not None or hop.is_dead for hop in route.hops)
    return route.type in _LEAVING and not is_known


_ARE_MERGED = "whether tables local and main are one"
_RECORD, _CHECK = "take the snapshot with hostrouting snapshot", "check on the host itself"


def _unknown_fact(what: str, address: IpAddress, advice: str) -> RouteError:
    return RouteError(
        f"the snapshot doesn't show {what}, which decides about {address}", hint=advice
    )


def _unknown_dev(route: Route) -> RouteError:
    return RouteError(f"the snapshot doesn't name every interface of {route}", hint=_RECORD)


def _entry(found: Lookup) -> object:
    """Return a lookup result without its table, as the kernel reports main while local and main share one trie."""
    return found.errno, found.route and attrs.evolve(found.route, table=Table.MAIN)


class SnapshotBackend(RouteBackend):
    """A thread-safe ``RouteBackend`` that answers like the snapshot's kernel.

    Args:
        snapshot: the snapshot.
    """

    family: Family = Family.IPV4

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    # --- reading ----------------------------------------------------------------------------------

    def facts(self) -> Facts:
        known = self.snapshot
        return Facts(known.links, known.addresses, known.rules)

    def entries(self, wanted: Selection = EVERYTHING) -> Entries:
        """Return the wanted entries of the FIB, in the kernel's order.

        Raises:
            RouteError: the snapshot lacks one of the effective default route's interfaces.
        """
        routes = self.snapshot.routes
        counting = (route for route in unicast_defaults(routes) if route.devs or _lacks_dev(route))
        first = min(counting, key=attrgetter("metric"), default=None)
        if first is not None and _lacks_dev(first):
            raise _unknown_dev(first)
        return wanted.filter(routes)

    @contextmanager
    def changes(self, inside: Sequence[Prefix] | None = None) -> Iterator[ChangeListener]:
        """Yield a listener that never hears anything, because a snapshot never changes.

        Raises:
            UnstableHostError: the host changed while the snapshot was taken.
        """
        if self.snapshot.is_torn:
            raise UnstableHostError(
                "the host changed while the snapshot was taken", hint="take another snapshot"
            )
        yield _NoChanges()

    def lookup(
        self,
        addresses: Sequence[IpAddress],
        *,
        source: IpAddress | None = None,
        is_tcp: bool = False,
    ) -> tuple[Lookup, ...]:
        return tuple(self._lookup(address, source, is_tcp=is_tcp) for address in addresses)

    def _lookup(self, address: IpAddress, source: IpAddress | None, *, is_tcp: bool) -> Lookup:
        found = self._fib.lookup(address, source, is_tcp=is_tcp)
        for other, what, advice in self._alternatives:
            if _entry(found) != _entry(other.lookup(address, source, is_tcp=is_tcp)):
                raise _unknown_fact(what, address, advice)
        if self._has_unknown:
            self._refuse_doubt(Flow(address, source or NO_SOURCE, TCP if is_tcp else UDP))
        if found.route is not None and _lacks_dev(found.route):
            raise _unknown_dev(found.route)
        return found

    def _refuse_doubt(self, flow: Flow) -> None:
        known = self._fib.decide(flow)
        for other in self._fib.possible_decisions(flow):
            if other is None or (other.errno, other.route) != (known.errno, known.route):
                what = "whether a rule with an unknown selector matches"
                raise _unknown_fact(what, flow.address, _CHECK)

    def sources(
        self, sent: Sequence[Sent], *, is_tcp: bool = False
    ) -> tuple[tuple[IpAddress, ...], ...]:
        return tuple(
            () if entry is None else self._sources(entry, addresses) for entry, addresses in sent
        )

    def _sources(self, entry: Route, addresses: Sequence[IpAddress]) -> tuple[IpAddress, ...]:
        if entry.type is RouteType.LOCAL:
            return (addresses[0],)  # ip_route_output_key_hash_rcu
        if (recorded := self._recorded_sources.get(source_key(entry))) is not None:
            return recorded
        chosen = self._chosen
        doubtful = chosen.doubtful(entry, _scopes_of_objects(self.snapshot.routes))
        selectors = [rule.source for rule in self.snapshot.rules if rule.source is not None]
        if len({tuple(source in selector for selector in selectors) for source in doubtful}) > 1:
            raise _unknown_fact(f"which source connections by {entry} get", addresses[0], _RECORD)
        return chosen.of(entry)

    @cached_property
    def _chosen(self) -> Sources:
        return Sources(self.snapshot.addresses)

    @cached_property
    def _recorded_sources(self) -> dict[SourceKey, tuple[IpAddress, ...]]:
        return {source_key(entry): sources for entry, sources in self.snapshot.sources}

    @cached_property
    def _fib(self) -> Fib:
        known = self.snapshot
        is_merged = known.rules == KERNEL_RULES if known.is_merged is None else known.is_merged
        passed = bool(passes_discards(known.kernel))
        tables = (known.rules, known.routes, known.addresses)
        return Fib(*tables, links=known.links, is_merged=is_merged, passes_discards=passed)

    @cached_property
    def _has_unknown(self) -> bool:
        return any(rule.has_unknown for rule in self.snapshot.rules)

    @cached_property
    def _alternatives(self) -> list[tuple[Fib, str, str]]:
        """Return the other FIBs that the host may have, each with the unknown fact and advice."""
        known, others = self.snapshot, list[tuple[Fib, str, str]]()
        if self._fib.is_merged and known.is_merged is None:
            others.append((attrs.evolve(self._fib, is_merged=False), _ARE_MERGED, _RECORD))
        is_separate = separates_on_deletion(known.kernel) is True or not set(known.rules) < set(
            KERNEL_RULES
        )
        if known.is_merged is None and not is_separate:
            others.append((attrs.evolve(self._fib, is_merged=True), _ARE_MERGED, _RECORD))
        if self._fib.is_merged and passes_discards(known.kernel) is None:
            what = "whether this kernel goes on to table default after a discarding route in table main"
            others.append((attrs.evolve(self._fib, passes_discards=True), what, _CHECK))
        return others

    # --- writing ----------------------------------------------------------------------------------

    def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Raise an error, because a snapshot is read-only."""
        if not routes:
            return ()
        raise RouteError(
            f"can't change {routes[0]}: the host is a snapshot", hint="do it on the host itself"
        )


class _NoChanges(ChangeListener):
    def happened(self) -> bool:
        return False

    def wait(self, scope: CancelScope) -> None:
        scope.wait(threading.Event())


class SnapshotBackend6(SnapshotBackend):
    """A thread-safe IPv6 ``RouteBackend`` that answers like the snapshot's kernel.

    Source addresses are selected from the host's addresses according to RFC 6724.

    Args:
        snapshot: the snapshot.

    Raises:
        RouteError: the snapshot doesn't include IPv6.
    """

    family = Family.IPV6

    def __init__(self, snapshot: Snapshot) -> None:
        ipv6 = snapshot.ipv6
        if ipv6 is None:
            raise RouteError(
                "can't check IPv6: the snapshot holds no IPv6 routes",
                hint=f"if the host has any, {_RECORD}, or with ip and only= as its --help shows",
            )
        state = attrs.evolve(
            snapshot,
            addresses=ipv6.addresses,
            rules=ipv6.rules,
            routes=ipv6.routes,
            is_merged=False,
            sources=(),
        )
        super().__init__(state)
        self._ipv6 = ipv6

    def facts(self) -> Facts:
        """Return the facts, with the kernel's default labels if those of the host aren't known."""
        known, ipv6 = super().facts(), self._ipv6
        labels = LABELS if ipv6.labels is None else ipv6.labels
        return attrs.evolve(known, labels=labels, silent_routers=ipv6.silent_routers)

    def sources(
        self, sent: Sequence[Sent], *, is_tcp: bool = False
    ) -> tuple[tuple[IpAddress, ...], ...]:
        unrouted = [address for entry, addresses in sent if entry is None for address in addresses]
        if is_tcp and unrouted:
            refuse_datagrams(self.lookup(unrouted))
        return tuple(
            self._sources_of_unrouted(addresses)
            if entry is None
            else self._sources(entry, addresses)
            for entry, addresses in sent
        )

    def _sources_of_unrouted(self, addresses: Sequence[IpAddress]) -> tuple[IpAddress, ...]:
        """Return the sources with which the kernel retries a failed lookup, where that succeeds."""
        found = {
            source
            for address in addresses
            for source in self._sources(None, [address])
            if self._lookup(address, source, is_tcp=False).route is not None
        }
        return tuple(sorted(found))

    def _sources(
        self, entry: Route | None, addresses: Sequence[IpAddress]
    ) -> tuple[IpAddress, ...]:
        if addresses and self._ipv6.has_odd_sources and (entry is None or entry.source is None):
            raise _unknown_fact("which sources the kernel chooses", addresses[0], _CHECK)
        for address in addresses:
            for doubtful in self._fib.possible_sources_to(
                address, entry, is_ordered=self._ipv6.is_ordered
            ):
                if (
                    len(
                        {
                            tuple(source in selector for selector in self._source_selectors)
                            for source in doubtful
                        }
                    )
                    > 1
                ):
                    what = "in which order the kernel considers the interfaces' addresses"
                    if self._ipv6.labels is None:
                        what = "the labels of addresses (ip addrlabel)"
                    raise _unknown_fact(what, address, _RECORD)
        return tuple(
            sorted(
                {source for address in addresses for source in self._fib.sources_to(address, entry)}
            )
        )

    @cached_property
    def _source_selectors(self) -> list[IpNetwork]:
        """Return the source prefixes of rules and routes.

        Sources in different prefixes may be routed differently.
        """
        of_rules = (rule.source for rule in self.snapshot.rules)
        of_routes = (
            route.source_prefix for route in self.snapshot.routes if isinstance(route, Route6)
        )
        return [prefix for prefix in dict.fromkeys((*of_rules, *of_routes)) if prefix is not None]

    @cached_property
    def _alternatives(self) -> list[tuple[Fib, str, str]]:
        """Return the FIB with all default rules, unless the snapshot's rules are certainly in effect.

        Until a rule is added, the kernel consults tables local and main even if their rules are
        deleted (fib6_rule_lookup).
        """
        standard = kernel_rules(self.family)
        if self.snapshot.rules == standard or not set(self.snapshot.rules) < set(standard):
            return []
        what = "whether the kernel uses a table whose rule was deleted"
        return [(attrs.evolve(self._fib, rules=standard), what, _CHECK)]

    @cached_property
    def _fib(self) -> Fib6:
        known, silent, labels = self.snapshot, self._ipv6.silent_routers, self._ipv6.labels
        tables = (known.rules, known.routes, known.addresses)
        return Fib6(*tables, links=known.links, silent_routers=silent, labels=labels)


def backends_of(snapshot: Snapshot) -> Callable[[Family], RouteBackend]:
    """Return a function that maps a family to the snapshot's backend."""
    return lambda family: (
        SnapshotBackend(snapshot) if family is Family.IPV4 else SnapshotBackend6(snapshot)
    )
