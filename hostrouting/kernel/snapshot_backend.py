"""Take a snapshot of a host, and query a snapshot as a read-only backend."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from ipaddress import IPv4Address
from itertools import chain
from operator import attrgetter

import attrs

from hostrouting.kernel.fib import Fib
from hostrouting.kernel.nexthops import SourceKey, Sources, flows_through, source_key, spread, unicast_defaults
from hostrouting.kernel.port import RestlessError, RouteBackend, WholeTables, at_one_moment
from hostrouting.kernel.rules import KERNEL_RULES, NO_SOURCE, TCP, UDP, Flow
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.errors import RouteError
from hostrouting.model.jsonable import rfc_3339
from hostrouting.model.links import Address, Link
from hostrouting.model.prefixes import Prefix, ends, numbers, uncovered_addresses
from hostrouting.model.routes import Lookup, Route, RouteFailure, RouteType, Table
from hostrouting.model.rules import Rule
from phases import CancelScope

# How many entries with the same next hops to try, because entries in earlier tables may win for some of them.
_TRIED_ENTRIES = 16


def take_snapshot(backend: RouteBackend, *, nameservers: Sequence[IPv4Address] = ()) -> Snapshot:
    """Take a snapshot of a host at one moment, or set ``is_torn`` if the host never stops changing.

    Args:
        backend: the kernel to query.
        nameservers: the host's DNS servers.

    Returns:
        The snapshot.

    Raises:
        RouteError: the kernel can't be queried.
    """
    kernel = os.uname()

    def read() -> Snapshot:
        addresses, rules, routes = backend.addresses(), backend.rules(), backend.routes()
        return Snapshot(
            links=backend.links(),
            addresses=addresses,
            rules=rules,
            routes=routes,
            is_merged=are_merged(addresses, backend),
            sources=_asked_sources(addresses, rules, routes, backend),
            nameservers=tuple(nameservers),
            host=kernel.nodename,
            time=rfc_3339(time.time()),
            kernel=f"{kernel.sysname} {kernel.release}",
        )

    snapshot, why_torn = at_one_moment(backend, ((0, 0),), CancelScope(), read)
    return attrs.evolve(snapshot, is_torn=why_torn is not None)


def are_merged(addresses: Sequence[Address], backend: RouteBackend) -> bool | None:
    """Return whether the kernel finds a local address in table main, which means that main and local share one trie.

    Returns:
        The answer, or None if the kernel finds no local address.
    """
    for found in backend.lookup([address.local for address in addresses[:1]]):
        if found.route is not None and found.route.type is RouteType.LOCAL:
            return found.route.table == Table.MAIN
    return None


def _asked_sources(
    addresses: Sequence[Address], rules: Sequence[Rule], routes: Sequence[Route], backend: RouteBackend
) -> tuple[tuple[Route, tuple[IPv4Address, ...]], ...]:
    """Query the sources that matter and that don't follow from addresses and entries.

    Returns:
        One entry for each set of next hops, with its sources. Entries that don't win any first lookup aren't needed.
    """
    if not any(rule.source is not None for rule in rules):
        return ()
    chosen, scopes = Sources(addresses), _scopes_of_objects(routes)
    by_key: dict[SourceKey, list[Route]] = {}
    for route in routes:
        by_key.setdefault(source_key(route), []).append(route)
    doubts = {key: entries for key, entries in by_key.items() if chosen.doubtful(entries[0], scopes)}
    free = uncovered_addresses(numbers(route.destination) for route in routes) if doubts else {}
    tried: list[IPv4Address] = []
    for route in chain.from_iterable(entries[:_TRIED_ENTRIES] for entries in doubts.values()):
        prefix = numbers(route.destination)
        if (first := free[prefix]) is not None:
            first = max(first, 1)  # 0.0.0.0 means this host
            tried += map(IPv4Address, range(first, min(first + flows_through(route), ends(prefix)[1] + 1)))
    asked: dict[SourceKey, tuple[Route, list[IPv4Address]]] = {}
    for found in backend.lookup(tried):
        if found.route is not None and source_key(found.route) in doubts:
            asked.setdefault(source_key(found.route), (found.route, []))[1].append(found.address)
    entries = {entry: spread(entry, addresses) for entry, addresses in asked.values()}
    return tuple(backend.sources(entries).items())


def _scopes_of_objects(routes: Sequence[Route]) -> set[int]:
    """Return the scopes of entries with nexthop objects, any of which may have chosen the source of an object."""
    return {route.scope for route in routes if route.nexthop_id is not None}


_LEAVING = (RouteType.UNICAST, RouteType.BROADCAST, RouteType.ANYCAST, RouteType.MULTICAST)


def _lacks_dev(route: Route) -> bool:
    """Return whether the snapshot lacks an interface of a route, for example because a nexthop object is missing."""
    is_known = route.hops and all(hop.dev is not None or hop.is_dead for hop in route.hops)
    return route.type in _LEAVING and not is_known


_RECORD = "record the host with hostrouting snapshot"


def _untold(what: str, address: IPv4Address, advice: str) -> RouteError:
    return RouteError(f"the snapshot doesn't tell {what}, which decides about {address}", hint=advice)


def _untold_dev(route: Route) -> RouteError:
    return RouteError(f"the snapshot doesn't name every interface of {route}", hint=_RECORD)


def _entry(found: Lookup) -> object:
    """Return the answer without its table, because the kernel reports main for local while both share one trie."""
    return found.errno, found.route and attrs.evolve(found.route, table=Table.MAIN)


class SnapshotBackend(WholeTables):
    """A ``RouteBackend`` that answers as the kernel of the snapshot would have, and that threads may share.

    Args:
        snapshot: the snapshot.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    # --- reading -----------------------------------------------------------------------------------------------

    def links(self) -> tuple[Link, ...]:
        """Return all network interfaces, by index."""
        return self.snapshot.links

    def addresses(self) -> tuple[Address, ...]:
        """Return all IPv4 addresses of the host."""
        return self.snapshot.addresses

    def rules(self) -> tuple[Rule, ...]:
        """Return the policy rules in the order in which the kernel evaluated them."""
        return self.snapshot.rules

    def routes(self, table: int | None = None) -> tuple[Route, ...]:
        """Return the entries of a table, or of every table, in the kernel's order."""
        routes = self.snapshot.routes
        return routes if table is None else tuple(route for route in routes if route.table == table)

    def default_routes(self) -> tuple[Route, ...]:
        """Return the entries of table main for 0.0.0.0/0, in the kernel's order.

        Raises:
            RouteError: the snapshot lacks an interface of the default route that counts.
        """
        found = super().default_routes()
        counting = (route for route in unicast_defaults(found) if route.devs or _lacks_dev(route))
        first = min(counting, key=attrgetter("metric"), default=None)
        if first is not None and _lacks_dev(first):
            raise _untold_dev(first)
        return found

    @contextmanager
    def noticing_changes(self, _: Sequence[Prefix], /) -> Iterator[Callable[[], bool]]:
        """Yield a function that returns False, because nothing ever changes.

        Raises:
            RestlessError: the host changed while it was read.
        """
        if self.snapshot.is_torn:
            raise RestlessError("the host changed while it was recorded", hint="record it again")
        yield lambda: False

    def lookup(
        self, addresses: Sequence[IPv4Address], *, source: IPv4Address | None = None, is_tcp: bool = False
    ) -> tuple[Lookup, ...]:
        """Return the winning entry for each address, for packets from the host (mark 0, tos 0, uid 0, not bound)."""
        return tuple(self._lookup(address, source, is_tcp=is_tcp) for address in addresses)

    def _lookup(self, address: IPv4Address, source: IPv4Address | None, *, is_tcp: bool) -> Lookup:
        found = self._fib.lookup(address, source, is_tcp=is_tcp)
        if self._unmerged and _entry(found) != _entry(self._unmerged.lookup(address, source, is_tcp=is_tcp)):
            raise _untold("whether tables local and main are one", address, _RECORD)
        if self._has_unknown:
            self._refuse_doubt(Flow(address, source or NO_SOURCE, TCP if is_tcp else UDP))
        if found.route is not None and _lacks_dev(found.route):
            raise _untold_dev(found.route)
        return found

    def _refuse_doubt(self, flow: Flow) -> None:
        known = self._fib.decide_flow(flow)
        for other in self._fib.possible_decisions(flow):
            if other is None or (other.errno, other.route) != (known.errno, known.route):
                what = "whether a rule that selects by something unknown is met"
                raise _untold(what, flow.address, "check on the host itself")

    def sources(
        self,
        entries: Mapping[Route, Sequence[IPv4Address]],
        *,
        is_tcp: bool = False,  # noqa: ARG002 - UDP and TCP get the same source from an entry
    ) -> dict[Route, tuple[IPv4Address, ...]]:
        """Return the sources that packets without a source get from each entry."""
        return {entry: self._sources(entry, addresses[0]) for entry, addresses in entries.items()}

    def _sources(self, entry: Route, address: IPv4Address) -> tuple[IPv4Address, ...]:
        if (recorded := self._recorded_sources.get(source_key(entry))) is not None:
            return recorded
        chosen = self._fib.sources()
        doubtful = chosen.doubtful(entry, _scopes_of_objects(self.snapshot.routes))
        selectors = [rule.source for rule in self.snapshot.rules if rule.source is not None]
        if len({tuple(source in selector for selector in selectors) for source in doubtful}) > 1:
            raise _untold(f"which source connections by {entry} get", address, _RECORD)
        return chosen.of(entry)

    @cached_property
    def _recorded_sources(self) -> dict[SourceKey, tuple[IPv4Address, ...]]:
        return {source_key(entry): sources for entry, sources in self.snapshot.sources}

    @cached_property
    def _fib(self) -> Fib:
        known = self.snapshot
        is_merged = known.rules == KERNEL_RULES and known.is_merged is not False
        return Fib(known.rules, known.routes, known.addresses, links=known.links, is_merged=is_merged)

    @cached_property
    def _has_unknown(self) -> bool:
        return any(rule.has_unknown for rule in self.snapshot.rules)

    @cached_property
    def _unmerged(self) -> Fib | None:
        """Return the host with separate tables, or None if it is known whether tables local and main are merged."""
        is_known = not self._fib.is_merged or self.snapshot.is_merged is not None
        return None if is_known else attrs.evolve(self._fib, is_merged=False)

    # --- writing -----------------------------------------------------------------------------------------------

    def add(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Raise an error, because a snapshot can't be changed."""
        if not routes:
            return ()
        raise RouteError(f"can't change {routes[0]}: this is a recorded host", hint="do it on the host itself")

    replace = delete = add

    # --- waiting -----------------------------------------------------------------------------------------------

    def wait_for_change(self, scope: CancelScope) -> None:
        """Wait until the scope is cancelled, because nothing ever changes.

        Args:
            scope: the scope that can cancel the wait.

        Raises:
            phases.Cancelled, phases.TimedOut: the scope was cancelled.
        """
        scope.wait(threading.Event())
