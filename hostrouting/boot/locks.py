"""The lock of the kernel's table, which the scripts take too; a whole run has one of its own, in ``run``."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from hostrouting.boot.files import make_folders, translate_errors
from hostrouting.model.errors import FileError
from phases import CancelScope

LOCK_WAIT_SECONDS = 60
_POLL_SECONDS = 0.05


@contextlib.contextmanager
def locked(path: Path, scope: CancelScope, *, seconds: int = LOCK_WAIT_SECONDS) -> Iterator[None]:
    """Hold the lock that every run which writes takes (flock(2), so that the boot scripts' ``flock`` honours it too).

    The file stays when the lock is let go: removing it would let two runs hold two locks of the same name.

    Args:
        path: the lock file; it and its folder are made if missing.
        scope: ends the wait for another holder.
        seconds: how long to wait for it.

    Raises:
        FileError: the file can't be opened, or another run holds it for longer.
    """
    with translate_errors(f"open the lock {path}"):
        make_folders(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = scope.clock.monotonic() + seconds
        if not _is_taken(descriptor, path):
            scope.progress(f"waiting for another run to let go of {path}")
        while not _is_taken(descriptor, path):
            if scope.clock.monotonic() >= deadline:
                raise FileError(
                    f"can't take the lock {path}: another run has held it for {seconds} s",
                    hint=f"see who holds it: fuser -v {path}",
                )
            scope.wait(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _is_taken(descriptor: int, path: Path) -> bool:
    with translate_errors(f"take the lock {path}"), contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
