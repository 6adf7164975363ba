"""Tasks made from functions or other tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from typing import Any, Generic, TypeVar, overload

from attrs import field, frozen, validators

from phases._checks import check_function, check_name, check_seconds, check_task
from phases._errors import POLL_SECONDS, Cancelled, add_note, group_of, own_notes, text_of
from phases._run import Task, run_child
from phases._scope import CancelScope

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
G = TypeVar("G")
H = TypeVar("H")


class Tree:
    """Base class for tasks whose repr is a tree of subtasks."""

    def __repr__(self) -> str:
        return "\n".join(_lines(self))


@frozen(repr=False)
class FunctionTask(Tree, Generic[T_co]):
    """A task made from a function.

    Args:
        name: the task's name in kebab-case.
        function: a callable that takes the scope and returns the result.
    """

    name: str = field(validator=check_name)
    function: Callable[[CancelScope], T_co] = field(validator=check_function)

    def do(self, scope: CancelScope) -> T_co:
        """Call the function and return its result."""
        return self.function(scope)


def task(name: str) -> Callable[[Callable[[CancelScope], T]], Task[T]]:
    """Turn the decorated function into a task.

    Args:
        name: the task's name in kebab-case.

    Returns:
        A decorator for a plain function that takes the scope and returns the task's result. The
        decorator raises a TypeError for an async function, a generator function, and a function
        that takes more or less than the scope, such as a method.

    Raises:
        TypeError: the decorator is used without a name.
        ValueError: the name isn't kebab-case.
    """
    if callable(name):
        raise TypeError(f'write @phases.task("name") above the function, not @phases.task: {name}')
    check_name(None, None, name)
    return lambda function: FunctionTask(name, function)


@frozen(init=False, repr=False)
class Several(Tree, Generic[T_co]):
    """Base class for tasks that return a tuple of their subtasks' results."""

    tasks: tuple[Task[Any], ...] = field(validator=validators.deep_iterable(check_task))
    name: str = field(validator=check_name)


class Serial(Several[T_co]):
    """A task that runs other tasks sequentially and stops at the first failure.

    Completed tasks aren't rolled back.

    For up to eight tasks, a type checker knows the type of each result. Nest more tasks.

    Args:
        tasks: the tasks, in execution order.
        name: the task's name in kebab-case.
    """

    @overload
    def __init__(
        self: Serial[tuple[A, B]],
        a: Task[A],
        b: Task[B],
        /,
        *,
        name: str = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Serial[tuple[A, B, C]],
        a: Task[A],
        b: Task[B],
        c: Task[C],
        /,
        *,
        name: str = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Serial[tuple[A, B, C, D]],
        a: Task[A],
        b: Task[B],
        c: Task[C],
        d: Task[D],
        /,
        *,
        name: str = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Serial[tuple[A, B, C, D, E]],
        a: Task[A],
        b: Task[B],
        c: Task[C],
        d: Task[D],
        e: Task[E],
        /,
        *,
        name: str = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Serial[tuple[A, B, C, D, E, F]],
        a: Task[A],
        b: Task[B],
        c: Task[C],
        d: Task[D],
        e: Task[E],
        f: Task[F],
        /,
        *,
        name: str = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Serial[tuple[A, B, C, D, E, F, G]],
        a: Task[A],
        b: Task[B],
        c: Task[C],
        d: Task[D],
        e: Task[E],
        f: Task[F],
        g: Task[G],
        /,
        *,
        name: str = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Serial[tuple[A, B, C, D, E, F, G, H]],
        a: Task[A],
        b: Task[B],
        c: Task[C],
        d: Task[D],
        e: Task[E],
        f: Task[F],
        g: Task[G],
        h: Task[H],
        /,
        *,
        name: str = ...,
    ) -> None: ...
    @overload
    def __init__(self: Serial[tuple[T, ...]], *tasks: Task[T], name: str = ...) -> None: ...
    def __init__(self, *tasks: Task[Any], name: str = "serial") -> None:
        self.__attrs_init__(tasks, name)

    def do(self, scope: CancelScope) -> T_co:
        """Run the tasks; `run_child` checks the scope before and after each one.

        Returns:
            The results, in task order.

        Raises:
            Cancelled: the scope was cancelled.
            TimedOut: the scope's deadline passed.
            BaseException: any exception raised by a task.
        """
        return tuple([run_child(each, scope) for each in self.tasks])  # type: ignore[return-value]


class Parallel(Several[T_co]):
    """A task that runs other tasks concurrently in threads.

    The first failure cancels the other tasks. All failures are reported.

    For up to eight tasks, a type checker knows the type of each result. Nest more tasks.

    Args:
        tasks: the tasks; results and failures are in the same order.
        name: the task's name in kebab-case.
    """

    @overload
    def __init__(
        self: Parallel[tuple[A, B]],
        a: Task[A],
        b: Task[B],
        /,
        *,
        name: str = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Parallel[tuple[A, B, C]],
        a: Task[A],
        b: Task[B],
        c: Task[C],
        /,
        *,
        name: str = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Parallel[tuple[A, B, C, D]],
        a: Task[A],
        b: Task[B],
        c: Task[C],
        d: Task[D],
        /,
        *,
        name: str = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Parallel[tuple[A, B, C, D, E]],
        a: Task[A],
        b: Task[B],
        c: Task[C],
        d: Task[D],
        e: Task[E],
        /,
        *,
        name: str = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Parallel[tuple[A, B, C, D, E, F]],
        a: Task[A],
        b: Task[B],
        c: Task[C],
        d: Task[D],
        e: Task[E],
        f: Task[F],
        /,
        *,
        name: str = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Parallel[tuple[A, B, C, D, E, F, G]],
        a: Task[A],
        b: Task[B],
        c: Task[C],
        d: Task[D],
        e: Task[E],
        f: Task[F],
        g: Task[G],
        /,
        *,
        name: str = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Parallel[tuple[A, B, C, D, E, F, G, H]],
        a: Task[A],
        b: Task[B],
        c: Task[C],
        d: Task[D],
        e: Task[E],
        f: Task[F],
        g: Task[G],
        h: Task[H],
        /,
        *,
        name: str = ...,
    ) -> None: ...
    @overload
    def __init__(self: Parallel[tuple[T, ...]], *tasks: Task[T], name: str = ...) -> None: ...
    def __init__(self, *tasks: Task[Any], name: str = "parallel") -> None:
        self.__attrs_init__(tasks, name)

    def do(self, scope: CancelScope) -> T_co:
        """Run the tasks and wait for all of them, even if one fails.

        A failure cancels the other tasks. If a cancelled task's exception has notes, such as on a
        rollback that failed, the raised one gets them, too.

        A task may also raise an exception that isn't an `Exception`: `KeyboardInterrupt`,
        `SystemExit`, or a `Cancelled` that doesn't come from the run's scopes. Such an exception is
        re-raised unchanged in the calling thread, with the failures as notes. An exception that a
        signal handler raises in the waiting thread is re-raised, too.

        Returns:
            The results, in task order.

        Raises:
            ExceptionGroup: tasks failed. The group contains all failures, in task order.
            Cancelled: the scope was cancelled before all tasks had succeeded. Task failures are
                added as notes.
            TimedOut: the scope's deadline passed before all tasks had succeeded. Task failures are
                added as notes.
        """
        from concurrent.futures import Future, ThreadPoolExecutor

        inner = scope.child()
        futures: list[Future[Any]] = []
        errors: list[BaseException] = []
        stopped: list[Cancelled] = []
        running: list[Task[Any]] = []

        def work(each: Task[Any]) -> Any:
            running.append(each)
            try:
                return run_child(each, inner)
            except BaseException as error:
                if isinstance(error, Cancelled) and inner.is_cancelled:
                    stopped.append(error)
                    return None  # the cancellation isn't a failure of this task
                inner.cancel(f"{each.name} ended with {type(error).__name__}")
                raise
            finally:
                running.pop()

        with ThreadPoolExecutor(max(1, len(self.tasks)), thread_name_prefix=self.name) as pool:
            try:
                for each in self.tasks:
                    futures.append(pool.submit(copy_context().run, work, each))  # noqa: PERF401 - an interrupt keeps those before it
                for future in futures:
                    future.exception()  # waits until the task has ended
            except BaseException as error:  # noqa: BLE001 - out of threads, or a signal handler's error; raised below
                errors.append(error)
                inner.cancel(f"interrupted by {type(error).__name__}")
            errors += [failure for future in futures if (failure := future.exception()) is not None]
            # An interrupted submit may have started a thread without returning its future.
            while running:
                time.sleep(POLL_SECONDS)
        if ended := inner.verdict():
            # A task may have cancelled ``inner`` itself. Then there may be no outcome, neither an
            # error of a task nor an end of the outer scope.
            raise _with_notes(_outcome(scope, errors) or ended, stopped)
        return tuple(future.result() for future in futures)  # type: ignore[return-value]


@frozen(repr=False)
class Timeout(Tree, Generic[T_co]):
    """A task that runs another task with a time limit.

    Args:
        seconds: the limit in seconds. If it isn't above 0, the time is up already, as in a scope.
        task: the task to run.
        name: the task's name in kebab-case.
    """

    seconds: float = field(validator=check_seconds)
    task: Task[T_co] = field(validator=check_task)
    name: str = field(
        default="timeout",
        kw_only=True,
        validator=check_name,
    )

    @property
    def tasks(self) -> tuple[Task[T_co]]:
        """Return the task in a tuple, as `Serial` and `Parallel` do with theirs."""
        return (self.task,)

    def do(self, scope: CancelScope) -> T_co:
        """Run the task.

        Returns:
            The task's result.

        Raises:
            TimedOut: the task took too long.
            Cancelled: the scope was cancelled, or the deadline of an outer scope passed.
            BaseException: any exception raised by the task.
        """
        return run_child(self.task, scope.child(timeout=self.seconds))


def _lines(task: Any) -> Iterator[str]:
    """Yield one line per task, with subtasks below their parent."""
    manner = {Parallel: " (all at once)", Timeout: f" (at most {getattr(task, 'seconds', 0):g} s)"}
    yield task.name + manner.get(type(task), "")
    children = _subtasks(task)
    for number, child in enumerate(children, start=1):
        first, rest = ("└── ", "    ") if number == len(children) else ("├── ", "│   ")
        for line in _lines(child):
            yield first + line
            first = rest


def _subtasks(task: Any) -> list[Any]:
    """Return a task's subtasks. A program's own task may use the name ``tasks`` otherwise."""
    found = getattr(task, "tasks", ())
    return (
        [each for each in found if hasattr(each, "do")] if isinstance(found, list | tuple) else []
    )


def _outcome(scope: CancelScope, errors: list[BaseException]) -> BaseException | None:
    """Choose the exception to raise.

    An interrupt comes first, then the scope's own exception, and then failures. Return None if
    there are no errors.
    """
    failures = [error for error in errors if isinstance(error, Exception)]
    interrupts = [error for error in errors if not isinstance(error, Exception)]
    stop = interrupts[0] if interrupts else scope.verdict()
    if stop is None and not failures:
        return None
    if stop is None:
        return group_of(f"{len(failures)} of the parallel tasks failed", failures)
    for other in (*interrupts[1:], *failures):
        add_note(stop, _besides(other))
    return stop


def _with_notes(error: BaseException, stopped: Sequence[Cancelled]) -> BaseException:
    """Add to an exception the notes of each cancelled task that has left any."""
    for other in stopped:
        if own_notes(other):
            add_note(error, _besides(other))
    return error


def _besides(error: BaseException) -> str:
    notes = ", ".join(map(str, getattr(error, "__notes__", ())))
    return f"besides: {text_of(error)} ({notes})"
