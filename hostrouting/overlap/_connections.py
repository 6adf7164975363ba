"""Find the connections that still fail after a fix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

import attrs

from hostrouting.config.routing import ExpectedCidr, RouteOverlap
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.fib6 import Fib6
from hostrouting.kernel.sources import SourceKey, Sources
from hostrouting.model.family import IpAddress
from hostrouting.model.prefixes import numbers
from hostrouting.model.routes import Lookup, Route
from hostrouting.overlap._classify import Classification, classify_probes
from hostrouting.overlap._coverage import Interval, intervals_in
from hostrouting.overlap._probes import ask, replying, source_key_to
from hostrouting.overlap._state import State
from hostrouting.overlap.proposals import Obstacle


def unfixed_connections(
    overlap: RouteOverlap, state: State, fixed: Fib, obstacle: Callable[[ExpectedCidr, Classification, Fib], Obstacle]
) -> dict[tuple[tuple[str, ...], Obstacle], list[Interval]]:
    """Return the connections and TCP lookups that still fail once the first lookups are fixed.

    The fix changes the result of the first lookup, so connections may use a different source and match other rules.
    Static routes only fix the first lookup for a datagram.

    Args:
        overlap: the expected CIDRs.
        state: the host's state before the fix.
        fixed: the tables after the fix.
        obstacle: a function that returns why a lookup for an expected CIDR fails in these tables.

    Returns:
        The failing intervals, by their outgoing interfaces and the reason.
    """
    model = _Fixed(fixed, _known_sources(state), Sources(state.addresses))
    called = replying(state.addresses, state.uplinks.devs, state.rules)
    probes = ask(state.intervals, state.rules, fixed.routes, model, state.family, called)
    after = attrs.evolve(state, routes=fixed.routes, probes=probes)
    left: dict[tuple[tuple[str, ...], Obstacle], set[Interval]] = {}
    for expected, classifications in classify_probes(overlap, after).items():
        for interval in intervals_in(state.intervals, numbers(expected.cidr), state.family.bits):
            for classification in filter(attrgetter("is_failure"), classifications[interval.probed][1:]):
                reason = obstacle(expected, classification, fixed)
                left.setdefault((classification.devs, reason), set()).add(interval)
    return {key: sorted(intervals) for key, intervals in left.items()}


def _known_sources(state: State) -> dict[SourceKey, tuple[IpAddress, ...]]:
    """Return the sources reported by the kernel, by ``source_key_to``."""
    known: dict[SourceKey, dict[IpAddress, None]] = {}
    for probes in state.probes.values():
        key: SourceKey = ()
        for probe in probes:
            if probe.source is None:
                key = source_key_to(*probe.lookup[:2])
            elif not probe.is_reply:
                known.setdefault(key, {})[probe.source] = None
    return {key: tuple(sources) for key, sources in known.items()}


@attrs.frozen
class _Fixed:
    """A model of the kernel after the fix, using the sources reported by the kernel."""

    fib: Fib
    known: Mapping[SourceKey, tuple[IpAddress, ...]]
    chosen: Sources

    def lookup(
        self, addresses: Sequence[IpAddress], *, source: IpAddress | None = None, is_tcp: bool = False
    ) -> tuple[Lookup, ...]:
        return tuple(self.fib.lookup(address, source, is_tcp=is_tcp) for address in addresses)

    def sources(
        self,
        entries: Mapping[Route, Sequence[IpAddress]],
        *,
        is_tcp: bool = False,  # noqa: ARG002 - UDP and TCP get the same source from an entry
    ) -> dict[Route, tuple[IpAddress, ...]]:
        return {entry: self._sources_to(addresses[0], entry) for entry, addresses in entries.items()}

    def sources_of_unrouted(
        self, addresses: Sequence[IpAddress], *, is_tcp: bool = False
    ) -> dict[IpAddress, IpAddress]:
        found = ((address, source) for address in addresses for source in self._sources_to(address, None))
        return {address: source for address, source in found if self.fib.lookup(address, source, is_tcp=is_tcp).route}

    def _sources_to(self, address: IpAddress, entry: Route | None) -> tuple[IpAddress, ...]:
        """Return the sources that the kernel has reported, or else every one that it may select."""
        if known := self.known.get(source_key_to(address, entry)):
            return known
        if isinstance(self.fib, Fib6):
            return self.fib.sources_to(address, entry)
        return () if entry is None else self.chosen.doubtful(entry, ()) or self.chosen.of(entry)
