"""Test the doctor on a booted systemd, for findings that only systemd can reveal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from boot.rig import Machine
from boot.test_gate import CHECK, CONFIG, FIXED, RESTARTING, ROUTES, TEMPLATE, UNITS, installed


def doctor(node: Machine) -> tuple[int, list[dict[str, Any]]]:
    """Run the doctor, and return its exit code and findings."""
    done = node.python("doctor", "--output", "json", check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)["findings"]


def find(findings: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    found = [each for each in findings if each["kind"] == kind]
    assert found, findings
    return found[0]


def healthy(node: Machine) -> Any:
    payload = installed(node, FIXED, keep=["ib0"])
    node.write(f"{UNITS}/{TEMPLATE}.d/restart.conf", RESTARTING)
    node.write("/etc/hostrouting/uplink", "eth0\n")
    return payload


RELOAD = "systemctl daemon-reload"
MANAGER = "/run/systemd/system.conf.d"
OURS = f"{UNITS}/systemd-nspawn@kube1.service.d"
ELSEWHERE = "/usr/lib/systemd/system/systemd-nspawn@kube9.service.d"
LINKS = f"/run/systemd/system/{TEMPLATE}.requires"

SETTINGS = f"""\
[Unit]
Requires=static-routes.service
[Service]
SuccessExitStatus=DATAERR 255
TimeoutStartSec=2
BindPaths=/bin/true:{CHECK}
RestartPreventExitStatus=255
"""

# Faults visible only in systemd or the kernel's mounts: how to create and fix each one, and the
# findings.
LIVE = [
    (
        [f"mkdir -p {OURS}", f"printf '{SETTINGS}' >{OURS}/x.conf", RELOAD],
        [f"rm -r {OURS}", RELOAD],
        {"gate-disobeyed", "own-files", "no-restart", "tied"},
    ),
    (
        [
            f"mkdir {UNITS}/service.d {ELSEWHERE}",
            (
                r"printf '[Service]\nExecStartPre=\n' | "
                rf"tee {UNITS}/service.d/zzz.conf >{ELSEWHERE}/zzz.conf"
            ),
        ],
        [f"rm -r {UNITS}/service.d {ELSEWHERE}", RELOAD],
        {"gate-overridden", "not-reloaded"},
    ),
    (
        [
            f"mkdir -p {MANAGER} {LINKS}",
            f"ln -s {UNITS}/static-routes.service {LINKS}",
            (
                r"printf '[Manager]\nDefaultTimeoutStartSec=2\nDefaultStartLimitIntervalSec=1h\n' "
                rf">{MANAGER}/x.conf"
            ),
            RELOAD,
        ],
        [f"rm -r {MANAGER}/x.conf {LINKS}", RELOAD],
        {"gate-disobeyed", "no-restart", "tied"},
    ),
    (
        [
            "mount --bind /etc/aks-flex-node /etc/aks-flex-node",
            "mount -o remount,bind,noexec /etc/aks-flex-node",
            "mount -t tmpfs -o ro,mode=755 none /run/aks-flex-node",
            "mount --bind /dev/null /usr/bin/flock",
        ],
        ["umount /etc/aks-flex-node /run/aks-flex-node /usr/bin/flock"],
        {"noexec", "read-only", "tool-missing"},
    ),
    (
        [
            "chown nobody /etc/aks-flex-node",
            "systemctl mask --runtime systemd-nspawn@kube1",
            "mount --bind /bin/dash /bin/bash",
        ],
        [
            "chown root /etc/aks-flex-node",
            "systemctl unmask --runtime systemd-nspawn@kube1",
            "umount -l /bin/bash",
        ],
        {"file-owner", "masked", "tool-missing"},
    ),
]


@pytest.mark.each_release
def test_faults_of_a_running_system_are_found(node: Machine, by_turns: Any) -> None:
    payload = healthy(node).boot()
    pid = payload.main_pid()
    for plant, fix, kinds in by_turns(LIVE):
        node.run("sh", "-euc", "\n".join(plant))
        assert {each["kind"] for each in doctor(node)[1]} == kinds
        node.run("sh", "-euc", "\n".join(fix))
    assert doctor(node) == (0, [])
    assert payload.main_pid() == pid
    node.remove(CONFIG)
    node.remove(f"{UNITS}/{TEMPLATE}.d/restart.conf")
    node.systemctl("daemon-reload")
    code, found = doctor(node)
    assert (code, {each["kind"] for each in found}) == (0, {"no-restart"})
    assert TEMPLATE in {each["subject"] for each in found}


def test_planted_faults_are_found_and_their_hints_end_them(node: Machine) -> None:
    payload = healthy(node)
    node.run_offline("ln", "-sfn", "/dev/null", f"{UNITS}/static-routes.service")
    node.write(ROUTES, node.read(ROUTES).replace("GATE_SECONDS=5", "GATE_SECONDS=4"), mode=0o755)
    node.write(f"{OURS}/zzz-override.conf", "[Service]\nExecCondition=\nExecStartPre=\n")
    payload.boot()
    code, findings = doctor(node)
    assert code == 1
    assert findings[0]["check"] == "verdict"
    message = find(findings, "shadowed")["message"]
    assert message.startswith(
        f"nothing holds the next start of {payload.unit}, as its gate is overridden: OVERLAP: "
    )
    assert find(findings, "masked")["subject"] == "static-routes.service"
    assert [each["subject"] for each in findings if each["kind"] == "file-differs"] == [ROUTES]
    overridden = find(findings, "gate-overridden")
    assert overridden["subject"] == payload.unit
    assert f"out of {OURS}/zzz-override.conf" in overridden["hint"]
    # Follow the hints: the operator removes foreign files, and apply does the rest.
    node.remove(f"{OURS}/zzz-override.conf")
    node.systemctl("unmask", "static-routes.service")
    node.systemctl("daemon-reload")
    node.python("apply")
    assert doctor(node) == (0, [])


def test_an_ordering_cycle_is_named_unit_by_unit(node: Machine) -> None:
    payload = healthy(node)
    unit = (
        f"[Unit]\nAfter={payload.unit}\nBefore=static-routes.service\n"
        "[Service]\nType=oneshot\nExecStart=true\n"
    )
    node.write(f"{UNITS}/net-late.service", f"{unit}[Install]\nWantedBy=multi-user.target\n")
    node.systemctl("enable", "net-late.service")
    node.boot()
    cycle = find(doctor(node)[1], "ordering-cycle")
    for name in ("net-late.service", payload.unit, "static-routes.service"):
        assert name in cycle["message"]
        assert name in cycle["hint"]
