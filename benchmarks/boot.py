"""The scripts that run at boot, from their start to their end, by this machine's mawk if it has one."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from benchmarks.figures import Figures, Measured, Row
from benchmarks.measure import Span, alternate, run, timed
from benchmarks.reference import check_script, routes_script, words_of
from benchmarks.worlds import World, WrongOutcomeError, batch_file, cidrs_of, routes_of, script
from hostrouting.boot.layout import Layout
from hostrouting.boot.render import render_check_route_overlap_script, render_static_routes_script
from hostrouting.config.routing import StaticRoute

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from ipaddress import IPv4Network
    from pathlib import Path

    from benchmarks.worlds import Effort
    from hostrouting.model.routes import Route

__all__ = [
    "ROWS",
    "by_batch_of_look_ups",
    "by_boot_check",
    "by_boot_script",
    "by_ip_batch",
    "by_reference_check",
    "by_reference_script",
]

# The last pid of a namespace tells how many processes a command has made there, its own apart.
_COUNT = r"""
read -r before </proc/sys/kernel/ns_last_pid
"$@" >/dev/null
read -r after </proc/sys/kernel/ns_last_pid
echo $((after - before))
"""


# --- routes ------------------------------------------------------------------------------------------------------


def static_routes_script(routes: Sequence[Route]) -> str:
    """The boot script for routes that name gateway and device."""
    return render_static_routes_script(
        [StaticRoute(str(r.destination), gateway=str(r.hops[0].gateway), dev=r.hops[0].dev) for r in routes]
    )


def _installing(routes: Sequence[Route], path: Path) -> Callable[[], Span]:
    def contender() -> Span:
        with World() as world:
            span, _ = timed(lambda: run(path))
            world.expect(routes)
        return span

    return contender


def by_boot_script(routes: Sequence[Route]) -> Callable[[], Span]:
    """The script that hostrouting renders."""
    return _installing(routes, script("static-routes.sh", static_routes_script(routes)))


def by_reference_script(routes: Sequence[Route]) -> Callable[[], Span]:
    """A script with one ip for each route."""
    return _installing(routes, script("one-process-per-route.sh", routes_script(routes)))


def by_ip_batch(routes: Sequence[Route]) -> Callable[[], Span]:
    """One ip for all."""

    def contender() -> Span:
        with World() as world:
            commands = batch_file("add", list(map(words_of, routes)))
            span, _ = timed(lambda: run("ip", "-4", "-batch", "-", stdin=commands))
            world.expect(routes)
        return span

    return contender


def _boot_routes(effort: Effort) -> Measured:
    routes = routes_of(effort.size(1000))
    ours, theirs = alternate(effort.rounds(11), by_boot_script(routes), by_ip_batch(routes))
    return Measured(Figures.of_spans(ours), Figures.of_spans(theirs), _process_note(routes))


def _process_note(routes: Sequence[Route]) -> tuple[str, ...]:
    """How many processes the boot script starts, which its routes must not change."""
    few, many = (
        _count_processes(script("static-routes.sh", static_routes_script(some))) for some in (routes[:1], routes)
    )
    if few != many:
        raise WrongOutcomeError(f"the boot script starts {few} processes for a route and {many} for {len(routes)}")
    return (f"{many} processes, for 1 route as for {len(routes):,}",)


def _count_processes(path: Path) -> int:
    # What an earlier run has left costs a process to remove.
    shutil.rmtree(Layout().marker_ok.parent, ignore_errors=True)
    with World(has_infiniband=True):
        inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", _COUNT, "bash", str(path)]
        return int(subprocess.run(inside, stdout=subprocess.PIPE, check=True).stdout)


def _boot_route(effort: Effort) -> Measured:
    routes = routes_of(1)
    words = f"{routes[0].destination} {routes[0].hops[0].words()} proto {routes[0].protocol:d}"
    one_ip = script("one-route.sh", f"#!/bin/bash\nip -4 route replace {words}\n")
    ours, theirs = alternate(effort.rounds(21), by_boot_script(routes), _installing(routes, one_ip))
    return Measured(Figures.of_spans(ours), Figures.of_spans(theirs))


def _against_reference(effort: Effort) -> Measured:
    routes = routes_of(effort.size(1000))
    ours, theirs = alternate(effort.rounds(), by_boot_script(routes), by_reference_script(routes))
    return Measured(Figures.of_spans(ours), Figures.of_spans(theirs))


# --- the check ---------------------------------------------------------------------------------------------------


def _judging(fib: Sequence[Route], path: Path) -> Callable[[], Span]:
    def contender() -> Span:
        with World(has_infiniband=True) as world:
            world.fill(fib)
            span, _ = timed(lambda: run(path))
        return span

    return contender


def by_boot_check(cidrs: Sequence[IPv4Network], fib: Sequence[Route]) -> Callable[[], Span]:
    """The script that hostrouting renders: all of each CIDR."""
    judge = _judging(fib, script("check-route-overlap.sh", render_check_route_overlap_script(cidrs, "STRICT")))

    def contender() -> Span:
        marker = Layout().marker_ok
        marker.unlink(missing_ok=True)
        span = judge()
        if not marker.exists():
            raise WrongOutcomeError(f"the boot check left no {marker}")
        return span

    return contender


def by_reference_check(cidrs: Sequence[IPv4Network], fib: Sequence[Route]) -> Callable[[], Span]:
    """A script with an ip and an awk for each CIDR: one address of each."""
    return _judging(fib, script("two-processes-per-cidr.sh", check_script(cidrs)))


def by_batch_of_look_ups(cidrs: Sequence[IPv4Network], fib: Sequence[Route]) -> Callable[[], Span]:
    """One ip that looks up one address of each."""

    def contender() -> Span:
        with World(has_infiniband=True) as world:
            world.fill(fib)
            commands = batch_file("get", [str(cidr.network_address + 1) for cidr in cidrs])
            answers = commands.with_name("answers")
            span, _ = timed(lambda: run("ip", "-4", "-o", "-batch", "-", stdin=commands, stdout=answers))
            if (there := answers.read_text().count(" dev eth0 ")) != len(cidrs):
                raise WrongOutcomeError(f"ip gave {there} answers by eth0 to {len(cidrs)} questions")
        return span

    return contender


def _boot_check(effort: Effort) -> Measured:
    size = effort.size(1000)
    cidrs, fib = cidrs_of(size, size), routes_of(size)
    ours, theirs = alternate(effort.rounds(11), by_boot_check(cidrs, fib), by_batch_of_look_ups(cidrs, fib))
    see_that_it_fails(cidrs, fib)
    few, many = (
        _count_processes(script("check-route-overlap.sh", render_check_route_overlap_script(some, "STRICT")))
        for some in (cidrs[:1], cidrs)
    )
    if few != many:
        raise WrongOutcomeError(f"the boot check starts {few} processes for a CIDR and {many} for {len(cidrs)}")
    note = f"{many} processes, for 1 CIDR as for {len(cidrs):,}"
    return Measured(Figures.of_spans(ours), Figures.of_spans(theirs), (note,))


def see_that_it_fails(cidrs: Sequence[IPv4Network], fib: Sequence[Route]) -> None:
    """See that the boot check isn't quick because it is blind: without a route that mends one CIDR fails.

    Raises:
        WrongOutcomeError: it doesn't.
    """
    path = script("check-route-overlap.sh", render_check_route_overlap_script(cidrs, "STRICT"))
    with World(has_infiniband=True) as world:
        world.fill(fib)
        world.backend.delete(World.mends[:1])
        done = subprocess.run([path], capture_output=True, text=True, check=False)
    if done.returncode != 1 or done.stderr.count("OVERLAP: ") != 1:
        raise WrongOutcomeError(f"the boot check of a shadowed CIDR ended with {done.returncode}: {done.stderr}")


def _check_against_reference(effort: Effort) -> Measured:
    size = effort.size(1000)
    cidrs, fib = cidrs_of(size, size), routes_of(size)
    ours, theirs = alternate(effort.rounds(), by_boot_check(cidrs, fib), by_reference_check(cidrs, fib))
    return Measured(Figures.of_spans(ours), Figures.of_spans(theirs))


ROWS = (
    Row("boot-routes", "boot script, 1,000 routes", "ip -batch, the same routes", _boot_routes, 4),
    Row("boot-route", "boot script, 1 explicit route", "one ip route replace in bash", _boot_route, 6),
    Row("boot-check", "boot check, 1,000 CIDRs, FIB of 1,000", "ip -batch, 1,000 route get", _boot_check, 6),
    Row("boot-routes-one-by-one", "boot script, 1,000 routes", "one ip process a route", _against_reference),
    Row(
        "boot-check-one-by-one",
        "boot check, 1,000 CIDRs, FIB of 1,000",
        "one probe, ip and awk a CIDR",
        _check_against_reference,
    ),
)
