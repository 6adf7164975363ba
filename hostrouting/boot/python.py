"""Find the Python that units and scripts can start as root, isolated from its environment."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from functools import cache

from hostrouting.boot.files import translate_errors
from hostrouting.boot.layout import Layout
from hostrouting.model.errors import FileError

# This is longer than a cold start takes on a busy machine.
_SECONDS = 30.0


def python_of(layout: Layout) -> str:
    """Return the path of the Python that a layout's units and scripts start, or an empty string if there is none.

    They start it with ``-I``, which ignores PYTHONPATH, the caller's folder and the packages in a home folder, because
    another user may own them. If hostrouting is found only there, root must not start it.

    Raises:
        FileError: Python doesn't end in time.
    """
    # The Python of an image can't be run here.
    return sys.executable if not layout.is_this_host or _finds_hostrouting(sys.executable) else ""


@cache
def _finds_hostrouting(python: str) -> bool:
    if not python:  # an embedded Python doesn't know its path
        return False
    argv = [python, "-I", "-c", "import hostrouting"]
    with translate_errors(f"run {python}"), suppress(FileNotFoundError):
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise FileError(
                f"can't tell whether {python} -I finds hostrouting: timed out after {_SECONDS:g} s"
            ) from None
        return done.returncode == 0
    return False
