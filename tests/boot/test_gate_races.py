"""Test the gate with updates and removals at random times, many of them by night."""

from __future__ import annotations

import random
from typing import Any

import pytest
from nightly import by_day

from boot.payloads import Payload
from boot.rig import Machine
from boot.test_gate import FIX, FIXED, TEMPLATE, UNITS, installed, write_config

OTHER = f"{UNITS}/{TEMPLATE}.d/50-other.conf"
HARMLESS = {"destination": "172.16.9.0/24"}


def other_lines(seconds: float) -> str:
    """Return another program's drop-in lines, which run before ours and delay them."""
    return f"[Service]\nExecCondition=/bin/sleep {seconds}\nExecStartPre=/bin/sleep {seconds}\n"


def update_ours(node: Machine, number: int) -> None:
    write_config(node, *([HARMLESS] if number % 2 else []))
    node.python("apply", check=False)


def update_theirs(node: Machine, number: int) -> None:
    node.write(OTHER, other_lines(0.2 + number % 2 / 100))
    node.systemctl("daemon-reload")


def start_with(node: Machine, payload: Payload, disturb: Any, seconds: float) -> bool:
    """Start the unit, disturb it after the given number of seconds, and return whether its payload ran."""
    node.systemctl("reset-failed", payload.unit, check=False)
    before = len(payload.starts())
    node.remove("/run/outcome")
    node.background(
        "sh", "-c", f"systemctl start {payload.unit}; echo $? >/run/outcome.new; mv /run/outcome.new /run/outcome"
    )
    node.run("sleep", f"{seconds:.3f}")
    disturb()
    node.wait_until(lambda: node.exists("/run/outcome") or payload.is_held(), "the start has been judged")
    if node.exists("/run/outcome") and node.read("/run/outcome") == "0\n":
        node.wait_until(lambda: len(payload.starts()) > before, "the payload ran")
    return len(payload.starts()) > before


@pytest.mark.parametrize("update", [update_ours, update_theirs])
def test_an_update_never_opens_or_closes_the_gate(node: Machine, update: Any) -> None:
    """G1: a shadowed machine never starts, and a healthy one always does."""
    chance = random.Random(1)
    payload = installed(node)
    node.write(OTHER, other_lines(0.2))
    node.systemctl("disable", payload.unit)
    node.boot()
    node.python("apply", check=False)
    for number in range(by_day(3, by_night=40)):
        is_fixed = number % 3 == 0
        if number % 3 < 2:
            node.ip("route", "add" if is_fixed else "delete", *FIX[2:])
        ran = start_with(node, payload, lambda n=number: update(node, n), chance.uniform(0, 0.8))
        assert ran == is_fixed, number
        node.systemctl("stop", payload.unit)


@pytest.fixture
def running(node: Machine) -> Payload:
    """Return a running payload behind the gate, with a watcher."""
    return installed(node, FIXED).boot()


def test_two_runs_at_once_leave_one_config_or_none(node: Machine, running: Payload) -> None:
    """G5: ``apply`` may run concurrently with another ``apply`` or ``remove``, even with a watcher."""
    chance = random.Random(6)
    pid = running.main_pid()
    write_config(node, FIXED, path="/root/a.json", watch={"enabled": True})
    elsewhere = ("172.16.9.0/24",)
    write_config(node, HARMLESS, path="/root/b.json", cidrs=elsewhere, mode="WARN", watch={"enabled": True})
    for number in range(by_day(3, by_night=30)):
        other = "remove" if number % 3 == 2 else "apply /root/b.json"
        both = f"""python3 -m hostrouting apply /root/a.json & sleep {chance.uniform(0, 0.9):.3f}
python3 -m hostrouting {other} || exit; wait $!"""
        node.run("sh", "-c", both)
        ours = node.run("ip", "-N", "route", "show", "proto", "217").stdout
        if other == "remove" and not ours:
            assert not node.exists("/etc/hostrouting/installed.json")
            assert node.state("hostrouting-watch.service") == "inactive/dead"
        else:
            left = "a" if "172.16.1.0/24" in ours else "b"
            assert node.python("plan", f"/root/{left}.json", check=False).returncode == 0, number
    assert running.main_pid() == pid
