"""Test the gate, updates, removal and power cuts on machines with their releases' own kernels and
systemds.

Debian 11 has no Python here: it gets rendered folders, with install.sh and remove.sh. By day, there
is one machine, and its power is cut twice. By night, there is one for each release, and their power
is cut a hundred times.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from boot.trees import CannotBuildError
from building import filled_once
from nightly import IS_NIGHTLY, by_day, refuse
from wanted import section

from hostrouting import Config, Layout
from hostrouting.boot.bundle import bundle
from kernels.machine import LOG, UmlMachine, make_image
from kernels.packages import NoKernelError
from kernels.results import record_machine

_SYSTEMDS = {"bullseye": 247, "bookworm": 252, "trixie": 257}

pytestmark = [pytest.mark.boot, pytest.mark.timeout(by_day(600, by_night=3600), func_only=True)]

# By day, only .ci/run cuts the power at a random moment.
_CUTS_POWER = pytest.mark.boot if IS_NIGHTLY else pytest.mark.ci

# Whether the consumer has started in this boot, or is held. The gate may open after it has said
# that it holds: when an address comes, or after an update that was cut, where the oneshots run
# other scripts than the gate.
_JUDGED = f"""
started() {{ grep "^$(</proc/sys/kernel/random/boot_id) " {LOG}; }}
for _ in $(seq 300); do
  if started; then exit 0; fi
  if journalctl --boot --unit kubelet.service | grep --quiet 'the start is held:'; then
    said=held
    break
  fi
  sleep 0.2
done
for _ in $(seq 50); do
  if started; then exit 0; fi
  sleep 0.2
done
echo "${{said:-neither started nor held}}"
"""
_OURS = "ip -4 route show proto 217; ip -6 route show proto 217"


class Wanted(NamedTuple):
    """A config: the destinations of its routes, and the CIDRs that it expects behind ``eth0``."""

    routes: tuple[str, ...]
    cidrs: tuple[str, ...]

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = section(*self.routes, cidrs=self.cidrs, consumer="kubelet.service")
        return {"hostRouting": found}


_LOW, _HIGH, _SIX = "172.16.0.0/17", "172.16.128.0/17", "fd00:172:5::/48"
# With the check of one and the routes of the other, the first two hold the consumer, and the last
# two let it start.
CONFIGS = {
    "low": Wanted((_LOW, _SIX), (_LOW, _SIX)),
    "high": Wanted((_HIGH, _SIX), (_HIGH, _SIX)),
    "shadowed-low": Wanted((_HIGH,), (_LOW,)),
    "shadowed-high": Wanted((_LOW,), (_HIGH,)),
    "none": Wanted(("10.200.0.0/16",), (_LOW, _SIX)),
}


# What the consumer sees behind eth0. The others hold it.
SEEN = {"low": "172.16.5.9 via 10.1.0.1 dev eth0", "high": "172.16.200.9 via 10.1.0.1 dev eth0"}


class Node:
    """A machine with the configs and how it installs them."""

    def __init__(self, suite: str, disk: Path, folder: Path) -> None:
        self.suite, self.has_python = suite, suite != "bullseye"
        self.machine = UmlMachine(suite, disk, folder)

    def install(self, name: str) -> str:
        """Return the command that installs a config."""
        return (
            f"python3 -m hostrouting apply /root/{name}.json"
            if self.has_python
            else f"/root/{name}/install.sh"
        )

    def judged(self) -> str:
        """Wait for the end of a boot, and return the consumer's line of this boot, or ``held``."""
        return self.machine.run(_JUDGED).strip()

    def routes(self) -> set[str]:
        return {line.split()[0] for line in self.machine.run(_OURS).splitlines()}

    def pid(self) -> str:
        return self.machine.run("systemctl show --property=MainPID --value kubelet.service").strip()

    def versions(self) -> dict[str, str]:
        told = self.machine.run("uname -r; systemctl --version; ip -V")
        kernel, systemd, iproute2 = re.findall(
            r"^(?:systemd |ip utility, iproute2-)?(\d[\d.]*)", told, re.MULTILINE
        )
        return {"kernel": kernel, "systemd": systemd, "iproute2": iproute2}

    def reboot(self) -> None:
        self.machine.power_off()
        self.machine.boot()


@pytest.fixture(scope="module", params=_SYSTEMDS if IS_NIGHTLY else ["trixie"])
def suite(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def image(suite: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the disk of a machine with all configs, made once for all workers."""

    def fill(folder: Path) -> None:
        root = folder / "files/root"
        for name, wanted in CONFIGS.items():
            for file in bundle(Config.from_mapping(wanted.config), Layout(root / name)):
                file.path.parent.mkdir(parents=True, exist_ok=True)
                file.path.write_bytes(file.content)
                file.path.chmod(file.mode)
            (root / f"{name}.json").write_text(json.dumps(wanted.config))
        make_image(suite, folder, has_python=suite != "bullseye")

    try:
        return filled_once(tmp_path_factory, f"machine-{suite}", fill) / "disk"
    except (NoKernelError, CannotBuildError) as error:
        refuse("boot", str(error))


@pytest.fixture
def node(suite: str, image: Path, tmp_path: Path) -> Iterator[Node]:
    disk = tmp_path / "disk"
    shutil.copyfile(image, disk)
    found = Node(suite, disk, tmp_path)
    with found.machine:
        found.machine.boot()
        yield found


def test_a_machine_with_its_own_kernel(node: Node) -> None:
    """STRICT holds, the fix lets go, an update restarts nothing and survives a power cut, and a
    removal leaves nothing.
    """
    machine = node.machine
    assert int(node.versions()["systemd"].split(".")[0]) == _SYSTEMDS[node.suite]
    assert "172.16.5.9 dev ib0" in node.judged()
    before = node.pid()
    machine.run(node.install("none"), check=False)
    assert node.pid() == before
    node.reboot()
    assert node.judged() == "held"
    machine.run(node.install("low"))
    assert SEEN["low"] in node.judged()
    assert node.routes() == {*CONFIGS["low"].routes}
    started = node.pid()
    machine.run(node.install("high"))
    assert (node.pid(), node.routes()) == (started, {*CONFIGS["high"].routes})
    machine.run("sync")
    machine.cut()
    machine.boot()
    assert SEEN["high"] in node.judged()
    assert node.routes() == {*CONFIGS["high"].routes}
    running = node.pid()
    machine.run("python3 -m hostrouting remove" if node.has_python else "/root/high/remove.sh")
    assert (node.pid(), node.routes()) == (running, set())
    assert (
        machine.run(
            "find /etc /run/aks-flex-node /var/lib | grep -e hostrouting -e overlap", check=False
        )
        == ""
    )
    node.reboot()
    assert "172.16.200.9 dev ib0" in node.judged()


class _Cut(NamedTuple):
    """A moment at which the power is cut, as a part of the time that something takes."""

    during: str
    moment: float


def _cuts(suite: str) -> Iterator[_Cut]:
    chance = random.Random(f"{suite} power")
    for number in range(by_day(1, by_night=34)):
        kinds = ("install", "boot", "install", "try" if suite != "bullseye" else "install")
        yield _Cut(kinds[number % len(kinds)], chance.random())


@_CUTS_POWER
def test_a_power_cut_leaves_all_or_nothing(node: Node, record_property: Any) -> None:
    """Whatever is cut, the next boot has one config or the other, and starts the consumer only if
    that is healthy.
    """
    machine, chance = node.machine, random.Random(node.suite)
    seconds: dict[str, float] = {}
    installed, told = "low", list[str]()
    for name in ("high", "low"):
        began = time.monotonic()
        machine.run(node.install(name))
        seconds["install"] = seconds["try"] = time.monotonic() - began
    machine.run("sync")
    for cut in _cuts(node.suite):
        pairs = (("low", "high"), ("shadowed-low", "shadowed-high"))
        pair = next(pair for pair in pairs if installed in pair)
        other = pair[installed == pair[0]]
        if cut.during == "boot":
            machine.power_off()
            machine.boot(wait=False)
            time.sleep(cut.moment * seconds.get("boot", 8))
            possible = {installed}
        elif cut.during == "try":
            machine.send(f"python3 -m hostrouting apply --try 60 /root/{other}.json")
            time.sleep(cut.moment * 1.5 * seconds["try"])
            possible = {installed}
        else:
            machine.send(node.install(other))
            time.sleep(cut.moment * 1.1 * seconds["install"])
            possible = {installed, other}
        machine.cut()
        began = time.monotonic()
        machine.boot()
        seconds["boot"] = time.monotonic() - began
        line, routes = node.judged(), node.routes()
        found = {name for name in possible if routes == {*CONFIGS[name].routes}}
        told.append(f"{cut.during} {installed}>{other} {cut.moment:.2f}: {sorted(found)} {line}")
        record_property("cut", told[-1])
        assert len(found) == 1, told
        (installed,) = found
        assert (SEEN[installed] in line) if installed in SEEN else line == "held", told
        if chance.random() < 0.2:
            installed = chance.choice([name for name in CONFIGS if name not in ("none", installed)])
            machine.run(node.install(installed), check=installed in SEEN)
            machine.run("sync")
    if IS_NIGHTLY:
        record_machine(
            node.suite, node.versions(), Counter(cut.during for cut in _cuts(node.suite))
        )
