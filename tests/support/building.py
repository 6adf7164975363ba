"""Build a release from a checkout or an unpacked sdist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def build(project: Path, folder: Path, *before: str) -> None:
    """Build the wheel, sdist, SBOM and Debian package.

    Args:
        project: the checkout or sdist.
        folder: the output folder.
        before: command prefix for the build program.
    """
    subprocess.run([*before, sys.executable, project / "deploy/build.py", folder], check=True, stdout=subprocess.PIPE)
