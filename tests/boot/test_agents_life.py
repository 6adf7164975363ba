"""Test the gate while AKSFlexNode's agent joins, updates, repaves, resets and rejoins nodes."""

from __future__ import annotations

import pytest

from boot.payloads import Payload, add_nested_machine
from boot.rig import Machine
from boot.test_gate import CONFIG, FIXED, GATE, MARKERS, ROUTES, UNITS, files, marker, write_config
from boot.test_watch import routes

AGENT = "/usr/local/bin/unbounded-agent"
REGENERATE = "unbounded-agent-regenerate-config"
UNIT_OF_ROUTES, UNIT_OF_CHECK = "static-routes.service", "check-route-overlap.service"
SHADOW = ("172.16.1.0/25", "dev", "ib0")
OTHER = {"destination": "172.16.2.0/24"}

# The agent's drop-in for a machine. The agent rewrites it with different contents each time, both
# in a service that the machine requires and in an ExecStartPre= step.
WRITES_DROP_IN = f"""#!/bin/sh
set -eu
folder={UNITS}/systemd-nspawn@$2.service.d
mkdir -p "$folder" /run/bpffs
cat >"$folder/override.conf" <<END
# $(date +%N)
[Unit]
Requires={REGENERATE}@$2.service
After={REGENERATE}@$2.service
StartLimitIntervalSec=0
[Service]
Restart=on-failure
RestartSec=10s
ExecStartPre=-/usr/bin/machinectl terminate $2
ExecStartPre={AGENT} pre-start $2 $(date +%N)
ExecStartPre=/usr/bin/mkdir -p /run/bpffs/$2
ExecStartPost={AGENT} post-start $2
Environment=SYSTEMD_NSPAWN_API_VFS_WRITABLE=network
END
printf '[Unit]\\nWants=systemd-udev-settle.service\\nAfter=systemd-udev-settle.service\\n' \\
  >"$folder/aks-flex-node-dependencies.conf"
[ "$1" = post-start ] || systemctl daemon-reload
"""
REGENERATES = f"[Service]\nType=oneshot\nExecStart={AGENT} regenerate-config %i\n"


class Agent:
    """The agent's operations on a node, and the machine that it started last."""

    def __init__(self, node: Machine) -> None:
        self.node = node
        self.machine = ""
        self.payload: Payload

    def provision(self, machine: str) -> None:
        """Create a machine that is off. If another machine is on, a repave stops it first."""
        node = self.node
        node.write(AGENT, WRITES_DROP_IN, mode=0o755)
        node.write(f"{UNITS}/{REGENERATE}@.service", REGENERATES)
        self.payload = add_nested_machine(node, machine)
        node.run(AGENT, "provision", machine)
        self.machine = machine

    def clean_up(self, machine: str) -> None:
        self.node.systemctl("disable", "--now", f"systemd-nspawn@{machine}.service")
        for path in (
            f"{UNITS}/systemd-nspawn@{machine}.service.d",
            f"/etc/systemd/nspawn/{machine}.nspawn",
        ):
            self.node.remove(path)
        self.node.remove(f"/var/lib/machines/{machine}")

    def begin_start(self) -> None:
        self.node.systemctl("start", "--no-block", self.payload.unit)

    def reset(self) -> None:
        """Reset the node. The agent doesn't know about other programs' files below /etc/systemd."""
        self.clean_up(self.machine)
        self.node.remove(f"{UNITS}/{REGENERATE}@.service")
        self.node.systemctl("daemon-reload")
        self.node.remove("/etc/aks-flex-node")


def is_held(agent: Agent) -> None:
    agent.payload.wait_until_held()
    assert not agent.payload.has_run()


def goes_on(agent: Agent) -> None:
    """Wait until a held start continues by itself; nothing starts the unit again."""
    agent.payload.wait_until_it_ran()
    assert marker(agent.node) == {"ok": ""}
    agent.node.wait_until(agent.payload.is_running, "the machine runs")


@pytest.fixture
def agent(node: Machine) -> Agent:
    node.boot()
    node.run("mkdir", "-p", "/etc/systemd/nspawn")
    return Agent(node)


def test_all_starts_of_the_agent_are_checked(node: Machine, agent: Agent) -> None:
    before = files(node)
    for machines in (("kube1", "kube2"), ("kube1", "kube2")):
        live(node, agent, *machines)
    node.python("remove")
    assert files(node) == before
    assert [line for line in routes(node) if "proto 217" in line] == []
    assert node.run("ls", MARKERS).stdout.split() == ["lock", "passed", "run.lock"]
    left = [
        unit
        for unit in (UNIT_OF_ROUTES, UNIT_OF_CHECK)
        if node.show(unit, "LoadState")["LoadState"] != "not-found"
    ]
    assert left == []


def join(node: Machine, agent: Agent, machine: str) -> None:
    """Join a node that is shadowed until ``Configure`` adds routes."""
    write_config(node)
    assert node.python("apply", check=False).returncode == 1
    agent.provision(machine)
    agent.begin_start()
    is_held(agent)
    write_config(node, FIXED)
    node.python("apply")


def rejoin(node: Machine, agent: Agent, machine: str) -> None:
    """Join a node that starts before ``Configure`` has run and is still shadowed afterwards."""
    node.ip("route", "add", *SHADOW)
    agent.provision(machine)
    agent.begin_start()
    is_held(agent)
    assert f"{ROUTES} is missing" in node.journal(agent.payload.unit)
    write_config(node, FIXED)
    assert node.python("apply", check=False).returncode == 1
    node.wait_until(
        lambda: "OVERLAP" in node.journal(agent.payload.unit), "the gate has looked again"
    )
    is_held(agent)
    node.ip("route", "delete", *SHADOW)


def live(node: Machine, agent: Agent, first: str, second: str) -> None:
    """Join or rejoin a node, then update, repave and reset it."""
    if node.exists(GATE):
        rejoin(node, agent, first)
    else:
        join(node, agent, first)
    goes_on(agent)

    pid = agent.payload.main_pid()
    write_config(node, FIXED, OTHER, cidrs=("172.16.1.0/24", "172.16.2.0/24"))
    node.python("apply")
    node.run(AGENT, "reconcile", first)
    assert (agent.payload.main_pid(), len(agent.payload.starts())) == (pid, 1)

    node.reboot()
    goes_on(agent)

    node.ip("route", "add", *SHADOW)
    node.systemctl("stop", agent.payload.unit)
    agent.provision(second)
    agent.begin_start()
    is_held(agent)
    node.ip("route", "delete", *SHADOW)
    goes_on(agent)
    agent.clean_up(first)
    assert agent.payload.is_running()

    agent.reset()
    assert not node.exists(CONFIG)
    assert node.exists(GATE)
