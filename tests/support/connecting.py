"""Compare the report of a check with what ordinary sockets do on a random host.

The test starts a connection and sends two datagrams to each of many addresses, and captures the first packet of each.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

from leaving import Leaving
from node import on_linux

from hostrouting import ExpectedCidr
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.overlap.findings import FindingKind
from hostrouting.report import NoteKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worlds.sources import Question

    from hostrouting import OverlapReport
    from hostrouting.report import Finding

# --- sockets and reports -----------------------------------------------------------------------------------------

Seen = dict[IPv4Address, frozenset[str | None]]


def built(question: Question) -> NamespaceKernel:
    kernel = on_linux()
    question.world.build(kernel)
    # The kernel then picks the hop by port number, so trying a few ports reaches every hop.
    Path("/proc/sys/net/ipv4/fib_multipath_hash_policy").write_text("1")
    return kernel


def seen_leaving(question: Question) -> Seen:
    """Return the interfaces through which packets to each address leave, with None for a packet that doesn't leave."""
    with Leaving(*question.world.devs) as leaving:
        ways = (leaving.by_tcp, leaving.by_connected_datagram, leaving.by_datagram)
        ports = range(9, 9 + question.tries)
        return {
            address: frozenset(way(address, port) for way in ways for port in ports) for address in question.addresses
        }


def disagreements(report: OverlapReport, question: Question, seen: Seen) -> list[str]:
    """Return the differences between the check and the sockets."""
    return [line for expected in question.expected for line in _disagreements(report, question, expected, seen)]


def _disagreements(report: OverlapReport, question: Question, expected: ExpectedCidr, seen: Seen) -> Iterator[str]:
    fine = {*report.default_devs, *question.allowed}
    if expected.devs is not None:
        fine = {dev for dev in (*question.world.devs, "lo") if any(fnmatchcase(dev, like) for like in expected.devs)}
    findings = [
        finding
        for finding in report.findings
        if (finding.cidr, finding.expected_devs) == (expected.cidr, expected.devs or report.default_devs)
    ]
    own = [note.ranges for note in report.notes if note.kind in (NoteKind.LOCAL, NoteKind.BROADCAST)]
    for address, devs in seen.items():
        if address not in expected.cidr:
            continue
        if any(_holds(ranges, address) for ranges in own):
            if devs - {"lo", None}:
                yield f"{address} leaves by {_words(devs)}, and the check takes it for this host's own"
            continue
        about = [finding for finding in findings if _holds(finding.ranges, address)]
        told: set[str | None] = {dev for finding in about for dev in finding.devs}
        if any(finding.kind is not FindingKind.OVERLAP for finding in about):
            told.add(None)
        if unsaid := devs - fine - told:
            yield f"{address} leaves by {_words(unsaid)}, and the check doesn't say so"
        for finding in about:
            if not _is_seen(finding, devs, fine):
                yield f"{address} leaves by {_words(devs)}, but: {finding.message}"


def _is_seen(finding: Finding, devs: frozenset[str | None], fine: set[str]) -> bool:
    """Return whether a socket behaved as a finding says."""
    if finding.kind is not FindingKind.OVERLAP:
        return None in devs
    if finding.source is not None and fine.intersection(finding.devs):
        return True  # Linux 6.15 and later prefer the hop whose own address is the source, and that hop is always fine
    return bool(devs.intersection(set(finding.devs) - fine))


def _holds(ranges: tuple[IPv4Network, ...], address: IPv4Address) -> bool:
    return any(address in part for part in ranges)


def _words(devs: frozenset[str | None]) -> str:
    return ", ".join(sorted(dev or "nothing" for dev in devs))
