from __future__ import annotations

import copy
import pickle
import sys
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from recording_tasks import Raising, Returning

import phases
from phases import Cancelled, CancelScope, Parallel, PathNote, Serial, TimedOut, path_of, run, task

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from phases import Task


@pytest.mark.parametrize(
    ("error", "words", "is_exception"),
    [(Cancelled("why"), "why", False), (TimedOut(2.5), "not done within 2.5 s", True)],
)
def test_errors_have_a_text_and_survive_pickling(error: Any, words: str, is_exception: bool) -> None:
    assert isinstance(error, Exception) is is_exception
    assert not isinstance(error, OSError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error) == words
    assert vars(again) == vars(error)


def test_tracebacks_and_help_name_the_public_module() -> None:
    assert {getattr(phases, name).__module__ for name in phases.__all__} == {"phases"}


def test_an_exception_is_noted_in_each_task() -> None:
    error = ValueError("no")
    for name in ("first", "second"):
        with pytest.raises(ValueError, match="no"):
            run(Raising(name, error))
    assert error.__notes__ == ["in task first", "in task second"]


def failure_of(failing: Task[object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the caller looks at it
        run(failing)
    return caught.value


def test_path_of_returns_the_innermost_task() -> None:
    error = ValueError("no")
    assert path_of(error) is None
    tree = Serial(Serial(Raising("copy", error), name="files"), name="install")
    assert path_of(failure_of(tree)) == "install/files/copy"
    assert error.__notes__ == ["in task install/files/copy"]


def test_each_failure_of_a_group_has_its_path() -> None:
    group = failure_of(Parallel(Raising("copy", ValueError("no")), name="both"))
    assert isinstance(group, ExceptionGroup)
    assert path_of(group) == "both"
    assert [path_of(each) for each in group.exceptions] == ["both/copy"]


def test_a_run_without_the_scope_keeps_its_path() -> None:
    """A run within a task has the path of that task, even without the scope of the task."""

    @task("outer")
    def outer(_scope: CancelScope) -> object:
        return run(Serial(Raising("inner", ValueError("no"))))

    assert path_of(failure_of(outer)) == "serial/inner"


def test_a_foreign_note_is_not_a_path() -> None:
    error = ValueError("no")
    vars(error)["__notes__"] = ["in task force 7"]
    assert path_of(error) is None
    assert path_of(failure_of(Raising("copy", error))) == "copy"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_path_survives_pickling(protocol: int) -> None:
    again = pickle.loads(pickle.dumps(failure_of(Raising("copy", ValueError("no"))), protocol))
    assert path_of(again) == "copy"
    assert again.__notes__ == ["in task copy"]


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_a_path_survives_copying(make: Callable[[object], Any]) -> None:
    assert path_of(make(failure_of(Raising("copy", ValueError("no"))))) == "copy"
    assert make(PathNote("install/copy")) == "in task install/copy"


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
def test_an_odd_exception_arrives_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        run(Serial(Returning("before", None), Raising("odd", error)))
    assert caught.value is error
    with pytest.raises(ExceptionGroup) as group:
        run(Parallel(Returning("beside", None), Raising("odd", error)))
    assert group.value.exceptions == (error,)


def test_notes_name_the_program_that_was_cancelled() -> None:
    scope = CancelScope()
    with pytest.raises(TimedOut) as caught:
        scope.child(timeout=0.2).run(["sleep", "1000"])  # long enough for the program to start
    assert caught.value.__notes__ == ["while it ran sleep 1000"]
