"""What a check leaves for other programs: one marker, and the report as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.boot.files import read_text, remove, write_if_changed
from hostrouting.model.text import to_json_text
from hostrouting.overlap.findings import NO_DEFAULT_ROUTE, FindingKind, OverlapReport, Verdict

if TYPE_CHECKING:
    from hostrouting.boot.layout import Layout


def marker_text(report: OverlapReport) -> str:
    """What the marker holds: nothing, a line a failure, ``no-default-route``, or ``check-failed: REASON``."""
    if report.verdict is not Verdict.UNKNOWN:
        return "".join(f"{finding.message}\n" for finding in report.findings)
    reason = " ".join((report.reason or "").split())
    return f"{NO_DEFAULT_ROUTE}\n" if reason.startswith(NO_DEFAULT_ROUTE) else f"{reason}\n"


def marked_verdict(layout: Layout) -> Verdict | None:
    """What the marker says; None if there is none.

    Raises:
        FileError: it can't be read.
    """
    if layout.marker_ok.exists():
        return Verdict.OK
    text = read_text(layout.marker_detected)
    if text is None:
        return None
    return Verdict.OVERLAP if text.startswith(tuple(f"{kind}: " for kind in FindingKind)) else Verdict.UNKNOWN


def write_markers(layout: Layout, report: OverlapReport) -> None:
    """Leave exactly one marker, ``route-overlap.ok`` or ``route-overlap.detected``, and the report beside it.

    Args:
        layout: where.
        report: what was found.

    Raises:
        FileError: one can't be written.
    """
    marker, other = layout.marker_ok, layout.marker_detected
    if report.verdict is not Verdict.OK:
        marker, other = other, marker
    write_if_changed(layout.report, to_json_text(report.to_json()))
    # The stale one goes first: a reader never sees both, and none is never taken for "ok".
    remove(other)
    write_if_changed(marker, marker_text(report))
