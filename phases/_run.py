"""Define the protocol of tasks, and run tasks with observers and notes."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from phases._errors import Observer, Status, add_note, add_path_note, text_of
from phases._scope import CancelScope

if TYPE_CHECKING:
    import logging

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Task(Protocol[T_co]):
    """One thing to do under a scope that can cancel it; it is a frozen value, so that a tree can be printed."""

    @property
    def name(self) -> str:
        """The name in paths and logs, a verb phrase in kebab-case such as `configure-static-routes`."""

    def do(self, scope: CancelScope) -> T_co:
        """Do the work and return the result, or raise an exception; wait and run subprocesses only through the scope.

        Args:
            scope: the scope, which reports cancellations and deadlines and receives progress.

        Returns:
            The task's result.

        Raises:
            Cancelled: the scope was cancelled.
            TimedOut: the scope's deadline passed.
        """


def check_name(_instance: object, _attribute: object, value: Any) -> None:
    """Refuse a name that isn't kebab-case; used as an attrs validator.

    Raises:
        ValueError: the name isn't kebab-case.
    """
    if not isinstance(value, str) or not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", value):
        raise ValueError(f"a task's name is kebab-case, like 'configure-static-routes', not {value!r}")


def check_task(_instance: object, _attribute: object, value: object) -> None:
    """Refuse a value that isn't a task; used as an attrs validator.

    Raises:
        TypeError: the value has no name, or no `do` method.
    """
    if isinstance(value, type) or not isinstance(getattr(value, "name", None), str) or not hasattr(value, "do"):
        raise TypeError(
            f"expected a task, which has a name and do(scope), not {value!r:.200}; "
            'make one from several with Serial(a, b), from a function with @phases.task("name")'
        )


class _Reporter:
    """A reporter that passes calls to the observers of a run, one at a time.

    At the end of the run it raises the first error of an observer, or adds it as a note to the run's own exception.

    While a thread makes calls, other threads leave their calls to it and continue. So an observer that blocks doesn't
    delay the end of a task in another thread.
    """

    def __init__(self, logger: logging.Logger | None, observer: Observer | None) -> None:
        self._observers: list[Observer] = [] if observer is None else [observer]
        # If the module logging isn't loaded, the program can't have configured a logger.
        if "logging" in sys.modules:
            from phases._log import OWN, Log

            self._observers.insert(0, Log(logger or OWN))
        self._failures: list[Exception] = []
        self._calls: deque[Callable[[Observer], None]] = deque()
        # This lock is reentrant, because an observer, or a signal handler during its call, may report progress itself.
        self._lock = RLock()

    def tell(self, call: Callable[[Observer], None]) -> None:
        self._calls.append(call)
        # Try again after each release, because another thread may have added a call before the release.
        while self._calls and self._lock.acquire(blocking=False):
            try:
                self._tell_all()
            finally:
                self._lock.release()

    def __enter__(self) -> _Reporter:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        with self._lock:
            self._tell_all()
        for failure in self._failures[:1]:
            if error is None:
                raise add_note(failure, "raised by an observer or log handler; the tasks of the run succeeded")
            add_note(error, f"also, an observer or log handler of the run failed: {text_of(failure)}")

    def _tell_all(self) -> None:
        # Pop until it fails, because a signal handler may take the last call after a check of the length.
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
    observer: Observer | None = None,
) -> T:
    """Run a tree of tasks and return its result.

    Each task gets a log record `started` (with `task` and `path`). When it ends, it gets another one, `completed` or
    `failed`, which also has `status`, `duration` in seconds and `error`. From asyncio, use `run_async`.

    An observer or log handler that raises an exception doesn't disturb the tasks. The first such exception is raised if
    the tasks succeed, and is otherwise added as a note to their exception.

    Args:
        task: the root of the tree.
        logger: the logger for the records; by default `phases`.
        scope: cancels the run; by default nothing does. If it is the scope of a task in another run, the paths continue
            that task's path.
        observer: the observer that is told about starts, progress and ends.

    Returns:
        The task's result.

    Raises:
        Cancelled: the scope was cancelled before the tree had ended, even if no task has noticed it.
        TimedOut: the scope's deadline, or that of a `Timeout`, passed before the tree had ended.
        TypeError: the value isn't a task.
        BaseException: any exception of a task, unchanged, with a `PathNote` that names the task.
    """
    check_task(None, None, task)
    scope = CancelScope() if scope is None else scope
    with _Reporter(logger, observer) as reporter:
        return run_child(task, scope.at(scope.path, reporter.tell))


async def run_async(
    task: Task[T],
    *,
    logger: logging.Logger | None = None,
    scope: CancelScope | None = None,
    observer: Observer | None = None,
) -> T:
    """Run a tree of tasks in a thread, as `run` does, and return its result.

    If the asyncio task is cancelled, this cancels the run, but nothing else in the scope. The coroutine ends only when
    the run has ended and undone its changes, however often it is cancelled before that.

    Args:
        task: the root of the tree.
        logger: the logger for the records; by default `phases`.
        scope: also cancels the run; by default nothing else does.
        observer: the observer that is told about starts, progress and ends, in the threads of the tasks.

    Returns:
        The task's result.

    Raises:
        asyncio.CancelledError: the asyncio task was cancelled. Its cause is the exception of the run, which is a
        failure, or `Cancelled` with the notes of the rollback.
        Cancelled: the scope was cancelled.
        TimedOut: the scope's deadline, or that of a `Timeout`, passed.
        BaseException: any other exception of `run`.
    """
    import asyncio
    from concurrent.futures import Future

    scope = CancelScope() if scope is None else scope
    outer = CancelScope(clock=scope.clock)
    inner = scope.within(outer)
    outcome: Future[T] = Future()

    def work() -> None:
        # The event loop's own future never completes with a StopIteration.
        try:
            outcome.set_result(run(task, logger=logger, scope=inner, observer=observer))
        except BaseException as error:  # noqa: BLE001 - raised below
            outcome.set_exception(error)

    running = asyncio.get_running_loop().run_in_executor(None, copy_context().run, work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
            outer.cancel("the asyncio task was cancelled")
    if cancelled is not None:
        raise cancelled from outcome.exception()
    return outcome.result()


def run_child(task: Task[T], scope: CancelScope) -> T:
    """Run a task below the task of the given scope; a task runs its subtasks with this function.

    Args:
        task: the task to run.
        scope: the scope of the parent task, or a child of that scope.

    Returns:
        The task's result.

    Raises:
        Cancelled: the scope was cancelled. The task may not have started, or it may have returned without noticing the
            cancellation, in which case a note says so.
        TimedOut: the scope's own deadline passed. The same note may be added.
        BaseException: any exception of the task, unchanged, with a `PathNote`.
    """
    path = f"{scope.path}/{task.name}" if scope.path else task.name
    begin = scope.clock.monotonic()
    scope.tell(lambda observer: observer.started(path))

    def tell_end(status: Status, error: BaseException | None) -> None:
        seconds = scope.clock.monotonic() - begin
        scope.tell(lambda observer: observer.finished(path, status, error, seconds))

    try:
        with scope.at(path) as inner:
            inner.check()
            result = task.do(inner)
            # If a task doesn't check, its cancellation must not get lost: the program that cancelled it would see a
            # success.
            if late := inner.verdict():
                raise add_note(late, "the task had already returned when this was seen")
    except BaseException as error:
        add_path_note(error, path)
        tell_end(Status.of(error), error)
        raise
    tell_end(Status.OK, None)
    return result
