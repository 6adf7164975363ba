"""Test how long a check waits for InfiniBand addresses, in Python and in the boot script."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from infiniband import infiniband
from node import run_ip
from recording_tasks import OnProgress
from scripts import Sandbox, awk_or_skip, awks_for, with_constants

import phases
from hostrouting import Config, Host, Layout, Verdict, check
from hostrouting.boot.render import render_check
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.model.routes import DEFAULT_DESTINATION, Table
from hostrouting.testing import FakeSystemd

pytestmark = pytest.mark.kernel

DEV, ADDRESS = "ib7", "172.17.0.1/16"


@attrs.frozen
class Case:
    """A node with an InfiniBand interface.

    Args:
        mode: the check's mode.
        settle_seconds: the value in the config, or None to omit it.
        waits: expected wait in seconds.
        state: whether the interface is up and its address comes late, or it is down, or it has the address, or there is
            none.
        has_default: whether the node has a default route. The config names the uplink if it hasn't.
    """

    mode: str
    settle_seconds: int | None
    waits: int
    state: str = "up"
    has_default: bool = True

    @property
    def is_shadowed(self) -> bool:
        """Return whether a check that waits, if it does, sees the address."""
        return self.state == "address" or (self.state == "up" and self.waits > 0)

    def config(self, **more: Any) -> Config:
        overlap = {"expectedCidrs": ["172.17.1.0/24"], "mode": self.mode, "settleSeconds": self.settle_seconds}
        named = {} if self.has_default else {"uplinks": ["eth0"], "waitSeconds": 0}
        return Config.from_mapping({"hostRouting": {"routeOverlap": overlap} | named | more})

    @contextmanager
    def interface(self) -> Iterator[None]:
        with nullcontext() if self.state == "none" else infiniband(DEV, is_up=self.state != "down"):
            if self.state == "address":
                give_address()
            yield

    def __str__(self) -> str:
        default = "" if self.has_default else "-no-default"
        return f"{self.mode}-{self.settle_seconds}-{self.state}{default}"


CASES = [
    Case("STRICT", None, 60),
    Case("STRICT", None, 60, has_default=False),
    Case("STRICT", None, 0, "down"),
    Case("STRICT", None, 0, "address"),
    Case("STRICT", None, 0, "none"),
    Case("STRICT", 0, 0),
    Case("STRICT", 90, 90),
    Case("STRICT", 90, 90, "down"),
    Case("WARN", None, 0),
    Case("WARN", 0, 0),
    Case("WARN", 90, 90),
]


def give_address() -> None:
    run_ip(f"address add {ADDRESS} dev {DEV}")


@pytest.mark.parametrize(
    ("case", "awk"), [(case, awk) for case in CASES for awk in awks_for(f"late addresses {case}")], ids=str
)
def test_the_script_waits(case: Case, awk: str, node: NamespaceKernel, tmp_path: Path) -> None:
    """The library waits in the same cases."""
    expected = [f"waiting up to {case.waits} s for an address on {DEV}"] if case.waits else []
    if not case.has_default:
        assert node.delete(node.default_routes()) == ()
    with case.interface():
        said, code = run_script(Sandbox(tmp_path, awk_or_skip(awk)), render_check(case.config()), give_address)
    assert re.findall("waiting .*", said) == expected
    assert (f"routes via {DEV}, expected eth0" in said) == case.is_shadowed
    assert code == (case.mode == "STRICT" and case.is_shadowed)
    agent, host = OnProgress(act=give_address), Host(routes=node, units=FakeSystemd(), layout=Layout(tmp_path))
    library = phases.task("check")(lambda scope: check(case.config(), host=host, scope=scope))
    with case.interface():
        verdict = phases.run(library, observer=agent).verdict
    assert agent.messages == expected
    assert verdict is (Verdict.OVERLAP if case.is_shadowed else Verdict.OK)


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
    case, sandbox = Case("STRICT", None, 60), Sandbox(tmp_path)
    with infiniband(DEV):
        said, code = run_script(sandbox, render_check(case.config(waitSeconds=1)))
        assert (said.splitlines()[0], code) == ("waiting up to 1 s for the default route", 1)
        process = sandbox.start(render_check(case.config(waitSeconds=50)))
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting up to 50 s for the default route\n"
        assert node.add(default) == ()
        assert process.stdout.readline() == f"waiting up to 60 s for an address on {DEV}\n"
        give_address()
        assert "routes via ib7" in process.communicate(timeout=60)[1]
