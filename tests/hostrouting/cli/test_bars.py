"""Tests that bars and pictures show every failure and omit what is fine."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import termios
from contextlib import redirect_stdout
from ipaddress import IPv4Network
from itertools import groupby
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import attrs
import pytest
from drawn import bar, report, segment

from hostrouting import StaticRoute
from hostrouting.cli.bars import CellKind, cells, legend
from hostrouting.cli.output import columns, say
from hostrouting.cli.report import overlap_picture, overlap_text
from hostrouting.overlap.findings import FindingKind, Fix, NoteKind, Obstacle, Unfixable
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
    assert [line for line in lines if line.startswith("note: ")] == lines[-44:]
    assert lines[-41] == "note: LOCAL: said of one"


# --- pictures ------------------------------------------------------------------------------------------------------

SHADOWED = bar(
    "172.16.0.0/12",
    segment("172.16.0.0", "172.16.255.255", FindingKind.OVERLAP, "ib0"),
    segment("172.24.7.9", "172.24.7.9", FindingKind.BLACKHOLE),
)


def words(picture: str) -> list[str]:
    """Return an SVG's lines of text, with whitespace collapsed."""
    lines: dict[str, list[str]] = {}
    for text in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text"):
        lines.setdefault(text.attrib["y"], []).append(text.text or "")
    return [" ".join(" ".join(parts).split()) for parts in lines.values()]


def test_a_picture_shows_failures_and_their_fix() -> None:
    routes = (StaticRoute("172.16.0.0/17", "10.1.0.1", "eth0"), StaticRoute("172.16.128.0/17", "10.1.0.1", "eth0"))
    left = Unfixable((IPv4Network("172.24.7.9/32"),), (), Obstacle("its blackhole is a /32, too: remove it"))
    fix = Fix(routes, (left,), ("peers of ib0 change sides",))
    said = words(overlap_picture(attrs.evolve(report(SHADOWED, bar("10.96.0.0/12")), fix=fix)))
    assert said[0] == "hostrouting check: overlap · node-7 · STRICT · 2026-11-20T08:00:00Z"
    assert said[1] == "overlap on node-7: 1 of 2 expected CIDRs fails; mode STRICT"
    assert {"· eth0 expected", "A ib0 shadow", "X discarded"} < {*said}
    assert [line.split()[:3] for line in said if line.startswith(("✗", "172."))] == [
        ["✗", "172.16.0.0/12", "A" * 8],
        ["172.20.0.0", "·" * 32, "·"],
        ["172.24.0.0", "X", "·" * 31],
        ["172.28.0.0", "·" * 32, "·"],
    ]
    assert "✓ 10.96.0.0/12 by eth0" in said
    assert '{"destination": "172.16.0.0/17", "gateway": "10.1.0.1", "dev": "eth0"},' in said
    assert '{"destination": "172.16.128.0/17", "gateway": "10.1.0.1", "dev": "eth0"}' in said
    assert "no route fixes 172.24.7.9: its blackhole is a /32, too: remove it" in said
    assert "mind: peers of ib0 change sides" in said


def test_a_picture_needs_no_other_resource() -> None:
    picture = overlap_picture(report(SHADOWED))
    assert not re.search(r"href|url\((?!#)|@import|@font-face|<script|<image|<foreignObject", picture)


def test_a_hostile_interface_is_text_in_a_picture() -> None:
    name = '<a"&\udcff\x1b'
    hostile = bar("10.0.0.0/8", segment("10.0.0.0", "10.0.0.0", FindingKind.OVERLAP, name))
    note = Note(NoteKind.LOCAL, name, hostile.cidr)
    said = words(overlap_picture(report(hostile, notes=[note])))
    assert 'A <a"&?? shadow' in said
    assert 'note: LOCAL: <a"&??' in said
