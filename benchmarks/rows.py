"""All comparisons. The ones with a limit come first."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from queue import Queue
from typing import TypeVar

import attrs

from benchmarks import fleet, machines, ways
from benchmarks.figures import Measured, Row
from benchmarks.measure import Contender, Span, run, side_by_side, timed
from benchmarks.snapshots import HOSTS, shadowed
from benchmarks.worlds import (
    World,
    WrongOutcomeError,
    batch_file,
    cidrs_of,
    routes6_of,
    routes_of,
    script,
)
from hostrouting.boot.render import render_static_routes
from hostrouting.cli.report import overlap_text
from hostrouting.config.routing import Config, RouteOverlap
from hostrouting.kernel.model import model_of
from hostrouting.kernel.port import Write, read_routes
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.waiting import look_until
from hostrouting.model.family import Family
from hostrouting.model.routes import NextHop, Route, Table
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import OverlapReport
from hostrouting.routes.verify import verify_routes
from hostrouting.watch._events import of_failures
from hostrouting.watch.metrics import check_metrics, exposition
from phases import CancelScope

T = TypeVar("T")
Install = Callable[[Sequence[Route]], Contender]
Check = Callable[[Sequence[IPv4Network], Sequence[Route]], Contender]

_NOWHERE = NextHop("eth0", IPv4Address("10.99.0.1"))
_EVERY = 7
_FEW = 10

# After this time, the waiter is asleep, and isn't about to make one of the checks that it makes
# every second.
_ASLEEP_SECONDS = 0.33

# Prints the peak memory of this process alone. The value of getrusage(2) includes the peak of the
# parent process.
_PEAK = """
import sys
from hostrouting.cli import main
status = main(sys.argv[1:])
lines = open("/proc/self/status")
print(next(line.split()[1] for line in lines if line.startswith("VmHWM:")), file=sys.stderr)
sys.exit(status)
"""


def _install(
    ours: Install,
    theirs: Install,
    size: int,
    rounds: int,
    see: Callable[[Sequence[Route]], list[str]] = lambda _: [],
) -> Measured:
    """Compare two ways to install routes.

    ``see`` verifies what the measured runs can't show, and returns notes.
    """
    routes = routes_of(size)
    return Measured(side_by_side(rounds, ours(routes), theirs(routes)), see(routes))


def _apply_ipv6(size: int, rounds: int) -> Measured:
    return Measured(
        side_by_side(rounds, ways.by_apply(routes6_of(size)), ways.by_apply(routes_of(size)))
    )


def _see_processes(make: Callable[[Sequence[T]], Path], some: Sequence[T]) -> list[str]:
    """Check that a boot script starts as many processes for few entries as for many."""
    few, many = (ways.count_processes(make(part)) for part in (some[:1], some))
    if few != many:
        raise WrongOutcomeError(f"{few} processes for one, and {many} for {len(some)}")
    return [f"{many} processes, for 1 as for {len(some):,}"]


def _see_attribution(routes: Sequence[Route]) -> list[str]:
    """Check that the backend returns exactly those routes that the kernel refuses."""
    mixed = [
        attrs.evolve(r, hops=(_NOWHERE,)) if n % _EVERY == 0 else r for n, r in enumerate(routes)
    ]
    bad, fine = mixed[::_EVERY], [route for number, route in enumerate(mixed) if number % _EVERY]
    with World() as world:
        failed = [failure.route for failure in world.backend.write(Write.ADD, mixed)]
        world.expect(fine)
    if failed != bad:
        raise WrongOutcomeError(f"{len(bad)} routes can't be installed, and {len(failed)} failed")
    return []


def _by_example(routes: Sequence[Route]) -> Contender:
    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    from pyroute2_backend import Pyroute2Backend

    return ways.by_backend(routes, Pyroute2Backend)


def _proof(size: int, rounds: int) -> Measured:
    routes = routes_of(size)
    questions = batch_file("get", [str(route.destination.network_address) for route in routes])

    def by_verify() -> Span:
        with World(fib=routes) as world:
            return timed(lambda: verify_routes(routes, world.backend))[0]

    def by_look_ups() -> Span:
        with World(fib=routes):
            return timed(lambda: run("ip", "-4", "-batch", "-", stdin=questions))[0]

    return Measured(side_by_side(rounds, by_verify, by_look_ups))


def _boot_check(theirs: Check, size: int, rounds: int, most: int = 1000) -> Measured:
    cidrs, fib = cidrs_of(min(most, size), size), routes_of(size)
    found = side_by_side(rounds, ways.by_boot_check(cidrs, fib), theirs(cidrs, fib))
    path = ways.check_script(cidrs)
    with World(has_infiniband=True, fib=fib) as world:
        world.backend.write(Write.DELETE, World.fixes[:1])
        done = subprocess.run([path], capture_output=True, text=True, check=False)
    if done.returncode != 1 or done.stderr.count("OVERLAP: ") != 1:
        raise WrongOutcomeError(
            f"the boot check of a shadowed CIDR ended with {done.returncode}: {done.stderr}"
        )
    return Measured(found, _see_processes(ways.check_script, cidrs))


def _boot_check_cpu(size: int, rounds: int) -> Measured:
    check = ways.by_boot_check(cidrs_of(min(_FEW, size), size), routes_of(size))
    return Measured(side_by_side(rounds, lambda: Span(check().cpu)))


def _look_up_all(_: Sequence[IPv4Network], fib: Sequence[Route]) -> Contender:
    """Look up an address for each route, however few CIDRs there are."""
    return ways.by_look_ups(cidrs_of(len(fib), len(fib)), fib)


def _check(size: int, rounds: int) -> Measured:
    cidrs = cidrs_of(min(1000, size), size)
    with World(has_infiniband=True, fib=routes_of(size)) as world:
        found = side_by_side(rounds, ways.by_check(world, cidrs), ways.by_ip_route_show)
        world.backend.write(Write.DELETE, World.fixes[:1])
        report = check_overlap(ways.expecting(cidrs), world.backend, CancelScope())
    if [finding.cidr for finding in report.findings] != [cidrs[0]]:
        raise WrongOutcomeError(
            f"the check of a shadowed CIDR found {len(report.findings)} failures"
        )
    return Measured(found)


def _doubled(
    make: Callable[[int], tuple[Snapshot, RouteOverlap]], size: int, rounds: int
) -> Measured:
    def checking(count: int) -> Contender:
        recorded, overlap = make(count)
        config = Config(route_overlap=overlap, uplinks=("eth0",))

        def contender() -> Span:
            span, report = timed(
                lambda: check_overlap(config, model_of(recorded.known(Family.IPV4)), CancelScope())
            )
            told = len(report.notes) + len(report.fix.routes) + len(report.fix.unfixable)
            if told < count:
                raise WrongOutcomeError(
                    f"the check of {count} returned {told}: {report.reason or report.verdict}"
                )
            return span

        return contender

    return Measured(side_by_side(rounds, checking(size), checking(size // 2)))


def _growth_of_failures(output: Callable[[OverlapReport], str], size: int, rounds: int) -> Measured:
    """Compare the check of failing CIDRs, and its output, with that of a fourth of the CIDRs."""

    def checking(count: int) -> Contender:
        recorded, overlap = shadowed(count)
        config = Config(route_overlap=overlap)

        def checked() -> tuple[OverlapReport, str]:
            report = check_overlap(config, model_of(recorded.known(Family.IPV4)), CancelScope())
            return report, output(report)

        def contender() -> Span:
            span, (report, text) = timed(checked)
            if len(report.findings) != count or str(overlap.expected_cidrs[0]) not in text:
                raise WrongOutcomeError(f"{len(report.findings)} of {count} fail")
            return span

        return contender

    return Measured(side_by_side(rounds, checking(size), checking(size // 4)))


OUTPUTS: dict[str, Callable[[OverlapReport], str]] = {
    "text": overlap_text,
    "JSON": lambda report: json.dumps(report.to_json()),
    "Prometheus": lambda report: exposition(*check_metrics(report, 0)),
    "the watcher": lambda report: "".join(event.message for event in of_failures(None, report, ())),
}
"""The outputs of a check, each with a function that returns a report in that format."""


def _memory(size: int, rounds: int) -> Measured:
    small = min(1000, size)
    words = [word for cidr in cidrs_of(small, small) for word in ("--cidr", str(cidr))]

    def peak() -> Span:
        process = [sys.executable, "-c", _PEAK, "check", *words]
        done = subprocess.run(
            process, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True, text=True
        )
        return Span(int(done.stderr) * 1024)

    with World(has_infiniband=True, fib=routes_of(small)) as world:
        theirs = side_by_side(rounds, peak)
        world.fill(routes_of(size)[small:])
        ours = side_by_side(rounds, peak)
    return Measured([(*one, *other) for one, other in zip(ours, theirs, strict=True)])


def _cold_start(_: int, rounds: int) -> Measured:
    def by_check() -> Span:
        return timed(
            lambda: run(sys.executable, "-m", "hostrouting", "check", "--cidr", "10.96.0.0/12")
        )[0]

    def by_import() -> Span:
        return timed(lambda: run(sys.executable, "-c", "import attrs"))[0]

    with World():
        by_check()  # compile the modules
        return Measured(side_by_side(rounds, by_check, by_import))


def _script_goes_on(size: int, rounds: int) -> Measured:
    """Measure how long a script that waits for the default route runs once it exists."""
    routes = routes_of(size)
    static = {
        "enabled": True,
        "routes": [{"destination": str(route.destination)} for route in routes],
    }
    path = script("static-routes.sh", render_static_routes(Config(static_routes=static)))

    def wait() -> Span:
        with World(has_default=False) as world:
            with subprocess.Popen([path], stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                if not process.stdout.readline().startswith("waiting "):
                    raise WrongOutcomeError("the boot script didn't wait for a default route")
                time.sleep(_ASLEEP_SECONDS)
                start = time.perf_counter()
                world.fill([World.default])
                process.wait()
                took = time.perf_counter() - start
            world.expect(routes)
        return Span(round(took, 6))

    return Measured(side_by_side(rounds, wait))


def _wait_of_backend() -> Span:
    seen: Queue[float] = Queue()
    is_waiting = threading.Event()

    with World(has_default=False) as world:

        def find_missing() -> str | None:
            is_there = any(
                route.destination.prefixlen == 0 for route in read_routes(world.backend, Table.MAIN)
            )
            is_waiting.set()
            return None if is_there else "the default route"

        def wait() -> None:
            scope = CancelScope()
            look_until(world.backend, scope, scope.clock.monotonic(), 30, find_missing)
            seen.put(time.perf_counter())

        waiter = threading.Thread(target=wait)
        waiter.start()
        is_waiting.wait()
        time.sleep(_ASLEEP_SECONDS)
        start = time.perf_counter()
        world.fill([World.default])
        took = seen.get(timeout=30) - start
        waiter.join()
    return Span(round(took, 6))


# fmt: off
_BATCH, _SHOW = "ip -batch, the same routes", "ip route show table all"
_IMPORT = "`python3 -c 'import attrs'`"
_SCRIPT, _CHECK = "boot script, 1,000 routes", "boot check, 1,000 CIDRs, FIB of 1,000"
_OURS = partial(_install, ways.by_backend)
_APPLY = partial(_install, ways.by_apply, ways.by_ip_batch)

ROWS = (
    Row("boot-routes", _SCRIPT, _BATCH, 4, 1000, 11,
        partial(_install, ways.by_boot_script, ways.by_ip_batch,
                see=partial(_see_processes, ways.routes_script))),
    Row("boot-route", "boot script, 1 explicit route", "one ip route replace in bash", 6, 1, 21,
        partial(_install, ways.by_boot_script, ways.by_one_ip_a_route)),
    Row("boot-check", _CHECK, "ip -batch, 1,000 route get", 8, 1000, 11,
        partial(_boot_check, ways.by_look_ups)),
    Row("boot-check-few", "boot check, 10 CIDRs, FIB of 1,000", "ip -batch, 1,000 route get", 12,
        1000, 11, partial(_boot_check, _look_up_all, most=_FEW)),
    Row("boot-check-100k", "CPU time of the boot check, 10 CIDRs, FIB of 100,000", "", 5,
        100_000, 3, _boot_check_cpu),
    Row("backend-100k", "backend, 100,000 routes", _BATCH, 0.6, 100_000, 5,
        partial(_OURS, ways.by_ip_batch, see=_see_attribution)),
    Row("backend-10k", "backend, 10,000 routes", _BATCH, 0.7, 10_000, 9,
        partial(_OURS, ways.by_ip_batch, see=_see_attribution)),
    Row("proof", "proof that 100,000 routes win", "ip -batch, 100,000 route get", 1, 100_000, 5,
        _proof),
    Row("check-100k", "check, 1,000 CIDRs, FIB of 100,000", _SHOW, 0.65, 100_000, 5, _check),
    Row("check-1m", "check, 1,000 CIDRs, FIB of 1,000,000", _SHOW, 0.45, 1_000_000, 5, _check),
    Row("memory", "peak memory of a check, FIB of 1,000,000", "the same, FIB of 1,000", 1.2,
        1_000_000, 5, _memory, is_memory=True),
    *(
        Row(f"growth-{name}", f"check a snapshot, 1,000 {what}", "the same, 500", 2.3, 1000, 5,
            partial(_doubled, make))
        for name, (what, make) in HOSTS.items()
    ),
    *(
        Row(f"growth-{what.split()[-1].lower()}", f"check a snapshot, 8,000 failing CIDRs: {what}",
            "the same, 2,000", 5, 8000, 5, partial(_growth_of_failures, output))
        for what, output in OUTPUTS.items()
    ),
    Row("apply-10k", "apply --routes-only, 10,000 routes", _BATCH, 4.5, 10_000, 9, _APPLY),
    Row("apply-100k", "apply --routes-only, 100,000 routes", _BATCH, 3.5, 100_000, 5, _APPLY),
    Row("apply-100k-named", "the same, each route with its gateway and device", _BATCH, 3.5,
        100_000, 5, partial(_install, partial(ways.by_apply, names_all=True), ways.by_ip_batch)),
    Row("apply-same", "CPU time of apply, 1,000 routes, units and gate: nothing changed", _IMPORT,
        4, 1000, 11, partial(machines.apply, False)),
    Row("apply-few", "CPU time of apply, 1,000 routes, units and gate: 10 changed", _IMPORT, 5,
        1000, 11, partial(machines.apply, True)),
    Row("apply-ipv6", "apply --routes-only, 10,000 IPv6 routes", "the same, IPv4", 1.3, 10_000, 15,
        _apply_ipv6),
    Row("cold-start", "cold start of hostrouting check --cidr C", _IMPORT, 2.5, 1, 21, _cold_start),
    Row("wait-script", "default route appears → boot script has installed 1 route", "", 0.1, 1, 11,
        _script_goes_on),
    Row("wait-backend", "default route appears → the backend returns from its wait", "", 0.005, 1,
        21, lambda _, rounds: Measured(side_by_side(rounds, _wait_of_backend))),
    Row("judge", "judge, 10,000 snapshots: CPU time per snapshot", "", 0.01, 10_000, 3, fleet.cpu),
    Row("judge-memory", "memory of hostrouting.judge, 10,000 snapshots", "the same, 1,000", 1.2,
        10_000, 3, fleet.memory, is_memory=True),
    Row("judge-page", "judge: Chromium opens the page of 10,000 hosts", "", 2, 10_000, 5,
        fleet.opening),
    Row("boot-routes-one-by-one", _SCRIPT, "one ip process per route", None, 1000, 5,
        partial(_install, ways.by_boot_script, ways.by_one_ip_a_route)),
    Row("boot-check-one-by-one", _CHECK, "one probe by ip and awk per CIDR", None, 1000, 5,
        partial(_boot_check, ways.by_ip_and_awk_a_cidr)),
    Row("backend-pyroute2", "backend, 10,000 routes", "a plain loop over pyroute2", None, 10_000, 5,
        partial(_OURS, ways.by_pyroute2)),
    Row("backend-example", "backend, 1,000 routes", "examples/pyroute2_backend.py", None, 1000, 5,
        partial(_OURS, _by_example)),
)
# fmt: on
