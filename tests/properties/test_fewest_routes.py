"""Compare the size of the fix with an exhaustive search, on hosts with routes around a /27."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import attrs
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from nightly import by_day
from worlds import Question, World

import phases
from hostrouting import Config, RouteOverlap, StaticRoute
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.port import Write, read_routes
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.parsing import is_inside
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, RouteType, Table
from hostrouting.model.rules import Rule
from hostrouting.overlap.check import check_overlap
from hostrouting.testing.strategies import NewAddress

SPACE = IPv4Network("10.0.0.0/27")
ADDRESSES = tuple(SPACE)
PREFIXES = tuple(
    network for length in range(27, 33) for network in SPACE.subnets(new_prefix=length)
)

_SETTINGS = settings(
    max_examples=by_day(20, by_night=2000), suppress_health_check=[HealthCheck.too_slow]
)


def smallest_cover(fixed: list[frozenset[IPv4Address]], wanted: frozenset[IPv4Address]) -> int:
    """Return the smallest number of sets that cover all addresses, by breadth-first search.

    Each step tries the sets that contain the first uncovered address.
    """
    count, left = 0, {wanted}
    while frozenset() not in left:
        left = {rest - some for rest in left for some in fixed if min(rest) in some}
        assert left, "no choice holds them all"
        count += 1
    return count


DEFAULT = Route(
    DEFAULT_DESTINATION, (NextHop("eth0", IPv4Address("192.0.2.1")),), protocol=Protocol.DHCP
)
_NOWHERE = (RouteType.BLACKHOLE, RouteType.UNREACHABLE, RouteType.THROW)


@st.composite
def questions(draw: st.DrawFn) -> Question:
    around = tuple(SPACE.supernet(new_prefix=length) for length in (8, 20, 26, 27))
    prefixes = st.one_of(
        st.sampled_from(PREFIXES), st.sampled_from(PREFIXES[:15]), st.sampled_from(around)
    )

    def route() -> Route:
        destination, metric = draw(prefixes), draw(st.sampled_from((0, 0, 0, 10)))
        dev = draw(st.sampled_from(("eth0", "eth0", "eth1", "ib0", "ib0", "ib1", "")))
        if not dev:
            return Route(destination, type=draw(st.sampled_from(_NOWHERE)), metric=metric)
        return Route(destination, (NextHop(dev),), metric=metric, protocol=Protocol.STATIC)

    address = st.builds(
        lambda dev, address, length: (dev, f"{address}/{length}"),
        st.sampled_from(("eth0", "eth1", "ib0", "ib0")),
        st.sampled_from(ADDRESSES),
        st.sampled_from((16, 24, 26, 27, 28, 29, 30, 31, 32)),
    )
    addresses = draw(st.lists(address, max_size=3))
    routes = [route() for _ in range(draw(st.integers(1, 9)))]
    cidrs = draw(st.lists(st.sampled_from((SPACE, SPACE, *PREFIXES[:15])), min_size=1, max_size=2))
    return host_of(tuple(addresses), tuple(routes), tuple(cidrs))


def host_of(
    addresses: tuple[tuple[str, str], ...],
    routes: tuple[Route, ...],
    cidrs: tuple[IPv4Network, ...] = (SPACE,),
) -> Question:
    """Return a host with its default route on eth0 that may also use eth1."""
    all_addresses = (("eth0", "192.0.2.4/24"), *addresses)
    world = World(
        tuple((dev, NewAddress(address)) for dev, address in all_addresses),
        (DEFAULT, *routes),
        links=("eth0", "eth1", "ib0", "ib1"),
    )
    return Question(world, cidrs, allowed=("eth1",))


class Judge:
    """A longest-prefix match for hosts with the default rules.

    It shares no code with the library.
    """

    def __init__(self, kernel: FakeKernel, cidrs: tuple[IPv4Network, ...]) -> None:
        routes = read_routes(kernel)
        self._own = [
            a.network
            for a in kernel.facts().addresses
            if a.dev == "eth0" and a.network.prefixlen < 32
        ]
        # Fix entries have no metric. They must not have the same destination as a connected route,
        # whatever its metric.
        main = [route for route in routes if route.table == Table.MAIN]
        self._there = {
            route.destination for route in main if route.metric == 0 or route.is_connected
        }
        self._around: dict[IpAddress, list[Route]] = {
            address: [route for route in routes if address in route.destination]
            for address in ADDRESSES
        }
        self.before = {
            address: self.winner(address)
            for address in ADDRESSES
            if any(address in c for c in cidrs)
        }
        self.failing = frozenset(
            address for address, route in self.before.items() if not is_fine(route)
        )

    def winner(self, address: IpAddress, more: tuple[Route, ...] = ()) -> Route:
        around = [route for route in more if address in route.destination]
        return max(
            (*self._around[address], *around),
            key=lambda route: (route.destination.prefixlen, route.table, -route.metric),
        )

    def reach(
        self, prefix: IPv4Network, wanted: frozenset[IPv4Address]
    ) -> frozenset[IPv4Address] | None:
        """Return the addresses that a route would fix, or None if it would change others."""
        if prefix in self._there or not all(address in self.before for address in prefix):
            return None
        route = entry(prefix)
        changed = frozenset(a for a in prefix if self.winner(a, (route,)) != self.before[a])
        if not changed <= wanted:
            return None
        # Inside eth0's subnet, an entry becomes an on-link route, so its prefix must be part of
        # that subnet.
        subnets = {a: [own for own in self._own if a in own] for a in changed}
        return frozenset(a for a in changed if all(is_inside(prefix, own) for own in subnets[a]))

    def optimum(self, wanted: frozenset[IPv4Address]) -> tuple[frozenset[IPv4Address], int]:
        """Return the failing addresses that routes can fix, and the smallest number of routes
        needed.
        """
        reach = [found for prefix in PREFIXES if (found := self.reach(prefix, wanted)) is not None]
        fixable: frozenset[IPv4Address] = frozenset().union(*reach)
        return fixable, smallest_cover(reach, fixable)


def entry(prefix: IpNetwork) -> Route:
    return Route(prefix, DEFAULT.hops)


def is_fine(route: Route) -> bool:
    return route.type in (RouteType.LOCAL, RouteType.BROADCAST) or (
        route.type is RouteType.UNICAST and {hop.dev for hop in route.hops} <= {"eth0", "eth1"}
    )


def hold(
    judge: Judge, wanted: frozenset[IPv4Address], entries: tuple[StaticRoute, ...]
) -> frozenset[IPv4Address]:
    """Check that the entries are the fewest that fix all fixable addresses, and return the
    unfixable ones.
    """
    more = tuple(entry(static.destination) for static in entries)
    after = {address: judge.winner(address, more) for address in judge.before}
    fixable, fewest = judge.optimum(wanted)
    assert {a: r for a, r in after.items() if a not in fixable} == {
        a: r for a, r in judge.before.items() if a not in fixable
    }
    assert all(after[address] in more for address in fixable)
    assert len(entries) == fewest, [str(static.destination) for static in entries]
    return wanted - fixable


def static_route(prefix: str, dev: str) -> Route:
    return Route(IPv4Network(prefix), (NextHop(dev),), protocol=Protocol.STATIC)


TWO_FINE = host_of(
    (("ib0", "10.0.0.9/26"),),
    (static_route("10.0.0.4/30", "eth0"), static_route("10.0.0.18/31", "eth0")),
)
NESTED = host_of((("ib0", "10.0.0.9/26"),), (static_route("10.0.0.4/30", "ib1"),))
BY_IB0 = [static_route(prefix, "ib0") for prefix in ("10.0.0.0/28", "10.0.0.9/32", "10.0.0.16/28")]
WITH_METRICS = host_of((), tuple(attrs.evolve(route, metric=10) for route in BY_IB0))


@_SETTINGS
@given(question=questions())
@example(question=TWO_FINE)
@example(question=NESTED)
@example(question=WITH_METRICS)
def test_the_fix_is_the_fewest_harmless_routes(question: Question) -> None:
    kernel = FakeKernel()
    question.world.build(kernel)
    overlap = RouteOverlap(
        [str(cidr) for cidr in question.cidrs], allowed_devs=["eth1"], container_devs=[]
    )
    config = Config(route_overlap=overlap, uplinks=["eth0"])  # else the user is asked first
    report = check_overlap(config, kernel, phases.CancelScope())
    judge = Judge(kernel, question.cidrs)
    assert {
        a for finding in report.findings for part in finding.ranges for a in part
    } == judge.failing
    event(f"{len(report.fix.routes)} entries")
    left = hold(judge, judge.failing, report.fix.routes)
    assert {a for part in report.fix.unfixable for network in part.ranges for a in network} == left
    more = {entry(static.destination): static for static in report.fix.routes}
    for finding in report.findings:
        winners = {
            judge.winner(address, tuple(more)) for part in finding.ranges for address in part
        }
        assert (
            {more[winner] for winner in winners if winner in more}
            <= set(finding.fix)
            <= set(more.values())
        )


def test_a_fix_by_millions_of_routes_is_not_looked_for() -> None:
    """Only routes longer than /30 are used here, before a rule that discards the rest."""
    kernel = FakeKernel()
    kernel.add_link("eth0")
    kernel.add_address("eth0", "192.0.2.4/24")
    kernel.add_rule(Rule(30, suppress_prefix_length=30))
    kernel.add_rule(Rule(31, table=100))
    discard = Route(IPv4Network("10.0.0.0/8"), type=RouteType.PROHIBIT, table=100)
    assert not kernel.write(Write.ADD, [DEFAULT, discard])
    report = check_overlap(
        Config(route_overlap=RouteOverlap(["10.0.0.0/8"])), kernel, phases.CancelScope()
    )
    assert [(finding.kind, finding.fix) for finding in report.findings] == [("BLACKHOLE", ())]
