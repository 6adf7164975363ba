"""Write a check's marker file and JSON report for other programs."""

from __future__ import annotations

from hostrouting.boot.break_glass import why_open
from hostrouting.boot.files import exists, remove, write_if_changed
from hostrouting.boot.layout import Layout
from hostrouting.model.family import Family
from hostrouting.model.jsonable import to_json_text
from hostrouting.overlap.findings import OverlapReport, UnknownReason, Verdict


def marker_text(report: OverlapReport) -> str:
    """Return the marker's content: any reasons for ``unknown`` and the findings, or nothing.

    A reason is ``no-default-route`` (for IPv6, ``no-default-route: IPv6``), or another kind with
    details, such as ``check-failed: REASON``. If IPv6 CIDRs are expected, each family may have a
    reason.
    """
    reasons = {each.family: each.reason for each in report.families} or {Family.IPV4: report.reason}
    lines = [_reason_line(reason, family) for family, reason in reasons.items() if reason]
    return "".join(
        f"{line}\n"
        for line in (*dict.fromkeys(lines), *(finding.message for finding in report.findings))
    )


def _reason_line(reason: str, family: Family) -> str:
    if not reason.startswith(UnknownReason.NO_DEFAULT_ROUTE):
        return " ".join(reason.split())
    return f"{UnknownReason.NO_DEFAULT_ROUTE}{'' if family is Family.IPV4 else f': {family}'}"


def write_markers(layout: Layout, report: OverlapReport) -> None:
    """Write exactly one marker, and the report of a failed check.

    The marker is ``route-overlap.ok`` or ``route-overlap.detected``.

    Args:
        layout: paths of the host's files.
        report: the result of the check.

    Raises:
        FileError: a file can't be written.
    """
    marker = layout.marker_ok
    other = layout.marker_detected
    text = marker_text(report)
    if why := why_open(layout):
        text += f"gate-off: {why}; every start is admitted unchecked\n"
    if text:
        marker, other = other, marker
    # Remove the old marker before anything can fail, so that no reader sees a wrong marker, or both
    # markers. A missing marker is safe, because readers don't treat it as "ok".
    remove(other)
    if report.verdict is Verdict.OK:
        remove(layout.report)
    else:
        write_if_changed(layout.report, to_json_text(report.to_json()))
    write_if_changed(marker, text)
    # A boot script that can't get the lock goes on without it, so it may have written markers
    # meanwhile.
    if exists(other) or not exists(marker):
        write_markers(layout, report)
