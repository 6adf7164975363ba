"""Render pages as text, and lay out a check's result: as a page with bars, or as a monitoring plugin's line."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import chain

from hostrouting.cli.bars import KINDS, Bar, CellKind, bar_text, cells, cells_in, legend
from hostrouting.cli.output import Page, Row, bad, dim, good, head
from hostrouting.config.routing import OverlapMode
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.text import clean
from hostrouting.overlap.findings import (
    FindingKind,
    OverlapReport,
    Verdict,
)
from hostrouting.overlap.summary import PASTE, pasted_entries, reasons, summary

# Limits for readability; the JSON output is complete.
_ROWS, _FAILURES = 16, 4


def page_text(page: Page, width: int | None) -> str:
    """Return a page as lines with colours.

    Args:
        page: the lines and rows of the page.
        width: the terminal's width in columns, or None for a pipe, where lines aren't wrapped.

    Returns:
        The lines, with aligned rows.
    """
    if width is not None:
        from hostrouting.cli.drawn import draw

        return draw(page, width)
    label = max((len(item.label) for item in page if isinstance(item, Row)), default=0)
    lines: list[str] = []
    for item in page:
        if isinstance(item, Row):
            lines.append(f"{item.mark} {item.label:{label}}  {item.said[0]}")
            lines += [f"  {'':{label}}  {said}" for said in item.said[1:]]
        else:
            lines.append(item)
    return "\n".join(lines)


def fix_lines(report: OverlapReport) -> list[str]:
    """Return lines that say which failures no route fixes and why, with hints and the side effects of the fix."""
    if report.verdict is Verdict.UNKNOWN and not report.findings:
        return [bad(clean(summary(report)))]
    lines = (
        [bad(clean(summary(report).splitlines()[0]))] if report.verdict is Verdict.UNKNOWN else []
    )
    lines += [bad(clean(reason)) for reason in reasons(report)]
    lines += [f"hint: {clean(line)}" for line in report.fix.hints]
    lines += [f"caution: {clean(line)}" for line in report.fix.consequences]
    return (
        lines or [good("nothing fails: there is nothing to fix")]
        if not report.fix.routes
        else lines
    )


def overlap_text(report: OverlapReport, *, width: int | None = None) -> str:
    """Return a check's result as text: verdict, bars, failures, fix and notes.

    Args:
        report: the check's report.
        width: the number of columns, or None if the output isn't a terminal.

    Returns:
        Lines with colours.
    """
    return page_text(_page(report, width), width)


def overlap_picture(report: OverlapReport) -> str:
    """Return a check's result as an SVG document."""
    from hostrouting.cli.drawn import PICTURE_COLUMNS, picture

    title = f"hostrouting check: {report.verdict} · {clean(report.host)} · {report.mode} · {report.time}"
    return picture(_page(report, PICTURE_COLUMNS), title)


def verdict_line(report: OverlapReport) -> str:
    """Return a line with the verdict, the host, the number of failing CIDRs, and the mode."""
    said = _counts(report) if report.cidrs else "no CIDRs are expected"
    return f"{report.verdict} on {clean(report.host)}: {said}; mode {report.mode}"


def _counts(report: OverlapReport) -> str:
    """Return a clause with the number of failing CIDRs, and of those without a verdict."""
    verdicts = Counter(map(report.verdict_on, report.cidrs))
    failing, unjudged = verdicts[Verdict.OVERLAP], verdicts[Verdict.UNKNOWN]
    if unjudged and not failing:
        return f"{unjudged} of {len(report.cidrs)} expected CIDRs couldn't be judged"
    said = f"{failing} of {len(report.cidrs)} expected CIDRs {'fails' if failing == 1 else 'fail'}"
    return f"{said}, {unjudged} couldn't be judged" if unjudged else said


SIMILAR = "similar incidents: https://github.com/hostrouting/hostrouting/blob/main/docs/howto/your-symptom.md"


def _page(report: OverlapReport, width: int | None) -> Page:
    notes = (dim(f"note: {note.kind}: {clean(note.message)}") for note in report.notes)
    return [*_verdict(report, width), *notes]


def _verdict(report: OverlapReport, width: int | None) -> Page:
    page: Page = [(good if report.verdict is Verdict.OK else bad)(verdict_line(report))]
    if report.verdict is Verdict.UNKNOWN:
        said = clean(summary(report))
        if all(each.verdict is Verdict.UNKNOWN for each in report.families):
            return [*page, said]
        page.append(said.splitlines()[0])
    by_family = {each.family: clean(",".join(each.default_devs)) for each in report.families}
    default = clean(",".join(report.default_devs))
    named = {each.cidr: ",".join(each.devs) for each in report.expected if each.devs is not None}
    findings: defaultdict[IpNetwork, list[str]] = defaultdict(list)
    for finding in report.findings:
        findings[finding.cidr].append(bad(clean(finding.failure)))
        if finding.cause:
            findings[finding.cidr].append(dim(clean(finding.cause)))
    bars = _bars(report)
    noted = {*bars, *(note.cidr for note in report.notes)}
    shown = sorted(report.cidrs, key=lambda cidr: (cidr not in findings, cidr not in noted))[:_ROWS]
    count = cells_in(width, max((len(str(cidr)) for cidr in report.cidrs), default=0))
    drawn = {cidr: cells(cidr, bars[cidr], count) for cidr in shown if cidr in bars}
    paints = legend(chain.from_iterable(drawn.values()), () if named else report.default_devs)
    if len(set(by_family.values()) - {""}) > 1:
        page += [
            head(f"expected interface of {family}: {devs}")
            for family, devs in by_family.items()
            if devs
        ]
    elif default and len(named) < len(report.cidrs):
        page.append(head(f"expected interface: {default}"))
    page += [
        f"  {paint.on(f' {paint.symbol} ')} {clean(paint.meaning)}"
        for paint in dict.fromkeys(paints.values())
    ]
    for cidr in shown:
        is_unknown = report.verdict_on(cidr) is Verdict.UNKNOWN
        mark = (
            bad("✗")
            if cidr in findings
            else dim("•")
            if cidr in noted
            else bad("?")
            if is_unknown
            else good("✓")
        )
        passed = (
            "not judged"
            if is_unknown
            else f"by {named.get(cidr) or by_family.get(Family.of(cidr), default)}"
        )
        is_drawn = cidr in drawn  # each CIDR with findings is drawn
        paragraphs = (
            [bar_text(drawn[cidr], paints), *findings.get(cidr, ())] if is_drawn else [passed]
        )
        page.append(Row(mark, str(cidr), paragraphs))
    if (more := len(report.cidrs) - _ROWS) > 0:
        page.append(f"and {more} more; --output json has them all")
    entries, rest = pasted_entries(report)
    if entries:
        page += [
            good(PASTE),
            *(good(f"  {entry},") for entry in entries[:-1]),
            good(f"  {entries[-1]}{rest}"),
        ]
    page += [bad(clean(said)) for said in reasons(report)]
    page += [dim(f"hint: {clean(said)}") for said in report.fix.hints] + [dim(SIMILAR)] * bool(
        report.fix.hints
    )
    page += [dim(f"caution: {clean(said)}") for said in report.fix.consequences]
    return page


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


# --- as a monitoring plugin's line ----------------------------------------------------------------

_OK, _WARNING, _CRITICAL, _UNKNOWN = range(4)
_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")

# NRPE and NSCA truncate longer lines, which would cut off the performance data.
_TEXT_CHARACTERS = 400


def nagios(report: OverlapReport) -> tuple[int, str]:
    """Return a check's result for a monitoring plugin: the exit code, and a line with performance data.

    See the Monitoring Plugins Development Guidelines
    (https://www.monitoring-plugins.org/doc/guidelines.html).

    Args:
        report: the check's report.

    Returns:
        The exit code (0 OK, 1 failures in WARN mode, 2 failures in STRICT mode, 3 unknown), and a
        line with the status, the failures and, after ``|``, the number of failing CIDRs.
    """
    if not report.cidrs:
        return nagios_unknown("no CIDRs are expected: there is nothing to check")
    if report.verdict is Verdict.UNKNOWN:
        said = "; ".join(summary(report).splitlines())
        said = f"{_counts(report)}: {said}" if report.findings else said
        return nagios_unknown(
            said if report.families else f"nothing could be judged: {report.reason}"
        )
    is_strict = report.mode is OverlapMode.STRICT
    total, failing = len(report.cidrs), {finding.cidr for finding in report.findings}
    all_of_them = "1 expected CIDR leaves" if total == 1 else f"{total} expected CIDRs leave"
    status, said = _OK, f"{all_of_them} through {','.join(report.default_devs)}"
    if failing:
        status = _CRITICAL if is_strict else _WARNING
        said = f"{_counts(report)}: {report.findings[0].message}"
    # A threshold of 0 alerts on any other value. Only the current mode's threshold is set.
    thresholds = ";0" if is_strict else "0;"
    return status, f"{_text(status, said)} | failing={len(failing)};{thresholds};0;{total}"


def nagios_unknown(reason: str) -> tuple[int, str]:
    """Return the exit code and output line for a check without a verdict."""
    return _UNKNOWN, _text(_UNKNOWN, reason)


def _text(status: int, said: str) -> str:
    line = " ".join(clean(said).split()).replace("|", "/")
    cut = line if len(line) <= _TEXT_CHARACTERS else f"{line[: _TEXT_CHARACTERS - 1]}…"
    return f"HOSTROUTING {_WORDS[status]} - {cut}"
