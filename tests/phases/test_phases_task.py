from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from recording_tasks import Returning

from phases import CancelScope, Parallel, Serial, Task, Timeout, run, task

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_function_becomes_a_task_that_takes_the_scope() -> None:
    @task("add-one")
    def add_one(scope: CancelScope) -> str:
        return scope.path

    assert add_one.name == "add-one"
    assert run(add_one) == "add-one"


def test_a_function_task_is_a_value() -> None:
    """The task is frozen, hashable, equal to an equal task, not a tuple, and described by its name."""

    def function(scope: CancelScope) -> int:
        return 1

    made: Any = task("one")(function)
    assert made == task("one")(function) != task("two")(function)
    assert len({made, task("one")(function)}) == 1
    assert made != ("one", function)
    assert not isinstance(made, Iterable)
    assert repr(made) == "one"
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.name = "two"


def test_only_a_function_becomes_a_task() -> None:
    with pytest.raises(TypeError):
        task("one")(1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kebab-case"):
        task(lambda scope: None)  # type: ignore[arg-type]


def test_a_frozen_attrs_class_is_a_task() -> None:
    @attrs.frozen
    class Copy:
        text: str
        name: str = "copy-text"

        def do(self, scope: CancelScope) -> str:
            scope.check()
            return self.text

    copy: Task[str] = Copy("hi")
    assert run(copy) == "hi"


@pytest.mark.parametrize("name", ["", "Upper", "snake_case", "two words", "-a", "a-", "a--b", "a/b", "ä", "a\n"])
@pytest.mark.parametrize(
    "make",
    [
        lambda name: task(name),
        lambda name: Serial(name=name),
        lambda name: Parallel(name=name),
        lambda name: Timeout(1, Returning("a", 1), name=name),
    ],
)
def test_a_name_that_is_not_kebab_case_is_refused(make: Callable[[str], object], name: str) -> None:
    with pytest.raises(ValueError, match="a task's name is kebab-case") as caught:
        make(name)
    assert repr(name) in str(caught.value)
