"""Test that a failing agent restores the former config's files, units and routes on a real boot."""

from __future__ import annotations

import pytest

from boot.rig import Machine
from boot.test_gate import FIXED, files, installed, marker, write_config
from boot.test_trial import ours

NEW = "/root/new.json"
UNITS = ("static-routes.service", "check-route-overlap.service", "hostrouting-watch.service")
# The last task is one of the agent's own, and the config is in force when it runs.
AGENT = """
import os, signal, sys
import phases
from hostrouting import Config, Configure
from hostrouting.tasks import RestoreOnFailure

@phases.task("start-machine")
def start_machine(scope):
    installed = open("/etc/aks-flex-node/static-routes.sh").read()
    print("172.16.2.0/24" in installed, flush=True)
    if sys.argv[1] == "interrupted":
        os.kill(os.getpid(), signal.SIGINT)
    raise OSError("there is no such image")

config = Config.load("/root/new.json")
phases.run(RestoreOnFailure(phases.Serial(Configure(config), start_machine)))
"""


def units(node: Machine) -> list[tuple[str, str]]:
    return [
        (node.state(unit), node.systemctl("is-enabled", unit, check=False).stdout) for unit in UNITS
    ]


@pytest.mark.parametrize("end", ["failed", "interrupted"])
def test_a_failing_agent_leaves_the_host_as_it_was(node: Machine, end: str) -> None:
    payload = installed(node, FIXED).boot()
    node.python("apply")  # an image has no verified uplinks
    pid = payload.main_pid()
    before = files(node), ours(node), units(node), marker(node).keys()
    write_config(
        node, {"destination": "172.16.2.0/24"}, mode="WARN", watch={"enabled": True}, path=NEW
    )
    done = node.run("python3", "-c", AGENT, end, check=False)
    assert done.stdout == "True\n", done.stderr
    wanted = "KeyboardInterrupt" if end == "interrupted" else "OSError: there is no such image"
    assert wanted in done.stderr.splitlines()
    assert files(node) == before[0]
    assert (ours(node), units(node), marker(node).keys()) == before[1:]
    assert payload.main_pid() == pid
    node.reboot()
    node.wait_until(payload.is_running, "the payload runs")
    assert (ours(node), units(node), marker(node).keys()) == before[1:]


def test_a_failing_agent_leaves_nothing_on_a_fresh_host(node: Machine) -> None:
    node.boot()
    before = files(node), ours(node)
    write_config(node, FIXED, path=NEW)
    done = node.run(
        "python3", "-c", AGENT.replace("172.16.2.0/24", "172.16.1.0/24"), "failed", check=False
    )
    assert done.stdout == "True\n", done.stderr
    assert (files(node), ours(node)) == before
