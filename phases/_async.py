"""Runs from asyncio."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

from phases._errors import Observer
from phases._run import Task, run
from phases._scope import CancelScope

if TYPE_CHECKING:
    import logging

T = TypeVar("T")


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
        observer: is told of starts, progress and ends, in the threads of the tasks.

    Returns:
        What the task returned.

    Raises:
        asyncio.CancelledError: the asyncio task was cancelled; its cause is what the run raised: `Cancelled` with the
            notes of its rollback, or a failure.
        Cancelled: the scope was cancelled.
        TimedOut: the scope's deadline, or one of a `Timeout`, passed.
        BaseException: whatever else `run` raises.
    """
    scope = CancelScope() if scope is None else scope
    outer = CancelScope(clock=scope.clock)
    inner = scope.within(outer)
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        # The future carries no exception: a StopIteration would keep it from ever being done.
        try:
            results.append(run(task, logger=logger, scope=inner, observer=observer))
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    running = asyncio.get_running_loop().run_in_executor(None, copy_context().run, work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
            outer.cancel("the asyncio task was cancelled")
    if cancelled is not None:
        raise cancelled from (errors.pop() if errors else None)
    if errors:
        raise errors.pop()
    return results.pop()
