from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from nightly import IS_NIGHTLY

from phases import CancelScope, Parallel, Task, run, task

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup

if TYPE_CHECKING:
    from types import FrameType


def test_without_new_threads_the_running_ones_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(ExceptionGroup) as caught:
        run(Parallel(*(work(f"t{number}") for number in range(4))), scope=scope)
    (error,) = caught.value.exceptions
    assert str(error) == "can't start new thread"
    assert sorted(ended) == ["t0", "t1"]
    assert not scope.is_cancelled


class Interrupt(BaseException):
    pass


def is_pythons_own(frame: FrameType) -> bool:
    """Return whether an interrupt here could leave a lock of ``threading`` held forever, or a thread half started."""
    return frame.f_code.co_filename == threading.__file__ and frame.f_code is not threading.Condition.wait.__code__


# An exception in the callback of a weak reference, as in threading, is lost and only reported as a warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
# pytest-timeout must use a thread, because this test needs SIGALRM.
@pytest.mark.timeout(120, method="thread")
def test_an_interrupt_at_any_moment_leaves_no_task_running() -> None:
    # An interrupt at the start of a thread may crash Python 3.11, so only nightly runs try many moments.
    moments = range(10, 4000, 40 if IS_NIGHTLY else 200)
    running: list[str] = []
    interrupts = 0

    def interrupt(_number: int, frame: FrameType | None) -> None:
        if frame is not None and is_pythons_own(frame):
            signal.setitimer(signal.ITIMER_REAL, 1e-5)
            return
        raise Interrupt

    @task("work")
    def work(scope: CancelScope) -> None:
        running.append("work")
        try:
            scope.wait(0.5)
        finally:
            running.pop()

    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        for microseconds in moments:
            try:
                signal.setitimer(signal.ITIMER_REAL, microseconds / 1e6)
                run(Parallel(work, work, work))
            except Interrupt:
                interrupts += 1
            except ExceptionGroup as group:
                # If the interrupt comes while threading.Condition has released its lock, that lock raises an error.
                (error,) = group.exceptions
                assert isinstance(error.__context__, Interrupt)
                interrupts += 1
            assert running == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert interrupts >= 0.9 * len(moments)  # those in the callback of a weak reference are lost
