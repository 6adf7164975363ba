"""Compare a check's report with how ordinary sockets behave on a host."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from leaving import Seen

from hostrouting import ExpectedCidr, OverlapReport, RouteOverlap
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.overlap.findings import FindingKind
from hostrouting.report import Finding, NoteKind

Devs = frozenset["str | None"]

_DROPS = (FindingKind.NO_ROUTE, FindingKind.BLACKHOLE)


def disagreements(
    report: OverlapReport,
    overlap: RouteOverlap,
    seen: Seen,
    *,
    passes_hops: bool = False,
    turns: Sequence[Devs] = (),
    unconnected: Sequence[IpNetwork] = (),
    connected: Container[IpAddress] | None = None,
    called: IpAddress | None = None,
) -> list[str]:
    """Return the differences between the check and the sockets.

    Args:
        report: the check's report.
        overlap: the config that was checked.
        seen: the outgoing interfaces for each address, including None if some packets are dropped.
        passes_hops: whether the kernel currently skips some next hops with unreachable routers. The
            check includes them anyway.
        turns: sets of interfaces. The kernel chooses one by the states of neighbours, and may
            choose another one later.
        unconnected: broadcast and multicast destinations, to which ordinary sockets can't connect.
        connected: addresses to which a TCP connection was established, or None if that wasn't
            tried. Elsewhere, the sockets don't show where connections from a source leave.
        called: this host's address whose replies were observed, or None for packets with whatever
            source they get.
    """
    # A CIDR may be expected through the uplinks and again through the same named devices. Reports
    # only show devices.
    strictest = {
        (expected.cidr, expected.devs or report.default_devs): expected
        for expected in sorted(
            overlap.expected_cidrs, key=lambda expected: expected.devs is not None
        )
    }
    wrong: list[str] = []
    for expected in strictest.values():
        check = _Expected(report, overlap, expected, called)
        for address, devs in seen.items():
            if address in expected.cidr:
                soon = devs.union(*(turn for turn in turns if turn & devs))
                is_refused = None in devs and holds(unconnected, address)
                is_connected = connected is None or address in connected
                wrong += check.disagreements_at(
                    address,
                    devs,
                    soon,
                    is_refused=is_refused,
                    is_connected=is_connected,
                    passes_hops=passes_hops,
                )
    return wrong


class _Expected:
    """The findings and notes of a report on one expected CIDR."""

    def __init__(
        self,
        report: OverlapReport,
        overlap: RouteOverlap,
        expected: ExpectedCidr,
        called: IpAddress | None,
    ) -> None:
        self._called = called
        self._expected_devs = () if expected.devs else report.default_devs
        self._patterns = expected.devs or (*overlap.allowed_devs, *overlap.container_devs)
        named = (expected.cidr, expected.devs or report.default_devs)
        self._findings = [
            finding
            for finding in report.findings
            if (finding.cidr, finding.expected_devs) == named
            and (called is None or finding.source in (None, called))
        ]
        self._own = local_ranges(report)
        self._discards = [
            part
            for note in report.notes
            if (note.kind, note.cidr) == (NoteKind.CNI_DISCARD, expected.cidr)
            for part in note.ranges
        ]

    def disagreements_at(
        self,
        address: IpAddress,
        devs: Devs,
        soon: Devs,
        *,
        is_refused: bool,
        is_connected: bool,
        passes_hops: bool,
    ) -> Iterator[str]:
        about = [finding for finding in self._findings if holds(finding.ranges, address)]
        what = str(address) if self._called is None else f"a reply from {self._called} to {address}"
        told: set[str | None] = {dev for finding in about for dev in finding.devs}
        if any(finding.kind in _DROPS for finding in about) or holds(self._discards, address):
            told.add(None)
        if any(_is_router(finding, address) for finding in about):
            told.add("lo")
        unsaid = {dev for dev in devs - told if not self._is_fine(dev)}
        if holds(self._own, address):
            if unsaid - {"lo", None}:
                yield (
                    f"{what} leaves through {words(devs)}, "
                    "and the check takes it for this host's own"
                )
            return
        # A local route of table main takes packets, but its address isn't a valid source for a
        # connection to itself.
        may_fail = (is_refused and told) or "lo" in told
        if unsaid - ({None} if may_fail else set()):
            yield f"{what} leaves through {words(unsaid)}, and the check doesn't say so"
        for finding in about:
            is_excused = is_refused or self._is_hidden(finding, is_connected=is_connected)
            if passes_hops and (len(finding.devs) > 1 or finding.source is not None):
                is_excused = True
            if _is_router(finding, address) and "lo" in soon:
                continue
            if not (self._is_seen(finding, soon) or is_excused):
                yield f"{what} leaves through {words(devs)}, but: {finding.message}"

    def _is_hidden(self, finding: Finding, *, is_connected: bool) -> bool:
        """Return whether this kind of socket can't show what the finding says."""
        if self._called is not None:
            return finding.source is None
        return finding.source is not None and (finding.is_reply or not is_connected)

    def _is_fine(self, dev: str | None) -> bool:
        if dev is None:
            return False
        return dev in self._expected_devs or any(
            fnmatchcase(dev, pattern) for pattern in self._patterns
        )

    def _is_seen(self, finding: Finding, devs: Devs) -> bool:
        """Return whether a socket behaved as the finding says."""
        if finding.kind in _DROPS:
            return None in devs
        if finding.kind in (FindingKind.GATEWAY, FindingKind.PORT):
            return any(dev in devs for dev in finding.devs)
        if finding.source is not None and any(map(self._is_fine, finding.devs)):
            # Linux 6.15 and later prefer the hop whose own address is the source, and that hop is
            # always fine.
            return True
        # If only a bound of an exemption made it a failure, all of its interfaces are exempt
        # elsewhere.
        strays = [dev for dev in finding.devs if not self._is_fine(dev)] or finding.devs
        return any(dev in devs for dev in strays)


def _is_router(finding: Finding, address: IpAddress) -> bool:
    """Return whether an address is a router's that this host has, too."""
    return finding.gateway is not None and finding.gateway.local == address


def local_ranges(report: OverlapReport) -> list[IpNetwork]:
    """Return the ranges of the notes on local and broadcast addresses."""
    kinds = (NoteKind.LOCAL, NoteKind.BROADCAST)
    return [part for note in report.notes if note.kind in kinds for part in note.ranges]


def holds(ranges: Iterable[IpNetwork], address: IpAddress) -> bool:
    return any(address in part for part in ranges)


def words(devs: Iterable[str | None]) -> str:
    return ", ".join(sorted(dev or "nothing" for dev in devs))
