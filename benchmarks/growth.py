"""How the cost grows: with the routes to install, with the CIDRs to check, with the table, with the host."""

from __future__ import annotations

from functools import partial
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

import attrs

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
from benchmarks.figures import Curve, Figures, Growth, Measured, Row
from benchmarks.measure import alternate, timed
from benchmarks.worlds import World, WrongOutcomeError, cidrs_of, routes_of
from hostrouting.config.routing import Config, RouteOverlap
from hostrouting.kernel.recording import SnapshotBackend
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.links import Address, Link
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, RouteType, Scope, Table
from hostrouting.model.rules import Rule
from hostrouting.overlap.check import check_overlap
from phases import CancelScope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.measure import Span
    from benchmarks.worlds import Effort

__all__ = ["GROWTHS", "HOSTS", "ROWS"]

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

# --- a growing host ----------------------------------------------------------------------------------------------

_FULL = 1000

# Each part of what grows has a /24 of it, of which there is something to tell.
_CIDR = IPv4Network("172.16.0.0/12")
_OTHER = (Address("ib0", IPv4Address("10.2.0.4"), 24),)


def _part(number: int, length: int = 24) -> IPv4Network:
    return IPv4Network((int(_CIDR[0]) + number * 256, length))


@attrs.frozen
class Host:
    """A recorded host, and what is expected of it; ``addresses`` belong to other interfaces than ``eth0``."""

    addresses: tuple[Address, ...] = ()
    rules: tuple[Rule, ...] = ()
    routes: tuple[Route, ...] = ()
    cidrs: tuple[IPv4Network, ...] = (_CIDR,)
    foreseen: tuple[IPv4Network, ...] = ()

    def record(self) -> Snapshot:
        addresses = (Address("eth0", IPv4Address("10.1.0.4"), 24), *self.addresses)
        devs = ("lo", *dict.fromkeys(address.dev for address in addresses))
        return Snapshot(
            links=tuple(Link(index, dev) for index, dev in enumerate(devs, 1)),
            addresses=addresses,
            rules=(KERNEL_RULES[0], *self.rules, *KERNEL_RULES[1:]),
            routes=(World.default, *self.routes, *map(_connected, addresses), *map(_local, addresses)),
            is_merged=not self.rules,
        )


def _connected(address: Address) -> Route:
    hops = (NextHop(address.dev),)
    return Route(address.network, hops, protocol=Protocol.KERNEL, scope=Scope.LINK, source=address.local)


def _local(address: Address) -> Route:
    connected, single = _connected(address), IPv4Network(address.local)
    return attrs.evolve(connected, destination=single, type=RouteType.LOCAL, table=Table.LOCAL, scope=Scope.HOST)


def _interfaces(count: int) -> Host:
    return Host(tuple(Address(f"ib{number}", _part(number)[4], 24) for number in range(count)))


def _rules(count: int) -> Host:
    rules = (Rule(number + 1, table=100, destination=_part(number)) for number in range(count))
    return Host(_OTHER, tuple(rules), (Route(DEFAULT_DESTINATION, (NextHop("ib0"),), table=100),))


def _foreseen(count: int) -> Host:
    foreseen = (_part(number, 25) for number in range(count))
    return Host(cidrs=tuple(map(_part, range(count))), foreseen=tuple(foreseen))


def _subnets(count: int) -> Host:
    return Host(tuple(Address("ib0", _part(number)[4], 24) for number in range(count)))


def _gateways(count: int) -> Host:
    hops = ((NextHop("ib0", _part(number)[9]),) for number in range(count))
    routes = (Route(route.destination, hop) for route, hop in zip(routes_of(count), hops, strict=True))
    return Host((Address("ib0", _CIDR[4], _CIDR.prefixlen),), routes=tuple(routes))


def _addresses(count: int) -> Host:
    own = (Address("eth0", _part(number)[4], 24) for number in range(count))
    routes = (Route(IPv4Network((int(_part(number)[128]), 25)), (NextHop("ib0"),)) for number in range(count))
    return Host((*own, *_OTHER), routes=tuple(routes))


def _checking(make: Callable[[int], Host], count: int) -> Callable[[], Span]:
    host = make(count)
    recorded = host.record()
    config = Config(route_overlap=RouteOverlap(host.cidrs, foreseen=host.foreseen))

    def contender() -> Span:
        span, report = timed(lambda: check_overlap(config.route_overlap, SnapshotBackend(recorded), CancelScope()))
        told = len(report.notes) + len(report.remedy.routes) + len(report.remedy.unmendable)
        if told < count:
            raise WrongOutcomeError(f"the check of {count} told of {told}: {report.reason or report.verdict}")
        return span

    return contender


def _doubled(make: Callable[[int], Host], effort: Effort) -> Measured:
    size = effort.size(_FULL)
    ours, theirs = alternate(effort.rounds(), _checking(make, size), _checking(make, size // 2))
    return Measured(Figures.of_spans(ours), Figures.of_spans(theirs))


HOSTS: dict[str, tuple[str, Callable[[int], Host]]] = {
    "interfaces": ("interfaces in a CIDR", _interfaces),
    "rules": ("policy rules to parts of a CIDR", _rules),
    "foreseen": ("CIDRs and foreseen prefixes", _foreseen),
    "subnets": ("subnets of an interface in a CIDR", _subnets),
    "gateways": ("gateways behind another interface", _gateways),
    "addresses": ("subnets of the default route's interface", _addresses),
}

ROWS = tuple(
    Row(f"growth-{name}", f"check, recorded, {_FULL:,} {what}", f"the same, {_FULL // 2}", partial(_doubled, make), 2.3)
    for name, (what, make) in HOSTS.items()
)
