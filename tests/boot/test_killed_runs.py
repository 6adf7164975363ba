"""Test what completes an ``apply`` killed between two of its routes, on a booted systemd."""

from __future__ import annotations

import re

import pytest

from boot.payloads import Payload
from boot.rig import Machine
from boot.test_gate import FIXED, installed, start, write_config
from boot.test_watch import UNIT

MANY = [{"destination": f"10.{200 + number // 256}.{number % 256}.0/24"} for number in range(5000)]
# The monitor prints each route as soon as the kernel has it. The priorities let the kill precede
# the last route even on a busy machine.
KILLED = """
mkfifo /run/monitored
renice -n -20 $$ >/dev/null
ip monitor route >/run/monitored & monitor=$!
nice -n 39 python3 -m hostrouting apply & apply=$!
head -n 20 </run/monitored >/dev/null
kill -s KILL "$apply"
kill "$monitor"
wait
"""


def count(node: Machine) -> int:
    lines = node.ip("-N", "route", "show", "proto", "217").splitlines()
    return sum(bool(re.match(r"10\.2\d\d\.", line)) for line in lines)


@pytest.mark.parametrize("by", ["the next run", "the next start", "the watcher"])
def test_a_killed_run_is_completed(node: Machine, by: str) -> None:
    payload: Payload = installed(node, FIXED, watch={"enabled": by == "the watcher"})
    payload.boot()
    if by == "the watcher":
        node.wait_for(UNIT, "active/running")
    write_config(node, FIXED, *MANY, watch={"enabled": by == "the watcher"})
    node.run("bash", "-c", KILLED)
    if by == "the watcher":
        node.wait_until(lambda: count(node) == len(MANY), "all routes")
        node.wait_until(
            lambda: "restored, because it was missing" in node.journal(UNIT), "the journal"
        )
        return
    assert 0 < count(node) < len(MANY)
    if by == "the next run":
        node.python("apply")
    else:
        node.systemctl("stop", payload.unit)
        assert start(node, payload)
    assert count(node) == len(MANY)


def test_a_watcher_that_keeps_failing_waits(node: Machine) -> None:
    installed(node, FIXED, watch={"enabled": True}).boot()
    node.wait_for(UNIT, "active/running")
    for _ in range(5):
        pid = node.main_pid(UNIT)
        node.run("kill", "-s", "KILL", str(pid))
        node.wait_until(lambda last=pid: node.main_pid(UNIT) not in (0, last), "it is back")  # type: ignore[misc]
        assert node.show(UNIT, "RestartUSec")["RestartUSec"] == "2s"
    node.wait_for(UNIT, "active/running")
    node.run("kill", "-s", "KILL", str(node.main_pid(UNIT)))
    node.wait_for(UNIT, "activating/start-pre")
    assert node.main_pid(UNIT) == 0
    node.systemctl("restart", UNIT)
    assert node.state(UNIT) == "active/running"
    assert not node.exists("/run/aks-flex-node/watch-failures")
