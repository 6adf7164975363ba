from __future__ import annotations

import signal
import threading

import pytest

from phases import CancelScope, Parallel, Task, run, task
from phases._threads import run_threads


def test_when_no_more_threads_can_start_those_that_run_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []
    ended: list[str] = []

    def work(name: str) -> Task[None]:
        @task(name)
        def wait(scope: CancelScope) -> None:
            begun.release()
            try:
                scope.wait(1000)
            finally:
                ended.append(name)

        return wait

    begun = threading.Semaphore(0)

    def limited(thread: threading.Thread) -> None:
        if len(started) == 2:
            begun.acquire()
            begun.acquire()
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    scope = CancelScope()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run(Parallel(*(work(f"t{number}") for number in range(4))), scope=scope)
    assert sorted(ended) == ["t0", "t1"]
    assert not scope.is_cancelled


class Interrupt(BaseException):
    pass


# What is raised in the callback of a weak reference (threading has some) is lost, and reported as a warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_moment_leaves_no_work_running_and_no_thread() -> None:
    before = threading.active_count()
    running: list[str] = []
    ends: list[BaseException] = []
    stop = threading.Event()

    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupt

    def work() -> None:
        running.append("work")
        stop.wait(0.5)
        running.pop()

    def end(error: BaseException) -> None:
        stop.set()
        ends.append(error)

    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        for microseconds in range(10, 2000, 10):
            stop.clear()
            try:
                signal.setitimer(signal.ITIMER_REAL, microseconds / 1e6)
                run_threads([("work", work)] * 3, on_interrupt=end)
            except Interrupt:
                stop.set()  # It came before anything had begun.
            assert running == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert {type(error) for error in ends} == {Interrupt}
    assert threading.active_count() == before
