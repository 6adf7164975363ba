"""Test the boot scripts on hosts with interfaces that are named like words that ip prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from nightly import some
from node import await_local6, nics, on_linux, run_ip, run_ip6, tool
from scripts import AWKS, Sandbox, awk_or_skip, awks_for, judged_soundly

import phases
from hostrouting import Config, Host, Layout
from hostrouting.boot.render import render_check, render_static_routes
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.model.family import Family
from hostrouting.overlap.check import check_families
from hostrouting.tasks.install_routes import InstallRoutes
from hostrouting.testing import FakeSystemd

pytestmark = pytest.mark.kernel

NAMES = (
    *("from", "via", "dead", "nexthop", "all0", "dev", "onlink", "tos", "table", "proto"),
    *("src", "metric", "scope", "expires", "nhid", "encap", "inet", "inet6", "lookup", "to"),
    *("not", "goto", "iif", "linkdown", "blackhole", "unicast", "master", "peer", "Deleted"),
    *("255", "10.1.0.1", "[detached]", "a@b", "|", "x*", "state"),
)

# What a host has beside eth0, which has a default route of metric 100.
HOSTS = {
    "nothing": "",
    "another default route of this metric": "route append default via 10.2.0.1 dev {0} metric 100",
    "a better default route": "route add default via 10.2.0.1 dev {0} metric 50",
    "a part of the network": "route add 10.100.0.0/16 via 10.2.0.1 dev {0}",
    "a next hop": """
        route add 10.100.0.0/16 nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev {0}
    """,
    "a rule for a source": """
        route add default via 10.2.0.1 dev {0} table 100
        rule add pref 7 from 10.1.0.4 iif lo oif {0} lookup 100
        rule add pref 8 from 10.1.0.4 lookup 100
    """,
    "rules for the interface": """
        route add default via 10.2.0.1 dev {0} table 100
        rule add pref 7 iif {0} lookup 100
        rule add pref 8 oif {0} to 10.100.0.0/16 lookup 100
    """,
}


def add_link(name: str, *addresses: str) -> None:
    peer = f"other-of-{name}" if name in ("ib0", "010", "b", "b\\") else "other"
    run_ip(f"link add dev {name} type veth peer name {peer}")
    run_ip(f"link set dev {peer} up", f"link set dev {name} arp off up")
    for address in addresses:
        nodad = " nodad" if ":" in address else ""
        run_ip(f"addr add {address} dev {name}{nodad}")
        if nodad:
            await_local6(address.partition("/")[0])


def see_sound(config: Config, awk: str, root: Path) -> str:
    backends = {Family.IPV4: NetlinkBackend(), Family.IPV6: NetlinkBackend6()}
    report = check_families(config, backends.__getitem__, phases.CancelScope())
    sandbox = Sandbox(root, awk_or_skip(awk))
    sandbox.run(render_check(config))
    return judged_soundly(sandbox.told(), report)


@pytest.mark.parametrize("name", some(NAMES, one_of=3, first=1))
def test_a_check_takes_no_name_for_a_word(name: str, tmp_path: Path) -> None:
    number = NAMES.index(name)
    awk = AWKS[number % len(AWKS)]
    for turn, host in enumerate(some(HOSTS, one_of=3, first=number), number // 3):
        kernel = on_linux()  # as long as it exists, so does its namespace
        run_ip(nics(eth0="10.1.0.4/24"), "route add default via 10.1.0.1 dev eth0 metric 100")
        add_link(name, "10.2.0.4/24")
        run_ip(HOSTS[host].format(name))
        for uplinks in some((None, ("eth0",), ("*",)), one_of=3, first=turn):
            config = Config(
                uplinks=uplinks,
                route_overlap={"expectedCidrs": ["10.96.0.0/12", "10.1.0.0/24"]},
                wait_seconds=0,
            )
            verdict = see_sound(config, awk, tmp_path)
            assert verdict == "ok" or host != "nothing"
        del kernel


@pytest.mark.parametrize("name", some(NAMES, one_of=6))
def test_an_uplink_may_have_any_name(name: str, tmp_path: Path) -> None:
    awk = AWKS[NAMES.index(name) % len(AWKS)]
    kernel = on_linux()  # as long as it exists, so does its namespace
    add_link(name, "10.1.0.4/24", "2001:db8::4/64")
    run_ip(f"route add default via 10.1.0.1 dev {name}")
    run_ip6(f"route add default via 2001:db8::1 dev {name}")
    cidrs = ["10.96.0.0/12", "fd00:18::/48"]
    overlap = Config(route_overlap={"expectedCidrs": cidrs}, wait_seconds=0)
    assert see_sound(overlap, awk, tmp_path) == "ok"
    routes = [{"destination": "172.16.0.0/17"}, {"destination": "fd00:18::/49"}]
    routes += [{"destination": "fd00:18:0:8000::/49", "gateway": "2001:db8::9"}]
    config = Config(static_routes={"enabled": True, "routes": routes}, wait_seconds=0)
    done = Sandbox(tmp_path, awk_or_skip(awk)).run(render_static_routes(config))
    assert (done.returncode, done.stderr) == (0, "")
    tables = [tool("ip", family, "route") for family in ("-4", "-6")]
    host = Host(NetlinkBackend(), FakeSystemd(), Layout(tmp_path), NetlinkBackend6())
    report = phases.run(InstallRoutes(config, host=host))
    assert not report.changes.routes
    assert [tool("ip", family, "route") for family in ("-4", "-6")] == tables
    add_link("ib0", "10.100.0.4/16")
    assert see_sound(overlap, awk, tmp_path) == "overlap"
    del kernel


BLOCK = """\
ip link add dev 20 type veth peer name 21
ip link set dev 20 up
ip link set dev 21 up
ip link add dev cali1 type veth peer name cali2
ip link set dev cali1 up
ip route add blackhole 10.100.3.0/24 proto bird
ip route add 10.100.3.5 dev cali1"""

ODD_HOSTS = {
    "a local default route": """
        ip route add local default dev lo table local
    """,
    "a local default route of IPv6": """
        ip -6 route add local default dev lo table local
    """,
    "an encapsulation with a tos": """
        ip route add 10.100.3.0/24 encap ip id 1 dst 10.9.9.9 via 10.2.0.1 dev 010
    """,
    "an encapsulation of a second default route": """
        ip route append default encap ip id 1 dst 10.9.9.9 via 10.2.0.1 dev 010 metric 100
    """,
    "a rule from half of IPv6": """
        ip -6 route add default dev 010 table 100
        ip -6 rule add pref 50 from ::/1 lookup 100
    """,
    "a gateway that is an address of another number": """
        ip route replace default via 10.1.0.1 dev 10 metric 100
        ip addr add 10.1.0.1/32 dev 010
    """,
    # The kernel refuses to send from a loopback address, with the error of a blackhole.
    "a loopback source in a CNI's block": f"""
        {BLOCK}
        ip route add 10.100.3.128/25 dev 10 src 127.0.0.1
    """,
    "a loopback address in a CNI's block": f"""
        {BLOCK}
        ip addr add 127.0.0.9/8 dev 20 scope global
        ip route add 10.100.3.128/25 dev 20
    """,
    "the address of lo in a CNI's block": f"""
        {BLOCK}
        ip route add 10.100.3.128/25 dev 20 scope host
    """,
}


@pytest.mark.parametrize(
    ("host", "awk"), [(host, awk) for host in ODD_HOSTS for awk in awks_for(host)]
)
def test_what_was_once_taken_for_fine_is_not(host: str, awk: str, tmp_path: Path) -> None:
    kernel = on_linux()  # as long as it exists, so does its namespace
    add_link("10", "10.1.0.4/24", "2001:db8::4/64")
    add_link("010", "10.2.0.4/24")
    run_ip("route add default via 10.1.0.1 dev 10 metric 100")
    run_ip6("route add default via 2001:db8::1 dev 10")
    for line in ODD_HOSTS[host].strip().splitlines():
        tool(*line.split())
    cidrs = ["10.96.0.0/12", "fd00:18::/48"]
    config = Config(route_overlap={"expectedCidrs": cidrs}, wait_seconds=0)
    assert see_sound(config, awk, tmp_path) != "ok"
    del kernel


@pytest.mark.parametrize(
    ("vrf", "master"), [("a@b", "a"), ("a", "a"), ("a@b", "a@b"), ("a", "a@b")]
)
def test_no_name_makes_a_bridge_a_vrf(vrf: str, master: str, tmp_path: Path) -> None:
    """Many kernels are built without VRFs, so the script takes a bridge for one."""
    kernel = on_linux()  # as long as it exists, so does its namespace
    run_ip(nics(eth0="10.1.0.4/24"), "route add default via 10.1.0.1 dev eth0 metric 100")
    run_ip("link add name a@b type bridge", "link add name a type bridge")
    run_ip(f"link set eth0 master {master}")
    routes = [{"destination": "172.16.0.0/17", "gateway": "10.1.0.1", "dev": "eth0"}]
    config = Config(static_routes={"enabled": True, "routes": routes}, wait_seconds=0)
    text = render_static_routes(config)
    assert "link show type vrf" in text
    text = text.replace("link show type vrf", f"link show dev {vrf}")
    done = Sandbox(tmp_path, awk_or_skip(AWKS[len(master) % len(AWKS)])).run(text)
    assert (done.returncode == 0) == (vrf == master), done.stderr
    del kernel


# --- what ip prints as it is ----------------------------------------------------------------------

# A line that ip never printed, and what it would hide, on a host where eth0 is the uplink.
FORGED = {
    "nothing": ("2: eth0: <UP> of the rack", ""),
    "a rule": ("0:\tfrom all lookup 255", "rule del pref 0"),
    "a default route": ("default via 10.2.0.1 dev b metric 1", "route add 10.100.3.0/24 dev b"),
    "a route of table local": (
        "2 10.100.3.5 dev lo table 255 proto 2 scope 254 src 10.100.3.5",
        "route add local 10.100.3.5 dev lo table 99\nrule add pref 9 lookup 99",
    ),
    "an address": ("3: b    inet 10.9.9.9/8 scope 0 b", "rule add pref 9 from 10.9.9.9 lookup 9"),
}


@pytest.mark.parametrize(
    ("what", "awk"), [(what, awk) for what in FORGED for awk in awks_for(what)]
)
def test_no_alias_passes_for_a_line_of_ip(what: str, awk: str, tmp_path: Path) -> None:
    line, hidden = FORGED[what]
    kernel = on_linux()  # as long as it exists, so does its namespace
    run_ip(nics(eth0="10.1.0.4/24"), "route add default via 10.1.0.1 dev eth0 metric 100")
    add_link("b", "10.2.0.4/24")
    run_ip(hidden)
    tool("ip", "link", "set", "dev", "eth0", "alias", f"of the rack\n{line}\nx")
    overlap = Config(route_overlap={"expectedCidrs": ["10.96.0.0/12"]}, wait_seconds=0)
    verdict = see_sound(overlap, awk, tmp_path)
    assert verdict == "ok" or what != "nothing"
    table = tool("ip", "route")
    routes = {"enabled": True, "routes": [{"destination": "172.16.0.0/17"}]}
    config = Config(static_routes=routes, wait_seconds=0)
    done = Sandbox(tmp_path, awk_or_skip(awk)).run(render_static_routes(config))
    assert (done.returncode, done.stderr) == (0, "")
    added = {*tool("ip", "route").splitlines()} - {*table.splitlines()}
    (route,) = added
    assert route.split() == ["172.16.0.0/17", "via", "10.1.0.1", "dev", "eth0", "proto", "217"]
    del kernel


@pytest.mark.parametrize("awk", some(AWKS, one_of=2))
def test_no_alias_hides_that_an_uplink_is_a_port(awk: str, tmp_path: Path) -> None:
    kernel = on_linux()  # as long as it exists, so does its namespace
    run_ip(nics(eth0="10.1.0.4/24"), "route add default via 10.1.0.1 dev eth0 metric 100")
    run_ip("link add br0 type bridge", "link set eth0 master br0")
    tool("ip", "link", "set", "dev", "br0", "alias", "of the rack\n3: eth0: <UP> mtu 1500")
    config = Config(route_overlap={"expectedCidrs": ["10.96.0.0/12"]}, wait_seconds=0)
    assert see_sound(config, awk, tmp_path) != "ok"
    del kernel


@pytest.mark.parametrize("awk", some(AWKS, one_of=2))
def test_no_label_passes_for_a_line_of_ip(awk: str, tmp_path: Path) -> None:
    kernel = on_linux()  # as long as it exists, so does its namespace
    add_link("a", "10.1.0.4/24")
    add_link("b\\", "10.2.0.4/24")
    run_ip("route add default via 10.1.0.1 dev a metric 100")
    tool("ip", "route", "add", "10.96.0.0/12", "dev", "b\\")
    # "\\" follows the label.
    tool("ip", "address", "add", "10.9.9.9/32", "dev", "a", "label", "a\ndefault dev b")
    config = Config(route_overlap={"expectedCidrs": ["10.96.0.0/12"]}, wait_seconds=0)
    assert see_sound(config, awk, tmp_path) != "ok"
    del kernel
