"""A release, made of a checkout or of an unpacked sdist."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def build(project: Path, folder: Path, *before: str) -> None:
    """Make wheel, sdist, SBOM and Debian package.

    Args:
        project: what of.
        folder: where to.
        before: words of the command before the program.
    """
    subprocess.run([*before, sys.executable, project / "deploy/build.py", folder], check=True, stdout=subprocess.PIPE)
