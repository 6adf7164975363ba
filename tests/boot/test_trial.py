"""Test that ``apply --try`` is either rolled back in time or fully confirmed, even if processes are
killed.
"""

from __future__ import annotations

import json
import random

import pytest
from nightly import by_day

from boot.payloads import Payload
from boot.rig import Machine
from boot.test_gate import (
    CONFIG,
    FIXED,
    MARKERS,
    boot_held,
    files,
    installed,
    marker,
    start,
    write_config,
)
from boot.test_watch import routes

UNIT = "hostrouting-trial"
TRIAL = f"{MARKERS}/trial.json"
TRIED = "/root/tried.json"
OTHER = {"destination": "172.16.9.0/24"}


def ours(node: Machine) -> list[str]:
    return sorted(line.split()[0] for line in routes(node) if "proto 217" in line)


@pytest.fixture
def running(node: Machine) -> Payload:
    """Return a running payload behind the gate, and a config to try that replaces one route."""
    payload = installed(node, FIXED)
    write_config(node, OTHER, path=TRIED, cidrs=("172.16.9.0/24",))
    return payload.boot()


def is_over(node: Machine) -> bool:
    """Return whether a trial has ended and none of its units is loaded."""
    units = f"systemctl list-units --all --plain --no-legend '{UNIT}.*'"
    script = f'[ ! -e {TRIAL} ] && [ ! -e {MARKERS}/trial.confirmed.json ] && [ -z "$({units})" ]'
    return node.run("sh", "-c", script, check=False).returncode == 0


def outcome(node: Machine, before: str) -> str:
    """Return ``back`` or ``confirmed`` if all routes and files match, or else a description of the
    state.
    """
    found, is_as_before = ours(node), files(node) == before
    if found == ["172.16.1.0/24"] and is_as_before:
        return "back"
    planned = node.python("plan", TRIED, check=False)
    if found == ["172.16.9.0/24"] and planned.returncode == 0:
        return "confirmed"
    return f"{found}; /etc as before: {is_as_before}; {planned.stdout}"


def test_unconfirmed_routes_are_rolled_back_in_time(node: Machine, running: Payload) -> None:
    pid, before = running.main_pid(), files(node)
    node.python("apply", "--try", "4", TRIED)
    node.wait_until(lambda: is_over(node), "the trial is over")
    assert outcome(node, before) == "back"
    # A trial that starts immediately afterwards gets its own timer.
    said = json.loads(node.python("apply", "--try", "600", "--output", "json", TRIED).stdout)
    assert (said["host"], said["changed"]) == ("node", True)
    assert ours(node) == ["172.16.9.0/24"]
    assert files(node) == before
    node.python("confirm")
    assert is_over(node)
    assert outcome(node, before) == "confirmed"
    assert running.main_pid() == pid


def test_revert_ends_a_trial_at_once(node: Machine, running: Payload) -> None:
    pid, before = running.main_pid(), files(node)
    node.python("apply", "--try", "600", TRIED)
    said = json.loads(node.python("revert", "--output", "json").stdout)
    assert [(each["route"].split()[0], each["change"]) for each in said["routes"]] == [
        ("172.16.1.0/24", "added"),
        ("172.16.9.0/24", "removed"),
    ]
    assert is_over(node)
    assert outcome(node, before) == "back"
    assert node.python("revert", check=False).returncode == 1
    # The timer is lost, as after a soft reboot, and a confirmation has been killed.
    node.python("apply", "--try", "600", TRIED)
    node.systemctl("stop", f"{UNIT}.timer")
    node.run("mv", TRIAL, f"{MARKERS}/trial.confirmed.json")
    node.python("revert")
    assert is_over(node)
    assert outcome(node, before) == "back"
    assert running.main_pid() == pid


def test_a_trial_ends_where_the_installed_routes_cannot_be_installed(
    node: Machine, running: Payload
) -> None:
    before, default = files(node), node.run("ip", "route", "show", "default").stdout.split()
    node.python("apply", "--try", "600", TRIED)
    node.run("ip", "route", "del", "default")
    assert node.python("revert", check=False).returncode == 1
    assert is_over(node)
    assert ours(node) == []
    assert "the default route" in node.journal(UNIT)
    node.run("ip", "route", "add", *default)
    node.systemctl("restart", "static-routes.service")
    assert outcome(node, before) == "back"
    assert running.is_running()


def test_revert_races_with_every_other_end(node: Machine, running: Payload) -> None:
    """The timer, a confirmation and a kill may come at the same time."""
    chance = random.Random(57)
    pid = running.main_pid()
    for _ in range(by_day(3, by_night=60)):
        before = files(node)
        node.python("apply", "--try", "2", TRIED)
        other = chance.choice(["confirm", "revert", "--version"])
        script = (
            f"sleep {chance.uniform(0, 1.6):.3f}; python3 -m hostrouting {other} & "
            f"sleep {chance.uniform(0, 1.6):.3f}; python3 -m hostrouting revert & r=$!; "
            f"[ {chance.randrange(2)} = 0 ] || {{ sleep {chance.uniform(0.1, 0.4):.3f}; "
            f"kill -s KILL $r; }}; wait"
        )
        node.run("sh", "-c", script)
        node.wait_until(lambda: is_over(node), "the trial is over")
        assert outcome(node, before) in ("back", "confirmed")
        assert running.main_pid() == pid
        node.python("apply", CONFIG)


def test_a_start_ignores_the_trial_and_ends_it(node: Machine, running: Payload) -> None:
    before = files(node)
    node.systemctl("stop", running.unit)
    node.python("apply", "--try", "600", TRIED)
    node.systemctl("restart", "static-routes.service")
    assert ours(node) == ["172.16.9.0/24"]
    assert start(node, running)
    assert not node.exists(TRIAL)
    assert outcome(node, before) == "back"
    assert marker(node) == {"ok": ""}
    assert node.python("confirm", check=False).returncode == 1


def test_a_trial_never_lets_a_held_node_start(node: Machine) -> None:
    """The trial's routes are removed when the time is up, which would leave a running node
    shadowed.
    """
    chance = random.Random(21)
    payload = installed(node)
    node.write(
        TRIED, node.read(CONFIG).replace('"routes": []', json.dumps({"routes": [FIXED]})[1:-1])
    )
    boot_held(node, payload)
    for _ in range(by_day(2, by_night=20)):
        node.run("sleep", f"{chance.uniform(0, 1):.3f}")
        node.python("apply", "--try", "5", TRIED, check=False)
        node.wait_until(lambda: is_over(node), "the gate has ended the trial")
        payload.wait_until_held()
        assert ours(node) == []
    assert not payload.has_run()
    node.python("apply", TRIED)
    payload.wait_until_it_ran()


def kill(node: Machine, words: str, seconds: float) -> None:
    """Run a command line, and kill all of its processes after the given number of seconds."""
    node.run(
        "sh",
        "-c",
        f"setsid sh -c '{words}' & sleep {seconds:.3f}; kill -s KILL -- -$!; wait $!; true",
    )


def test_any_killed_process_leaves_routes_rolled_back_or_confirmed(
    node: Machine, running: Payload
) -> None:
    chance = random.Random(18)
    pid = running.main_pid()
    for _ in range(by_day(3, by_night=100)):
        before, seconds = files(node), chance.randrange(1, 4)
        words = f"python3 -m hostrouting apply --try {seconds} {TRIED}"
        words += "; python3 -m hostrouting confirm" if chance.random() < 0.7 else ""
        kill(node, words, chance.uniform(0.1, 1.6))
        node.wait_until(lambda: is_over(node), "the trial is over")
        assert outcome(node, before) in ("back", "confirmed")
        assert running.main_pid() == pid
        node.python("apply", CONFIG)


def test_a_killed_trial_script_is_run_again(node: Machine, running: Payload) -> None:
    before = files(node)
    node.python("apply", "--try", "600", TRIED)
    hold = "touch /run/locked; until [ -e /run/go ]; do sleep 0.05; done"
    node.background("flock", f"{MARKERS}/lock", "sh", "-c", hold)
    node.wait_until(lambda: node.exists("/run/locked"), "the lock is held")
    node.systemctl("start", "--no-block", f"{UNIT}.service")  # the timer does the same
    node.systemctl("stop", f"{UNIT}.timer")
    node.wait_until(lambda: node.main_pid(f"{UNIT}.service") != 0, "it waits for the lock")
    first = node.main_pid(f"{UNIT}.service")
    node.run("kill", "-s", "KILL", str(first))
    node.wait_until(lambda: node.main_pid(f"{UNIT}.service") not in {0, first}, "it runs anew")
    node.write("/run/go", "")
    node.wait_until(lambda: is_over(node), "the trial is over")
    assert outcome(node, before) == "back"
    assert running.is_running()


def test_a_reboot_needs_no_rollback(node: Machine, running: Payload) -> None:
    chance = random.Random(20)
    before = files(node)
    for _ in range(by_day(1, by_night=20)):
        node.background("sh", "-c", f"python3 -m hostrouting apply --try 600 {TRIED}")
        node.run("sleep", f"{chance.uniform(0.2, 1.5):.3f}")
        node.reboot()
        running.wait_until_it_ran()
        assert is_over(node)
        assert outcome(node, before) == "back"
