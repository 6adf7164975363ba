"""Build a release from a checkout or an unpacked sdist, and fill folders once for all workers."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


def build(project: Path, folder: Path, *before: str) -> None:
    """Build the wheel, sdist, SBOM and Debian package.

    Args:
        project: the checkout or sdist.
        folder: the output folder.
        before: command prefix for the build program.
    """
    subprocess.run(
        [*before, sys.executable, project / "deploy/build.py", folder],
        check=True,
        stdout=subprocess.PIPE,
    )


def filled_once(factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], object]) -> Path:
    """Return a temporary folder of all workers, which the first one that asks for it fills."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / name
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = factory.mktemp("unfinished")
            fill(unfinished)
            unfinished.rename(folder)
    return folder
