"""Compare a fix's actual effect on a host with its predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from brute_force import Sort

import phases
from hostrouting import Config, Host, Layout, OverlapReport, StaticRoute, StaticRoutes
from hostrouting.kernel.port import Kernel
from hostrouting.model.family import IpAddress
from hostrouting.overlap.proposals import Fix, Unfixable
from hostrouting.tasks.install_routes import InstallRoutes
from hostrouting.testing import FakeSystemd


def install(kernel: Kernel, entries: Sequence[StaticRoute], root: Path) -> None:
    """Install exactly these static routes.

    Args:
        kernel: the host's kernel.
        entries: the routes as in a config.
        root: the directory for the lock.
    """
    config = Config(
        static_routes=StaticRoutes(enabled=bool(entries), routes=entries), wait_seconds=0
    )
    InstallRoutes(config, host=Host(routes=kernel, units=FakeSystemd(), layout=Layout(root))).do(
        phases.CancelScope()
    )


def failing(sorts: Mapping[IpAddress, Sort]) -> set[IpAddress]:
    return {address for address, sort in sorts.items() if sort.is_failure or sort.more}


def found(report: OverlapReport) -> set[IpAddress]:
    """Return the failing addresses in a report; other tests compare these with brute force."""
    return {address for finding in report.findings for part in finding.ranges for address in part}


def covered(entries: Iterable[StaticRoute]) -> set[IpAddress]:
    return {address for entry in entries for address in entry.destination}


def changed(
    fix: Fix, before: Mapping[IpAddress, Sort], after: Mapping[IpAddress, Sort]
) -> set[IpAddress]:
    """Return the addresses that a fix changed although they were fine or aren't part of the fix."""

    def may_change(address: IpAddress) -> bool:
        return before[address].has_failure and any(
            address in entry.destination for entry in fix.routes
        )

    return {
        address
        for address in before
        if after[address] != before[address] and not may_change(address)
    }


def is_told(address: IpAddress, parts: Iterable[Unfixable]) -> bool:
    """Return whether an address is in one of the unfixable parts."""
    return any(address in network for part in parts for network in part.ranges)
