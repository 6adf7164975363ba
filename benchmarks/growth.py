"""Charts of the cost by routes to install, CIDRs to check and size of the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks import ways
from benchmarks.figures import Curves, Growth, Measured
from benchmarks.measure import Contender, side_by_side
from benchmarks.worlds import World, cidrs_of, routes_of

# Beyond these sizes, a contender takes minutes.
_ONE_BY_ONE_MAX, _PYROUTE2_MAX, _ROUTES_SCRIPT_MAX, _CHECK_SCRIPT_MAX = (
    1000,
    10_000,
    10_000,
    100_000,
)

# Contenders take seconds at this size, and three rounds are enough for a chart with a logarithmic
# scale.
_LARGE, _LARGE_ROUNDS = 100_000, 3


def measure(growth: Growth, sizes: Iterable[int], rounds: int) -> Curves:
    """Measure each contender at each size."""
    curves: Curves = {}
    for size in sizes:
        for contenders in growth.make(size):
            spans = side_by_side(
                min(rounds, _LARGE_ROUNDS) if size >= _LARGE else rounds, *contenders.values()
            )
            for name, median in zip(contenders, Measured(spans).medians, strict=True):
                curves.setdefault(name, []).append((size, median))
    return curves


def _routes(size: int) -> Iterator[dict[str, Contender]]:
    routes = routes_of(size)
    contenders = {"backend": ways.by_backend(routes), "ip -batch": ways.by_ip_batch(routes)}
    if size <= _ROUTES_SCRIPT_MAX:
        contenders["boot script"] = ways.by_boot_script(routes)
    if size <= _PYROUTE2_MAX:
        contenders["pyroute2's loop"] = ways.by_pyroute2(routes)
    if size <= _ONE_BY_ONE_MAX:
        contenders["an ip a route"] = ways.by_one_ip_a_route(routes)
    yield contenders


def _cidrs(size: int) -> Iterator[dict[str, Contender]]:
    fib, cidrs = routes_of(1000), cidrs_of(size, 1000)
    with World(has_infiniband=True, fib=fib) as world:
        yield {"check": ways.by_check(world, cidrs)}
    contenders = {
        "boot check": ways.by_boot_check(cidrs, fib),
        "ip -batch, one probe": ways.by_look_ups(cidrs, fib),
    }
    if size <= _ONE_BY_ONE_MAX:
        contenders["ip and awk a CIDR"] = ways.by_ip_and_awk_a_cidr(cidrs, fib)
    yield contenders


def _fib(size: int) -> Iterator[dict[str, Contender]]:
    fib, cidrs = routes_of(size), cidrs_of(min(size, 1000), size)
    with World(has_infiniband=True, fib=fib) as world:
        contenders = {
            "check": ways.by_check(world, cidrs),
            "ip route show table all": ways.by_ip_route_show,
        }
        if size <= _PYROUTE2_MAX:
            contenders["pyroute2's list"] = ways.by_pyroute2_list(size)
        yield contenders
    if size <= _CHECK_SCRIPT_MAX:
        yield {"boot check": ways.by_boot_check(cidrs, fib)}


GROWTHS = (
    Growth("growth-routes", "Installing routes", "routes", range(6), _routes),
    Growth("growth-cidrs", "Checking CIDRs, in a FIB of 1,000", "CIDRs", range(5), _cidrs),
    Growth(
        "growth-fib",
        "Checking 1,000 CIDRs in a growing FIB",
        "routes in the FIB",
        range(3, 7),
        _fib,
    ),
)
