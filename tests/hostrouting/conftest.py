"""An in-memory node whose ib0 shadows cluster addresses, and fixtures that run commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from file_trees import write_file
from node import shadowed_kernel
from wanted import MACHINE

from hostrouting import Host, Layout, cli
from hostrouting.backend import Family, RouteBackend, UnitManager
from hostrouting.fleet.judge import _Judging
from hostrouting.testing import FakeKernel, FakeSystemd


@pytest.fixture
def kernel() -> FakeKernel:
    return shadowed_kernel()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    layout.units.mkdir(parents=True)
    return layout


@pytest.fixture
def units(layout: Layout) -> FakeSystemd:
    return FakeSystemd(layout, running=[MACHINE])


@pytest.fixture
def host(kernel: FakeKernel, units: FakeSystemd, layout: Layout) -> Host:
    return Host(routes=kernel, units=units, layout=layout)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[object], Path]:
    """Return a function that writes text or a JSON document to a config file."""

    def call(document: object) -> Path:
        path = tmp_path / "given.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path

    return call


@pytest.fixture
def unasked() -> Any:
    """Return a backend and service manager that must not be used."""

    def refuse(name: str, *_args: object, **_kwargs: object) -> None:
        raise AssertionError(f"the host itself was asked for its {name}")

    names = {name for port in (RouteBackend, UnitManager) for name in dir(port) if name[0] != "_"}
    return SimpleNamespace(
        **{name: partial(refuse, name) for name in names} | {"family": Family.IPV4}
    )


@pytest.fixture
def elsewhere(
    tmp_path: Path, unasked: Any, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs commands on a laptop with different routes and a different
    nameserver.
    """
    laptop = Host(routes=unasked, units=unasked, layout=Layout(tmp_path / "laptop"))
    write_file(laptop.layout.resolv_conf, "nameserver 172.16.2.53\n")

    def call(*words: object) -> tuple[int, str, str]:
        code = cli.main([str(word) for word in words], host=laptop)
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def judged_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge snapshots in this process: starting others, as the tests of reports do, takes longer
    than to judge a few.
    """
    monkeypatch.setattr(_Judging, "judge_in_process", lambda self, _, batch: self.judge(batch))


@pytest.fixture
def recorded(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> Path:
    """Return a file containing the output of ``hostrouting snapshot`` on the node."""
    code, out, err = run("snapshot")
    assert (code, err) == (0, "")
    path = tmp_path / "node.json"
    path.write_text(out)
    return path
