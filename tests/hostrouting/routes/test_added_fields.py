"""If a field is added to a route class, all routes have it, including copied routes."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import attrs

from hostrouting import Config, StaticRoute
from hostrouting.boot.render import render_static_routes
from hostrouting.config import routing
from hostrouting.config.schema import checked_at_once
from hostrouting.config.values import parse_integer
from hostrouting.model.links import Link
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route
from hostrouting.routes import resolve as resolving
from hostrouting.routes.plan import plan_routes

if TYPE_CHECKING:
    import pytest

TAGS = [4, 5, 4, 5, 0]


def parse_tag(value: int) -> int:
    return parse_integer(value, 9)


@attrs.frozen(field_transformer=checked_at_once)
class TaggedStaticRoute(StaticRoute):
    tag: int = attrs.field(default=0, converter=parse_tag, kw_only=True)


@attrs.frozen
class TaggedRoute(Route):
    tag: int = attrs.field(default=7, kw_only=True)


def tagged_config() -> Config:
    routes = [{"destination": f"172.16.{n}.0/24"} | ({"tag": tag} if tag else {}) for n, tag in enumerate(TAGS)]
    return Config.from_mapping({"hostRouting": {"staticRoutes": {"enabled": True, "routes": routes}}})


def test_it_reaches_every_route_of_a_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "StaticRoute", TaggedStaticRoute)
    routes = tagged_config().static_routes.routes
    assert [route.tag for route in routes if isinstance(route, TaggedStaticRoute)] == TAGS


def test_it_reaches_every_route_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "StaticRoute", TaggedStaticRoute)
    monkeypatch.setattr(resolving, "Route", TaggedRoute)
    default = Route(DEFAULT_DESTINATION, (NextHop("eth0", IPv4Address("10.1.0.1")),), protocol=Protocol.DHCP)
    routes, missing = resolving.resolve(tagged_config().static_routes.routes, [Link(2, "eth0")], [], [default], None)
    assert missing is None
    added = plan_routes(routes, [default]).add
    assert [route.tag for route in added if isinstance(route, TaggedRoute)] == [7] * len(TAGS)


def test_it_reaches_every_row_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "StaticRoute", TaggedStaticRoute)
    text = render_static_routes(tagged_config())
    rows = [line.split() for line in text.splitlines() if line.startswith("172.16.")]
    assert rows == [[f"172.16.{n}.0/24", "*", "*", "0", str(tag)] for n, tag in enumerate(TAGS)]
