"""Test the Debian trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from boot.payloads import add_nested_machine
from boot.rig import Machine
from boot.trees import SUITES


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
    machine.wait_until(nested.is_running, "the nested machine runs")
    shown = machine.show(nested.unit, "FragmentPath", "DropInPaths")
    assert (shown["FragmentPath"].rpartition("/")[2], shown["DropInPaths"]) == ("systemd-nspawn@.service", "")
    leader = machine.run("machinectl", "show", "--property=Leader", "--value", "kube1").stdout.strip()
    own, nested_network = (machine.run("readlink", f"/proc/{pid}/ns/net").stdout for pid in ("1", leader))
    assert own == nested_network
