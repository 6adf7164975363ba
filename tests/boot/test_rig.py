"""Test that machines leave nothing on the host and cannot see its files, and the Debian trees that
they boot.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from node import until

from boot.keeper import Keeper
from boot.payloads import add_nested_machine
from boot.rig import ROOT, Machine
from boot.trees import SUITES


def test_the_host_is_as_it_was(tree: Path) -> None:
    before, branch = _host(tree), f"hostrouting-boot-{os.getpid()}-"
    with Machine(tree) as machine:
        machine.add_nic("eth0", "10.1.0.4/24", gateway="10.1.0.1")
        kube1 = add_nested_machine(machine)
        machine.boot()
        kube1.wait_until_it_ran()
        assert _cgroups(branch) != []
        machine.power_off()
    assert _cgroups(branch) == [], "a cgroup with a process in it can't be removed"
    assert _host(tree) == before


def test_a_killed_test_leaves_nothing(tree: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from boot.rig import Machine\n"
        "machine = Machine(Path(sys.argv[1])); machine.boot(); "
        "print('on', flush=True); time.sleep(600)"
    )
    here = Path(__file__).parents[1]
    env = os.environ | {"PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    with subprocess.Popen(
        [sys.executable, "-c", code, tree], stdout=subprocess.PIPE, text=True, env=env
    ) as test:
        assert test.stdout is not None
        assert test.stdout.readline() == "on\n"
        assert _cgroups(f"hostrouting-boot-{test.pid}-") != []
        test.send_signal(signal.SIGKILL)
    until(lambda: _cgroups(f"hostrouting-boot-{test.pid}-") == [])


def test_the_machine_cant_see_the_hosts_files(tree: Path) -> None:
    with Keeper(tree, {}) as keeper:
        points = keeper.run("sh", "-c", "cut -d' ' -f5 /proc/self/mountinfo").stdout.split()
        assert points == [
            "/",
            "/mnt",
            "/mnt/root",
            "/proc",
            "/sys",
            "/sys/fs/cgroup",
            "/run",
            "/tmp",
        ]
        assert keeper.run("touch", "/etc/written").returncode != 0
    assert not (tree / "etc/written").exists()


def _host(tree: Path) -> tuple[list[str], list[str], dict[Path, int]]:
    """Return this process's open files and mounts, and the times of the tree."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    times = {
        path: path.lstat().st_mtime_ns
        for path in (tree, *tree.iterdir(), *(tree / "etc").iterdir())
    }
    return (
        sorted(_open_files()),
        [line for line in mounts if str(tree) in line or ROOT in line],
        times,
    )


def _open_files() -> Iterator[str]:
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor that listed the folder
            yield str(path.readlink())


def _cgroups(prefix: str) -> list[str]:
    # Of another machine's, some may vanish while find looks, and then it fails.
    look = f"mount -t cgroup2 cgroup2 /sys/fs/cgroup; find /sys/fs/cgroup -name '{prefix}*' || :"
    private = ("unshare", "--mount", "--propagation", "private", "sh", "-euc")
    return subprocess.run(
        [*private, look], capture_output=True, text=True, check=True
    ).stdout.split()


# --- the Debian trees -----------------------------------------------------------------------------


@pytest.mark.each_release
def test_its_python_is_compiled_in_it(tree: Path) -> None:
    """The machine's Python adds no files later, and the tree names no path of this checkout."""
    assert [*(tree / "usr/share/python3/debpython/__pycache__").glob("files.*.pyc")]
    assert not (tree / Path(__file__).parents[2].relative_to("/")).exists()


@pytest.mark.each_release
def test_it_boots_the_systemd_of_the_release(suite: str, machine: Machine) -> None:
    nested = add_nested_machine(machine)
    machine.boot()
    assert machine.systemd_version == SUITES[suite]
    assert machine.run("cat", "/proc/1/comm").stdout == "systemd\n"
    assert machine.systemctl("is-system-running", "--wait").stdout == "running\n"
    assert machine.systemctl("list-jobs").stdout == "No jobs running.\n"
    machine.wait_until(nested.is_running, "the nested machine runs")
    shown = machine.show(nested.unit, "FragmentPath", "DropInPaths")
    assert (shown["FragmentPath"].rpartition("/")[2], shown["DropInPaths"]) == (
        "systemd-nspawn@.service",
        "",
    )
    leader = machine.run(
        "machinectl", "show", "--property=Leader", "--value", "kube1"
    ).stdout.strip()
    own, nested_network = (
        machine.run("readlink", f"/proc/{pid}/ns/net").stdout for pid in ("1", leader)
    )
    assert own == nested_network
