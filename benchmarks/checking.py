"""The check, in this process, from a config to a judged report; and the memory that it takes as one of its own."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.figures import Figures, Measured, Row
from benchmarks.measure import Span, alternate, run, timed
from benchmarks.reference import dump_by_pyroute2
from benchmarks.worlds import SCRATCH, World, WrongOutcomeError, cidrs_of, routes_of
from hostrouting.boot.host import Host
from hostrouting.boot.layout import Layout
from hostrouting.config.routing import Config, OverlapMode, RouteOverlap
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import Verdict
from hostrouting.testing import FakeSystemd
from phases import CancelScope

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from ipaddress import IPv4Network

    from benchmarks.worlds import Effort

__all__ = ["ROWS", "checking", "dumping", "dumping_by_pyroute2"]

# A process's highest so far, which unlike getrusage's doesn't begin with that of the process that started it.
_PEAK = """
import sys
from hostrouting.cli import main
status = main(sys.argv[1:])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")), file=sys.stderr)
sys.exit(status)
"""


def checking(world: World, cidrs: Sequence[IPv4Network]) -> Callable[[], Span]:
    """Judge CIDRs in a world that stays as it is."""
    config = Config(route_overlap=RouteOverlap([str(cidr) for cidr in cidrs], mode=OverlapMode.STRICT))
    host = Host(routes=world.backend, units=FakeSystemd(), layout=Layout(SCRATCH))

    def contender() -> Span:
        span, report = timed(lambda: check_overlap(config.route_overlap, host.routes, CancelScope()))
        if report.verdict is not Verdict.OK:
            raise WrongOutcomeError(f"the verdict is {report.verdict}: {report.reason or report.findings[0].message}")
        return span

    return contender


def see_that_it_finds(world: World, cidrs: Sequence[IPv4Network]) -> None:
    """See that the check isn't quick because it is blind: without one of the routes that mend, one CIDR fails.

    Raises:
        WrongOutcomeError: it doesn't.
    """
    config = Config(route_overlap=RouteOverlap([str(cidr) for cidr in cidrs], mode=OverlapMode.STRICT))
    host = Host(routes=world.backend, units=FakeSystemd(), layout=Layout(SCRATCH))
    world.backend.delete(World.mends[:1])
    report = check_overlap(config.route_overlap, host.routes, CancelScope())
    if [finding.cidr for finding in report.findings] != [cidrs[0]]:
        raise WrongOutcomeError(f"the check of a shadowed CIDR found {len(report.findings)} failures")


def dumping() -> Span:
    """List all tables with ip."""
    return timed(lambda: run("ip", "-4", "route", "show", "table", "all"))[0]


def dumping_by_pyroute2(at_least: int) -> Callable[[], Span]:
    """List all tables with pyroute2."""

    def contender() -> Span:
        span, count = timed(dump_by_pyroute2)
        if count < at_least:
            raise WrongOutcomeError(f"pyroute2 listed {count} routes of {at_least}")
        return span

    return contender


def _check(count: int, effort: Effort) -> Measured:
    size = effort.size(count)
    wanted = effort.size(1000)
    cidrs, clear = cidrs_of(wanted, size), cidrs_of(wanted, size, is_clear=True)
    with World(has_infiniband=True) as world:
        world.fill(routes_of(size))
        ours, others, theirs = alternate(effort.rounds(), checking(world, cidrs), checking(world, clear), dumping)
        see_that_it_finds(world, cidrs)
    figures, at_best = Figures.of_spans(theirs), Figures.of_spans(others)
    note = f"{at_best.median / figures.median:.2f}x where no CIDR meets another interface's prefix"
    return Measured(Figures.of_spans(ours), figures, (note,))


def _memory(effort: Effort) -> Measured:
    small, large = effort.size(1000), effort.size(1_000_000)
    cidrs = cidrs_of(effort.size(1000), small)
    rounds = effort.rounds()
    with World(has_infiniband=True) as world:
        world.fill(routes_of(small))
        theirs = [_peak(cidrs) for _ in range(rounds)]
        world.fill(routes_of(large)[small:])
        ours = [_peak(cidrs) for _ in range(rounds)]
    return Measured(Figures.of(ours), Figures.of(theirs))


def _peak(cidrs: Sequence[IPv4Network]) -> float:
    words = [word for cidr in cidrs for word in ("--cidr", str(cidr))]
    process = [sys.executable, "-c", _PEAK, "check", *words]
    done = subprocess.run(process, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True, text=True)
    return int(done.stderr) * 1024.0


_IP = "ip route show table all"

ROWS = (
    Row("check-100k", "check, 1,000 CIDRs, FIB of 100,000", _IP, partial(_check, 100_000), 0.65),
    Row("check-1m", "check, 1,000 CIDRs, FIB of 1,000,000", _IP, partial(_check, 1_000_000), 0.45),
    Row("memory", "peak memory of a check, FIB of 1,000,000", "the same, FIB of 1,000", _memory, 1.2, is_memory=True),
)
