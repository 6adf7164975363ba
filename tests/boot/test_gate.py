"""Test the gate at boot and at each later start, with other units, on a booted systemd."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from infiniband import infiniband
from nightly import by_day
from wanted import section

from boot.payloads import Payload, add_kubelet, add_nested_machine
from boot.rig import ROOT, Machine
from hostrouting.kernel.namespace import enter_namespace

CONFIG = "/etc/aks-flex-node/config.json"
ROUTES, CHECK = "/etc/aks-flex-node/static-routes.sh", "/etc/aks-flex-node/check-route-overlap.sh"
UNITS = "/etc/systemd/system"
GATE = "/etc/hostrouting/gate.sh"
MARKERS = "/run/aks-flex-node"
TEMPLATE = "systemd-nspawn@.service"
FIX = ("route", "add", "172.16.1.0/24", "via", "10.1.0.1", "dev", "eth0")
FIXED = {"destination": "172.16.1.0/24"}
UNREACHABLE = {"destination": "172.16.9.0/24", "gateway": "10.99.0.1", "dev": "eth0"}
RESTARTING = "[Service]\nRestart=on-failure\n"
ENDED = ("active/running", "failed/failed")


def write_config(node: Machine, *routes: dict[str, Any], path: str = CONFIG, **more: Any) -> None:
    """Write a config; see ``wanted.section``."""
    node.write(path, json.dumps({"hostRouting": section(*routes, **{"waitSeconds": 1} | more)}))


def install_into_image(node: Machine) -> None:
    """Run ``apply --root`` on the powered-off machine's files, as an image builder does."""
    node.install("apply", "--root", ROOT, f"{ROOT}{CONFIG}")


def installed(
    node: Machine, *routes: dict[str, Any], add: Any = add_nested_machine, **config: Any
) -> Payload:
    """Install a payload behind the gate while the machine is off, and return the payload."""
    payload: Payload = add(node)
    if add is add_kubelet:
        config.setdefault("consumer", "kubelet.service")
    write_config(node, *routes, **config)
    install_into_image(node)
    return payload


def markers(node: Machine) -> list[str]:
    """Return the existing markers. There may briefly be no marker between two verdicts."""
    return [name for name in ("ok", "detected") if node.exists(f"{MARKERS}/route-overlap.{name}")]


def marker(node: Machine) -> dict[str, str]:
    return {name: node.read(f"{MARKERS}/route-overlap.{name}") for name in markers(node)}


def start(node: Machine, payload: Payload) -> bool:
    """Start the payload as an operator would, and return whether it started rather than being held
    or failing.
    """
    if node.state(payload.unit).startswith("activating"):
        node.systemctl("stop", payload.unit)
    node.systemctl("reset-failed", payload.unit, check=False)
    node.systemctl("start", "--no-block", payload.unit)
    node.wait_until(
        lambda: node.state(payload.unit) in ENDED or payload.is_held(), "the start has been checked"
    )
    return node.state(payload.unit) == ENDED[0]


def boot_held(node: Machine, payload: Payload) -> None:
    """Power the machine on, and wait until the gate holds the payload's start."""
    node.boot(wait=False)
    payload.wait_until_held()
    assert not payload.has_run()


# --- blocked, fixed, warned -----------------------------------------------------------------------


# Unbounded's agent adds steps like this one.
STEP = """\
[Unit]
StartLimitIntervalSec=0
[Service]
Restart=on-failure
RestartSec=4s
ExecStartPre=/bin/sh -c 'echo step >>/run/steps'
"""


@pytest.mark.each_release
def test_strict_holds_a_shadowed_payload_until_the_fix(node: Machine) -> None:
    payload = installed(node)
    node.write(f"{UNITS}/{payload.unit}.d/10-unbounded.conf", STEP)
    boot_held(node, payload)
    journal = node.journal(payload.unit)
    assert (
        "OVERLAP: expected CIDR 172.16.1.0/24 (probe 172.16.1.0) routes via ib0, expected eth0"
        in journal
    )
    assert "fix: hostrouting fix prints what fixes it" in journal
    assert markers(node) == ["detected"]
    assert not start(node, payload)
    assert not node.exists("/run/steps")
    node.ip(*FIX)
    payload.wait_until_it_ran()
    assert marker(node) == {"ok": ""}
    assert node.read("/run/steps") == "step\n"
    judged = float(node.run("stat", "--format=%.Y", f"{MARKERS}/route-overlap.ok").stdout)
    (started,) = payload.starts()
    assert judged < started


def test_warn_lets_a_shadowed_payload_run(node: Machine) -> None:
    installed(node, mode="WARN").boot()
    assert "OVERLAP: expected CIDR 172.16.1.0/24" in marker(node)["detected"]


@pytest.mark.parametrize("mode", ["STRICT", "WARN"])
def test_a_refused_route_holds_the_node_in_either_mode(node: Machine, mode: str) -> None:
    payload = installed(node, UNREACHABLE, cidrs=("10.96.0.0/12",), mode=mode, waitSeconds=0)
    boot_held(node, payload)
    assert "gateway 10.99.0.1" in node.journal(payload.unit)


FLOCK = "/usr/bin/flock"
LOCK = f"{MARKERS}/lock"
FAULTS = {
    "a shadow": ("ip route add 172.16.1.0/25 dev ib0", "ip route delete 172.16.1.0/25 dev ib0"),
    "no flock": (f"mv {FLOCK} {FLOCK}.away", f"mv {FLOCK}.away {FLOCK}"),
    "a folder in the lock's place": (f"rm {LOCK}; mkdir {LOCK}", f"rmdir {LOCK}"),
    "nothing can be written": (f"mount -t tmpfs -o ro none {MARKERS}", f"umount {MARKERS}"),
}


@pytest.mark.each_release
def test_a_held_start_continues_by_itself_after_any_fix(node: Machine, by_turns: Any) -> None:
    payload = installed(node, FIXED).boot()
    faults = dict(by_turns([*FAULTS.items()]))
    for fault, (spoil, fix) in faults.items():
        count = len(payload.starts())
        node.run("sh", "-euc", spoil)
        node.systemctl("restart", "--no-block", payload.unit)
        payload.wait_until_held()
        assert len(payload.starts()) == count
        node.run("sh", "-euc", fix)
        node.wait_until(lambda before=count: len(payload.starts()) > before, fault)  # type: ignore[misc]
    assert ("there is no flock" in node.journal(payload.unit)) == ("no flock" in faults)


def test_a_shadow_holds_a_node_until_python_names_its_fix(node: Machine) -> None:
    wide = ("172.0.0.0/8", "10.96.0.0/12")
    payload = installed(node, cidrs=wide)
    boot_held(node, payload)
    found = "expected CIDR 172.0.0.0/8 (probe 172.16.0.0) routes via ib0, expected eth0"
    assert f"{found}; by 172.16" in node.journal(payload.unit)
    # The image was built without Python. On the running host, Python is available.
    assert node.python("apply", check=False).returncode == 1
    assert not start(node, payload)
    assert f"{found}; shadowed: 172.16.0.0/16; by 172.16" in node.journal(payload.unit)
    # The sandboxed unit explains it too.
    node.systemctl("stop", payload.unit)
    for name in ("json", "detected"):
        node.remove(f"{MARKERS}/route-overlap.{name}")
    node.systemctl("restart", "check-route-overlap.service", check=False)
    assert node.state("check-route-overlap.service") == "failed/failed"
    assert markers(node) == ["detected"]
    report = json.loads(node.read(f"{MARKERS}/route-overlap.json"))
    assert report["verdict"] == "overlap"
    entries = report["findings"][0]["fix"]
    assert entries == [{"destination": "172.16.0.0/17"}, {"destination": "172.16.128.0/17"}]
    assert not start(node, payload)
    write_config(node, *entries, cidrs=wide)
    # The held start may run the new routes script first.
    told = json.loads(node.python("apply", "--output", "json").stdout)
    added = [each["route"].split()[0] for each in told["routes"]]
    assert (added, told["unchanged"]) == ([entry["destination"] for entry in entries], [])
    payload.wait_until_it_ran()
    assert marker(node) == {"ok": ""}


# The boot check doesn't judge a host with such a rule, and Python does.
EXOTIC = ("rule", "add", "preference", "100", "tun_id", "5", "lookup", "101")
IMPOSTORS = {
    "exits with 0": "exit 0",
    "says ok": "echo ok",
    "hangs": "exec sleep 600",
    "is gone": "",
}


@pytest.mark.each_release
def test_only_python_starts_a_node_that_the_script_can_not_judge(
    node: Machine, by_turns: Any
) -> None:
    payload = installed(node, FIXED)
    node.ip(*EXOTIC)
    boot_held(node, payload)
    # The image was built without Python.
    reason = "check-failed: the policy rule 100: from all tun_id 5 lookup 101"
    assert reason in node.journal(payload.unit)
    assert marker(node) == {"detected": f"{reason}\n"}
    node.python("apply")
    payload.wait_until_it_ran()
    assert marker(node) == {"ok": ""}
    (python,) = re.findall(r"^readonly PYTHON=(.+)$", node.read(CHECK), re.MULTILINE)
    for what, text in by_turns([*IMPOSTORS.items()]):
        count = len(payload.starts())
        node.run("mv", python, f"{python}.away")
        if text:
            node.write(python, f"#!/bin/sh\n{text}\n", mode=0o755)
        node.systemctl("restart", "--no-block", payload.unit)
        payload.wait_until_held()
        assert (what, marker(node)) == (what, {"detected": f"{reason}\n"})
        assert len(payload.starts()) == count
        node.run("mv", f"{python}.away", python)
        node.wait_until(lambda before=count: len(payload.starts()) > before, what)  # type: ignore[misc]


# --- broken parts don't open it -------------------------------------------------------------------


def test_broken_oneshots_hold_only_shadowed_nodes(node: Machine) -> None:
    payload = installed(node)
    routes, check = (f"{UNITS}/{name}.service" for name in ("static-routes", "check-route-overlap"))
    for masked, other, text in (
        (routes, check, ""),
        (check, routes, "[Service]\nType=nonsense\nExecStart\n"),
    ):
        node.run_offline("ln", "-sfn", "/dev/null", masked)
        node.remove(other)
        if text:
            node.write(other, text)
        boot_held(node, payload)
        node.ip(*FIX)
        payload.wait_until_it_ran()
        node.power_off()
        node.ip("route", "delete", *FIX[2:])


# --- consumers of all kinds -----------------------------------------------------------------------


SANDBOX = """\
[Service]
User=nobody
ProtectSystem=strict
PrivateTmp=yes
CapabilityBoundingSet=
RestrictAddressFamilies=AF_UNIX
NoNewPrivileges=yes
ReadWritePaths=/var/lib/payload
"""


def test_the_consumers_sandbox_is_not_the_gates(node: Machine) -> None:
    payload = installed(node, FIXED, add=add_kubelet)
    node.run_offline("chmod", "0777", payload.log)
    node.write(f"{UNITS}/kubelet.service.d/sandbox.conf", SANDBOX)
    payload.boot()
    assert marker(node) == {"ok": ""}


SETTINGS = (
    "ExecStartPre=",
    "ExecCondition=",
    "SuccessExitStatus=133 203",
    "SuccessExitStatus=KILL",
    "TimeoutStartSec=20",
    "EnvironmentFile=/etc/default/node",
)


@pytest.mark.each_release
def test_apply_refuses_a_setting_that_defeats_the_gate(node: Machine, by_turns: Any) -> None:
    payload = add_nested_machine(node)
    write_config(node)
    node.write("/etc/default/node", "INVOCATION_ID=a1\n")
    node.boot()
    for setting in by_turns(SETTINGS):
        node.write(f"{UNITS}/{payload.unit}.d/zzz-override.conf", f"[Service]\n{setting}\n")
        node.systemctl("daemon-reload")
        before = files(node)
        done = node.python("apply", check=False)
        assert done.returncode == 1
        assert f"the gate doesn't hold {payload.unit}: " in done.stderr
        assert setting.partition("=")[0] in done.stderr
        assert files(node) == before


# --- break-glass ----------------------------------------------------------------------------------


def test_the_file_gate_off_admits_loudly(node: Machine) -> None:
    payload = installed(node)
    node.write("/etc/hostrouting/gate.off", "")
    payload.boot()
    assert "gate.off" in node.journal(payload.unit)
    assert "gate-off: the file /etc/hostrouting/gate.off is there" in marker(node)["detected"]
    # A later check keeps the gate-off line in the marker.
    node.systemctl("restart", "check-route-overlap.service", check=False)
    assert re.search(
        r"^OVERLAP: .*\ngate-off: the file /etc/hostrouting/gate.off is there",
        marker(node)["detected"],
    )


# --- on the running node --------------------------------------------------------------------------


def files(node: Machine) -> str:
    """Return mode, size, target and checksum of each file, symlink and directory below /etc."""
    script = (
        "cd /etc && find . -printf '%p %m %y %l\\n' | sort && "
        "find . -type f -not -name '*.pyc' -not -name machine-id -print0 | sort -z "
        "| xargs -0 sha256sum"
    )
    return (node.run if node.is_on else node.run_offline)("sh", "-euc", script).stdout


def test_no_update_ever_stops_or_restarts_a_running_machine(node: Machine) -> None:
    payload = installed(node, FIXED).boot()
    pid = payload.main_pid()
    for routes, config in (
        ((FIXED, {"destination": "172.16.2.0/24"}), {}),
        (
            ({"destination": "172.16.1.0/24", "metric": 5},),
            {"mode": "WARN", "cidrs": ("172.16.1.0/24", "10.0.0.0/8")},
        ),
        ((), {"cidrs": ()}),
        ((FIXED,), {}),
    ):
        write_config(node, *routes, **config)
        node.python("apply")
        assert payload.main_pid() == pid
    for verb in ("restart", "stop", "start"):
        node.systemctl(verb, "static-routes.service", "check-route-overlap.service")
    assert payload.main_pid() == pid
    assert payload.is_running()


BY_A_LATE_DEVICE = {"destination": "10.50.0.0/24", "gateway": "onlink", "dev": "eth9"}


def test_an_update_or_a_removal_during_a_start_counts(node: Machine) -> None:
    """An update without routes drops the gate's step for them."""
    payload = installed(node, BY_A_LATE_DEVICE)
    node.boot(wait=False)
    node.wait_for(payload.unit, "activating/condition")
    write_config(node)
    assert "OVERLAP" in node.python("apply", check=False).stderr
    node.add_nic("eth9")
    node.wait_until(
        lambda: "expected CIDR 172.16.1.0/24" in node.journal(payload.unit),
        "the gate has looked again",
    )
    payload.wait_until_held()
    assert not payload.has_run()
    node.python("remove")
    payload.wait_until_it_ran()
    assert "vanished" not in node.journal()
    assert not node.exists(GATE)
    assert not node.exists(f"{UNITS}/{TEMPLATE}.d")


# Another program's line that blocks until the test lets it continue.
WAITING = "/bin/sh -c 'touch /run/waits; until [ -e /run/go ]; do sleep 0.05; done'"


def test_another_programs_vanishing_line_does_not_skip_the_gate(node: Machine) -> None:
    """If the current command disappears, systemd skips the rest of that list, so the gate is in
    both lists.
    """
    payload = installed(node)
    other = f"{UNITS}/{payload.unit}.d/0-other.conf"
    node.write(other, f"[Service]\nExecCondition={WAITING}\n")
    node.systemctl("disable", payload.unit)
    node.boot()
    node.background("systemctl", "start", payload.unit)
    node.wait_until(lambda: node.exists("/run/waits"), "another program's line runs")
    node.write(other, "")
    node.systemctl("daemon-reload")
    node.write("/run/go", "")
    node.wait_for(payload.unit, "failed")
    assert not payload.has_run()


# --- addresses that come late ---------------------------------------------------------------------

# Longer than the gate's own wait.
LATE_SECONDS = by_day(6, by_night=20)
AGENT = f"""\
[Service]
ExecStart=/bin/sh -c 'sleep {LATE_SECONDS}; exec ip address add 172.16.0.10/16 dev ib0'
[Install]
WantedBy=multi-user.target
"""


def test_a_strict_node_waits_for_the_address_that_shadows(machine: Machine) -> None:
    enter_namespace()  # the interface is created in this thread's namespace, which was the host's
    machine.add_nic("eth0", "10.1.0.4/24", gateway="10.1.0.1", metric=100)
    with infiniband("ib0", is_up=False):
        machine.take_nic("ib0")
        payload = installed(machine)
        machine.write("/etc/systemd/system/agent.service", AGENT)
        machine.systemctl("enable", "agent.service")
        machine.boot(wait=False)
        machine.wait_until(payload.is_held, f"the gate holds {payload.unit}")
        assert "172.16.0.10/16" in machine.ip("address", "show", "dev", "ib0")
        assert not payload.has_run()
        assert markers(machine) == ["detected"]
        assert "waiting up to 60 s for an address on ib0" in machine.journal(
            "check-route-overlap.service"
        )
        write_config(machine, FIXED)
        machine.python("apply", CONFIG)
        payload.wait_until_it_ran()
        assert marker(machine) == {"ok": ""}


# --- IPv6 -----------------------------------------------------------------------------------------

CIDRS = ("172.16.1.0/24", "fd00:10:96::/48")
GATEWAY = "2001:db8:1::1"


@pytest.fixture
def dual(node: Machine) -> Machine:
    """Return a machine that is off, whose IPv4 and IPv6 default routes use eth0."""
    node.fabric("ip", "address", "add", f"{GATEWAY}/64", "dev", "eth0", "nodad")
    node.ip("address", "add", "2001:db8:1::4/64", "dev", "eth0", "nodad")
    node.ip("-6", "route", "add", "default", "via", GATEWAY, "dev", "eth0", "metric", "1024")
    return node


def test_strict_holds_a_contested_default_and_a_shadow_until_the_fix(dual: Machine) -> None:
    """A router on ib0 has advertised itself, and ib0 has a subnet of the cluster.

    A third CIDR needs a source, which the sandboxed unit can only learn from a socket.
    """
    dual.ip(
        "-6",
        "route",
        "append",
        "default",
        "dev",
        "ib0",
        "proto",
        "ra",
        "metric",
        "1024",
        "pref",
        "high",
    )
    dual.ip("address", "add", "fd00:10:96:7::10/64", "dev", "ib0", "nodad")
    dual.ip("-6", "route", "add", "default", "via", GATEWAY, "dev", "eth0", "table", "100")
    for source in ("fd00:10:96:7::10", "2001:db8:1::4"):  # of connections, and of replies
        dual.ip(
            "-6",
            "rule",
            "add",
            "from",
            source,
            "to",
            "fd00:10:97::/48",
            "lookup",
            "100",
            "pref",
            "98",
        )
    dual.ip("-6", "rule", "add", "to", "fd00:10:97::/48", "unreachable", "pref", "99")
    payload = installed(dual, FIXED, cidrs=(*CIDRS, "fd00:10:97::/48"))
    boot_held(dual, payload)
    assert "fd00:10:97::/48" not in dual.journal("check-route-overlap.service")
    overlap = (
        "OVERLAP: expected CIDR fd00:10:96::/48 (probe fd00:10:96:{}) "
        "routes via ib0, expected eth0; "
    )
    # The image was built without Python, and the script leaves hosts with such rules to it.
    assert marker(dual)["detected"].startswith("check-failed: without Python, it isn't certain: ")
    assert dual.python("apply", check=False).returncode == 1
    dual.systemctl("restart", "check-route-overlap.service", check=False)
    (told,) = marker(dual)["detected"].splitlines()
    assert told.startswith(overlap.format(":"))
    assert "by default dev ib0 proto ra metric 1024 pref high" in told
    dual.ip("-6", "route", "add", "fd00:10:96::/48", "via", GATEWAY, "dev", "eth0")
    dual.wait_until(
        lambda: overlap.format("7::") in marker(dual)["detected"], "the shadow is found"
    )
    assert overlap.format("7::") in dual.journal(payload.unit)
    assert not start(dual, payload)
    for half in ("fd00:10:96:7::/65", "fd00:10:96:7:8000::/65"):
        dual.ip("-6", "route", "add", half, "via", GATEWAY, "dev", "eth0")
    payload.wait_until_it_ran()
    assert marker(dual) == {"ok": ""}


# --- the units' sandboxes -------------------------------------------------------------------------

ONESHOTS = ("static-routes.service", "check-route-overlap.service")
WATCHER = "hostrouting-watch.service"


def exposure(node: Machine, unit: str) -> float:
    """Return systemd-analyze's exposure level for a unit, from 0 to 10."""
    said = node.run("systemd-analyze", "security", "--no-pager", unit).stdout
    return float(re.findall(r"Overall exposure level for \S+: ([0-9.]+)", said)[0])


@pytest.mark.each_release
def test_confined_units_install_and_judge(node: Machine) -> None:
    installed(node, FIXED, watch={"enabled": True}).boot()
    assert [node.state(unit) for unit in ONESHOTS] == ["active/exited"] * 2
    assert "172.16.1.0/24 via 10.1.0.1 dev eth0 proto hostrouting" in node.run("ip", "route").stdout
    assert marker(node) == {"ok": ""}
    node.wait_for(WATCHER, "active/running")
    assert [unit for unit in ONESHOTS if exposure(node, unit) > 4] == []
    assert exposure(node, WATCHER) <= 2
    said = node.journal("init.scope") + "".join(map(node.journal, (*ONESHOTS, WATCHER)))
    assert "Unknown key" not in said
