"""Test that deploy/ansible's roll-out stops at an unhealthy batch and can be resumed later."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from file_trees import write_file
from nightly import IS_NIGHTLY, by_day
from wanted import section

from boot.rig import Machine
from boot.test_gate import CONFIG, FIXED
from boot.test_trial import TRIAL, UNIT, is_over, ours

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent

# The first broken node shares its batch with a healthy one.
BATCHES, SIZE, SICK, KEPT, HELD = (
    ([1, 10, "10%"], 20, {13, 16, 20}, 11, 2) if IS_NIGHTLY else ([1, 2, "50%"], 4, {3, 4}, 1, 2)
)
# By day, a node in WARN mode and a fixed node.
RESUMED = "all" if IS_NIGHTLY else "n01,n03"
TRY_SECONDS = by_day(20, by_night=90)
SHADOW = ("172.16.1.0/25", "dev", "ib0")
ROUTING = section(FIXED, waitSeconds=1)
COMMAND = '#!/bin/sh\nexec python3 -m hostrouting "$@"\n'
# This node is healthy at the first check and shadowed from then on.
TURNING_SICK = f"""#!/bin/sh
python3 -m hostrouting "$@"
code=$?
[ "$1" != check ] || ip route add {" ".join(SHADOW)} || echo "it is sick already" >&2
exit $code
"""
# Another agent's keys in the file that also contains our config.
AGENT = '{"azure": {"bootstrapToken": "abc.0123",\t"ids": [1.50]},\n "agent": {}}\n'
DOWN = ["sh", "-c", 'echo "nsenter: cut off" >&2; exit 1']
CUT_OFF = f'if [ -e {TRIAL} ]; then echo "nsenter: cut off" >&2; exit 1; fi; exec "$@"'


class Fleet:
    """Booted machines and an Ansible installation that writes only to one directory."""

    def __init__(self, nodes: list[Machine], folder: Path, *, down: int = 0) -> None:
        self.nodes = nodes
        ways_in = [*(node.way_in() for node in nodes), *([DOWN] * down)]
        hosts = {
            f"n{number:02}": {"ansible_way_in": shlex.join(way_in)}
            for number, way_in in enumerate(ways_in, 1)
        }
        common = {
            "ansible_connection": "nodes_connection",
            "ansible_python_interpreter": "/usr/bin/python3",
            "hostrouting_config": {"hostRouting": ROUTING},
            "hostrouting_try_seconds": TRY_SECONDS,
            "hostrouting_bake_seconds": 0,
        }
        self._inventory = folder / "nodes"
        self._inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": common}}))
        self._env = {
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
            "HOME": str(folder),
            "ANSIBLE_HOME": str(folder / "ansible"),
            "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "deploy/ansible"),
            "ANSIBLE_CONNECTION_PLUGINS": str(Path(__file__).parent),
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_FORKS": "4",
            "ANSIBLE_NOCOLOR": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._folder = folder

    def run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(PROGRAMS / program), "-i", str(self._inventory), *words]
        return subprocess.run(argv, env=self._env, cwd=self._folder, capture_output=True, text=True)

    def shell(self, line: str) -> tuple[int, str]:
        """Run a line as a user would, with an installed collection, and return its exit code and
        its output.
        """
        env = {
            name: value for name, value in self._env.items() if name != "ANSIBLE_COLLECTIONS_PATH"
        }
        done = subprocess.run(
            ["bash", "-c", line], env=env, cwd=self._folder, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    def forget(self, variable: str) -> None:
        """Remove a variable from the inventory."""
        known = json.loads(self._inventory.read_text())
        del known["all"]["vars"][variable]
        self._inventory.write_text(json.dumps(known))

    def rename(self, host: str, name: str) -> None:
        """Give a host another name in the inventory."""
        known = json.loads(self._inventory.read_text())
        known["all"]["hosts"][name] = known["all"]["hosts"].pop(host)
        self._inventory.write_text(json.dumps(known))

    def module(self, name: str, *words: str, **arguments: Any) -> subprocess.CompletedProcess[str]:
        """Run one of the collection's modules on the first host."""
        return self.run(
            "ansible",
            "n01",
            "-m",
            f"hostrouting.hostrouting.{name}",
            "-a",
            json.dumps(arguments),
            *words,
        )

    def cut_off_once_tried(self, host: str) -> None:
        """Make a host unreachable for Ansible while a trial is running there."""
        known = json.loads(self._inventory.read_text())
        known["all"]["hosts"][host]["ansible_way_in"] += f" sh -c {shlex.quote(CUT_OFF)} sh"
        self._inventory.write_text(json.dumps(known))

    def roll_out(
        self, *batches: int | str, limit: str = "all", **given: int
    ) -> tuple[int, dict[str, dict[str, int]], str]:
        """Run the roll-out, and return the exit code, each host's result and the output."""
        extra = json.dumps({"hostrouting_batches": batches or BATCHES} | given)
        done = self.run(
            "ansible-playbook", "hostrouting.hostrouting.roll_out", "--limit", limit, "-e", extra
        )
        recap = re.findall(r"^(n\d+) +: (.*)$", done.stdout, re.MULTILINE)
        counts = {
            host: {key: int(n) for key, n in re.findall(r"(\w+)=(\d+)", rest)}
            for host, rest in recap
        }
        return done.returncode, counts, done.stdout + done.stderr

    def states(self) -> list[str]:
        return [state(node) for node in self.nodes]


def state(node: Machine) -> str:
    """Return a node's state in a roll-out: the installed mode, if any, or a description."""
    if ours(node) and node.exists(CONFIG):
        return str(json.loads(node.read(CONFIG))["hostRouting"]["routeOverlap"]["mode"])
    if ours(node) or node.exists(CONFIG) or node.exists("/etc/hostrouting"):
        return "half"
    return "put back" if f"{UNIT}.service" in node.journal(f"{UNIT}.service") else "untouched"


def removed(node: Machine) -> bool:
    """Return whether neither a route nor a file of ours is left, except for the config."""
    return not (ours(node) or node.exists("/etc/hostrouting"))


@pytest.fixture
def new_fleet(
    new_machine: Callable[[], Machine], tmp_path: Path
) -> Callable[[int, Collection[int]], Fleet]:
    """Return a factory for fleets whose broken machines are shadowed in a way that the config's
    routes don't fix.
    """
    if not (PROGRAMS / "ansible-playbook").exists():
        pytest.fail(
            "Ansible isn't installed; the extra named ansible has it, from Python 3.11 on",
            pytrace=False,
        )

    def make(size: int, sick: Collection[int]) -> Fleet:
        nodes = [new_machine() for _ in range(size)]
        for number, node in enumerate(nodes, 1):
            node.add_nic("eth0", "10.1.0.4/24", gateway="10.1.0.1", metric=100)
            node.add_nic("ib0", "172.16.0.10/16")
            if number in sick:
                node.ip("route", "add", *SHADOW)
            node.write("/usr/local/bin/hostrouting", COMMAND, mode=0o755)
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(Machine.boot, nodes))
        return Fleet(nodes, tmp_path)

    return make


@pytest.mark.timeout(by_day(900, by_night=3600), func_only=True)
def test_a_roll_out_stops_at_a_sick_batch_until_its_fix(
    new_fleet: Callable[[int, Collection[int]], Fleet],
) -> None:
    fleet = new_fleet(SIZE, SICK)
    shared = fleet.nodes[0]
    shared.write(CONFIG, AGENT, mode=0o600)
    shared.run("chown", "12:34", CONFIG)
    code, counts, said = fleet.roll_out()
    assert code != 0
    assert "OVERLAP: expected CIDR 172.16.1.0/24" in said
    tried = fleet.nodes[KEPT : KEPT + HELD]
    for node in tried:
        node.wait_until(partial(is_over, node), "the trial is over")
    later = SIZE - KEPT - HELD
    assert fleet.states() == ["WARN"] * KEPT + ["put back"] * HELD + ["untouched"] * later, said
    assert set(counts) == {f"n{number:02}" for number in range(1, KEPT + HELD + 1)}
    # The trial, the config file and the confirmation; what STRICT would change is only asked.
    assert [counts[f"n{number:02}"]["changed"] for number in range(1, KEPT + 1)] == [3] * KEPT

    for number in SICK:
        fleet.nodes[number - 1].ip("route", "delete", *SHADOW)
    code, _, said = fleet.roll_out("100%", limit=RESUMED)
    assert code == 0, said
    assert "the default CONFIG, asks for something else" not in said
    assert fleet.states() == (
        ["STRICT"] * SIZE if IS_NIGHTLY else ["STRICT", "put back", "STRICT", "untouched"]
    )
    code, counts, said = fleet.roll_out(limit="n01")
    assert (code, counts["n01"]["changed"]) == (0, 0), said

    text = shared.read(CONFIG)
    assert text.startswith(AGENT.removesuffix("}\n"))
    assert json.loads(text).keys() == {"azure", "agent", "hostRouting"}
    stats = shared.run(
        "sh", "-c", f"stat --format='%a %u:%g %s' {CONFIG} {CONFIG}.*~"
    ).stdout.splitlines()
    assert [stat.rpartition(" ")[0] for stat in stats] == ["600 12:34"] * 3, (
        "WARN and STRICT each have left a backup"
    )
    assert str(len(AGENT)) in [stat.rpartition(" ")[2] for stat in stats]


def test_a_batch_that_turns_sick_is_rolled_back_at_once(
    new_fleet: Callable[[int, Collection[int]], Fleet],
) -> None:
    fleet = new_fleet(2, ())
    fleet.nodes[1].write("/usr/local/bin/hostrouting", TURNING_SICK, mode=0o755)
    code, counts, said = fleet.roll_out(2, hostrouting_bake_seconds=1, hostrouting_try_seconds=600)
    assert (code != 0, said.count(": Check] **"), said.count(": Keep the routes]")) == (
        True,
        2,
        0,
    ), said
    assert {host: each["failed"] for host, each in counts.items()} == {"n01": 1, "n02": 1}, said
    for node in fleet.nodes:
        node.wait_until(lambda node=node: not node.exists(TRIAL), "the trial is over")  # type: ignore[misc]
    assert fleet.states() == ["put back", "put back"], said


def test_a_node_that_its_trial_cuts_off_stops_the_batch(
    new_fleet: Callable[[int, Collection[int]], Fleet],
) -> None:
    fleet = new_fleet(2, ())
    fleet.cut_off_once_tried("n02")
    code, counts, said = fleet.roll_out(2)
    assert (code != 0, counts["n02"]["unreachable"]) == (True, 1), said
    for node in fleet.nodes:
        node.wait_until(partial(is_over, node), "the trial is over")
    assert fleet.states() == ["put back", "put back"], said


def test_a_batch_that_is_down_stops_the_roll_out(tmp_path: Path) -> None:
    """Without a canary, no other batch begins."""
    fleet = Fleet([], tmp_path, down=2)
    code, counts, said = fleet.roll_out(1)
    assert (code != 0, {host: each["unreachable"] for host, each in counts.items()}) == (
        True,
        {"n01": 1},
    ), said


def test_a_missing_config_or_an_unknown_mode_stops_the_roll_out(tmp_path: Path) -> None:
    fleet = Fleet([], tmp_path, down=1)
    play = ("ansible-playbook", "hostrouting.hostrouting.roll_out", "--check", "--tags")
    wrong = {"hostrouting_config": {"hostRouting": section(FIXED, mode="WARM")}}
    done = fleet.run(*play, "strict", "-e", json.dumps(wrong))
    assert "The mode in hostrouting_config is neither WARN nor STRICT." in done.stdout + done.stderr
    fleet.forget("hostrouting_config")
    done = fleet.run(*play, "warn")
    assert "Set hostrouting_config, for example in group_vars" in done.stdout + done.stderr


def test_the_modules_warn_of_a_doubtful_uplink(
    new_fleet: Callable[[int, Collection[int]], Fleet],
) -> None:
    """The check passes by another network's default route, which STRICT would record."""
    fleet = new_fleet(1, ())
    fleet.nodes[0].ip("route", "add", "default", "dev", "ib0", "metric", "50")
    wanted = {"hostRouting": section(cidrs=["10.96.0.0/12"], mode="WARN", waitSeconds=1)}
    for module in (partial(fleet.module, "check"), partial(fleet.module, "apply", try_seconds=60)):
        done = module(config=wanted)
        said = " ".join(done.stderr.split())
        assert (done.returncode, "[WARNING]: " in said) == (0, True), done
        assert "CONTESTED: several interfaces have a default route, and the one" in said


def test_check_mode_plans_and_a_failed_strict_installs_nothing(
    new_fleet: Callable[[int, Collection[int]], Fleet],
) -> None:
    fleet = new_fleet(1, {1})
    apply = partial(fleet.module, "apply", config={"hostRouting": ROUTING}, try_seconds=60)
    done = apply("--check", "--diff")
    assert "+ 172.16.1.0/24 via 10.1.0.1 dev eth0" in done.stdout
    assert (done.returncode, fleet.states()) == (0, ["untouched"])

    fleet.nodes[0].write(CONFIG, AGENT, mode=0o600)
    done = fleet.module("config", "--check", config={"hostRouting": {}})
    assert (done.returncode, '"changed": true' in done.stdout, fleet.nodes[0].read(CONFIG)) == (
        0,
        True,
        AGENT,
    )
    fleet.nodes[0].remove(CONFIG)

    done = apply()
    assert done.returncode != 0
    result = json.loads(done.stdout.partition("=>")[2])
    assert [finding["kind"] for finding in result["report"]["overlap"]["findings"]] == ["OVERLAP"]
    assert (ours(fleet.nodes[0]), is_over(fleet.nodes[0])) == ([], True)


# --- docs/howto/fleet.md -------------------------------------------------------------


PAGE = (ROOT / "docs/howto/fleet.md").read_text()
JUDGE = "hostrouting judge"
# The page's commands, and the node's state after each. pip and apt need a package index and a
# package: the version of Ansible is checked instead, and test_ways_to_install.py installs the
# package.
GUIDE = [
    ("pip install 'ansible-core>=2.19'", None),
    ("ansible-galaxy collection install", "untouched"),
    ("ansible -i nodes all -m ansible.builtin.apt", None),
    ("mkdir snapshots", "untouched"),
    ("ansible-playbook -i nodes --forks 50 hostrouting.hostrouting.record", "untouched"),
    (JUDGE, "untouched"),
    (
        (
            "ansible-playbook -i nodes hostrouting.hostrouting.roll_out "
            "--tags warn --limit gpu-0001 --check"
        ),
        "untouched",
    ),
    ("ansible-playbook -i nodes --forks 50 hostrouting.hostrouting.roll_out --tags warn", "WARN"),
    (
        "ansible-playbook -i nodes --forks 50 hostrouting.hostrouting.roll_out --tags strict",
        "STRICT",
    ),
    ("ansible -i nodes all -m ansible.builtin.apt", None),
    ("ansible -i nodes --forks 50 all -m hostrouting.hostrouting.apply", "STRICT"),
    (
        "ansible-playbook -i nodes --forks 50 hostrouting.hostrouting.roll_out --tags strict -e",
        "WARN",
    ),
    (
        "ansible -i nodes --forks 50 all -m ansible.builtin.command -a 'hostrouting remove'",
        "removed",
    ),
]


@pytest.mark.timeout(by_day(900, by_night=3600), func_only=True)
def test_the_guides_commands_work_as_printed(
    new_fleet: Callable[[int, Collection[int]], Fleet], tmp_path: Path
) -> None:
    fleet = new_fleet(1, ())
    (node,) = fleet.nodes
    fleet.rename("n01", "gpu-0001")
    fleet.forget("hostrouting_config")
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    write_file(tmp_path / "config.json", json.dumps({"hostRouting": ROUTING}))
    ((name, variables),) = re.findall(
        r"^```text\n# (group_vars\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )
    write_file(tmp_path / name, variables)
    commands = re.findall(r"^\$ (.*)", PAGE, re.MULTILINE)
    assert len(commands) == len(GUIDE)
    for command, (start, after) in zip(commands, GUIDE, strict=True):
        assert command.startswith(start)
        if after is None:
            continue
        code, said = fleet.shell(command)
        assert code == (1 if start == JUDGE else 0), f"{command}\n{said}"  # the node is shadowed
        assert removed(node) if after == "removed" else state(node) == after, f"{command}\n{said}"
        if "--check" in command:
            planned = said.count("+ 172.16.1.0/24 via 10.1.0.1 dev eth0")
            assert (planned, "changed=2 " in said) == (1, True), said
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == ["gpu-0001.json"]


def test_the_guides_ansible_is_the_tested_one() -> None:
    (least,) = re.findall(r"'ansible-core>=(\d+)\.(\d+)'", PAGE)
    assert tuple(map(int, version("ansible-core").split(".")[:2])) >= tuple(map(int, least))
