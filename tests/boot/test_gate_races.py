"""Test the gate with updates, removals, kills and full disks at random moments, of which there are many by night."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from nightly import by_day

from boot.test_gate import (
    CONFIG,
    FIX,
    FIXED,
    TEMPLATE,
    UNITS,
    boot_held,
    files,
    installed,
    marker,
    start,
    write_config,
)

if TYPE_CHECKING:
    from boot.payloads import Payload
    from boot.rig import Machine

OTHER = f"{UNITS}/{TEMPLATE}.d/50-other.conf"
HARMLESS = {"destination": "172.16.9.0/24"}
LOCK = "/run/aks-flex-node/lock"


def other_lines(seconds: float) -> str:
    """Return steps of another program that run before ours and make both lists take longer."""
    return f"[Service]\nExecCondition=/bin/sleep {seconds}\nExecStartPre=/bin/sleep {seconds}\n"


def update_ours(node: Machine, number: int) -> None:
    write_config(node, *([HARMLESS] if number % 2 else []))
    node.python("apply", check=False)


def update_theirs(node: Machine, number: int) -> None:
    node.write(OTHER, other_lines(0.2 + number % 2 / 100))
    node.systemctl("daemon-reload")


def start_with(node: Machine, payload: Payload, disturb: Any, seconds: float) -> bool:
    """Start the machine, disturb it after the given seconds, and return whether its payload ran."""
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


@pytest.mark.each_release
@pytest.mark.parametrize("update", [update_ours, update_theirs])
def test_an_update_never_opens_or_closes_the_gate(node: Machine, update: Any) -> None:
    """According to G1, a shadowed machine never runs, and a healthy one always does."""
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


def test_a_removal_never_keeps_a_healthy_machine_down(node: Machine) -> None:
    chance = random.Random(2)
    payload = installed(node, FIXED)
    node.write(OTHER, other_lines(0.2))
    node.systemctl("disable", payload.unit)
    node.boot()
    for number in range(by_day(2, by_night=40)):
        node.python("apply")
        did_start = start_with(node, payload, lambda: node.python("remove"), chance.uniform(0, 0.8))
        assert did_start, (number, node.journal()[-5000:])
        node.systemctl("stop", payload.unit)
        node.ip(*FIX)
        ran = len(payload.starts())
        assert start(node, payload)
        node.wait_until(lambda count=ran: len(payload.starts()) > count, "the payload ran")  # type: ignore[misc]
        node.systemctl("stop", payload.unit)
        node.ip("route", "delete", *FIX[2:])


def draw_config(chance: random.Random) -> dict[str, Any]:
    """Draw a config that the node fulfils, or one that only warns."""
    destinations = chance.sample([f"172.16.{number}.0/24" for number in range(1, 9)], chance.randrange(5))
    strays = ["172.16.200.0/24"] if chance.random() < 0.2 else []
    return {
        "staticRoutes": {
            "enabled": True,
            "routes": [{"destination": one, "metric": chance.randrange(3)} for one in destinations],
        },
        "routeOverlap": {
            "expectedCidrs": [*destinations, *strays, "10.96.0.0/12"],
            "mode": chance.choice(["STRICT", "WARN"]) if not strays else "WARN",
        },
        "watch": {"enabled": chance.random() < 0.2},
        "waitSeconds": chance.randrange(1, 3),
    }


def put(node: Machine, path: str, section: dict[str, Any]) -> None:
    node.write(path, json.dumps({"hostRouting": section}))


@pytest.fixture
def running(node: Machine) -> Payload:
    """Return the payload of a machine that runs behind the gate, with a watcher."""
    payload = installed(node, FIXED)
    node.boot()
    payload.wait_until_it_ran()
    return payload


def test_no_random_update_restarts_a_running_machine(node: Machine, running: Payload) -> None:
    chance = random.Random(3)
    pid = running.main_pid()
    for _ in range(by_day(4, by_night=250)):
        if chance.random() < 0.1:
            node.python("remove")
        else:
            put(node, CONFIG, draw_config(chance))
            node.python("apply")
        assert running.main_pid() == pid


def our_state(node: Machine) -> tuple[str, str]:
    """Return every file below /etc, and our routes."""
    return files(node), node.run("ip", "-N", "route", "show", "proto", "217").stdout


def test_a_killed_run_leaves_a_whole_state(node: Machine, running: Payload) -> None:
    chance = random.Random(4)
    pid = running.main_pid()
    _, before = our_state(node)
    for number in range(by_day(3, by_night=100)):
        put(node, CONFIG, draw_config(chance))
        killed = f"python3 -m hostrouting apply & sleep {chance.uniform(0.1, 1.2):.3f}; kill -9 $!; wait $!; true"
        node.run("sh", "-c", killed)
        _, between = our_state(node)
        cut = "for name in static-routes check-route-overlap gate; do file=/etc/aks-flex-node/$name.sh; "
        cut += '[ ! -e "$file" ] || { bash -n "$file" && [ "$(tail -c 2 "$file")" = "}" ]; } || echo "$file"; done'
        assert node.run("sh", "-c", cut).stdout == "", number
        node.python("apply")
        _, after = our_state(node)
        assert between in {before, after}, number
        assert node.python("plan").returncode == 0
        assert running.main_pid() == pid
        before = after


def state_of_each_file(node: Machine) -> dict[str, str]:
    """Return the mode and checksum of each file below /etc, except for the two that describe all tasks together."""
    lines = [line for line in files(node).splitlines() if "hostrouting.installed.json" not in line]
    described = {line.split()[0]: line for line in lines if line.startswith("./")}
    sums = {line.split()[1]: line for line in lines if not line.startswith(("./", "."))}
    return {path: line + sums.get(path, "") for path, line in described.items() if not path.endswith("gate.list")}


@pytest.mark.parametrize("kind", ["ENOSPC", "EROFS"])
def test_on_a_full_disk_each_task_is_done_or_undone(node: Machine, running: Payload, kind: str) -> None:
    """If the check's task fails, the routes may already be the new ones, as each task on its own is all or nothing."""
    chance = random.Random(5)
    pid = running.main_pid()
    for number in range(by_day(2, by_night=25)):
        folder = ("/etc/aks-flex-node", UNITS)[number % 2]
        put(node, CONFIG, draw_config(chance))
        if kind == "EROFS":
            node.run("sh", "-euc", f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}")
        else:
            size = f"$(($(du -sk {folder} | cut -f1) + {chance.randrange(4, 40)}))k"
            copied = f"mkdir -p /mnt/full; mount -t tmpfs -o mode=755,size={size} full /mnt/full; "
            copied += f"cp -a {folder}/. /mnt/full/; mount --bind /mnt/full {folder}"
            node.run("sh", "-euc", copied)
        before, (_, routes_before) = state_of_each_file(node), our_state(node)
        done = node.python("apply", check=False)
        between, (_, routes_between) = state_of_each_file(node), our_state(node)
        if kind == "EROFS":
            node.run("umount", folder)
        else:
            node.run(
                "sh",
                "-euc",
                f"umount {folder}; find {folder} -mindepth 1 -delete; cp -a /mnt/full/. {folder}/; umount /mnt/full",
            )
        assert "Traceback" not in done.stderr
        node.python("apply")
        after, (_, routes_after) = state_of_each_file(node), our_state(node)
        assert routes_between in {routes_before, routes_after}, (number, done.stderr)
        assert {
            path: between.get(path)
            for path in between.keys() | before.keys()
            if between.get(path) not in {before.get(path), after.get(path)}
        } == {}, (number, done.stderr)
        assert node.python("plan").returncode == 0
        assert running.main_pid() == pid


def test_two_runs_at_once_leave_one_config_or_none(node: Machine, running: Payload) -> None:
    """According to G5, ``apply`` may run concurrently with another ``apply`` or ``remove``, even with a watcher."""
    chance = random.Random(6)
    pid = running.main_pid()
    for name, routes, cidr, mode in (
        ("a", [FIXED], "172.16.1.0/24", "STRICT"),
        ("b", [HARMLESS], "172.16.9.0/24", "WARN"),
    ):
        section = {
            "staticRoutes": {"enabled": True, "routes": routes},
            "routeOverlap": {"expectedCidrs": [cidr], "mode": mode},
        }
        put(node, f"/root/{name}.json", section | {"watch": {"enabled": True}, "waitSeconds": 1})
    for number in range(by_day(3, by_night=30)):
        other = "remove" if number % 3 == 2 else "apply /root/b.json"
        both = f"""python3 -m hostrouting apply /root/a.json & sleep {chance.uniform(0, 0.9):.3f}
python3 -m hostrouting {other} || exit; wait $!"""
        node.run("sh", "-c", both)
        planned = {name: node.python("plan", f"/root/{name}.json", check=False).returncode for name in "ab"}
        if other == "remove" and planned["a"] != 0:
            assert not node.exists("/etc/hostrouting/installed.json")
            assert node.run("ip", "-N", "route", "show", "proto", "217").stdout == ""
            assert node.state("hostrouting-watch.service") == "inactive/dead"
        else:
            assert sorted(planned.values()) == [0, 2], number
    assert running.main_pid() == pid


def test_an_update_delays_no_start_while_systemd_reloads(node: Machine, running: Payload) -> None:
    """According to G7, the scripts' lock is not held while systemd reloads slowly, as a start needs it too."""
    node.write("/etc/systemd/system-generators/slow", "#!/bin/sh\nsleep 2\n", mode=0o755)
    write_config(node, FIXED, HARMLESS, watch={"enabled": True})
    taken = f"""python3 -m hostrouting apply & run=$!
while kill -0 $run 2>/dev/null; do flock -w 1 {LOCK} true || exit 9; sleep 0.05; done; wait $run"""
    loaded = ("systemctl", "show", "--property=UnitsLoadTimestampMonotonic", "--value")
    before = node.run(*loaded).stdout
    node.run("sh", "-c", taken)
    assert node.run(*loaded).stdout != before
    assert running.is_running()


UNBOUNDED = """\
[Unit]
StartLimitIntervalSec=0
[Service]
Restart=on-failure
RestartSec=4s
ExecStartPre=/bin/sh -c 'echo first >>/run/order'
ExecStartPre=/bin/sh -c 'echo second >>/run/order'
"""


def test_unboundeds_steps_run_after_the_verdict(node: Machine) -> None:
    payload = installed(node)
    node.write(f"{UNITS}/{payload.unit}.d/10-unbounded.conf", UNBOUNDED)
    boot_held(node, payload)
    assert not node.exists("/run/order")
    node.ip(*FIX)
    payload.wait_until_it_ran()
    assert node.read("/run/order") == "first\nsecond\n"
    assert marker(node) == {"ok": ""}


def test_under_any_umask_other_users_only_read_the_markers(node: Machine) -> None:
    """In a folder of mode 0777 any user could replace a script that the next start runs as root (G3)."""
    node.boot()
    ours = f"/etc/aks-flex-node /run/aks-flex-node {UNITS}/{TEMPLATE}.d /etc/iproute2/rt_protos.d"
    as_nobody = "cat /run/aks-flex-node/route-overlap.ok /etc/aks-flex-node/static-routes.sh"
    for umask in ("000", "077"):
        write_config(node, FIXED)
        node.run("sh", "-c", f"umask {umask} && python3 -m hostrouting apply")
        assert node.run("sh", "-c", f"find {ours} -perm /022 -not -type l").stdout == ""
        node.run("setpriv", "--reuid=65534", "--clear-groups", "sh", "-c", as_nobody)
        node.python("remove")
        node.run("rm", "-rf", "/etc/aks-flex-node", "/run/aks-flex-node", "/etc/iproute2/rt_protos.d")
