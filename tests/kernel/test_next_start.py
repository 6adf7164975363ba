"""Tests that everything that predicts the next start says what the gate then does.

Each case changes an installed node. The real gate, with the installed scripts, then holds the start
or lets it through.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from nightly import IS_NIGHTLY
from node import DEFAULT, NICS, run_ip
from scripts import run_gate
from wanted import MACHINE, config

import phases
from hostrouting import Host, Layout, cli, plan
from hostrouting.doctor.examine import examine
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.tasks.configure import Configure
from hostrouting.testing import FakeSystemd

pytestmark = pytest.mark.kernel

HALVES = ("172.16.0.0/17", "172.16.128.0/17")
EXPECTED = "172.16.0.0/16"
OTHER_GATEWAY = f"route replace {HALVES[0]} via 10.1.0.9 dev eth0 proto static"
FLUSH = "route flush proto 217"
FLUSH6 = "route del fd00:77::/64 proto 217"
SIDE = "table 2170000 proto static"
WG_QUICK = (
    "route add default dev ib0 table 51820",
    "rule add not fwmark 51820 table 51820",
    "rule add table main suppress_prefixlength 0",
)
IPV6 = {"destination": "fd00:77::/64", "gateway": "fe80::1", "dev": "eth0"}
ON_ETH1 = {"destination": "10.60.0.0/16", "gateway": "10.2.0.1", "dev": "eth1"}


class Case(NamedTuple):
    """A change of a node.

    Args:
        commands: the commands of ip that change the node.
        is_held: whether the gate then holds the start, in STRICT and in WARN mode.
        files: files that the change creates.
        routes: more static routes of the config.
    """

    commands: tuple[str, ...]
    is_held: tuple[bool, bool]
    files: tuple[str, ...] = ()
    routes: tuple[dict[str, Any], ...] = ()


HELD, THROUGH = (True, True), (False, False)
CASES = {
    "nothing": Case((), THROUGH),
    "another gateway": Case((OTHER_GATEWAY,), HELD),
    "another gateway behind flushed routes": Case((FLUSH, OTHER_GATEWAY), HELD),
    "the same route": Case(
        (f"route replace {HALVES[0]} via 10.1.0.1 dev eth0 proto static",), THROUGH
    ),
    "a side table": Case((f"route replace 172.16.0.0/16 dev eth1 {SIDE}",), HELD),
    "one more route in a side table": Case((f"route add 10.9.0.0/16 dev ib0 {SIDE}",), HELD),
    "a side table of no rule of ours": Case(
        (FLUSH, "rule del preference 2170", f"route replace 172.16.0.0/16 dev eth1 {SIDE}"), THROUGH
    ),
    "another IPv6 gateway": Case(
        (FLUSH6, "route add fd00:77::/64 via fe80::9 dev eth0 metric 100"),
        HELD,
        routes=(IPV6 | {"metric": 100},),
    ),
    "a rule discards": Case(("rule add preference 7 to 172.16.0.0/17 prohibit",), HELD),
    "rules before ours": Case(WG_QUICK, HELD),
    "no default route": Case(("route del default",), HELD),
    "no gateway": Case(("address del 10.2.0.4/24 dev eth1",), HELD, routes=(ON_ETH1,)),
    "no interface": Case(("link del eth1",), HELD, routes=(ON_ETH1,)),
    "an interface is down": Case(("link set eth1 down",), HELD, routes=(ON_ETH1,)),
    "flushed routes": Case((FLUSH,), THROUGH),
    "flushed rules": Case(("rule del preference 2170",), THROUGH),
    "a moved gateway": Case(("route replace default via 10.1.0.254 dev eth0 proto dhcp",), THROUGH),
    "a lower metric": Case(
        ("route add 10.60.0.0/16 via 10.2.0.9 dev eth1",), HELD, routes=(ON_ETH1 | {"metric": 9},)
    ),
    "longer routes cover ours": Case(
        ("route add 10.60.0.0/17 dev eth1", "route add 10.60.128.0/17 dev eth1"),
        HELD,
        routes=(ON_ETH1,),
    ),
    "a shadow": Case(("route add 172.16.9.0/24 dev ib0",), (True, False)),
    "a shadow and flushed routes": Case((FLUSH, "route add 172.16.9.0/24 dev ib0"), (True, False)),
    "a shadow and another gateway": Case((OTHER_GATEWAY, "route add 172.16.9.0/24 dev ib0"), HELD),
    "gate.off": Case((OTHER_GATEWAY,), THROUGH, files=("etc/hostrouting/gate.off",)),
}


@pytest.fixture
def host(kernel: NamespaceKernel, tmp_path: Path) -> Host:
    for dev, address in NICS.items():
        kernel.add_link(dev)
        kernel.add_address(dev, address)
    run_ip("link set lo up", DEFAULT)
    root = tmp_path / "node"
    root.mkdir()
    (root / "proc").symlink_to("/proc")
    layout = Layout(root)
    return Host(kernel, FakeSystemd(layout, running=[MACHINE]), layout, routes6=NetlinkBackend6())


def modes_for(number: int, case: Case) -> list[str]:
    """Return both modes by night and where they differ, otherwise one, by turns."""
    modes = ["STRICT", "WARN"]
    is_for_both = IS_NIGHTLY or len({*case.is_held}) > 1
    return modes if is_for_both else [modes[number % len(modes)]]


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        pytest.param(case, mode, id=f"{name}-{mode}")
        for number, (name, case) in enumerate(CASES.items())
        for mode in modes_for(number, case)
    ],
)
def test_all_predictions_are_what_the_gate_does(
    host: Host, tmp_path: Path, capsys: Any, case: Case, mode: str
) -> None:
    installed = config(*HALVES, *case.routes, cidrs=[EXPECTED], mode=mode, keep=["ib0"])
    phases.run(Configure(installed, host=host))
    run_ip(*case.commands)
    for name in case.files:
        Path(host.layout.root, name).touch()
    is_held = case.is_held[mode == "WARN"]

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = cli.main([*words], host=host)
        return code, capsys.readouterr().out

    planned = plan(installed, host=host)
    assert planned.next_start.is_admitted is not is_held, planned.next_start.reason
    _, report = run("check", "--output", "json")
    held = [each["message"] for each in json.loads(report)["notes"] if each["kind"] == "START"]
    held = [message for message in held if "held" in message]
    code, line = run("check", "--output", "nagios")
    is_open = bool(case.files)
    judged = json.loads(report)["verdict"]
    if judged == "ok" or (judged == "overlap" and mode == "WARN"):
        assert (held != []) is (is_held or is_open), held
        assert all(each[:60] in line for each in held), line
    assert code > 0 or not (is_held or is_open), line
    assert ("let through unchecked" in line) is is_open
    findings = [each.message for each in examine(host=host).findings]
    told = [each for each in findings if "is held back" in each or "gate holds each" in each]
    assert (told != []) is is_held, findings
    assert any("let through unchecked" in each for each in findings) is is_open, findings
    assert (run_gate(host, tmp_path / "gate").returncode == 255) is is_held
