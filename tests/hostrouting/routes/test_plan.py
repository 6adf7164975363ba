"""Add what is missing, replace what is ours, leave alone what does already, refuse the rest."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Any

import attrs
import pytest

from hostrouting import RouteError
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, RouteType, Scope
from hostrouting.routes.plan import Replacement, RoutePlan, plan_routes

GATEWAY = IPv4Address("10.1.0.1")
OTHER = IPv4Address("10.1.0.9")
DESTINATION = IPv4Network("172.16.1.0/24")
WANTED = Route(DESTINATION, (NextHop("eth0", GATEWAY),))


def foreign(route: Route = WANTED, protocol: int = Protocol.DHCP, **changes: Any) -> Route:
    return attrs.evolve(route, protocol=protocol, **changes)


def test_a_free_destination_and_metric_is_added() -> None:
    assert plan_routes([WANTED], []) == RoutePlan(add=(WANTED,))


def test_ours_as_wanted_is_unchanged_whatever_the_kernel_reports_of_its_state() -> None:
    there = attrs.evolve(WANTED, hops=(NextHop("eth0", GATEWAY, is_linkdown=True),))
    plan = plan_routes([WANTED], [there])
    assert not plan.changes
    assert plan.unchanged == (there,)


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
def test_ours_that_differs_in_anything_is_replaced(changes: dict[str, Any]) -> None:
    there = attrs.evolve(WANTED, **changes)
    assert plan_routes([WANTED], [there]) == RoutePlan(replace=(Replacement(there, WANTED),))


def test_ours_that_nobody_wants_is_removed_and_another_metric_is_another_route() -> None:
    old = attrs.evolve(WANTED, metric=5)
    assert plan_routes([WANTED], [old]) == RoutePlan(add=(WANTED,), remove=(old,))
    assert plan_routes([], [old, WANTED]) == RoutePlan(remove=(old, WANTED))


def test_a_default_route_is_never_ours_whatever_its_protocol() -> None:
    """No config can ask for one, so somebody else uses our number; to remove it would cut the host off."""
    assert not plan_routes([], [attrs.evolve(WANTED, destination=DEFAULT_DESTINATION)]).changes


@pytest.mark.parametrize("protocol", [Protocol.DHCP, Protocol.STATIC, Protocol.BOOT, Protocol.KERNEL, 99])
def test_a_foreign_route_that_does_the_same_is_kept(protocol: int) -> None:
    """The reference's ``ip route replace`` takes a DHCP route over."""
    there = foreign(protocol=protocol, mtu=1400)
    assert plan_routes([WANTED], [there]) == RoutePlan(foreign=(there,))


@pytest.mark.parametrize("protocol", [Protocol.DHCP, Protocol.STATIC])
def test_a_foreign_route_elsewhere_is_refused_and_named(protocol: int) -> None:
    there = foreign(protocol=protocol, hops=(NextHop("ib0", OTHER),))
    with pytest.raises(RouteError) as caught:
        plan_routes([WANTED], [there])
    assert str(there) in str(caught.value)
    assert "choose another metric or destination" in str(caught.value)


def test_somebody_elses_discarding_route_is_another_next_hop() -> None:
    with pytest.raises(RouteError, match="blackhole 172.16.1.0/24 proto bird"):
        plan_routes([WANTED], [foreign(protocol=Protocol.BIRD, type=RouteType.BLACKHOLE, hops=())])


@pytest.mark.parametrize("metric", [0, 100])
def test_a_connected_route_is_refused_with_its_halves(metric: int) -> None:
    """Replacing it would cut the interface off from its own network."""
    connected = Route(DESTINATION, (NextHop("ib0"),), protocol=Protocol.KERNEL, metric=metric)
    with pytest.raises(RouteError) as caught:
        plan_routes([WANTED], [connected])
    assert "connected network of ib0" in str(caught.value)
    assert "172.16.1.0/25 and 172.16.1.128/25" in str(caught.value)


def test_a_connected_host_route_has_no_halves_to_offer() -> None:
    host = attrs.evolve(WANTED, destination=IPv4Network("172.16.1.7/32"))
    connected = Route(host.destination, (NextHop("ppp0"),), protocol=Protocol.KERNEL)
    with pytest.raises(RouteError, match="leave it out"):
        plan_routes([host], [connected])


def test_the_halves_of_a_connected_route_are_added_beside_it() -> None:
    connected = Route(IPv4Network("172.16.0.0/16"), (NextHop("ib0"),), protocol=Protocol.KERNEL)
    halves = [attrs.evolve(WANTED, destination=half) for half in connected.destination.subnets()]
    assert plan_routes(halves, [connected]) == RoutePlan(add=tuple(halves))


def test_of_several_with_the_same_key_the_first_counts_as_it_does_for_the_kernels_replace() -> None:
    ours, theirs = attrs.evolve(WANTED, mtu=9000), foreign(hops=(NextHop("ib0", OTHER),))
    assert plan_routes([WANTED], [ours, theirs]).replace == (Replacement(ours, WANTED),)
    with pytest.raises(RouteError):
        plan_routes([WANTED], [theirs, ours])


def test_somebody_elses_route_of_another_metric_or_tos_is_not_in_the_way() -> None:
    others = [foreign(metric=9), foreign(tos=8), foreign(destination=IPv4Network("172.16.0.0/16"))]
    assert plan_routes([WANTED], others) == RoutePlan(add=(WANTED,))


def test_multipath_next_hops_are_the_same_in_any_order() -> None:
    hops = (NextHop("eth0", GATEWAY, weight=2), NextHop("eth1", OTHER))
    there = foreign(hops=hops[::-1])
    assert plan_routes([attrs.evolve(WANTED, hops=hops)], [there]).foreign == (there,)
    assert not plan_routes([attrs.evolve(WANTED, hops=hops)], [attrs.evolve(WANTED, hops=hops)]).changes


def test_all_refusals_are_named_at_once() -> None:
    second = attrs.evolve(WANTED, destination=IPv4Network("172.16.2.0/24"))
    with pytest.raises(RouteError) as caught:
        plan_routes([WANTED, second], [foreign(r, hops=(NextHop("ib0"),)) for r in (WANTED, second)])
    assert len(str(caught.value).splitlines()) == 2
