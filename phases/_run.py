"""Tasks: what one is, and what surrounds every one that is run."""

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
    if not isinstance(value, str) or not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", value):
        raise ValueError(f"a task's name is kebab-case, as 'configure-static-routes', not {value!r}")


def check_task(_instance: object, _attribute: object, value: object) -> None:
    """Refuse what is no task; an attrs validator.

    Raises:
        TypeError: it has no name, or nothing to do.
    """
    if isinstance(value, type) or not isinstance(getattr(value, "name", None), str) or not hasattr(value, "do"):
        raise TypeError(
            f"expected a task, which has a name and do(scope), not {value!r:.200}; "
            'of several make one by Serial(a, b), of a function by @phases.task("name")'
        )


class _Reporter:
    """Tells the observers of a run, one call at a time, and at its end raises the first error of any, or notes it.

    While one thread tells, the others leave their calls to it and go on, so an observer that blocks holds up the end
    of no task in another thread.
    """

    def __init__(self, logger: logging.Logger | None, observer: Observer | None) -> None:
        self._observers: list[Observer] = [] if observer is None else [observer]
        # A program can't have set up a logger without loading logging.
        if "logging" in sys.modules:
            from phases._log import OWN, Log

            self._observers.insert(0, Log(logger or OWN))
        self._failures: list[Exception] = []
        self._calls: deque[Callable[[Observer], None]] = deque()
        # Reentrant: an observer, or a signal handler in its midst, may report progress itself.
        self._lock = RLock()

    def tell(self, call: Callable[[Observer], None]) -> None:
        self._calls.append(call)
        # Again after each release: a call may have come between the last look and that.
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
                raise add_note(failure, "raised by an observer or log handler; the tasks of the run ended well")
            add_note(error, f"besides, an observer or log handler of the run failed: {text_of(failure)}")

    def _tell_all(self) -> None:
        # Popped until that fails: a signal handler may have taken the last one since a look.
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

    Each task gets a log record `started` (`task`, `path`) and one as it ends, `completed` or `failed` (besides
    `status`, `duration` in seconds, `error`). From asyncio use `run_async`.

    An observer or log handler that raises doesn't disturb the tasks. Its first error is raised once they
    have ended well, and otherwise noted on the exception that ended them.

    Args:
        task: the root of the tree.
        logger: where the records go; by default the logger `phases`.
        scope: what cancels the run; by default nothing does. Its path, inside another run, is continued.
        observer: gets starts, progress and ends.

    Returns:
        What the task returned.

    Raises:
        Cancelled: the scope was cancelled before the tree had ended, even if no task has seen it.
        TimedOut: the scope's deadline, or one of a `Timeout`, passed; likewise.
        TypeError: it is no task.
        BaseException: whatever a task raised, as it was, with a `PathNote` that names that task.
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

    Cancelling the asyncio task cancels this run, and nothing else in the scope. The coroutine ends only once the run
    has ended and put back what it had begun, however often it is cancelled meanwhile.

    Args:
        task: the root of the tree.
        logger: where the records go; by default the logger `phases`.
        scope: what cancels the run besides; by default nothing does.
        observer: gets starts, progress and ends, in the threads of the tasks.

    Returns:
        What the task returned.

    Raises:
        asyncio.CancelledError: the asyncio task was cancelled; its cause is what the run raised: `Cancelled` with the
            notes of its rollback, or a failure.
        Cancelled: the scope was cancelled.
        TimedOut: the scope's deadline, or one of a `Timeout`, passed.
        BaseException: whatever else `run` raises.
    """
    import asyncio
    from concurrent.futures import Future

    scope = CancelScope() if scope is None else scope
    outer = CancelScope(clock=scope.clock)
    inner = scope.within(outer)
    outcome: Future[T] = Future()

    def work() -> None:
        # The loop's own future would never be done where it gets a StopIteration.
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
    """Run a task below the one that the scope was given to; how a task that is made of tasks runs them.

    Args:
        task: the task to run.
        scope: the scope of the task above, or a child of that.

    Returns:
        What the task returned.

    Raises:
        Cancelled: the scope was cancelled. The task may not have started, or it may have returned without seeing
            the cancel; then a note says so.
        TimedOut: the scope's own deadline passed; likewise.
        BaseException: whatever the task raised, as it was, with a `PathNote`.
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
            # A task that doesn't look can't lose a cancel: the program that cancelled would be told of a success.
            if late := inner.verdict():
                raise add_note(late, "the task had already returned when this was seen")
    except BaseException as error:
        add_path_note(error, path)
        tell_end(Status.of(error), error)
        raise
    tell_end(Status.OK, None)
    return result
