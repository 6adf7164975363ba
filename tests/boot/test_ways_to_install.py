"""Test hosts that get hostrouting as a Debian package, or without Python from an Ignition document
or install.sh.
"""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

import pytest
from file_trees import written_by_ignition
from wanted import config, section

from boot.payloads import Payload, add_nested_machine
from boot.rig import FOUND, Machine
from boot.test_gate import CONFIG, FIX, FIXED, MARKERS, UNITS, boot_held, files, marker, start
from boot.test_watch import UNIT as WATCHER
from boot.test_watch import is_there
from hostrouting import Config, Layout
from hostrouting.boot.bundle import bundle, ignition

OUT = "/root/out"
OTHER = {"destination": "172.16.9.0/24"}
# Ignition enables units through presets, which systemd applies at the first boot.
PRESET = "/etc/systemd/system-preset/20-ignition.preset"


def carry(node: Machine, asked: Config) -> None:
    """Copy the files written by ``render --out`` to a machine."""
    node.remove(OUT)
    for file in bundle(asked, Layout(OUT)):
        node.write(str(file.path), file.text, mode=file.mode)


def without_python(node: Machine) -> None:
    for name in ("python3", "hostrouting"):
        node.remove(f"/usr/bin/{name}")
    assert node.run_offline("sh", "-c", "command -v python3", check=False).returncode != 0


def provision(node: Machine, asked: Config) -> None:
    """Write an Ignition document's files and enable its units."""
    made = ignition(asked)
    for path, (text, mode) in written_by_ignition(made).items():
        node.write(path, text, mode=mode)
    units = [unit["name"] for unit in made["systemd"]["units"] if unit.get("enabled")]
    node.write(PRESET, "".join(f"enable {name}\n" for name in units))
    node.systemctl("preset", *units)


def test_an_ignition_document_alone_holds_the_node(node: Machine) -> None:
    payload = add_nested_machine(node)
    without_python(node)
    before = files(node)
    provision(node, config(waitSeconds=1))
    boot_held(node, payload)
    assert "OVERLAP: expected CIDR 172.16.1.0/24" in node.journal(payload.unit)
    assert list(marker(node)) == ["detected"]
    node.ip(*FIX)
    payload.wait_until_it_ran()

    pid = payload.main_pid()
    carry(node, config(waitSeconds=1))
    said = node.run(f"{OUT}/remove.sh").stdout
    assert "removed /run/aks-flex-node/route-overlap.ok" in said
    assert payload.main_pid() == pid
    node.ip("route", "delete", *FIX[2:])
    node.systemctl("stop", payload.unit)
    assert start(node, payload), "nothing holds it any more"
    node.power_off()
    node.remove(PRESET.rpartition("/")[0])
    assert files(node) == before


@pytest.fixture
def running(node: Machine) -> Payload:
    """Return the payload of a running machine on which nothing is installed."""
    payload = add_nested_machine(node)
    without_python(node)
    return payload.boot()


def test_on_a_running_node_it_stops_nothing(node: Machine, running: Payload) -> None:
    before, pid, reloads = files(node), running.main_pid(), list[int]()
    override = "/etc/systemd/system/systemd-nspawn@kube1.service.d/zzz.conf"
    node.write(override, "[Service]\nExecStartPre=\n")
    carry(node, config(FIXED, waitSeconds=1))
    done = node.run(f"{OUT}/install.sh", check=False)
    assert (
        done.returncode,
        "the gate doesn't hold systemd-nspawn@kube1.service" in done.stderr,
    ) == (1, True)
    node.remove(override.rpartition("/")[0])
    assert files(node) == before
    assert "217" not in node.run("ip", "-N", "-4", "route").stdout

    for routes, cidr in (((), "10.96.0.0/12"), ((FIXED,), "172.16.1.0/24"), ((), "10.96.0.0/12")):
        carry(node, config(*routes, OTHER, cidrs=(cidr,), waitSeconds=1))
        node.run(f"{OUT}/install.sh")
        assert (
            node.run("ip", "-N", "-4", "-o", "route").stdout.count("proto 217") == len(routes) + 1
        )
        assert marker(node) == {"ok": ""}
        assert running.main_pid() == pid
        reloads.append(node.journal().count("Reloading"))
    assert reloads == reloads[:1] * 3, "only the first has changed what systemd reads"
    node.systemctl("stop", running.unit)
    assert start(node, running)

    carry(node, config(OTHER, waitSeconds=1))
    done = node.run(f"{OUT}/install.sh", check=False)
    assert done.returncode == 1, (
        "STRICT, and nothing fixes the shadow; it stays installed, as by apply"
    )
    node.systemctl("stop", running.unit)
    assert not start(node, running)
    # An ended trial may leave these.
    node.run("systemd-run", "--unit=hostrouting-trial", "--on-active=600", "true")
    node.write(f"{MARKERS}/trial.sh", "")
    node.run(f"{OUT}/remove.sh")
    node.wait_for(running.unit, "active/running")
    assert node.run("ls", MARKERS).stdout.split() == ["lock", "passed", "run.lock"]
    assert node.show("hostrouting-trial.timer", "ActiveState")["ActiveState"] == "inactive"
    assert "217" not in node.run("ip", "-N", "-4", "route").stdout
    assert files(node) == before


def test_the_next_run_repairs_one_killed_before_its_reload(node: Machine, running: Payload) -> None:
    before = files(node)
    carry(node, config(FIXED, waitSeconds=1))
    for name, last in (
        ("install.sh", "\n  reload_if_changed\n"),
        ("remove.sh", "then reload; fi\n"),
    ):
        text = node.read(f"{OUT}/{name}")
        assert last in text
        node.write(
            f"{OUT}/killed.sh",
            text.replace(last, last.replace("reload", "kill -9 $$; reload")),
            mode=0o755,
        )
        assert node.run(f"{OUT}/killed.sh", check=False).returncode == -9
        node.run(f"{OUT}/{name}")
        is_held = "gate.sh" in node.show(running.unit, "ExecConditionEx").get("ExecConditionEx", "")
        assert is_held == (name == "install.sh")
        node.systemctl("stop", running.unit)
        assert start(node, running)
    assert files(node) == before


# --- the Debian package ---------------------------------------------------------------------------

HOME = "/usr/lib/hostrouting"
DEB, NEWER = "/root/hostrouting.deb", "/root/newer.deb"
TEXTFILE = "/var/lib/hostrouting.prom"
SHADOW = "192.168.7.1/16"

# This config installs everything.
DOCUMENT = {
    "hostRouting": section(
        FIXED,
        cidrs=["172.16.1.0/24", "192.168.0.0/16"],
        watch={"enabled": True, "textfile": TEXTFILE},
        waitSeconds=30,
    ),
    "hostNetworking": {
        "loadBalancerProbe": {"enabled": True, "devices": ["eth0"], "ipv6Detection": "ALWAYS"}
    },
}

# Rebuild the package with a higher revision.
RAISE = f"""
base64 -d {DEB}.base64 >{DEB}
dpkg-deb -R {DEB} /root/raised
sed -i '/^Version:/s/$/.1/' /root/raised/DEBIAN/control
dpkg-deb -Znone -b /root/raised {NEWER}
"""
# List all files except those written by dpkg, systemd and the rig.
NAMES = "find /etc /usr /var/lib -not -path '/var/lib/[dmps]*/*' | sort"


def dpkg(node: Machine, *words: str) -> str:
    """Run dpkg without this checkout's Python code and bytecode, and return the maintainer scripts'
    output.
    """
    return node.run("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "dpkg", *words).stderr


def names(node: Machine) -> set[str]:
    return {*node.run("sh", "-c", NAMES, check=False).stdout.splitlines()}


@pytest.mark.ci
def test_the_debian_package_survives_its_whole_life_from_install_to_purge(
    node: Machine, release: Path
) -> None:
    payload = add_nested_machine(node)
    node.write(CONFIG, json.dumps(DOCUMENT))
    node.boot()
    node.remove(FOUND)
    (package,) = release.glob("*.deb")
    node.write(f"{DEB}.base64", b64encode(package.read_bytes()).decode())
    node.run("sh", "-euc", RAISE)
    before = names(node)

    dpkg(node, "--install", DEB)
    assert "watch" not in dpkg(node, "--install", DEB)
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
    # The gate still works, even after a reboot, and no unit tries to run a program that was
    # removed.
    node.reboot()
    payload.wait_until_it_ran()
    assert is_there(node)
    assert node.state(WATCHER) == "inactive/dead"
    node.ip("address", "add", SHADOW, "dev", "ib0")
    node.systemctl("stop", payload.unit)
    assert not start(node, payload)

    dpkg(node, "--purge", "hostrouting")
    assert names(node) == before
    assert not node.exists(f"{MARKERS}/route-overlap.detected")
    assert start(node, payload)
    assert is_there(node)
