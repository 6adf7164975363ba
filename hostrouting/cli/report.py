"""Checks told: as pages for people, each CIDR a strip of coloured cells, and as a monitoring plugin's line."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network
from itertools import cycle, groupby
from typing import NamedTuple

from hostrouting.cli.output import Page, Row, bad, dim, good, head
from hostrouting.cli.running import page_text
from hostrouting.config.overlap import OverlapMode
from hostrouting.model.parsing import RESERVED
from hostrouting.model.text import clean
from hostrouting.overlap.findings import FindingKind, NoteKind, OverlapReport, Verdict
from hostrouting.overlap.wording import PASTE, pasted_entries, reasons, summary

# Nobody reads more than these, and a thousand CIDRs as they should be are no news; programs have the JSON.
_ROWS, _NOTES = 16, 32
_STRIP_CELLS = 64
_PICTURE_LINES = 4


def remedy_lines(report: OverlapReport) -> list[str]:
    """What a proposal is worth, a line each: what it leaves and why, and what else changes sides with it."""
    if report.verdict is Verdict.UNKNOWN:
        return [bad(clean(summary(report)))]
    lines = [bad(clean(reason)) for reason in reasons(report)]
    lines += [f"mind: {clean(line)}" for line in report.remedy.consequences]
    return lines or [good("nothing fails: there is nothing to mend")] if not report.remedy.routes else lines


def overlap_text(report: OverlapReport, *, width: int | None = None) -> str:
    """A check for people: the verdict in a line, strips that show where, what fails, what mends it, and last the notes.

    Args:
        report: what was found.
        width: how many columns there are; None: it isn't for a terminal.

    Returns:
        Lines with colours.
    """
    return page_text([*_page(report, width, 1), *_notes(report)], width)


def overlap_picture(report: OverlapReport, *, tells_notes: bool = True) -> str:
    """The same as a picture, for a report or a README: an SVG document, where strips of several lines show more.

    Args:
        report: what was found.
        tells_notes: whether the notes are told as well as drawn.
    """
    from hostrouting.cli.drawn import PICTURE_COLUMNS, picture

    title = f"hostrouting check: {report.verdict} · {clean(report.host)} · {report.mode} · {report.time}"
    page = _page(report, PICTURE_COLUMNS, _PICTURE_LINES)
    return picture([*page, *_notes(report)] if tells_notes else page, title)


def verdict_line(report: OverlapReport) -> str:
    """The result in a line: the verdict, the host, how many of the expected CIDRs fail, and the mode."""
    total, failing = len(set(report.cidrs)), len({finding.cidr for finding in report.findings})
    if not total:
        said = "no CIDRs are expected"
    elif report.verdict is Verdict.UNKNOWN:
        said = f"none of {total} expected CIDRs could be judged"
    else:
        said = f"{failing} of {total} expected CIDRs {'fails' if failing == 1 else 'fail'}"
    return f"{report.verdict} on {clean(report.host)}: {said}; mode {report.mode}"


def _page(report: OverlapReport, width: int | None, strip_lines: int) -> Page:
    page: Page = [(good if report.verdict is Verdict.OK else bad)(verdict_line(report))]
    if report.verdict is Verdict.UNKNOWN:
        return [*page, clean(summary(report))]
    if not report.cidrs:
        return [*page, "there is nothing to check: name CIDRs with --cidr or as routeOverlap.expectedCidrs"]
    default = clean(",".join(report.default_devs))
    findings: defaultdict[IPv4Network, list[str]] = defaultdict(list)
    for finding in report.findings:
        findings[finding.cidr].append(bad(clean(finding.failure)))
        if finding.cause:
            findings[finding.cidr].append(dim(clean(finding.cause)))
    strips = _strips(report)
    noted = {*strips, *(note.cidr for note in report.notes)}
    shown = sorted(dict.fromkeys(report.cidrs), key=lambda cidr: (cidr not in findings, cidr not in noted))[:_ROWS]
    count = _cells_in(width, max(len(str(cidr)) for cidr in report.cidrs))
    drawn = {cidr: _drawn(cidr, strips[cidr], count, strip_lines) for cidr in shown if cidr in strips}
    paints = legend((answer for lines in drawn.values() for line in lines for answer in line), report.default_devs)
    page.append(head(f"expected interface: {default}"))
    page += [f"  {paint.on(f' {paint.symbol} ')} {clean(paint.meaning)}" for paint in dict.fromkeys(paints.values())]
    for cidr in shown:
        mark = bad("✗") if cidr in findings else dim("•") if cidr in noted else good("✓")
        rows = _rows(mark, cidr, drawn.get(cidr, []), paints)
        rows[-1].said.extend(findings.get(cidr) or ([] if cidr in drawn else [f"by {default}"]))
        page += rows
    if (more := len(set(report.cidrs)) - _ROWS) > 0:
        page.append(f"and {more} more; --output json has them all")
    entries, rest = pasted_entries(report)
    if entries:
        page += [good(PASTE), *(good(f"  {entry},") for entry in entries[:-1]), good(f"  {entries[-1]}{rest}")]
    page += [bad(clean(said)) for said in reasons(report)]
    return [*page, *(dim(f"mind: {clean(said)}") for said in report.remedy.consequences)]


def _notes(report: OverlapReport) -> Page:
    page: Page = [dim(f"note: {note.kind}: {clean(note.message)}") for note in report.notes[:_NOTES]]
    if (more := len(report.notes) - _NOTES) > 0:
        page.append(dim(f"note: and {more} more; --output json has them all"))
    return page


def _strips(report: OverlapReport) -> dict[IPv4Network, Strip]:
    """What is drawn of each CIDR that isn't fine."""
    strips: defaultdict[IPv4Network, Strip] = defaultdict(list)
    for finding in report.findings:
        devs = {*finding.devs, *finding.behind} if finding.kind is FindingKind.OVERLAP else ()
        strips[finding.cidr].append((Answer(finding.kind, tuple(sorted(devs))), finding.ranges))
    for note in report.notes:
        if note.kind in KINDS and note.cidr is not None:
            strips[note.cidr].append((Answer(note.kind), note.ranges))
    return strips


def _drawn(cidr: IPv4Network, strip: Strip, count: int, lines: int) -> list[tuple[Answer | None, ...]]:
    """The lines of a strip."""
    line = cells(cidr, strip, count * lines if cidr.num_addresses > count else count)
    return [line[first : first + count] for first in range(0, len(line), count)]


def _rows(
    mark: str, cidr: IPv4Network, drawn: list[tuple[Answer | None, ...]], paints: dict[Answer | None, Paint]
) -> list[Row]:
    """A row for each line of a strip, or one without; the second and those after it begin with their first address."""
    if not drawn:
        return [Row(mark, str(cidr), [])]
    step = cidr.num_addresses // len(drawn)
    rows = [
        Row(" ", str(cidr.network_address + number * step), [_strip_text(line, paints)])
        for number, line in enumerate(drawn)
    ]
    return [rows[0]._replace(mark=mark, label=str(cidr)), *rows[1:]]


def _strip_text(line: Iterable[Answer | None], paints: dict[Answer | None, Paint]) -> str:
    parts = ((paints[answer], len(list(same))) for answer, same in groupby(line))
    return "".join(paint.on(paint.symbol * length) for paint, length in parts)


def _cells_in(columns: int | None, label: int) -> int:
    """A power of two, so that each cell is a prefix."""
    count = _STRIP_CELLS
    while columns is not None and columns - label - len("✗   ") < count > 8:
        count //= 2
    return count


# --- strips and their legend -----------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What becomes of packets, as far as a strip tells it apart.

    Args:
        kind: of the finding or note; None: they leave by the default route's interfaces.
        devs: what shadows, sorted, and what would do so next. One veth for each pod, or an own address on each
            interface, is no news.
    """

    kind: str | None = None
    devs: tuple[str, ...] = ()


# The answers that aren't as expected, each with where.
Strip = list[tuple[Answer, tuple[IPv4Network, ...]]]


def cells(cidr: IPv4Network, strip: Strip, count: int) -> tuple[Answer | None, ...]:
    """Draw a CIDR into cells that are equal parts of it.

    Where a cell has several answers, the worst is drawn: a failure before a note before what is fine, and among those
    the rarest in the strip. So a single failing address in a /12 is seen. A power of two makes each cell a prefix.

    Args:
        cidr: what to draw.
        strip: its answers.
        count: how many cells; a CIDR of fewer addresses has several cells for each.

    Returns:
        The answer of each cell; None where none of its addresses is judged.
    """

    def rank(part: tuple[Answer, tuple[IPv4Network, ...]]) -> tuple[bool, int]:
        answer, ranges = part
        return not isinstance(answer.kind, FindingKind), sum(network.num_addresses for network in ranges)

    judged = [cidr]
    for block in filter(cidr.supernet_of, RESERVED):
        judged = [
            part for each in judged for part in (each.address_exclude(block) if block.subnet_of(each) else [each])
        ]
    base, size = int(cidr.network_address), cidr.num_addresses
    drawn: list[Answer | None] = [None] * count
    for answer, ranges in reversed((*sorted(strip, key=rank), (Answer(), judged))):
        for network in ranges:
            begin = (int(network.network_address) - base) * count // size
            end = ((int(network.broadcast_address) - base + 1) * count - 1) // size + 1
            drawn[begin:end] = [answer] * (end - begin)
    return tuple(drawn)


class Paint(NamedTuple):
    """How an answer is drawn.

    Args:
        symbol: one character, for what has no colours.
        back: the colour of the cell, of a terminal's 256.
        meaning: in a few words.
        ink: the colour of the symbol.
    """

    symbol: str
    back: int
    meaning: str
    ink: int = 16

    def on(self, text: str) -> str:
        """Symbols as cells: solid, with one to be seen in the middle; who copies them gets all."""
        middle = len(text) // 2
        parts = ((self.back, text[:middle]), (self.ink, text[middle]), (self.back, text[middle + 1 :]))
        return "".join(f"\x1b[48;5;{self.back};38;5;{ink}m{part}\x1b[0m" for ink, part in parts if part)


# What is expected is calm, failures are warm, notes cool or grey. Neighbours differ in lightness, not in hue alone,
# and each has a symbol besides: nobody has to tell red from green.
KINDS: dict[str | None, Paint] = {
    FindingKind.NO_ROUTE: Paint("N", 198, "no route"),
    FindingKind.BLACKHOLE: Paint("X", 196, "discarded"),
    NoteKind.LOCAL: Paint("o", 250, "own address"),
    NoteKind.BROADCAST: Paint("b", 244, "broadcast address"),
    NoteKind.CONTAINER: Paint("c", 140, "containers"),
    NoteKind.ALLOWED: Paint("+", 80, "allowed"),
    NoteKind.CNI_DISCARD: Paint("d", 189, "discarded by a CNI"),
}
# An H200 has eight InfiniBand interfaces; beyond those only the symbols differ, and beyond 21 only the words. N and X
# mean something.
_SYMBOLS, _BACKS = "ABCDEFGHIJKLMPQRSTUVW", (208, 220, 211, 137, 223, 169, 229, 173)
_NAMES = 4


def legend(drawn: Iterable[Answer | None], default_devs: Sequence[str]) -> dict[Answer | None, Paint]:
    """Give each answer a symbol and a colour of its own, as long as there are any.

    Args:
        drawn: the answers in the order in which they appear.
        default_devs: the expected interfaces.

    Returns:
        For each of them how it is drawn: what is expected first, then failures, notes and what isn't judged.
    """
    answers = dict.fromkeys(drawn)
    paints: dict[Answer | None, Paint] = {}
    if Answer() in answers:
        paints[Answer()] = Paint("·", 24, f"{dev_words(default_devs)} expected", ink=67)
    shadows = [each for each in answers if each and each.kind is FindingKind.OVERLAP]
    for each, symbol, back in zip(shadows, cycle(_SYMBOLS), cycle(_BACKS)):
        paints[each] = Paint(symbol, back, f"{dev_words(each.devs)} shadow".lstrip())
    paints |= {Answer(kind): paint for kind, paint in KINDS.items() if Answer(kind) in answers}
    if None in answers:
        paints[None] = Paint("_", 236, "not judged", ink=240)
    return paints


def dev_words(devs: Sequence[str]) -> str:
    """Some interfaces in a few words: ``ib0-ib7``."""
    runs = _runs(devs)
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(run) for run in runs[:_NAMES]]
    rest = sum(map(len, runs[_NAMES:]))
    return f"{','.join(shown)}{f' and {rest} more' if rest else ''}"


_NUMBERED = r"(?s)(.*\D)(0|[1-9][0-9]{0,8})"


def _runs(devs: Iterable[str]) -> list[list[str]]:
    """Interfaces, those that are numbered one after the other together."""
    parts = [
        (match[1], int(match[2]), dev) if (match := re.fullmatch(_NUMBERED, dev)) else (dev, -1, dev) for dev in devs
    ]
    runs: dict[tuple[str, int], list[str]] = {}
    for position, (stem, number, dev) in enumerate(sorted(parts)):
        runs.setdefault((stem, number - position), []).append(dev)
    return list(runs.values())


# --- for a monitoring daemon -----------------------------------------------------------------------------------------

_OK, _WARNING, _CRITICAL, _UNKNOWN = range(4)
_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")

# Daemons in between (NRPE, NSCA) cut what is longer, and the performance data stands at the end.
_TEXT_CHARACTERS = 400


def nagios(report: OverlapReport) -> tuple[int, str]:
    """A check for a monitoring daemon: one line with performance data, and an exit code.

    Source: the Monitoring Plugins' development guidelines (https://www.monitoring-plugins.org/doc/guidelines.html).

    Args:
        report: what was found.

    Returns:
        The exit code (0 ok, 1 failures in WARN, 2 failures in STRICT, 3 nothing could be judged), and a line: status,
        what fails, and behind ``|`` how many CIDRs fail of how many.
    """
    if not report.cidrs:
        return nagios_unknown("no CIDRs are expected: there is nothing to check")
    if report.verdict is Verdict.UNKNOWN:
        return nagios_unknown(f"nothing could be judged: {report.reason}")
    is_strict = report.mode is OverlapMode.STRICT
    cidrs, failing = set(report.cidrs), {finding.cidr for finding in report.findings}
    status, said = _OK, f"{len(cidrs)} expected CIDRs leave by {','.join(report.default_devs)}"
    if failing:
        status = _CRITICAL if is_strict else _WARNING
        said = f"{len(failing)} of {len(cidrs)} expected CIDRs fail: {report.findings[0].message}"
    # A range of 0: anything else alerts. Only the threshold that can be reached is named.
    thresholds = ";0" if is_strict else "0;"
    return status, f"{_text(status, said)} | failing={len(failing)};{thresholds};0;{len(cidrs)}"


def nagios_unknown(reason: str) -> tuple[int, str]:
    """The same of a check that couldn't be made."""
    return _UNKNOWN, _text(_UNKNOWN, reason)


def _text(status: int, said: str) -> str:
    line = " ".join(clean(said).split()).replace("|", "/")
    cut = line if len(line) <= _TEXT_CHARACTERS else f"{line[: _TEXT_CHARACTERS - 1]}…"
    return f"HOSTROUTING {_WORDS[status]} - {cut}"
