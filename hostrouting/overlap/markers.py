"""Write the marker of a check and its JSON report for other programs."""

from __future__ import annotations

from hostrouting.boot.break_glass import why_open
from hostrouting.boot.files import exists, read_text, remove, write_if_changed
from hostrouting.boot.layout import Layout
from hostrouting.model.jsonable import to_json_text
from hostrouting.overlap.findings import FindingKind, OverlapReport, UnknownReason, Verdict


def marker_text(report: OverlapReport) -> str:
    """Return the content of the marker: nothing, the failures, ``no-default-route``, or ``check-failed: REASON``."""
    if report.verdict is not Verdict.UNKNOWN:
        return "".join(f"{finding.message}\n" for finding in report.findings)
    if report.reason_kind is UnknownReason.NO_DEFAULT_ROUTE:
        return f"{report.reason_kind}\n"
    return f"{' '.join((report.reason or '').split())}\n"


def marked_verdict(layout: Layout) -> Verdict | None:
    """Return the verdict in the marker, or None if there is no marker.

    Raises:
        FileError: the marker can't be read.
    """
    if exists(layout.marker_ok):
        return Verdict.OK
    text = read_text(layout.marker_detected)
    if text is None:
        return None
    return Verdict.OVERLAP if text.startswith(tuple(f"{kind}: " for kind in FindingKind)) else Verdict.UNKNOWN


def write_markers(layout: Layout, report: OverlapReport) -> None:
    """Write exactly one marker, ``route-overlap.ok`` or ``route-overlap.detected``, and the report next to it.

    Args:
        layout: the paths of the host's files.
        report: the result of the check.

    Raises:
        FileError: a file can't be written.
    """
    marker, other, text = layout.marker_ok, layout.marker_detected, marker_text(report)
    if why := why_open(layout):
        text += f"gate-off: {why}; every start is admitted unchecked\n"
    if text:
        marker, other = other, marker
    write_if_changed(layout.report, to_json_text(report.to_json()))
    # Remove the old marker first. A reader then never sees both, and never takes a missing marker for "ok".
    remove(other)
    write_if_changed(marker, text)
