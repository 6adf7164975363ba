"""Test which packets that worked are lost by a change of a host."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network

import attrs
import pytest
from node import build_node
from scenario import play, route

import phases
from hostrouting import Config, OverlapReport
from hostrouting.kernel.ip_commands import parse_rule
from hostrouting.overlap import _losses
from hostrouting.overlap._affected import affected
from hostrouting.overlap._losses import losses, taken_away
from hostrouting.overlap._modelled_host import ModelledHost, host_now
from hostrouting.overlap._read import read_host
from hostrouting.overlap._rules import with_added
from hostrouting.overlap.check import check_overlap
from hostrouting.testing import FakeKernel


@attrs.frozen
class Row:
    """A change of a node, and what it takes away.

    The node has eth0 (10.1.0.4/24 and the default route), eth1 (10.2.0.4/24) and ib0
    (172.16.0.10/16).

    Args:
        has: scenario commands.
        lost: the lines.
        routes: the added routes.
        rules: the added rules.
        intended: the failing CIDRs that the change is to lead elsewhere.
    """

    has: str = ""
    lost: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    intended: tuple[str, ...] = ()


HALVES = (
    "172.16.0.0/17 via 10.1.0.1 dev eth0",
    "172.16.128.0/17 via 10.1.0.1 dev eth0",
)
OTHER_GATEWAY = "eth0 via 10.1.0.1, but through eth0 via 10.1.0.9"
NEIGHBOURS = (
    "the node then sends to neighbours of ib0 in 172.16.0.0/16 through eth0,"
    " also from this interface's own addresses"
)
FROM_IB0 = "packets from the addresses of ib0 no longer go to"
FROM_ETH1 = (
    "packets from the addresses of eth1 no longer go to 172.16.77.0/24 through eth1,"
    " but through eth0"
)
FROM_WG0 = "packets from the addresses of wg0 no longer go to"
PODS = """
link add cni0
addr add 10.42.0.1/24 dev cni0
link add wg0
addr add 10.66.0.2/32 dev wg0
route add 10.0.0.0/8 dev wg0 table 51820
rule add pref 32000 lookup 51820
"""
TWO_MORE = "\n".join(f"link add ib{n}\naddr add 172.16.0.1{n}/16 dev ib{n}" for n in range(1, 3))
KEPT = "\n".join(
    f"link add ib{n}\naddr add 172.16.0.1{n}/16 dev ib{n}\n"
    f"route add 172.16.0.0/16 dev ib{n} table 10{n}\n"
    f"rule add pref 50 from 172.16.0.1{n} lookup 10{n}"
    for n in range(1, 4)
)
FROM_KEPT = (
    "packets from the addresses of ib1-ib3 no longer go to 172.16.0.0/16 through their interfaces,"
    " but through ib0"
)
BY_THEIR_OWN = (
    "packets from the addresses of ib1, ib2 no longer go to 172.16.9.0/24 through eth0, but through"
    " their interfaces"
)
LATE_LOCAL = """
addr add 192.0.2.9/32 dev lo
route add default via 10.2.0.1 dev eth1 table 100
rule add pref 90 from 192.0.2.9 lookup 100
rule add pref 100 lookup local
rule del pref 0 lookup local
"""
ROWS = {
    "a prefix whose addresses are all local": Row(
        "route add local 172.20.5.0/24 dev lo table main",
        ("packets to 172.20.5.0/24 are no longer delivered to this host",),
        routes=(
            "172.20.5.0/25 via 10.1.0.1 dev eth0",
            "172.20.5.128/25 via 10.1.0.1 dev eth0",
        ),
        intended=("172.20.5.0/24",),
    ),
    "neighbours": Row(
        "",
        (NEIGHBOURS,),
        routes=HALVES,
        intended=("172.16.0.0/16",),
    ),
    "what was unreachable": Row(
        "route add unreachable 10.77.0.0/16",
        routes=("10.77.0.0/17 dev eth1",),
    ),
    "a kept address": Row(
        "addr add 172.16.0.11/16 dev ib0",
        routes=("172.16.0.0/16 dev ib0 table 2170000",),
        rules=("pref 2170 from 172.16.0.10 lookup 2170000",),
    ),
    "a kept address's pods": Row(
        "link add cni0\naddr add 172.16.9.1/24 dev cni0",
        (f"{FROM_IB0} 172.16.9.0/24 through cni0, but through ib0",),
        routes=("172.16.0.0/16 dev ib0 table 2170000",),
        rules=("pref 2170 from 172.16.0.10 lookup 2170000",),
    ),
    "a kept address, which an uplink's neighbours called": Row(
        "addr add 172.16.9.4/24 dev eth0",
        (f"{FROM_IB0} 172.16.9.0/24 through eth0, but through ib0",),
        routes=("172.16.0.0/16 dev ib0 table 2170000",),
        rules=("pref 2170 from 172.16.0.10 lookup 2170000",),
    ),
    "a kept address, which another program's route led elsewhere": Row(
        "route add 172.16.3.0/24 via 10.1.0.1 dev eth0 proto static",
        (f"{FROM_IB0} 172.16.3.0/24 through eth0, but through ib0",),
        routes=("172.16.0.0/16 dev ib0 table 2170000",),
        rules=("pref 2170 from 172.16.0.10 lookup 2170000",),
    ),
    "a kept address, which a static route of ours led elsewhere": Row(
        "route add 172.16.0.0/17 via 10.1.0.1 dev eth0",
        routes=("172.16.0.0/16 dev ib0 table 2170000",),
        rules=("pref 2170 from 172.16.0.10 lookup 2170000",),
    ),
    "kept addresses, which an uplink's neighbours called": Row(
        f"{TWO_MORE}\naddr add 172.16.9.4/24 dev eth0",
        (BY_THEIR_OWN,),
        routes=(
            "172.16.0.0/16 dev ib1 table 2170001",
            "172.16.0.0/16 dev ib2 table 2170002",
        ),
        rules=(
            "pref 2170 from 172.16.0.11 lookup 2170001",
            "pref 2170 from 172.16.0.12 lookup 2170002",
        ),
    ),
    "addresses that were kept": Row(
        KEPT,
        (FROM_KEPT,),
        rules=("pref 9 to 172.16.0.0/16 lookup main",),
    ),
    "what another CIDR needs": Row(
        "route add 10.77.0.0/16 via 10.2.0.1 dev eth1",
        ("packets no longer go to 10.77.1.0/24 through eth1, but through eth0",),
        routes=("10.77.1.0/24 via 10.1.0.1 dev eth0",),
    ),
    "the gateway alone": Row(
        "",
        (f"packets no longer go to 10.77.1.0/24 through {OTHER_GATEWAY}",),
        routes=("10.77.1.0/24 via 10.1.0.9 dev eth0",),
    ),
    "what a thief's address sends": Row(
        PODS,
        (f"{FROM_WG0} 10.42.0.0/16 through wg0, but through eth0",),
        routes=("10.42.0.0/16 via 10.1.0.1 dev eth0 table 51820 metric 1",),
        intended=("10.42.0.0/16",),
    ),
    "what keep takes from a failing range that stays": Row(
        "link add br0\naddr add 172.16.128.1/20 dev br0\nroute add 172.16.0.0/16 dev ib0 table 101",
        (f"{FROM_IB0} 172.16.128.0/20 through br0, but through ib0",),
        rules=("pref 50 from 172.16.0.10 lookup 101",),
        intended=("172.16.128.0/20",),
    ),
    "what keep takes from a failing range that is led elsewhere": Row(
        "route add 172.16.77.0/24 via 10.2.0.1 dev eth1 proto static",
        (f"{FROM_IB0} 172.16.77.0/24 through eth1, but through ib0", FROM_ETH1),
        routes=("172.16.77.0/24 via 10.1.0.1 dev eth0", "172.16.0.0/16 dev ib0 table 101"),
        rules=("pref 50 from 172.16.0.10 lookup 101",),
        intended=("172.16.77.0/24",),
    ),
    "what keep takes from a wider route than the network": Row(
        "route add 128.0.0.0/1 via 10.2.0.1 dev eth1 table 52\nrule add pref 5270 lookup 52",
        (FROM_ETH1,),
        routes=("172.16.77.0/24 via 10.1.0.1 dev eth0", "172.16.0.0/16 dev ib0 table 101"),
        rules=("pref 50 from 172.16.0.10 lookup 101", "pref 60 to 172.16.77.0/24 lookup main"),
        intended=("172.16.0.0/16",),
    ),
    "what keep takes from a VPN's route to the whole network": Row(
        "link add wg0\naddr add 10.66.0.2/32 dev wg0\nroute add 172.16.0.0/16 dev wg0 table 52\n"
        "rule add pref 5270 lookup 52",
        (f"{FROM_IB0} 172.16.0.0/16 through wg0, but through ib0",),
        routes=("172.16.0.0/16 dev ib0 table 101",),
        rules=("pref 50 from 172.16.0.10 lookup 101",),
    ),
    "an own address as it comes in": Row(
        LATE_LOCAL,
        ("what comes in through eth0 for 10.1.0.4 is no longer delivered",),
        rules=("pref 89 to 10.1.0.0/16 lookup main",),
        intended=("10.1.0.0/16",),
    ),
    "table local first": Row(LATE_LOCAL, rules=("pref 0 lookup local",)),
    "a discarding rule": Row(
        "",
        ("packets no longer go to 10.77.0.0/16 through eth0: they are dropped",),
        rules=("pref 9 to 10.77.0.0/16 blackhole",),
    ),
    "TCP alone": Row(
        "",
        ("packets no longer go to 10.77.0.0/16 through eth0, but through eth1",),
        routes=("10.77.0.0/16 dev eth1 table 7",),
        rules=("pref 9 ipproto 6 lookup 7",),
    ),
}


def _host(has: str) -> ModelledHost:
    kernel = build_node(FakeKernel())
    play(kernel, has)
    config = Config(route_overlap={"expectedCidrs": ["172.16.0.0/16"]}, uplinks=["eth0"])
    moment = read_host(config, kernel, phases.CancelScope())
    return host_now(moment.state, moment.places)


def _changed(host: ModelledHost, routes: Sequence[str], rules: Sequence[str]) -> ModelledHost:
    model = host.model.with_routes(map(route, routes))
    model = (
        model.with_rules(with_added(model.known.rules, map(parse_rule, rules))) if rules else model
    )
    return attrs.evolve(host, model=model)


@pytest.mark.parametrize("name", ROWS)
def test_losses_are_named(name: str) -> None:
    row = ROWS[name]
    host = _host(row.has)
    after = _changed(host, row.routes, row.rules)
    found = losses(host, after, map(ip_network, row.intended))
    assert tuple(taken_away(found)) == row.lost


def test_only_changed_prefixes_are_compared() -> None:
    host = _host("\n".join(f"route add 10.77.{n}.0/24 via 10.2.0.1 dev eth1" for n in range(250)))
    after = _changed(
        host, ["10.77.1.0/25 via 10.1.0.1 dev eth0"], ["pref 9 to 10.88.0.0/16 lookup 7"]
    )
    changed = {str(host.state.family.network(each)) for each in after.model.changed}
    assert changed - {"127.0.0.0/8"} == {"10.77.1.0/25", "10.88.0.0/16"}


OWN_TABLE = """
rule add pref 100 from 10.2.0.4 lookup 100
route add default via 10.2.0.1 dev eth1 table 100
"""
IN_MAIN = "10.77.0.0/16 via 10.1.0.1 dev eth0"
IN_ITS_TABLE = "10.77.0.0/16 dev ib0 table 100"
AFFECTED = {
    "main, which its table precedes": (OWN_TABLE, (IN_MAIN,), (), "eth0 ib0"),
    "its table": (OWN_TABLE, (IN_ITS_TABLE,), (), "eth1"),
    "both tables": (OWN_TABLE, (IN_MAIN, IN_ITS_TABLE), (), "eth0 eth1 ib0"),
    "a table that throws": (
        f"{OWN_TABLE}route add throw 10.77.0.0/16 table 100",
        (IN_MAIN,),
        (),
        "eth0 eth1 ib0",
    ),
    "a table without a default route": (
        "rule add pref 100 from 10.2.0.4 lookup 100\nroute add 10.9.0.0/16 dev eth1 table 100",
        (IN_MAIN,),
        (),
        "eth0 eth1 ib0",
    ),
    "a rule that ignores default routes": (
        OWN_TABLE.replace("lookup 100", "lookup 100 suppress_prefixlength 0"),
        (IN_MAIN,),
        (),
        "eth0 eth1 ib0",
    ),
    "a rule about TCP alone": (
        OWN_TABLE.replace("10.2.0.4", "10.2.0.4 ipproto 6"),
        (IN_MAIN,),
        (),
        "eth0 eth1 ib0",
    ),
    "an earlier rule": (OWN_TABLE, (), ("pref 99 to 10.77.0.0/16 lookup main",), "eth0 eth1 ib0"),
    "a later rule": (OWN_TABLE, (), ("pref 101 to 10.77.0.0/16 lookup 7",), "eth0 ib0"),
    "a rule that discards": (
        "rule add pref 100 from 10.2.0.0/24 unreachable",
        (IN_MAIN,),
        (),
        "eth0 ib0",
    ),
}


@pytest.mark.parametrize("name", AFFECTED)
def test_packets_that_no_change_reaches_need_no_comparison(name: str) -> None:
    has, routes, rules, devs = AFFECTED[name]
    host = _host(has)
    fib = _changed(host, routes, rules).model.fib
    own = [each for each in host.state.addresses if each.dev != "lo"]
    assert {each.dev for each in affected(own, host.model.fib, fib)} == {*devs.split()}


def _with_many_addresses(table: str, more: str, count: int = 210) -> OverlapReport:
    kernel = build_node(FakeKernel())
    lines = [more]
    for number in range(count):
        lines.append(f"addr add 10.2.9.{number}/16 dev eth1")
        lines.append(f"rule add pref {1000 + number} from 10.2.9.{number} lookup {1000 + number}")
        lines.append(f"route add {table} dev eth1 table {1000 + number}")
    play(kernel, "\n".join(lines))
    config = Config(route_overlap={"expectedCidrs": ["172.20.0.0/16"]}, uplinks=["eth0"])
    return check_overlap(config, kernel, phases.CancelScope())


def test_no_route_is_proposed_without_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_losses, "_COMPARED_MAX", 3000)
    fabric = "\n".join(f"route add 172.20.{number}.0/24 dev ib0" for number in range(60))
    report = _with_many_addresses("172.20.0.0/16", fabric, count=60)
    (unfixable,) = report.fix.unfixable
    assert not report.fix.routes
    assert "what is lost isn't known: that takes " in unfixable.reason


def test_routes_that_pass_many_tables_by_are_proven() -> None:
    report = _with_many_addresses("default via 10.2.0.1", "route add 172.20.0.0/16 dev ib0")
    assert [*map(str, report.fix.routes)] == ["172.20.0.0/17", "172.20.128.0/17"]


TWO_BY_IB0 = """
route add 192.168.100.0/24 via 172.16.0.1 dev ib0
route add 192.168.101.0/24 via 172.16.0.1 dev ib0
"""
LAST_OF_CNI0 = """
link add cni0
addr add 10.1.0.1/32 dev cni0
route add 192.168.100.0/24 dev cni0
"""
ADVICE = {
    "a host route": (
        "route add 10.9.1.1 via 10.2.0.1 dev eth1",
        "10.9.0.0/16",
        "remove it, after which packets from the addresses of eth1 no longer go to 10.9.1.1",
    ),
    "two routes by a gateway": (
        TWO_BY_IB0,
        "172.16.0.0/16",
        "remove these routes, after which packets no longer go to 192.168.100.0/23 through ib0",
    ),
    "the router's address, which pods have, too": (
        "link add cni0\naddr add 10.1.0.1/16 dev cni0",
        "198.51.100.0/24",
        "cni0, after which packets no longer go to addresses in 10.1.0.0/16 through cni0",
    ),
    "an interface's last address, with which its routes go": (
        LAST_OF_CNI0,
        "198.51.100.0/24",
        "that address from cni0, after which packets no longer go to 192.168.100.0/24 through cni0",
    ),
    "the address of a router through which nothing leaves yet": (
        LAST_OF_CNI0,
        "172.16.0.0/16",
        "it from there, after which packets no longer go to 192.168.100.0/24 through cni0",
    ),
}


@pytest.mark.parametrize("name", ADVICE)
def test_advice_says_what_it_takes_away(name: str) -> None:
    has, cidr, advice = ADVICE[name]
    kernel = build_node(FakeKernel())
    play(kernel, has)
    config = Config(route_overlap={"expectedCidrs": [cidr]}, uplinks=["eth0"])
    fix = check_overlap(config, kernel, phases.CancelScope()).fix
    assert any(advice in each.reason for each in fix.unfixable), fix.unfixable


def test_asking_table_local_first_says_what_it_takes_away() -> None:
    """Other programs may have added entries there, which then count."""
    kernel = build_node(FakeKernel())
    play(kernel, f"{LATE_LOCAL}\nroute add local 10.88.0.0/16 dev lo table local")
    config = Config(route_overlap={"expectedCidrs": ["10.96.0.0/12"]}, uplinks=["eth0"])
    reason = check_overlap(config, kernel, phases.CancelScope()).reason or ""
    assert "ip rule add preference 0 lookup local, after which packets from" in reason, reason
    assert "of lo no longer go to 10.88.0.0/16 through eth1, but through lo" in reason
