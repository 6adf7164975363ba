"""Test how long a check waits for InfiniBand addresses, in Python and in the boot script."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from infiniband import infiniband
from recording_tasks import OnProgress
from scripts import Sandbox, awk_or_skip, awks_for, with_constants

import phases
from hostrouting import Config, Host, Layout, Verdict, check
from hostrouting.boot.render import render_check
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.model.routes import DEFAULT_DESTINATION, Table
from hostrouting.testing import FakeSystemd
from phases.testing import RecordingObserver

pytestmark = pytest.mark.kernel

DEV, ADDRESS = "ib7", "172.17.0.1/16"


@attrs.frozen
class Case:
    """A node with an InfiniBand interface whose address arrives late.

    Args:
        mode: the check's mode.
        settle_seconds: the value in the config, or None to omit it.
        waits: expected wait in seconds.
        is_up: whether the interface is up.
    """

    mode: str
    settle_seconds: int | None
    waits: int
    is_up: bool = True

    def config(self, **more: Any) -> Config:
        overlap = {"expectedCidrs": ["172.17.1.0/24"], "mode": self.mode, "settleSeconds": self.settle_seconds}
        return Config.from_mapping({"hostRouting": {"routeOverlap": overlap} | more})

    def __str__(self) -> str:
        given = "default" if self.settle_seconds is None else f"{self.settle_seconds}"
        return f"{self.mode}-{given}-{'up' if self.is_up else 'down'}"


CASES = [
    Case("STRICT", None, 60),
    Case("STRICT", None, 0, is_up=False),
    Case("STRICT", 0, 0),
    Case("STRICT", 90, 90),
    Case("STRICT", 90, 90, is_up=False),
    Case("WARN", None, 0),
    Case("WARN", 0, 0),
    Case("WARN", 90, 90),
]


def give_address() -> None:
    subprocess.run(["ip", "address", "add", ADDRESS, "dev", DEV], check=True)


@pytest.mark.parametrize(
    ("case", "awk"), [(case, awk) for case in CASES for awk in awks_for(f"late addresses {case}")], ids=str
)
def test_the_script_waits(case: Case, awk: str, node: NamespaceKernel, tmp_path: Path) -> None:
    """The library waits in the same cases."""
    expected = [f"waiting up to {case.waits} s for an address on {DEV}"] if case.waits else []
    sees_address = case.is_up and case.waits > 0
    with infiniband(DEV, is_up=case.is_up):
        said, code = run_script(Sandbox(tmp_path, awk_or_skip(awk)), render_check(case.config()), give_address)
    assert re.findall("waiting .*", said) == expected
    assert (f"routes via {DEV}, expected eth0" in said) == sees_address
    assert code == (1 if case.mode == "STRICT" and sees_address else 0)
    agent = OnProgress(act=give_address)
    with infiniband(DEV, is_up=case.is_up):
        verdict = verdict_of(case.config(), node, tmp_path, agent)
    assert agent.messages == expected
    assert verdict is (Verdict.OVERLAP if sees_address else Verdict.OK)


def verdict_of(config: Config, node: NamespaceKernel, root: Path, observer: RecordingObserver) -> Verdict:
    """Return the library's verdict, and tell the observer what it waits for."""
    host = Host(routes=node, units=FakeSystemd(), layout=Layout(root))
    return phases.run(
        phases.task("check")(lambda scope: check(config, host=host, scope=scope)), observer=observer
    ).verdict


def run_script(
    sandbox: Sandbox, text: str, act: Callable[[], object] = lambda: None, *arguments: str
) -> tuple[str, int]:
    """Run a script, call ``act`` once the script reports that it is waiting, and return its output and exit code."""
    process = sandbox.start(text, *arguments)
    assert process.stdout is not None
    said = process.stdout.readline()
    if said.startswith("waiting"):
        act()
    out, error = process.communicate(timeout=60)
    return said + out + error, process.returncode


@pytest.mark.parametrize("has_infiniband", [False, True], ids=["no InfiniBand", "its address"])
def test_other_interfaces_need_no_wait(has_infiniband: bool, node: NamespaceKernel, tmp_path: Path) -> None:
    config, observer = Case("STRICT", None, 60).config(), RecordingObserver()
    with infiniband(DEV) if has_infiniband else nullcontext():
        if has_infiniband:
            give_address()
        said, code = run_script(Sandbox(tmp_path), render_check(config))
        verdict = verdict_of(config, node, tmp_path, observer)
    assert "waiting" not in said
    assert "progress" not in {event[0] for event in observer.events}
    assert (code, verdict) == ((1, Verdict.OVERLAP) if has_infiniband else (0, Verdict.OK))


def test_uplinks_without_a_default_route_wait_for_addresses_too(node: NamespaceKernel, tmp_path: Path) -> None:
    """The uplinks are judged nevertheless."""
    assert node.delete(node.default_routes()) == ()
    config = Case("STRICT", None, 60).config(uplinks=["eth0"], waitSeconds=0)
    agent = OnProgress(act=give_address)
    with infiniband(DEV):
        said, _ = run_script(Sandbox(tmp_path), render_check(config), give_address)
        subprocess.run(["ip", "address", "flush", "dev", DEV], check=True)
        verdict_of(config, node, tmp_path, agent)
    assert f"waiting up to 60 s for an address on {DEV}" in said
    assert agent.messages == [f"waiting up to 60 s for an address on {DEV}"]


# --- at the gate -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settle_seconds", [None, 90])
def test_the_gate_waits_once_and_not_for_long(
    settle_seconds: int | None, node: NamespaceKernel, tmp_path: Path
) -> None:
    """While the gate holds a start, only its first check waits; once the problem is fixed, the start continues."""
    text = with_constants(render_check(Case("STRICT", settle_seconds, 90).config()), GATE_SECONDS=1)
    run = partial(run_script, Sandbox(tmp_path), text, lambda: None)
    with infiniband(DEV):
        said, code = run("gate")
        assert (said.splitlines()[0], code) == (f"waiting up to 1 s for an address on {DEV}", 0)
        said, code = run("gate", "told")
        assert ("waiting" in said, code) == (False, 0)
        give_address()
        assert run("gate")[1] == 1


# --- together with the wait for the default route --------------------------------------------------------------------


def test_each_wait_has_its_own_limit(node: NamespaceKernel, tmp_path: Path) -> None:
    """The wait for the default route ends after `waitSeconds`, even if the InfiniBand limit is longer."""
    default = [route for route in node.routes(Table.MAIN) if route.destination == DEFAULT_DESTINATION]
    assert node.delete(default) == ()
    text, sandbox = render_check(Case("STRICT", None, 60).config(waitSeconds=1)), Sandbox(tmp_path)
    with infiniband(DEV):
        said, code = run_script(sandbox, text)
        assert (said.splitlines()[0], code) == ("waiting up to 1 s for the default route", 1)
        process = sandbox.start(text)
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting up to 1 s for the default route\n"
        assert node.add(default) == ()
        assert process.stdout.readline() == f"waiting up to 60 s for an address on {DEV}\n"
        give_address()
        assert "routes via ib7" in process.communicate(timeout=60)[1]
