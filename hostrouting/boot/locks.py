"""The two locks: of the kernel's table, which the scripts take too, and of a whole run."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from hostrouting.boot.files import make_folders, remove
from hostrouting.boot.host import Host
from hostrouting.boot.layout import Layout
from hostrouting.boot.manifest import ROUTES
from hostrouting.boot.seen import exists, translate_errors
from hostrouting.model.errors import FileError
from phases import CancelScope

LOCK_WAIT_SECONDS = 60
_POLL_SECONDS = 0.05

# As long as another run may wait for the network.
_RUN_WAIT_SECONDS = 660


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


@contextlib.contextmanager
def exclusive_run(host: Host, scope: CancelScope, *, is_wanting: bool) -> Iterator[None]:
    """Hold the lock of a whole run: of two at once the second begins where the first has ended.

    An image has no other runs, and no /run to leave a file in; a run that wants nothing, on a host that has seen no
    other, leaves none either. A trial whose confirm was killed ends with a run that succeeds.

    Args:
        host: where.
        scope: ends the wait for another run.
        is_wanting: whether anything is to be installed.

    Raises:
        FileError: the lock can't be taken.
    """
    if host.is_image or not (is_wanting or _has_seen_a_run(host.layout)):
        yield
        return
    with locked(host.layout.run_lock, scope, seconds=_RUN_WAIT_SECONDS):
        yield
        remove(host.layout.confirmed)


def _has_seen_a_run(layout: Layout) -> bool:
    return any(map(exists, (layout.run_lock, layout.manifest, layout.unit(ROUTES))))
