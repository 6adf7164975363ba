"""Compare the effect of a fix on a host with what the fix promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import phases
from hostrouting import Config, Host, Layout, StaticRoutes
from hostrouting.tasks.install_routes import InstallRoutes
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from ipaddress import IPv4Address
    from pathlib import Path

    from brute_force import Sort

    from hostrouting import OverlapReport, StaticRoute
    from hostrouting.kernel.port import Kernel
    from hostrouting.overlap.findings import Fix, Unfixable


def install(kernel: Kernel, entries: Sequence[StaticRoute], root: Path) -> None:
    """Install these static routes and no others.

    Args:
        kernel: the host's kernel.
        entries: the routes, as in a config.
        root: the folder that contains the lock.
    """
    config = Config(static_routes=StaticRoutes(enabled=bool(entries), routes=entries), wait_seconds=0)
    InstallRoutes(config, host=Host(routes=kernel, units=FakeSystemd(), layout=Layout(root))).do(phases.CancelScope())


def failing(sorts: Mapping[IPv4Address, Sort]) -> set[IPv4Address]:
    return {address for address, sort in sorts.items() if sort.is_failure or sort.more}


def found(report: OverlapReport) -> set[IPv4Address]:
    """Return the failing addresses that a check reports, which other tests compare with brute force."""
    return {address for finding in report.findings for part in finding.ranges for address in part}


def covered(entries: Iterable[StaticRoute]) -> set[IPv4Address]:
    return {address for entry in entries for address in entry.destination}


def changed(fix: Fix, before: Mapping[IPv4Address, Sort], after: Mapping[IPv4Address, Sort]) -> set[IPv4Address]:
    """Return the addresses that a fix has changed although it doesn't name them, or although they were fine."""

    def may_change(address: IPv4Address) -> bool:
        return before[address].is_failure and any(address in entry.destination for entry in fix.routes)

    return {address for address in before if after[address] != before[address] and not may_change(address)}


def is_told(address: IPv4Address, parts: Iterable[Unfixable]) -> bool:
    """Return whether an address is among those that no route fixes."""
    return any(address in network for part in parts for network in part.ranges)
