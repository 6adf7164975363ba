"""Running a tree: what surrounds every task in it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeVar

from phases._errors import add_path_note
from phases._observe import Context, Observer, Reporter, Status
from phases._scope import CancelScope

if TYPE_CHECKING:
    import logging

    from phases._logging import LogObserver
    from phases._task import Task

T = TypeVar("T")


def run(
    task: Task[T],
    *,
    logger: logging.Logger | None = None,
    scope: CancelScope | None = None,
    observer: Observer | None = None,
) -> T:
    """Run a tree of tasks and return its result.

    Each task gets a log record as it starts (`phases.task`, `phases.path`) and one as it ends (besides
    `phases.status`, `phases.duration_seconds`, `phases.error`). From asyncio:
    `await asyncio.to_thread(phases.run, task, scope=scope)`; `scope.cancel(…)` then ends it, which
    cancelling the awaiting asyncio task does not.

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
        Cancelled: the scope was cancelled, before or while the tree ran.
        TimedOut: the scope's deadline, or one of a `Timeout`, passed.
        BaseException: whatever a task raised, as it was, with a note that names the path of that task.
    """
    scope = CancelScope() if scope is None else scope
    log = _Log(logger)
    reporter = Reporter([log] if observer is None else [log, observer])
    try:
        result = run_child(task, scope.within(Context(scope.path, reporter)))
    except BaseException as error:
        reporter.add_failures_to(error)
        raise
    reporter.raise_failures()
    return result


def run_child(task: Task[T], scope: CancelScope) -> T:
    """Run a task below the one that the scope was given to; how a task that is made of tasks runs them.

    Args:
        task: the task to run.
        scope: the scope of the task above, or a child of that.

    Returns:
        What the task returned.

    Raises:
        Cancelled: the scope was cancelled; then the task may not have started.
        TimedOut: the scope's own deadline passed.
        BaseException: whatever the task raised, as it was, with a note of its path.
    """
    context = scope.context.at(task.name)
    begin = scope.clock.monotonic()
    context.reporter.started(context.path)
    try:
        with scope.within(context) as inner:
            inner.check()
            result = task.do(inner)
    except BaseException as error:
        add_path_note(error, context.path)
        seconds = scope.clock.monotonic() - begin
        context.reporter.finished(context.path, Status.of(error), error, seconds)
        raise
    context.reporter.finished(context.path, Status.OK, None, scope.clock.monotonic() - begin)
    return result


class _Log:
    """The observer that logs, once anybody can listen: nobody can without having loaded `logging`."""

    def __init__(self, logger: logging.Logger | None) -> None:
        self._logger = logger

    def started(self, path: str) -> None:
        if log := self._observer():
            log.started(path)

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        if log := self._observer():
            log.progress(path, message, fraction)

    def finished(self, path: str, status: Status, error: BaseException | None, seconds: float) -> None:
        if log := self._observer():
            log.finished(path, status, error, seconds)

    def _observer(self) -> LogObserver | None:
        if self._logger is None and "logging" not in sys.modules:
            return None
        from phases._logging import LOGGER, LogObserver

        return LogObserver(LOGGER if self._logger is None else self._logger)
