"""Whatever a check has found: nothing that fails is invisible, and the legend says exactly what is drawn."""

from __future__ import annotations

import io
from ipaddress import IPv4Address, IPv4Network
from itertools import pairwise
from xml.etree import ElementTree

from drawn import report
from hypothesis import given
from hypothesis import strategies as st

from hostrouting.cli.drawing import draw
from hostrouting.cli.pictures import overlap_svg
from hostrouting.cli.report import overlap_text
from hostrouting.cli.strips import answer_of, cells, runs
from hostrouting.cli.styled import PALETTE, to_terminal
from hostrouting.overlap.findings import FindingKind, JudgedCidr, NoteKind, Segment

COUNTS = st.sampled_from([1, 7, 8, 64, 100, 256])
DEVS = st.lists(st.sampled_from(["ib0", "ib1", "docker0", "<&\"'>", "]]>", "\x1b[31m", "é\udcff\ufffe"]), max_size=3)


@st.composite
def strips(draw: st.DrawFn) -> JudgedCidr:
    length = draw(st.integers(0, 32))
    cidr = IPv4Network((draw(st.integers(0, 2**32 - 1)) >> (32 - length) << (32 - length), length))
    begin, end = int(cidr.network_address), int(cidr.broadcast_address) + 1
    cuts = draw(st.lists(st.integers(begin, end - 1), max_size=12, unique=True))
    edges = sorted({begin, *cuts, end})
    segments: list[Segment] = []
    for first, after in pairwise(edges):
        if (kind := draw(st.sampled_from([*FindingKind, *NoteKind, None, "gap"]))) != "gap":
            devs = () if kind is None else tuple(sorted(set(draw(DEVS))))
            is_failure = isinstance(kind, FindingKind)
            segments.append(Segment(IPv4Address(first), IPv4Address(after - 1), kind, is_failure, devs))
    return JudgedCidr(cidr, tuple(segments))


@given(strips(), COUNTS)
def test_every_failing_address_is_in_a_cell_that_shows_a_failure(strip: JudgedCidr, count: int) -> None:
    drawn = cells(strip, count)
    base, size = int(strip.cidr.network_address), strip.cidr.num_addresses
    assert len(drawn) == count
    for segment in strip.segments:
        for address in (int(segment.first), int(segment.last)):
            shown = drawn[(address - base) * count // size]
            assert shown is not None
            assert shown.is_failure >= segment.is_failure
            assert shown.is_fine <= answer_of(segment).is_fine


@given(strips(), COUNTS)
def test_a_cell_shows_an_answer_of_its_own_addresses(strip: JudgedCidr, count: int) -> None:
    base, size = int(strip.cidr.network_address), strip.cidr.num_addresses
    for number, shown in enumerate(cells(strip, count)):
        begin, end = base + number * size // count, base + -(-(number + 1) * size // count)
        inside = {answer_of(s) for s in strip.segments if int(s.first) < end and int(s.last) >= begin}
        assert shown in inside or (shown is None and not inside)


@given(strips(), COUNTS)
def test_runs_are_the_cells(strip: JudgedCidr, count: int) -> None:
    drawn = cells(strip, count)
    found = runs(drawn)
    assert tuple(answer for _, length, answer in found for _ in range(length)) == drawn
    assert all(one[2] != other[2] for one, other in pairwise(found))


@given(st.lists(strips(), max_size=4, unique_by=lambda strip: strip.cidr), COUNTS)
def test_a_strip_of_one_answer_is_uniform_and_the_legend_names_what_is_drawn(
    found: list[JudgedCidr], count: int
) -> None:
    drawing = draw(report(*found), count)
    assert set(drawing.legend) == {answer for row in drawing.rows for answer in row.cells}
    for row in drawing.rows:
        if row.strip is not None and {answer_of(s) for s in row.strip.segments} == {answer_of(row.strip.segments[0])}:
            assert set(row.cells) <= {answer_of(row.strip.segments[0]), None}


@given(st.lists(strips(), max_size=4, unique_by=lambda strip: strip.cidr), st.none() | st.integers(1, 200))
def test_no_interface_steers_the_terminal(found: list[JudgedCidr], width: int | None) -> None:
    assert "\x1b" not in to_terminal(overlap_text(report(*found), width=width), io.StringIO())


@given(st.lists(strips(), max_size=4, unique_by=lambda strip: strip.cidr))
def test_a_picture_is_xml_and_stays_within_its_bounds(found: list[JudgedCidr]) -> None:
    drawing = draw(report(*found), 256)
    picture = overlap_svg(report(*found))
    root = ElementTree.fromstring(picture)
    assert picture.isascii()
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    space = "{http://www.w3.org/2000/svg}"
    boxes = root.findall(f"{space}rect")
    for box in boxes:
        x, y, wide, high = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert wide > 0
        assert high > 0
        assert x >= 0
        assert y >= 0
        assert x + wide <= width
        assert y + high <= height
    for text in root.findall(f"{space}text"):
        assert 0 <= float(text.attrib["x"]) <= width
        assert 0 <= float(text.attrib["y"]) <= height
    bars = [box for box in boxes if box.attrib["height"] == "26"]
    wanted = [
        (length * 3.0, PALETTE[drawing.legend[answer].role].fill)
        for row in drawing.rows
        for _, length, answer in runs(row.cells)
    ]
    assert [(float(bar.attrib["width"]), bar.attrib["fill"]) for bar in bars] == wanted
