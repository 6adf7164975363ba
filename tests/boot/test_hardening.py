"""Test that the confined units still do their work, and have no privilege that they don't need."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from boot.payloads import add_nested_machine
from boot.test_gate import FIXED, MARKERS, boot_held, installed, marker
from boot.test_load_balancer_probe import PINNED, UNIT, change, listing
from boot.test_watch import OURS, routes

if TYPE_CHECKING:
    from boot.rig import Machine

ONESHOTS = ("static-routes.service", "check-route-overlap.service")
WATCHER = "hostrouting-watch.service"
LACKS_CARRIER = "from hostrouting.kernel.rtnetlink.messages import lacks_carrier; print(lacks_carrier('eth0'))"


def exposure(node: Machine, unit: str) -> float:
    """Return the exposure level that systemd-analyze computes for a unit, from 0 to 10."""
    said = node.run("systemd-analyze", "security", "--no-pager", unit).stdout
    return float(re.findall(r"Overall exposure level for \S+: ([0-9.]+)", said)[0])


@pytest.mark.each_release
def test_confined_units_install_and_judge(node: Machine) -> None:
    payload = installed(node, FIXED, watch={"enabled": True})
    node.boot()
    payload.wait_until_it_ran()
    assert [node.state(unit) for unit in ONESHOTS] == ["active/exited"] * 2
    assert OURS in routes(node)
    assert marker(node) == {"ok": ""}
    node.wait_for(WATCHER, "active/running")
    assert [unit for unit in ONESHOTS if exposure(node, unit) > 4] == []
    assert exposure(node, WATCHER) <= 2
    said = node.journal("init.scope") + "".join(map(node.journal, (*ONESHOTS, WATCHER)))
    assert "Unknown key" not in said
    families = node.show(WATCHER, "RestrictAddressFamilies")["RestrictAddressFamilies"]
    confined = ("systemd-run", "--quiet", "--pipe", "--wait", f"--property=RestrictAddressFamilies={families}")
    assert node.run(*confined, "python3", "-I", "-c", LACKS_CARRIER).stdout == "False\n"


def test_a_confined_check_lets_python_explain_its_findings(node: Machine) -> None:
    """The gate isn't confined, so its report is removed first."""
    payload = installed(node)
    boot_held(node, payload)
    assert node.python("apply", check=False).returncode == 1
    node.remove(f"{MARKERS}/route-overlap.json")
    node.remove(f"{MARKERS}/route-overlap.detected")
    node.systemctl("restart", ONESHOTS[1], check=False)
    assert node.state(ONESHOTS[1]) == "failed/failed"
    assert list(marker(node)) == ["detected"]
    assert json.loads(node.read(f"{MARKERS}/route-overlap.json"))["verdict"] == "overlap"


def test_the_confined_probe_is_answered(node: Machine) -> None:
    payload = add_nested_machine(node)
    change(node, "eth0")
    node.boot()
    payload.wait_until_it_ran()
    assert 'iifname "eth0"' in listing(node)
    assert "dev eth0" in node.run(*PINNED).stdout
    assert node.show(UNIT, "Result", "NRestarts") == {"Result": "success", "NRestarts": "0"}
    assert exposure(node, UNIT) <= 4
