"""The task protocol, and functions that run tasks."""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from threading import RLock, Thread
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from phases._checks import check_plain, check_task, finished
from phases._errors import LATE_NOTE, Observer, Status, add_note, add_path_note, text_of
from phases._scope import CancelScope, checked_scope

if TYPE_CHECKING:
    import logging

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")

_CALLS = ("started", "progress", "finished")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Task(Protocol[T_co]):
    """A unit of work that can be cancelled.

    Tasks are immutable values.
    """

    @property
    def name(self) -> str:
        """Return a kebab-case verb phrase for paths and logs, as ``configure-static-routes``."""

    def do(self, scope: CancelScope) -> T_co:
        """Do the work and return the result.

        Implementations wait and run subprocesses only through the scope.

        Args:
            scope: the scope for cancellation, deadlines and progress.

        Returns:
            The task's result.

        Raises:
            Cancelled: the scope was cancelled.
            TimedOut: the scope's deadline passed.
        """


def _scope_or_new(value: CancelScope | None) -> CancelScope:
    """Return the scope, or a new scope for None.

    Raises:
        TypeError: the value isn't a scope.
    """
    return CancelScope() if value is None else checked_scope(value)


def _checked_observers(values: Sequence[Observer]) -> list[Observer]:
    """Return the observers as a list.

    Raises:
        TypeError: the value isn't a list of observers, or an observer has an async method.
    """
    if not isinstance(values, Iterable):
        raise TypeError(f"observers takes a list of observers, not {values!r:.200}")
    observers = list(values)
    for observer in observers:
        missing = [name for name in _CALLS if not callable(getattr(observer, name, None))]
        if isinstance(observer, type) or missing:
            raise TypeError(
                f"expected an observer, which has {', '.join(_CALLS)}, not {observer!r:.200}"
            )
        for name in _CALLS:
            check_plain(f"an observer's {name} is", getattr(observer, name))
    return observers


class _Reporter(AbstractContextManager["_Reporter"]):
    """A queue of calls to a run's observers, which get them one at a time.

    At the end of the run, the first observer error is raised. If the run itself has raised an
    exception, the observer error becomes a note of that exception.

    Only one thread at a time calls the observers. Meanwhile, other threads add their calls to the
    queue and continue, so a slow observer doesn't delay their tasks.
    """

    def __init__(self, logger: logging.Logger | None, observers: Sequence[Observer]) -> None:
        self._observers = _checked_observers(observers)
        # If logging hasn't been imported, the program can't have configured a logger.
        if logger is not None or "logging" in sys.modules:
            from phases._log import LOGGER, Log

            self._observers.insert(0, Log(LOGGER if logger is None else logger))
        self._failures: list[Exception] = []
        self._calls: deque[Callable[[Observer], None]] = deque()
        # The lock is reentrant, because observers and signal handlers may report progress
        # themselves.
        self._lock = RLock()

    def tell(self, call: Callable[[Observer], None]) -> None:
        self._calls.append(call)
        # Check again after each release, because another thread may have queued a call in the
        # meantime.
        while self._calls and self._lock.acquire(blocking=False):
            try:
                self._tell_all()
            finally:
                self._lock.release()

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        with self._lock:
            self._tell_all()
        if not self._failures:
            return
        failure = self._failures[0]
        if error is None:
            note = "raised by an observer or log handler; the tasks of the run succeeded"
            raise add_note(failure, note)
        add_note(error, f"also, an observer or log handler of the run failed: {text_of(failure)}")

    def _tell_all(self) -> None:
        # The length isn't checked first, because a signal handler may empty the queue in between.
        with suppress(IndexError):
            while True:
                call = self._calls.popleft()
                for observer in self._observers:
                    try:
                        call(observer)
                    except Exception as error:  # noqa: BLE001 - kept for the end of the run
                        self._failures.append(error)


def run(
    task: Task[T],
    *,
    logger: logging.Logger | None = None,
    scope: CancelScope | None = None,
    observers: Sequence[Observer] = (),
) -> T:
    """Run a tree of tasks and return its result.

    Each task logs `started` (with `task` and `path`), and then `completed` or `failed` (also with
    `status`, `duration` in seconds and `error`). From asyncio, use `run_async`.

    Exceptions in observers and log handlers don't affect the tasks. If the tasks succeed, `run`
    raises the first of these exceptions; otherwise, it becomes a note of the tasks' exception.

    Args:
        task: the root of the tree.
        logger: the logger for the records; `phases` by default.
        scope: the scope of the run, a new one by default. It may belong to a task of another run.
            The paths of this run then begin with that task's path, but its events go only to its
            own logger and observers. In a task, use `run_child` instead.
        observers: the observers to notify, in this order.

    Returns:
        The task's result.

    Raises:
        Cancelled: the scope was cancelled before the tree had finished, even if no task has
            noticed.
        TimedOut: the deadline of the scope or of a `Timeout` passed before the tree had finished.
        TypeError: the task isn't a task, or another argument has the wrong type.
        ValueError: the task's name isn't kebab-case.
        BaseException: any exception raised by a task, unchanged, with a `PathNote` that names the
            task.
    """
    check_task(None, None, task)
    scope = _scope_or_new(scope)
    with _Reporter(logger, observers) as reporter:
        return run_child(task, scope.at(scope.path, reporter.tell))


async def run_async(
    task: Task[T],
    *,
    logger: logging.Logger | None = None,
    scope: CancelScope | None = None,
    observers: Sequence[Observer] = (),
) -> T:
    """Run a tree of tasks in a thread of its own and return its result; see `run`.

    The thread is made by this call, so it is in the network namespace of the event loop's thread.
    Cancelling the asyncio task cancels the run, but not the scope itself. The coroutine doesn't
    return until the run has finished and been rolled back, even if the asyncio task is cancelled
    repeatedly.

    Args:
        task: the root of the tree.
        logger: the logger for the records; `phases` by default.
        scope: a scope that also cancels the run, or None.
        observers: the observers to notify, in this order, in the tasks' threads.

    Returns:
        The task's result.

    Raises:
        asyncio.CancelledError: the asyncio task was cancelled. Its cause is the run's exception,
            which is a failure or a `Cancelled` with notes from the rollback.
        Cancelled: the scope was cancelled.
        TimedOut: the deadline of the scope or of a `Timeout` passed.
        BaseException: any other exception raised by `run`.
    """
    return await _in_thread(
        lambda inner: run(task, logger=logger, scope=inner, observers=observers), scope
    )


async def call_async(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that takes a ``scope`` in a thread of its own and return its result.

    The counterpart of `asyncio.to_thread` for functions with a scope: `await call_async(check,
    config)` calls `check(config, scope=...)` with a scope that ends when the asyncio task is
    cancelled. The coroutine doesn't return until the function has returned.

    Args:
        function: the function.
        args: the function's positional arguments.
        kwargs: the function's keyword arguments. A ``scope`` among them cancels the call, too.

    Returns:
        The function's result.

    Raises:
        asyncio.CancelledError: the asyncio task was cancelled. The error's ``__cause__`` is the
            function's exception, if any.
        TypeError: the function isn't a plain function, or takes no ``scope``.
        BaseException: any exception raised by the function.
    """
    _check_callee(function)

    def call(inner: CancelScope) -> T:
        kwargs["scope"] = inner
        return finished("call_async takes", function(*args, **kwargs))

    scope: Any = kwargs.get("scope")
    return await _in_thread(call, scope)


def _check_callee(function: object) -> None:
    """Raise a TypeError if `call_async` can't call the function with a scope."""
    if not callable(function):
        raise TypeError(
            "call_async takes a function and its arguments, such as call_async(check, config), "
            f"not {function!r:.200}; to run a task, await run_async"
        )
    check_plain("call_async takes", function)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return  # some builtins have no signature
    for parameter in parameters:
        is_any = parameter.kind is parameter.VAR_KEYWORD
        if is_any or (parameter.name == "scope" and parameter.kind in _BY_NAME):
            return
    name = getattr(function, "__qualname__", repr(function))
    raise TypeError(
        f"{name:.200} takes no scope, so call_async can't cancel it; "
        "await asyncio.to_thread for such functions"
    )


async def _in_thread(work: Callable[[CancelScope], T], scope: CancelScope | None) -> T:
    """Call a function in a thread, with a scope that also ends if the asyncio task is cancelled.

    asyncio's own threads aren't used, for two reasons. They may be older than the program's network
    namespace. And waiting calls would leave no thread for the program's other calls.
    """
    import asyncio
    from concurrent.futures import Future

    scope = _scope_or_new(scope)
    outer = CancelScope(clock=scope.clock)
    inner = scope.within(outer)
    outcome: Future[T] = Future()  # asyncio futures can't hold a StopIteration
    loop = asyncio.get_running_loop()
    ending: asyncio.Future[None] = loop.create_future()

    def work_in_thread() -> None:
        try:
            outcome.set_result(work(inner))
        except BaseException as error:  # noqa: BLE001 - raised below
            outcome.set_exception(error)
        with suppress(RuntimeError):  # the loop was closed, so nothing waits any more
            loop.call_soon_threadsafe(ending.set_result, None)

    # Python waits for the thread at its exit, even if the loop's thread is a daemon.
    thread = Thread(target=copy_context().run, args=(work_in_thread,), daemon=False)
    thread.start()
    cancelled: asyncio.CancelledError | None = None
    while not ending.done():
        try:
            await asyncio.wait([ending])
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
            outer.cancel("the asyncio task was cancelled")
    thread.join()
    if cancelled is not None:
        raise cancelled from outcome.exception()
    return outcome.result()


def run_child(task: Task[T], scope: CancelScope) -> T:
    """Run a subtask of the scope's task.

    Args:
        task: the task to run.
        scope: the parent task's scope, or a child of it.

    Returns:
        The task's result.

    Raises:
        Cancelled: the scope was cancelled. The task may not have started. If the task returned
            without noticing the cancellation, a note says so.
        TimedOut: the scope's own deadline passed. If the task returned without noticing, a note
            says so.
        TypeError: the task isn't a task, or the scope isn't a scope.
        BaseException: any exception raised by the task, unchanged, with a `PathNote`.
    """
    check_task(None, None, task)
    checked_scope(scope)
    path = f"{scope.path}/{task.name}" if scope.path else task.name
    begin = scope.clock.monotonic()
    scope.tell(lambda observer: observer.started(path))

    def tell_end(status: Status, error: BaseException | None) -> None:
        seconds = scope.clock.monotonic() - begin
        scope.tell(lambda observer: observer.finished(path, status, result, error, seconds))

    result: T | None = None
    try:
        with scope.at(path) as inner:
            inner.check()
            result = finished("a task is", task.do(inner))
            # The caller that cancelled the task must not see a success, even from a task that
            # hasn't checked its scope.
            if late := inner.verdict():
                raise add_note(late, LATE_NOTE)
    except BaseException as error:
        add_path_note(error, path)
        tell_end(Status.of(error), error)
        raise
    tell_end(Status.OK, None)
    return result
