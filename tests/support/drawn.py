"""Strips and reports for the tests of what is drawn of them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

from hostrouting import Finding, Note, OverlapMode
from hostrouting.cli.report import answer_of
from hostrouting.overlap.findings import FindingKind, JudgedCidr, NoteKind, OverlapReport, Segment, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable


def segment(first: str, last: str, kind: FindingKind | NoteKind | None = None, *devs: str) -> Segment:
    return Segment(int(IPv4Address(first)), int(IPv4Address(last)), kind, isinstance(kind, FindingKind), devs)


def strip(cidr: str, *special: Segment) -> JudgedCidr:
    """The given segments, in order, and eth0 in between."""
    network = IPv4Network(cidr)
    segments: list[Segment] = []
    at = int(network.network_address)
    for part in special:
        if part.first > at:
            segments.append(Segment(at, part.first - 1, devs=("eth0",)))
        segments.append(part)
        at = part.last + 1
    if at <= int(network.broadcast_address):
        segments.append(Segment(at, int(network.broadcast_address), devs=("eth0",)))
    return JudgedCidr(network, tuple(segments))


def finding(of: JudgedCidr, part: Segment) -> Finding:
    devs = part.devs
    message = f"{part.kind}: expected CIDR {of.cidr} (probe {IPv4Address(part.first)}) routes via {','.join(devs)}, expected eth0"
    return Finding(FindingKind(part.kind or ""), of.cidr, IPv4Address(part.first), devs, ("eth0",), (), None, message)


def report(*strips: JudgedCidr, notes: Iterable[Note] = ()) -> OverlapReport:
    """A finding for each failing answer of each strip."""
    findings = []
    for of in strips:
        failing = {answer_of(part): part for part in reversed(of.segments) if part.is_failure}
        findings += [finding(of, part) for part in reversed(failing.values())]
    return OverlapReport(
        Verdict.OVERLAP if findings else Verdict.OK,
        OverlapMode.STRICT,
        "2026-11-20T08:00:00Z",
        "node-7",
        ("eth0",),
        tuple(findings),
        tuple(notes),
        cidrs=tuple(of.cidr for of in strips),
        judged=strips,
    )


def of_terminal(code: int) -> str:
    """The colours 16 to 255 of xterm (256colres.pl)."""
    if code >= 232:
        return "#" + f"{8 + 10 * (code - 232):02x}" * 3
    levels = (0, 95, 135, 175, 215, 255)
    return "#" + "".join(f"{levels[(code - 16) // step % 6]:02x}" for step in (36, 6, 1))
