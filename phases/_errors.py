"""Define how tasks end: the exceptions and notes of a run, and the observer that it reports to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Protocol, TypeVar

E = TypeVar("E", bound=BaseException)

Tell = Callable[[Callable[["Observer"], None]], None]
"""Tells the observers of a run something, one call at a time."""

POLL_SECONDS = 0.025
"""How long anything here blocks at a stretch, before it looks for cancels.

Nothing could wake it up for all of them: a signal that comes between the main thread's last line and its
blocking system call doesn't interrupt that, and the handler, which may want to cancel, runs in that thread only.
"""


class Cancelled(BaseException):
    """Cancellation of the scope; not an `Exception`, so that no task swallows it by accident.

    Args:
        reason: why, in words.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TimedOut(Exception):
    """The deadline of this very scope passed; the scopes below it are `Cancelled` instead.

    It is no `OSError`, so that no `except OSError` takes a deadline for a failed system call.

    Args:
        seconds: how much time there had been.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"not done within {self.seconds:g} s"


class Status(str, Enum):
    """Outcome of a task."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"

    __str__ = str.__str__

    @classmethod
    def of(cls, error: BaseException) -> Status:
        """Give the status of a task that raised this."""
        if isinstance(error, Cancelled):
            return cls.CANCELLED
        return cls.TIMED_OUT if isinstance(error, TimedOut) else cls.FAILED


class Observer(Protocol):
    """Is told what happens in a run; one call at a time, from whichever thread a task runs in."""

    def started(self, path: str) -> None:
        """Report that a task starts; its path is the names from the root of the tree, joined by slashes."""

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """Report that a task got on: what it does or waits for, and how much is done (0…1) if that is known."""

    def finished(self, path: str, status: Status, error: BaseException | None, seconds: float) -> None:
        """Report that a task ended after so many seconds, with this exception unless the status is `ok`."""


def text_of(error: BaseException) -> str:
    """Give an exception as `module.Class: message`, whatever its `__str__` does."""
    import traceback

    # The traceback module survives a __str__ that raises; the first item is the class and the message.
    return traceback.format_exception_only(type(error), error)[0].strip()


class PathNote(str):
    """The note on an exception that names the task that it came out of.

    Args:
        path: the names from the root of the tree, joined by slashes.
    """

    path: str

    def __new__(cls, path: str) -> PathNote:
        note = super().__new__(cls, f"in task {path}")
        note.path = path
        return note

    def __getnewargs__(self) -> tuple[str]:
        return (self.path,)  # else a copy would be made with the text as its path


def paths_of(error: BaseException) -> list[str]:
    """Return the paths of the tasks that are noted on an exception, the innermost first."""
    return [note.path for note in getattr(error, "__notes__", ()) if isinstance(note, PathNote)]


def path_of(error: BaseException) -> str | None:
    """Return the path of the innermost task that an exception came out of; None if it came out of none."""
    return next(iter(paths_of(error)), None)


def add_path_note(error: BaseException, path: str) -> None:
    """Note the path of the task that raised, unless a task below it has noted its own."""
    if not any(f"{noted}/".startswith(f"{path}/") for noted in paths_of(error)):
        add_note(error, PathNote(path))


# --- what Python 3.10 lacks ------------------------------------------------------------------------------------------


def add_note(error: E, note: str) -> E:
    """Add a note to an exception that can carry one, and give it back."""
    # 3.10 has no BaseException.add_note, which does just this. Frozen exceptions and those with odd __notes__
    # can't; they must still arrive as they are.
    with suppress(AttributeError, TypeError):
        vars(error)["__notes__"] = [*getattr(error, "__notes__", ()), note]
    return error


def group_of(message: str, errors: Sequence[Exception]) -> Exception:
    """Make an `ExceptionGroup`; on 3.10 that of the package `exceptiongroup`."""
    if sys.version_info < (3, 11):
        from exceptiongroup import ExceptionGroup as Group

        return Group(message, errors)
    else:  # noqa: RET505 - type checkers skip what the version rules out only in a branch
        return ExceptionGroup(message, errors)  # noqa: F821
