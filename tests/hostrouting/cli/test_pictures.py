"""The picture of a check stands by itself."""

from __future__ import annotations

import re
from ipaddress import IPv4Network
from xml.etree import ElementTree

import attrs
from drawn import report, segment, strip

from hostrouting import Note, StaticRoute
from hostrouting.cli.pictures import overlap_svg
from hostrouting.overlap.findings import FindingKind, NoteKind, Remedy, Unmendable, Verdict

SHADOWED = strip(
    "172.16.0.0/12",
    segment("172.16.0.0", "172.16.255.255", FindingKind.OVERLAP, "ib0"),
    segment("172.24.7.9", "172.24.7.9", FindingKind.BLACKHOLE),
)


def words(picture: str) -> list[str]:
    space = "{http://www.w3.org/2000/svg}"
    return ["".join(text.itertext()) for text in ElementTree.fromstring(picture).findall(f"{space}text")]


def test_a_picture_says_what_fails_where_and_what_mends_it() -> None:
    routes = (StaticRoute("172.16.0.0/17", "10.1.0.1", "eth0"), StaticRoute("172.16.128.0/17", "10.1.0.1", "eth0"))
    left = Unmendable((IPv4Network("172.24.7.9/32"),), (), "its blackhole is a /32, too: remove it")
    remedy = Remedy(routes, (left,), ("peers of ib0 change sides",))
    said = words(overlap_svg(attrs.evolve(report(SHADOWED, strip("10.96.0.0/12")), remedy=remedy)))
    assert "hostrouting check: overlap" in said
    assert "ib0 shadow" in said
    assert "172.16.0.0 - 172.16.255.255" in said
    assert "172.24.7.9" in said
    assert "✓ 10.96.0.0/12  by eth0" in said
    assert ' {"destination": "172.16.0.0/17", "gateway": "10.1.0.1", "dev": "eth0"},' in said
    assert ' {"destination": "172.16.128.0/17", "gateway": "10.1.0.1", "dev": "eth0"}' in said
    assert "not mended by a route: 172.24.7.9/32: its blackhole is a /32, too: remove it" in said
    assert "mind: peers of ib0 change sides" in said


def test_a_picture_needs_nothing_from_elsewhere_and_says_what_it_shows() -> None:
    picture = overlap_svg(report(SHADOWED))
    assert not re.search(r"href|url\(|@import|<script|<image|<foreignObject", picture)
    root = ElementTree.fromstring(picture)
    title, description = (root.findtext(f"{{http://www.w3.org/2000/svg}}{name}") or "" for name in ("title", "desc"))
    assert title == "hostrouting check: overlap"
    assert "OVERLAP: expected CIDR 172.16.0.0/12" in description
    assert description.endswith("Checked: 172.16.0.0/12")


def test_a_hostile_interface_is_text_in_a_picture() -> None:
    name = '<a"&\udcff\x1b'
    hostile = strip("10.0.0.0/8", segment("10.0.0.0", "10.0.0.0", FindingKind.OVERLAP, name))
    note = Note(NoteKind.LOCAL, name, hostile.cidr)
    said = words(overlap_svg(report(hostile, notes=[note])))
    assert '<a"&?? shadow' in said
    assert 'LOCAL: <a"&??' in said


def test_nothing_judged_is_a_picture_too() -> None:
    unknown = attrs.evolve(report(SHADOWED), verdict=Verdict.UNKNOWN, reason="no-default-route", findings=())
    assert "the check couldn't judge anything: no-default-route" in words(overlap_svg(unknown))
    assert "no CIDRs are expected: nothing to check" in words(overlap_svg(report()))


def test_a_picture_of_many_routes_counts_those_it_leaves_out() -> None:
    routes = tuple(StaticRoute(f"10.0.{number}.0/24") for number in range(100))
    said = words(overlap_svg(attrs.evolve(report(SHADOWED), remedy=Remedy(routes))))
    assert "and 68 more: hostrouting fix prints them all" in said
    assert ' {"destination": "10.0.31.0/24"},' in said
    assert ' {"destination": "10.0.32.0/24"},' not in said


def test_a_picture_of_much_that_no_route_mends_counts_what_it_leaves_out() -> None:
    ranges = tuple(IPv4Network(f"10.0.{number}.0/24") for number in range(40))
    left = tuple(Unmendable(ranges, (), f"reason {number}") for number in range(100))
    said = words(overlap_svg(attrs.evolve(report(SHADOWED), remedy=Remedy((), left))))
    assert "and 68 more that no route mends: hostrouting fix says why" in said
    assert sum("and 24 more: reason" in line for line in said) == 32
    assert not any("10.0.16.0/24" in line for line in said)
