"""Compose a check's output page, with a bar of coloured cells for each CIDR."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby

from hostrouting.cli.bars import KINDS, Bar, CellKind, Paint, cells, legend
from hostrouting.cli.events import event_rows
from hostrouting.cli.layout import page_text
from hostrouting.cli.output import Page, Row, bad, dim, good, head
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.text import clean
from hostrouting.overlap.findings import FindingKind, OverlapReport, Verdict
from hostrouting.overlap.wording import PASTE, pasted_entries, reasons, summary

# A limit for readability; the JSON output is complete.
_ROWS = 16
_BAR_CELLS = 64
_PICTURE_LINES = 4


def fix_lines(report: OverlapReport) -> list[str]:
    """Return one line for each failure that can't be fixed and for each side effect of the fix."""
    if report.verdict is Verdict.UNKNOWN and not report.findings:
        return [bad(clean(summary(report)))]
    lines = [bad(clean(summary(report).splitlines()[0]))] if report.verdict is Verdict.UNKNOWN else []
    lines += [bad(clean(reason)) for reason in reasons(report)]
    lines += [f"mind: {clean(line)}" for line in report.fix.consequences]
    return lines or [good("nothing fails: there is nothing to fix")] if not report.fix.routes else lines


def overlap_text(report: OverlapReport, *, width: int | None = None) -> str:
    """Return a check's result as text: verdict, bars, failures, fix, events and notes.

    Args:
        report: the check's report.
        width: the number of columns, or None if the output isn't a terminal.

    Returns:
        Lines with colours.
    """
    return page_text([*_page(report, width, 1), *event_rows(report), *_notes(report)], width)


def overlap_picture(report: OverlapReport) -> str:
    """Return a check's result as an SVG document, with several lines per bar for more detail."""
    from hostrouting.cli.drawn import PICTURE_COLUMNS, picture

    title = f"hostrouting check: {report.verdict} · {clean(report.host)} · {report.mode} · {report.time}"
    page = [*_page(report, PICTURE_COLUMNS, _PICTURE_LINES), *event_rows(report), *_notes(report)]
    return picture(page, title)


def verdict_line(report: OverlapReport) -> str:
    """Return a line with the verdict, the host, the number of failing CIDRs, and the mode."""
    total, failing = len(set(report.cidrs)), len({finding.cidr for finding in report.findings})
    if not total:
        said = "no CIDRs are expected"
    elif report.verdict is Verdict.UNKNOWN:
        unjudged = sum(report.verdict_on(cidr) is Verdict.UNKNOWN for cidr in set(report.cidrs))
        some = f"{unjudged} of {total} expected CIDRs couldn't be judged"
        said = f"none of {total} expected CIDRs could be judged" if unjudged == total else some
    else:
        said = f"{failing} of {total} expected CIDRs {'fails' if failing == 1 else 'fail'}"
    return f"{report.verdict} on {clean(report.host)}: {said}; mode {report.mode}"


def _page(report: OverlapReport, width: int | None, bar_lines: int) -> Page:
    page: Page = [(good if report.verdict is Verdict.OK else bad)(verdict_line(report))]
    if report.verdict is Verdict.UNKNOWN:
        said = clean(summary(report))
        if all(each.verdict is Verdict.UNKNOWN for each in report.families):
            return [*page, said]
        page.append(said.splitlines()[0])
    by_family = {each.family: clean(",".join(each.default_devs)) for each in report.families}
    default = clean(",".join(report.default_devs))
    own = {each.cidr: ",".join(each.devs) for each in report.expected if each.devs is not None}
    findings: defaultdict[IpNetwork, list[str]] = defaultdict(list)
    for finding in report.findings:
        findings[finding.cidr].append(bad(clean(finding.failure)))
        if finding.cause:
            findings[finding.cidr].append(dim(clean(finding.cause)))
    bars = _bars(report)
    noted = {*bars, *(note.cidr for note in report.notes)}
    shown = sorted(dict.fromkeys(report.cidrs), key=lambda cidr: (cidr not in findings, cidr not in noted))[:_ROWS]
    count = _cells_in(width, max((len(str(cidr)) for cidr in report.cidrs), default=0))
    drawn = {cidr: _drawn(cidr, bars[cidr], count, bar_lines) for cidr in shown if cidr in bars}
    paints = legend((answer for lines in drawn.values() for line in lines for answer in line), report.default_devs)
    if len(set(by_family.values()) - {""}) > 1:
        page += [head(f"expected interface of {family}: {devs}") for family, devs in by_family.items() if devs]
    else:
        page.append(head(f"expected interface: {default}"))
    page += [f"  {paint.on(f' {paint.symbol} ')} {clean(paint.meaning)}" for paint in dict.fromkeys(paints.values())]
    for cidr in shown:
        is_unknown = report.verdict_on(cidr) is Verdict.UNKNOWN
        mark = bad("✗") if cidr in findings else dim("•") if cidr in noted else bad("?") if is_unknown else good("✓")
        rows = _rows(mark, cidr, drawn.get(cidr, []), paints)
        passed = "not judged" if is_unknown else f"by {own.get(cidr) or by_family.get(Family.of(cidr), default)}"
        rows[-1].said.extend(findings.get(cidr) or ([] if cidr in drawn else [passed]))
        page += rows
    if (more := len(set(report.cidrs)) - _ROWS) > 0:
        page.append(f"and {more} more; --output json has them all")
    entries, rest = pasted_entries(report)
    if entries:
        page += [good(PASTE), *(good(f"  {entry},") for entry in entries[:-1]), good(f"  {entries[-1]}{rest}")]
    page += [bad(clean(said)) for said in reasons(report)]
    return [*page, *(dim(f"mind: {clean(said)}") for said in report.fix.consequences)]


def _notes(report: OverlapReport) -> Page:
    return [dim(f"note: {note.kind}: {clean(note.message)}") for note in report.notes]


def _bars(report: OverlapReport) -> dict[IpNetwork, Bar]:
    """Return a bar for each CIDR that has findings or notes."""
    bars: defaultdict[IpNetwork, Bar] = defaultdict(list)
    for finding in report.findings:
        devs = {*finding.devs, *finding.behind} if finding.kind is FindingKind.OVERLAP else ()
        bars[finding.cidr].append((CellKind(finding.kind, tuple(sorted(devs))), finding.ranges))
    for note in report.notes:
        if note.kind in KINDS and note.cidr is not None:
            bars[note.cidr].append((CellKind(note.kind), note.ranges))
    return bars


def _drawn(cidr: IpNetwork, bar: Bar, count: int, lines: int) -> list[tuple[CellKind | None, ...]]:
    """Return the cells of a bar, line by line."""
    line = cells(cidr, bar, count * lines if cidr.num_addresses > count else count)
    return [line[first : first + count] for first in range(0, len(line), count)]


def _rows(
    mark: str, cidr: IpNetwork, drawn: list[tuple[CellKind | None, ...]], paints: dict[CellKind | None, Paint]
) -> list[Row]:
    """Return a row per bar line, or a single row without a bar.

    The first row is labelled with the CIDR, and each later row with the first address in its line.
    """
    if not drawn:
        return [Row(mark, str(cidr), [])]
    step = cidr.num_addresses // len(drawn)
    rows = [
        Row(" ", str(cidr.network_address + number * step), [_bar_text(line, paints)])
        for number, line in enumerate(drawn)
    ]
    return [rows[0]._replace(mark=mark, label=str(cidr)), *rows[1:]]


def _bar_text(line: Iterable[CellKind | None], paints: dict[CellKind | None, Paint]) -> str:
    parts = ((paints[answer], len(list(same))) for answer, same in groupby(line))
    return "".join(paint.on(paint.symbol * length) for paint, length in parts)


def _cells_in(columns: int | None, label: int) -> int:
    """Return how many cells fit, rounded down to a power of two, so that each cell is a prefix."""
    count = _BAR_CELLS
    while columns is not None and columns - label - len("✗   ") < count > 8:
        count //= 2
    return count
