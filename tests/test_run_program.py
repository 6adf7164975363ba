"""./run sets up what a command needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "import sys; print(sys.version)"


def other_python() -> str:
    """Return the program of another Python than this one."""
    for folder in os.get_exec_path():
        for path in sorted(Path(folder).glob("python3*[0-9]")):
            done = subprocess.run([path, "-c", BUILD], capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout.rstrip("\n") != sys.version:
                return str(path)
    pytest.skip("there is one Python here")


def test_a_python_other_than_the_environments_is_refused(tmp_path: Path) -> None:
    shutil.copy(ROOT / "run", tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    python = other_python()
    done = subprocess.run(
        [tmp_path / "run", "python", "-V"],
        env=os.environ | {"PYTHON": python},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"PYTHON={python}" in done.stderr
