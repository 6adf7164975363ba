"""Define how tasks end: the exceptions and notes of a run, and its observer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Protocol, TypeVar

E = TypeVar("E", bound=BaseException)

Tell = Callable[[Callable[["Observer"], None]], None]
"""Calls the observers of a run, one call at a time."""

POLL_SECONDS = 0.025
"""The longest time, in seconds, that anything here blocks before it checks for cancels.

No wakeup would work for all of them: a signal that arrives between the main thread's last line and its blocking system
call doesn't interrupt that call, and the handler, which may want to cancel, runs only in that thread.
"""


class Cancelled(BaseException):
    """The scope was cancelled. This isn't an `Exception`, so that no task swallows it by accident.

    Args:
        reason: the reason as text.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TimedOut(Exception):
    """The deadline of this scope itself passed; the scopes below it raise `Cancelled` instead.

    This isn't an `OSError`, so that `except OSError` doesn't treat a deadline as a failed system call.

    Args:
        seconds: the time limit in seconds.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"not done within {self.seconds:g} s"


class Status(str, Enum):
    """The status of a task that has ended."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"

    __str__ = str.__str__

    @classmethod
    def of(cls, error: BaseException) -> Status:
        """Return the status of a task that raised the given exception."""
        if isinstance(error, Cancelled):
            return cls.CANCELLED
        return cls.TIMED_OUT if isinstance(error, TimedOut) else cls.FAILED


class Observer(Protocol):
    """An observer of a run, which receives one call at a time from any of the tasks' threads."""

    def started(self, path: str) -> None:
        """Report that a task starts.

        Its path consists of the names from the root of the tree to the task, joined by slashes.
        """

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """Report a task's progress: what it does or waits for, and the completed fraction (0…1), if it is known."""

    def finished(self, path: str, status: Status, error: BaseException | None, seconds: float) -> None:
        """Report that a task ended after some seconds, with an exception unless the status is `ok`."""


def text_of(error: BaseException) -> str:
    """Return an exception as `module.Class: message`, whatever its `__str__` does."""
    import traceback

    # The traceback module handles a __str__ that raises. The first item is the class and the message.
    return traceback.format_exception_only(type(error), error)[0].strip()


class PathNote(str):
    """A note on an exception, which names the task that raised it.

    Args:
        path: the names from the root of the tree to the task, joined by slashes.
    """

    path: str

    def __new__(cls, path: str) -> PathNote:
        note = super().__new__(cls, f"in task {path}")
        note.path = path
        return note

    def __getnewargs__(self) -> tuple[str]:
        return (self.path,)  # otherwise a copy would have the text as its path


def paths_of(error: BaseException) -> list[str]:
    """Return the paths of the tasks in an exception's notes, with the innermost first."""
    return [note.path for note in getattr(error, "__notes__", ()) if isinstance(note, PathNote)]


def path_of(error: BaseException) -> str | None:
    """Return the path of the innermost task that raised an exception, or None if no task did."""
    return next(iter(paths_of(error)), None)


def add_path_note(error: BaseException, path: str) -> None:
    """Add a note with the path of the task that raised the exception, unless a task below it has already added one."""
    if not any(f"{noted}/".startswith(f"{path}/") for noted in paths_of(error)):
        add_note(error, PathNote(path))


# --- what Python 3.10 lacks ------------------------------------------------------------------------------------------


def add_note(error: E, note: str) -> E:
    """Add a note to an exception that supports notes, and return the exception."""
    # Python 3.10 lacks BaseException.add_note, which does exactly this. Frozen exceptions and those with an odd
    # __notes__ don't support notes, but must still be raised unchanged.
    with suppress(AttributeError, TypeError):
        vars(error)["__notes__"] = [*getattr(error, "__notes__", ()), note]
    return error


def group_of(message: str, errors: Sequence[Exception]) -> Exception:
    """Return an `ExceptionGroup`, which on Python 3.10 is that of the package `exceptiongroup`."""
    if sys.version_info < (3, 11):
        from exceptiongroup import ExceptionGroup as Group

        return Group(message, errors)
    else:  # noqa: RET505 - type checkers skip what the version rules out only in a branch
        return ExceptionGroup(message, errors)  # noqa: F821
