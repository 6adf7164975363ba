"""What a run raises of its own, and what it writes on the exceptions that pass through it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

E = TypeVar("E", bound=BaseException)

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


class ParallelError(ExceptionGroup[Exception]):
    """Tasks of a `Parallel` failed: every failure, in the order of the tasks."""

    # A group class that doesn't derive its own kind decays to ExceptionGroup in `except*` and split().
    def derive(self, excs: Sequence[Exception], /) -> ParallelError:  # type: ignore[override]
        """Make a group of the same message of some of the failures."""
        return ParallelError(self.message, excs)


# What users see in tracebacks and logs is the public name.
for _class in (Cancelled, TimedOut, ParallelError):
    _class.__module__ = "phases"


def text_of(error: BaseException) -> str:
    """Give an exception as `module.Class: message`, whatever its `__str__` does."""
    import traceback

    # The traceback module survives a __str__ that raises; the first item is the class and the message.
    return traceback.format_exception_only(error)[0].strip()


def add_note(error: E, note: str) -> E:
    """Add a note to an exception that can carry one, and give it back."""
    # Frozen exceptions and those with odd __notes__ can't; they must still arrive as they are.
    with suppress(AttributeError, TypeError):
        error.add_note(note)
    return error


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
