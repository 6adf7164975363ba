"""Format the predicted events of a check, grouping an interface's events that have the same result."""

from __future__ import annotations

from collections.abc import Sequence

from hostrouting.cli.output import Page, Row, bad, dim, good, head
from hostrouting.model.text import clean, shortened
from hostrouting.overlap.findings import EventVerdict, Finding, Outlook, OverlapReport, Verdict

# A limit for readability; the JSON output is complete.
_FINDINGS = 4


def event_rows(report: OverlapReport) -> Page:
    """Return what each event would break and what would restore it, or an empty page without --one-event."""
    if report.events is None:
        return []
    rows: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for each in report.events:
        if each.outlook is not Outlook.SAME:
            mark = bad("✗") if each.outlook is Outlook.LASTING else dim("•")
            words = f"{each.event.kind} {each.event.address or ''}".rstrip()
            rows.setdefault((mark, clean(each.event.subject), (*_said(each),)), []).append(words)
    news = sum(each.outlook in (Outlook.RESTORED, Outlook.LASTING) for each in report.events)
    page: Page = [head(f"one event away: {news} of {len(report.events)} events would change the verdict")]
    return [*page, *(Row(mark, f"{dev}: {', '.join(kinds)}", [*said]) for (mark, dev, said), kinds in rows.items())]


def _said(each: EventVerdict) -> list[str]:
    if each.outlook is Outlook.UNTOLD:
        return [dim(f"can't be predicted: {clean(each.reason or '')}")]
    lines, by = _result(each.verdict, each.findings, each.reason), clean(" and ".join(each.restored_by))
    if not by:
        return [*lines, dim("nothing restores it")]
    if each.outlook is Outlook.RESTORED:
        return [*lines, good(f"restored by {by}")]
    return [*lines, dim(f"after {by}:"), *_result(each.lasting_verdict, each.lasting_findings)]


def _result(verdict: Verdict, findings: Sequence[Finding], reason: str | None = None) -> list[str]:
    if verdict is not Verdict.OVERLAP:
        return [good("ok") if verdict is Verdict.OK else bad(clean(f"unknown: {reason}" if reason else "unknown"))]
    return [bad(line) for line in shortened([clean(each.failure) for each in findings], "\n", _FINDINGS).split("\n")]
