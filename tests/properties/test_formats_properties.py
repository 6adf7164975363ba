"""Tests that a YAML parser reads back any routes that were written, and that no hostile name is written."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from hostrouting import RouteError
from hostrouting.model.routes import NextHop, Protocol, Route
from hostrouting.routes.formats import as_ip, as_netplan, as_networkd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ODD_NAMES = (
    *("on", "Off", "yes", "n", "null", "NULL", "true", "1e3", "0x1", "0o7", "010", "1_0", "1.5", ".5", ".inf"),
    *(".NaN", "-1", "---", "...", "-", "_", "2001-01-01", "eth0.100", "version", "default", "via", "dev", "e1"),
)

names = st.one_of(
    st.sampled_from(ODD_NAMES),
    st.sampled_from(("eth0", "eth1")),
    st.from_regex(r"[A-Za-z0-9_.-]{1,15}", fullmatch=True).filter(lambda name: name not in (".", "..")),
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
    assert ("scope" in item) == ("via" not in item)
    return Route(
        IPv4Network(item["to"]),
        (NextHop(dev, IPv4Address(item["via"]) if "via" in item else None, item.get("on-link", False)),),
        source=IPv4Address(item["from"]) if "from" in item else None,
        mtu=item.get("mtu"),
        metric=item.get("metric", 0),
    )


@given(routes)
@example([Route(IPv4Network("172.16.0.0/17"), (NextHop(name),)) for name in ODD_NAMES])
def test_a_netplan_file_reads_back_as_the_routes(wanted: list[Route]) -> None:
    document = yaml.safe_load(as_netplan(wanted)) or {"network": {"version": 2, "ethernets": {}}}
    assert set(document["network"]) == {"version", "ethernets"}
    read = {
        dev: [netplan_route(dev, item) for item in entry["routes"]]
        for dev, entry in document["network"]["ethernets"].items()
    }
    assert read == by_device(wanted)


HOSTILE = ["", " ", "$(reboot)", "`reboot`", "a;reboot", "a&b", '"', "'", "\\", "#", "a b", "a\nb", "{a}", "*", "a@b"]
hostile = st.one_of(
    st.sampled_from(HOSTILE), st.text(min_size=1).filter(lambda text: not re.fullmatch(r"[A-Za-z0-9_.-]+", text))
)


@given(hostile)
@pytest.mark.parametrize("write", [as_ip, as_netplan, as_networkd])
def test_a_hostile_interface_name_never_reaches_a_text(write: Callable[[Sequence[Route]], str], name: str) -> None:
    """The kernel rejects only ``/``, ``:`` and whitespace in a name. Routes may inherit such a name."""
    fine = NextHop("eth0", IPv4Address("10.1.0.1"))
    for ways in ((NextHop(name),), (fine, NextHop(name, IPv4Address("10.2.0.1")))):
        with pytest.raises(RouteError, match="is not an interface name"):
            write([Route(IPv4Network("172.16.0.0/17"), ways, protocol=Protocol.STATIC)])
