from __future__ import annotations

import threading

import pytest

from phases import CancelScope, Parallel, Task, run, task
from phases._threads import longest_wait, run_threads


def test_only_the_main_thread_wakes_up_for_signals() -> None:
    seen: list[float] = []
    run_threads([("look", lambda: seen.append(longest_wait()))], on_interrupt=lambda _error: None)
    assert longest_wait() < 0.05 < 60 < seen[0]


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
