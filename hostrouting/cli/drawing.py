"""Pure: a check as rows and a legend, which the text and the picture have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.cli.strips import Answer, cells
from hostrouting.overlap.findings import FindingKind, NoteKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from ipaddress import IPv4Network

    from hostrouting.overlap.findings import Finding, JudgedCidr, Note, OverlapReport

__all__ = ["FINE_ROWS", "Drawing", "Entry", "Row", "draw", "legend"]

# A thousand CIDRs as they should be are no news.
FINE_ROWS = 8
# Nobody reads more than these; programs have the JSON.
FAILING_ROWS = 32

# An H200 has eight InfiniBand interfaces; beyond those only the symbols differ.
SHADOW_ROLES = tuple(f"shadow-{number}" for number in range(8))
ALLOWED_ROLES = tuple(f"allowed-{number}" for number in range(3))
_SHADOW_SYMBOLS = "ABCDEFGHIJKLMPQRSTUVW"  # N and X mean something
_ALLOWED_SYMBOLS = "123456789"
_NAMES = 4


@attrs.frozen
class Entry:
    """How an answer is drawn.

    Args:
        symbol: one character, for what has no colours.
        role: of ``styled.PALETTE``.
        name: of the interface; "" where none is the point.
        meaning: in a word or two.
    """

    symbol: str
    role: str
    name: str
    meaning: str


_FIXED: dict[str | None, Entry] = {
    FindingKind.NO_ROUTE: Entry("N", "no-route", "", "no route"),
    FindingKind.BLACKHOLE: Entry("X", "discarded", "", "discarded"),
    NoteKind.LOCAL: Entry("o", "own", "", "own address"),
    NoteKind.BROADCAST: Entry("b", "broadcast", "", "broadcast address"),
    NoteKind.CONTAINER: Entry("c", "container", "", "containers"),
    NoteKind.CNI_DISCARD: Entry("d", "cni-discard", "", "discarded by a CNI"),
}
_NOT_JUDGED = Entry("_", "not-judged", "", "not judged")
_MORE_SHADOWS = Entry("*", SHADOW_ROLES[-1], "", "other shadows")
_MORE_ALLOWED = Entry("+", ALLOWED_ROLES[-1], "", "other notes")


@attrs.frozen
class Row:
    """An expected CIDR with all that is to be said about it.

    Args:
        cidr: masked.
        strip: None where the CIDR has none, or where it would show nothing.
        cells: of the strip.
        findings: its failures.
        notes: its notes.
    """

    cidr: IPv4Network
    strip: JudgedCidr | None
    cells: tuple[Answer | None, ...]
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]

    @property
    def is_fine(self) -> bool:
        """Whether a check mark says it all."""
        return not self.findings and not self.notes and self.strip is None


@attrs.frozen
class Drawing:
    """A check, ready to be drawn.

    Args:
        rows: in the order of the config.
        fine_left_out: how many CIDRs more there are that are as they should be.
        failing_left_out: and how many that aren't, or of which something is noted.
        legend: how each answer is drawn; exactly those of the cells.
    """

    rows: tuple[Row, ...]
    fine_left_out: int
    failing_left_out: int
    legend: Mapping[Answer | None, Entry]


def draw(report: OverlapReport, width: int) -> Drawing:
    """Lay out a check.

    Args:
        report: what was found.
        width: the number of cells of a strip.

    Returns:
        A row for each CIDR that isn't wholly fine and for the first few that are, and the legend.
    """
    strips = {strip.cidr: strip for strip in report.judged if not strip.is_fine}
    findings: dict[IPv4Network, list[Finding]] = {}
    for finding in report.findings:
        findings.setdefault(finding.cidr, []).append(finding)
    notes: dict[IPv4Network, list[Note]] = {}
    for note in report.notes:
        if note.cidr is not None:
            notes.setdefault(note.cidr, []).append(note)
    rows: list[Row] = []
    fine = failing = 0
    for cidr in dict.fromkeys(report.cidrs):
        strip = strips.get(cidr)
        drawn = cells(strip, width) if strip is not None else ()
        row = Row(cidr, strip, drawn, tuple(findings.get(cidr, ())), tuple(notes.get(cidr, ())))
        fine += row.is_fine
        failing += not row.is_fine
        if fine <= FINE_ROWS if row.is_fine else failing <= FAILING_ROWS:
            rows.append(row)
    drawn_answers = dict.fromkeys(answer for row in rows for answer in row.cells)
    left_out = max(0, fine - FINE_ROWS), max(0, failing - FAILING_ROWS)
    return Drawing(tuple(rows), *left_out, legend(drawn_answers, report.default_devs))


def legend(drawn: Iterable[Answer | None], default_devs: tuple[str, ...]) -> dict[Answer | None, Entry]:
    """Give each answer a symbol and a colour of its own, as long as there are any.

    Args:
        drawn: the answers in the order in which they appear.
        default_devs: the expected interfaces.

    Returns:
        For each of them how it is drawn: what is expected first, then failures, notes and what isn't judged.
    """
    answers = list(dict.fromkeys(drawn))
    entries: dict[Answer | None, Entry] = {
        answer: Entry("·", "expected", _names(default_devs), "expected")
        for answer in answers
        if answer is not None and answer.is_fine
    }
    failures = [answer for answer in answers if answer is not None and answer.is_failure]
    entries.update(_entries(failures, _SHADOW_SYMBOLS, SHADOW_ROLES, _MORE_SHADOWS))
    noted = [answer for answer in answers if answer is not None and not answer.is_fine and not answer.is_failure]
    entries.update(_entries(noted, _ALLOWED_SYMBOLS, ALLOWED_ROLES, _MORE_ALLOWED))
    if None in answers:
        entries[None] = _NOT_JUDGED
    return entries


_MEANINGS: dict[str, str] = {FindingKind.OVERLAP: "shadow", NoteKind.ALLOWED: "allowed"}


def _entries(
    answers: list[Answer], symbols: str, roles: tuple[str, ...], more: Entry
) -> Iterator[tuple[Answer, Entry]]:
    named = [answer for answer in answers if answer.kind not in _FIXED]
    for number, answer in enumerate(named):
        kind = answer.kind or ""
        meaning = _MEANINGS.get(kind, kind.lower())
        role = roles[number % len(roles)]
        entry = Entry(symbols[number], role, _names(answer.devs), meaning) if number < len(symbols) else more
        yield answer, entry
    yield from ((answer, _FIXED[answer.kind]) for answer in answers if answer.kind in _FIXED)


def _names(devs: tuple[str, ...]) -> str:
    shown = ",".join(devs[:_NAMES])
    return shown if len(devs) <= _NAMES else f"{shown} and {len(devs) - _NAMES} more"
