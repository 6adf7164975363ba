"""Compare a fix's actual effect on a host with its predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from brute_force import Sort

import phases
from hostrouting import (
    Config,
    Host,
    Layout,
    OverlapReport,
    RouteOverlap,
    StaticRoute,
    StaticRoutes,
)
from hostrouting.boot.files import write_if_changed
from hostrouting.config.routing import Keep, StaticRule
from hostrouting.kernel.port import Kernel
from hostrouting.model.family import IpAddress
from hostrouting.model.verified_uplinks import VerifiedUplink, verified_text
from hostrouting.overlap.proposals import Fix, Unfixable
from hostrouting.tasks.install_routes import InstallRoutes
from hostrouting.testing import FakeSystemd


def install(
    kernel: Kernel,
    entries: Sequence[StaticRoute],
    root: Path,
    rules: Sequence[StaticRule] = (),
    keep: Sequence[Keep] = (),
    verified: Sequence[VerifiedUplink] = (),
) -> None:
    """Install exactly these static routes, rules and kept interfaces.

    Args:
        kernel: the host's kernel.
        entries: the routes as in a config.
        root: the directory for the lock.
        rules: the rules.
        keep: the interfaces to keep.
        verified: the recorded uplinks, which count in STRICT mode.
    """
    static = StaticRoutes(enabled=True, routes=entries, rules=rules, keep=keep)
    overlap = RouteOverlap(["10.96.0.0/12"], "STRICT") if verified else RouteOverlap()
    config = Config(static_routes=static, route_overlap=overlap, wait_seconds=0)
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(root))
    write_if_changed(host.layout.verified, verified_text(verified))
    InstallRoutes(config, host=host).do(phases.CancelScope())


def failing(sorts: Mapping[IpAddress, Sort]) -> set[IpAddress]:
    return {address for address, sort in sorts.items() if sort.is_failure or sort.more}


def found(report: OverlapReport) -> set[IpAddress]:
    """Return the failing addresses in a report; other tests compare these with brute force."""
    return {address for finding in report.findings for part in finding.ranges for address in part}


def covered(entries: Iterable[StaticRoute], rules: Iterable[StaticRule] = ()) -> set[IpAddress]:
    of_rules = {address for rule in rules for address in rule.to}
    return of_rules | {address for entry in entries for address in entry.destination}


def changed(
    fix: Fix, before: Mapping[IpAddress, Sort], after: Mapping[IpAddress, Sort]
) -> set[IpAddress]:
    """Return the addresses that a fix changed although they were fine or aren't part of the fix."""

    may = covered(fix.routes, fix.rules)

    def may_change(address: IpAddress) -> bool:
        return before[address].has_failure and address in may

    return {
        address
        for address in before
        if after[address] != before[address] and not may_change(address)
    }


def is_told(address: IpAddress, parts: Iterable[Unfixable]) -> bool:
    """Return whether an address is in one of the unfixable parts."""
    return any(address in network for part in parts for network in part.ranges)
