"""A check as a picture: one self-contained SVG document, for a report or a README."""

from __future__ import annotations

import json
import re
import textwrap
from bisect import bisect_right
from typing import TYPE_CHECKING

import attrs

from hostrouting.cli.drawing import draw
from hostrouting.cli.strips import answer_of, runs
from hostrouting.cli.styled import CARD, CSS, PALETTE, escape
from hostrouting.model.text import clean, shortened
from hostrouting.overlap.findings import Verdict
from hostrouting.overlap.wording import summary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.cli.drawing import Drawing, Entry, Row
    from hostrouting.overlap.findings import JudgedCidr, OverlapReport

__all__ = ["overlap_svg"]

# A power of two, so that each cell is a prefix; three pixels are what an eye still finds.
_CELLS, _CELL_PX = 256, 3
_STRIP_PX = _CELLS * _CELL_PX
_MARGIN_PX, _LINE_PX, _BAR_PX = 20, 18, 26
_WIDTH_PX = _STRIP_PX + 2 * _MARGIN_PX
_CHARACTER_PX, _SMALL_CHARACTER_PX = 7.85, 6.7
_LINE_CHARACTERS = int(_STRIP_PX / _CHARACTER_PX)
_LABEL_ROWS = 3
_FIX_ENTRIES, _UNMENDABLE, _SHOWN_RANGES = 32, 32, 16

_MORE_CSS = ".small{font-size:11px}.end{text-anchor:end}.middle{text-anchor:middle}"
# What XML 1.0 has no way to write (section 2.2).
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def overlap_svg(report: OverlapReport) -> str:
    """A check as a picture: a strip for each CIDR that isn't wholly fine, what is wrong there, and what mends it.

    Args:
        report: what was found.

    Returns:
        The document: no scripts, no fonts or pictures from elsewhere.
    """
    canvas = _Canvas()
    canvas.line((f"hostrouting check: {report.verdict}", "head"))
    canvas.note_at_end(f"{report.mode} · {report.time}")
    if report.verdict is Verdict.UNKNOWN:
        canvas.paragraph(summary(report), "bad")
    elif not report.cidrs:
        canvas.paragraph("no CIDRs are expected: nothing to check", "dim")
    else:
        _draw_report(canvas, report)
    said = " ".join(str(cidr) for cidr in report.cidrs)
    title = f"hostrouting check: {report.verdict}"
    return canvas.document(title=title, description=f"{summary(report)}\nChecked: {said or 'nothing'}")


def _draw_report(canvas: _Canvas, report: OverlapReport) -> None:
    drawing = draw(report, _CELLS)
    expected = ",".join(report.default_devs)
    canvas.paragraph(f"expected interface: {expected}", "dim")
    _draw_legend(canvas, list(dict.fromkeys(drawing.legend.values())))
    label = max((len(str(row.cidr)) for row in drawing.rows if row.is_fine), default=0)
    for row in drawing.rows:
        if row.is_fine:
            canvas.line(("✓ ", "good"), (f"{row.cidr!s:{label}}", ""), (f"  by {expected}", "dim"))
        else:
            _draw_row(canvas, row, drawing)
    if drawing.failing_left_out:
        canvas.line(("✗ ", "bad"), (f"and {drawing.failing_left_out} more", ""))
    if drawing.fine_left_out:
        canvas.line(("✓ ", "good"), (f"{f'and {drawing.fine_left_out} more':{label}}", ""), (f"  by {expected}", "dim"))
    general = [note for note in report.notes if note.cidr is None]
    canvas.space(8 if general else 0)
    for note in general:
        canvas.paragraph(f"note: {note.message}", "dim")
    _draw_remedy(canvas, report)


def _draw_legend(canvas: _Canvas, entries: list[Entry]) -> None:
    if not entries:
        return
    canvas.space(4)
    x = 0.0
    for entry in entries:
        words = " ".join(filter(None, (entry.name, entry.meaning)))
        width = 24 + (len(words) + 3) * _CHARACTER_PX
        if x and x + width > _STRIP_PX:
            canvas.space(_LINE_PX + 4)
            x = 0.0
        paint = PALETTE[entry.role]
        canvas.rect(x, 2, 18, 16, paint.fill, rounding=3)
        canvas.text(x + 9, 14, entry.symbol, "small middle", ink=paint.ink)
        canvas.text(x + 25, 15, words)
        x += width
    canvas.space(_LINE_PX + 4)


def _draw_row(canvas: _Canvas, row: Row, drawing: Drawing) -> None:
    canvas.space(8)
    canvas.line(("✗ ", "bad") if row.findings else ("• ", "dim"), (str(row.cidr), "head"))
    if row.strip is not None:
        canvas.note_at_end(f"{row.cidr.network_address} - {row.cidr.broadcast_address}")
        _draw_strip(canvas, row, drawing)
        _draw_labels(canvas, row, row.strip)
    for finding in row.findings:
        what, _, by = finding.message.partition("; by ")
        canvas.paragraph(what, "bad")
        if by:
            canvas.paragraph(f"  by {by}", "dim")
    for note in row.notes:
        canvas.paragraph(f"{note.kind}: {note.message}", "dim")
    canvas.space(8)


def _draw_strip(canvas: _Canvas, row: Row, drawing: Drawing) -> None:
    canvas.space(2)
    for first, length, answer in runs(row.cells):
        entry = drawing.legend[answer]
        paint = PALETTE[entry.role]
        x, width = first * _CELL_PX, length * _CELL_PX
        canvas.rect(x, 0, width, _BAR_PX, paint.fill)
        if width >= 2 * _SMALL_CHARACTER_PX and not (answer and answer.is_fine):
            canvas.text(x + width / 2, _BAR_PX / 2 + 4, entry.symbol, "small middle", ink=paint.ink)
    canvas.space(_BAR_PX + 4)


@attrs.frozen
class _Label:
    row: int
    tick: float
    begin: float
    end: float

    def is_clear_of(self, other: _Label) -> bool:
        if self.row == other.row:
            return self.begin > other.end or other.begin > self.end
        upper, lower = (self, other) if self.row < other.row else (other, self)
        return not upper.begin <= lower.tick <= upper.end


def _draw_labels(canvas: _Canvas, row: Row, strip: JudgedCidr) -> None:
    """The addresses below the failing parts; where there is no room for all, the messages say the rest."""
    placed: list[_Label] = []
    # From the right: a label stands to the right of its tick, so that the ticks of those below pass it on the left.
    for tick, text in reversed(list(_labels(row, strip))):
        width = (len(text) + 2) * _SMALL_CHARACTER_PX
        begin = tick if tick + width <= _STRIP_PX else tick - width
        labels = (_Label(number, tick, begin, begin + width) for number in range(_LABEL_ROWS))
        label = next((label for label in labels if all(map(label.is_clear_of, placed))), None)
        if label is None:
            continue
        placed.append(label)
        canvas.rect(tick - 0.5, -4, 1, 17 + label.row * 14, PALETTE["broadcast"].fill)
        canvas.text(label.begin + _SMALL_CHARACTER_PX, 12 + label.row * 14, text, "small")
    canvas.space(max((label.row + 1 for label in placed), default=0) * 14 + 4)


def _labels(row: Row, strip: JudgedCidr) -> Iterator[tuple[float, str]]:
    base, size = int(strip.cidr.network_address), strip.cidr.num_addresses
    begins = [int(segment.first) for segment in strip.segments]
    for first, length, answer in runs(row.cells):
        if answer is None or not answer.is_failure or length == len(row.cells):
            continue
        begin, end = base + first * size // _CELLS, base + ((first + length) * size - 1) // _CELLS
        inside = strip.segments[max(0, bisect_right(begins, begin) - 1) : bisect_right(begins, end)]
        failing = [segment for segment in inside if answer_of(segment) == answer]
        low, high = failing[0].first, failing[-1].last
        yield (first + length / 2) * _CELL_PX, str(low) if low == high else f"{low} - {high}"


def _draw_remedy(canvas: _Canvas, report: OverlapReport) -> None:
    entries = [json.dumps(route.to_mapping()) for route in report.remedy.routes]
    if entries:
        _draw_entries(canvas, entries)
    canvas.space(8)
    for left in report.remedy.unmendable[:_UNMENDABLE]:
        ranges = shortened(list(map(str, left.ranges)), " ", _SHOWN_RANGES)
        canvas.paragraph(f"not mended by a route: {ranges}: {left.reason}", "bad")
    more = len(report.remedy.unmendable) - _UNMENDABLE
    if more > 0:
        canvas.paragraph(f"and {more} more that no route mends: hostrouting fix says why", "bad")
    for consequence in report.remedy.consequences:
        canvas.paragraph(f"mind: {consequence}", "dim")


def _draw_entries(canvas: _Canvas, entries: list[str]) -> None:
    canvas.space(10)
    canvas.line(("What mends it, as staticRoutes", "head"))
    canvas.space(4)
    pasted = [*(f"{entry}," for entry in entries[:-1]), entries[-1]][:_FIX_ENTRIES]
    lines = [line for entry in pasted for line in _wrapped(entry, _LINE_CHARACTERS - 2)]
    canvas.rect(0, 0, _STRIP_PX, len(lines) * _LINE_PX + 12, "#142235", rounding=6)
    canvas.space(6)
    for line in lines:
        canvas.line((f" {line}", "good"))
    canvas.space(6)
    if len(entries) > _FIX_ENTRIES:
        canvas.space(4)
        canvas.paragraph(f"and {len(entries) - _FIX_ENTRIES} more: hostrouting fix prints them all", "dim")


def _wrapped(text: str, characters: int) -> list[str]:
    return textwrap.wrap(text, characters, subsequent_indent="  ", break_on_hyphens=False)


class _Canvas:
    """Shapes from top to bottom; each is placed relative to the left margin and to where the last line ended."""

    def __init__(self) -> None:
        self._top = float(_MARGIN_PX)
        self._shapes: list[str] = []

    def space(self, height: float) -> None:
        self._top += height

    def rect(self, x: float, y: float, width: float, height: float, fill: str, *, rounding: int = 0) -> None:
        corners = f' rx="{rounding}"' if rounding else ""
        self._shapes.append(
            f'<rect x="{_MARGIN_PX + x:g}" y="{self._top + y:g}" width="{width:g}" height="{height:g}"{corners} '
            f'fill="{fill}"/>'
        )

    def text(self, x: float, y: float, text: str, classes: str = "", *, ink: str | None = None) -> None:
        colour = "" if ink is None else f' style="fill:{ink}"'
        attributes = f' class="{classes}"' if classes else ""
        place = f'x="{_MARGIN_PX + x:g}" y="{self._top + y:g}"'
        self._shapes.append(f"<text {place}{attributes}{colour}>{_escaped(text)}</text>")

    def line(self, *spans: tuple[str, str]) -> None:
        inner = "".join(f'<tspan class="{role}">{_escaped(text)}</tspan>' for text, role in spans)
        self._shapes.append(f'<text x="{_MARGIN_PX}" y="{self._top + _LINE_PX - 5:g}">{inner}</text>')
        self._top += _LINE_PX

    def note_at_end(self, text: str) -> None:
        """At the right end of the last line."""
        self.text(_STRIP_PX, -5, text, "small end dim")

    def paragraph(self, text: str, role: str) -> None:
        for line in _wrapped(text, _LINE_CHARACTERS):
            self.line((line, role))

    def document(self, *, title: str, description: str) -> str:
        height = round(self._top + _MARGIN_PX)
        shapes = "\n".join(self._shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH_PX} {height}" width="{_WIDTH_PX}" '
            f'height="{height}" xml:space="preserve" role="img">\n'
            f"<title>{_escaped(title)}</title>\n<desc>{_escaped(description)}</desc>\n"
            f"<style>{CSS}{_MORE_CSS}</style>\n"
            f'<rect x="0.5" y="0.5" width="{_WIDTH_PX - 1}" height="{height - 1}" rx="8" fill="{CARD}" '
            f'stroke="#2a3a4f"/>\n{shapes}\n</svg>\n'
        )


def _escaped(text: str) -> str:
    """Text as XML in ASCII, which stays what it is in whatever encoding it is written."""
    return escape(_NOT_XML.sub("?", clean(text))).encode("ascii", "xmlcharrefreplace").decode()
