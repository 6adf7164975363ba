"""A test that hangs, whatever in, fails within its limit, and shows where; nothing that it has started goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from nightly import IS_NIGHTLY

HERE = Path(__file__).parent
# SIGALRM is what pytest-timeout would come by; without it nothing but the limit of the process is left.
DEAF = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])"
HANGS = {
    "lock": "lock = threading.Lock()\n    lock.acquire()\n    lock.acquire()",
    "pty": "controller, terminal = pty.openpty()\n    while True:\n        os.write(terminal, b'.' * 4096)",
    "child": "subprocess.run([sys.executable, '-c', 'import time; time.sleep(3600)', 'planted'])",
}


def is_running(words: bytes) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if words in path.read_bytes():
                return True
    return False


TRIED = [(kind, is_deaf) for kind in HANGS for is_deaf in (False, True)]


@pytest.mark.parametrize(("kind", "is_deaf"), TRIED if IS_NIGHTLY else [("lock", False), ("child", True)])
def test_a_planted_hang_fails_with_stacks(tmp_path: Path, kind: str, is_deaf: bool) -> None:
    planted = tmp_path / "test_planted.py"
    planted.write_text(
        "import os, pty, signal, subprocess, sys, threading\n\n"
        f"def test_hang():\n    {DEAF if is_deaf else 'pass'}\n    {HANGS[kind].replace('planted', str(tmp_path))}\n\n"
        "def test_other():\n    pass\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)),
            *("-c", os.devnull, "-n", "1", "--timeout", "1", str(planted)),
        ],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "HOSTROUTING_REQUIRE": ""},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert re.search("1 failed, 1 passed", said), said
    assert re.search(r"FAILED .*test_hang|crashed while running '.*test_hang'", said), said
    # The line in which it hangs.
    line = 5 + HANGS[kind].count("\n")
    assert re.search(rf'test_planted\.py(", line |:){line}\b', said), said
    assert not is_running(str(tmp_path).encode())
