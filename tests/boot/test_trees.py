"""Test the cache of trees, which builds each tree once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boot.payloads import add_nested_machine
from boot.trees import SUITES, CannotBuildError, find_or_build

if TYPE_CHECKING:
    from boot.rig import Machine


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path.resolve()


def test_concurrent_builders_make_one_tree(cache: Path) -> None:
    made: list[Path] = []
    found: list[Path] = []
    both_are_there = threading.Barrier(2)

    def make(_suite: str, target: Path, _lock: int) -> None:
        made.append(target)
        target.mkdir()

    def find() -> None:
        both_are_there.wait()
        found.append(find_or_build("bookworm", cache=cache, make=make))

    threads = [threading.Thread(target=find) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert found[0] == found[1]
    assert found[0].is_dir()
    assert sorted(path.name for path in cache.iterdir()) == sorted(["lock", found[0].parent.name])


def test_a_failed_attempt_leaves_nothing(cache: Path) -> None:
    def fail(_suite: str, target: Path, _lock: int) -> None:
        (target / "half").mkdir(parents=True)
        raise CannotBuildError("no network")

    with pytest.raises(CannotBuildError, match="no network"):
        find_or_build("bookworm", cache=cache, make=fail)
    assert [path.name for path in cache.iterdir()] == ["lock"]


@pytest.mark.each_release
def test_its_python_is_compiled_in_it(tree: Path) -> None:
    """The machine's Python adds no files later, and the tree contains no paths from this checkout."""
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
    nested.wait_until_it_ran()
    assert nested.is_running()
    shown = machine.show(nested.unit, "FragmentPath", "DropInPaths")
    assert (shown["FragmentPath"].rpartition("/")[2], shown["DropInPaths"]) == ("systemd-nspawn@.service", "")
    leader = machine.run("machinectl", "show", "--property=Leader", "--value", "kube1").stdout.strip()
    own, nested_network = (machine.run("readlink", f"/proc/{pid}/ns/net").stdout for pid in ("1", leader))
    assert own == nested_network
