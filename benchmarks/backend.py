"""The routes backend, in this process: from built values to a table that is written, read back and proven."""

from __future__ import annotations

import sys
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from benchmarks.boot import by_ip_batch
from benchmarks.figures import Figures, Measured, Row
from benchmarks.measure import Span, alternate, run, timed
from benchmarks.reference import loop_over_pyroute2
from benchmarks.worlds import World, WrongOutcomeError, batch_file, routes_of
from hostrouting.model.routes import NextHop, Table
from hostrouting.routes.verify import verify_routes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.worlds import Effort
    from hostrouting.model.routes import Route

__all__ = ["ROWS", "by_backend", "by_pyroute2"]

_NOWHERE = NextHop("eth0", IPv4Address("10.99.0.1"))
_EVERY = 7


def by_backend(routes: Sequence[Route], writes: list[Span] | None = None) -> Callable[[], Span]:
    """Write routes and read them back by one dump.

    Args:
        routes: what to write.
        writes: gets the part of it that is writing.
    """

    def contender() -> Span:
        with World() as world:
            backend = world.backend
            write, failures = timed(lambda: backend.add(routes))
            # As the proof that they win reads it.
            read, there = timed(lambda: backend.routes_by_way(Table.MAIN))
            if failures:
                raise WrongOutcomeError(f"{len(failures)} routes failed: {failures[0]}")
            world.expect(routes, [attrs.evolve(way, destination=IPv4Network(p)) for way, ps in there for p in ps])
        if writes is not None:
            writes.append(write)
        return write + read

    return contender


def by_pyroute2(routes: Sequence[Route]) -> Callable[[], Span]:
    """Write routes one by one, over pyroute2; its import isn't counted."""

    def contender() -> Span:
        with World() as world:
            span, _ = timed(lambda: loop_over_pyroute2(routes))
            world.expect(routes)
        return span

    return contender


def _write(count: int, effort: Effort) -> Measured:
    routes = routes_of(effort.size(count))
    writes: list[Span] = []
    ours, theirs = alternate(
        effort.rounds(9 if count < 100_000 else 5), by_backend(routes, writes), by_ip_batch(routes)
    )
    see_that_errors_are_attributed(routes)
    figures, written = Figures.of_spans(theirs), Figures.of_spans(writes)
    note = f"writing alone: {written.median / figures.median:.2f}x, the rest is the dump that reads it back"
    return Measured(Figures.of_spans(ours), figures, (note,))


def see_that_errors_are_attributed(routes: Sequence[Route]) -> None:
    """See that each refused route of many comes back, and no other.

    Raises:
        WrongOutcomeError: it doesn't.
    """
    mixed = [attrs.evolve(r, hops=(_NOWHERE,)) if n % _EVERY == 0 else r for n, r in enumerate(routes)]
    bad, fine = mixed[::_EVERY], [route for number, route in enumerate(mixed) if number % _EVERY]
    with World() as world:
        failed = [failure.route for failure in world.backend.add(mixed)]
        world.expect(fine)
    if failed != bad:
        raise WrongOutcomeError(f"{len(bad)} routes can't be installed, and {len(failed)} failed")


def _prove(effort: Effort) -> Measured:
    routes = routes_of(effort.size(100_000))
    questions = [str(route.destination.network_address) for route in routes]

    def by_verify() -> Span:
        with World() as world:
            world.fill(routes)
            backend = world.backend
            return timed(lambda: verify_routes(routes, backend))[0]

    def by_look_ups() -> Span:
        with World() as world:
            world.fill(routes)
            commands = batch_file("get", questions)
            return timed(lambda: run("ip", "-4", "-batch", "-", stdin=commands))[0]

    ours, theirs = alternate(effort.rounds(), by_verify, by_look_ups)
    return Measured(Figures.of_spans(ours), Figures.of_spans(theirs))


def _against_pyroute2(effort: Effort) -> Measured:
    routes = routes_of(effort.size(10_000))
    ours, theirs = alternate(effort.rounds(), by_backend(routes), by_pyroute2(routes))
    return Measured(Figures.of_spans(ours), Figures.of_spans(theirs))


def _example(effort: Effort) -> Measured:
    """The port over pyroute2, by the example: what a backend of one's own costs."""
    folder = str(Path(__file__).parents[1] / "examples")
    if folder not in sys.path:
        sys.path.append(folder)
    from pyroute2_backend import Pyroute2Backend

    def contender() -> Span:
        with World() as world:
            backend = Pyroute2Backend()
            span, failures = timed(lambda: backend.add(routes))
            if failures:
                raise WrongOutcomeError(f"{len(failures)} routes failed: {failures[0]}")
            world.expect(routes, backend.routes(Table.MAIN))
        return span

    routes = routes_of(effort.size(1_000))
    ours, theirs = alternate(effort.rounds(), by_backend(routes), contender)
    return Measured(Figures.of_spans(ours), Figures.of_spans(theirs))


ROWS = (
    Row("backend-100k", "backend, 100,000 routes", "ip -batch, the same routes", partial(_write, 100_000), 0.6),
    Row("backend-10k", "backend, 10,000 routes", "ip -batch, the same routes", partial(_write, 10_000), 0.7),
    Row("proof", "proof that 100,000 routes win", "ip -batch, 100,000 route get", _prove, 1.0),
    Row("backend-pyroute2", "backend, 10,000 routes", "a plain loop over pyroute2", _against_pyroute2),
    Row("backend-example", "backend, 1,000 routes", "examples/pyroute2_backend.py", _example),
)
