"""How the cost grows: with the routes to install, with the CIDRs to check, with the table that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.backend import by_backend, by_pyroute2
from benchmarks.boot import (
    by_batch_of_look_ups,
    by_boot_check,
    by_boot_script,
    by_ip_batch,
    by_reference_check,
    by_reference_script,
)
from benchmarks.checking import checking, dumping, dumping_by_pyroute2
from benchmarks.figures import Curve, Figures, Growth
from benchmarks.measure import alternate
from benchmarks.worlds import World, cidrs_of, routes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.measure import Span
    from benchmarks.worlds import Effort

__all__ = ["GROWTHS"]

# Beyond these a way takes minutes.
_ONE_BY_ONE_MAX, _PYROUTE2_MAX, _ROUTES_SCRIPT_MAX, _CHECK_SCRIPT_MAX = 1000, 10_000, 10_000, 100_000

# A picture shows powers of ten: three runs do for what takes seconds.
_LARGE, _LARGE_ROUNDS = 100_000, 3

_CIDRS = 1000


def _sizes(effort: Effort, least: int, most: int) -> list[int]:
    if effort.is_quick:
        return [1, 10]
    return [10**power for power in range(7) if least <= 10**power <= most]


class _Plot:
    def __init__(self, effort: Effort) -> None:
        self._effort = effort
        self._points: dict[str, list[tuple[int, float]]] = {}

    def measure(self, size: int, ways: Mapping[str, Callable[[], Span]]) -> None:
        rounds = self._effort.rounds(_LARGE_ROUNDS) if size >= _LARGE else self._effort.rounds()
        spans = alternate(rounds, *ways.values())
        for name, found in zip(ways, spans, strict=True):
            self._points.setdefault(name, []).append((size, Figures.of_spans(found).median))

    @property
    def curves(self) -> tuple[Curve, ...]:
        return tuple(Curve(name, tuple(points)) for name, points in self._points.items())


def _routes(effort: Effort) -> Growth:
    plot = _Plot(effort)
    for size in _sizes(effort, 1, 100_000):
        routes = routes_of(size)
        ways = {"backend": by_backend(routes), "ip -batch": by_ip_batch(routes)}
        if size <= _ROUTES_SCRIPT_MAX:
            ways["boot script"] = by_boot_script(routes)
        if size <= _PYROUTE2_MAX:
            ways["pyroute2's loop"] = by_pyroute2(routes)
        if size <= _ONE_BY_ONE_MAX:
            ways["an ip a route"] = by_reference_script(routes)
        plot.measure(size, ways)
    return Growth("growth-routes", "Installing routes", "routes", plot.curves)


def _cidrs(effort: Effort) -> Growth:
    plot = _Plot(effort)
    fib = routes_of(effort.size(1000))
    for size in _sizes(effort, 1, 10_000):
        cidrs = cidrs_of(size, len(fib))
        with World(has_infiniband=True) as world:
            world.fill(fib)
            plot.measure(size, {"check": checking(world, cidrs)})
        ways = {"boot check": by_boot_check(cidrs, fib), "ip -batch, one probe": by_batch_of_look_ups(cidrs, fib)}
        if size <= _ONE_BY_ONE_MAX:
            ways["ip and awk a CIDR"] = by_reference_check(cidrs, fib)
        plot.measure(size, ways)
    return Growth("growth-cidrs", "Checking CIDRs, in a FIB of 1,000", "CIDRs", plot.curves)


def _fib(effort: Effort) -> Growth:
    plot = _Plot(effort)
    for size in _sizes(effort, 1000, 1_000_000):
        fib, cidrs = routes_of(size), cidrs_of(min(size, _CIDRS), size)
        with World(has_infiniband=True) as world:
            world.fill(fib)
            ways = {"check": checking(world, cidrs), "ip route show table all": dumping}
            if size <= _PYROUTE2_MAX:
                ways["pyroute2's list"] = dumping_by_pyroute2(size)
            plot.measure(size, ways)
        if size <= _CHECK_SCRIPT_MAX:
            plot.measure(size, {"boot check": by_boot_check(cidrs, fib)})
    return Growth("growth-fib", "Checking 1,000 CIDRs in a growing FIB", "routes in the FIB", plot.curves)


GROWTHS: dict[str, Callable[[Effort], Growth]] = {
    "growth-routes": _routes,
    "growth-cidrs": _cidrs,
    "growth-fib": _fib,
}
