"""Bars show every failure and omit what is fine."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios
from contextlib import redirect_stdout
from ipaddress import IPv4Network
from itertools import groupby
from typing import TYPE_CHECKING

import pytest
from drawn import bar, of_terminal, report, segment

from hostrouting.cli.bars import CellKind, Paint, cells, legend
from hostrouting.cli.output import columns, say
from hostrouting.cli.report import overlap_text
from hostrouting.overlap.findings import FindingKind, NoteKind
from hostrouting.report import Note

if TYPE_CHECKING:
    from collections.abc import Iterable

OWN = [segment(f"172.16.0.{10 + n}", f"172.16.0.{10 + n}", NoteKind.LOCAL) for n in range(8)]
H200 = bar(
    "172.16.0.0/12",
    segment("172.16.0.0", "172.16.0.9", FindingKind.OVERLAP, "ib0"),
    *OWN,
    segment("172.16.0.18", "172.16.255.255", FindingKind.OVERLAP, "ib0"),
    segment("172.17.0.0", "172.17.255.255", FindingKind.OVERLAP, "docker0"),
    segment("172.20.0.0", "172.20.255.255", NoteKind.CONTAINER),
    segment("172.24.7.9", "172.24.7.9", FindingKind.BLACKHOLE),
)


def printed(text: str, encoding: str = "utf-8") -> list[str]:
    raw = io.BytesIO()
    with redirect_stdout(io.TextIOWrapper(raw, encoding)) as stream:
        say(text)
        stream.flush()
    return raw.getvalue().decode(encoding).splitlines()


def runs(drawn: Iterable[CellKind | None]) -> list[tuple[int, CellKind | None]]:
    return [(len(list(same)), answer) for answer, same in groupby(drawn)]


def test_a_bar_is_readable_without_colours() -> None:
    assert printed(overlap_text(report(H200, bar("10.96.0.0/12")))) == [
        "overlap on node-7: 1 of 2 expected CIDRs fails; mode STRICT",
        "expected interface: eth0",
        "   ·  eth0 expected",
        "   A  ib0 shadow",
        "   B  docker0 shadow",
        "   X  discarded",
        "   c  containers",
        "✗ 172.16.0.0/12  AAAABBBB········cccc············X·······························",
        "                 OVERLAP: expected CIDR 172.16.0.0/12 (probe 172.16.0.0) routes via ib0, expected eth0",
        "                 by a policy rule",
        "                 OVERLAP: expected CIDR 172.16.0.0/12 (probe 172.17.0.0) routes via docker0, expected eth0",
        "                 by a policy rule",
        f"{'':17}BLACKHOLE: expected CIDR 172.16.0.0/12 (probe 172.24.7.9) is discarded by blackhole; expected via eth0",
        "                 by a policy rule",
        "✓ 10.96.0.0/12   by eth0",
        "note: LOCAL: some of 172.16.0.0/12",
        "note: CONTAINER: some of 172.16.0.0/12",
    ]


def test_an_ascii_terminal_gets_bars_of_the_same_width() -> None:
    noted = bar("10.1.0.0/24", segment("10.1.0.4", "10.1.0.4", NoteKind.LOCAL))
    pair = report(H200, noted, bar("10.96.0.0/12"))
    lines = printed(overlap_text(pair), "ascii")
    assert "!! 172.16.0.0/12  AAAABBBB--------cccc------------X-------------------------------" in lines
    assert f"-- 10.1.0.0/24    -o{'-' * 62}" in lines
    assert "ok 10.96.0.0/12   by eth0" in lines
    drawn = overlap_text(pair, width=200)
    assert " ".join(printed(overlap_text(pair))).split() == " ".join(printed(drawn)).split()
    for colour in ("\x1b[31m✗", "\x1b[32m✓", f"\x1b[38;5;16;48;5;{PAINTS['ib0 shadow'].back}m"):
        assert colour in drawn


@pytest.mark.parametrize(("width", "count"), [(None, 64), (200, 64), (81, 64), (80, 32), (40, 16), (1, 8)])
def test_each_cell_is_a_prefix_and_fits_the_terminal(width: int | None, count: int) -> None:
    row = next(line for line in printed(overlap_text(report(H200), width=width)) if line.startswith("✗"))
    assert len(row) == len("✗ 172.16.0.0/12  ") + count


def test_only_a_terminal_has_columns() -> None:
    assert columns(None) is columns(io.StringIO()) is None
    controller, terminal = pty.openpty()
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 132, 0, 0))
        with os.fdopen(os.dup(terminal), "w") as stream:
            assert columns(stream) == 132
    finally:
        os.close(controller)
        os.close(terminal)


def test_a_thousand_healthy_cidrs_are_few_lines() -> None:
    fine = [bar(f"10.{n // 250}.{n % 250}.0/24") for n in range(1000)]
    lines = printed(overlap_text(report(H200, *fine)))
    assert "and 985 more; --output json has them all" in lines
    assert len(lines) < 40


def test_unjudged_addresses_are_blank() -> None:
    assert runs(cells(IPv4Network("112.0.0.0/4"), [], 16)) == [(15, CellKind()), (1, None)]


def test_a_small_cidr_has_cells_of_one_size() -> None:
    pair = bar("10.1.0.4/31", segment("10.1.0.4", "10.1.0.4", NoteKind.LOCAL))
    assert [length for length, _ in runs(cells(*pair, 64))] == [32, 32]


def test_local_addresses_and_containers_have_one_colour_each() -> None:
    notes = [Note(NoteKind.LOCAL, "own", H200.cidr, (f"ib{n}",), (IPv4Network(f"172.16.0.{n}"),)) for n in range(64)]
    lines = printed(overlap_text(report(bar(str(H200.cidr)), notes=notes)))
    assert lines[2:4] == ["   ·  eth0 expected", "   o  own address"]


OF_SEGMENTS = (NoteKind.LOCAL, NoteKind.BROADCAST, NoteKind.CONTAINER, NoteKind.ALLOWED, NoteKind.CNI_DISCARD)
ANSWERS = [
    CellKind(),
    None,
    *(CellKind(kind) for kind in FindingKind if kind is not FindingKind.OVERLAP),
    *(CellKind(kind) for kind in OF_SEGMENTS),
    *(CellKind(FindingKind.OVERLAP, (f"ib{n}",)) for n in range(21)),
]
PAINTS = {paint.meaning: paint for paint in legend(ANSWERS, ("eth0",)).values()}


def test_every_symbol_has_one_meaning() -> None:
    assert len({paint.symbol for paint in PAINTS.values()}) == len(PAINTS)


@pytest.mark.parametrize(
    ("devs", "meaning"),
    [
        ([f"ib{n}" for n in range(12)], "ib0-ib11 shadow"),
        (["ib0", "ib1", "ib3"], "ib0,ib1,ib3 shadow"),
        (["ib07", "ib8", "ib9", "ib10", "wg"], "ib8-ib10,ib07,wg shadow"),
        (["7", *(f"veth{n}" for n in range(0, 40, 4))], "7,veth0,veth4,veth8 and 7 more shadow"),
    ],
)
def test_the_interfaces_of_an_answer_are_named_or_counted(devs: list[str], meaning: str) -> None:
    answer = CellKind(FindingKind.OVERLAP, tuple(devs))
    assert legend([answer], ())[answer].meaning == meaning


def test_failures_come_before_notes_and_failing_rows_first() -> None:
    noted, fine = bar("10.1.0.0/24", segment("10.1.0.4", "10.1.0.4", NoteKind.LOCAL)), bar("10.96.0.0/12")
    notes = [Note(NoteKind.LOCAL, "said of one", noted.cidr), *[Note(NoteKind.RULE, "said of all")] * 40]
    lines = printed(overlap_text(report(noted, fine, H200, notes=notes)))
    marks = [(line[0], line.split()[1]) for line in lines if line[0] in "✗•✓"]
    assert marks == [("✗", "172.16.0.0/12"), ("•", "10.1.0.0/24"), ("✓", "10.96.0.0/12")]
    assert [line for line in lines if line.startswith("note: ")] == lines[-33:]
    assert lines[-30] == "note: LOCAL: said of one"
    assert lines[-1].startswith("note: and 12 more")


# --- the palette -------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour as defined in WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("paint", [PAINTS[each] for each in PAINTS if each not in ("eth0 expected", "not judged")])
def test_symbols_are_legible_and_stand_out(paint: Paint) -> None:
    assert contrast(of_terminal(paint.back), of_terminal(paint.ink)) >= 4.5
    assert contrast(of_terminal(paint.back), of_terminal(PAINTS["eth0 expected"].back)) >= 1.5
