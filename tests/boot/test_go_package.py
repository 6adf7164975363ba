"""Test that a node that runs the Go package comes to hostrouting without a restart, and leaves
nothing behind.
"""

from __future__ import annotations

import pytest
from go_package import ANY, go_package_files
from wanted import config

from boot.payloads import Payload, add_nested_machine
from boot.rig import Machine
from boot.test_gate import FIXED, ROUTES, start, write_config
from boot.test_ways_to_install import OUT, carry

ROW = f"172.16.1.0/24|{ANY}|0"
UNWANTED = f"172.16.2.0/24|{ANY}|0"


@pytest.fixture
def running(node: Machine) -> Payload:
    """Return a running machine whose routes the Go package has installed."""
    payload = add_nested_machine(node)
    files = go_package_files(ROW, UNWANTED)
    for path, (text, mode) in files.items():
        node.write(path, text, mode=mode)
    node.systemctl("enable", "static-routes.service", "check-route-overlap.service")
    payload.boot()
    assert routes(node) == {
        "172.16.1.0/24": "via 10.1.0.1 dev eth0",
        "172.16.2.0/24": "via 10.1.0.1 dev eth0",
    }
    return payload


def routes(node: Machine) -> dict[str, str]:
    """Return the routes of the cluster's network that a program has installed, by destination."""
    lines = node.run(
        "ip", "-N", "-4", "-o", "route", "show", "table", "main", "root", "172.16.0.0/16"
    ).stdout
    found = dict(line.split(maxsplit=1) for line in lines.splitlines() if "proto 2 " not in line)
    return {destination: words.strip() for destination, words in found.items()}


@pytest.mark.parametrize("by", ["apply", "install.sh"])
def test_a_moved_gateway_and_a_removal_after_the_go_package(
    node: Machine, running: Payload, by: str
) -> None:
    """The Go package itself would follow the gateway; only its script knows which routes are its
    own.
    """
    pid = running.main_pid()
    write_config(node, FIXED)
    if by == "apply":
        node.python("apply")
    else:
        carry(node, config(FIXED, waitSeconds=1))
        node.run(f"{OUT}/install.sh")
    assert running.main_pid() == pid
    assert routes(node) == {"172.16.1.0/24": "via 10.1.0.1 dev eth0 proto 217"}
    assert not node.exists("/run/aks-flex-node/adopted")
    assert "static-routes.service" not in node.show(running.unit, "Requires")["Requires"].split()
    enabled = node.systemctl(
        "is-enabled", "static-routes.service", "check-route-overlap.service"
    ).stdout.split()
    assert enabled == ["enabled", "enabled"]
    node.systemctl("restart", "static-routes.service", "check-route-overlap.service")
    assert running.main_pid() == pid

    node.ip("route", "replace", "default", "via", "10.1.0.254", "dev", "eth0", "metric", "100")
    node.systemctl("stop", running.unit)
    assert start(node, running)
    assert routes(node) == {"172.16.1.0/24": "via 10.1.0.254 dev eth0 proto 217"}
    if by == "apply":
        node.python("remove")
    else:
        node.run(f"{OUT}/remove.sh")
    assert routes(node) == {}


def test_the_gate_holds_instead_of_the_go_packages_links(node: Machine, running: Payload) -> None:
    write_config(node, FIXED)
    node.python("apply")
    node.ip("route", "del", "172.16.1.0/24", "proto", "217")
    node.systemctl("stop", running.unit)
    node.remove(ROUTES)
    assert not start(node, running)


def test_an_interrupted_takeover_ends_at_the_next_start(node: Machine, running: Payload) -> None:
    """A run is killed when the scripts are in place, but not yet the routes."""
    write_config(node, FIXED)
    node.python("apply")
    node.ip("route", "replace", "172.16.1.0/24", "via", "10.1.0.1", "dev", "eth0", "proto", "boot")
    node.ip("route", "add", "172.16.2.0/24", "via", "10.1.0.1", "dev", "eth0", "proto", "boot")
    node.write("/run/aks-flex-node/adopted", "172.16.1.0/24 * * 0\n172.16.2.0/24 * * 0\n")
    node.systemctl("restart", "static-routes.service")
    assert routes(node) == {"172.16.1.0/24": "via 10.1.0.1 dev eth0 proto 217"}
    assert not node.exists("/run/aks-flex-node/adopted")
