"""What the check says now: the first thing to know of a node that behaves oddly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.boot.examination import Fault, Severity
from hostrouting.config.overlap import OverlapMode
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.boot.examination import ExaminedHost

__all__ = ["verdict"]


def verdict(examined: ExaminedHost) -> Iterator[Fault]:
    """The installed check would let the consumer start now."""
    config = examined.manifest.config.without_waits()
    if not config.route_overlap.expected_cidrs:
        return
    is_strict = config.route_overlap.mode is OverlapMode.STRICT
    follows = "its next start is held back" if is_strict else "its next start is let through, as the mode is WARN"
    report = check_overlap(config, examined.host.routes, examined.scope)
    if report.verdict is Verdict.UNKNOWN:
        message = f"{follows}: the check can't judge: {report.reason}"
        severity = Severity.BROKEN if is_strict else Severity.UNKNOWN
        yield Fault("unjudged", examined.consumer, message, "mend that, then: hostrouting check", severity)
    for finding in report.findings:
        yield Fault("shadowed", examined.consumer, f"{follows}: {finding.message}", f"see: {examined.command('fix')}")
