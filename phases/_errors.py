"""How tasks end: what a run raises of its own, what it notes on what others raise, who is told; and the way back."""

from __future__ import annotations

from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from phases._compat import add_note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

POLL_SECONDS = 0.025
"""How long anything here blocks at a stretch, before it looks for cancels.

Nothing could wake it up for all of them: a signal that comes between the main thread's last line and its
blocking system call doesn't interrupt that, and the handler, which may want to cancel, runs in that thread only.
"""

_PATH_NOTE = "in task "


class Cancelled(BaseException):
    """Somebody cancelled the scope; not an `Exception`, so that no task swallows it by accident.

    Args:
        reason: why, in words.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TimedOut(TimeoutError):
    """The deadline of this very scope passed; the scopes below it are `Cancelled` instead.

    Args:
        seconds: how much time there had been.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"not done within {self.seconds:g} s"


# What users see in tracebacks and logs is the public name.
for _class in (Cancelled, TimedOut):
    _class.__module__ = "phases"


class Status(str, Enum):  # noqa: UP042 - Python 3.10
    """How a task ended."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"

    def __str__(self) -> str:
        return self.value

    @classmethod
    def of(cls, error: BaseException) -> Status:
        """Give the status of a task that raised this."""
        if isinstance(error, Cancelled):
            return cls.CANCELLED
        return cls.TIMED_OUT if isinstance(error, TimedOut) else cls.FAILED


class Observer(Protocol):
    """Is told what happens in a run; one call at a time, from whichever thread a task runs in."""

    def started(self, path: str) -> None:
        """A task starts; its path is the names from the root of the tree, joined by slashes."""

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """A task got on: what it does or waits for, and how much is done (0…1) if that is known."""

    def finished(self, path: str, status: Status, error: BaseException | None, seconds: float) -> None:
        """A task ended after so many seconds, with this exception unless the status is `ok`."""


def text_of(error: BaseException) -> str:
    """Give an exception as `module.Class: message`, whatever its `__str__` does."""
    import traceback

    # The traceback module survives a __str__ that raises; the first item is the class and the message.
    return traceback.format_exception_only(type(error), error)[0].strip()


def add_path_note(error: BaseException, path: str) -> None:
    """Note the path of the task that raised, unless a task below it has noted its own."""
    paths = _noted_paths(error)
    if not any(noted == path or noted.startswith(f"{path}/") for noted in paths):
        add_note(error, f"{_PATH_NOTE}{path}")


def is_raised_at(error: BaseException, path: str) -> bool:
    """Tell whether the task of this path is the innermost that the exception came out of."""
    return path in _noted_paths(error)


def _noted_paths(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", ())
    return [note.removeprefix(_PATH_NOTE) for note in map(str, notes) if note.startswith(_PATH_NOTE)]


class Undo:
    """The way back: what was changed, last first.

    Each step is pushed *before* the change that it takes back, so it must do no harm if that never happened.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []

    def push(self, step: Callable[[], None]) -> None:
        """Remember a step."""
        self._steps.append(step)

    def roll_back(self) -> list[str]:
        """Take every step, also after one has failed or was interrupted.

        Returns:
            What couldn't be put back, in words.
        """
        problems: list[str] = []
        while self._steps:
            step = self._steps.pop()
            try:
                step()
            except Exception as error:  # noqa: BLE001 - whatever it is, the other steps must be taken
                problems.append(str(error) or repr(error))
            except BaseException as error:  # noqa: BLE001 - an interrupt: once more, then on
                problems.append(f"interrupted by {error!r}, tried again")
                self._again(step, problems)
        return problems

    @staticmethod
    def _again(step: Callable[[], None], problems: list[str]) -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - the second interrupt of one step means it
            problems.append(str(error) or repr(error))


class _Scope(Protocol):
    def shield(self) -> AbstractContextManager[object]:
        """Make a scope that no cancel reaches."""


@contextmanager
def all_or_nothing(scope: _Scope) -> Iterator[Undo]:
    """Put back what was changed if the block fails or is cancelled; what can't be put back is noted on the error."""
    undo = Undo()
    try:
        yield undo
    except BaseException as error:
        with scope.shield():
            problems = undo.roll_back()
        for problem in problems:
            add_note(error, f"while putting things back: {problem}")
        raise
