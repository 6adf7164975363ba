"""Property tests for bars: every failure is visible, and the legend explains exactly the symbols in use."""

from __future__ import annotations

import itertools
import re
from ipaddress import IPv4Address, IPv4Network
from itertools import pairwise
from xml.etree import ElementTree

from drawn import Cut, bar, of_terminal, report, segment
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from nightly import by_day

from hostrouting.cli.bars import CellKind, cells, legend
from hostrouting.cli.report import overlap_picture, overlap_text
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.parsing import RESERVED, reserved_block
from hostrouting.model.text import clean
from hostrouting.overlap.findings import FindingKind, NoteKind

COUNTS = st.sampled_from([1, 7, 8, 64, 100, 256])
# All other kinds of notes apply to a whole CIDR, or to none.
OF_SEGMENTS = (NoteKind.LOCAL, NoteKind.BROADCAST, NoteKind.CONTAINER, NoteKind.ALLOWED, NoteKind.CNI_DISCARD)
DEVS = st.lists(st.sampled_from(["ib0", "ib1", "docker0", "<&\"'>", "]]>", "\x1b[31m", "é\udcff\ufffe"]), max_size=3)


CODE = re.compile(r"\x1b\[[\d;]+m")


@st.composite
def bars(draw: st.DrawFn) -> Cut:
    length = draw(st.integers(0, 32))
    cidr = IPv4Network((draw(st.integers(1 << 24, (224 << 24) - 1)) >> (32 - length) << (32 - length), length))
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


def cell_of(address: IpAddress, cidr: IpNetwork, count: int) -> int:
    return (int(address) - int(cidr.network_address)) * count // cidr.num_addresses


@given(bars(), COUNTS)
def test_the_cell_of_a_failing_address_shows_a_failure(bar: Cut, count: int) -> None:
    drawn = cells(*bar, count)
    assert len(drawn) == count
    for answer, ranges in bar.parts:
        for address in (end for network in ranges for end in (network[0], network[-1])):
            shown = drawn[cell_of(address, bar.cidr, count)]
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
        is_reserved = any(int(block[0]) <= begin and end - 1 <= int(block[-1]) for block in RESERVED)
        assert shown in inside or (not inside and shown == (None if is_reserved else CellKind()))


# Failing bars come first.
STRIPS = st.lists(bars(), max_size=4, unique_by=lambda bar: bar.cidr).map(
    lambda found: sorted(found, key=lambda bar: not bar.fails)
)


def answers(bar: Cut, lines: int) -> list[tuple[CellKind | None, ...]]:
    """Return the cells in each line of a bar. An empty bar has no lines."""
    if not bar.parts:
        return []
    drawn = cells(*bar, 64 * lines)
    return [drawn[first : first + 64] for first in range(0, 64 * lines, 64)]


@given(STRIPS)
def test_bars_have_exactly_the_legends_symbols(found: list[Cut]) -> None:
    lines = CODE.sub("", overlap_text(report(*found))).split("\n")
    drawn = [line for bar in found for line in answers(bar, 1)]
    paints = legend(itertools.chain(*drawn), ("eth0",))
    bars = ["".join(paints[answer].symbol for answer in line) for line in drawn]
    assert [line.split()[2] for line in lines if line[:1] in "✗•"] == bars
    named = " ".join(line for line in lines[1:] if line.startswith("   "))
    assert all(f" {paint.symbol}  {clean(paint.meaning)}" in named for paint in paints.values())


@given(STRIPS, st.none() | st.integers(1, 200))
def test_no_interface_name_controls_the_terminal(found: list[Cut], width: int | None) -> None:
    assert "\x1b" not in CODE.sub("", overlap_text(report(*found), width=width))


@given(STRIPS, st.integers(40, 200))
def test_on_a_terminal_every_line_fits(found: list[Cut], width: int) -> None:
    lines = CODE.sub("", overlap_text(report(*found), width=width)).split("\n")
    assert max(map(len, lines)) <= width


@settings(max_examples=by_day(3, by_night=5000))
@given(STRIPS)
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
            coloured.setdefault(box.attrib["y"], []).extend([box.attrib["fill"]] * round(wide / 12.2))
    drawn = [line for bar in found for line in answers(bar, 4 if bar.cidr.num_addresses > 64 else 1)]
    paints = legend(itertools.chain(*drawn), ("eth0",))
    wanted = [[of_terminal(paints[answer].back) for answer in line] for line in drawn]
    assert [colours for colours in coloured.values() if len(colours) == 64] == wanted
