"""Hosts on which several interfaces may be the way to the cluster: sockets, library and boot scripts beside."""

from __future__ import annotations

import subprocess
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from asking import BY_HAND, recorded, recorded_by
from leaving import Leaving
from scripts import AWKS, Sandbox, awk_or_skip, told_by

import phases
from hostrouting import Config, judge
from hostrouting.boot.render import render_check, render_static_routes
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.recording import SnapshotBackend, take_snapshot
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import Table
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.explanation import explain
from hostrouting.routes.plan import plan_now

if TYPE_CHECKING:
    from hostrouting import OverlapReport
    from hostrouting.kernel.namespace import NamespaceKernel

pytestmark = pytest.mark.kernel

# eth0 is the node's, in 10.1.0.0/16; eth1 a storage network's; ib0 has the range of the pods.
NODE = """
    link add eth0 type veth peer name p0
    link add eth1 type veth peer name p1
    link add ib0 type veth peer name p2
    link set p0 up
    link set p1 up
    link set p2 up
    link set eth0 up arp off
    link set eth1 up arp off
    link set ib0 up arp off
    addr add 10.1.0.4/16 dev eth0
    addr add 10.9.0.4/24 dev eth1
    addr add 172.16.0.10/16 dev ib0
"""
NODES, SERVICES, PODS = "10.1.0.0/16", "10.96.0.0/12", "172.16.0.0/16"
BY_ETH0 = "route add default via 10.1.0.1 dev eth0 proto dhcp"
BY_ETH1 = "route add default via 10.9.0.1 dev eth1 proto dhcp"
STORAGE_WINS = f"{BY_ETH0} metric 200\n{BY_ETH1} metric 100"
NODE_WINS = f"{BY_ETH0} metric 100\n{BY_ETH1} metric 200"
TIED = f"{BY_ETH0} metric 100\n{BY_ETH1.replace('add', 'append')} metric 100"
MULTIPATH = "route add default proto dhcp nexthop via 10.1.0.1 dev eth0 nexthop via 10.9.0.1 dev eth1"
PODS_FIXED = {"172.16.0.0/17", "172.16.128.0/17"}
NODES_BY_ETH0 = ("OVERLAP", "eth0", "10.1.0.0", "")
SERVICES_BY_ETH1 = ("OVERLAP", "eth1", "10.96.0.0", "")
PODS_BY_IB0 = ("OVERLAP", "ib0", "172.16.0.0", "")


@attrs.frozen
class Case:
    """A host, and what is to be said of it.

    Args:
        does: the commands of ip that make it, after ``NODE``.
        uplinks: of the config; None: it names none.
        told: of each failure kind, interfaces and first address.
        by: the interfaces that are expected, if anything could be judged.
        inherits: of a route that names nothing the interface of each hop; none: it waits.
        is_contested: whether a note names several default routes.
        fixed: the destinations of the fix, each with the device that it names.
        left: what no route mends.
        unknown: why nothing can be judged.
    """

    does: str
    uplinks: tuple[str, ...] | None
    told: tuple[tuple[str, str, str, str], ...]
    by: tuple[str, ...]
    inherits: tuple[str, ...]
    is_contested: bool = False
    fixed: frozenset[tuple[str, str | None]] = frozenset()
    left: frozenset[str] = frozenset()
    unknown: str = ""


def mended(dev: str | None, *networks: str) -> frozenset[tuple[str, str | None]]:
    return frozenset((network, dev) for network in networks)


CASES = {
    "the storage's default wins": Case(
        STORAGE_WINS,
        None,
        (NODES_BY_ETH0, PODS_BY_IB0),
        ("eth1",),
        ("eth1",),
        is_contested=True,
        fixed=mended(None, *PODS_FIXED),
        left=frozenset({NODES}),
    ),
    "the storage's default wins, and the uplink is named": Case(
        STORAGE_WINS,
        ("eth0",),
        (SERVICES_BY_ETH1, PODS_BY_IB0),
        ("eth0",),
        ("eth0",),
        fixed=mended("eth0", SERVICES, *PODS_FIXED),
    ),
    "the node's default wins": Case(
        NODE_WINS,
        None,
        (PODS_BY_IB0,),
        ("eth0",),
        ("eth0",),
        is_contested=True,
        fixed=mended(None, *PODS_FIXED),
    ),
    "the node's default wins, and the uplink is named": Case(
        NODE_WINS, ("eth0",), (PODS_BY_IB0,), ("eth0",), ("eth0",), fixed=mended("eth0", *PODS_FIXED)
    ),
    "equal metrics": Case(TIED, None, (), (), ("eth0",), unknown="contested-default"),
    "equal metrics, and the uplink is named": Case(
        TIED,
        ("eth0",),
        (SERVICES_BY_ETH1, PODS_BY_IB0),
        ("eth0",),
        ("eth0",),
        fixed=mended("eth0", SERVICES, *PODS_FIXED),
    ),
    "multipath": Case(
        MULTIPATH, None, (PODS_BY_IB0,), ("eth0", "eth1"), ("eth0", "eth1"), fixed=mended(None, *PODS_FIXED)
    ),
    "multipath, and one is the uplink": Case(
        MULTIPATH,
        ("eth0",),
        (("OVERLAP", "eth0,eth1", "10.96.0.0", ""), PODS_BY_IB0),
        ("eth0",),
        ("eth0",),
        fixed=mended("eth0", SERVICES, *PODS_FIXED),
    ),
    "several uplinks": Case(
        STORAGE_WINS,
        ("eth*",),
        (PODS_BY_IB0,),
        ("eth0", "eth1"),
        ("eth1",),
        is_contested=True,
        fixed=mended("eth1", *PODS_FIXED),
    ),
    "the default is the storage's alone": Case(
        BY_ETH1,
        ("eth0",),
        (SERVICES_BY_ETH1, PODS_BY_IB0),
        ("eth0",),
        (),
        left=frozenset({SERVICES, PODS}),
    ),
    "no default at all": Case(
        "route add 10.96.0.0/16 via 10.1.0.1",
        ("eth0",),
        (("NO-ROUTE", "", "10.97.0.0", ""), PODS_BY_IB0),
        ("eth0",),
        (),
        left=frozenset({"10.97.0.0/16", "10.98.0.0/15", "10.100.0.0/14", "10.104.0.0/13", PODS}),
    ),
    "a bond that comes late": Case(BY_ETH0, ("bond*", "team0"), (), (), (), unknown="no-uplink"),
    "the uplink is down": Case(
        f"{NODE_WINS}\nlink set eth0 down",
        ("eth0",),
        (("OVERLAP", "eth1", "10.1.0.0", ""), SERVICES_BY_ETH1, PODS_BY_IB0),
        ("eth0",),
        (),
        left=frozenset({NODES, SERVICES, PODS}),
    ),
}


def config_of(case: Case, **more: Any) -> Config:
    named = {} if case.uplinks is None else {"uplinks": list(case.uplinks)}
    overlap = {"expectedCidrs": [NODES, SERVICES, PODS], "mode": "STRICT"}
    return Config.from_mapping({"hostRouting": {"routeOverlap": overlap, "waitSeconds": 0, **named, **more}})


def run_ip(commands: str) -> None:
    lines = "\n".join(filter(None, map(str.strip, commands.splitlines())))
    subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True)


def told(report: OverlapReport) -> tuple[tuple[str, str, str, str], ...]:
    return tuple((str(f.kind), ",".join(f.devs), str(f.probe), str(f.source or "")) for f in report.findings)


@pytest.fixture(params=list(CASES.values()), ids=list(CASES))
def case(request: pytest.FixtureRequest, kernel: NamespaceKernel) -> Case:
    found: Case = request.param
    run_ip(NODE + found.does)
    return found


def test_the_library_says_it_live_and_recorded(case: Case) -> None:
    live, config = NetlinkBackend(), config_of(case)
    for backend in (live, SnapshotBackend(recorded(live)), SnapshotBackend(recorded_by(BY_HAND))):
        report = check_overlap(config, backend, phases.CancelScope())
        if case.unknown:
            assert (report.verdict, report.reason_kind) == ("unknown", case.unknown)
            continue
        assert (report.verdict, report.default_devs) == ("overlap", case.by), report.reason
        assert told(report) == case.told
        assert case.is_contested == any(note.kind == "CONTESTED" for note in report.notes)
        assert {(str(entry.destination), entry.dev) for entry in report.remedy.routes} == case.fixed
        assert {part for each in report.remedy.unmendable for part in each.parts} == case.left


def test_the_boot_check_says_it_too(case: Case, tmp_path: Path) -> None:
    report = check_overlap(config_of(case), NetlinkBackend(), phases.CancelScope())
    for name in AWKS:
        root = tmp_path / name
        root.mkdir()
        sandbox = Sandbox(root, awk_or_skip(name))
        assert sandbox.run(render_check(config_of(case))).returncode == 1
        marker = (sandbox.root / "run/aks-flex-node/route-overlap.detected").read_text()
        if case.unknown:
            assert marker.startswith(f"{case.unknown}: ")
        else:
            assert told_by(marker.splitlines()) == told(report)
            assert all(f" {','.join(case.by)}" in line.partition("; by ")[0] for line in marker.splitlines())


def test_an_explanation_expects_the_uplinks(case: Case) -> None:
    if case.unknown == "contested-default":
        with pytest.raises(RouteError, match="several interfaces"):
            explain(IPv4Address("10.96.0.9"), config_of(case), NetlinkBackend(), phases.CancelScope())
        return
    found = explain(IPv4Address("10.97.0.9"), config_of(case), NetlinkBackend(), phases.CancelScope())
    assert found.default_devs == case.by
    failing = {probe for _, _, probe, _ in case.told}
    is_fine = failing.isdisjoint({"10.96.0.0", "10.97.0.0"})
    assert found.is_as_expected == (None if case.unknown else is_fine)


def test_an_explanation_shows_each_default_that_is_taken_by_turns(kernel: NamespaceKernel) -> None:
    case = CASES["equal metrics, and the uplink is named"]
    run_ip(NODE + case.does)
    found = explain(IPv4Address("10.97.0.9"), config_of(case), kernel, phases.CancelScope())
    ends = {str(way.steps[-1].route): way.outcome.is_failure for way in found.lookups}
    assert ends == {
        "default via 10.1.0.1 dev eth0 proto dhcp metric 100": False,
        "default via 10.9.0.1 dev eth1 proto dhcp metric 100": True,
    }


def inherited(backend: NetlinkBackend) -> tuple[str, ...]:
    """Return the interfaces of the hops of a route that names nothing, and take it back."""
    (route,) = (route for route in backend.routes(Table.MAIN) if route.is_ours)
    assert backend.delete([route]) == ()
    return tuple(str(hop.dev) for hop in route.hops)


def test_a_route_that_names_nothing_inherits_from_an_uplink(case: Case, tmp_path: Path) -> None:
    backend = NetlinkBackend()
    config = config_of(case, staticRoutes={"enabled": True, "routes": [{"destination": "192.168.77.0/24"}]})
    plan, missing = plan_now(config, backend)
    assert bool(missing) != bool(case.inherits)
    assert backend.add(plan.add) == ()
    if case.inherits:
        assert inherited(backend) == case.inherits
    for name in AWKS:
        root = tmp_path / name
        root.mkdir()
        done = Sandbox(root, awk_or_skip(name)).run(render_static_routes(config))
        assert done.returncode == (not case.inherits), done.stderr
        if case.inherits:
            assert inherited(backend) == case.inherits


def test_what_the_fix_says_is_what_sockets_do(case: Case, kernel: NamespaceKernel) -> None:
    def leaves(address: str) -> set[str | None]:
        with Leaving() as leaving:
            ways = (leaving.by_tcp, leaving.by_connected_datagram, leaving.by_datagram)
            return {way(IPv4Address(address), 9) for way in ways}

    before = leaves("10.1.0.9"), leaves("10.9.0.9")
    config = config_of(case)
    report = check_overlap(config, kernel, phases.CancelScope())
    entries = [entry.to_mapping() for entry in report.remedy.routes]
    plan, missing = plan_now(config_of(case, staticRoutes={"enabled": True, "routes": entries}), kernel)
    assert missing is None
    assert kernel.add(plan.add) == ()
    assert (leaves("10.1.0.9"), leaves("10.9.0.9")) == before
    after = check_overlap(config, kernel, phases.CancelScope())
    if not case.unknown:
        assert (after.verdict == "ok") == (not case.left)
        assert after.remedy.routes == ()
    for network, _ in case.fixed:
        assert leaves(str(IPv4Network(network)[9])) <= {*case.by}


def test_a_config_without_the_key_renders_no_new_row() -> None:
    config = config_of(Case("", None, (), (), ()))
    assert "uplinks" not in render_check(config).partition("==config")[2]
    assert config.to_mapping()["hostRouting"].get("uplinks") is None


def test_an_uplink_that_comes_late_is_waited_for(kernel: NamespaceKernel, tmp_path: Path) -> None:
    run_ip(NODE + BY_ETH1)
    config = Config.from_mapping(
        {
            "hostRouting": {
                "uplinks": ["bond0"],
                "waitSeconds": 60,
                "routeOverlap": {"expectedCidrs": [SERVICES], "mode": "STRICT"},
                "staticRoutes": {"enabled": True, "routes": [{"destination": SERVICES}]},
            }
        }
    )
    for name in ("check", "routes"):
        (tmp_path / name).mkdir()
    check = Sandbox(tmp_path / "check").start(render_check(config))
    routes = Sandbox(tmp_path / "routes").start(render_static_routes(config))
    for script in (check, routes):
        assert script.stdout is not None
        assert "waiting up to 60 s for the default route on " in script.stdout.readline()
    run_ip("link set eth0 down\nlink set eth0 name bond0\nlink set bond0 up")
    run_ip(f"{BY_ETH0.replace('eth0', 'bond0')} metric 300")
    assert routes.wait(timeout=60) == 0
    assert check.wait(timeout=60) == 0
    report = check_overlap(config, kernel, phases.CancelScope())
    assert (report.verdict, report.default_devs) == ("ok", ("bond0",))


def test_recorded_hosts_are_judged_by_their_uplinks(case: Case, kernel: NamespaceKernel) -> None:
    report = check_overlap(config_of(case), kernel, phases.CancelScope())
    (group,) = judge([take_snapshot(kernel)], config_of(case)).groups
    assert (group.report.verdict, group.report.findings) == (report.verdict, report.findings)


# Two uplinks in one subnet, the second without a carrier.
SHARED = f"{BY_ETH0} metric 100\naddr add 10.1.0.6/16 dev eth1\nlink set p1 down\naddr add 10.1.2.4/24 dev ib0"
# The subnet of an uplink that is down is taken by ib0.
DOWN = f"{BY_ETH0}\nlink set eth1 down\naddr add 10.9.0.9/16 dev ib0"


@pytest.mark.parametrize(
    ("does", "cidr", "fixed", "is_left"),
    [
        (SHARED, NODES, mended("eth0", "10.1.2.0/25", "10.1.2.128/25"), False),
        (DOWN, "10.9.0.0/16", mended("eth0", "10.9.0.0/17", "10.9.128.0/17"), False),
        (BY_ETH0, {"cidr": "10.9.0.0/24", "devs": ["eth0"]}, frozenset(), True),
    ],
)
def test_a_fix_goes_by_an_uplink_that_works_and_is_meant(
    does: str, cidr: Any, fixed: frozenset[tuple[str, str | None]], is_left: bool, kernel: NamespaceKernel
) -> None:
    run_ip(NODE + does)
    section = {"uplinks": ["eth*"], "waitSeconds": 0, "routeOverlap": {"expectedCidrs": [cidr]}}
    config = Config.from_mapping({"hostRouting": section})
    remedy = check_overlap(config, kernel, phases.CancelScope()).remedy
    assert {(str(entry.destination), entry.dev) for entry in remedy.routes} == fixed
    assert bool(remedy.unmendable) == is_left
    entries = [entry.to_mapping() for entry in remedy.routes]
    wanted = Config.from_mapping({"hostRouting": section | {"staticRoutes": {"enabled": True, "routes": entries}}})
    assert kernel.add(plan_now(wanted, kernel)[0].add) == ()
    assert check_overlap(config, kernel, phases.CancelScope()).verdict == ("overlap" if is_left else "ok")


@pytest.mark.parametrize(
    ("does", "uplinks", "verdict"),
    [
        (f"{BY_ETH0}\nlink set eth0 alias 'the inet uplink'", ["eth0"], "ok"),
        (f"{BY_ETH0}\nroute add local {SERVICES} dev lo table main", ["*"], "overlap"),
        (f"{BY_ETH0}\nroute add local {SERVICES} dev lo table main", ["lo"], "unknown"),
    ],
)
@pytest.mark.parametrize("awk", AWKS)
def test_the_loopback_and_an_alias_lead_nobody_astray(
    does: str, uplinks: list[str], verdict: str, awk: str, kernel: NamespaceKernel, tmp_path: Path
) -> None:
    run_ip(NODE + does)
    overlap = {"expectedCidrs": [SERVICES], "mode": "STRICT"}
    config = Config.from_mapping({"hostRouting": {"uplinks": uplinks, "waitSeconds": 0, "routeOverlap": overlap}})
    assert check_overlap(config, kernel, phases.CancelScope()).verdict == verdict
    sandbox = Sandbox(tmp_path, awk_or_skip(awk))
    assert sandbox.run(render_check(config)).returncode == (verdict != "ok")
