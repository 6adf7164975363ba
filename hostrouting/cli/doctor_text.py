"""A report for people."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from hostrouting.boot.examination import Severity
from hostrouting.cli.styled import bad, dim, good
from hostrouting.model.text import clean

if TYPE_CHECKING:
    from hostrouting.boot.examination import Fault
    from hostrouting.doctor.examine import DoctorReport

__all__ = ["doctor_text"]

_SIGNS = {Severity.BROKEN: bad("✗"), Severity.RISK: bad("•"), Severity.UNKNOWN: bad("?")}
_NARROWEST_COLUMNS = 40


def doctor_text(report: DoctorReport, *, width: int | None = None) -> str:
    """Every examination, with what was found and what to do about it; last, a verdict.

    Args:
        report: what was found.
        width: how many columns there are; None: it is not for a terminal.

    Returns:
        Lines with colours.
    """
    label = max(len(each.name) for each in report.found)
    lines: list[str] = []
    for each, faults in report.found.items():
        if not faults:
            lines.append(f"{good('✓')} {each.name:{label}}  {each.fine}")
        for fault in faults:
            said = _fault_lines(fault, None if width is None else max(_NARROWEST_COLUMNS, width - label - 4))
            lines.append(f"{_SIGNS[fault.severity]} {each.name:{label}}  {said[0]}")
            lines += [f"  {'':{label}}  {line}" for line in said[1:]]
    return "\n".join([*lines, _verdict(report)])


def _fault_lines(fault: Fault, room: int | None) -> list[str]:
    first, *others = fault.remedy.splitlines()
    return [
        *(bad(line) for line in _wrapped(f"{fault.subject}: {fault.message}", room)),
        *_wrapped(f"do: {first}", room),
        # What is to be written into a file stays as it is.
        *(dim(clean(line)) for line in others),
    ]


def _wrapped(text: str, room: int | None) -> list[str]:
    if room is None:
        return clean(text).splitlines()
    return [
        line
        for part in clean(text).splitlines()
        for line in textwrap.wrap(part, room, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
    ]


def _verdict(report: DoctorReport) -> str:
    count = {severity: sum(each.severity is severity for each in report.faults) for severity in Severity}
    if report.worst is None:
        return good("nothing was found: the gate holds")
    risks = f"{count[Severity.RISK]} may break it later" if count[Severity.RISK] else ""
    unknown = f"{count[Severity.UNKNOWN]} couldn't be examined" if count[Severity.UNKNOWN] else ""
    if count[Severity.BROKEN]:
        said = f"what was promised doesn't hold: {count[Severity.BROKEN]} broken"
    else:
        said = "nothing is broken" if not unknown else "nothing that could be examined is broken"
    return bad("; ".join(filter(None, (said, risks, unknown))))
