"""Test that our snapshots and snapshots made with ip are equal and that their verdicts match the
live verdict.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Network
from pathlib import Path
from typing import Any

import attrs
import pytest
from asking import BY_HAND, IN_WORDS, WITHOUT_DETAILS, recorded, recorded_by
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nightly import by_day
from node import NICS, nics, on_linux, run_ip, run_ip6, until
from test_scripts_agree import checks
from worlds import Question
from worlds.cut import questions

import phases
from hostrouting import Config, Host, check
from hostrouting.kernel.model import model_of
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import RouteBackend, read_routes
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.family import Family
from hostrouting.model.routes import Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.overlap.check import check_overlap

pytestmark = pytest.mark.kernel


UNKNOWN: dict[str, Any] = {
    **dict.fromkeys(("time", "is_merged")),
    "host": "node",  # the name of the file
    "nameservers": (),
    "sources": (),
}


def as_ip_prints(snapshot: Snapshot, *, protocols: bool = True) -> Snapshot:
    """Clear what ip doesn't print: suppressors in rules without a table, and fields that aren't
    part of any listing.
    """

    def told(rule: Rule) -> Rule:
        if rule.action is not RuleAction.TO_TABLE or rule.is_l3mdev:
            rule = attrs.evolve(rule, suppress_prefix_length=None, suppress_group=None)
        return rule if protocols else attrs.evolve(rule, protocol=0)

    return attrs.evolve(snapshot, rules=tuple(map(told, snapshot.rules)), **UNKNOWN)


def untimed(snapshot: Snapshot) -> Snapshot:
    return attrs.evolve(snapshot, time=None)


def report(config: Config, backend: RouteBackend) -> dict[str, Any]:
    document = check_overlap(config, backend, phases.CancelScope()).to_json()
    del document["time"]
    return document


@settings(max_examples=by_day(3, by_night=2500), suppress_health_check=[HealthCheck.too_slow])
@given(question=questions(), data=st.data(), shell=st.sampled_from(("sh", "bash")))
def test_live_host_and_snapshots_get_the_same_verdict(
    question: Question, data: st.DataObject, shell: str
) -> None:
    kernel, config = on_linux(), data.draw(checks(question))
    question.world.build(kernel)
    live = report(config, kernel)
    ours, by_hand = recorded(kernel), untimed(recorded_by(BY_HAND, shell))
    assert untimed(ours) == untimed(take_snapshot(kernel))
    assert by_hand == as_ip_prints(ours)
    assert report(config, model_of(ours.known(Family.IPV4))) == live
    told = report(config, model_of(by_hand.known(Family.IPV4)))
    assert told == live or ("which source" if ours.sources else "local and main are one") in str(
        told["reason"]
    )


HOST = f"""{nics(eth0=NICS["eth0"], ib0="")}
ip link add br0 type bridge
ip link set peer-ib0 master br0
ip link set br0 up
ip addr add 10.1.0.5/24 dev eth0
ip addr add 172.16.0.10/16 dev ib0 metric 5 noprefixroute
ip addr add 192.0.2.1 peer 192.0.2.9/30 dev br0
ip route add default via 10.1.0.1 proto dhcp metric 100 mtu 1400 src 10.1.0.4
ip route add 10.9.0.0/16 via inet6 fe80::1 dev eth0
ip route add 10.8.0.0/16 tos 0x10 nexthop via 10.1.0.1 weight 3 dev eth0 onlink nexthop via inet6 fe80::2 dev ib0
ip route add blackhole 10.7.0.0/16
ip route add unreachable default metric 4278198272
ip route add throw 10.6.0.0/16 table 1000
ip route add 1.2.3.4 dev eth0 table 1000 proto 217 mtu lock 1300
ip nexthop add id 5 via 10.1.0.1 dev eth0
ip nexthop add id 6 blackhole
ip nexthop add id 7 via fe80::9 dev eth0
ip nexthop add id 9 via 10.1.0.3 dev eth0 onlink proto 217
ip nexthop add id 8 group 5,3/9
ip nexthop add id 10 dev ib0
ip nexthop add id 11 group 5
ip nexthop add id 12 via 1.2.3.4 fdb
ip route add 10.20.0.0/16 nhid 5
ip route add 10.21.0.0/16 nhid 6
ip route add 10.22.0.0/16 nhid 7
ip route add 10.23.0.0/16 nhid 8
ip route add 10.24.0.0/16 nhid 11
ip route add 10.25.0.0/16 nhid 10
ip rule add prio 100 from 10.0.0.0/8 to 1.2.3.4 fwmark 0x10/0xff table 1000
ip rule add prio 101 not iif lo tos 0x10 table 200 suppress_prefixlength 0
ip rule add prio 102 uidrange 0-0 ipproto tcp sport 10-20 dport 5 goto 32766
ip rule add prio 103 oif eth0 blackhole
ip rule add prio 104 l3mdev protocol 217
ip rule add prio 105 fwmark 0/0xff unreachable
ip rule add prio 106 oif eth0:1 suppress_ifgroup 3 table 77
ip rule add prio 107 nop
ip rule add prio 108 goto 50000
ip rule add prio 109 ipproto 200 dport 5 prohibit
"""  # noqa: E501


@pytest.fixture
def host(kernel: NamespaceKernel) -> NamespaceKernel:
    run_ip(HOST)
    # A bridge gets its carrier late.
    until(lambda: not any(hop.is_linkdown for route in read_routes(kernel) for hop in route.hops))
    return kernel


def test_a_host_with_everything_has_the_same_snapshot_by_ip(host: NamespaceKernel) -> None:
    ours = recorded(host)
    assert len(ours.rules) == 13
    # Our snapshots don't need nexthop objects because their routes contain the next hops.
    by_hand = recorded_by(BY_HAND)
    assert untimed(by_hand) == as_ip_prints(ours)
    assert ours.taken is not None
    assert by_hand.taken is not None
    assert 0 <= by_hand.taken - ours.taken < 600
    for commands in (WITHOUT_DETAILS, IN_WORDS):
        assert as_ip_prints(recorded_by(commands), protocols=False) == as_ip_prints(
            ours, protocols=False
        )


def test_routes_have_the_hidden_hops_of_their_nexthop_objects(host: NamespaceKernel) -> None:
    shown = read_routes(host)
    Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text("0")  # only in this namespace
    assert read_routes(host) == shown
    for snapshot in (recorded(host), recorded_by(BY_HAND), recorded_by(IN_WORDS)):
        assert read_routes(model_of(snapshot.known(Family.IPV4))) == shown


def _has_lost_carrier(kernel: NamespaceKernel, dev: str) -> bool:
    """Return whether the kernel's work queue has marked the routes as linkdown and flushed the
    nexthop objects.
    """
    is_marked = any(
        hop.is_linkdown for route in read_routes(kernel) for hop in route.hops if hop.dev == dev
    )
    return is_marked and all(item.hop is None or item.hop.dev != dev for item in kernel.nexthops())


@pytest.mark.parametrize("ignores", [0, 1])
def test_hops_without_carrier_count_as_on_the_host(host: NamespaceKernel, ignores: int) -> None:
    # A snapshot doesn't contain ignore_routes_with_linkdown, but the kernel flags the hops that it
    # skips as dead.
    Path("/proc/sys/net/ipv4/conf/all/ignore_routes_with_linkdown").write_text(str(ignores))
    run_ip(
        "route add 10.50.0.0/16 nexthop dev ib0 nexthop dev eth0",
        "route add 10.51.0.0/16 dev eth0 metric 9",
    )
    run_ip("link set peer-eth0 down")
    until(lambda: _has_lost_carrier(host, "eth0"))
    asked = [
        IPv4Address(text)
        for text in ("10.50.0.1", "10.51.0.1", "10.1.0.77", "10.20.0.1", "9.9.9.9")
    ]
    live = host.lookup(asked)
    for snapshot in (recorded(host), recorded_by(BY_HAND)):
        assert model_of(snapshot.known(Family.IPV4)).lookup(asked) == live


def test_a_host_with_next_to_nothing_has_a_snapshot_too(kernel: NamespaceKernel) -> None:
    kernel.set_link("lo", up=False)
    assert untimed(recorded_by(BY_HAND)) == as_ip_prints(recorded(kernel))
    run_ip("rule flush")
    assert untimed(recorded_by(BY_HAND)) == as_ip_prints(recorded(kernel))


def test_a_rule_for_every_source_port_leaves_a_snapshot(kernel: NamespaceKernel) -> None:
    run_ip(nics(eth0=NICS["eth0"], eth1="", ib0=""))
    # A connection through ib0 borrows one of two addresses, so a snapshot would ask which.
    run_ip(
        "addr add 10.3.0.4/24 dev eth1",
        "route add 10.6.0.0/16 dev ib0",
        "route add default dev eth0 table 104",
    )
    run_ip("rule add pref 5 sport 1-65534 lookup 104", "rule add pref 6 from 10.1.0.4 lookup main")
    run_ip("rule add pref 7 lookup local", "rule del pref 0")
    snapshot = recorded(kernel)
    assert snapshot.is_merged is False
    assert snapshot.rules == kernel.facts().rules


@pytest.mark.parametrize(
    "steps",
    [
        ["rule del pref 0"],
        ["rule del pref 32766"],
        ["rule add pref 9 lookup 9", "rule del pref 9", "rule del pref 0"],
    ],
)
def test_a_snapshot_tells_whether_deleted_rules_count(steps: list[str]) -> None:
    """Until a rule is added, the kernel uses the tables of IPv6's deleted rules."""
    kernel, kernel6 = on_linux(), NetlinkBackend6()
    run_ip(nics(eth0="10.1.0.4/24"))
    run_ip6("addr add fd00:1::4/64 dev eth0 nodad", "route add default via fd00:1::1")
    own = IPv6Network("fd00:1::4")
    until(lambda: own in {route.destination for route in read_routes(kernel6, Table.LOCAL)})
    run_ip6(*steps)
    config = Config(route_overlap={"expectedCidrs": ["fd00:244::/48"]}, uplinks=["eth0"])
    live = check_overlap(config, kernel6, phases.CancelScope(), ipv4=kernel)
    snapshot = recorded(kernel, kernel6)
    later = check(config, host=Host.recorded(snapshot))
    assert snapshot.ipv6 is not None
    assert snapshot.ipv6.uses_deleted is (len(steps) == 1)
    assert (later.verdict, later.reason_kind) == (live.verdict, live.reason_kind)
