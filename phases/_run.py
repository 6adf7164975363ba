"""Tasks: what one is, and what surrounds every one that is run."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from phases._compat import add_note
from phases._errors import Observer, Status, add_path_note, paths_of, text_of
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


class _Reporter:
    """Tells several observers, one call at a time; keeps the first error of any for the end of the run.

    While one thread tells, the others leave their calls to it and go on, so an observer that blocks holds up the end
    of no task in another thread.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.failure: Exception | None = None
        self._observers = observers
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

    def finish(self) -> None:
        """Return once everything has been told."""
        with self._lock:
            self._tell_all()

    def _tell_all(self) -> None:
        while True:
            try:
                call = self._calls.popleft()
            except IndexError:
                return
            for observer in self._observers:
                try:
                    call(observer)
                except Exception as error:  # noqa: BLE001 - kept, and raised at the end of the run
                    self.failure = error if self.failure is None else self.failure


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
        observer: is told of starts, progress and ends.

    Returns:
        What the task returned.

    Raises:
        Cancelled: the scope was cancelled before the tree had ended, even if no task has seen it.
        TimedOut: the scope's deadline, or one of a `Timeout`, passed; likewise.
        TypeError: it is no task.
        BaseException: whatever a task raised, as it was, with a `PathNote` that names that task.
    """
    check_task(task)
    scope = CancelScope() if scope is None else scope
    logger = logger or _own_logger()
    log = None if logger is None else _Log(logger)
    reporter = _Reporter([each for each in (log, observer) if each is not None])
    try:
        result = run_child(task, scope.at(scope.path, reporter.tell))
    except BaseException as error:
        reporter.finish()
        if reporter.failure is not None:
            add_note(error, f"besides, an observer or log handler of the run failed: {text_of(reporter.failure)}")
        raise
    reporter.finish()
    if reporter.failure is not None:
        raise add_note(reporter.failure, "raised by an observer or log handler; the tasks of the run ended well")
    return result


def check_task(task: object) -> None:
    """Refuse what is no task.

    Raises:
        TypeError: it has no name, or nothing to do.
    """
    if isinstance(task, type) or not isinstance(getattr(task, "name", None), str) or not hasattr(task, "do"):
        raise TypeError(
            f"expected a task, which has a name and do(scope), not {task!r:.200}; "
            'of several make one by Serial(a, b), of a function by @phases.task("name")'
        )


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


def _own_logger() -> logging.Logger | None:
    """The logger `phases`, if anybody can listen: nobody can without having loaded `logging`."""
    if "logging" not in sys.modules:
        return None
    import logging

    logger = logging.getLogger("phases")
    # Without a handler of its own a library's warnings would reach stderr through logging.lastResort.
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger


class _Log:
    """The observer that logs: constant messages, the data as attributes of the record."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def started(self, path: str) -> None:
        self._logger.info("started", extra=_identity(path))

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """Progress is for whoever looks on."""

    def finished(self, path: str, status: Status, error: BaseException | None, seconds: float) -> None:
        import logging

        data = {"status": str(status), "duration": seconds, "error": None if error is None else text_of(error)}
        # The tasks above the one that failed would only repeat its traceback.
        has_traceback = error is not None and status is Status.FAILED and path in paths_of(error)
        self._logger.log(
            {Status.OK: logging.INFO, Status.CANCELLED: logging.WARNING}.get(status, logging.ERROR),
            "completed" if status is Status.OK else "failed",
            extra=_identity(path) | data,
            exc_info=error if has_traceback else None,
        )


def _identity(path: str) -> dict[str, object]:
    return {"task": path.rpartition("/")[2], "path": path}
