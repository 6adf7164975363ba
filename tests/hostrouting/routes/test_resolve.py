"""What a static route leaves open comes from the default route, whole."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from hostrouting import RouteError, StaticRoute
from hostrouting.kernel.nexthops import default_route
from hostrouting.model.links import Address, Link
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, RouteType, Scope, Table
from hostrouting.routes.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

GATEWAY = IPv4Address("10.1.0.1")
ETH0, ETH1, IB0 = Link(2, "eth0"), Link(3, "eth1"), Link(4, "ib0")
LINKS = [Link(1, "lo"), ETH0, ETH1, IB0]
CONNECTED = Route(IPv4Network("10.1.0.0/24"), (NextHop("eth0"),), protocol=Protocol.KERNEL)
CONNECTED_1 = Route(IPv4Network("10.2.0.0/24"), (NextHop("eth1"),), protocol=Protocol.KERNEL)
ADDRESSES = [Address("eth0", IPv4Address("10.1.0.4"), 24)]


def default(*hops: NextHop, **more: Any) -> Route:
    return attrs.evolve(Route(DEFAULT_DESTINATION, hops, protocol=Protocol.DHCP), **more)


DEFAULT = default(NextHop("eth0", GATEWAY), metric=100, source=IPv4Address("10.1.0.4"), mtu=1400)


def resolution_of(
    route: StaticRoute, *main: Route, links: list[Link] | None = None
) -> tuple[tuple[Route, ...], str | None]:
    return resolve([route], links or LINKS, ADDRESSES, [CONNECTED, CONNECTED_1, *main], None)


def resolved(route: StaticRoute, *main: Route) -> Route:
    (only,), missing = resolution_of(route, *main)
    assert missing is None
    return only


def missing(route: StaticRoute, *main: Route, links: list[Link] | None = None) -> str:
    routes, what = resolution_of(route, *main, links=links)
    assert routes == ()
    assert what is not None
    return what


def test_the_default_that_counts_is_the_unicast_one_of_table_main_with_the_lowest_metric() -> None:
    better = default(NextHop("eth1", IPv4Address("10.2.0.1")), metric=50)
    others = [
        default(NextHop("ib0"), table=100),
        default(type=RouteType.UNREACHABLE, metric=4),
        default(NextHop("ib0"), tos=8),
        Route(IPv4Network("0.0.0.0/1"), (NextHop("ib0"),)),
    ]
    assert default_route([*others, DEFAULT, better]) is better
    assert default_route([*others, DEFAULT, better], ("eth0",)) is DEFAULT
    assert default_route(others) is None


def test_everything_left_open_is_inherited_with_source_and_mtu() -> None:
    assert resolved(StaticRoute("172.16.1.0/24", metric=7), DEFAULT) == Route(
        IPv4Network("172.16.1.0/24"),
        (NextHop("eth0", GATEWAY),),
        metric=7,
        source=IPv4Address("10.1.0.4"),
        mtu=1400,
    )


@pytest.mark.parametrize(
    "hops",
    [
        (NextHop("eth0"),),
        (NextHop("eth0", IPv6Address("fe80::1")),),
        (NextHop("eth0", IPv4Address("169.254.1.1"), onlink=True),),
        (NextHop("eth0", GATEWAY, weight=3), NextHop("eth1", IPv4Address("10.2.0.1"), weight=5)),
    ],
    ids=["no gateway", "IPv6 gateway", "onlink", "multipath"],
)
def test_the_default_routes_next_hop_is_inherited(hops: tuple[NextHop, ...]) -> None:
    """The reference prints the third word of a line and takes it for the gateway."""
    route = resolved(StaticRoute("172.16.1.0/24"), default(*hops, nexthop_id=7))
    assert route.hops == hops
    assert route.nexthop_id is None
    assert route.scope == (Scope.LINK if hops == (NextHop("eth0"),) else Scope.UNIVERSE)


def test_a_named_device_takes_its_own_hops_of_a_multipath_default() -> None:
    hops = (NextHop("eth0", GATEWAY, weight=3), NextHop("eth1", IPv4Address("10.2.0.1"), weight=5))
    assert resolved(StaticRoute("172.16.1.0/24", dev="eth1"), default(*hops)).hops == (
        NextHop("eth1", IPv4Address("10.2.0.1")),
    )


def test_a_named_device_takes_the_default_route_on_that_device() -> None:
    second = default(NextHop("eth1", IPv4Address("10.2.0.1")), metric=200, mtu=9000)
    route = resolved(StaticRoute("172.16.1.0/24", dev="eth1"), DEFAULT, second)
    assert (route.hops, route.mtu) == (second.hops, 9000)


def test_dead_hops_are_not_inherited_and_a_lost_carrier_is_not_copied() -> None:
    hops = (NextHop("eth0", GATEWAY, is_linkdown=True), NextHop("eth1", IPv4Address("10.2.0.1"), is_dead=True))
    assert resolved(StaticRoute("172.16.1.0/24"), default(*hops)).hops == (NextHop("eth0", GATEWAY),)


def test_what_is_named_is_taken_literally() -> None:
    route = resolved(StaticRoute("172.16.1.0/24", "10.2.0.1", "eth1"))
    assert route == Route(IPv4Network("172.16.1.0/24"), (NextHop("eth1", IPv4Address("10.2.0.1")),))
    assert resolved(StaticRoute("172.16.1.0/24", "onlink", "eth1")).hops == (NextHop("eth1"),)


def test_a_named_gateway_without_a_device_takes_the_defaults_device_source_and_mtu() -> None:
    route = resolved(StaticRoute("172.16.1.0/24", "10.1.0.9"), DEFAULT)
    assert route.hops == (NextHop("eth0", IPv4Address("10.1.0.9")),)
    assert (route.source, route.mtu) == (IPv4Address("10.1.0.4"), 1400)


def test_the_defaults_own_gateway_named_inherits_onlink() -> None:
    hop = NextHop("eth0", IPv4Address("169.254.1.1"), onlink=True)
    assert resolved(StaticRoute("172.16.1.0/24", "169.254.1.1"), default(hop)).hops == (hop,)


def test_a_gateway_picks_the_interface_of_a_multipath_default_that_reaches_it() -> None:
    both = default(NextHop("eth0", GATEWAY), NextHop("eth1", IPv4Address("10.2.0.1")))
    assert resolved(StaticRoute("172.16.1.0/24", "10.2.0.7"), both).devs == ("eth1",)
    with pytest.raises(RouteError, match="eth0 and eth1; name the one meant as dev"):
        resolution_of(StaticRoute("172.16.1.0/24", "onlink"), both)


@pytest.mark.parametrize(
    ("route", "words"),
    [
        (
            StaticRoute("172.16.1.0/24"),
            "the default route (table main has no unicast 0.0.0.0/0), needed by 172.16.1.0/24",
        ),
        (StaticRoute("172.16.1.0/24", dev="eth1"), "the default route on eth1"),
        (StaticRoute("172.16.1.0/24", "onlink", "ib9"), "device ib9 (there is no such interface)"),
        (
            StaticRoute("172.16.1.0/24", "10.9.0.1", "eth1"),
            "gateway 10.9.0.1 (no route of scope link reaches it on eth1)",
        ),
        (
            StaticRoute("172.16.1.0/24", "10.1.0.1", "eth1"),
            "gateway 10.1.0.1 (no route of scope link reaches it on eth1)",
        ),
    ],
)
def test_what_may_still_come_is_named_with_the_route_that_needs_it(route: StaticRoute, words: str) -> None:
    assert words in missing(route)


def test_a_device_that_is_down_is_waited_for() -> None:
    down = [attrs.evolve(ETH1, is_up=False)]
    assert "device eth1 (it is down)" in missing(StaticRoute("172.16.1.0/24", "onlink", "eth1"), links=down)


def test_a_gateway_behind_another_gateway_is_not_reachable() -> None:
    """The kernel looks up a gateway among routes of scope link or nearer (fib_check_nh_v4_gw)."""
    via = Route(IPv4Network("10.9.0.0/24"), (NextHop("eth1", IPv4Address("10.2.0.1")),))
    assert "gateway 10.9.0.1" in missing(StaticRoute("172.16.1.0/24", "10.9.0.1", "eth1"), via)


def test_routes_that_others_need_for_their_gateway_come_first() -> None:
    wanted = [StaticRoute("172.16.1.0/24", "10.9.0.1", "eth1"), StaticRoute("10.9.0.1/32", "onlink", "eth1")]
    routes, _ = resolve(wanted, LINKS, ADDRESSES, [], None)
    assert [str(route.destination) for route in routes] == ["10.9.0.1/32", "172.16.1.0/24"]


@pytest.mark.parametrize("kind", ["bridge", "bond", "openvswitch", None])
def test_a_port_of_a_bridge_or_bond_is_refused_at_once_and_the_master_is_named(kind: str | None) -> None:
    links = [attrs.evolve(ETH1, master="br0"), Link(9, "br0", kind=kind)]
    with pytest.raises(RouteError, match="eth1 is a port of br0, which takes its packets; name br0 as dev"):
        resolution_of(StaticRoute("172.16.1.0/24", "onlink", "eth1"), links=links)


def test_an_interface_in_a_vrf_may_have_routes() -> None:
    links = [attrs.evolve(ETH1, master="red"), Link(9, "red", kind="vrf")]
    assert resolution_of(StaticRoute("172.16.1.0/24", "onlink", "eth1"), links=links)[1] is None


def test_an_own_address_as_gateway_is_refused_although_the_kernel_takes_it() -> None:
    with pytest.raises(RouteError, match="10.1.0.4 is an address of this host"):
        resolution_of(StaticRoute("172.16.1.0/24", "10.1.0.4", "eth0"))


def test_a_dead_default_route_is_waited_for_and_a_live_one_of_a_higher_metric_counts() -> None:
    dead = default(NextHop("eth0", GATEWAY, is_dead=True, is_linkdown=True), metric=100)
    assert "a live default route (all hops are dead of default via 10.1.0.1 dev eth0" in missing(
        StaticRoute("172.16.1.0/24"), dead
    )
    live = default(NextHop("eth1", IPv4Address("10.2.0.1")), metric=200)
    assert resolved(StaticRoute("172.16.1.0/24"), dead, live).hops == live.hops


def test_what_this_run_removes_carries_no_gateway_of_what_it_adds() -> None:
    """Otherwise this run would succeed and the next one, and the next boot, couldn't."""
    ours = Route(IPv4Network("10.9.0.0/24"), (NextHop("eth1"),))
    assert "gateway 10.9.0.1" in missing(StaticRoute("172.16.1.0/24", "10.9.0.1", "eth1"), ours)


def test_an_onlink_route_without_a_device_reaches_by_the_defaults_only() -> None:
    wanted = [StaticRoute("172.16.1.0/24", "10.9.0.1", "eth1"), StaticRoute("10.9.0.0/24", "onlink")]
    assert resolve(wanted, LINKS, ADDRESSES, [DEFAULT], None)[1]
    assert not resolve([attrs.evolve(wanted[0], dev="eth0"), wanted[1]], LINKS, ADDRESSES, [DEFAULT], None)[1]


class Counting(list[Route]):
    """A table that counts how often it is gone through."""

    passes = 0

    def __iter__(self) -> Iterator[Route]:
        self.passes += 1
        return super().__iter__()


def test_the_table_is_gone_through_a_constant_number_of_times_whatever_the_number_of_routes() -> None:
    def passes(count: int) -> int:
        table = Counting([CONNECTED, CONNECTED_1, DEFAULT])
        wanted = [
            StaticRoute(f"172.{16 + n // 256}.{n % 256}.0/24", *(("10.1.0.1", "eth0") if n % 2 else ()))
            for n in range(count)
        ]
        assert not resolve(wanted, LINKS, ADDRESSES, table, None)[1]
        return table.passes

    assert passes(2) == passes(500)


def test_all_refusals_are_named_at_once() -> None:
    links = [attrs.evolve(ETH0, master="br0"), attrs.evolve(ETH1, master="br1"), Link(8, "br0"), Link(9, "br1")]
    wanted = [StaticRoute("172.16.1.0/24", "onlink", "eth0"), StaticRoute("172.16.2.0/24", "onlink", "eth1")]
    with pytest.raises(RouteError) as caught:
        resolve(wanted, links, (), (), None)
    assert len(caught.value.message.splitlines()) == 2
    assert caught.value.hint == "name br0 as dev\nname br1 as dev"


def test_many_missing_things_are_counted_not_listed() -> None:
    wanted = [StaticRoute(f"172.16.{n}.0/24", "onlink", f"ib{n}x") for n in range(9)]
    _, what = resolve(wanted, LINKS, ADDRESSES, (), None)
    assert what is not None
    assert what.endswith("; and 6 more")


def test_only_table_main_has_the_default_route() -> None:
    assert default_route([default(NextHop("eth0"), table=Table.LOCAL)]) is None
