"""Take a snapshot of a host, with the source addresses that only the kernel knows."""

from __future__ import annotations

import os
import time
from collections.abc import Container, Sequence
from ipaddress import IPv4Address

import attrs

from hostrouting.kernel.fib6 import Fib6
from hostrouting.kernel.merged_tables import are_merged
from hostrouting.kernel.model import model_of
from hostrouting.kernel.odd_sources import has_odd_sources
from hostrouting.kernel.port import (
    Facts,
    RouteBackend,
    read_consistently,
    read_routes,
)
from hostrouting.kernel.rules import kernel_rules
from hostrouting.kernel.snapshot import Ipv6State, Snapshot
from hostrouting.kernel.sources import (
    SourceKey,
    Sources,
    flows_through,
    scopes_of_objects,
    source_key,
    spread,
)
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix, ends, numbers, uncovered_addresses
from hostrouting.model.jsonable import rfc_3339
from hostrouting.model.links import Address
from hostrouting.model.routes import Route
from phases import CancelScope

# The maximum number of entries to look up among those with the same next hops. One entry isn't
# enough, because a lookup of the entry's address may find another entry in an earlier table.
_TRIED_ENTRIES = 16
# The maximum number of IPv6 routes that ``_uses_deleted`` tries.
_TRIED_ROUTES = 256


def take_snapshot(
    backend: RouteBackend,
    backend6: RouteBackend | None = None,
    *,
    inside: Sequence[Prefix] = ((0, 0),),
    selects_source: bool = False,
    scope: CancelScope | None = None,
) -> Snapshot:
    """Take a consistent snapshot of a host, or set ``is_torn`` if the host never stops changing.

    Args:
        backend: the kernel to query.
        backend6: the kernel to query for IPv6, or None to omit IPv6.
        inside: the IPv4 prefixes in which no entry may change.
        selects_source: whether to include source addresses in any case. By default, they are
            included only if a rule selects packets by source.
        scope: cancels the reads.

    Raises:
        RouteError: the kernel can't be queried.
    """
    kernel, scope = os.uname(), scope or CancelScope()

    def read() -> Snapshot:
        facts = backend.facts()
        routes = read_routes(backend)
        # Sources matter only if a rule selects packets by source.
        is_asked = selects_source or any(rule.source is not None for rule in facts.rules)
        return Snapshot(
            links=facts.links,
            addresses=facts.addresses,
            rules=facts.rules,
            routes=routes,
            is_merged=are_merged(facts.addresses, facts.rules, routes, backend),
            sources=_asked_sources(facts, routes, backend) if is_asked else (),
            ipv6=None if backend6 is None else _read_ipv6(backend6),
            host=kernel.nodename,
            time=rfc_3339(time.time()),
            kernel=f"{kernel.sysname} {kernel.release}",
        )

    watched = [(backend, inside)]
    if backend6 is not None:
        watched.append((backend6, [(0, 0)]))
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
    state = attrs.evolve(state, uses_deleted=_uses_deleted(state, backend))
    model = model_of(Snapshot(facts.links, (), (), (), ipv6=state).known(Family.IPV6))
    return attrs.evolve(state, has_odd_sources=has_odd_sources(state, backend, model))


def _uses_deleted(state: Ipv6State, backend: RouteBackend) -> bool | None:
    """Return whether the kernel uses tables whose rules were deleted; None if that isn't known.

    Until a rule is added, the kernel uses tables local and main even if their rules were deleted
    (fib6_rule_lookup).
    """
    standard = kernel_rules(Family.IPV6)
    if not {*state.rules} < {*standard}:
        return None
    now = Fib6(state.rules, state.routes, state.addresses)
    before = Fib6(standard, state.routes, state.addresses)
    for route in state.routes[:_TRIED_ROUTES]:
        probe = route.destination.network_address
        found = now.lookup(probe).route
        if found != before.lookup(probe).route:
            return backend.lookup([probe])[0].route != found
    return None


def _asked_sources(
    facts: Facts,
    routes: Sequence[Route],
    backend: RouteBackend,
) -> tuple[tuple[Route, tuple[IpAddress, ...]], ...]:
    """Query the source addresses that don't follow from the host's addresses and entries.

    Returns:
        An entry for each set of next hops, with its sources. Only entries that a lookup finds are
            included.
    """
    # If a rule has an unknown selector, such as all source ports, the backend may be unable to look
    # up TCP.
    if any(rule.has_unknown for rule in facts.rules):
        return ()
    doubts = _doubtful_entries(facts.addresses, routes)
    if not doubts:
        return ()
    free = uncovered_addresses((numbers(route.destination) for route in routes), 32)
    tried: list[IpAddress] = []
    for entries in doubts.values():
        for route in entries[:_TRIED_ENTRIES]:
            tried += _addresses_through(route, free[numbers(route.destination)])
    sent = _sent_to(tried, doubts, backend)
    reported = backend.sources(sent)
    return tuple((entry, sources) for (entry, _), sources in zip(sent, reported, strict=True))


def _sent_to(
    tried: Sequence[IpAddress],
    doubts: Container[SourceKey],
    backend: RouteBackend,
) -> list[tuple[Route, list[IpAddress]]]:
    """Look up addresses, and return the entries found whose keys are in ``doubts``.

    Each entry comes with looked-up addresses whose packets use all of its hops.
    """
    found: dict[SourceKey, tuple[Route, list[IpAddress]]] = {}
    for lookup in backend.lookup(tried):
        if lookup.route is not None and (key := source_key(lookup.route)) in doubts:
            found.setdefault(key, (lookup.route, []))[1].append(lookup.address)
    return [(entry, spread(entry, addresses)) for entry, addresses in found.values()]


def _doubtful_entries(
    addresses: Sequence[Address],
    routes: Sequence[Route],
) -> dict[SourceKey, list[Route]]:
    """Return the entries whose sources can't be derived from the host's addresses, by key."""
    by_key: dict[SourceKey, list[Route]] = {}
    for route in routes:
        by_key.setdefault(source_key(route), []).append(route)
    chosen = Sources(addresses)
    scopes = scopes_of_objects(routes)
    return {key: entries for key, entries in by_key.items() if chosen.doubtful(entries[0], scopes)}


def _addresses_through(route: Route, first: int | None) -> list[IpAddress]:
    """Return consecutive addresses that together exercise all hops of an entry.

    Args:
        route: the entry to exercise.
        first: the first of these addresses. None makes the result empty.
    """
    if first is None:
        return []
    first = max(first, 1)  # 0.0.0.0 means this host
    _, last = ends(numbers(route.destination), 32)
    return [*map(IPv4Address, range(first, min(first + flows_through(route), last + 1)))]
