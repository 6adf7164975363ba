"""The two locks: one for the kernel's table, and one for a whole run.

The scripts take the first one too. An error in a run under the second one lists the changes that remain.
"""

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

# Another run may wait this long for the network (11 min).
_RUN_WAIT_SECONDS = 660


@contextmanager
def locked(path: Path, scope: CancelScope, *, seconds: int = LOCK_WAIT_SECONDS) -> Iterator[None]:
    """Hold the lock that every run takes before it writes.

    It uses flock(2), so the ``flock`` command in the boot scripts respects it too. The file remains when the lock is
    released, because removing it would let two runs hold two locks of the same name.


    Args:
        path: the lock file; it and its folder are created if missing.
        scope: cancels the wait for the process that holds the lock.
        seconds: the longest time to wait for the process that holds the lock.

    Raises:
        FileError: the file can't be opened, or another run holds the lock for longer than that.
    """
    with translate_errors(f"open the lock {path}"):
        make_folders(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = scope.clock.monotonic() + seconds
        if not _is_taken(descriptor, path):
            scope.progress(f"waiting for another run to release {path}")
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
    """A run whose deadline passed after it had changed something; ``changes`` lists the changes that remain."""

    changes = Changes()


class StoppedRun(Cancelled):
    """A run that was cancelled after it had changed something; ``changes`` lists the changes that remain."""

    changes = Changes()


@attrs.define
class Done:
    """The changes that a run has made so far and hasn't undone."""

    changes: Changes = attrs.field(factory=Changes)

    def add(self, made: Iterable[Changes]) -> None:
        """Add changes one by one, as soon as each is made."""
        for changes in made:
            self.changes |= changes


@contextmanager
def exclusive_run(host: Host, scope: CancelScope, *, is_wanting: bool) -> Iterator[Done]:
    """Hold the lock of a whole run, and make an error that ends the run list the changes that remain.

    A second run starts when the first has ended. An image has no other runs, and no /run for a lock file. If a run
    installs nothing on a host without earlier runs, it creates no lock file either.

    Args:
        host: the host to work on.
        scope: cancels the wait for another run.
        is_wanting: whether anything is to be installed.

    Yields:
        The record of the changes, which the caller extends.

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
        # An error should be translated where it occurs, but an import may open a file anywhere.
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
