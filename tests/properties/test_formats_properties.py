"""A shell, a YAML parser and a parser of .network files read back any routes that were written."""

from __future__ import annotations

import re
import subprocess
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from hostrouting import RouteError
from hostrouting.model.routes import NextHop, Protocol, Route
from hostrouting.routes.formats import as_ip, as_netplan, as_networkd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
gateways4 = st.builds(IPv4Address, st.integers(2**24, 2**32 - 1))
gateways = st.one_of(gateways4, st.integers(1, 2**64 - 1).map(lambda number: IPv6Address((0xFE80 << 112) + number)))


def hops(gateway: st.SearchStrategy[Any], weight: st.SearchStrategy[int]) -> st.SearchStrategy[NextHop]:
    with_gateway = st.builds(NextHop, names, gateway, st.booleans(), weight)
    return st.one_of(with_gateway, with_gateway, st.builds(NextHop, names, weight=weight))


def routes(ways: st.SearchStrategy[tuple[NextHop, ...]], metric_max: int = 2**32 - 1) -> st.SearchStrategy[list[Route]]:
    made = st.builds(
        lambda **fields: Route(**fields),
        destination=networks,
        hops=ways,
        metric=st.one_of(st.just(0), st.integers(0, metric_max)),
        source=st.one_of(st.none(), gateways4),
        mtu=st.one_of(st.none(), st.integers(68, 65520)),
    )
    return st.lists(made, max_size=6)


one = st.just(1)
weights = st.integers(1, 256)
single4 = hops(gateways4, one).map(lambda hop: (hop,))
single = hops(gateways, one).map(lambda hop: (hop,))
multiple = st.lists(hops(gateways, weights), min_size=2, max_size=3).map(tuple)
networkd_multiple = st.lists(st.builds(NextHop, names, gateways, weight=weights), min_size=2, max_size=3).map(tuple)


def by_device(wanted: Sequence[Route]) -> dict[str | None, list[Route]]:
    sorted_: dict[str | None, list[Route]] = {}
    for route in wanted:
        sorted_.setdefault(route.hops[0].dev, []).append(route)
    return sorted_


# --- netplan -------------------------------------------------------------------------------------------------------


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


@given(routes(single4, 2**31 - 1))
@example([Route(IPv4Network("172.16.0.0/17"), (NextHop(name),)) for name in ODD_NAMES])
def test_a_netplan_file_reads_back_as_the_routes(wanted: list[Route]) -> None:
    document = yaml.safe_load(as_netplan(wanted)) or {"network": {"version": 2, "ethernets": {}}}
    assert set(document["network"]) == {"version", "ethernets"}
    read = {
        dev: [netplan_route(dev, item) for item in entry["routes"]]
        for dev, entry in document["network"]["ethernets"].items()
    }
    assert read == by_device(wanted)


# --- networkd ------------------------------------------------------------------------------------------------------


def drop_ins(text: str) -> dict[str, list[dict[str, list[str]]]]:
    """Return the sections of the file of each interface, with the values of each key."""
    files: dict[str, list[dict[str, list[str]]]] = {}
    for line in text.splitlines():
        if name := re.match(r"# (\S+): ", line):
            assert name[1] not in files
            sections = files.setdefault(name[1], [])
        elif line == "[Route]":
            sections.append({})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            sections[-1].setdefault(key, []).append(value)
    return files


def networkd_hops(dev: str, section: dict[str, list[str]]) -> Iterator[NextHop]:
    if "Scope" in section:
        assert section["Scope"] == ["link"]
        yield NextHop(dev)
    if "Gateway" in section:
        yield NextHop(dev, ip_address(*section["Gateway"]), {"yes": True, "no": False}[section["GatewayOnLink"][0]])
    for value in section.get("MultiPathRoute", []):
        gateway, name, weight = re.split("[@ ]", value)
        yield NextHop(name, ip_address(gateway), weight=int(weight))


def networkd_route(dev: str, section: dict[str, list[str]]) -> Route:
    known = {
        "Destination",
        "Scope",
        "Gateway",
        "GatewayOnLink",
        "MultiPathRoute",
        "PreferredSource",
        "MTUBytes",
        "Metric",
    }
    assert set(section) <= known
    return Route(
        IPv4Network(section["Destination"][0]),
        tuple(networkd_hops(dev, section)),
        source=IPv4Address(*section["PreferredSource"]) if "PreferredSource" in section else None,
        mtu=int(*section["MTUBytes"]) if "MTUBytes" in section else None,
        metric=int(*section.get("Metric", ["0"])),
    )


@given(routes(st.one_of(single, networkd_multiple)))
def test_drop_ins_read_back_as_the_routes(wanted: list[Route]) -> None:
    files = drop_ins(as_networkd(wanted))
    assert {dev: [networkd_route(dev, section) for section in sections] for dev, sections in files.items()} == (
        by_device(wanted)
    )


# --- ip ------------------------------------------------------------------------------------------------------------

_SHELL = "ip() { printf '%s\\0' \"$@\"; printf '\\0'; }\n"


def ip_words(route: Route) -> list[str]:
    """Return the arguments that ip(8) must receive for a route."""
    words = ["-4", "route", "add", str(route.destination).removesuffix("/32")]
    single_hop = route.hops[0] if len(route.hops) == 1 else None

    def hop_words(hop: NextHop) -> list[str]:
        via = [] if hop.gateway is None else ["via", *(["inet6"] * (hop.gateway.version == 6)), str(hop.gateway)]
        return [*via, "dev", str(hop.dev)]

    words += hop_words(single_hop) if single_hop else []
    words += ["proto", "static", *(["scope", "link"] if single_hop and single_hop.gateway is None else [])]
    words += [] if route.source is None else ["src", str(route.source)]
    words += ["metric", str(route.metric)] if route.metric else []
    words += ["onlink"] if single_hop and single_hop.onlink else []
    words += [] if route.mtu is None else ["mtu", str(route.mtu)]
    for hop in () if single_hop else route.hops:
        words += ["nexthop", *hop_words(hop), "weight", str(hop.weight), *(["onlink"] if hop.onlink else [])]
    return words


@given(routes(st.one_of(single, multiple)))
def test_a_shell_reads_one_command_for_each_route(wanted: list[Route]) -> None:
    done = subprocess.run(["bash", "-eu"], input=_SHELL + as_ip(wanted), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    calls = [call.split("\0") for call in done.stdout.split("\0\0")[:-1]]
    assert calls == [ip_words(route) for route in wanted]


# --- all of them ---------------------------------------------------------------------------------------------------

HOSTILE = ["", " ", "$(reboot)", "`reboot`", "a;reboot", "a&b", '"', "'", "\\", "#", "a b", "a\nb", "{a}", "*", "a@b"]
hostile = st.one_of(
    st.sampled_from(HOSTILE), st.text(min_size=1).filter(lambda text: not re.fullmatch(r"[A-Za-z0-9_.-]+", text))
)


@given(hostile)
@pytest.mark.parametrize("write", [as_ip, as_netplan, as_networkd])
def test_a_hostile_interface_name_never_reaches_a_text(write: Callable[[Sequence[Route]], str], name: str) -> None:
    """The kernel refuses only ``/``, ``:`` and white space in a name. Routes may inherit the name from the default."""
    fine = NextHop("eth0", IPv4Address("10.1.0.1"))
    for ways in ((NextHop(name),), (fine, NextHop(name, IPv4Address("10.2.0.1")))):
        with pytest.raises(RouteError, match="is not an interface name"):
            write([Route(IPv4Network("172.16.0.0/17"), ways, protocol=Protocol.STATIC)])
