"""Tests that explain the design of the gate's drop-ins, and update or remove it at random times,
more often in nightly runs.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from nightly import by_day

from boot.payloads import Payload, add_kubelet
from boot.rig import Machine
from boot.test_gate import (
    ENDED,
    FIX,
    FIXED,
    GATE,
    TEMPLATE,
    UNITS,
    WAITING,
    installed,
    start,
    write_config,
)

DROP_INS = f"{UNITS}/kubelet.service.d"
LATE = f"{DROP_INS}/20-late.conf"
TRYING = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestart=always\nRestartSec=100ms\n"


@pytest.fixture
def trying(node: Machine) -> Payload:
    """Return an inactive, gated unit that systemd restarts after every failure; its machine is
    shadowed.
    """
    payload = installed(node, add=add_kubelet)
    node.write(f"{DROP_INS}/10-restart.conf", TRYING)
    node.systemctl("disable", payload.unit)
    node.boot()
    return payload


def unfix(node: Machine) -> None:
    node.ip("route", "delete", *FIX[2:])


def begin(node: Machine, *payloads: Payload) -> None:
    node.systemctl("daemon-reload")
    for payload in payloads:
        node.systemctl("reset-failed", payload.unit, check=False)
        node.systemctl("start", "--no-block", payload.unit)


def wait_until_tried_again(node: Machine, payload: Payload) -> None:
    """Wait until a start has failed and systemd has retried it."""
    node.wait_until(
        lambda: int(node.show(payload.unit, "NRestarts")["NRestarts"]) > 0, f"{payload.unit} fails"
    )


def wait_for_a_start(node: Machine, payload: Payload, before: int) -> None:
    node.wait_until(lambda: len(payload.starts()) > before, f"{payload.unit} starts by itself")


LATECOMERS = [
    ("WorkingDirectory=/srv/late", "mkdir /srv/late", "rmdir /srv/late"),
    ("BindPaths=/srv/late:/mnt", "mkdir /srv/late", "rmdir /srv/late"),
    ("User=late", "echo late:x:0:0::/:/bin/sh >>/etc/passwd", "sed -i /^late:/d /etc/passwd"),
]


@pytest.mark.each_release
def test_systemds_own_failures_are_retried_as_without_the_gate(
    node: Machine, trying: Payload, by_turns: Any
) -> None:
    """Without the "-" prefix, a failing ``ExecCondition=`` would skip the unit, with no error,
    restart or start.
    """
    beside = add_kubelet(node, "beside", enabled=False)
    node.write(f"{UNITS}/beside.service.d/10-restart.conf", TRYING)
    node.ip(*FIX)
    for setting, come, leave in by_turns(LATECOMERS):
        for payload in (trying, beside):
            node.write(f"{UNITS}/{payload.unit}.d/20-late.conf", f"[Service]\n{setting}\n")
        counts = [len(payload.starts()) for payload in (trying, beside)]
        begin(node, trying, beside)
        for payload in (trying, beside):
            wait_until_tried_again(node, payload)
        node.run("sh", "-c", come)
        for payload, count in zip((trying, beside), counts, strict=True):
            wait_for_a_start(node, payload, count)
            node.systemctl("stop", payload.unit)
        node.run("sh", "-c", leave)


FOLDER = GATE.rpartition("/")[0]
SPOILERS = [
    (f"mv {GATE} {GATE}.away", f"mv {GATE}.away {GATE}"),
    (f"chmod 644 {GATE}", f"chmod 755 {GATE}"),
    (f"mount --bind {FOLDER} {FOLDER}; mount -o remount,bind,noexec {FOLDER}", f"umount {FOLDER}"),
    *(
        (f"cp -a {GATE} {GATE}.away; head -c {size} {GATE}.away >{GATE}", f"mv {GATE}.away {GATE}")
        for size in (0, 15, 2500)
    ),
]


@pytest.mark.each_release
def test_a_missing_or_truncated_gate_is_closed_until_the_fix(
    node: Machine, trying: Payload, by_turns: Any
) -> None:
    """A gate script truncated to its first line succeeds but doesn't record a pass."""
    for spoil, fix in by_turns(SPOILERS):
        node.run("sh", "-euc", spoil)
        begin(node, trying)
        wait_until_tried_again(node, trying)
        node.run("sh", "-euc", fix)
        trying.wait_until_held()
        assert not trying.has_run(), spoil
        node.systemctl("stop", trying.unit)
    node.ip(*FIX)
    assert start(node, trying)


@pytest.mark.each_release
def test_a_killed_or_timed_out_gate_is_closed_and_retried(node: Machine, trying: Payload) -> None:
    begin(node, trying)
    trying.wait_until_held()
    node.systemctl("kill", "--signal=KILL", "--kill-who=all", trying.unit)
    wait_until_tried_again(node, trying)
    trying.wait_until_held()
    node.systemctl("stop", trying.unit)
    node.write(LATE, "[Service]\nTimeoutStartSec=3\n")
    begin(node, trying)
    wait_until_tried_again(node, trying)
    assert "timeout" in node.journal(trying.unit)
    trying.wait_until_held()
    assert not trying.has_run()
    node.ip(*FIX)
    wait_for_a_start(node, trying, 0)


def service(*lines: str) -> str:
    return "".join(("[Service]\n", *(f"{line}\n" for line in lines)))


SLEEP, OTHER_SLEEP = "ExecStartPre=/bin/sleep 0.2", "ExecStartPre=/bin/sleep 0.3"
# Another program's file before and after a change. An empty string means that the file doesn't
# exist.
CHANGES = [
    ("00-a.conf", service(SLEEP), service(OTHER_SLEEP)),
    ("0-a.conf", service(SLEEP), service(OTHER_SLEEP)),
    ("0-a.conf", service(SLEEP), ""),
    ("10-a.conf", service(SLEEP), service(OTHER_SLEEP)),
    ("zzz-a.conf", service(SLEEP), ""),
    ("zzz-a.conf", "", service("ExecStartPre=", SLEEP)),
    ("0-a.conf", service("ExecCondition=/bin/sleep 0.2"), service("ExecCondition=/bin/sleep 0.3")),
    ("../kubelet.service", None, None),
]


@pytest.mark.each_release
def test_other_programs_lines_neither_open_nor_close_it(
    node: Machine, trying: Payload, by_turns: Any
) -> None:
    own = f"{UNITS}/kubelet.service"
    text = node.read(own)
    for name, before, after in by_turns(CHANGES):
        path = f"{DROP_INS}/{name}" if before is not None else own
        first, second = (
            (text + service(SLEEP), text + service(OTHER_SLEEP))
            if before is None
            else (before, after)
        )
        count = len(trying.starts())
        node.write(path, first)
        begin(node, trying)
        trying.wait_until_held()
        node.write(path, second)
        node.systemctl("daemon-reload")
        trying.wait_until_held_again()
        assert len(trying.starts()) == count, name
        node.ip(*FIX)
        wait_for_a_start(node, trying, count)
        node.systemctl("stop", trying.unit)
        unfix(node)
        node.write(path, text) if before is None else node.remove(path)


def test_the_last_look_sees_changes_after_the_first(node: Machine, trying: Payload) -> None:
    """Other programs' steps may take a long time, during which routes or the config may change."""
    node.write(f"{DROP_INS}/10-slow.conf", service(f"ExecStartPre={WAITING}"))
    node.ip(*FIX)
    begin(node, trying)
    node.wait_until(lambda: node.exists("/run/waits"), "another program's step runs")
    unfix(node)
    node.run("sleep", "1.2")  # a pass counts for a second
    node.write("/run/go", "")
    wait_until_tried_again(node, trying)
    trying.wait_until_held()
    assert not trying.has_run()


def test_ten_instances_start_at_once_with_large_tables(node: Machine) -> None:
    """The gate must judge both families within 20 s."""
    node.ip("address", "add", "2001:db8:1::4/64", "dev", "eth0", "nodad")
    node.ip("-6", "route", "add", "default", "via", "2001:db8:1::1", "dev", "eth0")
    cidrs = ("172.16.1.0/24", "fd00:10:96::/48")
    payload = installed(node, FIXED, add=add_kubelet, consumer="node@.service", cidrs=cidrs)
    node.write(
        f"{UNITS}/node@.service",
        "[Service]\nExecStart=/usr/local/bin/payload /var/lib/payload/%i\n",
    )
    node.systemctl("disable", payload.unit)
    node.boot()
    routes = range(by_day(3_000, by_night=15_000))
    lines = [f"route add 100.64.{n // 256}.{n % 256} via 10.1.0.1 dev eth0" for n in routes]
    lines += [f"route add fd00:10:97::{n:x} via 2001:db8:1::1 dev eth0" for n in routes]
    node.run("ip", "-batch", "-", input="\n".join(lines))
    node.systemctl("restart", "static-routes.service", "check-route-overlap.service")
    units = [f"node@{number}.service" for number in range(10)]
    node.systemctl("start", *units)
    assert {node.state(unit) for unit in units} == {"active/running"}


# --- updates at random times ----------------------------------------------------------------------

OTHER = f"{UNITS}/{TEMPLATE}.d/50-other.conf"
HARMLESS = {"destination": "172.16.9.0/24"}


def other_lines(seconds: float) -> str:
    """Return another program's drop-in lines, which run before ours and delay them."""
    return service(f"ExecCondition=/bin/sleep {seconds}", f"ExecStartPre=/bin/sleep {seconds}")


def update_ours(node: Machine, number: int) -> None:
    write_config(node, *([HARMLESS] if number % 2 else []))
    node.python("apply", check=False)


def update_theirs(node: Machine, number: int) -> None:
    node.write(OTHER, other_lines(0.2 + number % 2 / 100))
    node.systemctl("daemon-reload")


def start_with(node: Machine, payload: Payload, disturb: Any, seconds: float) -> bool:
    """Start the unit, disturb it after the given number of seconds, and return whether its payload
    ran.
    """
    before = len(payload.starts())
    begin(node, payload)
    node.run("sleep", f"{seconds:.3f}")
    disturb()
    node.wait_until(
        lambda: node.state(payload.unit) in ENDED or payload.is_held(), "the start has been checked"
    )
    if node.state(payload.unit) == ENDED[0]:
        wait_for_a_start(node, payload, before)
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


def test_two_runs_at_once_leave_one_config_or_none(node: Machine) -> None:
    """G5: ``apply`` may run at the same time as ``apply`` or ``remove``, even with a watcher."""
    chance = random.Random(6)
    running = installed(node, FIXED).boot()
    pid = running.main_pid()
    write_config(node, FIXED, path="/root/a.json", watch={"enabled": True})
    elsewhere = ("172.16.9.0/24",)
    write_config(
        node, HARMLESS, path="/root/b.json", cidrs=elsewhere, mode="WARN", watch={"enabled": True}
    )
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
