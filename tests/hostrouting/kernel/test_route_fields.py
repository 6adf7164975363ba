"""Test that each attribute of a route takes part wherever routes are written, read or compared.

Without these tests, an attribute that one of these modules forgets would be lost silently.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from typing import Any, NamedTuple

import attrs
import pytest
from hypothesis import Phase, find, settings
from hypothesis.errors import NoSuchExample

from hostrouting.kernel import _ip
from hostrouting.kernel._memory.net import info_of
from hostrouting.kernel.ip_commands import parse_route
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.port import Write
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


class Form(NamedTuple):
    """A form in which routes are written and read, and where."""

    write: Callable[[Route], Any]
    read: Callable[[Any], Route]
    writer: str
    reader: str


def packed(route: Route) -> bytes:
    return RoutePacker(Family.IPV4).new(ADD, route, sequence=1)


def unpacked(message: bytes) -> Route:
    reader = RouteReader(Family.IPV4, dict, tuple, tuple, Selection())
    common, prefix = reader.single(message)
    return common.copy(IPv4Network(prefix))


FORMS = {
    "words": Form(
        str, parse_route, "Route._tail in model/routes.py", "parse_route in kernel/ip_commands.py"
    ),
    "snapshot": Form(
        _ip.write_route,
        _ip.read_route,
        "write_route in kernel/_ip.py",
        "read_route in kernel/_ip.py",
    ),
    "messages": Form(
        packed, unpacked, "kernel/rtnetlink/route_messages.py", "kernel/rtnetlink/entries.py"
    ),
}


def test_each_field_has_another_value_here() -> None:
    assert [*OTHERS] == FIELDS, "OTHERS needs another value for each field of Route"
    for field, values in OTHERS.items():
        assert values[field] != getattr(PLAIN, field)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_is_read_as_it_was_written(field: str, form: str) -> None:
    write, read, writer, reader = FORMS[form]
    route = attrs.evolve(PLAIN, **OTHERS[field])
    written = write(route)
    assert written != write(PLAIN), f"{writer} doesn't write {field}"
    found = read(written)
    assert getattr(found, field) == getattr(route, field), f"{reader} doesn't read {field}"
    assert found == route


@pytest.mark.parametrize("field", sorted({*FIELDS} - {"destination", "hops"}))
def test_the_in_memory_kernel_checks_the_type_of_each_field(field: str) -> None:
    route = attrs.evolve(PLAIN)
    object.__setattr__(route, field, object())  # not refused by Route itself
    missing = f"_ROUTE_FIELDS in kernel/memory.py needs the types of {field}"
    try:
        FakeKernel().write(Write.ADD, [route])
    except TypeError as refusal:
        assert f"as Route.{field}, not" in str(refusal), missing
    else:
        pytest.fail(missing)


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
    try:
        found = find(routes(), lambda route: getattr(route, field) != usual, settings=many)
    except NoSuchExample:
        pytest.fail(f"no route with another {field}: draw it in testing/strategies.py")
    assert found != PLAIN
