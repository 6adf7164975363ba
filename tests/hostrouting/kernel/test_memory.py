"""Rows of the kernel's behaviour by name, on the kernel in memory; the conformance machine holds them to Linux."""

from __future__ import annotations

import errno
import threading
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import TYPE_CHECKING

import attrs
import pytest
from backends import FailingBackend, RecordingBackend

import phases
from hostrouting.kernel.memory import FakeKernel
from hostrouting.model.errors import RouteError
from hostrouting.model.links import Hardware
from hostrouting.model.routes import NextHop, Protocol, Route, RouteType, Scope, Table
from hostrouting.model.rules import Rule, RuleAction

if TYPE_CHECKING:
    from hostrouting.kernel.port import Kernel

GATEWAY = IPv4Address("10.0.0.254")
VIA = (NextHop(None, GATEWAY),)


@pytest.fixture
def kernel() -> FakeKernel:
    return furnished(FakeKernel())


def furnished(kernel: FakeKernel) -> FakeKernel:
    for dev, address in (("v0", "10.0.0.1/24"), ("v1", "10.0.1.1/24")):
        kernel.add_link(dev)
        kernel.add_address(dev, address)
    return kernel


def to(destination: str, *hops: NextHop, **more: object) -> Route:
    return attrs.evolve(Route(IPv4Network(destination), hops), **more)  # type: ignore[arg-type]


def discard(destination: str, kind: RouteType = RouteType.BLACKHOLE, **more: object) -> Route:
    return to(destination, type=kind, scope=Scope.UNIVERSE, **more)


def put(kernel: Kernel, *routes: Route) -> None:
    assert kernel.add(routes) == ()


def errno_of(kernel: Kernel, route: Route) -> int:
    (failure,) = kernel.add([route])
    return failure.errno


def answer(kernel: Kernel, address: str) -> Route | int:
    (lookup,) = kernel.lookup([IPv4Address(address)])
    assert (lookup.route is None) == (lookup.errno is not None)
    return lookup.route if lookup.route is not None else lookup.errno or 0


def devs(kernel: Kernel, address: str) -> tuple[str, ...]:
    route = answer(kernel, address)
    assert isinstance(route, Route), route
    return route.devs


def lines(kernel: Kernel, table: int | None = Table.MAIN) -> list[str]:
    return [str(route) for route in kernel.routes(table)]


# --- look-up -----------------------------------------------------------------------------------------------------


def test_it_starts_like_a_fresh_namespace_with_lo_up() -> None:
    kernel = FakeKernel()
    (lo,) = kernel.links()
    assert (lo.index, lo.name, lo.is_up, lo.hardware) == (1, "lo", True, Hardware.LOOPBACK)
    assert [str(address.local) for address in kernel.addresses()] == ["127.0.0.1"]
    assert lines(kernel, None) == [
        "local 127.0.0.0/8 dev lo table local proto kernel scope host src 127.0.0.1",
        "local 127.0.0.1 dev lo table local proto kernel scope host src 127.0.0.1",
        "broadcast 127.255.255.255 dev lo table local proto kernel scope link src 127.0.0.1",
    ]
    assert [(rule.preference, rule.table) for rule in kernel.rules()] == [(0, 255), (32766, 254), (32767, 253)]


def test_the_longest_prefix_beats_the_lowest_metric(kernel: FakeKernel) -> None:
    put(kernel, to("172.16.0.0/16", NextHop("v0")), to("172.16.1.0/24", NextHop("v1"), metric=500))
    assert devs(kernel, "172.16.1.1") == ("v1",)
    assert devs(kernel, "172.16.2.1") == ("v0",)


def test_a_route_with_a_tos_is_not_for_packets_without(kernel: FakeKernel) -> None:
    put(kernel, to("172.16.0.0/16", NextHop("v0"), tos=0x10))
    assert answer(kernel, "172.16.1.1") == errno.ENETUNREACH


def test_local_and_main_are_one_trie_until_the_first_rule_ever(kernel: FakeKernel) -> None:
    put(kernel, to("127.5.0.0/16", *VIA))
    rule = Rule(100, table=100)
    assert devs(kernel, "127.5.0.1") == ("v0",)
    kernel.add_rule(rule)
    kernel.del_rule(rule)
    assert devs(kernel, "127.5.0.1") == ("lo",)


def test_what_is_in_local_is_found_in_main_as_long_as_they_are_one_trie(kernel: FakeKernel) -> None:
    for table in (Table.MAIN, Table.LOCAL):
        route = answer(kernel, "10.0.0.1")
        assert isinstance(route, Route)
        assert (route.type, route.table) == (RouteType.LOCAL, table)
        if table == Table.MAIN:
            kernel.add_rule(Rule(100, table=100))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (RouteType.BLACKHOLE, errno.EINVAL),
        (RouteType.UNREACHABLE, errno.EHOSTUNREACH),
        (RouteType.PROHIBIT, errno.EACCES),
        (RouteType.THROW, errno.ENETUNREACH),
    ],
)
def test_each_discarding_type_has_its_errno(kernel: FakeKernel, kind: RouteType, expected: int) -> None:
    put(kernel, discard("172.16.0.0/16", kind))
    assert answer(kernel, "172.16.1.1") == expected


def test_throw_leads_to_table_default_and_unreachable_does_not(kernel: FakeKernel) -> None:
    put(kernel, to("172.16.0.0/15", NextHop("v1"), table=Table.DEFAULT))
    put(kernel, discard("172.16.0.0/16", RouteType.THROW), discard("172.17.0.0/16", RouteType.UNREACHABLE))
    assert devs(kernel, "172.16.1.1") == ("v1",)
    assert answer(kernel, "172.17.1.1") == errno.EHOSTUNREACH


def test_odd_destinations(kernel: FakeKernel) -> None:
    assert answer(kernel, "0.0.0.0") == errno.EHOSTUNREACH
    assert answer(kernel, "255.255.255.255") == errno.ENETUNREACH
    put(kernel, to("0.0.0.0/0", *VIA))
    kinds = {}
    for address in ("224.0.0.1", "255.255.255.255", "240.0.0.1", "0.1.2.3"):
        route = answer(kernel, address)
        assert isinstance(route, Route)
        kinds[address] = route.type
    assert list(kinds.values()) == [RouteType.MULTICAST, RouteType.BROADCAST, RouteType.UNICAST, RouteType.UNICAST]


def test_a_local_default_route_is_shown_as_what_the_packet_is(kernel: FakeKernel) -> None:
    """Found by the conformance machine."""
    kernel.add_rule(Rule(0, table=100))
    put(kernel, to("0.0.0.0/0", NextHop("v0"), type=RouteType.LOCAL, scope=Scope.HOST))
    for address, kind in (("224.0.0.1", RouteType.MULTICAST), ("255.255.255.255", RouteType.BROADCAST)):
        route = answer(kernel, address)
        assert isinstance(route, Route)
        assert route.type is kind


def test_a_source_in_127_can_not_leave_by_another_device(kernel: FakeKernel) -> None:
    put(kernel, to("172.16.0.0/16", NextHop("v0"), source=IPv4Address("127.0.0.1")))
    assert answer(kernel, "172.16.0.1") == errno.EINVAL


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(10, RuleAction.BLACKHOLE), errno.EINVAL),
        (Rule(10, RuleAction.UNREACHABLE), errno.ENETUNREACH),
        (Rule(10, RuleAction.PROHIBIT), errno.EACCES),
        (Rule(10, table=100), "v1"),
        (Rule(10, table=77), "v0"),
        (Rule(10, RuleAction.NOP), "v0"),
        (Rule(10, RuleAction.GOTO, goto=40000), errno.ENETUNREACH),
        (Rule(10, RuleAction.GOTO, goto=50000), "v0"),
        (Rule(10, RuleAction.PROHIBIT, mark=1), "v0"),
        (Rule(10, RuleAction.PROHIBIT, mark=0), errno.EACCES),
        (Rule(10, RuleAction.PROHIBIT, mark=2, mark_mask=1), errno.EACCES),
        (Rule(10, RuleAction.PROHIBIT, mark=1, is_inverted=True), errno.EACCES),
        (Rule(10, RuleAction.PROHIBIT, source=IPv4Network("10.0.0.0/8")), "v0"),
        (Rule(10, RuleAction.PROHIBIT, destination=IPv4Network("172.16.0.0/12")), errno.EACCES),
        (Rule(10, RuleAction.PROHIBIT, destination=IPv4Network("172.32.0.0/12")), "v0"),
        (Rule(10, RuleAction.PROHIBIT, uid_range=(0, 0)), errno.EACCES),
        (Rule(10, RuleAction.PROHIBIT, uid_range=(1, 9)), "v0"),
        (Rule(10, RuleAction.PROHIBIT, iif="lo"), errno.EACCES),
        (Rule(10, RuleAction.PROHIBIT, iif="v0"), "v0"),
        (Rule(10, RuleAction.PROHIBIT, oif="v0"), "v0"),
        (Rule(10, RuleAction.PROHIBIT, tos=0x10), "v0"),
        (Rule(10, RuleAction.PROHIBIT, ip_protocol=17), errno.EACCES),
        (Rule(10, RuleAction.PROHIBIT, ip_protocol=6), "v0"),
        (Rule(10, RuleAction.PROHIBIT, has_ports=True), "v0"),
        (Rule(10, table=100, suppress_prefix_length=16), "v0"),
        (Rule(10, table=100, suppress_prefix_length=15), "v1"),
        (Rule(10, table=100, suppress_group=0), "v0"),
    ],
)
def test_rules_for_an_unmarked_packet_of_this_host(kernel: FakeKernel, rule: Rule, expected: int | str) -> None:
    put(kernel, to("0.0.0.0/0", *VIA), to("172.16.0.0/16", NextHop("v1"), table=100))
    kernel.add_rule(Rule(40000, table=77))
    kernel.add_rule(rule)
    assert rule in kernel.rules()
    assert (
        (devs(kernel, "172.16.1.1") == (expected,))
        if isinstance(expected, str)
        else (answer(kernel, "172.16.1.1") == expected)
    )


def test_two_rules_that_differ_by_inversion_or_by_one_selector_too_few_are_the_same(kernel: FakeKernel) -> None:
    kernel.add_rule(Rule(10, table=100, source=IPv4Network("10.0.0.0/8")))
    for same in (Rule(10, table=100), Rule(10, table=100, is_inverted=True)):
        with pytest.raises(RouteError) as caught:
            kernel.add_rule(same)
        assert caught.value.errno == errno.EEXIST


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(10, RuleAction.GOTO, goto=10), errno.EINVAL),
        (Rule(10, RuleAction.GOTO), errno.EINVAL),
        (Rule(10, goto=20), errno.EINVAL),
        (Rule(10, uid_range=(5, 4)), errno.EINVAL),
        (Rule(10, tos=0xE0), errno.EINVAL),
    ],
)
def test_rules_that_can_not_be(kernel: FakeKernel, rule: Rule, expected: int) -> None:
    with pytest.raises(RouteError) as caught:
        kernel.add_rule(rule)
    assert caught.value.errno == expected


def test_deleting_a_rule_of_an_impossible_tos_finds_none(kernel: FakeKernel) -> None:
    """Found by the conformance machine: the tos is judged only on the way in."""
    with pytest.raises(RouteError) as caught:
        kernel.del_rule(Rule(0, table=100, tos=0xE0))
    assert caught.value.errno == errno.ENOENT


# --- writes ------------------------------------------------------------------------------------------------------

OWN = IPv4Address("10.0.0.1")


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (to("10.0.0.0/24", NextHop("v1")), errno.EEXIST),
        (to("172.16.0.0/16", NextHop(None, IPv4Address("192.0.2.1"))), errno.ENETUNREACH),
        (to("172.16.0.0/16", NextHop("v1", GATEWAY)), errno.ENETUNREACH),
        (to("172.16.0.0/16", NextHop(None, IPv4Address("224.0.0.1"))), errno.ENETUNREACH),
        (to("172.16.0.0/16", NextHop(None, IPv4Address("10.0.0.255"))), errno.EINVAL),
        (to("172.16.0.0/16", NextHop("v0", OWN, onlink=True)), errno.EINVAL),
        (to("172.16.0.0/16", NextHop("down0", GATEWAY)), errno.ENETUNREACH),
        (to("172.16.0.0/16", NextHop("down0")), errno.ENETDOWN),
        (to("172.16.0.0/16", NextHop("down0", GATEWAY, onlink=True)), errno.ENETDOWN),
        (to("172.16.0.0/16", NextHop("nowhere0")), errno.ENODEV),
        (to("172.16.0.0/16"), errno.ENODEV),
        (to("172.16.0.0/16", NextHop(None, IPv4Address(0))), errno.ENODEV),
        (to("172.16.0.0/16", NextHop(None, GATEWAY, onlink=True)), errno.ENODEV),
        (to("172.16.0.0/16", *VIA, source=IPv4Address("10.0.0.2")), errno.EINVAL),
        (discard("172.16.0.0/16", hops=VIA), errno.EINVAL),
        (to("172.16.0.0/16", *VIA, scope=Scope.HOST), errno.EINVAL),
        (to("172.16.0.0/16", *VIA, scope=Scope.NOWHERE), errno.EINVAL),
        (to("172.16.0.0/16", NextHop("v0"), type=RouteType.LOCAL, scope=Scope.LINK), errno.EINVAL),
        (to("172.16.0.0/16", NextHop("v0", onlink=True)), errno.EINVAL),
        (to("172.16.0.0/16", *VIA, tos=0x03), errno.EINVAL),
        (to("172.16.0.0/16", *VIA, table=0), errno.EINVAL),
        (to("172.16.0.0/16", *VIA, nexthop_id=7), errno.EINVAL),
        (to("172.16.0.0/16", NextHop("v0", IPv6Address("fe80::1"))), 0),
        (to("172.16.0.0/16", NextHop("v0", IPv6Address("2001:db8::1"), onlink=True)), 0),
        (to("172.16.0.0/16", NextHop("v0", IPv6Address("2001:db8::1"))), errno.EHOSTUNREACH),
        (to("172.16.0.0/16", NextHop(None, IPv6Address("fe80::1"))), errno.EINVAL),
        (to("172.16.0.0/16", NextHop("lo", IPv6Address("fe80::1"))), errno.EINVAL),
        (to("172.16.0.0/16", NextHop("v0", IPv6Address("ff02::1"))), errno.EINVAL),
        (to("172.16.0.0/16", NextHop("down0", IPv6Address("fe80::1"))), errno.ENETDOWN),
        (to("172.16.0.0/16", NextHop(None, OWN)), 0),
        (to("172.16.0.0/16", NextHop(None, IPv4Address("127.0.0.1"))), 0),
        (discard("172.16.0.0/16", source=IPv4Address("192.0.2.1")), 0),
        (discard("127.0.0.0/8"), 0),
        (to("10.0.0.1/32", *VIA), 0),
    ],
    ids=str,
)
def test_what_add_refuses_and_takes(kernel: FakeKernel, route: Route, expected: int) -> None:
    kernel.add_link("down0", up=False)
    assert sum(failure.errno for failure in kernel.add([route])) == expected


def test_a_gateway_must_be_on_the_link_for_a_route_of_scope_universe(kernel: FakeKernel) -> None:
    gateway = IPv4Address("172.16.0.1")
    put(kernel, to("172.16.0.0/24", NextHop("v0"), scope=Scope.UNIVERSE), to("172.17.0.0/24", NextHop("v0")))
    assert errno_of(kernel, to("192.0.2.0/24", NextHop(None, gateway))) == errno.ENETUNREACH
    put(kernel, to("192.0.2.0/24", NextHop(None, IPv4Address("172.17.0.1"))))


def test_a_discarding_32_hides_a_gateway_only_if_its_scope_is_link(kernel: FakeKernel) -> None:
    put(kernel, discard("10.0.0.254/32", RouteType.PROHIBIT), to("172.16.0.0/16", *VIA))
    assert not kernel.delete([discard("10.0.0.254/32", RouteType.PROHIBIT)])
    put(kernel, attrs.evolve(discard("10.0.0.254/32", RouteType.PROHIBIT), scope=Scope.LINK))
    assert errno_of(kernel, to("172.17.0.0/16", *VIA)) == errno.EACCES


def test_replace_asks_only_for_destination_tos_metric_and_table(kernel: FakeKernel) -> None:
    connected = next(route for route in kernel.routes(Table.MAIN) if route.is_connected)
    assert kernel.replace([to("10.0.0.0/24", NextHop("v1"))]) == ()
    assert connected not in kernel.routes()
    assert kernel.replace([to("10.0.0.0/24", NextHop("v1"), metric=5)]) == ()
    assert len([route for route in kernel.routes(Table.MAIN) if str(route.destination) == "10.0.0.0/24"]) == 2


def test_of_two_connected_routes_replace_takes_the_first_and_refuses_the_second(kernel: FakeKernel) -> None:
    kernel.add_address("v1", "10.0.0.2/24")
    first, second = (route for route in kernel.routes(Table.MAIN) if str(route.destination) == "10.0.0.0/24")
    assert devs(kernel, "10.0.0.9") == first.devs == ("v0",)
    assert kernel.replace([first]) == ()
    (failure,) = kernel.replace([second])
    assert failure.errno == errno.EEXIST


def test_delete_takes_exactly_the_route_and_no_other(kernel: FakeKernel) -> None:
    route = to("172.16.0.0/16", *VIA, metric=5)
    put(kernel, route)
    others = (
        attrs.evolve(route, metric=0),
        attrs.evolve(route, protocol=Protocol.STATIC),
        attrs.evolve(route, hops=(NextHop("v0"),)),
        attrs.evolve(route, hops=(NextHop("v1", GATEWAY),)),
        attrs.evolve(route, tos=0x10),
        attrs.evolve(route, table=100),
        discard("172.16.0.0/16", metric=5),
    )
    assert [failure.errno for failure in kernel.delete(others)] == [errno.ESRCH] * len(others)
    assert kernel.delete([attrs.evolve(route, hops=(NextHop("v0", GATEWAY),), scope=Scope.LINK)]) == ()


def test_entries_come_by_address_then_longest_prefix_then_tos_then_metric() -> None:
    kernel = FakeKernel()
    kernel.add_link("v0")
    unordered = [
        to(destination, NextHop("v0"), metric=metric, tos=tos)
        for destination in ("172.16.0.0/12", "172.16.0.0/16", "10.0.0.0/8")
        for metric in (7, 0)
        for tos in (0, 0x10)
    ]
    put(kernel, *unordered)
    assert [(str(r.destination), r.tos, r.metric) for r in kernel.routes(Table.MAIN)] == [
        (destination, tos, metric)
        for destination in ("10.0.0.0/8", "172.16.0.0/16", "172.16.0.0/12")
        for tos in (0x10, 0)
        for metric in (0, 7)
    ]


# --- addresses and links -----------------------------------------------------------------------------------------


def test_an_address_brings_a_local_a_connected_and_a_broadcast_route(kernel: FakeKernel) -> None:
    kernel.add_address("v1", "172.16.5.1/16", metric=7)
    assert [line for line in lines(kernel, None) if "172.16." in line] == [
        "172.16.0.0/16 dev v1 proto kernel scope link src 172.16.5.1 metric 7",
        "local 172.16.5.1 dev v1 table local proto kernel scope host src 172.16.5.1",
        "broadcast 172.16.255.255 dev v1 table local proto kernel scope link src 172.16.5.1",
    ]


@pytest.mark.parametrize(
    ("address", "more", "routes"),
    [
        ("172.16.5.0/31", {}, ["172.16.5.0/31", "172.16.5.0/32"]),
        ("172.16.5.1/32", {}, ["172.16.5.1/32"]),
        ("172.16.5.1/24", {"prefix_route": False}, ["172.16.5.1/32", "172.16.5.255/32"]),
        ("172.16.5.1/32", {"peer": "172.16.9.9"}, ["172.16.9.9/32", "172.16.5.1/32"]),
    ],
)
def test_short_subnets_and_peers(kernel: FakeKernel, address: str, more: dict[str, object], routes: list[str]) -> None:
    before = kernel.routes()
    kernel.add_address("v1", address, **more)  # type: ignore[arg-type]
    assert [str(route.destination) for route in kernel.routes() if route not in before] == routes


def test_a_deleted_address_takes_its_users_as_a_source_but_not_its_gateways_routes(kernel: FakeKernel) -> None:
    kernel.add_address("v0", "10.0.2.1/24")
    by_gateway = to("172.16.0.0/16", NextHop(None, IPv4Address("10.0.2.9")))
    by_source = to("172.17.0.0/16", *VIA, source=IPv4Address("10.0.2.1"))
    in_another_table = attrs.evolve(by_source, table=100)
    put(kernel, by_gateway, by_source, in_another_table)
    kernel.del_address("v0", "10.0.2.1/24")
    assert [str(r.destination) for r in kernel.routes() if r.protocol == 217] == ["172.17.0.0/16", "172.16.0.0/16"]
    assert [route.table for route in kernel.routes() if route.protocol == 217] == [100, 254]


def test_the_last_address_takes_everything_on_the_device(kernel: FakeKernel) -> None:
    put(kernel, to("172.16.0.0/16", *VIA), to("172.17.0.0/16", NextHop("v0"), NextHop("v1"), table=100))
    kernel.del_address("v0", "10.0.0.1/24")
    (left,) = [route for route in kernel.routes() if route.protocol == 217]
    assert [(hop.dev, hop.is_dead, hop.is_linkdown) for hop in left.hops] == [("v0", True, True), ("v1", False, False)]
    kernel.add_address("v0", "10.0.0.7/24")
    (left,) = [route for route in kernel.routes() if route.protocol == 217]
    assert left.devs == ("v0", "v1")


@pytest.mark.parametrize("promotes", [False, True])
def test_a_primary_takes_its_secondaries_along_unless_they_are_promoted(promotes: bool) -> None:
    kernel = furnished(FakeKernel(promote_secondaries=promotes))
    kernel.add_address("v0", "10.0.0.2/24")
    put(kernel, to("172.16.0.0/16", *VIA))
    assert [address.is_secondary for address in kernel.addresses() if address.dev == "v0"] == [False, True]
    kernel.del_address("v0", "10.0.0.1/24")
    left = [(str(address.local), address.is_secondary) for address in kernel.addresses() if address.dev == "v0"]
    assert left == ([("10.0.0.2", False)] if promotes else [])
    assert ("172.16.0.0/16 via 10.0.0.254 dev v0 proto hostrouting" in lines(kernel)) is promotes
    assert ("10.0.0.0/24 dev v0 proto kernel scope link src 10.0.0.2" in lines(kernel)) is promotes


def test_a_link_that_goes_down_loses_its_routes_and_comes_back_with_the_connected_ones(kernel: FakeKernel) -> None:
    put(kernel, to("172.16.0.0/16", *VIA), to("172.17.0.0/16", NextHop("v0"), NextHop("v1")))
    before = kernel.routes()
    kernel.set_link("v0", up=False)
    assert devs(kernel, "10.0.0.1") == ("v0",)
    assert devs(kernel, "172.17.0.1") == ("v1",)
    kernel.set_link("v0", up=True)
    assert set(before) - set(kernel.routes()) == {r for r in before if str(r.destination) == "172.16.0.0/16"}


@pytest.mark.parametrize("ignores", [False, True])
def test_without_carrier_a_route_stays_and_wins_unless_such_are_ignored(ignores: bool) -> None:
    kernel = furnished(FakeKernel(ignore_routes_with_linkdown=ignores))
    put(kernel, to("172.16.0.0/16", *VIA), to("172.16.0.0/16", NextHop("v1"), metric=10))
    kernel.set_link("v0", carrier=False)
    (hop,) = next(route for route in kernel.routes() if route.metric == 0 and route.protocol == 217).hops
    assert (hop.is_linkdown, hop.is_dead) == (True, ignores)
    route = answer(kernel, "172.16.0.1")
    assert isinstance(route, Route)
    assert route.metric == (10 if ignores else 0)
    put(kernel, to("172.18.0.0/16", *VIA))


def test_a_route_by_an_ipv6_gateway_does_not_notice_that_there_is_no_carrier(kernel: FakeKernel) -> None:
    kernel.set_link("v0", carrier=False)
    put(kernel, to("172.16.0.0/16", NextHop("v0", IPv6Address("fe80::1"))))
    route = answer(kernel, "172.16.0.1")
    assert isinstance(route, Route)
    assert not route.hops[0].is_linkdown


def test_a_deleted_link_takes_whole_multipath_routes_along(kernel: FakeKernel) -> None:
    put(kernel, to("172.17.0.0/16", NextHop("v0"), NextHop("v1")))
    kernel.del_link("v0")
    assert [route for route in kernel.routes() if route.protocol == 217] == []
    assert [address.dev for address in kernel.addresses()] == ["lo", "v1"]


@pytest.mark.parametrize("left", ["10.0.0.2/24", "127.0.0.2/8", "127.0.0.1/8", "127.0.0.1/16"])
def test_lo_gets_its_address_whenever_it_comes_up_without(left: str) -> None:
    """Found by a campaign: not only where it has no address at all, as older kernels did."""
    kernel = FakeKernel()
    kernel.del_address("lo", "127.0.0.1/8")
    kernel.add_address("lo", left)
    kernel.set_link("lo", up=False)
    kernel.set_link("lo", up=True)
    addresses = [f"{address.local}/{address.prefix_length}" for address in kernel.addresses()]
    blocked = left.endswith("/8")  # EEXIST, or EINVAL: the automatic one has scope host
    assert addresses == ([left] if blocked else ["127.0.0.1/8", left])


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda kernel: kernel.add_link("v0"), errno.EEXIST),
        (lambda kernel: kernel.add_link("v2", master="br0"), errno.ENODEV),
        (lambda kernel: kernel.set_link("v9", up=True), errno.ENODEV),
        (lambda kernel: kernel.del_link("v9"), errno.ENODEV),
        (lambda kernel: kernel.del_link("lo"), errno.EOPNOTSUPP),
        (lambda kernel: kernel.add_address("v9", "10.9.0.1/24"), errno.ENODEV),
        (lambda kernel: kernel.add_address("v0", "10.0.0.1/24"), errno.EEXIST),
        (lambda kernel: kernel.add_address("lo", "127.0.0.2/8"), errno.EINVAL),
        (lambda kernel: kernel.del_address("v0", "10.0.0.1/25"), errno.EADDRNOTAVAIL),
        (lambda kernel: kernel.del_rule(Rule(7)), errno.ENOENT),
    ],
)
def test_refusals_of_changes_say_what_was_attempted(kernel: FakeKernel, act: object, expected: int) -> None:
    with pytest.raises(RouteError, match=r"can't (add|set|delete) the ") as caught:
        act(kernel)  # type: ignore[operator]
    assert caught.value.errno == expected


def test_a_link_is_what_it_was_made(kernel: FakeKernel) -> None:
    kernel.add_link("br0", kind="bridge")
    kernel.add_link("ib0", kind=None, hardware=Hardware.INFINIBAND, master="br0", up=False)
    link = kernel.links()[-1]
    assert (link.kind, link.hardware, link.master, link.is_up, link.has_carrier) == (None, 32, "br0", False, False)
    kernel.del_link("br0")
    assert kernel.links()[-1].master is None


# --- waiting, and many routes ------------------------------------------------------------------------------------


def test_the_first_wait_of_a_thread_returns_at_once_and_later_ones_wait_for_a_change(kernel: FakeKernel) -> None:
    scope = phases.CancelScope(timeout=30)
    kernel.wait_for_change(scope)
    with pytest.raises(phases.TimedOut):
        kernel.wait_for_change(scope.child(timeout=0.01))
    changer = threading.Timer(0.01, kernel.set_link, ["v0"], {"carrier": False})
    changer.start()
    kernel.wait_for_change(scope)
    changer.join()
    kernel.add_address("v0", "10.0.7.1/24")
    kernel.wait_for_change(scope)


def test_what_changes_nothing_wakes_nobody(kernel: FakeKernel) -> None:
    route = to("172.16.0.0/16", *VIA)
    put(kernel, route)
    kernel.wait_for_change(phases.CancelScope())
    assert kernel.replace([route]) == ()
    kernel.set_link("v0", up=True)
    assert errno_of(kernel, route) == errno.EEXIST
    with pytest.raises(phases.TimedOut):
        kernel.wait_for_change(phases.CancelScope(timeout=0.01))


def test_threads_may_share_it(kernel: FakeKernel) -> None:
    def write(third: int) -> None:
        put(kernel, *(to(f"172.16.{third}.{fourth}/32", *VIA) for fourth in range(256)))

    threads = [threading.Thread(target=write, args=[third]) for third in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([route for route in kernel.routes() if route.protocol == 217]) == 8 * 256


# --- the wrappers ------------------------------------------------------------------------------------------------


def test_a_recording_backend_notes_what_is_written_refused_or_not(kernel: FakeKernel) -> None:
    recording = RecordingBackend(kernel)
    good, bad = to("172.16.0.0/16", *VIA), to("172.16.0.0/16", NextHop("nowhere0"))
    assert [failure.route for failure in recording.add([good, bad])] == [bad]
    assert recording.delete([good]) == ()
    assert recording.replace([]) == ()
    assert recording.written == [("add", good), ("add", bad), ("delete", good)]
    assert recording.routes() == kernel.routes()


def test_a_failing_backend_refuses_what_it_was_told_to(kernel: FakeKernel) -> None:
    failing = FailingBackend(kernel, fail={"add": {2: errno.ENOMEM}, "delete": {1: errno.EPERM}})
    routes = [to(f"172.{n}.0.0/16", *VIA) for n in range(16, 20)]
    assert failing.add(routes[:1]) == ()
    assert [(failure.route, failure.errno) for failure in failing.add(routes[1:3])] == [(routes[1], errno.ENOMEM)]
    assert [failure.errno for failure in failing.delete(routes[:1])] == [errno.EPERM]
    assert failing.replace(routes[3:]) == ()
    assert [str(route.destination) for route in kernel.routes() if route.protocol == 217] == [
        "172.16.0.0/16",
        "172.18.0.0/16",
        "172.19.0.0/16",
    ]
