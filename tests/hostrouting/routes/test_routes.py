"""Tests that static routes are completed, planned, verified to win, and written in the formats of
other tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any

import attrs
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from node import add_nics, lines
from node import default_route as dhcp_route

from hostrouting import RouteError, StaticRoute
from hostrouting.kernel.default_routes import default_route
from hostrouting.kernel.port import Write
from hostrouting.model.changes import Replacement
from hostrouting.model.links import Address, Link
from hostrouting.model.routes import (
    DEFAULT_DESTINATION,
    NextHop,
    Protocol,
    Route,
    Route6,
    RouteType,
    Scope,
    Table,
)
from hostrouting.model.rules import Rule
from hostrouting.routes.formats import PlacedRule, as_ip, as_netplan, as_networkd
from hostrouting.routes.plan import RoutePlan, plan_routes
from hostrouting.routes.resolve import resolve
from hostrouting.routes.verify import verify_routes
from hostrouting.testing import FakeKernel

GATEWAY = IPv4Address("10.1.0.1")
ETH0, ETH1, IB0 = Link(2, "eth0"), Link(3, "eth1"), Link(4, "ib0")
LINKS = [Link(1, "lo"), ETH0, ETH1, IB0]
CONNECTED = Route(IPv4Network("10.1.0.0/24"), (NextHop("eth0"),), protocol=Protocol.KERNEL)
CONNECTED_1 = Route(IPv4Network("10.2.0.0/24"), (NextHop("eth1"),), protocol=Protocol.KERNEL)
ADDRESSES = [Address("eth0", IPv4Address("10.1.0.4"), 24)]
TO = "172.16.1.0/24"
SECOND, PEER, NO_PEER = IPv4Address("10.2.0.1"), IPv4Address("10.1.0.9"), IPv4Address("10.9.0.1")
BY_ETH0, BY_ETH1 = NextHop("eth0", GATEWAY), NextHop("eth1", SECOND)


def default(*hops: NextHop, **more: Any) -> Route:
    return attrs.evolve(Route(DEFAULT_DESTINATION, hops, protocol=Protocol.DHCP), **more)


DHCP = default(NextHop("eth0", GATEWAY), metric=100, source=IPv4Address("10.1.0.4"), mtu=1400)


def resolution_of(
    route: StaticRoute, *main: Route, links: list[Link] | None = None
) -> tuple[tuple[Route, ...], str | None]:
    return resolve([route], links or LINKS, ADDRESSES, [CONNECTED, CONNECTED_1, *main], None)


def whole(*hops: NextHop, **more: Any) -> Route:
    return Route(IPv4Network(TO), hops, **more)


def test_the_lowest_unicast_default_of_main_counts() -> None:
    better = default(NextHop("eth1", IPv4Address("10.2.0.1")), metric=50)
    others = [
        default(NextHop("ib0"), table=100),
        default(NextHop("ib0"), table=Table.LOCAL),
        default(type=RouteType.UNREACHABLE, metric=4),
        default(NextHop("ib0"), tos=8),
        Route(IPv4Network("0.0.0.0/1"), (NextHop("ib0"),)),
    ]
    assert default_route([*others, DHCP, better]) is better
    assert default_route([*others, DHCP, better], ("eth0",)) is DHCP
    assert default_route(others) is None


ONLINK = NextHop("eth0", IPv4Address("169.254.1.1"), onlink=True)
WEIGHED = (NextHop("eth0", GATEWAY, weight=3), NextHop("eth1", SECOND, weight=5))
INHERITED = {"source": IPv4Address("10.1.0.4"), "mtu": 1400}
DEAD = default(NextHop("eth0", GATEWAY, is_dead=True, is_linkdown=True), metric=100)
RESOLVED = {
    "all is inherited": (StaticRoute(TO, metric=7), [DHCP], whole(BY_ETH0, metric=7, **INHERITED)),
    "a device's own hops": (StaticRoute(TO, dev="eth1"), [default(*WEIGHED)], whole(BY_ETH1)),
    "a lost carrier isn't copied": (
        StaticRoute(TO),
        [
            default(
                NextHop("eth0", GATEWAY, is_linkdown=True), NextHop("eth1", SECOND, is_dead=True)
            )
        ],
        whole(BY_ETH0),
    ),
    "a dead default isn't used": (
        StaticRoute(TO),
        [DEAD, default(BY_ETH1, metric=200)],
        whole(BY_ETH1),
    ),
    "all is named": (StaticRoute(TO, SECOND, "eth1"), [], whole(BY_ETH1)),
    "onlink is named": (
        StaticRoute(TO, "onlink", "eth1"),
        [],
        whole(NextHop("eth1"), scope=Scope.LINK),
    ),
    "a gateway is named": (
        StaticRoute(TO, PEER),
        [DHCP],
        whole(NextHop("eth0", PEER), **INHERITED),
    ),
    "the default's own interface is named": (
        StaticRoute(TO, "169.254.1.1"),
        [default(ONLINK)],
        whole(ONLINK),
    ),
}


@pytest.mark.parametrize(("route", "main", "expected"), RESOLVED.values(), ids=RESOLVED)
def test_missing_fields_come_from_the_default_route(
    route: StaticRoute, main: list[Route], expected: Route
) -> None:
    """tests/kernel/test_default_routes.py has the forms of the default route."""
    assert resolution_of(route, *main) == ((expected,), None)


def test_a_gateway_selects_the_hop_of_a_multipath_default() -> None:
    both = default(BY_ETH0, BY_ETH1)
    (route,), _ = resolution_of(StaticRoute(TO, "10.2.0.7"), both)
    assert route.devs == ("eth1",)
    with pytest.raises(RouteError, match="eth0 and eth1\nhint: set dev to one of them"):
        resolution_of(StaticRoute(TO, "onlink"), both)


NEEDED = f"needed by {TO}"
MISSING = {
    "a default": (
        StaticRoute(TO),
        [],
        f"the default route (table main has no unicast 0.0.0.0/0), {NEEDED}",
    ),
    "a live default": (
        StaticRoute(TO),
        [DEAD],
        "a live default route (all hops of default via 10.1.0.1 dev eth0",
    ),
    "a default on a device": (StaticRoute(TO, dev="eth1"), [], "the default route on eth1"),
    "a device": (StaticRoute(TO, "onlink", "ib9"), [], "device ib9 (there is no such interface)"),
    "a device that is down": (StaticRoute(TO, "onlink", "down0"), [], "device down0 (it is down)"),
    "a gateway": (
        StaticRoute(TO, NO_PEER, "eth1"),
        [],
        "gateway 10.9.0.1 (no route of scope link reaches it on eth1)",
    ),
    "a gateway on another interface": (
        StaticRoute(TO, GATEWAY, "eth1"),
        [],
        "gateway 10.1.0.1 (no route of scope link reaches it on eth1)",
    ),
    # The kernel looks up a gateway among routes with link scope or narrower (fib_check_nh_v4_gw).
    "a gateway behind another": (
        StaticRoute(TO, NO_PEER, "eth1"),
        [Route(IPv4Network("10.9.0.0/24"), (BY_ETH1,), protocol=4)],
        "gateway 10.9.0.1",
    ),
    # Otherwise this run would succeed, but the next run and the next boot would fail.
    "a gateway behind a removed route": (
        StaticRoute(TO, NO_PEER, "eth1"),
        [Route(IPv4Network("10.9.0.0/24"), (NextHop("eth1"),))],
        "gateway 10.9.0.1",
    ),
}


@pytest.mark.parametrize(("route", "main", "words"), MISSING.values(), ids=MISSING)
def test_devices_and_gateways_that_may_still_appear_are_named(
    route: StaticRoute, main: list[Route], words: str
) -> None:
    routes, missing = resolution_of(route, *main, links=[*LINKS, Link(5, "down0", is_up=False)])
    assert routes == ()
    assert words in (missing or "")


@pytest.mark.parametrize("kind", ["bridge", "bond", "openvswitch", None, "vrf"])
def test_a_bridge_port_is_refused_with_its_master(kind: str | None) -> None:
    """An interface in a VRF is allowed, because it can have routes."""
    links = [attrs.evolve(ETH1, master="br0"), Link(9, "br0", kind=kind)]
    route = StaticRoute(TO, "onlink", "eth1")
    if kind == "vrf":
        assert resolution_of(route, links=links)[1] is None
    else:
        with pytest.raises(
            RouteError, match="a port of br0, which takes its packets\nhint: name br0 as dev"
        ):
            resolution_of(route, links=links)


def test_a_local_address_as_gateway_is_refused() -> None:
    with pytest.raises(RouteError, match=r"10\.1\.0\.4 is an address of this host"):
        resolution_of(StaticRoute(TO, "10.1.0.4", "eth0"))


def test_routes_to_gateways_of_other_routes_come_first() -> None:
    wanted = [
        StaticRoute("172.16.1.0/24", "10.9.0.1", "eth1"),
        StaticRoute("10.9.0.1/32", "onlink", "eth1"),
    ]
    routes, _ = resolve(wanted, LINKS, ADDRESSES, [], None)
    assert [str(route.destination) for route in routes] == ["10.9.0.1/32", "172.16.1.0/24"]


def test_an_onlink_route_uses_the_default_routes_devices() -> None:
    wanted = [
        StaticRoute("172.16.1.0/24", "10.9.0.1", "eth1"),
        StaticRoute("10.9.0.0/24", "onlink"),
    ]
    assert resolve(wanted, LINKS, ADDRESSES, [DHCP], None)[1]
    assert not resolve(
        [attrs.evolve(wanted[0], dev="eth0"), wanted[1]], LINKS, ADDRESSES, [DHCP], None
    )[1]


def test_all_ports_are_reported_at_once() -> None:
    links = [
        attrs.evolve(ETH0, master="br0"),
        attrs.evolve(ETH1, master="br1"),
        Link(8, "br0"),
        Link(9, "br1"),
    ]
    wanted = [
        StaticRoute("172.16.1.0/24", "onlink", "eth0"),
        StaticRoute("172.16.2.0/24", "onlink", "eth1"),
    ]
    with pytest.raises(RouteError) as caught:
        resolve(wanted, links, (), (), None)
    assert len(caught.value.message.splitlines()) == 2
    assert caught.value.hint == "name br0 as dev\nname br1 as dev"


def test_many_missing_items_are_counted_not_listed() -> None:
    wanted = [StaticRoute(f"172.16.{n}.0/24", "onlink", f"ib{n}x") for n in range(9)]
    _, what = resolve(wanted, LINKS, ADDRESSES, (), None)
    assert what is not None
    assert what.endswith("; and 6 more")


# --- the plan -------------------------------------------------------------------------------------


OTHER = IPv4Address("10.1.0.9")
DESTINATION = IPv4Network("172.16.1.0/24")
WANTED = Route(DESTINATION, (NextHop("eth0", GATEWAY),))


def foreign(route: Route = WANTED, protocol: int = Protocol.DHCP, **changes: Any) -> Route:
    return attrs.evolve(route, protocol=protocol, **changes)


IN_PART = attrs.evolve(WANTED, hops=(NextHop("eth0", GATEWAY, is_linkdown=True),))
OLD = attrs.evolve(WANTED, metric=5)
DEFAULT = attrs.evolve(WANTED, destination=DEFAULT_DESTINATION)
AROUND = Route(IPv4Network("172.16.0.0/16"), (NextHop("ib0"),), protocol=Protocol.KERNEL)
HALVES = tuple(attrs.evolve(WANTED, destination=half) for half in AROUND.destination.subnets())
BOTH = attrs.evolve(WANTED, hops=(NextHop("eth0", GATEWAY, weight=2), NextHop("eth1", OTHER)))
PLANS: dict[str, tuple[list[Route], list[Route], RoutePlan]] = {
    "a free destination": ([WANTED], [], RoutePlan(add=(WANTED,))),
    "our route in any state": ([WANTED], [IN_PART], RoutePlan(unchanged=(IN_PART,))),
    "another metric": ([WANTED], [OLD], RoutePlan(add=(WANTED,), remove=(OLD,))),
    "our routes are unwanted": ([], [OLD, WANTED], RoutePlan(remove=(OLD, WANTED))),
    # A config can't contain a default route, so this one belongs to another program that uses our
    # protocol number. Removing it would cut off the host.
    "a default route is never ours": ([], [DEFAULT], RoutePlan()),
    # The reference's ``ip route replace`` would overwrite a DHCP route.
    **{
        f"proto {protocol} does the same": ([WANTED], [there], RoutePlan(foreign=(there,)))
        for protocol in (Protocol.DHCP, Protocol.STATIC, Protocol.BOOT, Protocol.KERNEL, 99)
        for there in [foreign(protocol=protocol, mtu=1400)]
    },
    "the halves of a connected route": ([*HALVES], [AROUND], RoutePlan(add=HALVES)),
    "other routes with another key": (
        [WANTED],
        [foreign(metric=9), foreign(tos=8), foreign(AROUND)],
        RoutePlan(add=(WANTED,)),
    ),
    "hops in another order": (
        [BOTH],
        [foreign(BOTH, hops=BOTH.hops[::-1])],
        RoutePlan(foreign=(foreign(BOTH, hops=BOTH.hops[::-1]),)),
    ),
    "several hops, ours": ([BOTH], [BOTH], RoutePlan(unchanged=(BOTH,))),
}


@pytest.mark.parametrize(("wanted", "there", "plan"), PLANS.values(), ids=PLANS)
def test_a_plan(wanted: list[Route], there: list[Route], plan: RoutePlan) -> None:
    assert plan_routes(wanted, there) == plan


WANTED6 = Route6(IPv6Network("fd00:1::/48"), (NextHop("eth0"),), metric=512)
LONE = attrs.evolve(WANTED, destination=IPv4Network("172.16.1.7/32"))
ELSEWHERE = (NextHop("ib0", OTHER),)
REFUSALS: dict[str, tuple[Route, Route, tuple[str, ...]]] = {
    **{
        f"proto {protocol} leads to {hops[0].gateway} on {hops[0].dev}": (
            WANTED,
            there,
            (
                str(there),
                "remove 172.16.1.0/24 from hostRouting.staticRoutes.routes"
                + (" and name its halves" if there.devs == ("ib0",) else ", or have"),
            ),
        )
        for protocol in (Protocol.DHCP, Protocol.STATIC)
        for hops in (ELSEWHERE, (NextHop("eth0", OTHER),))
        for there in [foreign(protocol=protocol, hops=hops)]
    },
    "it has expired": (WANTED6, foreign(WANTED6, expires=0), ("it has expired: try again",)),
    "it discards": (
        WANTED,
        foreign(protocol=Protocol.BIRD, type=RouteType.BLACKHOLE, hops=()),
        ("blackhole 172.16.1.0/24 proto bird",),
    ),
    # Replacing the route would cut the interface off from its own network.
    **{
        f"connected, metric {metric}": (
            WANTED,
            Route(DESTINATION, (NextHop("ib0"),), protocol=Protocol.KERNEL, metric=metric),
            ("connected network of ib0", "172.16.1.0/25 and 172.16.1.128/25"),
        )
        for metric in (0, 100)
    },
    "it has no halves": (
        LONE,
        Route(LONE.destination, (NextHop("ppp0"),), protocol=Protocol.KERNEL),
        (f"hint: remove {LONE.destination} from",),
    ),
    "connected on the same interface": (
        WANTED,
        Route(DESTINATION, (NextHop("eth0"),), protocol=Protocol.KERNEL),
        (f"remove {DESTINATION} from", "the connected route leads through eth0 already"),
    ),
}


@pytest.mark.parametrize(("wanted", "there", "words"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal(wanted: Route, there: Route, words: tuple[str, ...]) -> None:
    with pytest.raises(RouteError) as caught:
        plan_routes([wanted], [there])
    assert all(each in str(caught.value) for each in words)


@pytest.mark.parametrize(
    "changes",
    [
        {"hops": (NextHop("eth0", OTHER),)},
        {"hops": (NextHop("eth1", GATEWAY),)},
        {"hops": (NextHop("eth0", GATEWAY, onlink=True),)},
        {"source": IPv4Address("10.1.0.4")},
        {"mtu": 1400},
        {"scope": Scope.LINK},
        {"type": RouteType.BLACKHOLE, "hops": ()},
        {"nexthop_id": 4},
    ],
)
def test_any_difference_in_our_route_replaces_it(changes: dict[str, Any]) -> None:
    there = attrs.evolve(WANTED, **changes)
    assert plan_routes([WANTED], [there]) == RoutePlan(replace=(Replacement(there, WANTED),))


def test_the_first_route_with_a_key_counts() -> None:
    ours, theirs = attrs.evolve(WANTED, mtu=9000), foreign(hops=(NextHop("ib0", OTHER),))
    assert plan_routes([WANTED], [ours, theirs]).replace == (Replacement(ours, WANTED),)
    with pytest.raises(RouteError):
        plan_routes([WANTED], [theirs, ours])


def test_the_first_refusals_are_listed_and_the_rest_counted() -> None:
    wanted = [attrs.evolve(WANTED, destination=IPv4Network(f"172.16.{n}.0/24")) for n in range(20)]
    there = [foreign(each, hops=ELSEWHERE) for each in wanted]
    for refuse in (
        partial(plan_routes, wanted, there),
        partial(verify_routes, wanted, FakeKernel()),
    ):
        with pytest.raises(RouteError) as caught:
            refuse()
        assert caught.value.message.splitlines()[16:] == ["and 4 more"]


# --- verification ---------------------------------------------------------------------------------


def by_eth0(destination: str, protocol: int = Protocol.HOSTROUTING, tos: int = 0) -> Route:
    return Route(IPv4Network(destination), (BY_ETH0,), protocol=protocol, tos=tos)


def halves(*protocols: int, tos: int = 0) -> list[Route]:
    """Return the halves of PROVEN's destination, each with a protocol."""
    return [
        by_eth0(f"172.16.0.{first}/25", each, tos)
        for first, each in zip((0, 128), protocols, strict=True)
    ]


PROVEN, OURS = by_eth0("172.16.0.0/24"), Protocol.HOSTROUTING
LATER, DISCARD = (
    attrs.evolve(PROVEN, metric=9),
    attrs.evolve(PROVEN, hops=(), type=RouteType.BLACKHOLE),
)
BOTH_LOCAL = by_eth0("172.16.0.10/31")
COVERED = r"never wins.*for example 172\.16\.0\.\d+/25 .*proto static"
VERIFIED: dict[str, tuple[Route, list[Route], str | None]] = {
    "another device": (
        PROVEN,
        [attrs.evolve(PROVEN, hops=(NextHop("ib0"),))],
        "doesn't win.*dev ib0",
    ),
    "a discard": (
        LATER,
        [LATER, DISCARD],
        "nowhere .*, by blackhole 172.16.0.0/24 proto hostrouting",
    ),
    "it is missing": (PROVEN, [], "isn't in the table any more"),
    "longer prefixes for a tos": (
        PROVEN,
        [PROVEN, *halves(Protocol.STATIC, Protocol.STATIC, tos=8)],
        None,
    ),
    "our longer prefixes": (
        PROVEN,
        [PROVEN, *halves(OURS, OURS), by_eth0("172.16.0.200/32", Protocol.STATIC)],
        None,
    ),
    "others' longer prefixes": (
        PROVEN,
        [PROVEN, *halves(Protocol.STATIC, Protocol.STATIC)],
        COVERED,
    ),
    "a longer prefix of others": (PROVEN, [PROVEN, *halves(OURS, Protocol.STATIC)], COVERED),
    "local addresses alone": (BOTH_LOCAL, [BOTH_LOCAL], "never wins.*for example local"),
}


@pytest.mark.parametrize(("route", "there", "why"), VERIFIED.values(), ids=VERIFIED)
def test_a_route_that_never_wins_is_refused(
    route: Route, there: list[Route], why: str | None
) -> None:
    kernel = FakeKernel()
    add_nics(kernel, eth0="10.1.0.4/24", ib0="172.16.0.10/32")
    kernel.add_address("ib0", "172.16.0.11/32")
    assert not kernel.write(Write.ADD, [dhcp_route(), *there])
    with nullcontext() if why is None else pytest.raises(RouteError, match=why):
        verify_routes([route], kernel)


# --- formats of other tools -----------------------------------------------------------------------


def route(*hops: NextHop, to: str = "172.16.0.0/17", **more: Any) -> Route:
    return Route(IPv4Network(to), hops or (BY_ETH0,), **more)


EVERY_FORM = [
    route(to="172.16.1.0/24"),
    route(to="172.16.2.1/32", source=IPv4Address("10.1.0.4"), mtu=1400, metric=77),
    route(NextHop("eth1", IPv4Address("169.254.1.1"), onlink=True), to="172.16.3.0/24"),
    route(NextHop("eth0"), to="10.1.0.64/26"),
]


def written(text: str) -> tuple[str, ...]:
    """Return the lines of a text without comments, except for the interface of a drop-in."""
    return lines(
        re.sub(
            r"^#.*",
            "",
            re.sub(r"^# (eth\d): .*", r"[\1]", text, flags=re.MULTILINE),
            flags=re.MULTILINE,
        )
    )


WEIGHTED = NextHop("eth0", IPv6Address("fe80::1"), weight=2)
AS_IP = """
    ip -4 route add 172.16.1.0/24 via 10.1.0.1 dev eth0 proto 216
    ip -4 route add 172.16.2.1 via 10.1.0.1 dev eth0 proto 216 src 10.1.0.4 metric 77 mtu 1400
    ip -4 route add 172.16.3.0/24 via 169.254.1.1 dev eth1 proto 216 onlink
    ip -4 route add 10.1.0.64/26 dev eth0 proto 216 scope link
"""
HOPS_AS_IP = """
    ip -4 route add 172.16.0.0/17 via inet6 fe80::1 dev eth0 proto 216 onlink
    ip -4 route add 172.16.0.0/17 proto 216 nexthop via inet6 fe80::1 dev eth0 weight 2 onlink nexthop via 10.2.0.1 dev eth1 weight 1
"""  # noqa: E501
AS_NETWORKD = """
    [eth0]
    [Route]
    Destination=172.16.1.0/24
    Gateway=10.1.0.1
    GatewayOnLink=no
    [Route]
    Destination=172.16.2.1/32
    Gateway=10.1.0.1
    GatewayOnLink=no
    PreferredSource=10.1.0.4
    MTUBytes=1400
    Metric=77
    [Route]
    Destination=10.1.0.64/26
    Scope=link
    [eth1]
    [Route]
    Destination=172.16.3.0/24
    Gateway=169.254.1.1
    GatewayOnLink=yes
"""
HOPS_AS_NETWORKD = """
    [eth0]
    [Route]
    Destination=172.16.0.0/17
    Gateway=fe80::1
    GatewayOnLink=no
    [Route]
    Destination=172.16.0.0/17
    MultiPathRoute=fe80::1@eth0 2
    MultiPathRoute=10.2.0.1@eth1 1
"""


@pytest.mark.parametrize(
    ("write", "hop", "single", "multipath"),
    [
        (as_ip, attrs.evolve(WEIGHTED, onlink=True), AS_IP, HOPS_AS_IP),
        (as_networkd, WEIGHTED, AS_NETWORKD, HOPS_AS_NETWORKD),
    ],
)
def test_routes_are_written(
    write: Callable[[Sequence[Route]], str], hop: NextHop, single: str, multipath: str
) -> None:
    """A route with several hops is in the first interface's drop-in."""
    assert written(write(EVERY_FORM)) == lines(single)
    assert written(write([route(hop), route(hop, BY_ETH1)])) == lines(multipath)


SIDE_ROUTE = route(
    NextHop("ib0"), to="172.16.0.0/16", table=2170000, source=IPv4Address("172.16.0.10")
)
FROM_IB0 = Rule(2170, table=2170000, source=IPv4Network("172.16.0.10/32"))
TO_PODS = Rule(5269, destination=IPv4Network("10.244.0.0/16"))
POLICY = [
    PlacedRule(attrs.evolve(TO_PODS, table=Table.LOCAL), "eth0"),
    PlacedRule(TO_PODS, "eth0"),
    PlacedRule(FROM_IB0, "ib0"),
]
POLICY_AS_IP = """
    ip -4 route add 172.16.0.0/16 dev ib0 table 2170000 proto 216 scope link src 172.16.0.10
    ip -4 rule add from all to 10.244.0.0/16 lookup local pref 5269 proto 216
    ip -4 rule add from all to 10.244.0.0/16 lookup main pref 5269 proto 216
    ip -4 rule add from 172.16.0.10 lookup 2170000 pref 2170 proto 216
"""
# Other tools may add rules of one priority in any order.
POLICY_AS_NETWORKD = """
    # ib0: for a file
    [Route]
    Destination=172.16.0.0/16
    Scope=link
    PreferredSource=172.16.0.10
    Table=2170000
    [RoutingPolicyRule]
    From=172.16.0.10/32
    Table=2170000
    Priority=2170
    # eth0: for a file
    [RoutingPolicyRule]
    To=10.244.0.0/16
    Table=255
    Priority=5268
    [RoutingPolicyRule]
    To=10.244.0.0/16
    Table=254
    Priority=5269
"""
POLICY_AS_NETPLAN = {
    "ib0": {
        "routes": [
            {"to": "172.16.0.0/16", "scope": "link", "from": "172.16.0.10", "table": 2170000}
        ],
        "routing-policy": [{"from": "172.16.0.10/32", "table": 2170000, "priority": 2170}],
    },
    "eth0": {
        "routing-policy": [
            {"to": "10.244.0.0/16", "table": 255, "priority": 5268},
            {"to": "10.244.0.0/16", "table": 254, "priority": 5269},
        ]
    },
}


def test_rules_and_side_tables_are_written() -> None:
    assert written(as_ip([SIDE_ROUTE], POLICY)) == lines(POLICY_AS_IP)
    networkd = as_networkd([SIDE_ROUTE], POLICY)
    told = [line for line in networkd.splitlines() if not line.startswith("#") and line]
    wanted = [line for line in lines(POLICY_AS_NETWORKD) if not line.startswith("#")]
    assert told == wanted
    assert [line.split()[1] for line in networkd.splitlines() if "for a file" in line] == [
        "ib0:",
        "eth0:",
    ]
    document = yaml.safe_load(as_netplan([SIDE_ROUTE], POLICY))
    assert document["network"]["ethernets"] == POLICY_AS_NETPLAN
    suppressing = PlacedRule(attrs.evolve(FROM_IB0, suppress_prefix_length=0), "ib0")
    assert "SuppressPrefixLength=0\n" in as_networkd([], [suppressing])
    with pytest.raises(RouteError, match=r"has no suppress_prefixlength.*\nhint: use networkd"):
        as_netplan([], [suppressing])
    with pytest.raises(RouteError, match="is not an interface name"):
        as_networkd([], [PlacedRule(TO_PODS, "$(reboot)")])


REFUSED = [
    (
        as_netplan,
        route(NextHop("eth0", IPv6Address("fe80::1"))),
        "no IPv6 gateway .*\nhint: use networkd or ip",
    ),
    (
        as_netplan,
        route(BY_ETH0, BY_ETH1),
        "no multipath routes\nhint: name one dev of eth0, eth1, or use networkd or ip",
    ),
    (
        as_netplan,
        route(metric=2**31),
        "loses metrics above 2147483647\nhint: choose a smaller one, or use networkd or ip",
    ),
    (
        as_networkd,
        route(BY_ETH0, NextHop("eth1")),
        "no multipath hops without a gateway\nhint: name one interface as dev",
    ),
    (
        as_networkd,
        route(BY_ETH0, NextHop("eth1", GATEWAY, onlink=True)),
        "no multipath hops with an onlink gateway",
    ),
]


@pytest.mark.parametrize(("write", "refused", "why"), REFUSED)
def test_an_inexpressible_route_is_an_error(
    write: Callable[[Sequence[Route]], str], refused: Route, why: str
) -> None:
    with pytest.raises(RouteError, match=why) as raised:
        write([route(to="10.9.0.0/16"), refused])
    assert str(raised.value).startswith(f"can't write {refused} for ")
    assert "10.9.0.0" not in str(raised.value)


def test_every_inexpressible_route_is_named() -> None:
    with pytest.raises(RouteError) as raised:
        as_netplan([refused for write, refused, _ in REFUSED if write is as_netplan])
    assert len(raised.value.message.splitlines()) == 3
    assert len(raised.value.hint.splitlines()) == 3


# --- any routes in other formats ------------------------------------------------------------------


ODD_NAMES = (
    *(
        "on",
        "Off",
        "yes",
        "n",
        "null",
        "NULL",
        "true",
        "1e3",
        "0x1",
        "0o7",
        "010",
        "1_0",
        "1.5",
        ".5",
        ".inf",
    ),
    *(
        ".NaN",
        "-1",
        "---",
        "...",
        "-",
        "_",
        "2001-01-01",
        "eth0.100",
        "version",
        "default",
        "via",
        "dev",
        "e1",
    ),
)

names = st.one_of(
    st.sampled_from(ODD_NAMES),
    st.sampled_from(("eth0", "eth1")),
    st.from_regex(r"[A-Za-z0-9_.-]{1,15}", fullmatch=True).filter(
        lambda name: name not in (".", "..")
    ),
)
networks = st.builds(
    lambda number, length: IPv4Network((number, length), strict=False),
    st.integers(2**24, 2**32 - 1),
    st.integers(1, 32),
)
gateways = st.builds(IPv4Address, st.integers(2**24, 2**32 - 1))

hops = st.one_of(st.builds(NextHop, names, gateways, st.booleans()), st.builds(NextHop, names))
routes = st.lists(
    st.builds(
        Route,
        destination=networks,
        hops=st.tuples(hops),
        metric=st.just(0) | st.integers(0, 2**31 - 1),
        source=st.none() | gateways,
        mtu=st.none() | st.integers(68, 65520),
    ),
    max_size=6,
)


def by_device(wanted: Sequence[Route]) -> dict[str | None, list[Route]]:
    sorted_: dict[str | None, list[Route]] = {}
    for route in wanted:
        sorted_.setdefault(route.hops[0].dev, []).append(route)
    return sorted_


def netplan_route(dev: str, item: dict[str, Any]) -> Route:
    known = {"to", "via", "on-link", "scope", "from", "mtu", "metric"}
    assert set(item) <= known
    assert item.get("scope") == (None if "via" in item else "link")
    return Route(
        IPv4Network(item["to"]),
        (
            NextHop(
                dev, IPv4Address(item["via"]) if "via" in item else None, item.get("on-link", False)
            ),
        ),
        source=IPv4Address(item["from"]) if "from" in item else None,
        mtu=item.get("mtu"),
        metric=item.get("metric", 0),
    )


@given(routes)
@example([Route(IPv4Network("172.16.0.0/17"), (NextHop(name),)) for name in ODD_NAMES])
def test_a_netplan_file_reads_back_as_the_routes(wanted: list[Route]) -> None:
    document = yaml.safe_load(as_netplan(wanted)) or {"network": {"version": 2, "ethernets": {}}}
    assert (document["network"].keys(), document["network"]["version"]) == (
        {"version", "ethernets"},
        2,
    )
    read = {
        dev: [netplan_route(dev, item) for item in entry["routes"]]
        for dev, entry in document["network"]["ethernets"].items()
    }
    assert read == by_device(wanted)


HOSTILE = [
    "",
    " ",
    "$(reboot)",
    "`reboot`",
    "a;reboot",
    "a&b",
    '"',
    "'",
    "\\",
    "#",
    "a b",
    "a\nb",
    "{a}",
    "*",
    "a@b",
]
hostile = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(min_size=1).filter(lambda text: not re.fullmatch(r"[A-Za-z0-9_.-]+", text)),
)


@given(hostile)
@pytest.mark.parametrize("write", [as_ip, as_netplan, as_networkd])
def test_a_hostile_interface_name_never_reaches_a_text(
    write: Callable[[Sequence[Route]], str], name: str
) -> None:
    """The kernel rejects only ``/``, ``:`` and whitespace in a name.

    Routes may inherit such a name.
    """
    for ways in ((NextHop(name),), (BY_ETH0, NextHop(name, SECOND))):
        with pytest.raises(RouteError, match="is not an interface name"):
            write([Route(IPv4Network("172.16.0.0/17"), ways, protocol=Protocol.STATIC)])
