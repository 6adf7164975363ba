"""Tests that public names exist, are listed in docs/reference/api.md, and satisfy four type checkers."""

from __future__ import annotations

import ast
import inspect
import os
import pickle
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hostrouting
import hostrouting.azure
import hostrouting.backend
import hostrouting.report
import hostrouting.testing
import phases
import phases.testing

if TYPE_CHECKING:
    from types import ModuleType


OFFERED: tuple[ModuleType, ...] = (
    phases,
    hostrouting,
    hostrouting.backend,
    hostrouting.report,
    hostrouting.azure,
    hostrouting.testing,
)
NAMES: set[str] = {*vars(hostrouting)["__all__"]}


@pytest.mark.parametrize("module", OFFERED, ids=lambda module: module.__name__)
def test_every_public_name_exists(module: ModuleType) -> None:
    assert len({*module.__all__}) == len(module.__all__)
    assert {*module.__all__} <= {*dir(module)}
    assert all(getattr(module, name) is not None for name in module.__all__)


def test_type_checkers_find_each_name_in_the_same_module() -> None:
    module: ModuleType = hostrouting
    tree = ast.parse(inspect.getsource(module))
    told = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "phases"
        for alias in node.names
        if alias.asname is not None
    }
    assert set(told) == set(module.__all__)
    for name, home in told.items():
        assert getattr(module, name) is pydoc.locate(home)


def test_the_docstring_lists_every_name_by_use() -> None:
    assert {*re.findall(r"\w+", hostrouting.__doc__ or "")} >= NAMES


def test_the_api_page_begins_with_every_public_name() -> None:
    page = (Path(__file__).parent.parent / "docs/reference/api.md").read_text()
    listed = re.findall(r"^\.\. auto(?:class|function|exception):: (\w+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted(NAMES)
    modules = {*re.findall(r"^\.\. automodule:: ([\w.]+)$", page, re.MULTILINE)}
    named = {module.__name__ for module in OFFERED} - {"hostrouting"}
    assert modules >= named | {"phases.testing", "hostrouting.testing.conformance"}
    assert page.rindex(f":: {listed[-1]}\n") < page.index("automodule")


def imported_beside(folder: Path) -> str:
    """Import hostrouting with a directory of modules first on the path, and return the last line of stderr."""
    done = subprocess.run(
        [sys.executable, "-c", "from hostrouting import Config"],
        env=os.environ | {"PYTHONPATH": f"{folder}:{Path(__file__).parent.parent}"},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return done.stderr.splitlines()[-1]


def test_another_distributions_phases_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "phases.py").write_text("def phase(): ...\n")
    said = imported_beside(tmp_path)
    assert said.startswith("ImportError: the package phases is not hostrouting's")
    assert "pip uninstall phases" in said


def test_a_missing_library_is_not_reported_as_another_phases(tmp_path: Path) -> None:
    (tmp_path / "attrs.py").write_text("raise ModuleNotFoundError('no attrs', name='attrs')\n")
    assert imported_beside(tmp_path) == "ModuleNotFoundError: no attrs"


@pytest.mark.parametrize(
    "value",
    [
        hostrouting.Config(static_routes={"enabled": True, "routes": [{"destination": "172.16.1.0/24"}]}),
        hostrouting.Layout("/srv"),
        hostrouting.Snapshot((), (), (), ()),
        hostrouting.RoutesReport(),
        hostrouting.ConfigError([("a", "b")]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_can_be_sent_to_another_process(value: object) -> None:
    again = pickle.loads(pickle.dumps(value))
    assert repr(again) == repr(value)
    assert again == value or isinstance(value, Exception)
