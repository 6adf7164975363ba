"""Ask the kernel about every expected CIDR, and have the answers judged."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from hostrouting.errors import RouteError
from hostrouting.model import Table
from hostrouting.overlap import NO_DEFAULT_ROUTE, OverlapReport, Scene, Verdict, judge, pending_devs, probe
from hostrouting.resolve import default_route, has_default_route, missing_default_route
from hostrouting.wait import look_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from ipaddress import IPv4Network

    from hostrouting.backends import RouteBackend
    from hostrouting.config import Config
    from hostrouting.host import Host
    from hostrouting.model import Route
    from phases import CancelScope

__all__ = ["check_overlap", "utc_now"]


def utc_now() -> datetime.datetime:
    """The time of day, with its zone."""
    return datetime.datetime.now(datetime.UTC)


def check_overlap(
    config: Config, host: Host, scope: CancelScope, *, now: Callable[[], datetime.datetime] = utc_now
) -> OverlapReport:
    """Judge every expected CIDR by the kernel's own answers, changing and writing nothing.

    Args:
        config: the expected CIDRs and how to judge them.
        host: whose kernel to ask.
        scope: ends the wait for a default route.
        now: the time of day.

    Returns:
        The report; its verdict is ``unknown``, with a reason, if there is no default route to compare with or the
        kernel can't be asked.
    """
    overlap = config.route_overlap
    start = scope.clock.monotonic()

    def look() -> tuple[tuple[Route, ...], str | None]:
        main = host.routes.routes(Table.MAIN)
        waited = scope.clock.monotonic() - start
        default = default_route(main)
        if default is None:
            return main, "the default route" if waited < config.wait_seconds else None
        pending = pending_devs(host.routes.links(), host.routes.addresses(), default.devs)
        if pending and waited < overlap.settle_seconds:
            return main, f"an address on {', '.join(pending)}"
        return main, None

    def report_of(verdict: Verdict, **fields: object) -> OverlapReport:
        time = now().astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return OverlapReport(verdict, overlap.mode, time, cidrs=overlap.expected_cidrs, **fields)  # type: ignore[arg-type]

    if not overlap.expected_cidrs:
        return report_of(Verdict.OK)
    if host.is_image:
        return report_of(Verdict.UNKNOWN, reason="an image has no kernel to ask; it is checked at its first boot")
    try:
        main, _ = look_until(host.routes, scope, max(config.wait_seconds, overlap.settle_seconds), look)
        default = default_route(main)
        if default is None:
            return report_of(Verdict.UNKNOWN, reason=_no_default_route(host.routes.routes()))
        findings, notes = judge(overlap, _scene(overlap.expected_cidrs, default, host.routes))
    except RouteError as error:
        return report_of(Verdict.UNKNOWN, reason=f"check-failed: {error}")
    verdict = Verdict.OVERLAP if findings else Verdict.OK
    return report_of(verdict, default_devs=default.devs, findings=findings, notes=notes)


def _scene(cidrs: Sequence[IPv4Network], default: Route, backend: RouteBackend) -> Scene:
    answers = backend.lookup([probe(cidr) for cidr in dict.fromkeys(cidrs)])
    return Scene(
        default=default,
        links=backend.links(),
        addresses=backend.addresses(),
        rules=backend.rules(),
        routes=backend.routes(),
        answers={answer.address: answer for answer in answers},
    )


def _no_default_route(routes: Sequence[Route]) -> str:
    elsewhere = [str(r) for r in routes if r.destination.prefixlen == 0 and r.hops and r.table != Table.MAIN]
    hint = f"; another table has one: {elsewhere[0]}" if elsewhere else ""
    if not has_default_route(routes):
        return f"{NO_DEFAULT_ROUTE}: table main has no unicast 0.0.0.0/0 to compare with{hint}"
    return f"{NO_DEFAULT_ROUTE}: missing is {missing_default_route(routes)}{hint}"
