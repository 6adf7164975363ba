"""The picture of a check shows failures and their fix, and is self-contained."""

from __future__ import annotations

import re
from ipaddress import IPv4Network
from xml.etree import ElementTree

import attrs
from drawn import bar, report, segment

from hostrouting import StaticRoute
from hostrouting.cli.report import overlap_picture
from hostrouting.overlap.findings import FindingKind, Fix, NoteKind, Obstacle, Unfixable, UnknownReason, Verdict
from hostrouting.report import Note

SHADOWED = bar(
    "172.16.0.0/12",
    segment("172.16.0.0", "172.16.255.255", FindingKind.OVERLAP, "ib0"),
    segment("172.24.7.9", "172.24.7.9", FindingKind.BLACKHOLE),
)


def words(picture: str) -> list[str]:
    """Return the lines of text in a picture, with a single space between words and parts."""
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


def test_an_empty_report_is_a_picture_too() -> None:
    why = UnknownReason.NO_DEFAULT_ROUTE
    unknown = attrs.evolve(report(SHADOWED), verdict=Verdict.UNKNOWN, reason_kind=why, findings=())
    assert words(overlap_picture(unknown))[1:] == [
        "unknown on node-7: none of 1 expected CIDRs could be judged; mode STRICT",
        "the check couldn't judge anything: no-default-route",
    ]
    assert words(overlap_picture(report()))[1] == "ok on node-7: no CIDRs are expected; mode STRICT"


def test_a_picture_counts_the_routes_that_it_omits() -> None:
    routes = tuple(StaticRoute(f"10.0.{number}.0/24") for number in range(100))
    said = words(overlap_picture(attrs.evolve(report(SHADOWED), fix=Fix(routes))))
    assert '{"destination": "10.0.49.0/24"} and 50 more; hostrouting fix prints all' in said
