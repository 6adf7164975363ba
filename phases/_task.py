"""What a task is, and how a function becomes one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from phases._scope import CancelScope

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_KEBAB_CASE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class Task(Protocol[T_co]):
    """One thing to do, under a scope that can cancel it; a frozen value, so that a tree can be printed."""

    @property
    def name(self) -> str:
        """The name in paths and logs: a verb phrase in kebab-case, as `configure-static-routes`."""

    def do(self, scope: CancelScope) -> T_co:
        """Do it and return the result, or raise; wait and run subprocesses through the scope only.

        Args:
            scope: tells of cancels and deadlines, and takes progress.

        Returns:
            The task's result.

        Raises:
            Cancelled: the scope was cancelled.
            TimedOut: the scope's deadline passed.
        """


def check_name(_instance: object, _attribute: object, value: Any) -> None:
    """Refuse a name that isn't kebab-case; an attrs validator.

    Raises:
        ValueError: it isn't.
    """
    if not isinstance(value, str) or not _KEBAB_CASE.fullmatch(value):
        raise ValueError(f"a task's name is kebab-case, as 'configure-static-routes', not {value!r}")


@frozen
class FunctionTask(Generic[T_co]):
    """A task made of a function."""

    name: str = field(validator=check_name)
    function: Callable[[CancelScope], T_co]

    def do(self, scope: CancelScope) -> T_co:
        """Call the function."""
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

    def decorate(function: Callable[[CancelScope], T]) -> Task[T]:
        return FunctionTask(name, function)

    return decorate
