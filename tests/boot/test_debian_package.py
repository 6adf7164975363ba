"""Test the Debian package on a booted system."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

import pytest
from wanted import section

from boot.payloads import add_nested_machine
from boot.rig import FOUND, Machine
from boot.test_gate import CONFIG, FIXED, MARKERS, UNITS, start
from boot.test_watch import UNIT as WATCHER
from boot.test_watch import is_there

pytestmark = pytest.mark.ci

HOME = "/usr/lib/hostrouting"
DEB, NEWER = "/root/hostrouting.deb", "/root/newer.deb"
TEXTFILE = "/var/lib/hostrouting.prom"
SHADOW = "192.168.7.1/16"

# This config installs everything.
DOCUMENT = {
    "hostRouting": section(
        FIXED, cidrs=["172.16.1.0/24", "192.168.0.0/16"], watch={"enabled": True, "textfile": TEXTFILE}, waitSeconds=30
    ),
    "hostNetworking": {"loadBalancerProbe": {"enabled": True, "devices": ["eth0"], "ipv6Detection": "ALWAYS"}},
}

# Rebuild the package with a higher revision.
RAISE = f"""
base64 -d {DEB}.base64 >{DEB}
dpkg-deb -R {DEB} /root/raised
sed -i '/^Version:/s/$/.1/' /root/raised/DEBIAN/control
dpkg-deb -Znone -b /root/raised {NEWER}
"""
# List all files except those written by dpkg, systemd and the rig.
FILES = "find /etc /usr /var/lib -not -path '/var/lib/[dmps]*/*' | sort"


def dpkg(node: Machine, *words: str) -> str:
    """Run dpkg without this checkout's Python code and bytecode, and return the maintainer scripts' output."""
    return node.run("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "dpkg", *words).stderr


def files(node: Machine) -> set[str]:
    return {*node.run("sh", "-c", FILES, check=False).stdout.splitlines()}


def test_it_survives_its_whole_life_from_install_to_purge(node: Machine, release: Path) -> None:
    payload = add_nested_machine(node)
    node.write(CONFIG, json.dumps(DOCUMENT))
    node.boot()
    node.remove(FOUND)
    (package,) = release.glob("*.deb")
    node.write(f"{DEB}.base64", b64encode(package.read_bytes()).decode())
    node.run("sh", "-euc", RAISE)
    before = files(node)

    dpkg(node, "--install", DEB)
    assert node.run("hostrouting", "check", check=False).returncode == 1
    node.run("hostrouting", "apply")
    node.run("hostrouting", "lb-probe", "apply")
    node.wait_for(WATCHER, "active/running")
    assert f'ExecStart="{HOME}/bin/python3"' in node.read(f"{UNITS}/{WATCHER}")

    node.reboot()
    payload.wait_until_it_ran()
    node.wait_for(WATCHER, "active/running")
    assert node.exists(TEXTFILE)
    assert is_there(node)

    machine, watcher = payload.main_pid(), node.main_pid(WATCHER)
    dpkg(node, "--install", NEWER)
    assert node.state(WATCHER) == "active/running"
    assert node.main_pid(WATCHER) != watcher
    assert node.run("hostrouting", "doctor", check=False).returncode == 0

    assert "apt purge hostrouting" in dpkg(node, "--remove", "hostrouting")
    assert not node.exists(HOME)
    assert payload.main_pid() == machine
    # The gate still works, even after a reboot, and no unit tries to run a program that was removed.
    node.reboot()
    payload.wait_until_it_ran()
    assert is_there(node)
    assert node.state(WATCHER) == "inactive/dead"
    node.ip("address", "add", SHADOW, "dev", "ib0")
    node.systemctl("stop", payload.unit)
    assert not start(node, payload)

    dpkg(node, "--purge", "hostrouting")
    assert files(node) == before
    assert not node.exists(f"{MARKERS}/route-overlap.detected")
    assert start(node, payload)
    assert is_there(node)
