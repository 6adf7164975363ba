"""Checks of arguments, whose errors say what was expected instead. This module does no I/O."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any, TypeVar

T = TypeVar("T")


def check_name(_instance: object, _attribute: object, value: Any) -> None:
    """Validate that a name is kebab-case; for use as an attrs validator.

    Raises:
        ValueError: the name isn't kebab-case.
    """
    if not isinstance(value, str) or not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", value):
        raise ValueError(
            f"a task's name is kebab-case, like 'configure-static-routes', not {value!r}"
        )


def check_task(_instance: object, _attribute: object, value: object) -> None:
    """Validate that a value is a task; for use as an attrs validator.

    Raises:
        TypeError: the value has no name, or no `do` method that is a plain function.
        ValueError: the name isn't kebab-case.
    """
    name = getattr(value, "name", None)
    do = getattr(value, "do", None)
    if isinstance(value, type) or not isinstance(name, str) or not callable(do):
        raise TypeError(
            f"expected a task, which has a name and do(scope), not {value!r:.200}; "
            'make one from several with Serial(a, b), from a function with @phases.task("name")'
        )
    check_name(None, None, name)
    check_plain("a task is", do)


def check_seconds(_instance: object, _attribute: object, value: Any) -> None:
    """Validate that the seconds of a `Timeout` are a number; for use as an attrs validator.

    Raises:
        TypeError: the value isn't a number.
        ValueError: the value is NaN, with which nothing would ever end.
    """
    order = "a Timeout takes the seconds and then the task, such as Timeout(5, task)"
    check_number(f"{order}; the limit is", value)


def check_timeout(value: object) -> None:
    """Raise a TypeError or ValueError unless a scope's timeout is a number or None."""
    if value is not None:
        check_number("a scope's timeout is None or", value)


def check_number(role: str, value: object) -> None:
    """Raise an error unless a value is a number of seconds.

    Args:
        role: the beginning of the error's sentence, such as `a wait takes`.
        value: the value to check.

    Raises:
        TypeError: the value isn't a number.
        ValueError: the value is NaN, with which nothing would ever end.
    """
    wrong = f"{role} a number of seconds, not {value!r:.200}"
    if not isinstance(value, (int, float)):
        raise TypeError(wrong)
    if math.isnan(value):
        raise ValueError(wrong)


def check_clock(value: object) -> None:
    """Raise a TypeError unless a value is a clock."""
    methods = [getattr(value, name, None) for name in ("monotonic", "wait")]
    if isinstance(value, type) or not all(map(callable, methods)):
        raise TypeError(
            f"expected a clock, which has monotonic() and wait(happened, until), not {value!r:.200}"
        )


def check_function(_instance: object, _attribute: object, value: Any) -> None:
    """Validate that a value is the function of a task; for use as an attrs validator.

    Raises:
        TypeError: the value isn't callable, isn't a plain function, or can't be called with only a
            scope.
    """
    if not callable(value):
        raise TypeError(f"expected a function that takes a scope, not {value!r:.200}")
    check_plain("a task is", value)
    try:
        signature = inspect.signature(value)
    except ValueError:  # some functions of C have none
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise TypeError(
            f"expected a function that takes only a scope, not {value!r:.200} ({error});"
            " instead of a method, write a class with name and do(scope)"
        ) from error


def check_plain(role: str, function: Any) -> None:
    """Refuse an async function and a generator function, because calling one does no work.

    Args:
        role: the beginning of the error's sentence, such as `a task is`.
        function: the function to call later.

    Raises:
        TypeError: it is an async function or a generator function.
    """
    kinds = (
        inspect.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
    )
    if any(is_kind(function) for is_kind in kinds):
        raise TypeError(
            f"{role} a plain function; it runs in a thread, so it can't be async or a generator, "
            f"as {function!r:.200} is"
        )


def finished(role: str, result: T) -> T:
    """Return a function's result if the function has done its work.

    Args:
        role: the beginning of the error's sentence, such as `a task is`.
        result: what the function has returned.

    Raises:
        TypeError: the result is a coroutine or a generator, which has done nothing yet. It is
            closed.
    """
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
    elif not inspect.isasyncgen(result):
        return result
    raise TypeError(
        f"{role} a plain function; it runs in a thread, so it can't return {result!r:.200}"
    )
