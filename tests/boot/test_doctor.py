"""The doctor on a really booted systemd: silent on a healthy node, and it finds what only systemd knows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from boot.payloads import add_nested_machine
from boot.test_gate import (
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

WATCH = "[Service]\nType=notify\nExecStart=/opt/venv/bin/python -m hostrouting watch /etc/aks-flex-node/hostrouting.installed.json\n"


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


def test_the_planted_faults_are_found_and_the_remedies_end_them(node: Machine) -> None:
    payload = healthy(node)
    node.write(
        f"{UNITS}/nftables-flush.service", f"[Unit]\nBefore={TEMPLATE}\n[Service]\nType=oneshot\nExecStart=true\n"
    )
    node.write(f"{UNITS}/hostrouting-watch.service", WATCH)
    node.systemctl("enable", payload.unit)
    node.run_offline("ln", "-sfn", "/dev/null", f"{UNITS}/static-routes.service")
    node.run_offline("mkdir", f"{UNITS}/{TEMPLATE}.wants")
    node.run_offline("ln", "-s", f"{UNITS}/gone.service", f"{UNITS}/{TEMPLATE}.wants/check-route-overlap.service")
    node.write(ROUTES, node.read(ROUTES).replace("GATE_SECONDS=5", "GATE_SECONDS=4"), mode=0o755)
    node.write(f"{UNITS}/{payload.unit}.d/zzz-override.conf", "[Service]\nExecStartPre=\n")
    node.boot()
    payload.wait_until_it_ran()  # Python is gone, and nothing is in its way
    node.ip("route", "add", "192.168.7.0/24", "dev", "eth0", "proto", "217")
    code, findings = doctor(node)
    assert code == 1
    assert find(findings, "void-ordering")["subject"] == f"{UNITS}/nftables-flush.service"
    assert find(findings, "masked")["subject"] == "static-routes.service"
    assert find(findings, "dangling-link")["subject"] == f"{UNITS}/{TEMPLATE}.wants/check-route-overlap.service"
    assert [each["subject"] for each in findings if each["kind"] == "file-differs"] == [ROUTES]
    overridden = find(findings, "gate-overridden")
    assert overridden["subject"] == payload.unit
    assert f"remove ExecStartPre= from {UNITS}/{payload.unit}.d/zzz-override.conf" in overridden["remedy"]
    assert find(findings, "route-stray")["subject"].startswith("192.168.7.0/24")
    gone = find(findings, "python-gone")
    assert gone["subject"] == "/opt/venv/bin/python"
    assert "boot and the gate don't need it" in gone["message"]
    # As it says: the operator takes away what isn't ours, apply does the rest.
    node.remove(f"{UNITS}/{payload.unit}.d/zzz-override.conf")
    node.remove(f"{UNITS}/hostrouting-watch.service")
    node.write(f"{UNITS}/{TEMPLATE}.d/nftables-flush.conf", "[Unit]\nAfter=nftables-flush.service\n")
    node.write(f"{UNITS}/nftables-flush.service", "[Service]\nType=oneshot\nExecStart=true\n")
    node.systemctl("unmask", "static-routes.service")
    node.systemctl("daemon-reload")
    node.python("apply")
    assert doctor(node) == (0, [])


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
    assert (code, finding["kind"], finding["subject"]) == (1, "networkd-flushes", "eth0")
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
