"""A report of the doctor for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hostrouting.boot.examination import Severity
from hostrouting.cli.output import Row, bad, dim, good
from hostrouting.cli.running import page_text
from hostrouting.model.text import clean

if TYPE_CHECKING:
    from hostrouting.cli.output import Page
    from hostrouting.doctor.examine import DoctorReport

_MARKS = {Severity.BROKEN: bad("✗"), Severity.RISK: bad("•"), Severity.UNKNOWN: bad("?")}


def doctor_text(report: DoctorReport, *, width: int | None = None) -> str:
    """Every examination, with what was found and what to do about it; last, a verdict.

    Args:
        report: what was found.
        width: how many columns there are; None: it isn't for a terminal.

    Returns:
        Lines with colours.
    """
    page: Page = []
    for each, faults in report.found.items():
        if not faults:
            page.append(Row(good("✓"), each.name, [each.fine]))
        for fault in faults:
            wrong = clean(f"{fault.subject}: {fault.message}").splitlines()
            first, *others = clean(fault.remedy).splitlines()
            said = [*map(bad, wrong), f"do: {first}", *map(dim, others)]
            page.append(Row(_MARKS[fault.severity], each.name, said))
    return page_text([*page, _verdict(report)], width)


def _verdict(report: DoctorReport) -> str:
    if report.worst is None:
        return good("nothing was found: the gate holds")
    count = Counter(fault.severity for fault in report.faults)
    risks = f"{count[Severity.RISK]} may break it later" if count[Severity.RISK] else ""
    unknown = f"{count[Severity.UNKNOWN]} couldn't be examined" if count[Severity.UNKNOWN] else ""
    if count[Severity.BROKEN]:
        said = f"what was promised doesn't hold: {count[Severity.BROKEN]} broken"
    else:
        said = "nothing is broken" if not unknown else "nothing that could be examined is broken"
    return bad("; ".join(filter(None, (said, risks, unknown))))
