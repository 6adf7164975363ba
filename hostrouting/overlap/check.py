"""Ask the kernel about every expected CIDR, and have the answers judged."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address
from operator import attrgetter
from typing import TYPE_CHECKING

import attrs

from hostrouting.config.routing import Config, RouteOverlap
from hostrouting.kernel.nexthops import Way, default_route, missing_default_route, unicast_defaults, way_of
from hostrouting.kernel.port import RouteBackend
from hostrouting.kernel.rules import NO_SOURCE
from hostrouting.kernel.waiting import Deadlines, look_until
from hostrouting.model.errors import RouteError
from hostrouting.model.jsonable import rfc_3339
from hostrouting.model.prefixes import numbers
from hostrouting.model.routes import Lookup, Route, Table
from hostrouting.overlap._coverage import Tile, networks_of, tiles_in
from hostrouting.overlap._grouping import findings_and_notes
from hostrouting.overlap._judge import Outcome, sort_answers
from hostrouting.overlap._reading import (
    ContestedDefaultError,
    NoUplinkError,
    Reading,
    ask,
    is_contested,
    named_uplinks,
    pending_devs,
    read_host,
)
from hostrouting.overlap.findings import (
    Finding,
    Note,
    NoteKind,
    Obstacle,
    OverlapReport,
    Remedy,
    UnknownReason,
    Unmendable,
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
    """Return the report of a check that could judge nothing.

    Args:
        overlap: what was to be checked.
        reason_kind: why nothing could be judged.
        reason_detail: what more there is to say of that.
        host: the name of the host that was to be judged; None: this one's.
    """
    report = without_findings(overlap, Verdict.UNKNOWN, host=host)
    return attrs.evolve(report, reason_kind=reason_kind, reason_detail=reason_detail)


def nothing_expected(overlap: RouteOverlap, *, host: str | None = None) -> OverlapReport:
    """Return the report of a check that was given no CIDR: it proves nothing, and holds no node back.

    Args:
        overlap: without expected CIDRs.
        host: the name of the host that was to be judged; None: this one's.
    """
    how = "name the cluster's CIDRs with --cidr or as routeOverlap.expectedCidrs"
    return unjudged(overlap, UnknownReason.NOTHING_EXPECTED, how, host=host)


def without_findings(overlap: RouteOverlap, verdict: Verdict, *, host: str | None = None) -> OverlapReport:
    """Return a report without findings.

    Args:
        overlap: what was to be checked.
        verdict: the result in a word.
        host: the name of the host that was judged; None: this one's.
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
) -> OverlapReport:
    """Judge every expected CIDR by the kernel's own answers, changing and writing nothing.

    Args:
        config: the expected CIDRs, how to judge them, and the uplinks.
        backend: the kernel to ask.
        scope: ends it.
        deadlines: until when a default route by an uplink, and InfiniBand's addresses, are waited for; None:
            neither is.
        nameservers: that the host asks; the remedy tells of those that change sides.
        host: the name of a host that was recorded; None: it is this one.
        given: the addresses that the config's document gives other components; a note tells of those that don't fit.

    Returns:
        The report; its verdict is ``unknown``, with a reason, if there is no default route to compare with, or several
        that the kernel takes by turns, or no uplink, or the kernel can't be asked.
    """
    overlap = config.route_overlap
    if not overlap.expected_cidrs:
        return nothing_expected(overlap, host=host)
    try:
        if deadlines is not None:
            _wait_for_addresses(config, backend, scope, deadlines)
        reading = read_host(config, backend, scope)
        if reading is None:
            missing = _no_default_route(backend.routes())
            return unjudged(overlap, UnknownReason.NO_DEFAULT_ROUTE, missing, host=host)
    except ContestedDefaultError as error:
        return unjudged(overlap, UnknownReason.CONTESTED_DEFAULT, str(error), host=host)
    except NoUplinkError as error:
        return unjudged(overlap, UnknownReason.NO_UPLINK, str(error), host=host)
    except RouteError as error:
        return unjudged(overlap, UnknownReason.CHECK_FAILED, str(error), host=host)
    outcomes = sort_answers(overlap, reading)
    findings, notes = findings_and_notes(overlap, reading, outcomes)
    notes = (*notes, *_notes_on_given(given, overlap, reading))
    verdict = Verdict.OVERLAP if findings else Verdict.OK
    report = attrs.evolve(without_findings(overlap, verdict, host=host), default_devs=reading.uplinks, notes=notes)
    if not findings:
        return report
    if reading.default is None:
        unmendable = tuple(_without_default(reading, findings))
        return attrs.evolve(report, findings=findings, remedy=Remedy(unmendable=unmendable))
    from hostrouting.overlap._fix import Remedies

    scope.check()
    remedies = Remedies(reading, reading.default, outcomes, nameservers)
    remedy, tables = remedies.of_all()
    findings = tuple(remedies.with_fixes(findings, remedy))
    # What is discarded now gets a source, and may meet more rules, only once it is mended.
    selects_more = any(rule.source is not None or rule.ip_protocol for rule in reading.rules)
    if selects_more or any(len(answers) > 1 for answers in reading.answers.values()):
        left = _left_of_connections(overlap, reading, tables)
        remedy = attrs.evolve(remedy, unmendable=(*remedy.unmendable, *left))
    return attrs.evolve(report, findings=findings, remedy=remedy)


def load_all() -> None:
    """Load what only a failing check needs: once its package is upgraded a running watcher can't load it any more."""
    from hostrouting.kernel import fib  # noqa: F401
    from hostrouting.overlap import _fix  # noqa: F401


def _notes_on_given(given: NodeAddresses, overlap: RouteOverlap, reading: Reading) -> Iterator[Note]:
    for misfit in misfits(given, overlap, reading.addresses, reading.uplinks, reading.routes):
        text = f"{misfit.key}: {misfit.message}; {misfit.hint}"
        yield Note(NoteKind.NODE_IP, text, devs=misfit.devs)


def uplink_devs(config: Config, backend: RouteBackend) -> tuple[str, ...]:
    """Return the uplinks that are there, sorted.

    Args:
        config: which may name them.
        backend: the kernel to ask.
    """
    if config.uplinks is not None:
        return named_uplinks(backend.links(), config.uplinks)
    default = default_route(backend.default_routes())
    return default.devs if default else ()


def awaited_devs(config: Config, backend: RouteBackend) -> tuple[str, ...]:
    """Return the InfiniBand interfaces for whose addresses a check waits.

    Args:
        config: how long it waits. If only the mode says so, it doesn't wait for interfaces that are down.
        backend: the kernel to ask.
    """
    overlap = config.route_overlap
    if not overlap.expected_cidrs or not overlap.address_seconds or is_contested(config, backend.default_routes()):
        return ()
    links = [link for link in backend.links() if link.is_up or overlap.settle_seconds is not None]
    return pending_devs(links, backend.addresses(), uplink_devs(config, backend))


def _wait_for_addresses(config: Config, backend: RouteBackend, scope: CancelScope, deadlines: Deadlines) -> None:
    """Wait for a default route (on an uplink), and then for InfiniBand's addresses, each until its deadline."""
    on = "" if config.uplinks is None else f" on {','.join(config.uplinks)}"

    def find_default() -> str | None:
        return None if default_route(backend.default_routes(), config.uplinks) else f"the default route{on}"

    def find_pending() -> str | None:
        devs = awaited_devs(config, backend)
        return f"an address on {', '.join(devs)}" if devs else None

    # Named uplinks are judged without a default route too.
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


def _without_default(reading: Reading, findings: Iterable[Finding]) -> Iterator[Unmendable]:
    """Say of each failure that there is no default route for an entry to inherit from."""
    missing = f"missing is {missing_default_route(reading.routes, reading.named)}"
    down = sorted(link.name for link in reading.links if link.name in reading.uplinks and not link.is_up)
    if down:
        missing = f"{missing}, and {','.join(down)} {'is' if len(down) == 1 else 'are'} down"
    obstacle = Obstacle(f"{missing}: add one, or an entry that names gateway and dev")
    for finding in findings:
        yield Unmendable(finding.ranges, finding.devs, obstacle, finding.shadowed)


def _left_of_connections(overlap: RouteOverlap, reading: Reading, mended: Fib) -> tuple[Unmendable, ...]:
    """Return what still fails of connections and of TCP once the first lookups are mended, and what mends these.

    A mended address has another first answer, so its connections have another source, and may meet other rules. Static
    routes are for the first look-up of a datagram.
    """
    answers = ask(reading.tiles, reading.rules, mended.routes, _Mended(mended, _told_sources(reading)))
    after = attrs.evolve(reading, routes=mended.routes, answers=answers)
    left: dict[tuple[tuple[str, ...], Obstacle], dict[Tile, None]] = {}
    for expected, outcomes in sort_answers(overlap, after).items():
        for tile in tiles_in(reading.tiles, numbers(expected.cidr)):
            for outcome in filter(attrgetter("is_failure"), outcomes[tile.question][1:]):
                obstacle = _obstacle(outcome, mended, reading)
                left.setdefault((outcome.devs, obstacle), {})[tile] = None
    return tuple(
        Unmendable(networks_of(sorted(tiles, key=lambda tile: tile.first)), devs, obstacle)
        for (devs, obstacle), tiles in left.items()
    )


def _told_sources(reading: Reading) -> dict[Way, tuple[IPv4Address, ...]]:
    """Return the sources that the kernel has told, by ways."""
    told: dict[Way, dict[IPv4Address, None]] = {}
    for answers in reading.answers.values():
        way: Way = ()
        for answer in answers:
            if answer.source is not None:
                told.setdefault(way, {})[answer.source] = None
            elif answer.lookup.route is not None:
                way = way_of(answer.lookup.route)
    return {way: tuple(sources) for way, sources in told.items()}


@attrs.frozen
class _Mended:
    """The kernel with the remedy: tables that may be, and sources that were told."""

    fib: Fib
    told: Mapping[Way, tuple[IPv4Address, ...]]

    def lookup(
        self, addresses: Sequence[IPv4Address], *, source: IPv4Address | None = None, is_tcp: bool = False
    ) -> list[Lookup]:
        return [self.fib.lookup(address, source, is_tcp=is_tcp) for address in addresses]

    def sources(
        self,
        entries: Mapping[Route, Sequence[IPv4Address]],
        *,
        is_tcp: bool = False,  # noqa: ARG002 - an entry gives UDP and TCP the same
    ) -> dict[Route, tuple[IPv4Address, ...]]:
        return {entry: self.told.get(way_of(entry)) or self._possible_sources(entry) for entry in entries}

    def _possible_sources(self, entry: Route) -> tuple[IPv4Address, ...]:
        """Return all sources that an entry of the remedy may give, as it can't be asked about."""
        chosen = self.fib.sources()
        return chosen.doubtful(entry, ()) or chosen.of(entry)


def _obstacle(outcome: Outcome, fib: Fib, reading: Reading) -> Obstacle:
    answer = outcome.answer
    if answer.source is not None and not fib.is_own(answer.source):
        return Obstacle(
            f"{answer.source}, the src of its route, is no address of this host: add it, or change the route"
        )
    rule = fib.decide(answer.lookup.address, answer.source or NO_SOURCE, is_tcp=answer.is_tcp).rule
    whose = "TCP" if answer.source is None else f"connections from {answer.source}"
    if rule is None:
        return Obstacle(f"no policy rule leads {whose} to a route: add one: ip rule add preference 32766 lookup main")
    return Obstacle.of_rule(f"{decided_by(rule)} for {whose}", rule, reading.next_hops)
