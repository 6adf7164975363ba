"""Test that the rig boots real systemds and leaves the host untouched."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from boot.keeper import Keeper
from boot.payloads import add_nested_machine
from boot.rig import CMDLINE, PAYLOADS, ROOT, Machine
from boot.trees import outer_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def test_the_nested_machine_runs_under_the_unmodified_template(node: Machine) -> None:
    kube1 = add_nested_machine(node)
    node.boot()
    kube1.wait_until_it_ran()
    assert kube1.is_running()
    shown = node.show(kube1.unit, "FragmentPath", "DropInPaths", "Requires", "ActiveState")
    assert shown["DropInPaths"] == ""
    assert shown["ActiveState"] == "active"
    # The package contains a checksum of this file.
    path = os.path.join("usr/lib/systemd/system", os.path.basename(shown["FragmentPath"]))  # noqa: PTH118, PTH119
    sums = node.read("/var/lib/dpkg/info/systemd-container.md5sums")
    expected = re.findall(rf"^(\w+)  (?:usr/)?{re.escape(path.removeprefix('usr/'))}$", sums, re.MULTILINE)
    assert [node.run("md5sum", f"/{path}").stdout.split()[0]] == expected
    assert os.path.basename(path) == "systemd-nspawn@.service"  # noqa: PTH119
    leader = node.run("machinectl", "show", "--property=Leader", "--value", "kube1").stdout.strip()
    own, nested = (node.run("readlink", f"/proc/{pid}/ns/net").stdout for pid in ("1", leader))
    assert own == nested


# --- the host ----------------------------------------------------------------------------------------------------


def test_the_host_is_as_it_was(tree: Path) -> None:
    before = _host(tree)
    with Machine(tree) as machine:
        machine.add_nic("eth0", "10.1.0.4/24", gateway="10.1.0.1")
        kube1 = add_nested_machine(machine)
        machine.boot()
        kube1.wait_until_it_ran()
        processes = _processes_of(machine)
        assert len(_alive(processes)) > 5
        machine.power_off()
    assert _alive(processes) == set()
    assert _cgroups(f"hostrouting-boot-{os.getpid()}-") == []
    assert _host(tree) == before


def test_a_killed_test_leaves_nothing(tree: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from boot.rig import Machine; from boot.test_rig import _processes_of\n"
        "machine = Machine(Path(sys.argv[1])); machine.boot()\n"
        "print(*_processes_of(machine), sep='@', flush=True); time.sleep(600)"
    )
    here = Path(__file__).parents[1]
    env = os.environ | {"PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    with subprocess.Popen([sys.executable, "-c", code, tree], stdout=subprocess.PIPE, text=True, env=env) as test:
        assert test.stdout is not None
        processes = set(test.stdout.readline().strip().split("@"))
        assert len(_alive(processes)) > 5
        test.send_signal(signal.SIGKILL)
    _eventually(lambda: _alive(processes) == set())
    _eventually(lambda: _cgroups(f"hostrouting-boot-{test.pid}-") == [])


def test_the_machine_cant_see_the_hosts_files(tree: Path) -> None:
    with Keeper(tree, {}) as keeper:
        points = keeper.run("sh", "-c", "cut -d' ' -f5 /proc/self/mountinfo").stdout.split()
        assert points == ["/", "/mnt", "/mnt/root", "/proc", "/sys", "/sys/fs/cgroup", "/run", "/tmp"]
        assert keeper.run("touch", "/etc/written").returncode != 0
    assert not (tree / "etc/written").exists()


# Directories in which a machine, or a test inside it, could leave something behind. Other files may change at any time,
# for example when packages are installed.
_PLACES = (
    *("/etc/aks-flex-node", "/run/aks-flex-node", "/etc/iproute2/rt_protos.d/hostrouting.conf"),
    *("/etc/systemd/nspawn/kube1.nspawn", "/var/lib/machines/kube1", "/usr/local/bin/payload"),
    *(PAYLOADS, CMDLINE, "/var/cache/python", "/opt/python", "/mnt/root", "/mnt/image"),
)
_UNITS = re.compile("(static-routes|check-route-overlap|hostrouting|load-balancer-probe|kubelet|hello|systemd-nspawn@)")
_IN_ITS_NETWORK = """
ip -4 -N route show table all proto 217
ip -6 -N route show table all proto 217
ip -4 rule
ip -6 rule
if command -v nft >/dev/null; then nft list tables; fi
"""


def _host(tree: Path) -> dict[str, object]:
    """Return the host state that a machine must not change."""
    units = [path for path in Path("/etc/systemd/system").glob("*") if _UNITS.match(path.name)]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "descriptors": sorted(_links_of(Path("/proc/self/fd"))),
        "mounts": [line for line in mounts if str(tree) in line or ROOT in line],
        "network": subprocess.run(
            ["nsenter", f"--net={outer_network()}", "sh", "-euc", _IN_ITS_NETWORK],
            capture_output=True, text=True, check=True,
        ).stdout,
        "files": _times(path for place in (*map(Path, _PLACES), *units) for path in (place, *place.rglob("*"))),
        "tree": _times([tree, *tree.iterdir(), *(tree / "etc").iterdir()]),
    }  # fmt: skip


def _times(paths: Iterable[Path]) -> dict[Path, int]:
    return {path: path.lstat().st_mtime_ns for path in paths if os.path.lexists(path)}


def _links_of(folder: Path) -> Iterator[str]:
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # the process that lists the folder may have ended
            yield str(path.readlink())


def _processes_of(machine: Machine) -> set[str]:
    """Return all processes in a machine's namespaces as (PID, start time), because PIDs are reused."""
    own = {path.stat().st_ino for path in Path("/proc/self/ns").iterdir()}
    names = [f"/proc/self/ns/{name}" for name in ("mnt", "pid", "net", "uts", "ipc", "cgroup")]
    entered = [run("stat", "-Lc", "%i", *names).stdout for run in (machine._keeper.run, machine.run)]
    namespaces = {int(word) for line in entered for word in line.split()} - own
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended, or may not be read, so it isn't one of ours
            if any(path.stat().st_ino in namespaces for path in (folder / "ns").iterdir()):
                found.add(_identity(folder))
    return found


def _alive(processes: set[str]) -> set[str]:
    alive = set()
    for process in processes:
        with suppress(OSError):
            alive |= {_identity(Path("/proc", process.partition(" ")[0]))} & processes
    return alive


def _identity(process: Path) -> str:
    return f"{process.name} {(process / 'stat').read_text().rpartition(')')[2].split()[19]}"


def _cgroups(prefix: str) -> list[str]:
    look = f"mount -t cgroup2 cgroup2 /sys/fs/cgroup && find /sys/fs/cgroup -name '{prefix}*'"
    private = ("unshare", "--mount", "--propagation", "private", "sh", "-euc")
    return subprocess.run([*private, look], capture_output=True, text=True, check=True).stdout.split()


def _eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
