"""Test that the sandboxed units still work and have no privileges that they don't need."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from boot.test_gate import FIXED, MARKERS, boot_held, installed, marker
from boot.test_watch import OURS, routes

if TYPE_CHECKING:
    from boot.rig import Machine

ONESHOTS = ("static-routes.service", "check-route-overlap.service")
WATCHER = "hostrouting-watch.service"


def exposure(node: Machine, unit: str) -> float:
    """Return systemd-analyze's exposure level for a unit, from 0 to 10."""
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


def test_a_confined_check_lets_python_explain_its_findings(node: Machine) -> None:
    """The gate isn't sandboxed, so its report is removed first."""
    payload = installed(node)
    boot_held(node, payload)
    assert node.python("apply", check=False).returncode == 1
    node.remove(f"{MARKERS}/route-overlap.json")
    node.remove(f"{MARKERS}/route-overlap.detected")
    node.systemctl("restart", ONESHOTS[1], check=False)
    assert node.state(ONESHOTS[1]) == "failed/failed"
    assert list(marker(node)) == ["detected"]
    assert json.loads(node.read(f"{MARKERS}/route-overlap.json"))["verdict"] == "overlap"
