"""Bars and reports for tests of the drawing code."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, summarize_address_range
from typing import TYPE_CHECKING, NamedTuple

from hostrouting import ExpectedCidr, OverlapMode
from hostrouting.cli.bars import Bar, CellKind
from hostrouting.model.routes import RouteType
from hostrouting.overlap.findings import FindingKind, NoteKind, OverlapReport, Verdict
from hostrouting.report import Finding, Note

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.model.family import IpNetwork

Part = tuple[CellKind, tuple[IPv4Network, ...]]


class Cut(NamedTuple):
    """A CIDR and the parts with findings or notes."""

    cidr: IPv4Network
    parts: Bar

    @property
    def fails(self) -> bool:
        return any(isinstance(answer.kind, FindingKind) for answer, _ in self.parts)


def segment(first: str, last: str, kind: FindingKind | NoteKind, *devs: str) -> Part:
    return CellKind(kind, devs), tuple(summarize_address_range(IPv4Address(first), IPv4Address(last)))


def bar(cidr: str, *parts: Part) -> Cut:
    """Return a bar with these parts, merging parts that have the same classification."""
    ranges: dict[CellKind, tuple[IPv4Network, ...]] = {}
    for answer, networks in parts:
        ranges[answer] = ranges.get(answer, ()) + networks
    return Cut(IPv4Network(cidr), list(ranges.items()))


def finding(of: IpNetwork, kind: FindingKind, devs: tuple[str, ...], ranges: tuple[IpNetwork, ...]) -> Finding:
    discarded_by = (RouteType.BLACKHOLE,) if kind is FindingKind.BLACKHOLE else ()
    return Finding(kind, of, ranges[0].network_address, devs, ("eth0",), ranges, None, (of,), discarded_by)


def report(*bars: Cut, notes: Iterable[Note] = ()) -> OverlapReport:
    """Return a report with a finding for each failing part of each bar and a note for each of the other parts."""
    findings, noted = [], []
    for cidr, parts in bars:
        for answer, ranges in parts:
            if isinstance(answer.kind, FindingKind):
                findings.append(finding(cidr, answer.kind, answer.devs, ranges))
            else:
                noted.append(Note(NoteKind(answer.kind or ""), f"some of {cidr}", cidr, answer.devs, ranges))
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
