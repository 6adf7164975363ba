"""Test that a verified node stays on its uplink on a booted systemd: while it runs, at a start and
at a boot.
"""

from __future__ import annotations

import pytest

from boot.payloads import Payload
from boot.rig import Machine
from boot.test_gate import boot_held, installed, markers, start
from boot.test_watch import TEXTFILE, WATCH, entries

pytestmark = pytest.mark.each_release

RECORD = "/etc/hostrouting/uplink"
HALVES = ({"destination": "172.16.0.0/17"}, {"destination": "172.16.128.0/17"})
CIDRS = ("172.16.0.0/16", "10.96.0.0/12")
OUT = 'if another uplink is wanted now: set hostRouting\'s "uplinks": ["NAME"]'


def verified(node: Machine, **more: object) -> Payload:
    """Return the payload of a booted node on which the check has passed with eth0."""
    payload = installed(node, *HALVES, cidrs=CIDRS, **more)
    payload.boot()
    assert not node.exists(RECORD)
    assert "uplink: eth0 since " in node.python("apply").stdout
    assert node.read(RECORD).startswith("eth0 ")
    return payload


def devs_of_ours(node: Machine) -> set[str]:
    words = node.ip("-N", "route", "show", "proto", "217").split()
    return {words[at + 1] for at, word in enumerate(words) if word == "dev"}


def add_vpn(node: Machine) -> None:
    node.add_nic("wg0", "10.200.0.2/24")
    node.ip("route", "add", "default", "dev", "wg0")


def add_storage(node: Machine) -> None:
    node.add_nic("eth1", "10.9.0.5/24", gateway="10.9.0.1", metric=50)


def test_the_watcher_moves_no_route_of_a_running_node(node: Machine) -> None:
    node.write(TEXTFILE, "")
    payload = verified(node, watch=WATCH)
    pid = payload.main_pid()
    for number, add in enumerate((add_vpn, add_storage), 1):
        add(node)
        node.wait_until(lambda n=number: len(entries(node, "uplink-moved")) == n, "the journal")  # type: ignore[misc]
        node.wait_until(lambda: "hostrouting_uplink_moved 1\n" in node.read(TEXTFILE), "the metric")
        assert devs_of_ours(node) == {"eth0"}
        assert markers(node) == ["detected"]
        node.ip("link", "del", "wg0" if add is add_vpn else "eth1")
        node.wait_until(lambda: markers(node) == ["ok"], "the marker")
    assert entries(node, "uplink-moved")[0]["PRIORITY"] == "3"
    assert not entries(node, "routes-followed")
    assert (payload.main_pid(), payload.is_running()) == (pid, True)


@pytest.mark.parametrize("add", [add_vpn, add_storage])
def test_no_start_goes_through_the_interface_of_a_later_default_route(
    node: Machine, add: object
) -> None:
    payload = verified(node)
    node.systemctl("stop", payload.unit)
    (add_vpn if add is add_vpn else add_storage)(node)
    assert not start(node, payload)
    assert devs_of_ours(node) == {"eth0"}
    assert OUT in node.journal(payload.unit)
    node.ip("link", "del", "wg0" if add is add_vpn else "eth1")
    payload.wait_until_it_ran()


def test_a_boot_with_swapped_names_holds_the_node_until_the_right_nic_wins(node: Machine) -> None:
    """The other NIC is eth0 now, and its default route wins."""
    payload = verified(node)
    node.power_off()
    add_storage(node)
    node.ip("route", "flush", "proto", "217")
    for old, new in (("eth0", "tmp0"), ("eth1", "eth0"), ("tmp0", "eth1")):
        node.ip("link", "set", old, "down")
        node.ip("link", "set", old, "name", new)
        node.ip("link", "set", new, "up")
    node.ip("route", "add", "default", "via", "10.9.0.1", "dev", "eth0", "metric", "50")
    node.ip("route", "add", "default", "via", "10.1.0.1", "dev", "eth1", "metric", "100")
    boot_held(node, payload)
    assert devs_of_ours(node) == {"eth1"}
    assert "routes via eth0, expected eth1; by default" in node.journal(payload.unit)
    node.ip("route", "del", "default", "dev", "eth0")
    payload.wait_until_it_ran()
