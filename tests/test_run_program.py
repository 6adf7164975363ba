"""./run sets up what a command needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("is_same", [True, False])
def test_only_the_environments_own_python_is_accepted(tmp_path: Path, *, is_same: bool) -> None:
    shutil.copy(ROOT / "run", tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    other = tmp_path / "python3.99"
    other.write_text("#!/bin/sh\necho '3.99.0 (main) [GCC 12.2.0]'\n")
    other.chmod(0o755)
    python = sys.executable if is_same else str(other)
    done = subprocess.run(
        [tmp_path / "run", "python", "-V"],
        env=os.environ | {"PYTHON": python},
        capture_output=True,
        text=True,
        check=False,
    )
    # There is no project in the folder, so the set-up fails after this.
    assert (f"another Python than PYTHON={python}" in done.stderr) == (not is_same)
    assert (done.returncode == 0, done.stdout) == (False, "")
