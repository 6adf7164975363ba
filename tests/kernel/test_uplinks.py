"""Test hosts on which several interfaces may lead to the cluster, with sockets, library and boot scripts."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from asking import Case, all_say, leaving, run_ip, veths
from scripts import Sandbox, awk_or_skip, awks_for

import phases
from hostrouting import Config, judge
from hostrouting.boot.render import render_check, render_static_routes
from hostrouting.kernel.snapshot_backend import take_snapshot
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import Table
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.explanation import explain
from hostrouting.routes.plan import plan_now

if TYPE_CHECKING:
    from pathlib import Path

    from hostrouting.kernel.namespace import NamespaceKernel

pytestmark = pytest.mark.kernel

# eth0 is the node's NIC in 10.1.0.0/16, eth1 leads to a storage network, and ib0 has the range of the pods.
NODE = f"""{veths("eth0", "eth1", "ib0")}
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
class UplinkCase(Case):
    """A host with default routes through several interfaces, and its expected report.

    Args:
        uplinks: the uplinks in the config, or None to omit them.
        by: the expected interfaces, if there is a verdict.
        inherits: the interface of each hop of a route without a device, or an empty tuple if such a route has to wait.
        is_contested: whether a note names several default routes.
        fixed: the destinations of the fix, each with its device.
        left: the failures that no route fixes.
    """

    uplinks: tuple[str, ...] | None = None
    by: tuple[str, ...] = ()
    inherits: tuple[str, ...] = ()
    is_contested: bool = False
    fixed: frozenset[tuple[str, str | None]] = frozenset()
    left: frozenset[str] = frozenset()
    notes: str | None = None
    node: str = NODE
    default: str = ""

    @property
    def config(self) -> Config:
        return self.config_with()

    def config_with(self, *routes: dict[str, Any]) -> Config:
        named = {} if self.uplinks is None else {"uplinks": list(self.uplinks)}
        overlap = {"expectedCidrs": [NODES, SERVICES, PODS], "mode": "STRICT"}
        static = {"enabled": bool(routes), "routes": list(routes)}
        section = {"routeOverlap": overlap, "waitSeconds": 0, "staticRoutes": static, **named}
        return Config.from_mapping({"hostRouting": section})


def entries_by(dev: str | None, *networks: str) -> frozenset[tuple[str, str | None]]:
    return frozenset((network, dev) for network in networks)


CASES = {
    "the storage's default wins": UplinkCase(
        STORAGE_WINS,
        (NODES_BY_ETH0, PODS_BY_IB0),
        by=("eth1",),
        inherits=("eth1",),
        is_contested=True,
        fixed=entries_by(None, *PODS_FIXED),
        left=frozenset({NODES}),
    ),
    "the storage's default wins, and the uplink is named": UplinkCase(
        STORAGE_WINS,
        (SERVICES_BY_ETH1, PODS_BY_IB0),
        uplinks=("eth0",),
        by=("eth0",),
        inherits=("eth0",),
        fixed=entries_by("eth0", SERVICES, *PODS_FIXED),
    ),
    "the node's default wins": UplinkCase(
        NODE_WINS,
        (PODS_BY_IB0,),
        by=("eth0",),
        inherits=("eth0",),
        is_contested=True,
        fixed=entries_by(None, *PODS_FIXED),
    ),
    "the node's default wins, and the uplink is named": UplinkCase(
        NODE_WINS,
        (PODS_BY_IB0,),
        uplinks=("eth0",),
        by=("eth0",),
        inherits=("eth0",),
        fixed=entries_by("eth0", *PODS_FIXED),
    ),
    "equal metrics": UplinkCase(TIED, inherits=("eth0",), unknown="contested-default"),
    "equal metrics, and the uplink is named": UplinkCase(
        TIED,
        (SERVICES_BY_ETH1, PODS_BY_IB0),
        uplinks=("eth0",),
        by=("eth0",),
        inherits=("eth0",),
        fixed=entries_by("eth0", SERVICES, *PODS_FIXED),
    ),
    "multipath": UplinkCase(
        MULTIPATH, (PODS_BY_IB0,), by=("eth0", "eth1"), inherits=("eth0", "eth1"), fixed=entries_by(None, *PODS_FIXED)
    ),
    "multipath, and one is the uplink": UplinkCase(
        MULTIPATH,
        (("OVERLAP", "eth0,eth1", "10.96.0.0", ""), PODS_BY_IB0),
        uplinks=("eth0",),
        by=("eth0",),
        inherits=("eth0",),
        fixed=entries_by("eth0", SERVICES, *PODS_FIXED),
    ),
    "several uplinks": UplinkCase(
        STORAGE_WINS,
        (PODS_BY_IB0,),
        uplinks=("eth*",),
        by=("eth0", "eth1"),
        inherits=("eth1",),
        is_contested=True,
        fixed=entries_by("eth1", *PODS_FIXED),
    ),
    "only the storage network has a default": UplinkCase(
        BY_ETH1,
        (SERVICES_BY_ETH1, PODS_BY_IB0),
        uplinks=("eth0",),
        by=("eth0",),
        left=frozenset({SERVICES, PODS}),
    ),
    "no default at all": UplinkCase(
        "route add 10.96.0.0/16 via 10.1.0.1",
        (("NO-ROUTE", "", "10.97.0.0", ""), PODS_BY_IB0),
        uplinks=("eth0",),
        by=("eth0",),
        left=frozenset({"10.97.0.0/16", "10.98.0.0/15", "10.100.0.0/14", "10.104.0.0/13", PODS}),
    ),
    "a late bond": UplinkCase(BY_ETH0, uplinks=("bond*", "team0"), unknown="no-uplink"),
    "the uplink is down": UplinkCase(
        f"{NODE_WINS}\nlink set eth0 down",
        (("OVERLAP", "eth1", "10.1.0.0", ""), SERVICES_BY_ETH1, PODS_BY_IB0),
        uplinks=("eth0",),
        by=("eth0",),
        left=frozenset({NODES, SERVICES, PODS}),
    ),
}


@pytest.fixture(params=list(CASES.values()), ids=list(CASES))
def case(request: pytest.FixtureRequest, kernel: NamespaceKernel) -> UplinkCase:
    found: UplinkCase = request.param
    found.build()
    return found


def test_the_uplinks_are_expected_everywhere(case: UplinkCase, kernel: NamespaceKernel, tmp_path: Path) -> None:
    reports = all_say(case, tmp_path)
    assert len(reports) == (0 if case.unknown else 3)
    for report in reports:
        assert report.default_devs == case.by
        assert case.is_contested == any(note.kind == "CONTESTED" for note in report.notes)
        assert {(str(entry.destination), entry.dev) for entry in report.fix.routes} == case.fixed
        assert {part for each in report.fix.unfixable for part in each.parts} == case.left
        (group,) = judge([take_snapshot(kernel)], case.config).groups
        assert (group.report.verdict, group.report.findings) == (report.verdict, report.findings)


def test_an_explanation_expects_the_uplinks(case: UplinkCase, kernel: NamespaceKernel) -> None:
    if case.unknown == "contested-default":
        with pytest.raises(RouteError, match="several interfaces"):
            explain(IPv4Address("10.96.0.9"), case.config, kernel, phases.CancelScope())
        return
    found = explain(IPv4Address("10.97.0.9"), case.config, kernel, phases.CancelScope())
    assert found.default_devs == case.by
    failing = {probe for _, _, probe, _ in case.told}
    is_fine = failing.isdisjoint({"10.96.0.0", "10.97.0.0"})
    assert found.is_as_expected == (None if case.unknown else is_fine)


def test_an_explanation_shows_each_alternating_default(kernel: NamespaceKernel) -> None:
    case = CASES["equal metrics, and the uplink is named"]
    case.build()
    found = explain(IPv4Address("10.97.0.9"), case.config, kernel, phases.CancelScope())
    ends = {str(way.steps[-1].route): way.classification.is_failure for way in found.lookups}
    assert ends == {
        "default via 10.1.0.1 dev eth0 proto dhcp metric 100": False,
        "default via 10.9.0.1 dev eth1 proto dhcp metric 100": True,
    }


def inherited(kernel: NamespaceKernel) -> tuple[str, ...]:
    """Remove our only route, which names no device, and return the interfaces of its hops."""
    (route,) = (route for route in kernel.routes(Table.MAIN) if route.is_ours)
    assert kernel.delete([route]) == ()
    return tuple(str(hop.dev) for hop in route.hops)


def test_a_route_without_a_device_inherits_from_an_uplink(
    case: UplinkCase, kernel: NamespaceKernel, tmp_path: Path
) -> None:
    config = case.config_with({"destination": "192.168.77.0/24"})
    plan, missing = plan_now(config, kernel)
    assert bool(missing) != bool(case.inherits)
    assert kernel.add(plan.add) == ()
    if case.inherits:
        assert inherited(kernel) == case.inherits
    for name in awks_for(repr(case)):
        root = tmp_path / name
        root.mkdir()
        done = Sandbox(root, awk_or_skip(name)).run(render_static_routes(config))
        assert done.returncode == (not case.inherits), done.stderr
        if case.inherits:
            assert inherited(kernel) == case.inherits


def test_the_fix_agrees_with_what_sockets_do(case: UplinkCase, kernel: NamespaceKernel) -> None:
    before = leaving("10.1.0.9"), leaving("10.9.0.9")
    report = check_overlap(case.config, kernel, phases.CancelScope())
    plan, missing = plan_now(case.config_with(*(entry.to_mapping() for entry in report.fix.routes)), kernel)
    assert missing is None
    assert kernel.add(plan.add) == ()
    assert (leaving("10.1.0.9"), leaving("10.9.0.9")) == before
    after = check_overlap(case.config, kernel, phases.CancelScope())
    if not case.unknown:
        assert (after.verdict == "ok") == (not case.left)
        assert after.fix.routes == ()
    for network, _ in case.fixed:
        assert leaving(str(IPv4Network(network)[9])) <= {*case.by}


def test_a_config_without_the_key_renders_no_new_row() -> None:
    config = UplinkCase("").config
    assert "uplinks" not in render_check(config).partition("==config")[2]
    assert config.to_mapping()["hostRouting"].get("uplinks") is None


def test_it_waits_for_a_late_uplink(kernel: NamespaceKernel, tmp_path: Path) -> None:
    run_ip(f"{NODE}\n{BY_ETH1}")
    overlap = {"expectedCidrs": [SERVICES], "mode": "STRICT"}
    static = {"enabled": True, "routes": [{"destination": SERVICES}]}
    section = {"uplinks": ["bond0"], "waitSeconds": 60, "routeOverlap": overlap, "staticRoutes": static}
    config = Config.from_mapping({"hostRouting": section})
    scripts = []
    for name, text in (("routes", render_static_routes(config)), ("check", render_check(config))):
        (tmp_path / name).mkdir()
        script = Sandbox(tmp_path / name).start(text)
        assert script.stdout is not None
        assert "waiting up to 60 s for the default route on " in script.stdout.readline()
        scripts.append(script)
    run_ip("link set eth0 down\nlink set eth0 name bond0\nlink set bond0 up")
    run_ip(f"{BY_ETH0.replace('eth0', 'bond0')} metric 300")
    assert [script.wait(timeout=60) for script in scripts] == [0, 0]
    report = check_overlap(config, kernel, phases.CancelScope())
    assert (report.verdict, report.default_devs) == ("ok", ("bond0",))


# Two uplinks are in one subnet, and the second has no carrier.
SHARED = f"{BY_ETH0} metric 100\naddr add 10.1.0.6/16 dev eth1\nlink set p1 down\naddr add 10.1.2.4/24 dev ib0"
# ib0 has an address in the subnet of an uplink that is down.
DOWN = f"{BY_ETH0}\nlink set eth1 down\naddr add 10.9.0.9/16 dev ib0"


@pytest.mark.parametrize(
    ("does", "cidr", "fixed", "is_left"),
    [
        (SHARED, NODES, entries_by("eth0", "10.1.2.0/25", "10.1.2.128/25"), False),
        (DOWN, "10.9.0.0/16", entries_by("eth0", "10.9.0.0/17", "10.9.128.0/17"), False),
        (BY_ETH0, {"cidr": "10.9.0.0/24", "devs": ["eth0"]}, frozenset(), True),
    ],
)
def test_a_fix_uses_an_expected_uplink_that_works(
    does: str, cidr: Any, fixed: frozenset[tuple[str, str | None]], is_left: bool, kernel: NamespaceKernel
) -> None:
    run_ip(f"{NODE}\n{does}")
    section = {"uplinks": ["eth*"], "waitSeconds": 0, "routeOverlap": {"expectedCidrs": [cidr]}}
    config = Config.from_mapping({"hostRouting": section})
    fix = check_overlap(config, kernel, phases.CancelScope()).fix
    assert {(str(entry.destination), entry.dev) for entry in fix.routes} == fixed
    assert bool(fix.unfixable) == is_left
    entries = [entry.to_mapping() for entry in fix.routes]
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
def test_the_loopback_and_an_alias_do_not_confuse_the_check(
    does: str, uplinks: list[str], verdict: str, kernel: NamespaceKernel, sandbox: Sandbox
) -> None:
    run_ip(f"{NODE}\n{does}")
    overlap = {"expectedCidrs": [SERVICES], "mode": "STRICT"}
    config = Config.from_mapping({"hostRouting": {"uplinks": uplinks, "waitSeconds": 0, "routeOverlap": overlap}})
    assert check_overlap(config, kernel, phases.CancelScope()).verdict == verdict
    assert sandbox.run(render_check(config)).returncode == (verdict != "ok")
