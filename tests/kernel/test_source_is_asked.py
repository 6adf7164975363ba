"""Hosts whose connections get a source that only the kernel knows: what sockets do, every way to judge says."""

from __future__ import annotations

import subprocess
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from asking import BY_HAND, recorded, recorded_by
from leaving import Leaving
from scripts import AWKS, Sandbox, awk_or_skip, told_by

import phases
from hostrouting import Config
from hostrouting.boot.render import render_check_route_overlap_script
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.recording import SnapshotBackend
from hostrouting.model.routes import Table
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.explanation import explain
from hostrouting.overlap.findings import NoteKind
from hostrouting.routes.resolve import resolve

if TYPE_CHECKING:
    from pathlib import Path

    from hostrouting.backend import RouteBackend
    from hostrouting.kernel.namespace import NamespaceKernel
    from hostrouting.overlap.findings import OverlapReport

pytestmark = pytest.mark.kernel

MAKE = """
make() {
  ip link add "$1" ${2:+index $2} type veth peer name "p$1"
  ip link set "$1" arp off; ip link set "p$1" up; ip link set "$1" up
}
"""
AWAY = "ip route add default dev ib0 table 100\nip rule add pref 100 from {source} lookup 100\n"
NODE = "make eth0; make ib0; ip addr add 10.1.0.4/24 dev eth0\n"
DEFAULT = "ip route add default via 10.1.0.1\n"
MULTIPATH = "ip route add default nexthop via 10.1.0.1 dev eth0 nexthop via 10.1.7.1 dev eth0\n"
# Table local's turn comes behind main's, but for connections from 10.1.0.4.
LOCAL_LAST = """
ip rule add pref 200 lookup local; ip rule add pref 100 not from 10.1.0.4 lookup main; ip rule del pref 0
ip addr add 10.5.5.1/24 dev eth0 noprefixroute
"""


@attrs.frozen
class Case:
    """A host.

    Args:
        does: commands that make it.
        leaves: the interfaces by which TCP's packet, a connected datagram and one that isn't leave for an address.
        told: of each failure the kind, the interfaces, the first address and the source.
        cidr: what is expected.
        address: inside of it.
        is_told_by_ip: whether a recording by ip has what decides.
        has_note: whether something is noted of an address of this host.
    """

    does: str
    leaves: tuple[str | None, str | None, str | None]
    told: tuple[tuple[str, str, str, str], ...]
    cidr: str = "10.5.0.0/16"
    address: str = "10.5.0.9"
    is_told_by_ip: bool = True
    has_note: bool = False


CASES = {
    "a route's src has left the host": Case(
        f"{NODE}{DEFAULT}ip addr add 10.1.0.7/32 dev eth0\n"
        "ip route add 10.5.0.0/16 via 10.1.0.1 dev eth0 src 10.1.0.7 table 100\n"
        "ip rule add to 10.5.0.0/16 lookup 100\nip addr del 10.1.0.7/32 dev eth0",
        (None, None, "eth0"),
        (("NO-ROUTE", "", "10.5.0.0", "10.1.0.7"),),
    ),
    "the src of a longer route by the default interface was local by a route": Case(
        f"{NODE}{DEFAULT}ip route add local 10.7.7.7 dev lo\nip route add 10.5.7.0/24 via 10.1.0.1 src 10.7.7.7\n"
        "ip route del local 10.7.7.7 dev lo table local",
        (None, None, "eth0"),
        (("NO-ROUTE", "", "10.5.7.0", "10.7.7.7"),),
        address="10.5.7.9",
    ),
    "the default route's src was local by a route": Case(
        f"{NODE}ip route add local 10.7.7.7 dev lo\nip route add default via 10.1.0.1 src 10.7.7.7\n"
        "ip route del local 10.7.7.7 dev lo table local",
        (None, None, "eth0"),
        (("NO-ROUTE", "", "10.5.0.0", "10.7.7.7"),),
    ),
    "the default route's src is local by a route": Case(
        f"{NODE}ip route add local 10.7.7.7 dev lo\nip route add default via 10.1.0.1 src 10.7.7.7\n",
        ("eth0", "eth0", "eth0"),
        (),
    ),
    "the first interface registered has not the lowest index": Case(
        "make eth1 50; make ib0 60; make eth2 40; make tun0 70\n"
        "ip addr add 10.1.0.4/24 dev eth1; ip addr add 10.9.0.1/24 dev eth2\n"
        f"ip route add default dev tun0\n{AWAY.format(source='10.1.0.4')}",
        ("ib0", "ib0", "tun0"),
        (("OVERLAP", "ib0", "10.5.0.0", "10.1.0.4"),),
        is_told_by_ip=False,
    ),
    "a rule takes what comes from an own address before table local is asked": Case(
        f"{NODE}{DEFAULT}ip addr add 10.5.0.9/32 dev ib0\nip rule add pref 500 lookup local\nip rule del pref 0\n"
        f"{AWAY.format(source='10.5.0.9')}",
        ("ib0", "ib0", "lo"),
        (("OVERLAP", "ib0", "10.5.0.9", "10.5.0.9"),),
        has_note=True,
    ),
    "an interface was in another namespace": Case(
        "make eth1; make ib0; make eth2; make tun0\n"
        "unshare -n sleep 100 & other=$!\nwhile [ /proc/$other/ns/net -ef /proc/self/ns/net ]; do sleep .02; done\n"
        "ip link set eth1 netns $other; nsenter -t $other -n ip link set eth1 netns $$; ip link set eth1 arp off up\n"
        "kill $other\n"
        "ip addr add 10.1.0.4/24 dev eth1; ip addr add 10.9.0.1/24 dev eth2\n"
        f"ip route add default dev tun0\n{AWAY.format(source='10.9.0.1')}",
        ("ib0", "ib0", "tun0"),
        (("OVERLAP", "ib0", "10.5.0.0", "10.9.0.1"),),
        is_told_by_ip=False,
    ),
    "route_localnet lets an address of scope host be chosen": Case(
        "make eth0; make ib0; ip addr add 10.1.0.4/32 dev eth0 scope host; ip addr add 10.1.7.5/24 dev eth0\n"
        "sysctl -qw net.ipv4.conf.all.route_localnet=1\n"
        f"ip route add default dev eth0 scope link\n{AWAY.format(source='10.1.0.4')}",
        ("ib0", "ib0", "eth0"),
        (("OVERLAP", "ib0", "10.5.0.0", "10.1.0.4"),),
        is_told_by_ip=False,
    ),
    "an IPv6 gateway is taken for four bytes of IPv4": Case(
        f"{NODE}ip addr add 32.1.13.4/16 dev eth0; ip -6 addr add 2001:db8::4/64 dev eth0 nodad\n"
        f"ip -4 route add 0.0.0.0/0 via inet6 2001:db8::1 dev eth0 onlink\n{AWAY.format(source='32.1.13.4')}",
        ("ib0", "ib0", "eth0"),
        (("OVERLAP", "ib0", "10.5.0.0", "32.1.13.4"),),
    ),
    "routes of two scopes share a nexthop object": Case(
        "make eth0; make ib0; ip addr add 10.1.0.4/24 dev eth0 scope link; ip addr add 10.1.7.4/24 dev eth0\n"
        "ip nexthop add id 1 dev eth0; ip route add default nhid 1 scope global\n"
        f"ip route add 10.6.0.0/16 nhid 1 scope link\n{AWAY.format(source='10.1.0.4')}",
        ("ib0", "ib0", "eth0"),
        (("OVERLAP", "ib0", "10.5.0.0", "10.1.0.4"),),
        is_told_by_ip=False,
    ),
    "a nexthop object has a source before a route uses it": Case(
        "make eth0; make ib0; ip addr add 10.1.0.4/24 dev eth0 scope link; ip addr add 10.1.7.4/24 dev eth0\n"
        f"ip nexthop add id 1 dev eth0; ip route add default nhid 1\n{AWAY.format(source='10.1.0.4')}",
        ("ib0", "ib0", "eth0"),
        (("OVERLAP", "ib0", "10.5.0.0", "10.1.0.4"),),
        is_told_by_ip=False,
    ),
    "an anycast route": Case(
        f"{NODE}{DEFAULT}ip route add anycast 10.5.0.0/16 dev eth0 table main\n{AWAY.format(source='10.1.0.4')}",
        ("ib0", "ib0", "eth0"),
        (("OVERLAP", "ib0", "10.5.0.0", "10.1.0.4"),),
    ),
    "a broadcast route of table main": Case(
        f"{NODE}{DEFAULT}ip route add broadcast 10.5.0.0/16 dev eth0 table main",
        (None, None, None),
        (("BLACKHOLE", "", "10.5.0.0", ""),),
    ),
    "a multicast route of table main": Case(
        f"{NODE}{DEFAULT}ip route add multicast 10.5.0.0/16 dev eth0 table main",
        (None, "eth0", "eth0"),
        (("BLACKHOLE", "", "10.5.0.0", ""),),
    ),
    "two hops by one interface have two sources": Case(
        "sysctl -qw net.ipv4.fib_multipath_hash_policy=0\n"
        f"{NODE}ip addr add 10.1.7.4/24 dev eth0\n{MULTIPATH}{AWAY.format(source='10.1.7.4')}",
        ("", "", "eth0"),
        (("OVERLAP", "ib0", "10.5.0.0", "10.1.7.4"),),
    ),
    "only connections meet an address of this host": Case(
        f"{NODE}{DEFAULT}{LOCAL_LAST}",
        ("lo", "lo", "eth0"),
        (),
        cidr="10.5.5.0/25",
        address="10.5.5.1",
        has_note=True,
    ),
    "only connections meet a broadcast address": Case(
        f"{NODE}{DEFAULT}{LOCAL_LAST}",
        (None, None, "eth0"),
        (("BLACKHOLE", "", "10.5.5.255", "10.1.0.4"),),
        cidr="10.5.5.128/25",
        address="10.5.5.255",
    ),
    "connections to a broadcast address leave elsewhere": Case(
        f"{NODE}{DEFAULT}ip addr add 10.5.5.1/24 dev eth0 brd +\nip rule add pref 10 lookup local\n"
        "ip rule add pref 5 from 10.5.5.1 lookup 100\nip route add default dev ib0 table 100\nip rule del pref 0",
        ("ib0", "ib0", None),
        (("OVERLAP", "ib0", "10.5.5.128", "10.5.5.1"),),
        cidr="10.5.5.128/25",
        address="10.5.5.255",
        has_note=True,
    ),
}


LOST_SOURCE = """
ip addr add 10.5.0.1/24 dev ib0; ip route add local 10.7.7.7 dev lo
ip route add default via 10.1.0.1 src 10.7.7.7; ip route del local 10.7.7.7 dev lo table local
"""
FIXABLE = Case(f"{NODE}{LOST_SOURCE}", (None, None, None), (), cidr="10.5.0.0/24")


def config_of(case: Case) -> Config:
    section = {"routeOverlap": {"expectedCidrs": [case.cidr]}, "waitSeconds": 0}
    return Config.from_mapping({"hostRouting": section})


def check(backend: RouteBackend, case: Case) -> OverlapReport:
    return check_overlap(config_of(case), backend, phases.CancelScope())


def build(commands: str) -> None:
    subprocess.run(["bash", "-euc", MAKE + commands], check=True, timeout=20)


@pytest.fixture(params=list(CASES.values()), ids=list(CASES))
def case(request: pytest.FixtureRequest, kernel: NamespaceKernel) -> Any:
    build(request.param.does)
    return request.param


def test_sockets_leave_by(case: Case) -> None:
    address = IPv4Address(case.address)
    with Leaving() as leaving:
        seen = leaving.by_tcp(address, 9), leaving.by_connected_datagram(address, 9), leaving.by_datagram(address, 9)
    for dev, expected in zip(seen, case.leaves, strict=True):
        assert dev == expected or (expected == "" and dev)


def test_every_check_tells_what_sockets_do(case: Case) -> None:
    backend = NetlinkBackend()
    reports = [check(backend, case), check(SnapshotBackend(recorded(backend)), case)]
    by_ip = check(SnapshotBackend(recorded_by(BY_HAND)), case)
    if case.is_told_by_ip:
        reports.append(by_ip)
    else:
        assert (by_ip.verdict, "source" in str(by_ip.reason)) == ("unknown", True)
    for report in reports:
        assert told(report) == case.told, str(report.reason)
        assert report.verdict == ("overlap" if case.told else "ok")
        kinds = [note.kind for note in report.notes]
        assert case.has_note == (NoteKind.LOCAL in kinds or NoteKind.BROADCAST in kinds)


def told(report: OverlapReport) -> tuple[tuple[str, str, str, str], ...]:
    return tuple((str(f.kind), ",".join(f.devs), str(f.probe), str(f.source or "")) for f in report.findings)


def test_an_explanation_says_it_too(case: Case) -> None:
    backend = NetlinkBackend()
    for asked in (backend, SnapshotBackend(recorded(backend))):
        found = explain(IPv4Address(case.address), config_of(case), asked, phases.CancelScope())
        assert "" in case.leaves or found.is_as_expected == (not case.told)


def test_a_fix_has_no_source_that_left_the_host(kernel: NamespaceKernel) -> None:
    build(FIXABLE.does)
    remedy = check(kernel, FIXABLE).remedy
    main = kernel.routes(Table.MAIN)
    routes, missing = resolve(remedy.routes, kernel.links(), kernel.addresses(), main, None)
    assert (remedy.unmendable, missing, kernel.add(routes)) == ((), None, ())
    assert check(kernel, FIXABLE).verdict == "ok"


def test_an_explanation_asks_whether_two_tables_are_one(kernel: NamespaceKernel) -> None:
    """A rule that came and went has split tables local and main."""
    build(
        f"{NODE}{DEFAULT}ip rule add pref 5 lookup 77; ip rule del pref 5\n"
        "ip route add local 10.5.0.0/16 dev lo table local; ip route add 10.5.1.0/24 dev ib0"
    )
    found = explain(IPv4Address("10.5.1.9"), config_of(FIXABLE), kernel, phases.CancelScope())
    assert [way.is_modelled for way in found.lookups] == [True]


@pytest.mark.parametrize("awk", AWKS)
def test_the_boot_script_says_it_too(case: Case, awk: str, tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, awk_or_skip(awk))
    done = sandbox.run(render_check_route_overlap_script([case.cidr], "STRICT", wait_seconds=0))
    assert done.returncode == (1 if case.told else 0), done.stderr
    marker = sandbox.root / "run/aks-flex-node" / f"route-overlap.{'detected' if case.told else 'ok'}"
    assert told_by(marker.read_text().splitlines()) == case.told
