"""Tests that a plan adds missing routes, replaces our own, keeps sufficient ones, and rejects conflicts."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from hostrouting import RouteError
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, RouteType, Scope
from hostrouting.routes.plan import Replacement, RoutePlan, plan_routes

if TYPE_CHECKING:
    import pytest

GATEWAY = IPv4Address("10.1.0.1")
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
    # A config can't contain a default route, so this one belongs to another program that uses our protocol number.
    # Removing it would cut off the host.
    "a default route is never ours": ([], [DEFAULT], RoutePlan()),
    # The reference's ``ip route replace`` would overwrite a DHCP route.
    **{
        f"proto {protocol} does the same": ([WANTED], [there], RoutePlan(foreign=(there,)))
        for protocol in (Protocol.DHCP, Protocol.STATIC, Protocol.BOOT, Protocol.KERNEL, 99)
        for there in [foreign(protocol=protocol, mtu=1400)]
    },
    "the halves of a connected route": ([*HALVES], [AROUND], RoutePlan(add=HALVES)),
    "other routes with another key": ([WANTED], [foreign(metric=9), foreign(tos=8), foreign(AROUND)], RoutePlan(add=(WANTED,))),
    "hops in another order": ([BOTH], [foreign(BOTH, hops=BOTH.hops[::-1])], RoutePlan(foreign=(foreign(BOTH, hops=BOTH.hops[::-1]),))),
    "several hops, ours": ([BOTH], [BOTH], RoutePlan(unchanged=(BOTH,))),
}  # fmt: skip


@pytest.mark.parametrize(("wanted", "there", "plan"), PLANS.values(), ids=PLANS)
def test_a_plan(wanted: list[Route], there: list[Route], plan: RoutePlan) -> None:
    assert plan_routes(wanted, there) == plan


LONE = attrs.evolve(WANTED, destination=IPv4Network("172.16.1.7/32"))
ELSEWHERE = (NextHop("ib0", OTHER),)
REFUSALS: dict[str, tuple[Route, Route, tuple[str, ...]]] = {
    **{
        f"proto {protocol} leads elsewhere": (WANTED, there, (str(there), "choose another metric or destination"))
        for protocol in (Protocol.DHCP, Protocol.STATIC)
        for there in [foreign(protocol=protocol, hops=ELSEWHERE)]
    },
    "it discards": (WANTED, foreign(protocol=Protocol.BIRD, type=RouteType.BLACKHOLE, hops=()), ("blackhole 172.16.1.0/24 proto bird",)),
    # Replacing the route would cut the interface off from its own network.
    **{
        f"connected, metric {metric}": (
            WANTED,
            Route(DESTINATION, (NextHop("ib0"),), protocol=Protocol.KERNEL, metric=metric),
            ("connected network of ib0", "172.16.1.0/25 and 172.16.1.128/25"),
        )
        for metric in (0, 100)
    },
    "it has no halves": (LONE, Route(LONE.destination, (NextHop("ppp0"),), protocol=Protocol.KERNEL), ("leave it out",)),
}  # fmt: skip


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


def test_all_refusals_are_reported_at_once() -> None:
    second = attrs.evolve(WANTED, destination=IPv4Network("172.16.2.0/24"))
    with pytest.raises(RouteError) as caught:
        plan_routes([WANTED, second], [foreign(r, hops=(NextHop("ib0"),)) for r in (WANTED, second)])
    assert len(str(caught.value).splitlines()) == 2
