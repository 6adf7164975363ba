"""Tests that ./run refuses another Python, and that a hanging test fails, shows where, and leaves
no process behind.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from nightly import IS_NIGHTLY

HERE = Path(__file__).parent
# pytest-timeout uses SIGALRM. If a test blocks it, only the process's limit remains.
DEAF = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])"
HANGS = {
    "lock": "lock = threading.Lock()\n    lock.acquire()\n    lock.acquire()",
    "pty": (
        "controller, terminal = pty.openpty()\n"
        "    while True:\n        os.write(terminal, b'.' * 4096)"
    ),
    "child": "subprocess.run([sys.executable, '-c', 'import time; time.sleep(3600)', 'planted'])",
}


def is_running(words: bytes) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # the process may have ended
            if words in path.read_bytes():
                return True
    return False


CASES = (
    [(kind, is_deaf) for kind in HANGS for is_deaf in (False, True)]
    if IS_NIGHTLY
    else [("child", True)]
)


@pytest.mark.ci
def test_planted_hangs_fail_with_stacks(tmp_path: Path) -> None:
    planted = tmp_path / "test_planted.py"
    text, lines = "import os, pty, pytest, signal, subprocess, sys, threading\n\n", {}
    for kind, is_deaf in CASES:
        name = f"test_{'deaf' if is_deaf else 'heeding'}_{kind}"
        text += (
            "@pytest.mark.timeout(1, func_only=True)\n"
            f"def {name}():\n    {DEAF if is_deaf else 'pass'}\n"
        )
        text += f"    {HANGS[kind].replace('planted', str(tmp_path))}\n\n"
        lines[name] = text.count("\n") - 1  # the line where the test hangs
    planted.write_text(f"{text}def test_other():\n    pass\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider"),
            *("--rootdir", str(tmp_path)),
            *("-c", os.devnull, "-n", "1", "--timeout", "60", str(planted)),
        ],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "HOSTROUTING_REQUIRE": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert re.search(f"{len(CASES)} failed, 1 passed", said), said
    for name, line in lines.items():
        assert re.search(rf"FAILED .*{name}|crashed while running '.*{name}'", said), said
        assert re.search(rf'test_planted\.py(", line |:){line}\b', said), said
    assert not is_running(str(tmp_path).encode())


def test_another_python_than_the_environments_is_refused(tmp_path: Path) -> None:
    shutil.copy(HERE.parent / "run", tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    other = tmp_path / "python3.99"
    other.write_text("#!/bin/sh\necho '3.99.0 (main) [GCC 12.2.0]'\n")
    other.chmod(0o755)
    command, env = [str(tmp_path / "run"), "python", "-V"], os.environ | {"PYTHON": str(other)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert f"another Python than PYTHON={other}" in done.stderr
    assert (done.returncode == 0, done.stdout) == (False, "")


def test_the_tests_of_the_examples_need_no_plugin_of_pytest() -> None:
    """Their readers install hostrouting and pytest, but not what the other tests need."""
    root = HERE.parent
    options = re.search(
        r"\[tool\.pytest\.ini_options\](.*?)\n\[", (root / "pyproject.toml").read_text(), re.S
    )
    assert options is not None
    assert "hypothesis" not in options[1]
    assert not re.search(r"^timeout", options[1], re.M)
