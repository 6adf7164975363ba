"""Read from a kernel what a check judges: in one state of its tables, and of large ones no more than that."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import TYPE_CHECKING

from hostrouting.kernel.default_route import default_route
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import Protocol
from hostrouting.model.rules import Rule
from hostrouting.overlap.asking import ask
from hostrouting.overlap.coverage import are_within, suspect_networks, tiling_of
from hostrouting.overlap.reading import Reading, own_subnets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.config.overlap import RouteOverlap
    from hostrouting.kernel.port import RouteBackend
    from hostrouting.model.links import Address
    from hostrouting.model.routes import Route
    from phases import CancelScope


# Between tables and look-ups there are milliseconds: that what matters changes in them so often in a row is no chance.
_ATTEMPTS = 16

# For a first guess: as if no policy rule were there.
_PLAIN_RULES = (Rule(32766, protocol=Protocol.KERNEL),)

# What a reading is made of: default route, addresses, rules and entries.
_Tables = tuple["Route", "tuple[Address, ...]", "tuple[Rule, ...]", "tuple[Route, ...]"]


def read_host(overlap: RouteOverlap, backend: RouteBackend, scope: CancelScope) -> Reading | None:
    """Read tables and the kernel's answers that belong to them.

    Args:
        overlap: the expected CIDRs.
        backend: the kernel.
        scope: ends it between two looks.

    Returns:
        The reading; None without a default route.

    Raises:
        RouteError: the kernel can't be asked, or what matters of the tables changed each time that it was read.
    """
    for _ in range(_ATTEMPTS):
        scope.check()
        with backend.noticing_changes() as may_have_changed:
            tables = _read_tables(overlap, backend)
            reading = None if tables is None else _ask(overlap, tables, backend)
            # Most changes are of routes that don't matter here.
            if not may_have_changed() or tables == _read_tables(overlap, backend):
                return reading
    raise RouteError(f"the routes changed while they were read, {_ATTEMPTS} times over; try again later")


def _read_tables(overlap: RouteOverlap, backend: RouteBackend) -> _Tables | None:
    defaults = backend.default_routes()
    default = default_route(defaults)
    if default is None:
        return None
    addresses, rules = backend.addresses(), backend.rules()
    networks = _foretold(overlap, default, addresses)
    routes = backend.routes_except(default.devs, inside=networks)
    told = suspect_networks(
        [expected.cidr for expected in overlap.expected_cidrs],
        expected_devs=default.devs,
        rules=rules,
        routes=routes,
        besides=_besides(overlap, default),
    )
    if not are_within(told, networks):
        routes = backend.routes_except(default.devs, inside=told)
    return default, addresses, rules, tuple(dict.fromkeys((*defaults, *routes)))


def _foretold(overlap: RouteOverlap, default: Route, addresses: Sequence[Address]) -> list[IPv4Network]:
    """Where the host's addresses let one expect that something else than the default route's interfaces decides.

    Connected routes are what shadows, as a rule; so one pass over a large table mostly does.
    """
    connected = [address.network for address in addresses if address.dev not in default.devs]
    single = [end for each in addresses for end in (each.local, each.network.broadcast_address)]
    return suspect_networks(
        [expected.cidr for expected in overlap.expected_cidrs],
        expected_devs=default.devs,
        rules=_PLAIN_RULES,
        routes=(),
        besides=(*_besides(overlap, default), *connected, *map(IPv4Network, single)),
    )


def _besides(overlap: RouteOverlap, default: Route) -> list[IPv4Network]:
    """What is to be looked into whatever routes there are: also where even the default route may be wrong."""
    elsewhere = (each.cidr for each in overlap.expected_cidrs if not each.is_default(default.devs))
    return [*overlap.foreseen, *elsewhere]


def _ask(overlap: RouteOverlap, tables: _Tables, backend: RouteBackend) -> Reading:
    default, addresses, rules, routes = tables
    tiling = tiling_of(
        tuple(dict.fromkeys(expected.cidr for expected in overlap.expected_cidrs)),
        expected_devs=default.devs,
        rules=rules,
        routes=routes,
        besides=_besides(overlap, default),
        borders=own_subnets(addresses, default.devs),
    )
    return Reading(
        default=default,
        links=backend.links(),
        addresses=addresses,
        rules=rules,
        routes=routes,
        tiling=tiling,
        answers=ask(tiling.questions, rules, addresses, backend.lookup),
    )
