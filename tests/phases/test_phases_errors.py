from __future__ import annotations

import pickle
import sys

import attrs
import pytest
from recording_tasks import Raising, Returning

from phases import Cancelled, CancelScope, Parallel, Serial, TimedOut, run

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup


def test_cancelled_is_no_exception_and_carries_its_reason() -> None:
    error = Cancelled("stopped by the user")
    assert not isinstance(error, Exception)
    assert error.reason == str(error) == "stopped by the user"


def test_timed_out_is_a_timeout_error_that_says_how_long() -> None:
    error = TimedOut(2.5)
    assert isinstance(error, TimeoutError)
    assert error.seconds == 2.5
    assert str(error) == "not done within 2.5 s"


@pytest.mark.parametrize("error", [Cancelled("why"), TimedOut(3.0)])
def test_errors_survive_pickling(error: BaseException) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)


def test_tracebacks_name_the_public_classes() -> None:
    assert {cls.__module__ for cls in (Cancelled, TimedOut)} == {"phases"}


def test_a_failure_gets_one_note_with_the_path_of_the_innermost_task() -> None:
    tree = Serial(Serial(Raising("copy", ValueError("no")), name="files"), name="install")
    with pytest.raises(ValueError, match="no") as caught:
        run(tree)
    assert caught.value.__notes__ == ["in task install/files/copy"]


def test_the_same_exception_raised_in_another_task_is_noted_again() -> None:
    error = ValueError("no")
    for name in ("first", "second"):
        with pytest.raises(ValueError, match="no"):
            run(Raising(name, error))
    assert error.__notes__ == ["in task first", "in task second"]


@attrs.frozen
class FrozenError(Exception):
    code: int

    def add_note(self, note: str, /) -> None:
        raise attrs.exceptions.FrozenInstanceError


class OddNotesError(Exception):
    __notes__ = "no list"  # type: ignore[assignment]


class OddStrError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class EmptyError(Exception):
    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("error", [FrozenError(3), OddNotesError("x"), OddStrError("x"), EmptyError()])
def test_an_exception_that_takes_no_note_or_has_no_text_arrives_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        run(Serial(Returning("before", None), Raising("odd", error)))
    assert caught.value is error
    with pytest.raises(ExceptionGroup) as group:
        run(Parallel(Returning("beside", None), Raising("odd", error)))
    assert group.value.exceptions == (error,)


def test_notes_name_the_program_that_was_cancelled() -> None:
    scope = CancelScope()
    with pytest.raises(TimedOut) as caught:
        scope.child(timeout=0.25).run(["sleep", "1000"])  # so long that it starts
    assert caught.value.__notes__ == ["while it ran sleep 1000"]
