"""Contenders that install routes or check CIDRs. Some of them use hostrouting."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network
from pathlib import Path

from pyroute2 import IPRoute

from benchmarks.measure import Contender, Span, run, timed
from benchmarks.worlds import SCRATCH, World, WrongOutcomeError, batch_file, script, words_of
from hostrouting.backend import RouteBackend, Write
from hostrouting.boot.layout import Layout
from hostrouting.boot.render import render_check, render_static_routes
from hostrouting.config.routing import Config, OverlapMode, RouteOverlap, StaticRoute
from hostrouting.kernel.selection import Selection
from hostrouting.model.routes import Route, Table
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import Verdict
from phases import CancelScope

# Prints how many processes a command starts besides its own, which is the change of the last pid in
# the namespace.
_COUNT = r"""
read -r before </proc/sys/kernel/ns_last_pid
"$@" >/dev/null
read -r after </proc/sys/kernel/ns_last_pid
echo $((after - before))
"""

_IP_AND_AWK_A_CIDR = r"""#!/bin/bash
set -euo pipefail
device_in() {
  awk '{ for (i = 1; i < NF; i++) if ($i == "dev") { print $(i + 1); exit } }'
}
check() {
  first=${1%/*}
  probe=${first%.*}.$((${first##*.} + 1))
  actual=$(ip -4 route get "$probe" | device_in)
  if [ "$actual" != "$expected" ]; then
    echo "OVERLAP: expected CIDR $1 (probe $probe) routes via $actual, expected $expected" >&2
    exit 1
  fi
}
expected=$(ip -4 route show default | device_in)
"""


def installing(routes: Sequence[Route], install: Callable[[], object]) -> Contender:
    """Return a contender that installs routes in a new world each time."""

    def contender() -> Span:
        with World(family=routes[0].family) as world:
            span, _ = timed(install)
            world.expect(routes)
        return span

    return contender


def by_backend(
    routes: Sequence[Route], backend: Callable[[], RouteBackend] | None = None
) -> Contender:
    """Write routes and read them back with a backend, by default ``NetlinkBackend``."""

    def contender() -> Span:
        with World() as world:
            port = world.backend if backend is None else backend()
            # This is how the verification reads the routes.
            span, (failures, there) = timed(
                lambda: (port.write(Write.ADD, routes), port.entries(Selection(Table.MAIN)))
            )
            if failures:
                raise WrongOutcomeError(f"{len(failures)} routes failed: {failures[0]}")
            world.expect(
                routes,
                tuple(there),
            )
        return span

    return contender


def by_pyroute2(routes: Sequence[Route]) -> Contender:
    """Add routes one by one, as the documentation of pyroute2 shows. The import isn't measured."""

    def install() -> None:
        with IPRoute() as netlink:
            index = netlink.link_lookup(ifname="eth0")[0]
            for route in routes:
                (hop,) = route.hops
                netlink.route(
                    "add",
                    dst=str(route.destination),
                    gateway=str(hop.gateway),
                    oif=index,
                    proto=route.protocol,
                )

    return installing(routes, install)


def by_ip_batch(routes: Sequence[Route]) -> Contender:
    """Run ip once for all routes."""
    commands = batch_file("add", list(map(words_of, routes)))
    return installing(routes, lambda: run("ip", "-4", "-batch", "-", stdin=commands))


def by_boot_script(routes: Sequence[Route]) -> Contender:
    """Run the boot script that hostrouting renders for the routes."""
    path = routes_script(routes)
    return installing(routes, lambda: run(path))


def routes_script(routes: Sequence[Route]) -> Path:
    """Render the boot script for routes that specify a gateway and a device."""
    static = [
        StaticRoute(str(r.destination), gateway=str(r.hops[0].gateway), dev=r.hops[0].dev)
        for r in routes
    ]
    return script(
        "static-routes.sh",
        render_static_routes(Config(static_routes={"enabled": True, "routes": static})),
    )


def by_one_ip_a_route(routes: Sequence[Route]) -> Contender:
    """Run a script that runs ip once for each route."""
    calls = "".join(f"ip -4 route replace {words_of(route)}\n" for route in routes)
    path = script("one-ip-a-route.sh", f"#!/bin/bash\nset -e\n{calls}")
    return installing(routes, lambda: run(path))


def by_apply(routes: Sequence[Route], *, names_all: bool = False) -> Contender:
    """Run ``hostrouting apply`` in a new process, from config file to report file.

    Args:
        routes: the routes.
        names_all: whether the config names the gateway and the device of each route, which it would
            inherit.
    """
    hop = routes[0].hops[0]
    named = {"gateway": str(hop.gateway), "dev": str(hop.dev)} if names_all else {}
    entries = [{"destination": str(route.destination)} | named for route in routes]
    config, report = SCRATCH / f"config-{routes[0].family}.json", SCRATCH / "report"
    config.write_text(
        json.dumps({"hostRouting": {"staticRoutes": {"enabled": True, "routes": entries}}})
    )
    words = (sys.executable, "-m", "hostrouting", "apply", "--routes-only", config)
    return installing(routes, lambda: run(*words, stdout=report))


def by_boot_check(cidrs: Sequence[IPv4Network], fib: Sequence[Route]) -> Contender:
    """Run the boot check that hostrouting renders. It judges every address of each CIDR."""
    path = check_script(cidrs)

    def contender() -> Span:
        marker = Layout().marker_ok
        marker.unlink(missing_ok=True)
        with World(has_infiniband=True, fib=fib):
            span, _ = timed(lambda: run(path))
        if not marker.exists():
            raise WrongOutcomeError(f"the boot check left no {marker}")
        return span

    return contender


def check_script(cidrs: Sequence[IPv4Network]) -> Path:
    """Render the boot check."""
    return script(
        "check-route-overlap.sh", render_check(Config(route_overlap=RouteOverlap(cidrs, "STRICT")))
    )


def by_ip_and_awk_a_cidr(cidrs: Sequence[IPv4Network], fib: Sequence[Route]) -> Contender:
    """Run a script that looks up one address of each CIDR with ip and awk."""
    path = script(
        "ip-and-awk-a-cidr.sh",
        "".join([_IP_AND_AWK_A_CIDR, *(f"check {cidr}\n" for cidr in cidrs)]),
    )

    def contender() -> Span:
        with World(has_infiniband=True, fib=fib):
            return timed(lambda: run(path))[0]

    return contender


def by_look_ups(cidrs: Sequence[IPv4Network], fib: Sequence[Route]) -> Contender:
    """Run ip once to look up one address of each CIDR."""
    commands, answers = batch_file("get", [str(cidr[1]) for cidr in cidrs]), SCRATCH / "answers"

    def contender() -> Span:
        with World(has_infiniband=True, fib=fib):
            span, _ = timed(
                lambda: run("ip", "-4", "-o", "-batch", "-", stdin=commands, stdout=answers)
            )
        if (there := answers.read_text().count(" dev eth0 ")) != len(cidrs):
            raise WrongOutcomeError(f"ip gave {there} lookups through eth0 for {len(cidrs)} CIDRs")
        return span

    return contender


def count_processes(path: Path) -> int:
    """Count the processes that a boot script starts."""
    # The script would need another process to remove the files of an earlier run.
    shutil.rmtree(Layout().marker_ok.parent, ignore_errors=True)
    with World(has_infiniband=True):
        inside = [
            "unshare",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "bash",
            "-c",
            _COUNT,
            "bash",
            str(path),
        ]
        return int(subprocess.run(inside, stdout=subprocess.PIPE, check=True).stdout)


def expecting(cidrs: Sequence[IPv4Network]) -> Config:
    """Return a config that expects these CIDRs."""
    return Config(
        route_overlap=RouteOverlap([str(cidr) for cidr in cidrs], mode=OverlapMode.STRICT)
    )


def by_check(world: World, cidrs: Sequence[IPv4Network]) -> Contender:
    """Check the CIDRs in this process."""
    config = expecting(cidrs)

    def contender() -> Span:
        span, report = timed(lambda: check_overlap(config, world.backend, CancelScope()))
        if report.verdict is not Verdict.OK:
            raise WrongOutcomeError(
                f"the verdict is {report.verdict}: {report.reason or report.findings[0].message}"
            )
        return span

    return contender


def by_ip_route_show() -> Span:
    """List all tables with ip."""
    return timed(lambda: run("ip", "-4", "route", "show", "table", "all"))[0]


def by_pyroute2_list(at_least: int) -> Contender:
    """List all tables with pyroute2."""

    def count() -> int:
        with IPRoute() as netlink:
            return sum(1 for _ in netlink.get_routes(family=2))

    def contender() -> Span:
        span, found = timed(count)
        if found < at_least:
            raise WrongOutcomeError(f"pyroute2 listed {found} routes of {at_least}")
        return span

    return contender
