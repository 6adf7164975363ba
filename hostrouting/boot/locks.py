"""Locks for the kernel's routing table and for a whole run.

The boot scripts take the routing table's lock, too. The error of a run that holds the run lock
lists the changes that remain.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TypeAlias, TypeVar

import attrs

from hostrouting.boot.files import exists, make_folders
from hostrouting.boot.host import Host
from hostrouting.boot.layout import ROUTES, Layout
from hostrouting.model.changes import Changes
from hostrouting.model.errors import NAMED_MAX, FileError, HostRoutingError
from hostrouting.model.opening import translate_errors
from hostrouting.model.text import shortened
from phases import Cancelled, CancelScope, TimedOut

E = TypeVar("E", bound=BaseException)

LOCK_WAIT_SECONDS = 60
_POLL_SECONDS = 0.05

# How long to wait for the run lock. The run that holds it may wait up to 10 min for the network,
# and 1 min for the routing table's lock.
_RUN_WAIT_SECONDS = 660


@contextmanager
def locked(path: Path, scope: CancelScope, *, seconds: int = LOCK_WAIT_SECONDS) -> Iterator[None]:
    """Hold an exclusive file lock.

    The lock uses flock(2), so it also works with the ``flock`` command in the boot scripts. The
    file isn't removed on release. Otherwise, two runs could each lock a different file with the
    same name.

    Args:
        path: the lock file; created if missing, along with its folder.
        seconds: how long to wait for the lock.

    Raises:
        FileError: the file can't be opened, or waiting for the lock times out.
    """
    with translate_errors(f"open the lock {path}"):
        make_folders(path.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
    try:
        deadline = scope.clock.monotonic() + seconds
        if not _try_lock(descriptor, path):
            scope.progress(f"waiting for another run to release {path}")
        while not _try_lock(descriptor, path):
            if scope.clock.monotonic() >= deadline:
                raise FileError(
                    f"can't take the lock {path}: another run has held it for {seconds} s",
                    hint=f"to see which process: fuser -v {path}",
                )
            scope.wait(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Return whether another process holds an exclusive file lock.

    Raises:
        FileError: the file can't be opened.
    """
    with translate_errors(f"open the lock {path}"):
        if not exists(path):
            return False
        with path.open() as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    return True


def _try_lock(descriptor: int, path: Path) -> bool:
    with translate_errors(f"take the lock {path}"), suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


# --- a whole run ----------------------------------------------------------------------------------

Enclosing: TypeAlias = Callable[[Host, "Done"], AbstractContextManager[object]]

# What encloses each run in this context, while it holds the run lock.
ENCLOSING: ContextVar[Enclosing] = ContextVar(
    "ENCLOSING", default=lambda _host, _done: nullcontext()
)


class OverdueRun(TimedOut):
    """A timeout of a task that has made changes; ``changes`` lists those still in place."""

    changes = Changes()


class StoppedRun(Cancelled):
    """A cancellation of a task that has made changes; ``changes`` lists those still in place."""

    changes = Changes()


@attrs.define(eq=False, repr=False)
class Done:
    """The changes of a run.

    Args:
        changes: the changes made so far, without those rolled back.
        attempted: the changes that the run is making. If one fails, all of these are rolled back.
        left: the part of ``changes`` that a rollback couldn't undo.
        unconfirmed: the part of ``changes`` of which it isn't known whether a rollback has undone
            it.
        are_routes_back: whether a rollback has restored all routes and rules.
    """

    changes: Changes = attrs.field(factory=Changes)
    attempted: Changes = attrs.field(factory=Changes)
    left: Changes = attrs.field(factory=Changes)
    unconfirmed: Changes = attrs.field(factory=Changes)
    are_routes_back: bool = False

    def add(self, made: Iterable[Changes]) -> None:
        """Add each change of an iterator as soon as it is made."""
        for changes in made:
            self.changes |= changes

    def fail(self, left: Changes, unconfirmed: Changes) -> None:
        """Add the changes that are still in place, or may be, after the rollback of an attempt."""
        remaining = left | unconfirmed
        self.changes |= remaining
        self.left |= left
        self.unconfirmed |= unconfirmed
        self.are_routes_back = bool(self.attempted.of_kernel) and not remaining.of_kernel
        self.attempted = Changes()

    def succeed(self, made: Changes) -> None:
        """Add the changes made by an attempt that has succeeded."""
        self.changes |= made
        self.attempted = Changes()


@contextmanager
def exclusive_run(host: Host, scope: CancelScope, *, is_installing: bool) -> Iterator[Done]:
    """Hold the run lock, and attach the remaining changes to any error that ends the run.

    All tasks pass here before they change anything. A second run waits for the first one to end.
    Images aren't locked, because they have no concurrent runs and no /run. A run that only removes
    things takes no lock on a host without traces of a previous run: a lock file, a manifest or a
    routes unit.

    Yields:
        The record to which the caller adds its changes.

    Raises:
        FileError: the lock can't be acquired.
        ConfigError: the host is an image that has become unsuitable since ``Host.image``.
    """
    done = Done()
    try:
        host.refuse_unsuitable_image()
        with _run_lock(host, scope, is_installing=is_installing), ENCLOSING.get()(host, done):
            yield done
    except HostRoutingError as error:
        error.changes = done.changes
        error.hint = "\n".join(filter(None, (error.hint, *_what_to_do(done))))
        raise
    except OSError as error:
        # All other OSErrors are translated where they occur. So this OSError comes from an import
        # inside a function, which couldn't open a file.
        attempt = f"carry out the run at {error.filename or 'a file without a name'}"
        raise _instead_of(error, FileError.of(attempt, error), done.changes) from error
    except (Cancelled, TimedOut) as end:
        if not done.changes:
            raise
        ended = StoppedRun(end.reason) if isinstance(end, Cancelled) else OverdueRun(end.seconds)
        raise _instead_of(end, ended, done.changes) from end
    except BaseException as error:  # such as KeyboardInterrupt
        # The interrupt may arrive after an attempt has succeeded, but before its success was
        # recorded.
        if changes := done.changes | done.attempted:
            vars(error)["changes"] = changes
        raise


def _run_lock(
    host: Host,
    scope: CancelScope,
    *,
    is_installing: bool,
) -> AbstractContextManager[None]:
    if host.is_image:
        return nullcontext()
    if not is_installing and not _has_traces(host.layout):
        return nullcontext()
    return locked(host.layout.run_lock, scope, seconds=_RUN_WAIT_SECONDS)


def _what_to_do(done: Done) -> Iterator[str]:
    for changes, what in (
        (done.left, "the rollback failed, too, and has left"),
        (
            done.unconfirmed,
            "after the rollback, it can't be read whether these changes were undone:",
        ),
    ):
        named = [
            f"{change.what} ({change.action})"
            for change in (*changes.routes, *changes.rules, *changes.files, *changes.units)
        ]
        if named:
            advice = "run the same again, or remove all: hostrouting remove"
            yield f"{what} {shortened(named, ', ', NAMED_MAX)}: {advice}"


def _instead_of(error: BaseException, raised: E, changes: Changes) -> E:
    """Return ``raised``, which is raised instead of ``error``, with the changes of the run.

    It also gets the notes of ``error``, such as the task's path.
    """
    vars(raised).update(changes=changes, __notes__=getattr(error, "__notes__", []))
    return raised


def _has_traces(layout: Layout) -> bool:
    traces = (layout.run_lock, layout.manifest, layout.unit(ROUTES))
    return any(exists(path) for path in traces)
