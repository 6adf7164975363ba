from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from recording_tasks import Blocking, Raising

from phases import Cancelled, CancelScope, Parallel, run
from phases.testing import FakeClock

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(patience=0.02)


@pytest.fixture
def scope(clock: FakeClock) -> CancelScope:
    return CancelScope(clock=clock)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    fds = os.pipe()
    yield fds
    for fd in fds:
        os.close(fd)


def test_a_scheduled_call_ends_a_wait(clock: FakeClock, scope: CancelScope, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    event = threading.Event()
    clock.call_at(2, event.set)
    scope.child(timeout=30).wait(event)
    assert clock.monotonic() == 2
    clock.call_at(3, lambda: os.write(writing, b"x"))
    with open(reading, "rb", closefd=False) as file:
        scope.wait(file)
    assert clock.monotonic() == 3
    clock.call_at(4, lambda: scope.cancel("SIGTERM"))
    with pytest.raises(Cancelled, match="SIGTERM"):
        scope.child().wait(30)
    assert clock.monotonic() == 4


def test_scheduled_calls_happen_in_the_order_of_their_times(clock: FakeClock, scope: CancelScope) -> None:
    seen: list[tuple[str, float]] = []

    def see(name: str) -> None:
        seen.append((name, clock.monotonic()))

    clock.call_at(3, lambda: see("third"))
    clock.call_at(1, lambda: (see("first"), clock.call_at(2, lambda: see("second"))))  # type: ignore[func-returns-value]
    clock.call_at(3, lambda: see("fourth"))
    clock.call_at(9, lambda: see("never"))
    scope.wait(4)
    assert seen == [("first", 1), ("second", 2), ("third", 3), ("fourth", 3)]
    assert clock.monotonic() == 4


def test_a_wait_that_can_not_end_is_an_error(scope: CancelScope, pipe: tuple[int, int]) -> None:
    with pytest.raises(RuntimeError, match="this wait can't end"):
        scope.wait(threading.Event())
    with open(pipe[0], "rb", closefd=False) as file, pytest.raises(RuntimeError, match="this wait can't end"):
        scope.wait(file)


def test_a_wait_without_end_can_be_ended_by_another_thread() -> None:
    scope = CancelScope(clock=FakeClock(patience=30))
    event = threading.Event()
    thread = threading.Thread(target=event.set)
    thread.start()
    scope.wait(event)
    thread.join()
    with pytest.raises(ExceptionGroup):
        run(Parallel(Blocking("b"), Raising("r", ValueError("no"))), scope=scope)
