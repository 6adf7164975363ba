"""Tests that bars and pictures show every failure, omit what is fine, and explain exactly the
symbols in use.
"""

from __future__ import annotations

import fcntl
import inspect
import io
import itertools
import re
import struct
import termios
from collections.abc import Iterable
from contextlib import redirect_stdout
from ipaddress import IPv4Address, IPv4Network, summarize_address_range
from itertools import pairwise
from typing import NamedTuple
from xml.etree import ElementTree

import attrs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from nightly import by_day
from terminals import opened

from hostrouting import ExpectedCidr, OverlapMode
from hostrouting.cli.bars import KINDS, Bar, CellKind, cells, legend
from hostrouting.cli.output import columns, say
from hostrouting.cli.report import overlap_picture, overlap_text
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.parsing import reserved_block, reserved_blocks
from hostrouting.model.routes import RouteType
from hostrouting.model.text import clean
from hostrouting.overlap import _judge
from hostrouting.overlap.findings import FindingKind, NoteKind, OverlapReport, Verdict
from hostrouting.report import Finding, Note

Part = tuple[CellKind, tuple[IPv4Network, ...]]


class Cut(NamedTuple):
    """A CIDR and the parts with findings or notes."""

    cidr: IPv4Network
    parts: Bar

    @property
    def fails(self) -> bool:
        return any(isinstance(answer.kind, FindingKind) for answer, _ in self.parts)


def segment(first: str, last: str, kind: FindingKind | NoteKind, *devs: str) -> Part:
    return CellKind(kind, devs), tuple(
        summarize_address_range(IPv4Address(first), IPv4Address(last))
    )


def bar(cidr: str, *parts: Part) -> Cut:
    """Return a bar with these parts, merging parts that have the same classification."""
    ranges: dict[CellKind, tuple[IPv4Network, ...]] = {}
    for answer, networks in parts:
        ranges[answer] = ranges.get(answer, ()) + networks
    return Cut(IPv4Network(cidr), list(ranges.items()))


def finding(
    of: IpNetwork, kind: FindingKind, devs: tuple[str, ...], ranges: tuple[IpNetwork, ...]
) -> Finding:
    discarded_by = (RouteType.BLACKHOLE,) if kind is FindingKind.BLACKHOLE else ()
    return Finding(
        kind, of, ranges[0].network_address, devs, ("eth0",), ranges, None, (of,), discarded_by
    )


def report(*bars: Cut, notes: Iterable[Note] = ()) -> OverlapReport:
    """Return a report with a finding for each failing part of each bar and a note for each of the
    other parts.
    """
    findings, noted = [], []
    for cidr, parts in bars:
        for answer, ranges in parts:
            if isinstance(answer.kind, FindingKind):
                findings.append(finding(cidr, answer.kind, answer.devs, ranges))
            else:
                noted.append(
                    Note(NoteKind(answer.kind or ""), f"some of {cidr}", cidr, answer.devs, ranges)
                )
    return OverlapReport(
        Verdict.OVERLAP if findings else Verdict.OK,
        OverlapMode.STRICT,
        "2026-11-20T08:00:00Z",
        "node-7",
        ("eth0",),
        tuple(findings),
        (*noted, *notes),
        expected=tuple(ExpectedCidr(of.cidr) for of in bars),
    )


def of_terminal(code: int) -> str:
    """Return the RGB values of an xterm colour between 16 and 255 (256colres.pl)."""
    if code >= 232:
        return "#" + f"{8 + 10 * (code - 232):02x}" * 3
    levels = (0, 95, 135, 175, 215, 255)
    return "#" + "".join(f"{levels[(code - 16) // step % 6]:02x}" for step in (36, 6, 1))


# --- bars -----------------------------------------------------------------------------------------


OWN = [segment(f"172.16.0.{10 + n}", f"172.16.0.{10 + n}", NoteKind.LOCAL) for n in range(8)]
H200 = bar(
    "172.16.0.0/12",
    segment("172.16.0.0", "172.16.0.9", FindingKind.OVERLAP, "ib0"),
    *OWN,
    segment("172.16.0.18", "172.16.255.255", FindingKind.OVERLAP, "ib0"),
    segment("172.17.0.0", "172.17.255.255", FindingKind.OVERLAP, "docker0"),
    segment("172.20.0.0", "172.20.255.255", NoteKind.CONTAINER),
    segment("172.24.7.9", "172.24.7.9", FindingKind.BLACKHOLE),
    segment("172.28.0.0", "172.28.255.255", FindingKind.NO_ROUTE),
    segment("172.29.0.0", "172.29.255.255", NoteKind.ALLOWED),
    segment("172.30.0.0", "172.30.255.255", NoteKind.CNI_DISCARD),
    segment("172.31.255.255", "172.31.255.255", NoteKind.BROADCAST),
)


def printed(text: str, encoding: str = "utf-8") -> list[str]:
    raw = io.BytesIO()
    with redirect_stdout(io.TextIOWrapper(raw, encoding)) as stream:
        say(text)
        stream.flush()
    return raw.getvalue().decode(encoding).splitlines()


def test_a_bar_is_readable_without_colours() -> None:
    assert printed(overlap_text(report(H200, bar("10.96.0.0/12")))) == [
        "overlap on node-7: 1 of 2 expected CIDRs fails; mode STRICT",
        "expected interface: eth0",
        "   ·  eth0 expected",
        "   A  ib0 shadow",
        "   B  docker0 shadow",
        "   N  no route",
        "   X  discarded",
        "   b  broadcast address",
        "   c  containers",
        "   +  allowed",
        "   d  discarded by a CNI",
        "✗ 172.16.0.0/12  AAAABBBB········cccc············X···············NNNN++++dddd···b",
        (
            f"{'':17}OVERLAP: expected CIDR 172.16.0.0/12 (probe 172.16.0.0) "
            "routes via ib0, expected eth0"
        ),
        "                 by a policy rule",
        (
            f"{'':17}OVERLAP: expected CIDR 172.16.0.0/12 (probe 172.17.0.0) "
            "routes via docker0, expected eth0"
        ),
        "                 by a policy rule",
        (
            f"{'':17}BLACKHOLE: expected CIDR 172.16.0.0/12 (probe 172.24.7.9) "
            "is discarded by blackhole; expected via eth0"
        ),
        "                 by a policy rule",
        (
            f"{'':17}NO-ROUTE: expected CIDR 172.16.0.0/12 (probe 172.28.0.0) "
            "has no IPv4 route; expected via eth0"
        ),
        "✓ 10.96.0.0/12   by eth0",
        *(
            f"note: {kind}: some of 172.16.0.0/12"
            for kind in ("LOCAL", "CONTAINER", "ALLOWED", "CNI-DISCARD", "BROADCAST")
        ),
    ]


def test_the_legend_names_no_uplink_where_a_cidr_has_its_own_interfaces() -> None:
    several = attrs.evolve(report(H200), expected=(ExpectedCidr(H200.cidr, ["ib0", "eth0"]),))
    assert "   ·  expected" in printed(overlap_text(several))


def test_an_ascii_terminal_gets_bars_of_the_same_width() -> None:
    noted = bar("10.1.0.0/24", segment("10.1.0.4", "10.1.0.4", NoteKind.LOCAL))
    pair = report(H200, noted, bar("10.96.0.0/12"))
    lines = printed(overlap_text(pair), "ascii")
    assert (
        "!! 172.16.0.0/12  AAAABBBB--------cccc------------X---------------NNNN++++dddd---b"
        in lines
    )
    assert f"-- 10.1.0.0/24    -o{'-' * 62}" in lines
    assert "ok 10.96.0.0/12   by eth0" in lines
    drawn = overlap_text(pair, width=200)
    assert " ".join(printed(overlap_text(pair))).split() == " ".join(printed(drawn)).split()
    for colour in ("\x1b[31m✗", "\x1b[32m✓", f"\x1b[38;5;16;48;5;{PAINTS['ib0 shadow'].back}m"):
        assert colour in drawn


@pytest.mark.parametrize(
    ("width", "count"), [(None, 64), (200, 64), (81, 64), (80, 32), (40, 16), (1, 8)]
)
def test_each_cell_is_a_prefix_and_fits_the_terminal(width: int | None, count: int) -> None:
    row = next(
        line for line in printed(overlap_text(report(H200), width=width)) if line.startswith("✗")
    )
    assert len(row) == len("✗ 172.16.0.0/12  ") + count


def test_only_a_terminal_has_columns() -> None:
    assert columns(None) is columns(io.StringIO()) is None
    with opened() as terminal, open(terminal.path, "w") as stream:
        fcntl.ioctl(stream, termios.TIOCSWINSZ, struct.pack("4H", 24, 132, 0, 0))
        assert columns(stream) == 132


def test_a_thousand_healthy_cidrs_are_few_lines() -> None:
    fine = [bar(f"10.{n // 250}.{n % 250}.0/24") for n in range(1000)]
    lines = printed(overlap_text(report(H200, *fine)))
    assert "and 985 more; --output json has them all" in lines
    assert len(lines) < 50


def test_unjudged_addresses_are_blank() -> None:
    assert cells(IPv4Network("112.0.0.0/4"), [], 16) == (*[CellKind()] * 15, None)


def test_local_addresses_and_containers_have_one_colour_each() -> None:
    notes = [
        Note(NoteKind.LOCAL, "own", H200.cidr, (f"ib{n}",), (IPv4Network(f"172.16.0.{n}"),))
        for n in range(64)
    ]
    lines = printed(overlap_text(report(bar(str(H200.cidr)), notes=notes)))
    assert lines[2:4] == ["   ·  eth0 expected", "   o  own address"]


OF_SEGMENTS = (
    NoteKind.LOCAL,
    NoteKind.BROADCAST,
    NoteKind.CONTAINER,
    NoteKind.ALLOWED,
    NoteKind.CNI_DISCARD,
)
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


def test_each_kind_that_a_judgement_may_have_has_a_colour() -> None:
    """Explain prints the meaning of each, too. An overlap's colour depends on its interfaces."""
    notes = set(re.findall(r"\bNoteKind\.(\w+)", inspect.getsource(_judge)))
    judged = {*FindingKind, *(NoteKind[name] for name in notes)} - {FindingKind.OVERLAP}
    assert len(notes) > 3
    assert {*KINDS} == judged, "each such kind needs a Paint in KINDS, in cli/bars.py"


def test_the_interfaces_of_an_answer_are_named_or_counted() -> None:
    answer = CellKind(FindingKind.OVERLAP, tuple(f"veth{n}" for n in range(10)))
    assert legend([answer], ())[answer].meaning == f"{','.join(answer.devs[:8])} and 2 more shadow"


def test_failures_come_before_notes_and_failing_rows_first() -> None:
    noted, fine = (
        bar("10.1.0.0/24", segment("10.1.0.4", "10.1.0.4", NoteKind.LOCAL)),
        bar("10.96.0.0/12"),
    )
    notes = [
        Note(NoteKind.LOCAL, "said of one", noted.cidr),
        *[Note(NoteKind.RULE, "said of all")] * 40,
    ]
    told = report(noted, fine, H200, notes=notes)
    lines = printed(overlap_text(told, is_verbose=True))
    marks = [(line[0], line.split()[1]) for line in lines if line[0] in "✗•✓"]
    assert marks == [("✗", "172.16.0.0/12"), ("•", "10.1.0.0/24"), ("✓", "10.96.0.0/12")]
    assert [line for line in lines if line.startswith("note: ")] == lines[-47:]
    assert lines[-41] == "note: LOCAL: said of one"
    few = printed(overlap_text(told))
    assert [line for line in few if line.startswith("note: ")] == few[-17:-1]
    assert few[-1] == f"and {47 - 16} more notes: -v"


# --- pictures -------------------------------------------------------------------------------------


def words(picture: str) -> list[str]:
    """Return an SVG's lines of text, with whitespace collapsed."""
    lines: dict[str, list[str]] = {}
    for text in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text"):
        lines.setdefault(text.attrib["y"], []).append(text.text or "")
    return [" ".join(" ".join(parts).split()) for parts in lines.values()]


def test_a_picture_needs_no_other_resource() -> None:
    picture = overlap_picture(report(H200))
    assert not re.search(
        r"href|url\((?!#)|@import|@font-face|<script|<image|<foreignObject", picture
    )


def test_a_hostile_interface_is_text_in_a_picture() -> None:
    name = '<a"&\udcff\x1b'
    hostile = bar("10.0.0.0/8", segment("10.0.0.0", "10.0.0.0", FindingKind.OVERLAP, name))
    note = Note(NoteKind.LOCAL, name, hostile.cidr)
    said = words(overlap_picture(report(hostile, notes=[note])))
    assert 'A <a"&?? shadow' in said
    assert 'note: LOCAL: <a"&??' in said


# --- any bars -------------------------------------------------------------------------------------


RESERVED = reserved_blocks(Family.IPV4)
COUNTS = st.sampled_from([1, 7, 8, 64, 100, 256])
# All other kinds of notes apply to a whole CIDR, or to none.
DEVS = st.lists(
    st.sampled_from(["ib0", "ib1", "docker0", "<&\"'>", "]]>", "\x1b[31m", "é\udcff\ufffe"]),
    max_size=3,
)


CODE = re.compile(r"\x1b\[[\d;]+m")


@st.composite
def bars(draw: st.DrawFn) -> Cut:
    length = draw(st.integers(0, 32))
    cidr = IPv4Network(
        (draw(st.integers(1 << 24, (224 << 24) - 1)) >> (32 - length) << (32 - length), length)
    )
    assume(reserved_block(cidr) is None)  # a reserved block can't be expected
    begin, end = int(cidr.network_address), int(cidr.broadcast_address) + 1
    cuts = draw(st.lists(st.integers(begin, end - 1), max_size=12, unique=True))
    edges = sorted({begin, *cuts, end})
    parts = []
    for first, after in pairwise(edges):
        if (kind := draw(st.sampled_from([*FindingKind, *OF_SEGMENTS, None]))) is not None:
            devs = tuple(sorted(set(draw(DEVS)))) if kind is FindingKind.OVERLAP else ()
            parts.append(segment(str(IPv4Address(first)), str(IPv4Address(after - 1)), kind, *devs))
    return bar(str(cidr), *parts)


@given(bars(), COUNTS)
def test_the_cell_of_a_failing_address_shows_a_failure(bar: Cut, count: int) -> None:
    drawn = cells(*bar, count)
    assert len(drawn) == count
    for answer, ranges in bar.parts:
        for address in (end for network in ranges for end in (network[0], network[-1])):
            shown = drawn[(int(address) - int(bar.cidr[0])) * count // bar.cidr.num_addresses]
            assert shown is not None
            assert shown.kind is not None
            assert isinstance(shown.kind, FindingKind) >= isinstance(answer.kind, FindingKind)


@given(bars(), COUNTS)
def test_a_cell_shows_an_answer_of_its_addresses(bar: Cut, count: int) -> None:
    base, size = int(bar.cidr.network_address), bar.cidr.num_addresses
    for number, shown in enumerate(cells(*bar, count)):
        begin, end = base + number * size // count, base + -(-(number + 1) * size // count)
        inside = {
            answer
            for answer, ranges in bar.parts
            if any(int(network[0]) < end and int(network[-1]) >= begin for network in ranges)
        }
        is_reserved = any(
            int(block[0]) <= begin and end - 1 <= int(block[-1]) for block in RESERVED
        )
        assert shown in inside or (not inside and shown == (None if is_reserved else CellKind()))


# Failing bars come first.
LISTS_OF_BARS = st.lists(bars(), max_size=4, unique_by=lambda bar: bar.cidr).map(
    lambda found: sorted(found, key=lambda bar: not bar.fails)
)


def cells_of(found: list[Cut]) -> list[tuple[CellKind | None, ...]]:
    """Return the cells of each bar. An empty bar isn't drawn."""
    return [cells(*bar, 64) for bar in found if bar.parts]


@given(LISTS_OF_BARS)
def test_bars_have_exactly_the_legends_symbols(found: list[Cut]) -> None:
    lines = CODE.sub("", overlap_text(report(*found))).split("\n")
    drawn = cells_of(found)
    paints = legend(itertools.chain(*drawn), ("eth0",))
    bars = ["".join(paints[answer].symbol for answer in line) for line in drawn]
    assert [line.split()[2] for line in lines if line[:1] in "✗•"] == bars
    named = " ".join(line for line in lines[1:] if line.startswith("   "))
    assert all(f" {paint.symbol}  {clean(paint.meaning)}" in named for paint in paints.values())


@given(LISTS_OF_BARS, st.none() | st.integers(1, 200))
def test_no_name_controls_the_terminal(found: list[Cut], width: int | None) -> None:
    noted = report(*found, notes=[Note(NoteKind.RULE, "said of ib0\x1b[2J")])
    assert "\x1b" not in CODE.sub("", overlap_text(noted, width=width))


@given(LISTS_OF_BARS, st.integers(40, 200))
def test_on_a_terminal_every_line_fits(found: list[Cut], width: int) -> None:
    lines = CODE.sub("", overlap_text(report(*found), width=width)).split("\n")
    assert max(map(len, lines)) <= width


@settings(max_examples=by_day(3, by_night=5000))
@given(LISTS_OF_BARS)
def test_a_picture_is_xml_with_each_bars_colours(found: list[Cut]) -> None:
    picture = overlap_picture(report(*found))
    assert picture.isascii()
    root = ElementTree.fromstring(picture)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    coloured: dict[str, list[str]] = {}
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, wide, high = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert 0 <= x < x + wide <= width
        assert 0 <= y < y + high <= height
        if "shape-rendering" in box.attrib:
            coloured.setdefault(box.attrib["y"], []).extend(
                [box.attrib["fill"]] * round(wide / 12.2)
            )
    drawn = cells_of(found)
    paints = legend(itertools.chain(*drawn), ("eth0",))
    wanted = [[of_terminal(paints[answer].back) for answer in line] for line in drawn]
    assert [colours for colours in coloured.values() if len(colours) == 64] == wanted
