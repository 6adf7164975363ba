from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING

from recording_tasks import Blocking, Raising, Returning

from phases import (
    Cancelled,
    CancelScope,
    Parallel,
    Serial,
    Status,
    TimedOut,
    all_or_nothing,
    path_of,
    run_async,
    task,
)
from phases.testing import FakeClock, RecordingObserver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from phases import Task


async def ending(run: Awaitable[object]) -> BaseException:
    try:
        await run
    except BaseException as error:  # noqa: BLE001 - the test looks at it
        return error
    raise AssertionError("it succeeded")


def cancelled(work: Task[object], started: threading.Event, scope: CancelScope | None = None) -> BaseException:
    """Run a task, cancel the asyncio task once it has started, and return the exception."""

    async def main() -> BaseException:
        running = asyncio.create_task(ending(run_async(work, scope=scope)))
        await asyncio.to_thread(started.wait)
        running.cancel()
        return await running

    return asyncio.run(main())


def rolling_back(put_back: Callable[[], None]) -> tuple[Task[object], threading.Event]:
    """Return a task that rolls back when it is cancelled, and an event that is set when it starts."""
    started = threading.Event()

    @task("change")
    def change(scope: CancelScope) -> None:
        with all_or_nothing() as undo:
            undo.push(put_back)
            started.set()
            scope.wait(1000)

    return change, started


def test_tasks_run_in_a_thread_with_the_context() -> None:
    node: ContextVar[str] = ContextVar("node")

    @task("read")
    def read(scope: CancelScope) -> tuple[str, bool]:
        return node.get(), threading.current_thread() is threading.main_thread()

    async def main() -> object:
        node.set("kube1")
        return await run_async(Serial(read, Returning("b", "two")))

    assert asyncio.run(main()) == (("kube1", False), "two")
    assert isinstance(asyncio.run(ending(run_async("no task"))), TypeError)  # type: ignore[arg-type]


def test_a_failure_arrives_unchanged() -> None:
    error = ValueError("no")
    observer = RecordingObserver()
    caught = asyncio.run(ending(run_async(Serial(Raising("a", error)), observer=observer)))
    assert caught is error
    assert path_of(error) == "serial/a"
    assert observer.errors["serial/a"] is error


def test_stop_iteration_ends_the_run() -> None:
    """Coroutines and asyncio futures can't raise StopIteration."""
    error = StopIteration(3)
    caught = asyncio.run(ending(run_async(Raising("a", error))))
    assert isinstance(caught, RuntimeError)
    assert caught.__cause__ is error


def test_a_cancelled_scope_cancels_the_run() -> None:
    blocking = Blocking("blocking")

    async def main() -> BaseException:
        scope = CancelScope()
        running = asyncio.create_task(ending(run_async(Parallel(blocking), scope=scope)))
        await asyncio.to_thread(blocking.started.wait)
        scope.cancel("the loop says so")
        return await running

    caught = asyncio.run(main())
    assert isinstance(caught, Cancelled)
    assert caught.reason == "the loop says so"


def test_a_deadline_of_the_scope_raises_timed_out() -> None:
    """The caller and the observer get the same results as with ``run``."""
    observer = RecordingObserver()
    scope = CancelScope(timeout=5, clock=FakeClock())
    caught = asyncio.run(ending(run_async(Blocking("b"), scope=scope, observer=observer)))
    assert isinstance(caught, TimedOut)
    assert caught.seconds == 5
    assert observer.events[-1] == ("finished", "b", Status.TIMED_OUT)


def test_a_cancelled_coroutine_rolls_back_first() -> None:
    put_back: list[str] = []
    caught = cancelled(*rolling_back(lambda: put_back.append("changed")))
    assert isinstance(caught, asyncio.CancelledError)
    assert put_back == ["changed"]
    assert isinstance(caught.__cause__, Cancelled)
    assert path_of(caught.__cause__) == "change"


def test_a_second_cancel_waits_too() -> None:
    """A coroutine that is cancelled again during the rollback still waits for it to finish."""
    putting, go = threading.Event(), threading.Event()
    put_back: list[str] = []

    def slowly() -> None:
        putting.set()
        assert go.wait(30)
        put_back.append("changed")

    work, started = rolling_back(slowly)

    async def main() -> BaseException:
        running = asyncio.create_task(ending(run_async(work)))
        await asyncio.to_thread(started.wait)
        running.cancel("once")
        await asyncio.to_thread(putting.wait)
        running.cancel("twice")
        await asyncio.wait([running], timeout=0)
        assert not running.done()
        go.set()
        return await running

    caught = asyncio.run(main())
    assert isinstance(caught, asyncio.CancelledError)
    assert caught.args == ("once",)
    assert put_back == ["changed"]


def test_a_cancel_before_the_first_wait_is_not_lost() -> None:
    async def main() -> BaseException:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        return await ending(run_async(Blocking("blocking")))

    assert isinstance(asyncio.run(main()), asyncio.CancelledError)


def test_a_failure_after_the_cancel_is_the_cause() -> None:
    started, error = threading.Event(), OSError("disk full")

    @task("stumble")
    def stumble(scope: CancelScope) -> None:
        started.set()
        try:
            scope.wait(1000)
        finally:
            raise error

    caught = cancelled(stumble, started)
    assert isinstance(caught, asyncio.CancelledError)
    assert caught.__cause__ is error
