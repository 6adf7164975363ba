"""Tasks made of tasks, and how a tree of them looks before it runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from attrs import field, frozen, validators

from phases._errors import Cancelled, ParallelError, add_note, text_of
from phases._run import run_child
from phases._task import check_name
from phases._threads import run_threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from phases._scope import CancelScope
    from phases._task import Task

T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E", bound=BaseException)


@frozen(init=False)
class Serial(Generic[T_co]):
    """Does tasks one after the other and stops at the first failure.

    Args:
        tasks: in order.
        name: in kebab-case.
    """

    tasks: tuple[Task[T_co], ...]
    name: str = field(validator=check_name)

    def __init__(self, *tasks: Task[T_co], name: str = "serial") -> None:
        self.__attrs_init__(tasks, name)

    def do(self, scope: CancelScope) -> tuple[T_co, ...]:
        """Do them; looks at the scope before each.

        Returns:
            The tasks' results, in their order.

        Raises:
            Cancelled: the scope was cancelled.
            TimedOut: the scope's deadline passed.
            BaseException: whatever a task raised.
        """
        results = []
        for task in self.tasks:
            scope.check()
            results.append(run_child(task, scope))
        return tuple(results)


@frozen(init=False)
class Parallel(Generic[T_co]):
    """Does tasks at once, each in a thread; the first failure cancels the others, and none is dropped.

    Args:
        tasks: in the order of results and failures.
        name: in kebab-case.
    """

    tasks: tuple[Task[T_co], ...]
    name: str = field(validator=check_name)

    def __init__(self, *tasks: Task[T_co], name: str = "parallel") -> None:
        self.__attrs_init__(tasks, name)

    def do(self, scope: CancelScope) -> tuple[T_co, ...]:
        """Do them; returns or raises only once every thread has ended.

        What is no `Exception` (`KeyboardInterrupt`, `SystemExit`, a `Cancelled` that none of our scopes
        caused) cancels the others too, and is raised in the calling thread as it is, with the failures as
        notes. The same goes for what a signal handler raises in the calling thread.

        Returns:
            The tasks' results, in their order.

        Raises:
            ParallelError: tasks failed.
            Cancelled: the scope was cancelled before all tasks had succeeded; failures are its notes.
            TimedOut: likewise the scope's deadline passed.
        """
        inner = scope.child()
        results: dict[int, T_co] = {}
        errors: dict[int, BaseException] = {}
        cancelled: dict[int, Cancelled] = {}
        interrupts: list[BaseException] = []

        def work(index: int, task: Task[T_co]) -> None:
            try:
                results[index] = run_child(task, inner)
            except BaseException as error:  # noqa: BLE001 - raised in the calling thread
                if isinstance(error, Cancelled) and inner.is_cancelled:
                    cancelled[index] = error
                else:
                    errors[index] = error
                    inner.cancel(f"{task.name} ended with {type(error).__name__}")

        def interrupt(error: BaseException) -> None:
            interrupts.append(error)
            inner.cancel(f"interrupted by {type(error).__name__}")

        run_threads(
            [(task.name, partial(work, index, task)) for index, task in enumerate(self.tasks)],
            on_interrupt=interrupt,
        )
        if len(results) == len(self.tasks) and not interrupts:
            return tuple(results[index] for index in range(len(self.tasks)))
        raise _outcome(scope, interrupts, [errors[index] for index in sorted(errors)], [*cancelled.values()])


@frozen(init=False)
class Timeout(Generic[T_co]):
    """Does a task that must be done in time.

    Args:
        seconds: how long it may take, 0 or more.
        task: what to do.
        name: in kebab-case.
    """

    seconds: float = field(validator=validators.ge(0))
    task: Task[T_co]
    name: str = field(validator=check_name)

    def __init__(self, seconds: float, task: Task[T_co], *, name: str = "timeout") -> None:
        self.__attrs_init__(seconds, task, name)

    @property
    def tasks(self) -> tuple[Task[T_co]]:
        """The task, as composites give theirs."""
        return (self.task,)

    def do(self, scope: CancelScope) -> T_co:
        """Do it.

        Returns:
            The task's result.

        Raises:
            TimedOut: it wasn't done in time.
            Cancelled: the scope was cancelled or an earlier deadline passed.
            BaseException: whatever the task raised.
        """
        return run_child(self.task, scope.child(timeout=self.seconds))


def describe(task: Task[object]) -> str:
    """Draw the tree of a task, one line a task, without running anything.

    Args:
        task: the root; what has `tasks` is drawn with those below it.

    Returns:
        Lines without a newline at the end.
    """
    return "\n".join(_tree(task))


def _tree(task: Task[object]) -> Iterator[str]:
    yield task.name + _manner(task)
    children: Sequence[Task[object]] = tuple(getattr(task, "tasks", ()))
    for number, child in enumerate(children, start=1):
        first, rest = ("└── ", "    ") if number == len(children) else ("├── ", "│   ")
        for line in _tree(child):
            yield first + line
            first = rest


def _manner(task: Task[object]) -> str:
    match task:
        case Parallel():
            return " (all at once)"
        case Timeout():
            return f" (at most {task.seconds:g} s)"
        case _:
            return ""


def _outcome(
    scope: CancelScope,
    interrupts: Sequence[BaseException],
    errors: Sequence[BaseException],
    cancelled: Sequence[Cancelled],
) -> BaseException:
    """Choose what to raise: an interrupt, else the scope's own end, else the failures."""
    failures = [error for error in errors if isinstance(error, Exception)]
    interrupts = [*interrupts, *(error for error in errors if not isinstance(error, Exception))]
    if interrupts:
        return _with_notes(interrupts[0], [*interrupts[1:], *failures])
    if stop := scope.verdict():
        return _with_notes(stop, failures)
    if failures:
        return ParallelError(f"{len(failures)} of the parallel tasks failed", failures)
    # A task has cancelled the scope that it shares with the others.
    return cancelled[0]


def _with_notes(error: E, others: Iterable[BaseException]) -> E:
    for other in others:
        notes = ", ".join(map(str, getattr(other, "__notes__", ())))
        add_note(error, f"besides: {text_of(other)} ({notes})")
    return error
