"""Exceptions, exception notes and the observer protocol."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Protocol, TypeVar

E = TypeVar("E", bound=BaseException)

Tell = Callable[[Callable[["Observer"], None]], None]
"""A function that passes a call to a run's observers, one call at a time."""

ROLLBACK_NOTE = "while putting things back: "
"""The beginning of an exception's note about a rollback step that failed."""

LATE_NOTE = "the task had already returned when this was seen"
"""The note of an exception that comes from the scope of a task which has returned."""

POLL_SECONDS = 0.025
"""The longest time, in seconds, that any wait here blocks before it checks for cancellation.

Waits poll, because a signal doesn't end every wait. If the signal arrives just before the main
thread's blocking system call, it doesn't interrupt the call. Its handler, which may cancel a scope,
then only runs after the call.
"""


class Cancelled(BaseException):
    """The exception for a cancelled scope.

    `Cancelled` isn't an `Exception`, so that tasks don't catch it by accident.

    Args:
        reason: the reason as text.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TimedOut(Exception):
    """The exception for a scope whose own deadline passed.

    The scope's child scopes raise `Cancelled` instead.

    Unlike `TimeoutError`, `TimedOut` isn't an `OSError`, so `except OSError` doesn't catch it.

    Args:
        seconds: the time limit in seconds.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"not done within {self.seconds:g} s"


class Status(str, Enum):
    """The final status of a task."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"

    __str__ = str.__str__

    @classmethod
    def of(cls, error: BaseException) -> Status:
        """Return the status for a task that raised the exception."""
        if isinstance(error, Cancelled):
            return cls.CANCELLED
        return cls.TIMED_OUT if isinstance(error, TimedOut) else cls.FAILED


class Observer(Protocol):
    """A receiver of a run's events. Calls are serialized, but may come from any task's thread.

    A class derived from `Observer` only needs the methods for the events that it uses.
    """

    def started(self, path: str) -> None:
        """Report that a task starts.

        The path consists of the task names from the root of the tree, separated by slashes.
        """
        del path

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """Report a task's progress: a status message, and the completed fraction (0…1) if known."""
        del path, message, fraction

    def finished(
        self,
        path: str,
        status: Status,
        result: object,
        error: BaseException | None,
        seconds: float,
    ) -> None:
        """Report that a task has finished, with its result or exception, and its duration.

        A task may return after its scope has ended. Then both its result and the scope's exception
        are passed.
        """
        del path, status, result, error, seconds


def text_of(error: BaseException) -> str:
    """Return an exception as `Class: message`, even if its `__str__` fails."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the error must be reported, whatever its class does
        text = "<exception str() failed>"
    name = type(error).__name__
    return f"{name}: {text}" if text else name


class PathNote(str):
    """An exception note that names the task that raised the exception: `in task` and its path."""

    @property
    def path(self) -> str:
        """Return the task names from the root of the tree to the task, separated by slashes."""
        return self.removeprefix("in task ")


def paths_of(error: BaseException) -> list[str]:
    """Return the task paths in an exception's notes, innermost first."""
    return [note.path for note in getattr(error, "__notes__", ()) if isinstance(note, PathNote)]


def path_of(error: BaseException) -> str | None:
    """Return the path of the innermost task that raised an exception, or None."""
    return next(iter(paths_of(error)), None)


def add_path_note(error: BaseException, path: str) -> None:
    """Add a note that names the task that raised. If a subtask has added one, add none."""
    if not any(f"{noted}/".startswith(f"{path}/") for noted in paths_of(error)):
        add_note(error, PathNote(f"in task {path}"))


def rollback_notes(error: BaseException | None) -> list[str]:
    """Return an exception's notes about rollback steps that failed."""
    notes = map(str, getattr(error, "__notes__", ()))
    return [note for note in notes if note.startswith(ROLLBACK_NOTE)]


def own_notes(error: BaseException) -> list[str]:
    """Return the notes that a task or its rollback has added to an exception."""
    notes: list[str] = list(getattr(error, "__notes__", ()))
    return [note for note in notes if not isinstance(note, PathNote) and note != LATE_NOTE]


# --- what Python 3.10 lacks -----------------------------------------------------------------------


def add_note(error: E, note: str) -> E:
    """Add a note to an exception, if possible, and return the exception."""
    # A backport of BaseException.add_note for Python 3.10. Unlike the original, it ignores
    # exceptions that are frozen or have an invalid __notes__.
    with suppress(AttributeError, TypeError):
        vars(error)["__notes__"] = [*getattr(error, "__notes__", ()), note]
    return error


def group_of(message: str, errors: Sequence[Exception]) -> Exception:
    """Return an `ExceptionGroup`, using the `exceptiongroup` backport on Python 3.10."""
    # The backport loads a dozen modules, so import it only if it is needed.
    if sys.version_info < (3, 11):
        from exceptiongroup import ExceptionGroup as Group

        return Group(message, errors)
    else:  # noqa: RET505 - type checkers need a branch for each version
        return ExceptionGroup(message, errors)  # noqa: F821
