"""Model the host after a fix: whether its routes would be installed, and which connections still fail.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import attrs

from hostrouting.config.routing import ExpectedCidr, RouteOverlap, StaticRoute
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.fib6 import Fib6
from hostrouting.kernel.port import Facts, Sent
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.snapshot_backend import SnapshotBackend
from hostrouting.kernel.sources import SourceKey
from hostrouting.model.errors import RouteError
from hostrouting.model.family import IpAddress
from hostrouting.model.integer_prefixes import Prefix, numbers
from hostrouting.model.lookups import Lookup
from hostrouting.model.routes import Route, Table
from hostrouting.overlap._ask import Sockets, called_addresses, source_key_to
from hostrouting.overlap._judge import Judge
from hostrouting.overlap._places import Judgement, Places, Span, distinct
from hostrouting.overlap._state import State
from hostrouting.routes.plan import plan_routes
from hostrouting.routes.resolve import resolve
from hostrouting.routes.verify import losing_routes


class FixedHost(SnapshotBackend):
    """A backend that answers as the kernel would after a fix, using the sources that the kernel has reported.

    Args:
        state: the host's state before the fix.
        places: the places, with the lookups before the fix.
        tables: a model of the tables after the fix.
        added: the routes that the fix adds.
    """

    def __init__(
        self, state: State, places: Places, tables: Fib, added: Sequence[Route] = ()
    ) -> None:
        known = (tuple(state.links), tuple(state.addresses), tuple(state.rules))
        super().__init__(Snapshot(*known, tuple(tables.routes)))
        self.family, self.tables, self.added, self._state = state.family, tables, added, state
        self._places = places

    # --- as a backend -----------------------------------------------------------------------------

    def lookup(
        self,
        addresses: Sequence[IpAddress],
        *,
        source: IpAddress | None = None,
        is_tcp: bool = False,
    ) -> tuple[Lookup, ...]:
        return tuple(self.tables.lookup(address, source, is_tcp=is_tcp) for address in addresses)

    def facts(self) -> Facts:
        return attrs.evolve(super().facts(), silent_routers=self._state.silent_routers)

    def sources(
        self, sent: Sequence[Sent], *, is_tcp: bool = False
    ) -> tuple[tuple[IpAddress, ...], ...]:
        return tuple(
            self._sources_of_unrouted(addresses, is_tcp=is_tcp)
            if entry is None
            else self._sources(entry, addresses)
            for entry, addresses in sent
        )

    def _sources_of_unrouted(
        self, addresses: Sequence[IpAddress], *, is_tcp: bool
    ) -> tuple[IpAddress, ...]:
        """Return the sources with which the kernel retries a failed lookup, where that succeeds."""
        return tuple(
            source
            for address in addresses
            for source in self._sources(None, [address])
            if self.tables.lookup(address, source, is_tcp=is_tcp).route
        )

    def _sources(
        self, entry: Route | None, addresses: Sequence[IpAddress]
    ) -> tuple[IpAddress, ...]:
        """Return the sources that the kernel has reported, or else every one that it may select."""
        if known := self._reported_sources.get(source_key_to(addresses[0], entry)):
            return known
        if isinstance(self.tables, Fib6):
            return self.tables.sources_to(addresses[0], entry)
        return () if entry is None else self._chosen.doubtful(entry, ()) or self._chosen.of(entry)

    @cached_property
    def _reported_sources(self) -> dict[SourceKey, tuple[IpAddress, ...]]:
        """Return the sources reported by the kernel, grouped by ``source_key_to``."""
        known: dict[SourceKey, dict[IpAddress, None]] = {}
        for place in self._places:
            key: SourceKey = ()
            for lookup in place.lookups:
                if lookup.source is None:
                    key = source_key_to(lookup.address, lookup.route)
                elif not lookup.is_reply:
                    known.setdefault(key, {})[lookup.source] = None
        return {key: tuple(sources) for key, sources in known.items()}

    # --- what a fix asks --------------------------------------------------------------------------

    def refusals(self) -> dict[Prefix, str]:
        """Return why an installation would refuse new routes, by the destinations of the refused routes."""
        refused = self.tables.refused_hops(self.added) if isinstance(self.tables, Fib6) else ()
        found = {
            numbers(route.destination): refusal.message
            for route, refusal in losing_routes(self.added, self)
        }
        return found | {numbers(failure.route.destination): failure.message for failure in refused}

    def unfixed_connections(
        self, overlap: RouteOverlap
    ) -> Iterator[tuple[ExpectedCidr, Judgement, Span]]:
        """Yield the connections, replies and TCP lookups that still fail once the first lookups are fixed.

        The fix changes the result of the first lookup, so connections may use a different source
        and match other rules. ``fixed_by`` only verifies the first lookup, which is a datagram's.

        Args:
            overlap: the expected CIDRs.

        Yields:
            The expected CIDR, the failure and the span.
        """
        state, routes = self._state, self.tables.routes
        called = called_addresses(state.addresses, state.uplinks.devs, state.rules)
        lookups = Sockets(self, state.rules, routes, state.family, called).ask(self._places)
        judge = Judge(overlap, attrs.evolve(state, routes=routes))
        for expected in dict.fromkeys(overlap.expected_cidrs):
            spans = self._places.inside(numbers(expected.cidr))
            judged = {place: judge.of_place(lookups[place], expected) for place in distinct(spans)}
            for span in spans:
                for judgement in judged[span.place][1:]:
                    if judgement.is_failure:
                        yield expected, judgement, span


def fixed_by(
    state: State, places: Places, entries: Sequence[StaticRoute], fixed: Mapping[int, str | None]
) -> FixedHost | str:
    """Return the host after the planner has applied entries, or the reason why the entries don't work.

    Args:
        state: the host's state. The new routes come before existing ones with the same key.
        places: the places, with the lookups before the fix.
        entries: the proposed entries.
        fixed: the fixed addresses, each with the interface that packets must leave through, or None
            for the uplinks.
    """
    main = [route for route in state.routes if route.table == Table.MAIN]
    try:
        routes, missing = resolve(entries, state.links, state.addresses, main, state.uplinks.named)
        # Hide our existing entries from the plan, so that it only adds the new ones and removes
        # none.
        plan = plan_routes(routes, [route for route in main if not route.is_ours])
    except RouteError as error:
        return str(error)
    if missing:
        return missing
    tables = state.fib.with_routes(plan.add)
    for number, dev in fixed.items():
        address, devs = state.family.address(number), state.uplinks.devs if dev is None else (dev,)
        found = tables.lookup(address).route
        if found is None or not set(found.devs) <= set(devs):
            silent = [
                f"{gateway} on {by} doesn't answer"
                for by, gateway in sorted(state.silent_routers, key=str)
            ]
            return "; ".join([f"{address} would still not leave through {','.join(devs)}", *silent])
    return FixedHost(state, places, tables, plan.add)
