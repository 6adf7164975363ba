"""Tests that ./run sets up what a command needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_another_python_than_the_environments_is_refused(tmp_path: Path) -> None:
    shutil.copy(ROOT / "run", tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    other = tmp_path / "python3.99"
    other.write_text("#!/bin/sh\necho '3.99.0 (main) [GCC 12.2.0]'\n")
    other.chmod(0o755)
    done = subprocess.run(
        [tmp_path / "run", "python", "-V"],
        env=os.environ | {"PYTHON": str(other)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"another Python than PYTHON={other}" in done.stderr
    assert (done.returncode == 0, done.stdout) == (False, "")
