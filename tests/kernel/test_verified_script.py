"""Test that a verified node stays on its uplink, with the boot scripts, the task that configures it
and the watcher, and that the scripts find a recorded uplink as the library does.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from needs import needs_links
from nightly import by_day
from node import nics, on_linux, run_ip, run_ip6, tool
from scripts import Sandbox, recorded, sandboxes
from verified_hosts import HOSTS, STACKED
from wanted import config

import phases
from hostrouting import (
    Config,
    Configure,
    Host,
    HostRoutingError,
    Layout,
    RouteError,
    RouteOverlapError,
    check,
)
from hostrouting.boot import assets
from hostrouting.boot.render import render_check, render_static_routes
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import read_our_routes
from hostrouting.model.errors import FileError
from hostrouting.model.links import VPN_DEVS, Link
from hostrouting.model.routes import Route
from hostrouting.model.verified_uplinks import VerifiedUplink, find_awaited_uplinks, find_verified
from hostrouting.overlap.findings import Verdict
from hostrouting.routes.plan import plan_now
from hostrouting.testing import FakeKernel, FakeSystemd
from hostrouting.watch._repair import plan_repair, without_moves

pytestmark = pytest.mark.kernel

MAC = "02:00:00:00:00:00"
ETH0 = VerifiedUplink("eth0", MAC)
HALVES = ("172.16.0.0/17", "172.16.128.0/17")
CLUSTER = ("172.16.0.0/16", "10.96.0.0/12")
COVERED = CLUSTER[:1]
LEASE = "ip route add default via 10.1.0.1 dev eth0 proto dhcp src 10.1.0.4 metric 100"
NO_LEASE = "ip route del default dev eth0"
VPN = f"""
{nics(wg0="10.200.0.2/24")}
ip link set wg0 address 0a:00:00:00:00:05
ip route add default dev wg0
"""
STORAGE = nics(eth1="10.9.0.5/24").replace("02:00:00:00:00:00", "02:00:00:00:00:07")
STORAGE_LEASE = "ip route add default via 10.9.0.1 dev eth1 proto dhcp metric 50"
BRIDGE = """
ip link add br0 {}type bridge
ip address flush dev eth0
ip link set eth0 master br0
ip link set br0 addrgenmode none
ip link set br0 up
ip address add 10.1.0.4/24 dev br0
ip route add default via 10.1.0.1 dev br0 metric 100
"""
OWN = "address 0a:00:00:00:00:09 "


def renamed(old: str, new: str) -> str:
    return f"ip link set {old} down\nip link set {old} name {new}\nip link set {new} arp off up"


def lease(dev: str, metric: int = 100) -> str:
    return f"ip route add default via 10.1.0.1 dev {dev} proto dhcp src 10.1.0.4 metric {metric}"


SWAP = "\n".join(
    (
        STORAGE,
        renamed("eth0", "tmp0"),
        renamed("eth1", "eth0"),
        renamed("tmp0", "eth1"),
        lease("eth1", 200),
        "ip route add default via 10.9.0.1 dev eth0 proto dhcp metric 100",
    )
)

# What is behind the storage NIC, which was eth1 before the names were swapped.
BEHIND = {"cidr": "10.50.0.0/16", "devs": ["eth1"]}
SWAPPED = "swapped: eth0, with which the check passed, is eth1 now: "
AND_UPLINKS = (
    '; set hostRouting\'s "uplinks": ["eth1"], or this alone if the names are right;'
    " then: hostrouting apply\n"
)


@attrs.frozen
class Case:
    """A boot of a verified node with the static routes in ``HALVES``.

    Args:
        does: the ip commands that happen after the verdict, or in the case of a new boot before the
            first script runs.
        devs: where our routes are afterwards, if they are.
        starts: whether a start of the node is let through.
        is_boot: whether our routes are gone.
        cidrs: the expected CIDRs. By default, there is a static route to one of them.
        uplinks: the uplinks that the config names.
        record: the uplink with which the check passed.
        routes: the static routes after those in ``HALVES``.
        keep: the interfaces to keep.
        way_out: what the scripts say if they hold the node.
    """

    does: str
    devs: str = "eth0"
    starts: bool = False
    is_boot: bool = False
    cidrs: Sequence[Any] = CLUSTER
    uplinks: tuple[str, ...] | None = None
    record: VerifiedUplink = ETH0
    routes: Sequence[Any] = ()
    keep: Sequence[Any] = ()
    way_out: str = (
        '; if another uplink is wanted now: set hostRouting\'s "uplinks": ["NAME"],'
        " then: hostrouting apply"
    )


CASES = {
    "A1 a VPN beside": Case(VPN),
    "A1 a VPN beside, all covered": Case(VPN, starts=True, cidrs=COVERED),
    "A2 DHCP beside": Case(f"{STORAGE}\n{STORAGE_LEASE}"),
    "A3 another lease comes first": Case(
        f"{NO_LEASE}\n{STORAGE}\n{STORAGE_LEASE}", devs="", is_boot=True
    ),
    "A4 a VPN instead": Case(f"{VPN}\n{NO_LEASE}"),
    "A5 DHCP instead": Case(f"{STORAGE}\n{STORAGE_LEASE}\n{NO_LEASE}"),
    "A7 names swapped": Case(SWAP, devs="eth1", is_boot=True),
    "A7 names swapped, all covered": Case(
        SWAP, devs="eth1", starts=True, is_boot=True, cidrs=COVERED
    ),
    "A7 a name of the config": Case(
        SWAP,
        devs="",
        is_boot=True,
        cidrs=COVERED,
        uplinks=("eth0",),
        way_out=f"can't install the static routes: {SWAPPED}in hostRouting.uplinks name eth1;"
        " then: hostrouting apply\n",
    ),
    "A7 a name of devs": Case(
        SWAP,
        devs="eth1",
        is_boot=True,
        cidrs=(*COVERED, BEHIND),
        way_out=f": {SWAPPED}in devs of 10.50.0.0/16 name eth0{AND_UPLINKS}",
    ),
    "A7 the uplink's former name in devs": Case(
        SWAP,
        devs="eth1",
        is_boot=True,
        cidrs=(*COVERED, {"cidr": "10.96.0.0/16", "devs": ["eth0"]}),
        way_out=f": {SWAPPED}in devs of 10.96.0.0/16 name eth1{AND_UPLINKS}",
    ),
    "A7 both names in devs": Case(
        SWAP,
        devs="eth1",
        is_boot=True,
        cidrs=(*COVERED, {"cidr": "10.96.0.0/16", "devs": ["eth0"]}, BEHIND),
        way_out=f": {SWAPPED}in devs of 10.96.0.0/16 name eth1;"
        f" in devs of 10.50.0.0/16 name eth0{AND_UPLINKS}",
    ),
    "A7 the present name in devs, and uplinks": Case(
        SWAP,
        devs="eth1",
        starts=True,
        is_boot=True,
        cidrs=(*COVERED, BEHIND | {"devs": ["eth0"]}),
        uplinks=("eth1",),
    ),
    "A7 names of the config": Case(
        SWAP,
        devs="",
        is_boot=True,
        cidrs=(*COVERED, BEHIND),
        uplinks=("eth0",),
        way_out=f": {SWAPPED}in hostRouting.uplinks name eth1; in devs of 10.50.0.0/16 name eth0;"
        " see static-routes' line; then: hostrouting apply\n",
    ),
    "A7 one of two names is edited": Case(
        SWAP,
        devs="eth1",
        is_boot=True,
        cidrs=(*COVERED, BEHIND),
        uplinks=("eth1",),
        way_out=f": {SWAPPED}in devs of 10.50.0.0/16 name eth0; then: hostrouting apply\n",
    ),
    "A7 the uplink's present name in devs": Case(
        SWAP,
        devs="eth1",
        starts=True,
        is_boot=True,
        cidrs=[{"cidr": "172.16.0.0/16", "devs": ["eth1"]}, "10.1.0.0/24"],
    ),
    "A7 patterns that match both": Case(
        SWAP,
        devs="eth1",
        starts=True,
        is_boot=True,
        cidrs=(*COVERED, BEHIND | {"devs": ["eth*"]}),
    ),
    "A7 a name of a route": Case(
        SWAP,
        devs="",
        is_boot=True,
        cidrs=COVERED,
        routes=[{"destination": "10.50.0.0/16", "dev": "eth1"}],
        way_out=f"can't install the static routes: {SWAPPED}"
        f"in dev of the static route to 10.50.0.0/16 name eth0{AND_UPLINKS}",
    ),
    "A7 the uplink's former name in a route": Case(
        SWAP,
        devs="",
        is_boot=True,
        cidrs=COVERED,
        routes=[{"destination": "10.50.0.0/16", "dev": "eth0"}],
        way_out=f"can't install the static routes: {SWAPPED}"
        f"in dev of the static route to 10.50.0.0/16 name eth1{AND_UPLINKS}",
    ),
    "A7 the uplink's former name in a route with its gateway": Case(
        SWAP,
        devs="",
        is_boot=True,
        cidrs=COVERED,
        routes=[{"destination": "10.50.0.0/16", "gateway": "10.1.0.1", "dev": "eth0"}],
        way_out=f"can't install the static routes: {SWAPPED}"
        f"in dev of the static route to 10.50.0.0/16 name eth1{AND_UPLINKS}",
    ),
    "A7 the present name in a route with a gateway": Case(
        SWAP,
        devs="eth0,eth1",
        starts=True,
        is_boot=True,
        cidrs=COVERED,
        routes=[{"destination": "10.50.0.0/16", "gateway": "10.9.0.1", "dev": "eth0"}],
    ),
    "A7 a name of a route with a gateway": Case(
        SWAP,
        devs="",
        is_boot=True,
        cidrs=COVERED,
        routes=[{"destination": "10.50.0.0/16", "gateway": "10.9.0.1", "dev": "eth1"}],
        way_out=f"can't install the static routes: {SWAPPED}in dev of the static route to",
    ),
    "A7 the uplink's present name in routes": Case(
        SWAP,
        devs="eth1",
        starts=True,
        is_boot=True,
        cidrs=COVERED,
        routes=[{"destination": "10.50.0.0/16", "gateway": "10.1.0.1", "dev": "eth1"}],
    ),
    "A7 the uplink's present name in routes and uplinks": Case(
        SWAP,
        devs="eth1",
        starts=True,
        is_boot=True,
        cidrs=COVERED,
        uplinks=("eth1",),
        routes=[{"destination": "10.50.0.0/16", "dev": "eth1"}],
    ),
    "A7 a name of keep": Case(
        SWAP,
        devs="",
        is_boot=True,
        cidrs=COVERED,
        keep=["eth[1-9]"],
        way_out=f"can't install the static routes: {SWAPPED}"
        f"in keep, for eth[1-9], name eth0{AND_UPLINKS}",
    ),
    "A7 the present name in keep": Case(
        SWAP, devs="eth1", starts=True, is_boot=True, cidrs=COVERED, keep=["eth0"]
    ),
    "A7 the present name": Case(
        SWAP, devs="eth1", starts=True, is_boot=True, cidrs=COVERED, uplinks=("eth1",)
    ),
    "A1 a VPN beside, named": Case(VPN, uplinks=("eth0",), way_out="; by default dev wg0"),
    "L3 only a VPN is left": Case(
        f"{VPN}\nip link del eth0",
        devs="",
        is_boot=True,
        way_out=", needed by 172.16.0.0/17; name the node's uplinks: set hostRouting's"
        ' "uplinks": ["NAME"], then: hostrouting apply\n',
    ),
    "L3 only a VPN is left, named": Case(
        f"{VPN}\nip link del eth0", devs="wg0", starts=True, is_boot=True, uplinks=("wg0",)
    ),
    "L3 a VPN wins instead": Case(
        f"{VPN}\n{STORAGE}\n{STORAGE_LEASE}\nip link del eth0",
        devs="",
        is_boot=True,
        way_out=", needed by 172.16.0.0/17; name the node's uplinks: set hostRouting's"
        ' "uplinks": ["eth1"], then: hostrouting apply\n',
    ),
    "L7 another VPN instead": Case(
        f"{VPN}\n{NO_LEASE}",
        devs="wg0",
        starts=True,
        is_boot=True,
        record=VerifiedUplink("wg1"),
    ),
    "L1 renamed": Case(
        f"{renamed('eth0', 'ens3')}\n{lease('ens3')}", devs="ens3", starts=True, is_boot=True
    ),
    "L1 renamed, in the whole config": Case(
        f"{renamed('eth0', 'ens3')}\n{lease('ens3')}",
        devs="ens3",
        starts=True,
        is_boot=True,
        cidrs=[{"cidr": "172.16.0.0/16", "devs": ["ens3"]}, "10.1.0.0/16"],
        routes=[{"destination": "10.50.0.0/16", "dev": "ens3"}],
    ),
    "L2 a new address": Case(
        f"ip link set eth0 down address 02:00:00:00:00:99 \nip link set eth0 up\n{LEASE}",
        starts=True,
        is_boot=True,
    ),
    "L3 both new": Case(
        f"ip link set eth0 down address 02:00:00:00:00:99\n"
        f"{renamed('eth0', 'ens3')}\n{lease('ens3')}",
        devs="ens3",
        starts=True,
        is_boot=True,
    ),
    "L3 gone, and two others have a default route": Case(
        f"ip link set eth0 down address 02:00:00:00:00:99\n"
        f"{renamed('eth0', 'ens3')}\n{lease('ens3')}\n{STORAGE}\n{STORAGE_LEASE}",
        devs="eth1",
        is_boot=True,
        way_out="contested-default: ",
    ),
    "L4 a bridge with its address": Case(
        BRIDGE.format(f"address {MAC} "), devs="br0", starts=True, is_boot=True
    ),
    "L4 a bridge with its own address": Case(
        BRIDGE.format(OWN), devs="br0", starts=True, is_boot=True
    ),
    "L4 a bridge, and its port is named": Case(
        BRIDGE.format(OWN),
        devs="",
        is_boot=True,
        uplinks=("eth0",),
        way_out="no-uplink: eth0 is a port of br0: name br0 in hostRouting.uplinks;"
        " then: hostrouting apply\n",
    ),
    "L4b a bridge without a lease": Case(
        f"{BRIDGE.format(OWN)}\nip route del default dev br0\n{STORAGE}\n{STORAGE_LEASE}",
        devs="",
        is_boot=True,
    ),
    "L4b back from a bridge": Case(
        "ip link add br0 type bridge", starts=True, record=VerifiedUplink("br0", MAC)
    ),
    "L6 a bridge of another NIC": Case(
        f"""{STORAGE}
        ip address flush dev eth0
        ip address flush dev eth1
        ip link add br0 {OWN}type bridge
        ip link set eth1 master br0
        ip link set br0 addrgenmode none
        ip link set br0 up
        ip address add 10.9.0.5/24 dev br0
        ip route add default via 10.9.0.1 dev br0""",
        devs="",
        is_boot=True,
        record=VerifiedUplink("br0", MAC),
    ),
    "L6 failover": Case(
        f"{STORAGE}\n{STORAGE_LEASE} \nip link set peer-eth0 down\n{NO_LEASE}", is_boot=False
    ),
    "L7 a VPN alone": Case(
        f"{VPN}\n{NO_LEASE}",
        devs="wg0",
        starts=True,
        is_boot=True,
        record=VerifiedUplink("wg0", "0a:00:00:00:00:05"),
    ),
    "L8 a network behind a VPN": Case(
        f"{nics(tailscale0='100.64.0.5/32')}\nip route add 100.64.0.0/10 dev tailscale0",
        starts=True,
        cidrs=(*CLUSTER, {"cidr": "100.64.0.0/10", "devs": ["tailscale0"]}),
    ),
    "L9 a VF before it is a port": Case(
        f"{nics(vf0='')}\nip link set vf0 address {MAC}", starts=True
    ),
    "L11 another gateway": Case(
        f"{NO_LEASE}\nip route add default via 10.1.0.254 dev eth0 proto dhcp", starts=True
    ),
    "a second default route that loses": Case(
        f"{STORAGE}\nip route add default via 10.9.0.1 dev eth1 metric 500", starts=True
    ),
}


def bond(*ports: str, address: str = "", leased: bool = True) -> str:
    """Return the commands that put links into a bond, which gets eth0's address and lease."""
    steps = [
        "ip address flush dev eth0",
        f"ip link add bond0 {address}type bond mode active-backup",
    ]
    for port in ports:
        steps += [f"ip link set {port} down", f"ip link set {port} master bond0"]
    steps += ["ip link set bond0 up", "ip address add 10.1.0.4/24 dev bond0"]
    return "\n".join([*steps, *([lease("bond0")] if leased else [])])


BOND0 = VerifiedUplink("bond0", MAC)
VLAN = """
ip link add link eth0 name eth0.100 type vlan id 100
ip address flush dev eth0
ip link set eth0.100 up
ip address add 10.1.0.4/24 dev eth0.100
ip route add default via 10.1.0.1 dev eth0.100 metric 100
"""

CASES_BY_KIND = {
    "bond": {
        "L4 a bond": Case(bond("eth0"), devs="bond0", starts=True, is_boot=True),
        "L4b a bond without a lease": Case(
            f"{STORAGE}\n{bond('eth0', leased=False)}\n{STORAGE_LEASE}", devs="", is_boot=True
        ),
        "L10 a bond with another address": Case(
            f"{bond('eth0')}\nip link set bond0 address 02:00:00:00:00:99",
            devs="bond0",
            starts=True,
            is_boot=True,
            record=BOND0,
        ),
        "L10 a bond of another of its NICs": Case(
            f"{STORAGE}\n{bond('eth1')}",
            devs="bond0",
            starts=True,
            is_boot=True,
            record=BOND0,
        ),
        "L10 a NIC leaves its bond": Case(
            f"{STORAGE}\n{bond('eth0', 'eth1')}\nip link set eth0 nomaster",
            devs="bond0",
            starts=True,
            is_boot=True,
            record=BOND0,
        ),
        "a bond that is left over": Case(
            "ip link add bond0 address 02:00:00:00:00:98 type bond", starts=True, record=BOND0
        ),
    },
    "team": {
        "L4 a team": Case(
            bond("eth0").replace("bond mode active-backup", "team").replace("bond0", "team0"),
            devs="team0",
            starts=True,
            is_boot=True,
        ),
    },
    "vlan": {
        "L5 a VLAN": Case(VLAN, devs="", is_boot=True),
        "L5 a VLAN that is named": Case(
            VLAN, devs="eth0.100", starts=True, is_boot=True, uplinks=("eth0.100",)
        ),
        "a VLAN on it": Case(
            "ip link add link eth0 name eth0.100 type vlan id 100\nip link set eth0.100 up\n"
            "ip address add 10.9.0.5/24 dev eth0.100\n"
            "ip route add default via 10.9.0.1 dev eth0.100 metric 50",
        ),
    },
}


def build() -> NamespaceKernel:
    kernel = on_linux()
    lines = nics(eth0="10.1.0.4/24", ib0="172.16.0.10/16")
    run_ip(*_words(lines), *_words(LEASE))
    return kernel


def _words(lines: str) -> list[str]:
    return [line.strip().removeprefix("ip ") for line in lines.splitlines() if line.strip()]


@pytest.mark.parametrize("name", CASES)
def test_a_start_of_a_verified_node(name: str, tmp_path: Path) -> None:
    """The scripts and the library agree about our routes and the verdict."""
    for sandbox in sandboxes(name, tmp_path):
        start(CASES[name], build(), sandbox)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, cases in CASES_BY_KIND.items() for name in cases]
)
def test_a_start_of_a_verified_node_with_other_links(kind: str, name: str, tmp_path: Path) -> None:
    for sandbox in sandboxes(name, tmp_path):
        kernel = build()
        needs_links(kind)
        start(CASES_BY_KIND[kind][name], kernel, sandbox)


def start(case: Case, kernel: NamespaceKernel, sandbox: Sandbox) -> None:
    wanted = config(*HALVES, *case.routes, cidrs=case.cidrs, keep=case.keep)
    wanted = attrs.evolve(wanted, uplinks=case.uplinks)
    routes, judge = render_static_routes(wanted), render_check(wanted)
    with_record: dict[str, Any] = recorded([case.record])
    host = Host(kernel, FakeSystemd(), Layout(sandbox.root / "library"))
    host.layout.verified.parent.mkdir(parents=True)
    host.layout.verified.write_text(f"{case.record}\n")
    if not case.is_boot:
        assert sandbox.run(routes, **with_record).returncode == 0
    former: dict[Hashable, Route] = {route.key: route for route in read_our_routes(kernel)}
    run_ip(*_words(case.does))
    assert led_by_the_watcher(wanted, host, former) <= {*case.devs.split(",")}
    installed = sandbox.run(routes, "gate", **with_record)
    assert devs_of_ours(kernel) == case.devs, installed
    judged = sandbox.run(judge, "gate", **with_record)
    starts = installed.returncode == 0 and judged.returncode == 0
    assert starts == case.starts, (installed, judged)
    said = installed.stderr + judged.stderr
    assert starts or case.way_out in said, said
    assert "rm /etc" not in said, said
    # The library says the same.
    report = check(wanted, host=host)
    assert (report.verdict is Verdict.OK) == (judged.returncode == 0), (report, judged)
    assert nothing_to_do(wanted, host) == (installed.returncode == 0)
    if case.is_boot and case.devs:
        run_ip("route flush proto 217")
    assert succeeds(wanted, host) == case.starts
    assert devs_of_ours(kernel) == case.devs
    (line,) = host.layout.verified.read_text().splitlines()
    assert line.split()[0] in case.devs.split(",") if starts else line == str(case.record)


def devs_of_ours(kernel: NamespaceKernel) -> str:
    return ",".join(sorted({dev for route in read_our_routes(kernel) for dev in route.devs}))


def nothing_to_do(wanted: Config, host: Host) -> bool:
    """Return whether the plan is empty, or False if nothing can be planned."""
    try:
        plan, missing = plan_now(host.with_verified(wanted), host.routes)
    except RouteError:
        return False
    assert not plan.changes
    return missing is None


@pytest.mark.parametrize("names", [{}, {"uplinks": ["eth0"]}], ids=["devs", "uplinks and devs"])
def test_after_the_edits_that_a_swap_asks_for_all_is_as_before(
    names: Mapping[str, Any], tmp_path: Path
) -> None:
    kernel = build()
    run_ip(*_words(f"{STORAGE}\nip route add 10.50.0.0/16 via 10.9.0.1 dev eth1"))
    host = Host(kernel, FakeSystemd(), Layout(tmp_path))
    wanted = config(*HALVES, cidrs=[*COVERED, BEHIND], **names)
    assert succeeds(wanted, host)
    before = routers()
    assert before == ["10.1.0.1", "10.9.0.1"]
    run_ip(*_words(SWAP.removeprefix(STORAGE)))
    run_ip("route add 10.50.0.0/16 via 10.9.0.1 dev eth0")
    assert not succeeds(wanted, host)
    document = json.dumps(wanted.to_mapping())
    reason = check(wanted, host=host).reason
    assert reason is not None
    assert reason.endswith("; then: hostrouting apply")
    edits = dict(re.findall(r"in (hostRouting\.uplinks|devs of [0-9./]+) name (eth[01])", reason))
    assert [*edits] == [*(["hostRouting.uplinks"] if names else []), "devs of 10.50.0.0/16"]
    for place, name in edits.items():
        key = "uplinks" if place == "hostRouting.uplinks" else "devs"
        document = re.sub(rf'"{key}": \["eth[01]"\]', f'"{key}": ["{name}"]', document)
    edited = json.loads(document)
    if (setting := re.search(r'set hostRouting\'s "uplinks": (\["eth1"\])', reason)) is not None:
        edited["hostRouting"]["uplinks"] = json.loads(setting[1])
    edited = Config.from_mapping(edited)
    assert succeeds(edited, host)
    assert check(edited, host=host).verdict is Verdict.OK
    assert host.layout.verified.read_text() == f"eth1 {MAC}\n"
    assert routers() == before


def routers() -> list[str]:
    """Return the routers of an address of the cluster, and of one of the storage."""
    return [tool("ip", "route", "get", each).split()[2] for each in ("172.16.1.53", "10.50.1.1")]


def succeeds(wanted: Config, host: Host) -> bool:
    """Return whether the task that configures a host does so."""
    try:
        phases.run(Configure(wanted, host=host))
    except HostRoutingError as error:
        assert isinstance(error, RouteOverlapError | RouteError), error
        return False
    return True


def led_by_the_watcher(
    wanted: Config, host: Host, former: Mapping[Hashable, Route]
) -> set[str | None]:
    """Return the interfaces of the routes that the watcher would write now."""
    counting = host.with_verified(wanted)
    plan, _ = plan_repair(counting, host.routes)
    plan, _ = without_moves(plan, counting, former, [host.routes])
    written = [*plan.add, *(item.new for item in plan.replace)]
    return {hop.dev for route in written for hop in route.hops}


def test_the_words_of_a_held_start(tmp_path: Path) -> None:
    build()
    sandbox, wanted = Sandbox(tmp_path), config(*HALVES, cidrs=CLUSTER)
    with_record: dict[str, Any] = recorded([ETH0])
    with_record["prepare"] += "\ntouch -d @1790000000 /etc/hostrouting/uplink"
    run_ip(*_words(f"{VPN}\n{NO_LEASE}"))
    since = "the uplink since 2026-09-21T14:13:20Z"
    out = 'set hostRouting\'s "uplinks": ["NAME"], then: hostrouting apply'
    assert sandbox.run(render_static_routes(wanted), **with_record).stderr == (
        "can't install the static routes: timed out after 0 s waiting for the default route on"
        " eth0, with which the check passed, needed by 172.16.0.0/17;"
        f" {since}; if another uplink is wanted now: {out}\n"
    )
    passed = "to keep eth0, with which the check passed: "
    another = f"\n{since}; if another uplink is wanted now: {out}\n"
    said = sandbox.run(render_check(wanted), **with_record).stderr
    # No fix keeps the uplink before its default route is back.
    assert f"{passed}the default route on an uplink{another}" in said
    run_ip(*_words(LEASE))
    said = sandbox.run(render_check(wanted), **with_record).stderr
    assert f"{passed}hostrouting fix --in-place && hostrouting apply{another}" in said
    # What keeps the uplink comes before what gives it up.
    in_order = ("OVERLAP: ", "fix: hostrouting fix ", passed, out)
    assert [*map(said.index, in_order)] == sorted(map(said.index, in_order))


def test_after_its_wait_the_script_goes_on_without_a_replaced_uplink(tmp_path: Path) -> None:
    kernel = build()
    run_ip(*_words(CASES["L3 both new"].does))
    script = render_static_routes(config(*HALVES, waitSeconds=2))
    done = Sandbox(tmp_path).run(script, **recorded([ETH0]))
    assert done.returncode == 0
    # On a busy machine, the time may be over before the script begins to wait.
    assert done.stderr == (
        "timed out after 2 s waiting for interface eth0, with which the check passed;"
        " the default route tells the uplink now\n"
    )
    assert devs_of_ours(kernel) == "ens3"
    # The check doesn't wait for it once more.
    for sandbox in sandboxes("waits once", tmp_path):
        judge = render_check(config(*HALVES, cidrs=CLUSTER, waitSeconds=30))
        judged = sandbox.run(judge, **recorded([ETH0]))
        assert judged.stdout == (
            "every expected CIDR leaves through ens3\n"
            "note: eth0, with which the check passed, is gone; the default route's interface"
            " counts as the uplink now, and apply records it\n"
        ), judged


def test_the_check_doesnt_wait_for_a_swapped_name(tmp_path: Path) -> None:
    build()
    run_ip(*_words(SWAP), "route del default dev eth0")
    asked = config(cidrs=CLUSTER, uplinks=["eth0"], waitSeconds=60)
    done = Sandbox(tmp_path).run(render_check(asked), **recorded([ETH0]))
    assert "waiting" not in done.stdout
    assert SWAPPED in done.stderr


def test_the_lease_of_a_verified_uplink_may_come_last(tmp_path: Path) -> None:
    """A3: the script waits for it, and not for a run of its own."""
    kernel = build()
    run_ip(*_words(f"{NO_LEASE}\n{STORAGE}\n{STORAGE_LEASE}"))
    script = render_static_routes(config(*HALVES, waitSeconds=30))
    process = Sandbox(tmp_path).start(script, **recorded([ETH0]))
    assert process.stdout is not None
    told = process.stdout.readline()
    assert told.startswith("waiting up to 30 s for the default route on eth0, ")
    run_ip(*_words(LEASE))
    process.communicate(timeout=20)
    assert (process.returncode, devs_of_ours(kernel)) == (0, "eth0")


def test_a_script_waits_once_for_an_uplink_and_its_default_route(tmp_path: Path) -> None:
    """A replaced uplink has no lease yet, either."""
    build()
    run_ip(*_words(CASES["L3 both new"].does), "route del default dev ens3")
    wanted = config(*HALVES, waitSeconds=1)
    for script in (render_static_routes(wanted), render_check(wanted)):
        done = Sandbox(tmp_path).run(script, **recorded([ETH0]))
        assert (done.returncode, done.stdout.count("waiting up to 1 s for") < 2) == (1, True), done


def test_before_the_first_apply_a_later_default_route_counts(tmp_path: Path) -> None:
    """L12: an image's or a bundle's node has no record, so its config names the uplinks."""
    kernel = build()
    run_ip(*_words(VPN))
    sandbox, wanted = Sandbox(tmp_path), config(*HALVES, cidrs=COVERED)
    named = attrs.evolve(wanted, uplinks=("eth0",))
    for each, dev in (wanted, "wg0"), (named, "eth0"):
        assert sandbox.run(render_static_routes(each)).returncode == 0
        assert devs_of_ours(kernel) == dev
        judged = sandbox.run(render_check(each))
        assert (judged.returncode == 0) == (each is named), judged
        assert each is named or "contested-default" in judged.stderr


@pytest.mark.parametrize("mode", ["STRICT", "WARN"])
@pytest.mark.parametrize("family", [4, 6])
def test_without_a_record_a_vpn_moves_no_installed_route(
    family: int, mode: str, tmp_path: Path
) -> None:
    kernel = build()
    run_ip("address add 2001:db8:1::4/64 dev eth0 nodad")
    run_ip6("route add default via 2001:db8:1::1 dev eth0")
    ours = HALVES if family == 4 else ("fd00:96::/108",)
    wanted = config(*ours, cidrs=["172.16.0.0/16", "fd00:96::/108"], mode=mode)
    bare: dict[str, Any] = recorded([ETH0])
    bare["prepare"] = str(bare["prepare"]).replace("STRICT", mode)
    bare["prepare"] += "\nrm /etc/hostrouting/uplink"
    host = Host(kernel, FakeSystemd(), Layout(tmp_path / "library"), routes6=NetlinkBackend6())
    script = render_static_routes(wanted)
    assert Sandbox(tmp_path).run(script, **bare).returncode == 0
    run_ip(*_words(VPN))
    run_ip6("route add default dev wg0 metric 1")
    says = (
        "can't install the static routes: contested-default: the default route is that of the"
        " VPN wg0, and our routes leave through eth0; name the node's uplinks:"
        ' set hostRouting\'s "uplinks": ["eth0"], then: hostrouting apply\n'
    )
    for sandbox in sandboxes(f"IPv{family}", tmp_path):
        done = sandbox.run(script, "gate", **bare)
        moves = mode == "WARN"
        assert (done.returncode == 0, done.stderr) == (moves, "" if moves else says)
        there = tool("ip", f"-{family}", "route", "show", "proto", "217")
        assert ("wg0" in there, "eth0" in there) == (moves, not moves)
    if not moves:
        with pytest.raises(RouteError) as caught:
            plan_now(host.with_verified(wanted), *host.backends(wanted.static_routes.families))
        assert caught.value.hint == says.partition("; ")[2].rstrip()
        named = render_static_routes(attrs.evolve(wanted, uplinks=("eth0",)))
        assert Sandbox(tmp_path).run(named, **bare).returncode == 0
        run_ip("route flush proto 217")
        tool("ip", "-6", "route", "flush", "proto", "217")
        assert Sandbox(tmp_path).run(script, **bare).returncode == 0


@pytest.mark.parametrize("is_recorded", [False, True])
def test_in_warn_mode_a_recorded_uplink_stays(tmp_path: Path, is_recorded: bool) -> None:
    """Without a record, the scripts follow the default route."""
    kernel = build()
    run_ip(*_words(f"{STORAGE}\n{STORAGE_LEASE}"))
    sandbox, wanted = Sandbox(tmp_path), config(*HALVES, cidrs=COVERED, mode="WARN")
    warn: dict[str, Any] = recorded([ETH0])
    warn["prepare"] = str(warn["prepare"]).replace("STRICT", "WARN")
    if not is_recorded:
        warn["prepare"] += "\nrm /etc/hostrouting/uplink"
    assert sandbox.run(render_static_routes(wanted), **warn).returncode == 0
    dev = "eth0" if is_recorded else "eth1"
    assert {dev for route in read_our_routes(kernel) for dev in route.devs} == {dev}
    assert sandbox.run(render_check(wanted), **warn).stdout == (
        f"every expected CIDR leaves through {dev}\n"
    )


def test_a_vpn_that_takes_ipv4_alone_doesnt_hold_ipv6(tmp_path: Path) -> None:
    """A8."""
    kernel = build()
    run_ip("address add 2001:db8:1::4/64 dev eth0 nodad", *_words(VPN))
    run_ip6("route add default via 2001:db8:1::1 dev eth0")
    wanted = config(*HALVES, cidrs=["172.16.0.0/16", "fd00:96::/108"])
    sandbox, with_record = Sandbox(tmp_path), recorded([ETH0])
    assert sandbox.run(render_static_routes(wanted), **with_record).returncode == 0
    done = sandbox.run(render_check(wanted), **with_record)
    assert done.returncode == 0, done
    ipv6, layout = NetlinkBackend6(), Layout(tmp_path / "library")
    layout.verified.parent.mkdir(parents=True)
    layout.verified.write_text(f"{ETH0}\n")
    assert succeeds(wanted, Host(kernel, FakeSystemd(), layout, routes6=ipv6))
    assert layout.verified.read_text() == f"{ETH0}\n"


ODD = {
    "lines of Windows": r"sed -i 's/$/\r/' FILE",
    "a byte order mark": r"sed -i '1s/^/\xef\xbb\xbf/' FILE",
    "an upper case address": "sed -i 's/02:/0A:/' FILE",
    "a folder": "rm FILE; mkdir FILE",
    "a FIFO": "rm FILE; mkfifo FILE",
    "a comment": "echo '# eth0' >FILE",
    "zeros": "truncate -s 0 FILE; truncate -s 24 FILE",
}
UNREADABLE = ("a folder", "a FIFO", "a comment", "zeros")


@pytest.mark.parametrize("name", ODD)
def test_an_odd_record(name: str, tmp_path: Path) -> None:
    """It counts, or there is no verdict: the scripts never go on as if there were none."""
    kernel = build()
    run_ip(*_words(f"{STORAGE}\n{STORAGE_LEASE}"))
    sandbox, wanted = Sandbox(tmp_path), config(*HALVES, cidrs=CLUSTER)
    odd: dict[str, Any] = recorded([ETH0])
    path = "/etc/hostrouting/uplink"
    odd["prepare"] += "\n" + ODD[name].replace("FILE", path)
    if name == "an upper case address":
        run_ip("link set eth0 down", "link set eth0 address 0a:00:00:00:00:00", "link set eth0 up")
        run_ip(*_words(LEASE))
    says = (
        f"can't read {path}: it has no line NAME MAC; to record the default's interface:"
        f" rm -r {path} && hostrouting apply /etc/hostrouting/installed.json\n"
    )
    done = sandbox.run(render_static_routes(wanted), **odd)
    devs = {dev for route in read_our_routes(kernel) for dev in route.devs}
    assert devs == (set() if name in UNREADABLE else {"eth0"}), done
    assert done.stderr == (says if name in UNREADABLE else ""), done
    done = sandbox.run(render_check(wanted), **odd)
    assert done.returncode == 1, done
    assert (f"anything: check-failed: {says}" in done.stderr) == (name in UNREADABLE), done


@pytest.mark.parametrize("broken", [": >FILE", "rm FILE; mkdir FILE"])
def test_the_record_counts_even_if_the_mode_cant_be_read(broken: str, tmp_path: Path) -> None:
    """For example, it can't be read once for lack of descriptors."""
    kernel = build()
    run_ip(*_words(f"{STORAGE}\n{STORAGE_LEASE}"))
    odd: dict[str, Any] = recorded([ETH0])
    path = "/etc/aks-flex-node/check-route-overlap.sh"
    odd["prepare"] += "\n" + broken.replace("FILE", path)
    done = Sandbox(tmp_path).run(render_static_routes(config(*HALVES, cidrs=CLUSTER)), **odd)
    assert (done.returncode, devs_of_ours(kernel), done.stderr) == (0, "eth0", ""), done
    done = Sandbox(tmp_path).run(render_check(config(cidrs=CLUSTER[1:])), **odd)
    assert done.returncode == 1, done


IB0_MAC = "02:00:00:00:00:01"
LINE = "9: {}: <UP> mtu 1\\    link/ether {} brd".format
# Each alias of ib0, and the interface that the check expects then, or None if there is no verdict.
ALIASES = {
    "lines": ("of the rack\nib0 eth0 2: eth0: UP", "eth0"),
    "another interface": ("\n".join(("x", LINE("ib9", MAC))), "eth0"),
    "a swap": ("\n".join(("x", LINE("eth0", IB0_MAC), LINE("ib0", MAC))), None),
}


@pytest.mark.parametrize("name", ALIASES)
def test_no_alias_makes_another_interface_the_verified_one(name: str, tmp_path: Path) -> None:
    """An interface that comes back from a pod may have any alias."""
    alias, expected = ALIASES[name]
    build()
    tool("ip", "link", "set", "dev", "ib0", "alias", alias)
    for sandbox in sandboxes(name, tmp_path):
        done = sandbox.run(render_check(config(cidrs=COVERED)), **recorded([ETH0]))
        says = f"routes via ib0, expected {expected}; "
        if expected is None:
            says = "check-failed: can't list the links: ip shows eth0 twice"
        assert (done.returncode, says in done.stderr) == (1, True), done


def test_a_name_with_a_backslash_is_no_other_name(tmp_path: Path) -> None:
    build()
    run_ip(f"link add eth0\\x address {IB0_MAC} type bridge")
    for sandbox in sandboxes("a backslash", tmp_path):
        done = sandbox.run(SHARED + FIND, **recorded([ETH0]))
        assert (done.returncode, done.stdout) == (0, "eth0\n\n"), done


def test_an_empty_record_counts_as_none(tmp_path: Path) -> None:
    build()
    empty: dict[str, Any] = recorded([ETH0])
    empty["prepare"] += "\n: >/etc/hostrouting/uplink"
    done = Sandbox(tmp_path).run(render_check(config(cidrs=CLUSTER[1:])), **empty)
    assert done.returncode == 0, done


def test_the_script_says_that_its_routes_follow_a_vpn(tmp_path: Path) -> None:
    kernel = build()
    routes = render_static_routes(config(*HALVES))
    assert "VPN" not in Sandbox(tmp_path).run(routes).stdout
    run_ip(*_words(VPN))
    for sandbox in sandboxes("a VPN", tmp_path):
        assert sandbox.run(routes).stdout.splitlines()[-1] == (
            "note: routes follow the default route of a VPN, wg0;"
            " name another interface in hostRouting.uplinks"
        )
    assert {dev for route in read_our_routes(kernel) for dev in route.devs} == {"wg0"}
    named = render_static_routes(attrs.evolve(config(*HALVES), uplinks=("wg0",)))
    assert "note" not in Sandbox(tmp_path).run(named).stdout


def test_the_script_and_the_page_list_the_names_of_vpns() -> None:
    rendered = render_static_routes(config(*HALVES))
    assert f"({'|'.join(VPN_DEVS).replace('*', '')})" in rendered
    page = (Path(__file__).parents[2] / "docs/explanation/verdict.md").read_text(encoding="utf-8")
    assert f"a VPN's interface (`{'`, `'.join(VPN_DEVS)}`)" in page


def test_a_named_uplink_with_the_address_of_its_vf_isnt_swapped(tmp_path: Path) -> None:
    on_linux()
    run_ip(*_words(f"{nics(vf0='')}\nip link set vf0 address {MAC}"))
    run_ip(*_words(f"{nics(eth0='10.1.0.4/24')}\nip link set eth0 address {MAC}\n{LEASE}"))
    for names, record in (("eth0",), ETH0), (("eth*",), VerifiedUplink("eth9", MAC)):
        wanted = attrs.evolve(config(cidrs=["10.96.0.0/12"]), uplinks=names)
        for sandbox in sandboxes(",".join(names), tmp_path):
            done = sandbox.run(render_check(wanted), **recorded([record]))
            assert done.returncode == 0, done


# --- who a recorded uplink is by now --------------------------------------------------------------

SHARED = "#!/bin/bash\n" + "\n".join(
    assets.read_asset("hostrouting.boot", name) for name in ("common.sh", "network.sh")
)
FIND = """
mkdir -p "$RUN_DIR"
make_files && read_verified || exit
printf '%s\\n' "$VERIFIED" "$AWAITED"
"""
# Finds each host's uplink. The links are as ip would list them.
FIND_ALL = """
ask_kernel() { printf '%s\\n' "$LINKS" | "$2"; }
cd /run/hosts || exit
mkdir -p "$RUN_DIR" && make_files || exit
for host in *; do
  cp "$host/record" /etc/hostrouting/uplink
  LINKS=$(<"$host/links")
  read_verified || exit
  printf '%s: %s %s\\n' "$host" "${VERIFIED:--}" "${AWAITED:--}"
done
"""


def as_listed(link: Link) -> str:
    """Return a link as `ip -d -N -o link show` prints it."""
    master, port = "", ""
    if link.master is not None:
        master, port = f" master {link.master}", " \\    bridge_slave state forwarding priority 32"
    at = "@lower" if link.kind in STACKED else ""
    address = "[65534] " if link.mac is None else f"[1] {link.mac} brd ff:ff:ff:ff:ff:ff"
    kind = "" if link.kind is None else f"\\    {link.kind} some words of its own"
    return (
        f"{link.index}: {link.name}{at}: <BROADCAST,UP> mtu 1500 qdisc noqueue{master} state UP"
        f" mode DEFAULT group 0 qlen 1000\\    link/{address} promiscuity 0  allmulti 0 minmtu 68"
        f" maxmtu 65535 {kind}{port} addrgenmode eui64 numtxqueues 1 \\    alias bridge\\    vrf"
    )


def test_the_scripts_find_the_uplinks_of_modelled_hosts(tmp_path: Path) -> None:
    """Also on hosts with bonds, VRFs and Open vSwitch, which this kernel may lack."""
    for number, host in enumerate(HOSTS.values()):
        folder = tmp_path / f"run/hosts/{number:03}"
        folder.mkdir(parents=True)
        (folder / "record").write_text(f"{host.record}\n")
        (folder / "links").write_text("".join(f"{as_listed(link)}\n" for link in host.links))
    done = Sandbox(tmp_path).run(SHARED + FIND_ALL, **recorded([ETH0]))
    assert done.returncode == 0, done
    for (name, host), told in zip(HOSTS.items(), done.stdout.splitlines(), strict=True):
        awaited = host.record.name if host.is_awaited else "-"
        assert told.endswith(f": {','.join(host.found) or '-'} {awaited}"), name


# Each record: a command that makes it out of the one of eth0, and what it holds, or None if it
# can't be read.
RECORDS: dict[str, tuple[str, str | None]] = {
    "none": ("rm FILE", ""),
    "empty": (": >FILE", ""),
    "as it was written": (":", "eth0"),
    "without a line break": ("printf 'eth0 MAC' >FILE", "eth0"),
    "without an address": ("echo eth0 >FILE", "eth0"),
    "lines of Windows": (r"printf 'eth0 MAC\r\n\r\n' >FILE", "eth0"),
    "a lone carriage return": (r"printf 'eth0\reth1 MAC\n' >FILE", None),
    "two carriage returns": (r"printf 'eth0\r\r\n' >FILE", None),
    "a byte order mark": (r"printf '\xef\xbb\xbfeth0 MAC\n' >FILE", "eth0"),
    "an upper case address": ("echo ens3 02:00:00:00:00:AB >FILE", "up0"),
    "a trailing blank": ("echo 'eth0 MAC ' >FILE", None),
    "a leading blank": ("echo ' eth0 MAC' >FILE", None),
    "two blanks": ("echo 'eth0  MAC' >FILE", None),
    "a tab": (r"printf 'eth0\tMAC\n' >FILE", None),
    "a comment": (r"printf '# eth1\neth0 MAC # mine\neth0 MAC\n' >FILE", "eth0"),
    "comments alone": (r"printf '# eth0\n#eth1\n' >FILE", None),
    "an empty line": ("echo >FILE", None),
    "NULs": ("truncate -s 0 FILE; truncate -s 24 FILE", None),
    "a NUL in a line": (r"printf 'eth0\0 MAC\neth\0001\n' >FILE", "eth0"),
    "a star": ("echo '* MAC' >FILE", None),
    "a class": ("echo 'eth[01] MAC' >FILE", None),
    "a command": ("echo '`id` MAC' >FILE", None),
    "a long name": ("echo an-interface-with-a-name MAC >FILE", None),
    "bytes beyond ASCII": (r"printf '\xfcplink MAC\n\xc3\xa9th0\n' >FILE", None),
    "the same twice": (r"printf 'eth0\neth0 MAC\n' >FILE", "eth0"),
    "two": (r"printf 'eth1\neth0\n' >FILE", "eth1,eth0"),
    "a long line first": (
        r"{ head -c 70000 /dev/zero | tr '\0' '#'; printf '\neth0\n'; } >FILE",
        "eth0",
    ),
    "64 lines": ("{ yes '#' | head -n 63; echo eth0; } >FILE", "eth0"),
    "65 lines": ("{ yes '#' | head -n 64; echo eth0; } >FILE", None),
    "a megabyte of lines": ("yes 'eth0 MAC' | head -c 1000000 >FILE", "eth0"),
    "a folder": ("rm FILE; mkdir FILE", None),
    "a FIFO": ("rm FILE; mkfifo FILE", None),
    "a device": ("rm FILE; ln -s /dev/zero FILE", None),
    "a link": ("mv FILE FILE-1; ln -s FILE-1 FILE", "eth0"),
    "a dangling link": ("rm FILE; ln -s nowhere FILE", None),
    "a link to itself": ("rm FILE; ln -s FILE FILE", None),
}
READ_ALL = """
ask_kernel() { "$2" </run/links; }
mkdir -p "$RUN_DIR" && make_files || exit
while IFS= read -r make; do
  rm -rf "$RECORD"
  echo 'eth0 MAC' >"$RECORD"
  eval "$make"
  if read_verified; then printf '%s\n' "$VERIFIED"; else echo "$MESSAGE"; fi
done </run/makes
"""


def test_the_scripts_read_odd_records_as_the_library_does(tmp_path: Path) -> None:
    macs = {"eth0": MAC, "eth1": "02:00:00:00:00:01", "up0": "02:00:00:00:00:ab"}
    links = [Link(index, name, mac=mac) for index, (name, mac) in enumerate(macs.items(), 1)]
    (tmp_path / "run").mkdir()
    (tmp_path / "run/links").write_text("".join(f"{as_listed(link)}\n" for link in links))
    makes = [make.replace("MAC", MAC) for make, _ in RECORDS.values()]
    in_etc = [make.replace("FILE", "/etc/hostrouting/uplink") for make in makes]
    (tmp_path / "run/makes").write_text("".join(f"{make}\n" for make in in_etc))
    script = SHARED + READ_ALL.replace("MAC", MAC)
    done = Sandbox(tmp_path).run(script, **recorded([ETH0]))
    for name, make, said in zip(RECORDS, makes, done.stdout.splitlines(), strict=True):
        expected = RECORDS[name][1]
        host = Host(FakeKernel(), FakeSystemd(), Layout(tmp_path / name))
        path = host.layout.verified
        path.parent.mkdir(parents=True)
        path.write_text(f"{ETH0}\n")
        subprocess.run(["bash", "-c", make.replace("FILE", f"'{path}'")], check=True)
        if expected is None:
            assert said.startswith("can't read "), name
            with pytest.raises(FileError, match="can't read "):
                _ = host.verified
        else:
            assert said == expected, name
            assert ",".join(find_verified(host.verified, links)) == expected, name


NAMES = ("eth0", "eth1", "b-r.0", "c9")
MACS = tuple(f"02:00:00:00:01:0{number}" for number in range(3))


def random_links(chance: random.Random) -> list[str]:
    steps: list[str] = []
    made: list[str] = []
    for name in chance.sample(NAMES, chance.randint(1, 4)):
        address = f"address {chance.choice(MACS)} "
        kind = chance.choice(("veth", "veth", "bridge", "macvlan", "tun", "bond", "vlan", "vrf"))
        if kind == "vrf":
            steps.append(f"link add {name} type vrf table 9")
        elif kind == "vlan" and made:
            steps.append(f"link add link {made[0]} name {name} {address}type vlan id 9")
        elif kind == "tun":
            steps.append(f"tuntap add dev {name} mode tun")
        elif kind == "macvlan" and made:
            kind = chance.choice(("macvlan", "macvtap"))
            steps.append(f"link add link {made[0]} name {name} {address}type {kind}")
        elif kind in ("bridge", "bond"):
            steps.append(f"link add {name} {address}type {kind}")
            ports = [each for each in made if chance.random() < 0.4]
            steps += [f"link set {each} master {name}" for each in ports]
        else:
            steps.append(f"link add {name} {address}type veth peer name p-{name}")
            made.append(name)
    return steps


@pytest.mark.parametrize("seed", range(by_day(4, by_night=3000)))
def test_the_scripts_find_a_recorded_uplink_as_the_library_does(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    kernel = on_linux()
    for step in random_links(chance):
        try:
            run_ip(step)
        except AssertionError:  # such as a bridge in a bridge, or a kernel without bonds
            continue
    macs = (*MACS, None, "02:00:00:00:09:09")
    verified = [
        VerifiedUplink(chance.choice((*NAMES, "gone0")), chance.choice(macs))
        for _ in range(chance.randint(1, 2))
    ]
    done = Sandbox(tmp_path).run(SHARED + FIND, **recorded(verified))
    assert done.returncode == 0, done
    found, awaited = done.stdout.split("\n")[:2]
    links = kernel.facts().links
    assert found == ",".join(find_verified(verified, links)), (seed, verified, links)
    phrase = f"interface {awaited}, with which the check passed" if awaited else None
    assert phrase == find_awaited_uplinks(verified, links), (seed, verified, links)
