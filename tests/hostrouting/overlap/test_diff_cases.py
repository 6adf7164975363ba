"""Test that a comparison names what has changed a host's lookups, and nothing else."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_network
from pathlib import Path

import attrs
import pytest
from node import DEFAULT, NICS, await_local6, nics, on_linux, run_ip, run_ip6
from scenario import play

from hostrouting import Snapshot
from hostrouting.kernel.host_changes import HostChangeKind
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.overlap.difference import Difference, DiffReport, compare
from hostrouting.testing import FakeKernel

HOST = """
    link add eth0
    addr add 10.1.0.4/24 dev eth0
    route add default via 10.1.0.1 dev eth0 proto dhcp src 10.1.0.4 metric 100
"""


def compared(change: str, *cidrs: str, host: str = HOST) -> DiffReport:
    """Compare a host in memory before and after commands of ``scenario``."""
    kernel = FakeKernel()
    play(kernel, host)
    before = take_snapshot(kernel)
    play(kernel, change)
    return compare(before, take_snapshot(kernel), [ip_network(cidr) for cidr in cidrs])


def causes(difference: Difference) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return [(str(each.kind), each.before, each.after) for each in difference.causes]


def ways(difference: Difference) -> tuple[list[str], list[str]]:
    """Return the next hops before and after, of the first packets."""
    first = difference.results[0]
    return [hop for each in first.before for hop in each.hops], [
        hop for each in first.after for hop in each.hops
    ]


def test_a_lost_rule_for_local() -> None:
    report = compared(
        "rule add pref 9 lookup main \n rule del pref 0 lookup local proto kernel", "172.16.0.0/12"
    )
    lost = next(each for each in report.changed if str(each.cidr) == "10.1.0.4/32")
    assert lost.results[0].before[0].type == "local"
    assert ways(lost)[1] == ["dev eth0"]
    assert causes(lost) == [("rule", ("0: from all lookup local",), ())]
    assert [each for each in report.changed if str(each.cidr) == "172.16.0.0/12"] == []


TWO_NICS = f"""{HOST}
    link add eth1
    addr add 10.2.0.4/24 dev eth1
    route add default via 10.2.0.1 dev eth1 table 102
    rule add pref 100 from 10.2.0.4/32 lookup 102
    rule add pref 101 to 172.16.0.0/16 lookup 102
"""


def test_rules_dropped_by_networkd() -> None:
    change = (
        "rule del pref 100 from 10.2.0.4/32 lookup 102\n"
        "rule del pref 101 to 172.16.0.0/16 lookup 102"
    )
    by_ranges = {
        str(each.ranges[0]): each
        for each in compared(change, "172.16.0.0/15", host=TWO_NICS).changed
    }
    assert by_ranges.keys() == {"172.16.0.0/16", "172.17.0.0/16"}
    every, replies = by_ranges.values()
    assert ways(every) == (["via 10.2.0.1 dev eth1"], ["via 10.1.0.1 dev eth0"])
    assert causes(every) == [("rule", ("101: from all to 172.16.0.0/16 lookup 102",), ())]
    assert replies.results[0].packets == ("UDP reply from 10.2.0.4", "TCP reply from 10.2.0.4")
    assert causes(replies) == [("rule", ("100: from 10.2.0.4 lookup 102",), ())]


def test_a_gateway_moved_by_dhcp() -> None:
    change = "route replace default via 10.1.0.254 dev eth0 proto dhcp src 10.1.0.4 metric 100"
    report = compared(change, "172.16.0.0/12", "10.96.0.0/12")
    assert [(str(each.cidr), ways(each)) for each in report.changed] == [
        (cidr, (["via 10.1.0.1 dev eth0"], ["via 10.1.0.254 dev eth0"]))
        for cidr in ("172.16.0.0/12", "10.96.0.0/12")
    ]
    for difference in report.changed:
        assert causes(difference) == [
            (
                "route",
                ("default via 10.1.0.1 dev eth0 proto dhcp src 10.1.0.4 metric 100",),
                ("default via 10.1.0.254 dev eth0 proto dhcp src 10.1.0.4 metric 100",),
            )
        ]
    assert report.others == ()


VPN = """
    link add wg0
    addr add 10.8.0.2/32 dev wg0
    route add 0.0.0.0/1 dev wg0
    route add 128.0.0.0/1 dev wg0
"""


def test_a_vpn_that_came_up() -> None:
    report = compared(VPN, "172.16.0.0/12")
    (difference,) = report.changed
    assert list(map(str, difference.ranges)) == ["172.16.0.0/12"]
    assert ways(difference) == (["via 10.1.0.1 dev eth0"], ["dev wg0"])
    assert [str(each.source) for each in difference.results[0].after] == ["10.8.0.2"]
    assert causes(difference) == [
        ("route", (), ("128.0.0.0/1 dev wg0 proto hostrouting scope link",))
    ]
    assert Counter(each.kind for each in report.others) == {"link": 1, "address": 1, "route": 2}


RAILS = f"""{HOST}
    link add ib0
    link add ib1
    addr add 172.16.0.10/16 dev ib0
    addr add 172.16.0.11/16 dev ib1
"""


def test_a_flap_that_reordered_two_routes() -> None:
    report = compared("link set ib0 down \n link set ib0 up", "172.16.0.0/16", host=RAILS)
    difference, broadcast = report.changed
    assert list(map(str, broadcast.ranges)) == ["172.16.255.255/32"]
    assert ways(difference) == (["dev ib0"], ["dev ib1"])
    ((kind, before, after),) = causes(difference)
    assert kind == "route"
    assert [line.split()[2] for line in before] == ["ib0", "ib1"]
    assert [line.split()[2] for line in after] == ["ib1", "ib0"]


def test_a_link_that_went() -> None:
    host = (
        f"{HOST} link add eth1 \n addr add 10.2.0.4/24 dev eth1 \n"
        " route add 172.16.0.0/16 via 10.2.0.1 dev eth1"
    )
    (difference,) = compared("link del eth1", "172.16.0.0/16", host=host).changed
    assert ways(difference) == (["via 10.2.0.1 dev eth1"], ["via 10.1.0.1 dev eth0"])
    # A route can't come back without its interface, nor a connection's source without the address.
    assert [kind for kind, *_ in causes(difference)] == ["link", "address", "route"]


def test_another_address_is_another_source() -> None:
    change = """
        addr del 10.1.0.4/24 dev eth0
        addr add 10.1.0.9/24 dev eth0
        route add default via 10.1.0.1 dev eth0 proto dhcp src 10.1.0.9 metric 100
    """
    (difference,) = compared(change, "172.16.0.0/12").changed
    (results, *_) = difference.results
    assert [[str(each.source) for each in side] for side in (results.before, results.after)] == [
        ["10.1.0.4"],
        ["10.1.0.9"],
    ]
    assert [kind for kind, *_ in causes(difference)] == ["address", "route"]


def test_changes_without_an_effect_are_listed() -> None:
    report = compared("route add 192.0.2.0/24 via 10.1.0.1 dev eth0", "172.16.0.0/12")
    assert (report.differs, report.changed) == (False, ())
    (change,) = report.others
    assert (change.before, change.after) == (
        (),
        ("192.0.2.0/24 via 10.1.0.1 dev eth0 proto hostrouting",),
    )


def test_without_cidrs_every_address_is_compared() -> None:
    report = compared("route add 198.51.100.0/24 via 10.1.0.2 dev eth0")
    assert list(map(str, report.cidrs)) == ["0.0.0.0/0"]
    assert [str(each) for difference in report.changed for each in difference.ranges] == [
        "198.51.100.0/24"
    ]


def test_equal_snapshots_do_not_differ() -> None:
    assert compared("", "172.16.0.0/12").differs is False


def test_a_torn_snapshot_is_unknown() -> None:
    snapshot = take_snapshot(FakeKernel())
    report = compare(snapshot, attrs.evolve(snapshot, is_torn=True), [])
    assert report.differs is None
    assert report.reason


def test_a_family_of_one_snapshot_is_unknown() -> None:
    snapshot = take_snapshot(FakeKernel())
    report = compare(snapshot, snapshot, [ip_network("fd00::/8")])
    assert report.differs is None
    assert report.reason


def test_the_kinds_are_ranked() -> None:
    """Rules say more about the reason than the interfaces that they lead to."""
    kinds = [*HostChangeKind]
    assert (kinds[0], kinds[-1]) == (HostChangeKind.LINK, HostChangeKind.RULE)


# --- in the kernel --------------------------------------------------------------------------------


@pytest.mark.kernel
def test_a_nexthop_object_is_one_change() -> None:
    kernel = on_linux()
    run_ip(nics(eth0=NICS["eth0"]), DEFAULT, "nexthop add id 5 via 10.1.0.2 dev eth0")
    run_ip("route add 172.16.0.0/16 nhid 5", "route add 172.17.0.0/16 nhid 5")
    before: Snapshot = take_snapshot(kernel)
    run_ip("nexthop replace id 5 via 10.1.0.3 dev eth0")
    (difference,) = compare(before, take_snapshot(kernel), [ip_network("172.16.0.0/12")]).changed
    assert list(map(str, difference.ranges)) == ["172.16.0.0/15"]
    assert causes(difference) == [
        ("nexthop", ("id 5 via 10.1.0.2 dev eth0",), ("id 5 via 10.1.0.3 dev eth0",))
    ]


@pytest.mark.kernel
def test_a_router_that_no_longer_responds() -> None:
    kernel = on_linux()
    run_ip(nics(eth0=NICS["eth0"]))
    run_ip6("address add fd00:a::4/64 dev eth0 nodad")
    await_local6("fd00:a::4")
    run_ip6("route add default via fd00:a::1 dev eth0 metric 10 pref high")
    run_ip6("route append default via fd00:a::2 dev eth0 metric 20")
    before = take_snapshot(kernel, NetlinkBackend6())
    run_ip6("neigh replace fd00:a::1 dev eth0 nud failed")
    (difference,) = compare(
        before, take_snapshot(kernel, NetlinkBackend6()), [ip_network("fd00:10::/32")]
    ).changed
    assert ways(difference) == (["via fd00:a::1 dev eth0"], ["via fd00:a::2 dev eth0"])
    assert [kind for kind, *_ in causes(difference)] == ["neighbour"]


@pytest.mark.kernel
def test_a_label_that_selects_another_source() -> None:
    kernel = on_linux()
    run_ip(nics(eth0=NICS["eth0"]))
    run_ip6("address add fd00:a::4/64 dev eth0 nodad", "address add 2001:db8::4/64 dev eth0 nodad")
    await_local6("fd00:a::4", "2001:db8::4")
    run_ip6("route add default via fd00:a::1 dev eth0")
    before = take_snapshot(kernel, NetlinkBackend6())
    run_ip6("addrlabel add prefix fd00:10::/32 label 1")
    (difference,) = compare(
        before, take_snapshot(kernel, NetlinkBackend6()), [ip_network("fd00:10::/31")]
    ).changed
    assert list(map(str, difference.ranges)) == ["fd00:10::/32"]
    assert [
        str(each.source) for each in (*difference.results[0].before, *difference.results[0].after)
    ] == [
        "fd00:a::4",
        "2001:db8::4",
    ]
    assert causes(difference) == [("label", (), ("fd00:10::/32 label 1",))]


@pytest.mark.kernel
def test_sources_of_another_order_are_unknown() -> None:
    kernel = on_linux()
    run_ip(nics(eth0=NICS["eth0"], eth1="10.2.0.4/24"))
    run_ip6("address add fec0::7/64 dev eth0 nodad", "address add 2001:db8::4/64 dev eth1 nodad")
    await_local6("fec0::7", "2001:db8::4")
    run_ip6("route add default via fec0::1 dev eth0")
    Path("/proc/sys/net/ipv6/conf/eth0/use_oif_addrs_only").write_text("1")
    before = take_snapshot(kernel, NetlinkBackend6())
    run_ip6("address add fd00:10::4/64 dev eth1 nodad")
    await_local6("fd00:10::4")
    report = compare(
        before, take_snapshot(kernel, NetlinkBackend6()), [ip_network("fd00:10:96::/48")]
    )
    assert report.differs is None
    assert report.reason
