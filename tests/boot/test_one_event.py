"""Test that restarting systemd-networkd has the predicted result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from boot.rig import Machine

CIDR = "172.16.1.0/24"


def checked(node: Machine, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        node.python("check", "--cidr", CIDR, "--output", "json", *words, check=False).stdout
    )
    return found


def told(report: dict[str, Any]) -> tuple[object, ...]:
    return report["verdict"], [(each["kind"], each["probe"], each["devs"]) for each in report["findings"]]


@pytest.mark.parametrize("setting", ["", "ManageForeignRoutes=no"])
def test_a_restart_of_networkd_ends_as_predicted(machine: Machine, suite: str, setting: str) -> None:
    for dev, address in (("eth0", "10.1.0.4/24\nGateway=10.1.0.1"), ("ib0", "172.16.0.10/16")):
        machine.add_nic(dev)
        network = f"[Match]\nName={dev}\n[Network]\nAddress={address}\nLinkLocalAddressing=no\n"
        machine.write(f"/etc/systemd/network/10-{dev}.network", network)
    machine.write("/etc/systemd/networkd.conf.d/10.conf", f"[Network]\n{setting}\n")
    machine.systemctl("enable", "systemd-networkd.service")
    machine.boot()

    def is_configured() -> bool:
        listed = machine.run("networkctl", "list", "--no-pager").stdout.splitlines()
        return sum(" configured" in line for line in listed) == 2

    machine.wait_until(is_configured, "both interfaces are configured")
    machine.ip("route", "add", CIDR, "via", "10.1.0.1", "dev", "eth0", "proto", "217")
    (event,) = (each for each in checked(machine, "--one-event")["events"] if each["event"]["kind"] == "restart")
    assert event["event"]["subject"] == "systemd-networkd"
    machine.systemctl("restart", "systemd-networkd.service")
    machine.wait_until(is_configured, "both are configured again")
    now = checked(machine)
    assert told(now) == told(event)
    assert now["verdict"] == ("overlap" if suite == "trixie" and not setting else "ok")
