"""The two locks: of the kernel's table, which the scripts take too, and of a whole run, whose end tells its changes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import attrs

from hostrouting.boot.files import exists, make_folders, translate_errors
from hostrouting.boot.host import Host
from hostrouting.boot.manifest import ROUTES
from hostrouting.model.changes import Changes
from hostrouting.model.errors import FileError, HostRoutingError
from phases import Cancelled, CancelScope, TimedOut

LOCK_WAIT_SECONDS = 60
_POLL_SECONDS = 0.05

# As long as another run may wait for the network.
_RUN_WAIT_SECONDS = 660


@contextmanager
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
    with translate_errors(f"take the lock {path}"), suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


# --- a whole run ---------------------------------------------------------------------------------------------------


class OverdueRun(TimedOut):
    """A run whose deadline passed, and which has changed something that stays: its ``changes``."""

    changes = Changes()


class StoppedRun(Cancelled):
    """A run that was cancelled, and has changed something that stays: its ``changes``."""

    changes = Changes()


@attrs.define
class Done:
    """The changes that a run has made so far, and not put back."""

    changes: Changes = attrs.field(factory=Changes)

    def add(self, made: Iterable[Changes]) -> None:
        """Add changes, each as soon as it is made."""
        for changes in made:
            self.changes |= changes


@contextmanager
def exclusive_run(host: Host, scope: CancelScope, *, is_wanting: bool) -> Iterator[Done]:
    """Hold the lock of a whole run, and have what ends the run tell what stays changed.

    Of two runs at once the second begins where the first has ended. An image has no other runs, and no /run to leave a
    file in; a run that wants nothing, on a host that has seen no other, leaves none either.

    Args:
        host: where.
        scope: ends the wait for another run.
        is_wanting: whether anything is to be installed.

    Yields:
        What the run has done, which the caller adds to.

    Raises:
        FileError: the lock can't be taken.
    """
    done, layout = Done(), host.layout
    has_lock = not host.is_image and (
        is_wanting or any(map(exists, (layout.run_lock, layout.manifest, layout.unit(ROUTES))))
    )
    try:
        with locked(layout.run_lock, scope, seconds=_RUN_WAIT_SECONDS) if has_lock else nullcontext():
            yield done
    except HostRoutingError as error:
        error.changes = done.changes
        raise
    except OSError as error:
        # Each is to be named where it happens; an import may open a file anywhere.
        attempt = f"carry out the run at {error.filename or 'a file without a name'}"
        stray = FileError.of(attempt, error)
        stray.changes = done.changes
        raise stray from error
    except (Cancelled, TimedOut) as end:
        if not done.changes:
            raise
        ended = StoppedRun(end.reason) if isinstance(end, Cancelled) else OverdueRun(end.seconds)
        ended.changes = done.changes
        raise ended from end
