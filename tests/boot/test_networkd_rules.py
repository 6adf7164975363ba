"""Test what systemd-networkd does to our policy rules and side tables, on a booted system."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from boot.payloads import Payload
from boot.rig import Machine
from boot.test_doctor import doctor
from boot.test_gate import FIXED, installed, write_config
from boot.test_networkd import (
    CIDR,
    NO_IPV6,
    SHADOW,
    UPLINK,
    await_configured,
    manage,
    reconfigure,
    reload_changed,
    restart_networkd,
    settle,
)
from boot.test_watch import TEXTFILE, UNIT, WATCH
from hostrouting.watch.loop import LOOK_SECONDS

KEEPING_RULES = "[Network]\nManageForeignRoutingPolicyRules=no\n"
NUMBERS = count(1)

POLICY = {
    "enabled": True,
    "routes": [FIXED],
    "rules": [{"to": CIDR, "priority": 5269}],
    "keep": ["ib*"],
}
RULES = [
    "2170: from 172.16.0.10 lookup 2170000 proto 217",
    f"5269: from all to {CIDR} lookup 255 proto 217",
    f"5269: from all to {CIDR} lookup 254 proto 217",
]
SIDE_TABLE = "172.16.0.0/16 dev ib0 scope 253 src 172.16.0.10"


def our_rules(node: Machine) -> list[str]:
    lines = (re.sub(r"\s+", " ", line).strip() for line in node.ip("-N", "rule").splitlines())
    return [line for line in lines if line.endswith(" proto 217")]


def side_table(node: Machine) -> str:
    shown = node.ip("-N", "route", "show", "table", "2170000", "proto", "217")
    return " ".join(shown.split())


def is_complete(node: Machine) -> bool:
    return our_rules(node) == RULES and side_table(node) == SIDE_TABLE


def hot_plug(node: Machine) -> None:
    """Add an interface that networkd manages."""
    dev = f"hot{next(NUMBERS)}"
    node.ip("link", "add", dev, "type", "veth", "peer", "name", f"far-{dev}")
    node.ip("link", "set", f"far-{dev}", "up")
    await_configured(node, dev)


# All of these remove all foreign rules. By day they take turns, so each list has its own order.
GONE: dict[int, list[Callable[[Machine], None]]] = {
    252: [reload_changed, reconfigure, hot_plug],
    257: [reload_changed, restart_networkd, hot_plug, reconfigure],
}


def managed(machine: Machine) -> Payload:
    """Return the payload of a machine whose networkd manages its interfaces, with our watcher."""
    manage(machine, eth0=UPLINK + NO_IPV6, ib0=SHADOW + NO_IPV6)
    machine.write(
        "/etc/systemd/network/10-hot.network", "[Match]\nName=hot*\n[Network]\n" + NO_IPV6
    )
    payload = installed(machine, waitSeconds=30, watch=WATCH, staticRoutes=POLICY)
    machine.write(TEXTFILE, "")
    return payload


@pytest.mark.each_release
def test_the_watcher_restores_the_rules_that_networkd_removes(
    machine: Machine, by_turns: Any
) -> None:
    payload = managed(machine).boot()
    pid = payload.main_pid()
    machine.wait_for(UNIT, "active/running")
    machine.wait_until(lambda: is_complete(machine), "the rules and the side table")
    for operation in by_turns(GONE[machine.systemd_version]):
        machine.systemctl("stop", UNIT)
        _, findings = doctor(machine)
        assert "networkd-drops-rules" in [each["kind"] for each in findings]
        operation(machine)
        settle(machine)
        assert our_rules(machine) == [], operation.__name__
        machine.systemctl("start", UNIT)
        machine.wait_until(lambda: is_complete(machine), "the watcher's first look")
        watcher = machine.main_pid(UNIT)
        began = time.monotonic()
        operation(machine)
        settle(machine)
        machine.wait_until(lambda: is_complete(machine), f"the rules after {operation.__name__}")
        assert time.monotonic() - began < LOOK_SECONDS / 2, "it has only looked by its timer"
        assert machine.main_pid(UNIT) == watcher
    write_config(machine, staticRoutes=POLICY)
    assert "systemd-networkd runs, and removes" in machine.python("apply").stderr
    assert is_complete(machine)
    machine.python("remove")
    assert (our_rules(machine), side_table(machine)) == ([], "")
    assert payload.main_pid() == pid
    assert len(payload.starts()) == 1


@pytest.mark.each_release
def test_networkd_keeps_rules_if_it_is_told_so(machine: Machine, by_turns: Any) -> None:
    machine.write("/etc/systemd/networkd.conf.d/10-rules.conf", KEEPING_RULES)
    managed(machine).boot()
    machine.wait_for(UNIT, "active/running")
    machine.wait_until(lambda: is_complete(machine), "the rules and the side table")
    machine.systemctl("stop", UNIT)
    for operation in by_turns(GONE[machine.systemd_version]):
        operation(machine)
        settle(machine)
        assert our_rules(machine) == RULES, operation.__name__
    _, findings = doctor(machine)
    assert "networkd-drops-rules" not in [each["kind"] for each in findings]
