"""Query the kernel about every expected CIDR, and judge the answers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address
from operator import attrgetter
from typing import TYPE_CHECKING

import attrs

from hostrouting.config.routing import Config, RouteOverlap
from hostrouting.kernel.nexthops import SourceKey, default_route, missing_default_route, source_key, unicast_defaults
from hostrouting.kernel.port import RouteBackend
from hostrouting.kernel.rules import NO_SOURCE
from hostrouting.kernel.waiting import Deadlines, look_until
from hostrouting.model.errors import RouteError
from hostrouting.model.jsonable import rfc_3339
from hostrouting.model.prefixes import numbers
from hostrouting.model.routes import Lookup, Route, Table
from hostrouting.overlap._classify import Classification, classify_probes
from hostrouting.overlap._coverage import Interval, intervals_in, networks_of
from hostrouting.overlap._grouping import findings_and_notes
from hostrouting.overlap._state import (
    ContestedDefaultError,
    NoUplinkError,
    State,
    ask,
    is_contested,
    named_uplinks,
    pending_devs,
    read_host,
)
from hostrouting.overlap.findings import (
    Finding,
    Fix,
    Note,
    NoteKind,
    Obstacle,
    OverlapReport,
    Unfixable,
    UnknownReason,
    Verdict,
)
from hostrouting.overlap.node_ip import NONE_GIVEN, NodeAddresses, misfits
from hostrouting.overlap.wording import decided_by
from phases import CancelScope

if TYPE_CHECKING:
    from hostrouting.kernel.fib import Fib


def unjudged(
    overlap: RouteOverlap, reason_kind: UnknownReason, reason_detail: str, *, host: str | None = None
) -> OverlapReport:
    """Return the report of a check that couldn't judge anything.

    Args:
        overlap: the CIDRs to check.
        reason_kind: the kind of the reason.
        reason_detail: details of the reason.
        host: the name of the host, or None for this host.
    """
    report = without_findings(overlap, Verdict.UNKNOWN, host=host)
    return attrs.evolve(report, reason_kind=reason_kind, reason_detail=reason_detail)


def nothing_expected(overlap: RouteOverlap, *, host: str | None = None) -> OverlapReport:
    """Return the report of a check that has no expected CIDRs.

    Such a check proves nothing and never stops a node from starting.

    Args:
        overlap: the settings of the check, which have no expected CIDRs.
        host: the name of the host, or None for this host.
    """
    how = "name the cluster's CIDRs with --cidr or as routeOverlap.expectedCidrs"
    return unjudged(overlap, UnknownReason.NOTHING_EXPECTED, how, host=host)


def without_findings(overlap: RouteOverlap, verdict: Verdict, *, host: str | None = None) -> OverlapReport:
    """Return a report without findings.

    Args:
        overlap: the CIDRs to check.
        verdict: the verdict to report.
        host: the name of the host, or None for this host.
    """
    return OverlapReport(
        verdict,
        overlap.mode,
        rfc_3339(time.time()),
        os.uname().nodename if host is None else host,
        cidrs=tuple(dict.fromkeys(expected.cidr for expected in overlap.expected_cidrs)),
    )


def check_overlap(
    config: Config,
    backend: RouteBackend,
    scope: CancelScope,
    *,
    deadlines: Deadlines | None = None,
    nameservers: Sequence[IPv4Address] = (),
    host: str | None = None,
    given: NodeAddresses = NONE_GIVEN,
    needs_fix: bool = True,
) -> OverlapReport:
    """Judge every expected CIDR by the kernel's answers, without changing the host.

    Args:
        config: the expected CIDRs, how to judge them, and the uplinks.
        backend: the kernel to query.
        scope: the scope that can cancel the check.
        deadlines: how long to wait for a default route through an uplink and for InfiniBand addresses, or None to check
            at once.
        nameservers: the DNS servers of the host. The fix names those that it moves to other interfaces.
        host: the name of the host in a snapshot, or None for this host.
        given: the addresses that the document gives to other components. Each one that doesn't fit gets a note.
        needs_fix: whether to compute a fix for the findings.

    Returns:
        The report. Its verdict is ``unknown``, with a reason, if there is no default route to compare with, if the
        kernel alternates between several, if no uplink exists, or if the kernel can't be queried.
    """
    overlap = config.route_overlap
    if not overlap.expected_cidrs:
        return nothing_expected(overlap, host=host)
    try:
        if deadlines is not None:
            _wait_for_addresses(config, backend, scope, deadlines)
        state = read_host(config, backend, scope)
        if state is None:
            missing = _no_default_route(backend.routes())
            return unjudged(overlap, UnknownReason.NO_DEFAULT_ROUTE, missing, host=host)
    except ContestedDefaultError as error:
        return unjudged(overlap, UnknownReason.CONTESTED_DEFAULT, str(error), host=host)
    except NoUplinkError as error:
        return unjudged(overlap, UnknownReason.NO_UPLINK, str(error), host=host)
    except RouteError as error:
        return unjudged(overlap, UnknownReason.CHECK_FAILED, str(error), host=host)
    classifications = classify_probes(overlap, state)
    findings, notes = findings_and_notes(overlap, state, classifications)
    notes = (*notes, *_notes_on_given(given, overlap, state))
    verdict = Verdict.OVERLAP if findings else Verdict.OK
    report = attrs.evolve(without_findings(overlap, verdict, host=host), default_devs=state.uplinks, notes=notes)
    if not (findings and needs_fix):
        return attrs.evolve(report, findings=findings)
    if state.default is None:
        unfixable = tuple(_without_default(state, findings))
        return attrs.evolve(report, findings=findings, fix=Fix(unfixable=unfixable))
    from hostrouting.overlap._fix import Fixes

    scope.check()
    fixes = Fixes(state, state.default, classifications, nameservers)
    fix, tables = fixes.of_all()
    findings = tuple(fixes.with_fixes(findings, fix))
    # Packets that are discarded now get a source only after the fix, and may then match more rules.
    selects_more = any(rule.source is not None or rule.ip_protocol for rule in state.rules)
    if selects_more or any(len(probes) > 1 for probes in state.probes.values()):
        left = _left_of_connections(overlap, state, tables)
        fix = attrs.evolve(fix, unfixable=(*fix.unfixable, *left))
    return attrs.evolve(report, findings=findings, fix=fix)


def load_all() -> None:
    """Load the modules that only a failing check needs.

    A running watcher can't load them after its package has been upgraded.
    """
    from hostrouting.kernel import fib  # noqa: F401
    from hostrouting.overlap import _fix  # noqa: F401


def _notes_on_given(given: NodeAddresses, overlap: RouteOverlap, state: State) -> Iterator[Note]:
    for misfit in misfits(given, overlap, state.addresses, state.uplinks, state.routes):
        text = f"{misfit.key}: {misfit.message}; {misfit.hint}"
        yield Note(NoteKind.NODE_IP, text, devs=misfit.devs)


def uplink_devs(config: Config, backend: RouteBackend) -> tuple[str, ...]:
    """Return the uplinks that exist, sorted.

    Args:
        config: the config, which may name the uplinks.
        backend: the kernel to query.
    """
    if config.uplinks is not None:
        return named_uplinks(backend.links(), config.uplinks)
    default = default_route(backend.default_routes())
    return default.devs if default else ()


def awaited_devs(config: Config, backend: RouteBackend) -> tuple[str, ...]:
    """Return the InfiniBand interfaces whose addresses a check waits for.

    Args:
        config: the config, which sets how long the check waits. By default, it doesn't wait for interfaces that are
            down.
        backend: the kernel to query.
    """
    overlap = config.route_overlap
    if not overlap.expected_cidrs or not overlap.address_seconds or is_contested(config, backend.default_routes()):
        return ()
    links = [link for link in backend.links() if link.is_up or overlap.settle_seconds is not None]
    return pending_devs(links, backend.addresses(), uplink_devs(config, backend))


def _wait_for_addresses(config: Config, backend: RouteBackend, scope: CancelScope, deadlines: Deadlines) -> None:
    """Wait for a default route on an uplink and then for InfiniBand addresses, each until its deadline."""
    on = "" if config.uplinks is None else f" on {','.join(config.uplinks)}"

    def find_default() -> str | None:
        return None if default_route(backend.default_routes(), config.uplinks) else f"the default route{on}"

    def find_pending() -> str | None:
        devs = awaited_devs(config, backend)
        return f"an address on {', '.join(devs)}" if devs else None

    # Named uplinks are judged even if there is no default route.
    if look_until(backend, scope, deadlines.network, find_default) is None or (
        config.uplinks is not None and uplink_devs(config, backend)
    ):
        look_until(backend, scope, deadlines.addresses, find_pending)


def _no_default_route(routes: Sequence[Route]) -> str:
    elsewhere = [str(r) for r in routes if r.destination.prefixlen == 0 and r.hops and r.table != Table.MAIN]
    other = f"; another table has one: {elsewhere[0]}" if elsewhere else ""
    if not unicast_defaults(routes):
        return f"table main has no unicast 0.0.0.0/0 to compare with{other}"
    return f"missing is {missing_default_route(routes)}{other}"


def _without_default(state: State, findings: Iterable[Finding]) -> Iterator[Unfixable]:
    """Yield an unfixable item for each failure, because entries have no default route to inherit from."""
    missing = f"missing is {missing_default_route(state.routes, state.named)}"
    down = sorted(link.name for link in state.links if link.name in state.uplinks and not link.is_up)
    if down:
        missing = f"{missing}, and {','.join(down)} {'is' if len(down) == 1 else 'are'} down"
    obstacle = Obstacle(f"{missing}: add one, or an entry that names gateway and dev")
    for finding in findings:
        yield Unfixable(finding.ranges, finding.devs, obstacle, finding.shadowed)


def _left_of_connections(overlap: RouteOverlap, state: State, fixed: Fib) -> tuple[Unfixable, ...]:
    """Return the connections and TCP lookups that still fail after the first lookups are fixed.

    The first answer for a fixed address changes, so its connections have another source and may match other rules.
    Static routes fix only the first lookup of a datagram.
    """
    probes = ask(state.intervals, state.rules, fixed.routes, _Fixed(fixed, _known_sources(state)))
    after = attrs.evolve(state, routes=fixed.routes, probes=probes)
    left: dict[tuple[tuple[str, ...], Obstacle], dict[Interval, None]] = {}
    for expected, classifications in classify_probes(overlap, after).items():
        for interval in intervals_in(state.intervals, numbers(expected.cidr)):
            for classification in filter(attrgetter("is_failure"), classifications[interval.probed][1:]):
                obstacle = _obstacle(classification, fixed, state)
                left.setdefault((classification.devs, obstacle), {})[interval] = None
    return tuple(
        Unfixable(networks_of(sorted(intervals, key=lambda interval: interval.first)), devs, obstacle)
        for (devs, obstacle), intervals in left.items()
    )


def _known_sources(state: State) -> dict[SourceKey, tuple[IPv4Address, ...]]:
    """Return the sources that the kernel has reported, by entry and hop."""
    known: dict[SourceKey, dict[IPv4Address, None]] = {}
    for probes in state.probes.values():
        key: SourceKey = ()
        for probe in probes:
            if probe.source is not None:
                known.setdefault(key, {})[probe.source] = None
            elif probe.lookup.route is not None:
                key = source_key(probe.lookup.route)
    return {key: tuple(sources) for key, sources in known.items()}


@attrs.frozen
class _Fixed:
    """A model of the kernel after the fix, with the sources that the kernel has reported."""

    fib: Fib
    known: Mapping[SourceKey, tuple[IPv4Address, ...]]

    def lookup(
        self, addresses: Sequence[IPv4Address], *, source: IPv4Address | None = None, is_tcp: bool = False
    ) -> list[Lookup]:
        return [self.fib.lookup(address, source, is_tcp=is_tcp) for address in addresses]

    def sources(
        self,
        entries: Mapping[Route, Sequence[IPv4Address]],
        *,
        is_tcp: bool = False,  # noqa: ARG002 - UDP and TCP get the same source from an entry
    ) -> dict[Route, tuple[IPv4Address, ...]]:
        return {entry: self.known.get(source_key(entry)) or self._possible_sources(entry) for entry in entries}

    def _possible_sources(self, entry: Route) -> tuple[IPv4Address, ...]:
        """Return all sources that an entry of the fix may give, because the kernel can't be queried about it."""
        chosen = self.fib.sources()
        return chosen.doubtful(entry, ()) or chosen.of(entry)


def _obstacle(classification: Classification, fib: Fib, state: State) -> Obstacle:
    probe = classification.probe
    if probe.source is not None and not fib.is_local(probe.source):
        return Obstacle(
            f"{probe.source}, the src of its route, isn't an address of this host: add it, or change the route"
        )
    rule = fib.decide(probe.lookup.address, probe.source or NO_SOURCE, is_tcp=probe.is_tcp).rule
    whose = "TCP" if probe.source is None else f"connections from {probe.source}"
    if rule is None:
        return Obstacle(f"no policy rule leads {whose} to a route: add one: ip rule add preference 32766 lookup main")
    return Obstacle.of_rule(f"{decided_by(rule)} for {whose}", rule, state.next_hops)
