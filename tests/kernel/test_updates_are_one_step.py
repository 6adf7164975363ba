"""Test that the old config or the new one gates each start during an update."""

from __future__ import annotations

import ctypes
import mmap
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from nightly import IS_NIGHTLY, by_day
from search.moments import Kind
from search.pairs import KUBELET, PAIRS, TWO_STEPS
from search.run import search
from search.tracing import Exited, Traced
from wanted import MACHINE

pytestmark = pytest.mark.kernel

KINDS = [kind.value for kind in Kind]
# By day, every 36th pair is tested at one random point, in one world. Updates by script take six
# times as long, so only the test of an undo has one. By night, each pair is tested at every point.
BY_PYTHON = [pair.name for pair in PAIRS if not pair.script]
TRIED = [(pair.name,) for pair in PAIRS] if IS_NIGHTLY else [tuple(BY_PYTHON[7::36])]


@pytest.mark.parametrize("names", TRIED, ids=lambda names: names[0])
def test_an_update_is_one_step(tmp_path: Path, names: tuple[str, ...]) -> None:
    """A node that is healthy under both configs is never held, and one that is shadowed under both
    never passes.
    """
    states, found = search(tmp_path, names, KINDS, most=None if IS_NIGHTLY else 1)
    assert states >= len(names)
    assert not found, "\n".join(found)


def test_a_power_cut_between_the_verdict_and_its_record(tmp_path: Path) -> None:
    """The node starts in the next boot, and the next run records the uplink."""
    states, found = search(
        tmp_path, ["healthy, first install"], [Kind.BOOT.value], most=None, at="/.uplink."
    )
    assert states == len(("before it is written", "before it has its name"))
    assert not found, "\n".join(found)


def test_an_undo_is_one_step(tmp_path: Path) -> None:
    """A signal stops an update by install.sh, and by night one by Python, and the undo is killed,
    too.
    """
    both = ("shadowed, crossed by script", "shadowed, routes and CIDRs crossed")
    names = both[: by_day(1, by_night=2)]
    states, found = search(tmp_path, names, [Kind.UNDO.value], most=by_day(1, by_night=40))
    assert states >= len(names)
    assert not found, "\n".join(found)


def test_an_update_of_two_steps_is_found(tmp_path: Path) -> None:
    """Two separate tasks swap routes and CIDRs, so a healthy node is held in between."""
    # By day, at one step after the first task.
    most, step = 40 if IS_NIGHTLY else None, "rmdir /etc/systemd/system/"
    _, found = search(tmp_path, [TWO_STEPS.name], [Kind.FREEZE.value], most=most, at=step)
    held = [one for one in found if "under both configs" in one]
    assert any("expected CIDR 172.16.1.0/24" in one for one in held)


def test_a_call_counts_wherever_its_path_lies(tmp_path: Path) -> None:
    """Where Python puts a path also depends on what it has compiled."""
    path = f"{tmp_path}/etc/hostrouting"
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)

    def make(at: int) -> None:
        memory[at : at + len(path)] = path.encode()
        ctypes.CDLL(None).mkdir(ctypes.byref(ctypes.c_char.from_buffer(memory, at)), 0o755)

    for at in (0, page - len(path) + 5, 2 * page - len(path) - 1):
        with TemporaryFile() as said, Traced(partial(make, at), said) as traced:
            ended = traced.poll(60)
        assert isinstance(ended, Exited)
        assert f"mkdir {path}" in ended.calls


@pytest.mark.parametrize(
    ("machine", "kubelet", "is_wrong"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_a_moving_gate_holds_one_consumer(machine: bool, kubelet: bool, is_wrong: bool) -> None:
    (pair,) = (pair for pair in PAIRS if pair.name == "shadowed, consumer changed")
    assert bool(pair.complaints_between({MACHINE: machine, KUBELET: kubelet})) == is_wrong
