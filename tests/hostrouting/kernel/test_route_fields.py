"""Test that each attribute of a route takes part wherever routes are written, read or compared.

Without these tests, an attribute that one of these modules forgets would be lost silently.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import attrs
import pytest
from hypothesis import Phase, find, settings

from hostrouting.kernel import _ip
from hostrouting.kernel._memory.net import info_of
from hostrouting.kernel.ip_commands import parse_route
from hostrouting.kernel.rtnetlink.entries import RouteReader
from hostrouting.kernel.rtnetlink.messages import ADD
from hostrouting.kernel.rtnetlink.route_messages import RoutePacker
from hostrouting.kernel.selection import Selection
from hostrouting.model.family import Family
from hostrouting.model.routes import NextHop, Route, RouteType, Scope
from hostrouting.testing.strategies import routes

PLAIN = Route(IPv4Network("10.0.0.0/24"), (NextHop("lo", IPv4Address("10.1.0.1")),))

# For each field, another value than that of PLAIN, and other fields that have to fit it.
OTHERS: dict[str, dict[str, Any]] = {
    "destination": {"destination": IPv4Network("10.0.1.0/24")},
    "hops": {"hops": (NextHop("lo", IPv4Address("10.1.0.2")),)},
    "type": {"type": RouteType.BLACKHOLE, "hops": ()},
    "table": {"table": 1000},
    "protocol": {"protocol": 4},
    "scope": {"scope": Scope.LINK},
    "metric": {"metric": 5},
    "tos": {"tos": 16},
    "source": {"source": IPv4Address("10.1.0.4")},
    "mtu": {"mtu": 1400},
    "nexthop_id": {"nexthop_id": 7, "hops": ()},  # requests name no hops beside the object
}
# Routes whose other attributes are equal share these in the kernel (struct fib_info).
OF_ENTRIES = ("destination", "tos")
FIELDS = [field.name for field in attrs.fields(Route)]


def in_words(route: Route) -> Route:
    return parse_route(str(route))


def in_a_snapshot(route: Route) -> Route:
    return _ip.read_route(_ip.write_route(route))


def in_messages(route: Route) -> Route:
    reader = RouteReader(Family.IPV4, dict, tuple, tuple, Selection())
    message = RoutePacker(Family.IPV4).new(ADD, route, sequence=1)
    return reader.single(message)[0].copy(route.destination)


def test_each_field_has_another_value_here() -> None:
    assert [*OTHERS] == FIELDS, "OTHERS needs another value for each field of Route"


@pytest.mark.parametrize("through", [in_words, in_a_snapshot, in_messages])
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_is_read_as_it_was_written(field: str, through: Callable[[Route], Route]) -> None:
    route = attrs.evolve(PLAIN, **OTHERS[field])
    found = through(route)
    assert getattr(found, field) == getattr(route, field) != getattr(PLAIN, field)
    assert found == route


@pytest.mark.parametrize("field", FIELDS)
def test_routes_that_differ_in_a_field_are_told_apart(field: str) -> None:
    route = attrs.evolve(PLAIN, **OTHERS[field])
    assert str(route) != str(PLAIN), "str(route) lacks it"
    if route.key == PLAIN.key:
        assert not route.has_same_effect(PLAIN), "Route._effect lacks it"
    if field not in OF_ENTRIES:
        assert info_of(route) != info_of(PLAIN), "info_of in _memory/net.py lacks it"


@pytest.mark.parametrize("field", sorted({*FIELDS} - {"nexthop_id"}))
def test_conformance_draws_other_values_of_each_field(field: str) -> None:
    usual = getattr(PLAIN, field)
    many = settings(max_examples=1000, phases=[Phase.generate])
    assert find(routes(), lambda route: getattr(route, field) != usual, settings=many) != PLAIN
