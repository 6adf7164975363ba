"""Tests that every route is verified to win, and that a losing route is an error."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest
from node import add_nics, default_route

from hostrouting.model.errors import RouteError
from hostrouting.model.routes import NextHop, Protocol, Route
from hostrouting.routes.verify import verify_routes
from hostrouting.testing import FakeKernel

HOP = (NextHop("eth0", IPv4Address("10.1.0.1")),)


def route(destination: str, protocol: int = Protocol.HOSTROUTING, tos: int = 0) -> Route:
    return Route(IPv4Network(destination), HOP, protocol=protocol, tos=tos)


WANTED = route("172.16.0.0/24")
HALVES = ("172.16.0.0/25", "172.16.0.128/25")


@pytest.fixture
def kernel() -> FakeKernel:
    kernel = FakeKernel()
    add_nics(kernel, eth0="10.1.0.4/24", ib0="172.16.0.10/32")
    assert not kernel.add([default_route()])
    return kernel


def test_a_missing_route_is_reported_as_missing(kernel: FakeKernel) -> None:
    with pytest.raises(RouteError, match="isn't in the table any more"):
        verify_routes([WANTED], kernel)


def test_longer_prefixes_for_a_tos_do_not_cover_a_route(kernel: FakeKernel) -> None:
    kernel.add([WANTED, *(route(half, Protocol.STATIC, tos=8) for half in HALVES)])
    verify_routes([WANTED], kernel)


def test_a_route_covered_by_our_longer_prefixes_is_fine(kernel: FakeKernel) -> None:
    ours = [WANTED, *map(route, HALVES)]
    kernel.add([*ours, route("172.16.0.200/32", Protocol.STATIC)])
    verify_routes(ours, kernel)


@pytest.mark.parametrize("protocols", [(Protocol.STATIC, Protocol.STATIC), (Protocol.HOSTROUTING, Protocol.STATIC)])
def test_a_route_covered_by_other_routes_never_wins(kernel: FakeKernel, protocols: tuple[int, int]) -> None:
    kernel.add([WANTED, *map(route, HALVES, protocols)])
    with pytest.raises(RouteError, match=r"never wins.*for example 172\.16\.0\.\d+/25 .*proto static"):
        verify_routes([WANTED], kernel)


def test_a_route_to_local_addresses_alone_never_wins(kernel: FakeKernel) -> None:
    kernel.add_address("ib0", "172.16.0.11/32")
    both = route("172.16.0.10/31")
    kernel.add([both])
    with pytest.raises(RouteError, match="never wins.*for example local"):
        verify_routes([both], kernel)
