"""Render pages as text, and make a page or a monitoring plugin's line from a check's result."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from hostrouting.cli.bars import (
    KINDS,
    Bar,
    CellKind,
    bar_text,
    cells,
    cells_in,
    legend,
    legend_lines,
)
from hostrouting.cli.output import Page, Row, bad, dim, good, head
from hostrouting.config.routing import Config, OverlapMode
from hostrouting.config.unexpected_routes import notes_on_unexpected
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.text import clean, counted, shortened
from hostrouting.overlap.findings import (
    FindingKind,
    Note,
    NoteKind,
    OverlapReport,
    Verdict,
)
from hostrouting.overlap.proposals import Fix
from hostrouting.overlap.summary import (
    CONFIG,
    brief,
    pasted_entries,
    reasons,
    summary,
    unapplied,
)

# Longer lists are shortened in the text. The JSON output is complete.
_ROWS = 16


def page_text(page: Page, width: int | None) -> str:
    """Return a page as lines with colours.

    Args:
        page: the lines and rows of the page.
        width: the terminal's width in columns; None for a pipe, where lines aren't wrapped.

    Returns:
        The lines, with aligned rows.
    """
    if width is not None:
        from hostrouting.cli.drawn import draw

        return draw(page, width)
    labels = [item.label for item in page if isinstance(item, Row)]
    label = max(map(len, labels), default=0)
    lines: list[str] = []
    for item in page:
        if isinstance(item, Row):
            lines.append(f"{item.mark} {item.label:{label}}  {item.said[0]}")
            lines += [f"  {'':{label}}  {said}" for said in item.said[1:]]
        else:
            lines.append(item)
    return "\n".join(lines)


_NOTHING_TO_FIX = "nothing fails: there is nothing to fix"
_UNKEPT = "nothing fails, but the routes lead InfiniBand's own packets away"


def fix_lines(
    report: OverlapReport,
    config: str = CONFIG,
    *,
    shows_entries: bool = False,
    is_verbose: bool = False,
) -> list[str]:
    """Return lines on the verdict, the failures, the reasons why no route fixes some, and cautions.

    Args:
        report: the check's report.
        config: as for ``unapplied``.
        shows_entries: whether to list the entries, because no document with them is printed.
        is_verbose: as for ``overlap_text``.
    """
    lines = _reason_lines(report)
    is_fine = report.verdict is Verdict.OK and not report.fix.would_fail
    if is_fine:
        lines.append(good(_UNKEPT if report.fix.keep else _NOTHING_TO_FIX))
    elif report.findings:
        lines.insert(0, bad(verdict_line(report)))
        lines += [f"{bad('✗')} {line}" for line in _shown_failures(report)]
    lines += [good(clean(line)) for line in unapplied(report.fix, config)]
    if shows_entries:
        lines += _entry_lines(report.fix)
    lines += _unfixable_lines(report)
    lines += [f"hint: {clean(line)}" for line in report.fix.hints]
    # When nothing fails, the lines are about the host as it is, and not about a fix.
    kind = "note" if is_fine else "caution"
    lines += _cautions(report, kind, is_verbose=is_verbose)
    return [*lines, *_more(report.fix.consequences, is_verbose=is_verbose)]


def unexpected_lines(config: Config) -> list[str]:
    """Return notes on static routes and rules that are for no expected CIDR."""
    return [f"note: {note}" for note in notes_on_unexpected(config)]


def _more(remarks: Iterable[str], *, is_verbose: bool) -> list[str]:
    """Return a line that names -v, if it would show more details of cautions or notes."""
    if is_verbose or all("; ".join(brief(remark)) == remark for remark in remarks):
        return []
    return [dim("-v says more about these")]


def _shown_failures(report: OverlapReport) -> list[str]:
    """Return a line for each of the first failing CIDRs, and the number of the others."""
    first = {finding.cidr: finding.failure for finding in reversed(report.findings)}
    failures = [*reversed(first.values())]
    return clean(shortened(failures, "\n", _ROWS)).splitlines()


def overlap_text(
    report: OverlapReport,
    *,
    width: int | None = None,
    config: str = CONFIG,
    is_verbose: bool = False,
) -> str:
    """Return a check's result as text: verdict, bars, failures, fix and notes.

    Args:
        report: the check's report.
        width: the number of columns; None if the output isn't a terminal.
        config: as for ``unapplied``.
        is_verbose: whether to include the details of cautions and notes.

    Returns:
        Lines with colours.
    """
    page = _page(report, width, config, is_verbose=is_verbose)
    remarks = (*report.fix.consequences, *(note.message for note in report.notes))
    return page_text([*page, *_more(remarks, is_verbose=is_verbose)], width)


def overlap_picture(report: OverlapReport) -> str:
    """Return a check's result as an SVG document."""
    from hostrouting.cli.drawn import PICTURE_COLUMNS, picture

    title = (
        f"hostrouting check: {report.verdict} · {clean(report.host)} · {report.mode} · "
        f"{report.time or 'unknown time'}"
    )
    return picture(_page(report, PICTURE_COLUMNS), title)


def verdict_line(report: OverlapReport) -> str:
    """Return a line with the verdict, the host, the number of failing CIDRs, and the mode."""
    said = _counts(report) if report.cidrs else "no CIDRs are expected"
    return f"{report.verdict} on {clean(report.host)}: {said}; mode {report.mode}"


def _counts(report: OverlapReport) -> str:
    """Return a clause with two numbers: of failing CIDRs, and of CIDRs without a verdict."""
    verdicts = Counter(map(report.verdict_on, report.cidrs))
    failing = verdicts[Verdict.OVERLAP]
    unjudged = verdicts[Verdict.UNKNOWN]
    if unjudged and not failing:
        return f"{unjudged} of {len(report.cidrs)} expected CIDRs couldn't be judged"
    said = f"{failing} of {len(report.cidrs)} expected CIDRs {'fails' if failing == 1 else 'fail'}"
    return f"{said}, {unjudged} couldn't be judged" if unjudged else said


SIMILAR = (
    "similar incidents: "
    "https://github.com/hostrouting/hostrouting/blob/main/docs/howto/your-symptom.md"
)


def _page(
    report: OverlapReport,
    width: int | None,
    config: str = CONFIG,
    *,
    is_verbose: bool = False,
) -> Page:
    paint = good if report.verdict is Verdict.OK else bad
    page: Page = [paint(verdict_line(report)), *_reason_lines(report)]
    judged = (each.verdict is not Verdict.UNKNOWN for each in report.families)
    if report.verdict is not Verdict.UNKNOWN or any(judged):
        page += _chart(report, width)
        page += _fix(report, config)
        page += map(dim, _cautions(report, is_verbose=is_verbose))
    notes = [f"note: {note.kind}: {note.message}" for note in report.notes]
    return [*page, *map(dim, _remark_lines(notes, is_verbose=is_verbose))]


def _reason_lines(report: OverlapReport) -> list[str]:
    """Return lines with the clauses of why the verdict is ``unknown``; none for other verdicts."""
    if report.verdict is not Verdict.UNKNOWN:
        return []
    said = summary(report).split("\n", 1)[0] if report.findings else summary(report)
    return _clauses(said, bad)


def _clauses(text: str, paint: Callable[[str], str]) -> list[str]:
    """Return text with each clause on a line, indented except for the first."""
    first, *others = clean(text).split("; ")
    return [*map(paint, first.splitlines()), *(paint(f"  {clause}") for clause in others)]


def _cautions(
    report: OverlapReport,
    kind: str = "caution",
    *,
    is_verbose: bool,
) -> list[str]:
    remarks = [f"{kind}: {line}" for line in report.fix.consequences]
    return _remark_lines(remarks, is_verbose=is_verbose)


def _remark_lines(remarks: Sequence[str], *, is_verbose: bool) -> list[str]:
    """Return lines of cautions or notes, with or without their details."""
    if is_verbose:
        return [line for each in remarks for line in _clauses(each, str)]
    lines: list[str] = []
    for each in remarks[:_ROWS]:
        lines += _clauses("; ".join(brief(each)), str)
    more = len(remarks) - _ROWS
    if more > 0:
        kind = remarks[0].partition(":")[0]
        lines.append(f"and {counted(more, f'more {kind}')}: -v")
    return lines


_AS_ABOVE = "  the answers are those above"


def _unfixable_lines(report: OverlapReport) -> list[str]:
    """Return why no entry fixes some addresses: a line for each clause, and each clause once."""
    told = reasons(report)
    lines: list[str] = []
    for unfixable, reason in zip(report.fix.unfixable[:_ROWS], told, strict=False):
        clauses = _clauses(reason, bad)
        if unfixable.obstacle.question is not None:
            new = [clause for clause in clauses if clause not in lines]
            if len(new) < len(clauses):
                new.insert(1, bad(_AS_ABOVE))
            clauses = new
        lines += clauses
    more = len(told) - _ROWS
    return [*lines, f"and {more} more; --output json has them all"] if more > 0 else lines


# --- the CIDRs ------------------------------------------------------------------------------------


def _chart(report: OverlapReport, width: int | None) -> Page:
    """Return the expected interfaces, a legend, and a row for each CIDR, failing CIDRs first."""
    bars = _bars(report)
    failures = _failures(report)
    noted = {*bars, *(note.cidr for note in report.notes)}
    by_urgency = sorted(report.cidrs, key=lambda cidr: (cidr not in failures, cidr not in noted))
    shown = by_urgency[:_ROWS]
    labels = map(str, report.cidrs)
    count = cells_in(width, max(map(len, labels), default=0))
    drawn = {cidr: cells(cidr, bars[cidr], count) for cidr in shown if cidr in bars}
    names_devs = any(each.devs is not None for each in report.expected)
    default_devs = () if names_devs else report.default_devs
    paints = legend(chain.from_iterable(drawn.values()), default_devs)

    page = [*_expected_lines(report), *legend_lines(paints)]
    devs_of = _expected_devs(report)
    for cidr in shown:
        verdict = report.verdict_on(cidr)
        if cidr in drawn:  # a CIDR with findings is always drawn
            said = [bar_text(drawn[cidr], paints), *failures.get(cidr, ())]
        elif verdict is Verdict.UNKNOWN:
            said = ["not judged"]
        else:
            said = [f"by {devs_of[cidr]}"]
        page.append(Row(_mark(verdict, is_noted=cidr in noted), str(cidr), said))
    if (more := len(report.cidrs) - _ROWS) > 0:
        page.append(f"and {more} more; --output json has them all")
    return page


def _failures(report: OverlapReport) -> dict[IpNetwork, list[str]]:
    """Return the lines that describe each failing CIDR's findings."""
    lines: defaultdict[IpNetwork, list[str]] = defaultdict(list)
    for finding in report.findings:
        lines[finding.cidr].append(bad(clean(finding.failure)))
        if finding.cause:
            lines[finding.cidr].append(dim(clean(finding.cause)))
    return lines


def _expected_lines(report: OverlapReport) -> Page:
    """Return a heading with the expected interfaces, one for each family if they differ."""
    of_families = {each.family: _joined(each.default_devs) for each in report.families}
    if len(set(of_families.values()) - {""}) > 1:
        return [
            head(f"expected interface of {family}: {devs}")
            for family, devs in of_families.items()
            if devs
        ]
    having_their_own = {each.cidr for each in report.expected if each.devs is not None}
    if not report.default_devs or len(having_their_own) == len(report.cidrs):
        return []
    since = since_text(report.verified_since)
    return [head(f"expected interface: {_joined(report.default_devs)}{since}")]


def since_text(verified_since: str | None) -> str:
    """Return a clause with the date since which the uplinks are verified, or an empty string."""
    return "" if verified_since is None else f", the verified uplink since {verified_since}"


def _expected_devs(report: OverlapReport) -> dict[IpNetwork, str]:
    """Return the expected interfaces of each CIDR."""
    default = _joined(report.default_devs)
    of_families = {each.family: _joined(each.default_devs) for each in report.families}
    devs = {cidr: of_families.get(Family.of(cidr), default) for cidr in report.cidrs}
    for each in report.expected:
        if each.devs:
            devs[each.cidr] = ",".join(each.devs)
    return devs


def _joined(devs: Sequence[str]) -> str:
    return clean(",".join(devs))


def _mark(verdict: Verdict, *, is_noted: bool) -> str:
    if verdict is Verdict.OVERLAP:
        return bad("✗")
    if is_noted:
        return dim("•")
    return bad("?") if verdict is Verdict.UNKNOWN else good("✓")


def _bars(report: OverlapReport) -> dict[IpNetwork, Bar]:
    """Return a bar for each CIDR that has findings or notes."""
    bars: defaultdict[IpNetwork, Bar] = defaultdict(list)
    for finding in report.findings:
        devs: set[str] = set()
        if finding.kind is FindingKind.OVERLAP:
            devs = {*finding.devs, *finding.behind}
        kind = CellKind(finding.kind, tuple(sorted(devs)))
        bars[finding.cidr].append((kind, finding.ranges))
    for note in report.notes:
        if note.kind in KINDS and note.cidr is not None:
            bars[note.cidr].append((CellKind(note.kind), note.ranges))
    return bars


# --- the fix --------------------------------------------------------------------------------------


def _fix(report: OverlapReport, config: str) -> Page:
    page: Page = [good(clean(line)) for line in unapplied(report.fix, config)]
    page += _entry_lines(report.fix)
    page += _unfixable_lines(report)
    if report.fix.hints:
        page += [dim(f"hint: {clean(said)}") for said in report.fix.hints]
        page.append(dim(SIMILAR))
    return page


def _entry_lines(fix: Fix) -> list[str]:
    """Return the entries to add to the config, a line each."""
    lines: list[str] = []
    for heading, (entries, rest) in pasted_entries(fix):
        lines.append(good(heading))
        lines += [good(f"  {entry},") for entry in entries[:-1]]
        lines.append(good(f"  {entries[-1]}{rest}"))
    return lines


# --- as a monitoring plugin's line ----------------------------------------------------------------

_OK, _WARNING, _CRITICAL, _UNKNOWN = range(4)
_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")

# The notes that raise a warning although nothing fails.
_WARNINGS = (NoteKind.MOVED, NoteKind.START)

# If the line were longer, NRPE and NSCA would cut off the performance data at its end.
_TEXT_CHARACTERS = 400


def nagios(report: OverlapReport, why_open: str | None = None) -> tuple[int, str]:
    """Return the exit code and the line that a monitoring plugin prints for a check's result.

    See the Monitoring Plugins Development Guidelines
    (https://www.monitoring-plugins.org/doc/guidelines.html).

    Args:
        report: the check's report.
        why_open: why the gate admits every start unchecked; None if it checks the starts.

    Returns:
        The exit code, and a line. Codes: 0 OK, 1 failures in WARN mode, a note MOVED or START or an
            open gate, 2 failures in STRICT mode, 3 unknown. The line has the status, the failures
            and, after ``|``, the number of failing CIDRs.
    """
    if not report.cidrs:
        return nagios_unknown("no CIDRs are expected: there is nothing to check")
    if report.verdict is Verdict.UNKNOWN:
        return nagios_unknown(_why_unknown(report))
    is_strict = report.mode is OverlapMode.STRICT
    failing = {finding.cidr for finding in report.findings}
    warnings = [note for note in report.notes if note.kind in _WARNINGS]
    if failing:
        status = _CRITICAL if is_strict else _WARNING
        said = _failures_told(report)
    else:
        status = _WARNING if warnings or why_open else _OK
        others = (note for note in report.decisions if note.kind not in _WARNINGS)
        said = "; ".join((*map(_told, warnings), _all_leave(report), *map(_told, others)))
    if why_open:
        said = f"every start is let through unchecked, because {why_open}; {said}"
    # With a threshold of 0, any other value raises an alert. In STRICT mode, 0 is the critical
    # threshold, and in WARN mode the warning threshold.
    thresholds = ";0" if is_strict else "0;"
    performance = f"failing={len(failing)};{thresholds};0;{len(report.cidrs)}"
    return status, f"{_text(status, said)} | {performance}"


def _failures_told(report: OverlapReport) -> str:
    """Return clauses: how many CIDRs fail, the first failure, and whether starts are held."""
    starts = (note.message for note in report.notes if note.kind is NoteKind.START)
    return "; ".join((f"{_counts(report)}: {report.findings[0].message}", *starts))


def _told(note: Note) -> str:
    """Return a note as a clause of the line."""
    if note.kind is NoteKind.START:
        return note.message
    return f"{note.kind}: {brief(note.message)[0]}"


def _all_leave(report: OverlapReport) -> str:
    total = len(report.cidrs)
    cidrs = "1 expected CIDR leaves" if total == 1 else f"{total} expected CIDRs leave"
    devs = (each.devs or report.default_devs for each in report.expected)
    return f"{cidrs} through {','.join(dict.fromkeys(chain.from_iterable(devs)))}"


def _why_unknown(report: OverlapReport) -> str:
    if not report.families:
        return f"nothing could be judged: {report.reason}"
    said = "; ".join(summary(report).splitlines())
    return f"{_counts(report)}: {said}" if report.findings else said


def nagios_unknown(reason: str) -> tuple[int, str]:
    """Return the exit code and output line for a check without a verdict."""
    return _UNKNOWN, _text(_UNKNOWN, reason)


def _text(status: int, said: str) -> str:
    line = " ".join(clean(said).split()).replace("|", "/")
    cut = line if len(line) <= _TEXT_CHARACTERS else f"{line[: _TEXT_CHARACTERS - 1]}…"
    return f"HOSTROUTING {_WORDS[status]} - {cut}"
