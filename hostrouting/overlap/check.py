"""Ask the kernel about every expected CIDR, and have the answers judged."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import attrs

from hostrouting.kernel.default_route import default_route, missing_default_route, unicast_defaults
from hostrouting.kernel.waiting import look_until
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import Table
from hostrouting.model.text import rfc_3339
from hostrouting.overlap.findings import NO_DEFAULT_ROUTE, OverlapReport, Verdict
from hostrouting.overlap.judge import judge, judged_cidr, sort_answers
from hostrouting.overlap.reading import pending_devs, read_host

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from ipaddress import IPv4Address

    from hostrouting.config.overlap import RouteOverlap
    from hostrouting.config.routing import Config
    from hostrouting.kernel.port import RouteBackend
    from hostrouting.model.routes import Route
    from hostrouting.overlap.findings import Finding
    from hostrouting.overlap.reading import Reading
    from phases import CancelScope


def unjudged(
    config: Config, verdict: Verdict, reason: str | None = None, *, now: Callable[[], float] = time.time
) -> OverlapReport:
    """A report without findings.

    Args:
        config: what was to be checked.
        verdict: the result in a word.
        reason: why the verdict is ``unknown``.
        now: the time of day, in seconds since the epoch.
    """
    overlap = config.route_overlap
    return OverlapReport(
        verdict,
        overlap.mode,
        rfc_3339(now()),
        reason=reason,
        cidrs=tuple(dict.fromkeys(expected.cidr for expected in overlap.expected_cidrs)),
    )


def check_overlap(
    config: Config,
    backend: RouteBackend,
    scope: CancelScope,
    *,
    nameservers: Sequence[IPv4Address] = (),
    now: Callable[[], float] = time.time,
) -> OverlapReport:
    """Judge every expected CIDR by the kernel's own answers, changing and writing nothing.

    Args:
        config: the expected CIDRs and how to judge them.
        backend: the kernel to ask.
        scope: ends the wait for a default route.
        nameservers: that the host asks; the remedy tells of those that change sides.
        now: the time of day, in seconds since the epoch.

    Returns:
        The report; its verdict is ``unknown``, with a reason, if there is no default route to compare with or the
        kernel can't be asked.
    """
    overlap = config.route_overlap
    start = scope.clock.monotonic()

    def look() -> tuple[None, str | None]:
        waited = scope.clock.monotonic() - start
        default = default_route(backend.default_routes())
        if default is None:
            return None, "the default route" if waited < config.wait_seconds else None
        pending = pending_devs(backend.links(), backend.addresses(), default.devs)
        if pending and waited < overlap.settle_seconds:
            return None, f"an address on {', '.join(pending)}"
        return None, None

    report_of = partial(unjudged, config, now=now)
    if not overlap.expected_cidrs:
        return report_of(Verdict.OK)
    try:
        look_until(backend, scope, max(config.wait_seconds, overlap.settle_seconds), look)
        reading = read_host(overlap, backend, scope)
        if reading is None:
            return report_of(Verdict.UNKNOWN, reason=_no_default_route(backend.routes()))
    except RouteError as error:
        return report_of(Verdict.UNKNOWN, reason=f"check-failed: {error}")
    report = attrs.evolve(report_of(Verdict.OK), default_devs=reading.default.devs)
    return _judge(report, overlap, reading, nameservers, scope)


def _judge(
    report: OverlapReport,
    overlap: RouteOverlap,
    reading: Reading,
    nameservers: Sequence[IPv4Address],
    scope: CancelScope,
) -> OverlapReport:
    outcomes = sort_answers(overlap, reading)
    findings, notes = judge(overlap, reading, outcomes)
    verdict = Verdict.OVERLAP if findings else Verdict.OK
    judged = tuple(judged_cidr(expected.cidr, reading.tiling, found) for expected, found in outcomes.items())
    report = attrs.evolve(report, verdict=verdict, findings=findings, notes=notes, judged=judged)
    if not findings:
        return report
    from hostrouting.overlap.fix import Remedies

    scope.check()
    remedies = Remedies(reading, outcomes, nameservers)
    mended: list[Finding] = []
    for finding in findings:
        scope.check()  # thousands of them take seconds
        mended.append(attrs.evolve(finding, fix=remedies.fix_of(finding)))
    remedy, tables = remedies.of_all()
    if any(len(answers) > 1 for answers in reading.answers.values()):
        from hostrouting.overlap.connections import left_of_connections

        left = left_of_connections(overlap, reading, tables)
        remedy = attrs.evolve(remedy, unmendable=(*remedy.unmendable, *left))
    return attrs.evolve(report, findings=tuple(mended), remedy=remedy)


def _no_default_route(routes: Sequence[Route]) -> str:
    elsewhere = [str(r) for r in routes if r.destination.prefixlen == 0 and r.hops and r.table != Table.MAIN]
    hint = f"; another table has one: {elsewhere[0]}" if elsewhere else ""
    if not unicast_defaults(routes):
        return f"{NO_DEFAULT_ROUTE}: table main has no unicast 0.0.0.0/0 to compare with{hint}"
    return f"{NO_DEFAULT_ROUTE}: missing is {missing_default_route(routes)}{hint}"
