"""The doctor on a really booted systemd: silent on a healthy node, and it finds what only systemd knows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from boot.payloads import add_nested_machine
from boot.test_gate import (
    CHECK,
    CONFIG,
    MENDED,
    RESTARTING,
    ROUTES,
    TEMPLATE,
    UNITS,
    install_into_image,
    installed,
    write_config,
)

if TYPE_CHECKING:
    from boot.rig import Machine


def doctor(node: Machine, *words: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the findings."""
    done = node.python("doctor", "--output", "json", *words, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)["findings"]


def find(findings: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    found = [each for each in findings if each["kind"] == kind]
    assert found, findings
    return found[0]


def healthy(node: Machine) -> Any:
    payload = installed(node, MENDED)
    node.write(f"{UNITS}/{TEMPLATE}.d/restart.conf", RESTARTING)
    return payload


def test_a_healthy_node_has_no_findings_with_and_without_its_config(node: Machine) -> None:
    payload = healthy(node)
    node.boot()
    payload.wait_until_it_ran()
    assert doctor(node) == (0, [])
    node.remove(CONFIG)
    assert doctor(node) == (0, [])


def test_the_stock_machine_is_healthy_with_a_risk_that_strict_counts(node: Machine) -> None:
    payload = installed(node, MENDED)
    node.boot()
    payload.wait_until_it_ran()
    code, (finding,) = doctor(node)
    assert (code, finding["kind"], finding["subject"]) == (0, "no-restart", TEMPLATE)
    assert doctor(node, "--strict")[0] == 1


OURS = f"{UNITS}/systemd-nspawn@kube1.service.d"
ELSEWHERE = "systemd-nspawn@kube9.service.d"


def in_drop_in(text: str, *, folder: str = OURS, name: str = "50-x", reload: bool = True) -> tuple[str, str]:
    """What plants a drop-in, and what takes it away."""
    read = "systemctl daemon-reload" if reload else "true"
    plant = f"mkdir -p {folder}; printf '{text}' >{folder}/{name}.conf; {read}"
    return plant, f"rm -r {folder}; systemctl daemon-reload"


# What only systemd, or the kernel's mounts and locks, can tell; by name what plants it, what mends it, and what is found.
LIVE = {
    "success": (*in_drop_in("[Service]\nSuccessExitStatus=DATAERR 255\n"), "gate-disobeyed"),
    "time": (*in_drop_in("[Service]\nTimeoutStartSec=2\n"), "gate-disobeyed"),
    "mount": (*in_drop_in(f"[Service]\nBindPaths=/bin/true:{CHECK}\n"), "own-files"),
    "root": (*in_drop_in("[Service]\nRootDirectory=/var/lib/machines\n"), "own-files"),
    "unread": (*in_drop_in("[Service]\nExecStartPre=\n", name="zzz", reload=False), "not-reloaded"),
    "unread for all": (
        *in_drop_in("[Service]\nExecStartPre=\n", folder=f"{UNITS}/service.d", name="zzz", reload=False),
        "not-reloaded",
    ),
    "unloaded": (
        *in_drop_in("[Service]\nExecStartPre=\n", folder=f"/usr/lib/systemd/system/{ELSEWHERE}", name="zzz"),
        "gate-overridden",
    ),
    "restart": (*in_drop_in("[Service]\nRestartPreventExitStatus=255\n"), "no-restart"),
    "limit": (*in_drop_in("[Unit]\nStartLimitIntervalSec=1h\nStartLimitBurst=2\n"), "no-restart"),
    "tied": (*in_drop_in("[Unit]\nRequires=static-routes.service\n"), "tied"),
    "link": (
        f"mkdir -p /run/systemd/system/{TEMPLATE}.requires; "
        f"ln -s {UNITS}/static-routes.service /run/systemd/system/{TEMPLATE}.requires/; systemctl daemon-reload",
        f"rm -r /run/systemd/system/{TEMPLATE}.requires; systemctl daemon-reload",
        "tied",
    ),
    "noexec": (
        "mount --bind /etc/aks-flex-node /etc/aks-flex-node; mount -o remount,bind,noexec /etc/aks-flex-node",
        "umount /etc/aks-flex-node",
        "noexec",
    ),
    "read-only": (
        "mount -t tmpfs -o ro,mode=755 none /run/aks-flex-node",
        "umount /run/aks-flex-node",
        "read-only",
    ),
    "dash": (
        "mount --bind /bin/dash $(readlink -f /bin/bash)",
        "umount -l $(readlink -f /bin/bash)",
        "tool-missing",
    ),
    "flock": ("mount --bind /dev/null /usr/bin/flock", "umount -l /usr/bin/flock", "tool-missing"),
    "owner": ("chown nobody /etc/aks-flex-node", "chown root /etc/aks-flex-node", "file-owner"),
    "masked": (
        "systemctl mask --runtime systemd-nspawn@kube1.service",
        "systemctl unmask --runtime systemd-nspawn@kube1.service",
        "masked",
    ),
    "defaults": (
        "mkdir -p /run/systemd/system.conf.d; systemctl daemon-reload; "
        "printf '[Manager]\nDefaultTimeoutStartSec=2s\n' >/run/systemd/system.conf.d/x.conf; systemctl daemon-reexec",
        "rm /run/systemd/system.conf.d/x.conf; systemctl daemon-reexec",
        "gate-disobeyed",
    ),
}


def test_what_only_a_running_system_tells_is_found_and_a_healthy_node_is_silent_again(node: Machine) -> None:
    payload = healthy(node)
    node.boot()
    payload.wait_until_it_ran()
    pid = payload.main_pid()
    for name, (plant, mend, kind) in LIVE.items():
        node.run("sh", "-euc", plant)
        kinds = {each["kind"] for each in doctor(node)[1]}
        node.run("sh", "-euc", mend)
        assert kinds == {kind} | ({"gate-overridden"} if name == "unread for all" else set()), name
    assert doctor(node) == (0, [])
    assert payload.main_pid() == pid


def test_the_planted_faults_are_found_and_the_remedies_end_them(node: Machine) -> None:
    payload = healthy(node)
    node.run_offline("ln", "-sfn", "/dev/null", f"{UNITS}/static-routes.service")
    node.write(ROUTES, node.read(ROUTES).replace("GATE_SECONDS=5", "GATE_SECONDS=4"), mode=0o755)
    node.write(f"{OURS}/zzz-override.conf", "[Service]\nExecStartPre=\n")
    node.boot()
    payload.wait_until_it_ran()
    node.ip("route", "delete", "172.16.1.0/24")
    code, findings = doctor(node)
    assert code == 1
    assert [each["examination"] for each in findings][0] == "verdict"
    assert find(findings, "shadowed")["message"].startswith("its next start is held back: OVERLAP: expected CIDR")
    assert find(findings, "masked")["subject"] == "static-routes.service"
    assert [each["subject"] for each in findings if each["kind"] == "file-differs"] == [ROUTES]
    overridden = find(findings, "gate-overridden")
    assert overridden["subject"] == payload.unit
    assert f"out of {OURS}/zzz-override.conf" in overridden["remedy"]
    # As it says: the operator takes away what isn't ours, apply does the rest.
    node.remove(f"{OURS}/zzz-override.conf")
    node.systemctl("unmask", "static-routes.service")
    node.systemctl("daemon-reload")
    node.python("apply")
    assert doctor(node) == (0, [])


def test_a_watcher_that_can_not_run_and_a_consumer_that_nobody_has_are_found(node: Machine) -> None:
    metrics = "/var/lib/metrics/hostrouting.prom"
    installed(node, MENDED, consumer="kubelt.service", watch={"enabled": True, "textfile": metrics})
    unit = f"{UNITS}/hostrouting-watch.service"
    node.write(unit, node.read(unit).replace("RestartSec=10", "RestartSec=100ms"))
    node.boot()
    found = doctor(node)[1]
    assert find(found, "no-consumer")["subject"] == "kubelt.service"
    assert find(found, "watcher-fails")["subject"] == "hostrouting-watch.service"
    assert find(found, "textfile")["subject"] == "/var/lib/metrics"


def test_an_ordering_cycle_is_named_unit_by_unit(node: Machine) -> None:
    payload = healthy(node)
    unit = f"[Unit]\nAfter={payload.unit}\nBefore=static-routes.service\n[Service]\nType=oneshot\nExecStart=true\n"
    node.write(f"{UNITS}/net-late.service", f"{unit}[Install]\nWantedBy=multi-user.target\n")
    node.systemctl("enable", "net-late.service")
    node.boot()
    cycle = find(doctor(node)[1], "ordering-cycle")
    for name in ("net-late.service", payload.unit, "static-routes.service"):
        assert name in cycle["message"]
        assert name in cycle["remedy"]


def test_what_networkd_would_do_is_foretold_and_the_remedy_keeps_the_routes(machine: Machine) -> None:
    machine.add_nic("eth0")
    machine.add_nic("ib0", "172.16.0.10/16")
    base = "[Match]\nName=eth0\n[Network]\nAddress=10.1.0.4/24\nGateway=10.1.0.1\nLinkLocalAddressing=no\n"
    machine.write("/etc/systemd/network/10-eth0.network", base)
    machine.systemctl("enable", "systemd-networkd.service")
    payload = add_nested_machine(machine)
    write_config(machine, MENDED, wait=30)
    install_into_image(machine)
    machine.write(f"{UNITS}/{TEMPLATE}.d/restart.conf", RESTARTING)
    machine.boot()
    payload.wait_until_it_ran()

    def is_there() -> bool:
        return "172.16.1.0/24" in machine.ip("route")

    assert is_there()
    code, (finding,) = doctor(machine)
    assert (code, finding["kind"], finding["subject"]) == (0, "networkd-flushes", "eth0")
    assert "networkctl reconfigure" in finding["message"]
    if machine.systemd_version >= 257:
        path, _, rest = finding["remedy"].partition(":\n")
        machine.write(path, rest.partition("\nthen")[0].replace("  ", "") + "\n")
        machine.systemctl("restart", "systemd-networkd")
    else:
        machine.run("networkctl", "reconfigure", "eth0")
        machine.wait_until(lambda: not is_there(), "the route is gone, as foretold")
        assert "route-missing" in [each["kind"] for each in doctor(machine)[1]]
        sections = "".join(f"{line[2:]}\n" for line in finding["remedy"].splitlines() if line.startswith("  "))
        machine.write("/etc/systemd/network/10-eth0.network.d/90-hostrouting.conf", sections)
        machine.run("networkctl", "reload")
        machine.wait_until(is_there, "networkd has installed it")
    assert doctor(machine) == (0, [])
    machine.run("networkctl", "reconfigure", "eth0")
    machine.wait_until(is_there, "the route is there after a reconfigure")
