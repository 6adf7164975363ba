"""Test the watcher on a booted systemd, as a service and together with systemd-networkd."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from boot.payloads import Payload
from boot.rig import FOUND, Machine
from boot.test_gate import FIXED, MARKERS, installed

UNIT = "hostrouting-watch.service"
TEXTFILE = "/var/lib/metrics/hostrouting.prom"
WATCH = {"enabled": True, "textfile": TEXTFILE}
NETWORK = "/etc/systemd/network/10-eth0.network"
OURS = "172.16.1.0/24 via 10.1.0.1 dev eth0 proto 217"


def routes(node: Machine) -> list[str]:
    return [" ".join(line.split()) for line in node.ip("-N", "route").splitlines()]


def is_there(node: Machine) -> bool:
    return OURS in routes(node)


def accepts(node: Machine) -> bool:
    """Return whether the kernel accepts our route, which requires the default route's gateway to be reachable."""
    return any(line.startswith("default via 10.1.0.1 dev eth0") for line in routes(node))


def take_three_times(node: Machine) -> None:
    """Delete our route three times, after which the watcher complains."""
    for _ in range(3):
        node.ip("route", "del", "172.16.1.0/24")
        node.wait_until(lambda: is_there(node), "the route is back")
        # The watcher counts losses in quick succession as one.
        node.run("sleep", "0.3")


# --- together with systemd-networkd --------------------------------------------------------------------------------


def write_network(node: Machine, comment: str = "") -> None:
    lines = "[Match]\nName=eth0\n[Network]\nAddress=10.1.0.4/24\nGateway=10.1.0.1\nLinkLocalAddressing=no\n"
    node.write(NETWORK, f"{lines}{comment}")


def shown(node: Machine) -> str:
    """Return networkd's view of eth0."""
    return " ".join(node.run("networkctl", "list", "--no-pager", "--no-legend", "eth0").stdout.split())


def reload_changed(node: Machine) -> None:
    write_network(node, f"[Link]\nMTUBytes={1400 + int(time.monotonic()) % 100}\n")
    node.run("networkctl", "reload")


def reconfigure(node: Machine) -> None:
    node.run("networkctl", "reconfigure", "eth0")


def restart_networkd(node: Machine) -> None:
    node.systemctl("restart", "systemd-networkd.service")


def link_down_and_up(node: Machine) -> None:
    node.ip("link", "set", "eth0", "down")
    # networkd 252 fails permanently if both events arrive together.
    node.wait_until(lambda: "eth0 ether off" in shown(node), "networkd has seen it")
    node.ip("link", "set", "eth0", "up")


def lose_carrier(node: Machine) -> None:
    node.fabric("ip", "link", "set", "eth0", "down")
    node.wait_until(lambda: not accepts(node), "networkd has seen it")
    node.fabric("ip", "link", "set", "eth0", "up")


# The events marked "gone" in facts/systemd.md. By day they take turns, so each list has its own order.
GONE: dict[int, list[Callable[[Machine], None]]] = {
    252: [reload_changed, link_down_and_up, lose_carrier, reconfigure],
    257: [reload_changed, restart_networkd, lose_carrier, reconfigure, link_down_and_up],
}


def settle(node: Machine) -> None:
    """Wait until networkd has finished and the kernel accepts our route again."""
    node.wait_until(lambda: accepts(node), "the default route is back")
    node.wait_until(lambda: "configured" in shown(node).split(), "configured")


@pytest.mark.each_release
def test_only_the_watcher_restores_what_networkd_removes(machine: Machine, by_turns: Any) -> None:
    machine.add_nic("eth0")
    machine.add_nic("ib0", "172.16.0.10/16")
    write_network(machine)
    machine.systemctl("enable", "systemd-networkd.service")
    payload = installed(machine, FIXED, waitSeconds=30, watch=WATCH)
    machine.write(TEXTFILE, "")
    payload.boot()
    pid = payload.main_pid()
    machine.wait_for(UNIT, "active/running")
    assert is_there(machine)
    for operation in by_turns(GONE[machine.systemd_version]):
        machine.systemctl("stop", UNIT)
        operation(machine)
        settle(machine)
        assert not is_there(machine), f"{operation.__name__} takes nothing away"
        machine.systemctl("start", UNIT)
        assert is_there(machine)
        watcher = machine.main_pid(UNIT)
        operation(machine)
        settle(machine)
        machine.wait_until(lambda: is_there(machine), f"the route after {operation.__name__}")
        assert machine.main_pid(UNIT) == watcher
    take_three_times(machine)
    assert "eth0 is managed by systemd-networkd" in entries(machine, "routes-contested")[-1]["MESSAGE"]
    assert payload.main_pid() == pid
    assert len(payload.starts()) == 1
    assert machine.show(UNIT, "NRestarts")["NRestarts"] == "0"


# --- as a service --------------------------------------------------------------------------------------------------


def entries(node: Machine, event: str) -> list[dict[str, str]]:
    """Return the journal entries for an event, with their fields."""
    node.run("journalctl", "--sync", check=False)
    out = node.run("journalctl", "--boot", "--output=json", f"HOSTROUTING_EVENT={event}", check=False).stdout
    return [json.loads(line) for line in out.splitlines()]


def markers(node: Machine) -> list[str]:
    """Return the existing markers. There may briefly be no marker between two verdicts."""
    return [name for name in ("ok", "detected") if node.exists(f"{MARKERS}/route-overlap.{name}")]


def is_ok(node: Machine, cidr: str) -> bool:
    return f'hostrouting_cidr_verdict{{cidr="{cidr}",verdict="ok"}} 1\n' in node.read(TEXTFILE)


@pytest.fixture
def watched(node: Machine) -> Payload:
    """Return the payload of a booted node behind a STRICT gate, with a watcher."""
    payload = installed(node, FIXED, cidrs=("172.16.1.0/24", "192.168.0.0/16"), watch=WATCH)
    node.write(TEXTFILE, "")
    payload.boot()
    node.wait_for(UNIT, "active/running")
    return payload


def test_a_late_infiniband_address_stops_no_machine(node: Machine, watched: Payload) -> None:
    pid = watched.main_pid()
    assert markers(node) == ["ok"]
    assert is_ok(node, "192.168.0.0/16")
    for attempt in (1, 2):
        node.ip("address", "add", "192.168.7.1/16", "dev", "ib0")
        node.wait_until(lambda: markers(node) == ["detected"], "the marker")
        node.wait_until(lambda: not is_ok(node, "192.168.0.0/16"), "the metrics")
        node.wait_until(lambda n=attempt: len(entries(node, "failure")) == n, "the journal")  # type: ignore[misc]
        assert "overlap: OVERLAP: expected CIDR 192.168.0.0/16" in node.show(UNIT, "StatusText")["StatusText"]
        node.ip("address", "del", "192.168.7.1/16", "dev", "ib0")
        node.wait_until(lambda: markers(node) == ["ok"], "the marker")
        node.wait_until(lambda: is_ok(node, "192.168.0.0/16"), "the metrics")
    entry = entries(node, "failure")[0]
    assert 'fix: add to hostRouting.staticRoutes.routes: {"destination": "192.168.0.0/17"}' in entry["MESSAGE"]
    assert (entry["HOSTROUTING_CIDR"], entry["HOSTROUTING_DEV"]) == ("192.168.0.0/16", "ib0")
    assert (entry["PRIORITY"], entry["_SYSTEMD_UNIT"]) == ("3", UNIT)
    assert len(entries(node, "failure-gone")) == 2
    status = node.read(f"/proc/{node.main_pid(UNIT)}/status")
    assert "CapEff:\t0000000000001000\n" in status, "CAP_NET_ADMIN and no other"
    flood = [f"route {verb} 20.{n >> 8}.{n & 255}.0/24 dev ib0" for verb in ("add", "del") for n in range(5000)]
    node.run("ip", "-batch", "-", input="\n".join([*flood, "route del 172.16.1.0/24", ""]))
    node.wait_until(lambda: is_there(node), "the route is back after a flood")
    assert node.show(UNIT, "NRestarts")["NRestarts"] == "0"
    assert watched.main_pid() == pid
    assert watched.is_running()


def test_a_moved_python_breaks_neither_boot_nor_machine(node: Machine) -> None:
    payload = installed(node, FIXED, watch=WATCH)
    node.remove(FOUND)
    payload.boot()
    assert "No module named hostrouting" in node.journal(UNIT)
    assert node.state(UNIT) != "active/running"
    assert markers(node) == ["ok"]
