"""What Python 3.10 lacks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

E = TypeVar("E", bound=BaseException)


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
