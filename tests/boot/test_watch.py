"""Test the watcher as a service on a booted systemd.

``test_networkd`` tests it together with systemd-networkd.
"""

from __future__ import annotations

import json

import pytest

from boot.payloads import Payload
from boot.rig import FOUND, Machine
from boot.test_gate import FIXED, installed, markers

UNIT = "hostrouting-watch.service"
TEXTFILE = "/var/lib/metrics/hostrouting.prom"
KEPT = "/var/lib/hostrouting"
WATCH = {"enabled": True, "textfile": TEXTFILE}
OURS = "172.16.1.0/24 via 10.1.0.1 dev eth0 proto 217"


def routes(node: Machine) -> list[str]:
    return [" ".join(line.split()) for line in node.ip("-N", "route").splitlines()]


def is_there(node: Machine) -> bool:
    return OURS in routes(node)


def entries(node: Machine, event: str) -> list[dict[str, str]]:
    """Return the journal entries for an event, with their fields."""
    node.run("journalctl", "--sync", check=False)
    out = node.run(
        "journalctl", "--boot", "--output=json", f"HOSTROUTING_EVENT={event}", check=False
    ).stdout
    return [json.loads(line) for line in out.splitlines()]


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
        assert (
            "overlap: OVERLAP: expected CIDR 192.168.0.0/16"
            in node.show(UNIT, "StatusText")["StatusText"]
        )
        node.ip("address", "del", "192.168.7.1/16", "dev", "ib0")
        node.wait_until(lambda: markers(node) == ["ok"], "the marker")
        node.wait_until(lambda: is_ok(node, "192.168.0.0/16"), "the metrics")
    entry = entries(node, "failure")[0]
    assert (
        'fix: add to hostRouting.staticRoutes.routes: {"destination": "192.168.0.0/17"}'
        in entry["MESSAGE"]
    )
    assert (entry["HOSTROUTING_CIDR"], entry["HOSTROUTING_DEV"]) == ("192.168.0.0/16", "ib0")
    assert (entry["PRIORITY"], entry["_SYSTEMD_UNIT"]) == ("3", UNIT)
    assert len(entries(node, "failure-gone")) == 2
    status = node.read(f"/proc/{node.main_pid(UNIT)}/status")
    assert "CapEff:\t0000000000001000\n" in status, "CAP_NET_ADMIN and no other"
    node.ip("route", "del", "172.16.1.0/24")
    node.wait_until(lambda: is_there(node), "the route is back")
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


def test_the_watchers_snapshots_go_with_it(node: Machine, watched: Payload) -> None:
    """The service may write them, only root reads them, and removing everything leaves nothing of
    them.
    """
    node.wait_until(lambda: node.exists(f"{KEPT}/good.json"), "the first snapshot")
    node.ip("address", "add", "192.168.7.1/16", "dev", "ib0")
    node.wait_until(lambda: node.exists(f"{KEPT}/bad.json"), "the second snapshot")
    listed = node.run(
        "stat", "--format=%a %U", KEPT, f"{KEPT}/good.json", f"{KEPT}/bad.json"
    ).stdout
    assert listed.split("\n")[:3] == ["700 root", "600 root", "600 root"]
    found = node.python(
        "diff", f"{KEPT}/good.json", f"{KEPT}/bad.json", "--output", "json", check=False
    )
    assert found.returncode == 1
    document = json.loads(found.stdout)
    assert [each["cidr"] for each in document["changed"]] == ["192.168.0.0/16"] * len(
        document["changed"]
    )
    assert "192.168.0.0/16 dev ib0" in str(document["changed"][0]["causes"])
    node.python("remove")
    assert not node.exists(KEPT)
    assert watched.is_running()
