"""Tests for writing routes in the formats of ip, netplan and networkd. Unsupported routes raise an error."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from hostrouting import RouteError
from hostrouting.model.routes import NextHop, Protocol, Route
from hostrouting.routes.formats import as_ip, as_netplan, as_networkd

GATEWAY, SECOND_GATEWAY = IPv4Address("10.1.0.1"), IPv4Address("10.2.0.1")
ETH0, ETH1 = NextHop("eth0", GATEWAY), NextHop("eth1", SECOND_GATEWAY)


def route(*hops: NextHop, to: str = "172.16.0.0/17", **more: Any) -> Route:
    return Route(IPv4Network(to), hops or (ETH0,), **more)


EVERY_FORM = [
    route(to="172.16.1.0/24"),
    route(to="172.16.2.1/32", source=IPv4Address("10.1.0.4"), mtu=1400, metric=77),
    route(NextHop("eth1", IPv4Address("169.254.1.1"), onlink=True), to="172.16.3.0/24"),
    route(NextHop("eth0"), to="10.1.0.64/26"),
]


def without_comment(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


def dedented(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


def test_commands_for_ip() -> None:
    assert without_comment(as_ip(EVERY_FORM)) == dedented("""
        ip -4 route add 172.16.1.0/24 via 10.1.0.1 dev eth0 proto static
        ip -4 route add 172.16.2.1 via 10.1.0.1 dev eth0 proto static src 10.1.0.4 metric 77 mtu 1400
        ip -4 route add 172.16.3.0/24 via 169.254.1.1 dev eth1 proto static onlink
        ip -4 route add 10.1.0.64/26 dev eth0 proto static scope link
        """)


def test_commands_for_ip_with_ipv6_gateways_and_several_hops() -> None:
    hops = (NextHop("eth0", IPv6Address("fe80::1"), onlink=True, weight=2), NextHop("eth1", SECOND_GATEWAY))
    assert without_comment(as_ip([route(hops[0]), route(*hops)])) == dedented("""
        ip -4 route add 172.16.0.0/17 via inet6 fe80::1 dev eth0 proto static onlink
        ip -4 route add 172.16.0.0/17 proto static nexthop via inet6 fe80::1 dev eth0 weight 2 onlink nexthop via 10.2.0.1 dev eth1 weight 1
        """)


def test_drop_ins_for_networkd_by_interface() -> None:
    assert without_comment(as_networkd(EVERY_FORM)) == dedented("""
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

        [Route]
        Destination=172.16.3.0/24
        Gateway=169.254.1.1
        GatewayOnLink=yes
        """)


def test_several_hops_are_in_the_first_interfaces_drop_in() -> None:
    hops = (NextHop("eth0", IPv6Address("fe80::1"), weight=2), NextHop("eth1", SECOND_GATEWAY))
    text = as_networkd([route(hops[0]), route(*hops)])
    assert text.startswith("# eth0: ")
    assert "# eth1: " not in text
    assert without_comment(text) == dedented("""
        [Route]
        Destination=172.16.0.0/17
        Gateway=fe80::1
        GatewayOnLink=no

        [Route]
        Destination=172.16.0.0/17
        MultiPathRoute=fe80::1@eth0 2
        MultiPathRoute=10.2.0.1@eth1 1
        """)


REFUSED = [
    (as_netplan, route(NextHop("eth0", IPv6Address("fe80::1"))), "no IPv6 gateway .* use networkd or ip"),
    (as_netplan, route(ETH0, ETH1), "no multipath routes; name one dev of eth0, eth1, or use networkd or ip"),
    (as_netplan, route(metric=2**31), "loses metrics above 2147483647; choose a smaller one, or use networkd or ip"),
    (as_networkd, route(ETH0, NextHop("eth1")), "no multipath hops without a gateway; name one interface as dev"),
    (as_networkd, route(ETH0, NextHop("eth1", GATEWAY, onlink=True)), "no multipath hops with an onlink gateway"),
]


@pytest.mark.parametrize(("write", "refused", "why"), REFUSED)
def test_an_inexpressible_route_is_an_error(write: Callable[[Sequence[Route]], str], refused: Route, why: str) -> None:
    with pytest.raises(RouteError, match=why) as raised:
        write([route(to="10.9.0.0/16"), refused])
    assert str(raised.value).startswith(f"can't write {refused} for ")
    assert "10.9.0.0" not in str(raised.value)


def test_every_inexpressible_route_is_named() -> None:
    with pytest.raises(RouteError) as raised:
        as_netplan([refused for write, refused, _ in REFUSED if write is as_netplan])
    assert len(raised.value.message.splitlines()) == 3
    assert len(raised.value.hint.splitlines()) == 3


# --- any routes --------------------------------------------------------------------------------------------------------


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
    assert item.get("scope") == (None if "via" in item else "link")
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
    assert (document["network"].keys(), document["network"]["version"]) == ({"version", "ethernets"}, 2)
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
