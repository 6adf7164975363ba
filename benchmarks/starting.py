"""Whole processes: how long hostrouting takes to start, to install routes, and to notice what it waits for."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from functools import partial
from queue import Queue
from typing import TYPE_CHECKING

from benchmarks.boot import by_ip_batch
from benchmarks.figures import Figures, Measured, Row
from benchmarks.measure import Span, alternate, run, timed
from benchmarks.worlds import SCRATCH, World, WrongOutcomeError, routes_of, script
from hostrouting.boot.render import render_static_routes_script
from hostrouting.kernel.waiting import Deadline, look_until
from hostrouting.model.routes import Table
from phases import CancelScope

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.worlds import Effort

__all__ = ["ROWS"]

# Long enough for a waiter to be asleep, and out of step with the seconds at which it looks without an event.
_ASLEEP_SECONDS = 0.33
_IP = "ip -batch, the same routes"


def _cold_start(effort: Effort) -> Measured:
    def by_check() -> Span:
        return timed(lambda: run(sys.executable, "-m", "hostrouting", "check", "--cidr", "10.96.0.0/12"))[0]

    def by_python() -> Span:
        return timed(lambda: run(sys.executable, "-c", "pass"))[0]

    with World():
        by_check()  # compiles
        ours, theirs = alternate(effort.rounds(21), by_check, by_python)
    return Measured(Figures.of_spans(ours), Figures.of_spans(theirs))


def _apply(count: int, effort: Effort) -> Measured:
    """The whole way of routes, from a config's JSON to the report, which goes to a file."""
    routes = routes_of(effort.size(count))
    entries = [{"destination": str(route.destination)} for route in routes]
    config, report = SCRATCH / "config.json", SCRATCH / "report"
    config.write_text(json.dumps({"hostRouting": {"staticRoutes": {"enabled": True, "routes": entries}}}))

    def by_apply() -> Span:
        with World() as world:
            words = (sys.executable, "-m", "hostrouting", "apply", "--routes-only", config)
            span, _ = timed(lambda: run(*words, stdout=report))
            world.expect(routes)
        lines = report.read_text().splitlines()
        if len(lines) != len(routes):
            raise WrongOutcomeError(f"{len(routes)} routes, and {len(lines)} lines of report")
        return span

    ours, theirs = alternate(effort.rounds(9 if count < 100_000 else 5), by_apply, by_ip_batch(routes))
    return Measured(Figures.of_spans(ours), Figures.of_spans(theirs))


def _script_goes_on(effort: Effort) -> Measured:
    """The whole way: from the default route to the end of a script that then installs a route."""
    text = render_static_routes_script([{"destination": str(routes_of(1)[0].destination)}])
    path = script("static-routes.sh", text)
    return Measured(Figures.of([_wait_of_script(path) for _ in range(effort.rounds(11))]))


def _wait_of_script(path: Path) -> float:
    with World(has_default=False) as world:
        process = subprocess.Popen([path], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process:
            if not process.stdout.readline().startswith("waiting "):
                raise WrongOutcomeError("the boot script didn't wait for a default route")
            time.sleep(_ASLEEP_SECONDS)
            start = time.perf_counter()
            world.fill([World.default])
            process.wait()
            took = time.perf_counter() - start
        world.expect(routes_of(1))
    return took


def _backend_goes_on(effort: Effort) -> Measured:
    return Measured(Figures.of([_wait_of_backend() for _ in range(effort.rounds(21))]))


def _wait_of_backend() -> float:
    seen: Queue[float] = Queue()
    is_waiting = threading.Event()

    with World(has_default=False) as world:
        backend = world.backend

        def find_missing() -> str | None:
            is_there = any(route.destination.prefixlen == 0 for route in backend.routes(Table.MAIN))
            is_waiting.set()
            return None if is_there else "the default route"

        def wait() -> None:
            scope = CancelScope()
            look_until(backend, scope, Deadline(scope.clock.monotonic(), 30), find_missing)
            seen.put(time.perf_counter())

        waiter = threading.Thread(target=wait)
        waiter.start()
        is_waiting.wait()
        time.sleep(_ASLEEP_SECONDS)
        start = time.perf_counter()
        world.fill([World.default])
        took = seen.get(timeout=30) - start
        waiter.join()
    return took


ROWS = (
    Row("apply-10k", "apply --routes-only, 10,000 routes", _IP, partial(_apply, 10_000), 3.5),
    Row("apply-100k", "apply --routes-only, 100,000 routes", _IP, partial(_apply, 100_000), 2.5),
    Row("cold-start", "cold start of hostrouting check --cidr C", "python3 -c pass", _cold_start, 6),
    Row("wait-script", "default route appears → boot script has installed 1 route", "", _script_goes_on, 0.1),
    Row("wait-backend", "default route appears → the backend's waiting goes on", "", _backend_goes_on, 0.005),
)
