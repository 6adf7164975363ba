"""Test how long a check waits for InfiniBand addresses, in Python and in the boot script."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from infiniband import infiniband
from node import run_ip
from recording_tasks import OnProgress
from scripts import Sandbox, with_constants

import phases
from hostrouting import Config, Host, Layout, Verdict, check
from hostrouting.boot.render import render_check
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.port import Write, read_default_routes, read_routes
from hostrouting.model.routes import DEFAULT_DESTINATION, Table
from hostrouting.testing import FakeSystemd

pytestmark = pytest.mark.kernel

DEV, ADDRESS = "ib7", "172.17.0.1/16"


def config_of(mode: str, settle_seconds: int | None, **more: Any) -> Config:
    overlap = {"expectedCidrs": ["172.17.1.0/24"], "mode": mode, "settleSeconds": settle_seconds}
    return Config.from_mapping({"hostRouting": {"routeOverlap": overlap} | more})


# The mode, settleSeconds in the config, how long a check waits, and the interface: it is up and its
# address comes late, it is down, it has the address, or there is none.
CASES = [
    ("STRICT", None, 60, "up"),
    ("STRICT", None, 60, "up, and the node has no default route"),
    ("STRICT", None, 0, "down"),
    ("STRICT", None, 0, "address"),
    ("STRICT", None, 0, "none"),
    ("STRICT", 0, 0, "up"),
    ("STRICT", 90, 90, "up"),
    ("STRICT", 90, 90, "down"),
    ("WARN", None, 0, "up"),
    ("WARN", 0, 0, "up"),
    ("WARN", 90, 90, "up"),
]


def give_address() -> None:
    run_ip(f"address add {ADDRESS} dev {DEV}")


@contextmanager
def interface(state: str) -> Iterator[None]:
    with nullcontext() if state == "none" else infiniband(DEV, is_up=state != "down"):
        if state == "address":
            give_address()
        yield


@pytest.mark.parametrize(("mode", "settle_seconds", "seconds", "state"), CASES)
def test_the_script_waits(
    mode: str,
    settle_seconds: int | None,
    seconds: int,
    state: str,
    node: NamespaceKernel,
    sandbox: Sandbox,
) -> None:
    """The library waits in the same cases."""
    expected = [f"waiting up to {seconds} s for an address on {DEV}"] if seconds else []
    is_shadowed = state == "address" or (state.startswith("up") and seconds > 0)
    asked = config_of(mode, settle_seconds)
    if "no default route" in state:
        assert node.write(Write.DELETE, read_default_routes(node)) == ()
        asked = config_of(mode, settle_seconds, uplinks=["eth0"], waitSeconds=0)
    with interface(state):
        said, code = run_script(sandbox, render_check(asked), give_address)
    assert re.findall("waiting .*", said) == expected
    assert (f"routes via {DEV}, expected eth0" in said) == is_shadowed
    assert code == (mode == "STRICT" and is_shadowed)
    agent, host = (
        OnProgress(act=give_address),
        Host(routes=node, units=FakeSystemd(), layout=Layout(sandbox.root)),
    )
    library = phases.task("check")(lambda scope: check(asked, host=host, scope=scope))
    with interface(state):
        verdict = phases.run(library, observers=[agent]).verdict
    assert agent.messages == expected
    assert verdict is (Verdict.OVERLAP if is_shadowed else Verdict.OK)


def run_script(
    sandbox: Sandbox, text: str, act: Callable[[], object] = lambda: None, *arguments: str
) -> tuple[str, int]:
    """Run a script, call ``act`` once the script reports that it is waiting, and return its output
    and exit code.
    """
    process = sandbox.start(text, *arguments)
    assert process.stdout is not None
    said = process.stdout.readline()
    if said.startswith("waiting"):
        act()
    out, error = process.communicate(timeout=60)
    return said + out + error, process.returncode


@pytest.mark.parametrize("has_address", [True, False])
def test_a_name_may_contain_the_sign_before_a_parent(
    node: NamespaceKernel, sandbox: Sandbox, *, has_address: bool
) -> None:
    with infiniband("a@b"):
        if has_address:
            run_ip("address add 172.18.0.1/16 dev a@b")
        said, code = run_script(sandbox, render_check(config_of("STRICT", 1)))
    assert (said.startswith("waiting up to 1 s for an address on "), code) == (not has_address, 0)


# --- at the gate ----------------------------------------------------------------------------------


@pytest.mark.parametrize("settle_seconds", [None, 90])
def test_the_gate_waits_once_and_not_for_long(
    settle_seconds: int | None, node: NamespaceKernel, tmp_path: Path
) -> None:
    """While the gate holds a start, only its first check waits; once the problem is fixed, the
    start continues.
    """
    text = with_constants(render_check(config_of("STRICT", settle_seconds)), GATE_SECONDS=1)
    run = partial(run_script, Sandbox(tmp_path), text, lambda: None)
    with infiniband(DEV):
        said, code = run("gate")
        assert (said.splitlines()[0], code) == (f"waiting up to 1 s for an address on {DEV}", 0)
        said, code = run("gate", "told")
        assert ("waiting" in said, code) == (False, 0)
        give_address()
        assert run("gate")[1] == 1


# --- together with the wait for the default route -------------------------------------------------


def test_each_wait_has_its_own_limit(node: NamespaceKernel, tmp_path: Path) -> None:
    """The wait for the default route ends after `waitSeconds`, even if the InfiniBand limit is
    longer.
    """
    default = [
        route for route in read_routes(node, Table.MAIN) if route.destination == DEFAULT_DESTINATION
    ]
    assert node.write(Write.DELETE, default) == ()
    sandbox = Sandbox(tmp_path)
    with infiniband(DEV):
        said, code = run_script(sandbox, render_check(config_of("STRICT", None, waitSeconds=1)))
        assert (said.splitlines()[0], code) == ("waiting up to 1 s for the default route", 1)
        process = sandbox.start(render_check(config_of("STRICT", None, waitSeconds=50)))
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting up to 50 s for the default route\n"
        assert node.write(Write.ADD, default) == ()
        assert process.stdout.readline() == f"waiting up to 60 s for an address on {DEV}\n"
        give_address()
        assert "routes via ib7" in process.communicate(timeout=60)[1]
