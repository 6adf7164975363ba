"""Checks as text for people, with colours and strips; the words of a check are ``overlap.wording``'s."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.cli.drawing import draw
from hostrouting.cli.strips import runs
from hostrouting.cli.styled import bad, cell, dim, good, head
from hostrouting.model.text import clean
from hostrouting.overlap.findings import Verdict
from hostrouting.overlap.wording import PASTE, pasted_entries, reasons, summary

if TYPE_CHECKING:
    from hostrouting.cli.drawing import Drawing, Row
    from hostrouting.cli.strips import Answer
    from hostrouting.overlap.findings import OverlapReport

__all__ = ["overlap_text", "remedy_lines"]


def remedy_lines(report: OverlapReport) -> list[str]:
    """What a proposal is worth, a line each: what it leaves and why, and what else changes sides with it."""
    if report.verdict is Verdict.UNKNOWN:
        return [bad(clean(summary(report)))]
    remedy = report.remedy
    lines = [bad(clean(reason)) for reason in reasons(report)]
    lines += [f"mind: {clean(line)}" for line in remedy.consequences]
    return lines or [good("nothing fails: there is nothing to mend")] if not remedy.routes else lines


def overlap_text(report: OverlapReport, *, width: int | None = None) -> str:
    """A check for people: for each CIDR what is wrong, with a strip that shows where; then the notes.

    Args:
        report: what was found.
        width: how many columns there are; None: it is not for a terminal.

    Returns:
        Lines with colours.
    """
    if report.verdict is Verdict.UNKNOWN:
        return f"{bad('unknown')}  {clean(summary(report))}"
    if not report.cidrs:
        return "no CIDRs are expected: nothing to check; name some with --cidr or as routeOverlap.expectedCidrs"
    label = max(len(str(cidr)) for cidr in report.cidrs)
    drawing = draw(report, _cells_in(None if width is None else width - label - len("✗   ")))
    lines = [head(clean(f"expected interface: {','.join(report.default_devs)}"))]
    lines += _legend_lines(drawing, width or _PAGE_COLUMNS)
    for row in drawing.rows:
        lines += _row_lines(row, drawing, report.default_devs, label=label, width=width)
    if drawing.failing_left_out:
        lines.append(f"{bad('✗')} and {drawing.failing_left_out} more; --output json has them all")
    if drawing.fine_left_out:
        lines.append(f"{good('✓')} and {drawing.fine_left_out} more by {clean(','.join(report.default_devs))}")
    lines += _advice_lines(report, width)
    general = [note.message for note in report.notes if note.cidr is None]
    lines += [dim(line) for message in general for line in _wrapped(f"note: {message}", width)]
    return "\n".join(lines)


_STRIP_CELLS = 64
_PAGE_COLUMNS = 100
_NARROWEST_COLUMNS = 40


def _cells_in(columns: int | None) -> int:
    """A power of two, so that each cell is a prefix."""
    count = _STRIP_CELLS
    while columns is not None and columns < count > 8:
        count //= 2
    return count


def _row_lines(
    row: Row, drawing: Drawing, default_devs: tuple[str, ...], *, label: int, width: int | None
) -> list[str]:
    room = None if width is None else max(_NARROWEST_COLUMNS, width - label - len("✗   "))
    mark, said = good("✓"), [clean(f"by {','.join(default_devs)}")]
    if not row.is_fine:
        mark = bad("✗") if row.findings else dim("•")
        said = [_strip_text(row.cells, drawing)] if row.cells else []
    for finding in row.findings:
        what, _, by = finding.message.partition("; by ")
        said += [bad(line) for line in _wrapped(what, room)]
        said += [dim(line) for line in _wrapped(f"by {by}", room) if by]
    said += [dim(line) for note in row.notes for line in _wrapped(f"{note.kind}: {note.message}", room)]
    return [f"{mark} {row.cidr!s:{label}}  {said[0]}", *(f"  {'':{label}}  {line}" for line in said[1:])]


def _advice_lines(report: OverlapReport, width: int | None) -> list[str]:
    """The same with an entry a line, so that none is broken."""
    entries, rest = pasted_entries(report)
    lines = [good(PASTE), *(good(f"  {entry},") for entry in entries[:-1])] if entries else []
    lines += [good(f"  {entry}{rest}") for entry in entries[-1:]]
    lines += [dim(line) for said in report.remedy.consequences for line in _wrapped(f"mind: {said}", width)]
    return lines + [bad(line) for said in reasons(report) for line in _wrapped(said, width)]


def _wrapped(text: str, room: int | None) -> list[str]:
    if room is None:
        return [clean(text)]
    import textwrap

    return textwrap.wrap(clean(text), room, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def _strip_text(drawn: tuple[Answer | None, ...], drawing: Drawing) -> str:
    entries = [(drawing.legend[answer], length) for _, length, answer in runs(drawn)]
    return "".join(cell(entry.role, entry.symbol * length) for entry, length in entries)


def _legend_lines(drawing: Drawing, width: int) -> list[str]:
    lines: list[str] = []
    used = width
    for entry in dict.fromkeys(drawing.legend.values()):
        words = clean(" ".join(filter(None, (entry.name, entry.meaning))))
        length = len(words) + len("   A    ")
        if used + length > width:
            lines.append(" ")
            used = 1
        lines[-1] += f" {cell(entry.role, f' {entry.symbol} ')} {words}  "
        used += length
    return [line.rstrip() for line in lines]
