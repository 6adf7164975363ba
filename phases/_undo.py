"""All of it or nothing: what was changed is put back if the rest can't be done."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from phases._errors import add_note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from phases._scope import CancelScope


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


@contextmanager
def all_or_nothing(scope: CancelScope) -> Iterator[Undo]:
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
