"""Find a Python interpreter that units and scripts can safely run as root."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from site import getsitepackages

from hostrouting.boot.layout import Layout
from hostrouting.model.errors import FileError
from hostrouting.model.opening import translate_errors
from phases import CancelScope, TimedOut

# Long enough for a cold start on a busy machine.
_SECONDS = 30.0


def python_of(layout: Layout) -> str:
    """Return the path of the Python for a layout's units and scripts, or "" if it isn't suitable.

    Units and scripts run Python with ``-I``, which ignores PYTHONPATH, the working directory and
    the user's site-packages, because another user may own these. If hostrouting can only be
    imported from there, it isn't safe to run as root.

    Raises:
        FileError: running the interpreter times out.
    """
    # An image's Python can't be run on the build host. Assume that it has the same path as this
    # one.
    return sys.executable if not layout.is_this_host or _finds_hostrouting(sys.executable) else ""


@cache
def _finds_hostrouting(python: str) -> bool:
    if not python:  # an embedded Python doesn't know its path
        return False
    if str(Path(__file__).parents[2]) in getsitepackages():  # -I searches these, too
        return True
    argv = [python, "-I", "-c", "import hostrouting"]
    with translate_errors(f"run {python}"), suppress(FileNotFoundError):
        try:
            return CancelScope(timeout=_SECONDS).run(argv, check=False).returncode == 0
        except TimedOut:
            reason = (
                f"can't tell whether {python} -I finds hostrouting: timed out after {_SECONDS:g} s"
            )
            raise FileError(reason) from None
    return False
