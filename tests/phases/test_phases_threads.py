from __future__ import annotations

import threading

import pytest

from phases import CancelScope, Parallel, run
from phases._threads import longest_wait, run_threads
from phases.testing import Returning


def test_only_the_main_thread_wakes_up_for_signals() -> None:
    seen: list[float] = []
    run_threads([("look", lambda: seen.append(longest_wait()))], on_interrupt=lambda _error: None)
    assert longest_wait() < 0.05 < 60 < seen[0]


def test_when_no_more_threads_can_start_those_that_run_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def limited(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    scope = CancelScope()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run(Parallel(*(Returning(f"t{number}", number) for number in range(4))), scope=scope)
    assert not any(thread.is_alive() for thread in started)
    assert not scope.is_cancelled
