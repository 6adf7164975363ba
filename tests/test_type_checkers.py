"""Tests that four type checkers accept user code; ./run lint checks all other code with mypy and pyright."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parent.parent

# Definitions of the names used in the README's code blocks.
BEFORE = """\
# pyright: strict, reportUnusedImport=false, reportDuplicateImport=false
from dataclasses import dataclass

import phases
from hostrouting import CheckRouteOverlap, Config, Configure, ConfigureReport, ConfigureStaticRoutes, OverlapReport
from typing_extensions import assert_type

config = Config()


@dataclass(frozen=True)
class PullImage:
    image: str
    name: str = "pull-image"

    def do(self, scope: phases.CancelScope) -> str:
        return self.image


@dataclass(frozen=True)
class StartMachine:
    machine: str
    name: str = "start-machine"

    def do(self, scope: phases.CancelScope) -> int:
        return 1


"""
AFTER = "\n\nassert_type(phases.run(Configure(config)), ConfigureReport)\nassert_type(check(config), OverlapReport)\n"

CHECKERS = {
    "mypy": ["mypy", "--python-executable", sys.executable],
    "pyright": ["pyright", "--pythonpath", sys.executable],
    "ty": ["ty", "check", "--python", sys.prefix, "--no-progress"],
    "pyrefly": [
        "pyrefly",
        "check",
        "--preset=default",
        "--search-path=examples",
        "--python-interpreter-path",
        sys.executable,
    ],
}


def check(checker: str, *files: Path) -> subprocess.CompletedProcess[str]:
    program, *options = CHECKERS[checker]
    return subprocess.run(
        [Path(sys.executable).parent / program, *options, *files], capture_output=True, text=True, cwd=ROOT
    )


@pytest.fixture
def readme(tmp_path: Path) -> list[Path]:
    pieces = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert pieces
    files = {tmp_path / f"piece_{number}.py": piece for number, piece in enumerate(pieces)}
    for file, piece in files.items():
        file.write_text(BEFORE + piece + AFTER)
    return list(files)


@pytest.mark.parametrize("checker", CHECKERS)
def test_the_readmes_python_is_clean(checker: str, readme: list[Path]) -> None:
    done = check(checker, *readme)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("checker", ["ty", "pyrefly"])
def test_the_examples_and_users_code_are_clean(checker: str) -> None:
    done = check(checker, *(ROOT / "examples").glob("*.py"), ROOT / "tests/typing/api.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("checker", CHECKERS)
def test_an_error_is_reported(checker: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(f"{BEFORE}phases.run({{'routes': []}})\nassert_type(phases.run(PullImage('node')), int)\n")
    done = check(checker, wrong)
    assert done.returncode == 1
    assert done.stdout.count("wrong.py:") + done.stderr.count("wrong.py:") >= 2
