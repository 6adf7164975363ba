"""Tasks made of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from attrs import field, frozen, validators

from phases._run import Task, check_name
from phases._scope import CancelScope

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@frozen(repr=False)
class FunctionTask(Generic[T_co]):
    """A task made of a function.

    Args:
        name: in kebab-case.
        function: takes the scope and returns the result.
    """

    name: str = field(validator=check_name)
    function: Callable[[CancelScope], T_co] = field(validator=validators.is_callable())

    def __repr__(self) -> str:
        return self.name  # as composites draw it

    def do(self, scope: CancelScope) -> T_co:
        """Call the function and return its result."""
        return self.function(scope)


def task(name: str) -> Callable[[Callable[[CancelScope], T]], Task[T]]:
    """Make a task of the function that is decorated.

    Args:
        name: in kebab-case.

    Returns:
        A decorator for a function that takes the scope and returns the task's result.

    Raises:
        ValueError: the name isn't kebab-case.
    """
    check_name(None, None, name)
    return lambda function: FunctionTask(name, function)
