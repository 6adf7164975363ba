"""Test that the sandboxed units still work and have no privileges that they don't need."""

from __future__ import annotations

import re

import pytest

from boot.rig import Machine
from boot.test_gate import FIXED, installed, marker

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
    assert "172.16.1.0/24 via 10.1.0.1 dev eth0 proto hostrouting" in node.run("ip", "route").stdout
    assert marker(node) == {"ok": ""}
    node.wait_for(WATCHER, "active/running")
    assert [unit for unit in ONESHOTS if exposure(node, unit) > 4] == []
    assert exposure(node, WATCHER) <= 2
    said = node.journal("init.scope") + "".join(map(node.journal, (*ONESHOTS, WATCHER)))
    assert "Unknown key" not in said
