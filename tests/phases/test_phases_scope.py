from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from nightly import by_day
from recording_tasks import Blocking, Raising, handling, meanwhile

from phases import (
    Cancelled,
    CancelScope,
    Clock,
    Parallel,
    Serial,
    SystemClock,
    TimedOut,
    run,
    run_child,
)
from phases.testing import FakeClock

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup


class AnnouncingClock(SystemClock):
    """A clock that signals the start of each wait, so that a test can act during it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def wait(self, happened: Callable[[float], bool], until: float) -> None:
        self.waits.set()
        super().wait(happened, until)


def at_the_first_wait(clock: AnnouncingClock, action: Callable[[], object]) -> Callable[[], object]:
    def act() -> None:
        clock.waits.wait()
        action()

    return act


def send_usr1() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


# cancel, check


def test_every_later_checkpoint_sees_the_first_cancel() -> None:
    scope, has_happened = CancelScope(), threading.Event()
    scope.check()
    scope.cancel("first")
    scope.cancel("second")
    has_happened.set()
    waits = (lambda: scope.wait(0), lambda: scope.wait(has_happened), lambda: scope.run(["true"]))
    for checkpoint in (scope.check, *waits, scope.check):
        with pytest.raises(Cancelled, match=r"^first$"):
            checkpoint()


def test_a_cancel_reaches_all_children_and_no_parent() -> None:
    scope = CancelScope()
    before = scope.child().child()
    lone = scope.child()
    lone.cancel("only this")
    assert [lone.is_cancelled, scope.is_cancelled] == [True, False]
    scope.cancel("stop")
    for child in (before, scope.child(), scope.child(timeout=5).child()):
        with pytest.raises(Cancelled, match="stop"):
            child.check()


# deadlines


def test_a_passed_deadline_raises_at_every_later_checkpoint() -> None:
    clock = FakeClock()
    scope = CancelScope(timeout=5, clock=clock)
    with pytest.raises(TimedOut, match="5 s"):
        scope.wait(10)
    assert clock.monotonic() == 5
    scope.cancel("too late to be the reason")
    with pytest.raises(TimedOut):
        scope.check()
    assert scope.is_cancelled
    with pytest.raises(TimedOut, match="0 s"):
        CancelScope(timeout=-1).check()


def test_a_cancel_before_the_deadline_stays_the_reason_after_it() -> None:
    clock = FakeClock()
    scope = CancelScope(timeout=5, clock=clock)
    scope.cancel("first")
    clock.advance(10)
    with pytest.raises(Cancelled, match="first"):
        scope.check()


def test_a_handler_of_an_inner_timeout_keeps_the_outer_deadline() -> None:
    outer = CancelScope(timeout=3, clock=FakeClock())

    def wait_with_a_handler() -> None:
        with outer, contextlib.suppress(TimedOut):
            outer.child(timeout=5).wait(10)

    with pytest.raises(TimedOut) as caught:
        wait_with_a_handler()
    assert caught.value.seconds == 3
    assert isinstance(caught.value.__cause__, Cancelled)
    assert caught.value.__cause__.reason == "an outer deadline passed (3 s)"


# shield


def test_a_shield_sees_neither_cancel_nor_deadline_from_outside() -> None:
    clock = FakeClock()
    scope = CancelScope(timeout=3, clock=clock)
    scope.cancel("stop")
    with scope.shield() as inner:
        inner.wait(10)
        assert inner.clock is clock
    assert clock.monotonic() == 10


# wait


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()])
def test_a_wait_ends_when_it_happens_or_at_the_deadline(clock: Clock) -> None:
    scope = CancelScope(clock=clock)
    event = threading.Event()
    left, right = socket.socketpair()
    with left, right:
        start = clock.monotonic()
        scope.wait(0.001)
        scope.child(timeout=60).wait(0.001)
        assert 0.002 <= clock.monotonic() - start < 60
        for what in (1, event, left):
            with pytest.raises(TimedOut):
                scope.child(timeout=0.001).wait(what)
        event.set()
        right.send(b"x")
        scope.wait(event)
        scope.wait(left)


def test_wait_sees_what_another_thread_does() -> None:
    clock = AnnouncingClock()
    scope = CancelScope(clock=clock)
    event = threading.Event()
    left, right = socket.socketpair()
    with left:
        with meanwhile(at_the_first_wait(clock, event.set)):
            scope.wait(event)
        for action in (lambda: right.send(b"x"), right.close):
            clock.waits.clear()
            with meanwhile(at_the_first_wait(clock, action)):
                scope.wait(left)
            left.recv(1)


def test_wait_refuses_other_types() -> None:
    with pytest.raises(TypeError, match="can wait for seconds, an Event or a file, not for 'soon'"):
        CancelScope().wait("soon")  # type: ignore[arg-type]


WRONG: dict[str, tuple[Callable[[Any], object], Any, type[Exception], str]] = {
    "a clock's number": (lambda it: CancelScope(clock=it), 5, TypeError, "a clock, .* not 5"),
    "a clock's words": (lambda it: CancelScope(clock=it), "", TypeError, "a clock, .* not ''"),
    "a class": (lambda it: CancelScope(clock=it), FakeClock, TypeError, "a clock, .* not <class"),
    "a timeout of NaN": (
        lambda it: CancelScope(timeout=it),
        math.nan,
        ValueError,
        "timeout .* nan",
    ),
    "a child's": (lambda it: CancelScope().child(timeout=it), math.nan, ValueError, "timeout"),
    "a wait of NaN": (CancelScope().wait, math.nan, ValueError, "a wait takes .* not nan"),
    "no outer scope": (CancelScope().within, 5, TypeError, "expected a CancelScope as scope, not"),
    "a parent's scope": (
        lambda it: run_child(Serial(), it),
        5,
        TypeError,
        "expected a CancelScope as scope, not 5",
    ),
    "a slice's words": (SystemClock, "x", TypeError, "SystemClock takes a number .* not 'x'"),
    "patience": (lambda it: FakeClock(patience=it), "x", TypeError, "FakeClock takes .* not 'x'"),
    "an advance": (FakeClock().advance, None, TypeError, "advance takes a number .* not None"),
    "a time": (lambda it: FakeClock().call_at(it, print), "x", TypeError, "call_at takes .* 'x'"),
}


@pytest.mark.parametrize(("call", "value", "kind", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_argument_is_named(
    call: Callable[[Any], object], value: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call(value)


@pytest.mark.parametrize("what", ["seconds", "event", "file", "process"])
def test_a_wait_ends_within_100_ms_of_a_cancel(what: str) -> None:
    left, right = socket.socketpair()
    waits: dict[str, Callable[[CancelScope], object]] = {
        "seconds": lambda scope: scope.wait(1000),
        "event": lambda scope: scope.wait(threading.Event()),
        "file": lambda scope: scope.wait(left),
        "process": lambda scope: scope.run(
            ["sh", "-c", "trap '' TERM; echo ready >&2; sleep 1000 & wait"]
        ),
    }
    delays = []
    cancelled: list[float] = []

    def cancel(scope: CancelScope) -> None:
        cancelled.append(time.monotonic())
        scope.cancel("now")

    with left, right:
        # Use the best of several moments, because a busy machine may stop all threads at the same
        # time of each 100 ms.
        for attempt in range(8):
            scope = CancelScope()
            timer = threading.Timer(0.05 + 0.03 * attempt, cancel, [scope])
            timer.start()
            with pytest.raises(Cancelled):
                waits[what](scope)
            delays.append(time.monotonic() - cancelled[-1])
            timer.join()
            if delays[-1] < 0.1:
                break
    assert min(delays) < 0.1


# signals


def test_a_signal_handler_may_cancel_during_a_wait() -> None:
    for what in (1000, threading.Event()):
        clock = AnnouncingClock()
        scope = CancelScope(clock=clock)
        with (
            handling(signal.SIGUSR1, partial(scope.cancel, "SIGUSR1")),
            meanwhile(at_the_first_wait(clock, send_usr1)),
            pytest.raises(Cancelled, match="SIGUSR1"),
        ):
            scope.child().wait(what)


def test_a_signal_handler_may_cancel_at_any_line_of_the_scope() -> None:
    scopes: list[CancelScope] = []
    hits = 0

    def cancel() -> None:
        for scope in scopes:
            scope.cancel("alarm")
            scope.child().cancel("alarm")

    # Measure CPU time: with wall-clock time, a busy machine might do nothing but handle signals.
    with handling(signal.SIGVTALRM, cancel):
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005, 0.0005)
        try:
            while hits < by_day(40, by_night=150):
                scopes[:] = [CancelScope()]
                try:
                    while True:
                        scopes[0].child(timeout=60).wait(0)
                        scopes[0].progress("on")
                        scopes[0].cancel("own") if hits % 2 else scopes[0].check()
                except Cancelled:
                    hits += 1
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    assert hits == by_day(40, by_night=150)


# --- phases.testing -------------------------------------------------------------------------------


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


def test_a_scheduled_call_ends_a_wait(
    clock: FakeClock, scope: CancelScope, pipe: tuple[int, int]
) -> None:
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


def test_scheduled_calls_happen_in_the_order_of_their_times(
    clock: FakeClock, scope: CancelScope
) -> None:
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
    with (
        open(pipe[0], "rb", closefd=False) as file,
        pytest.raises(RuntimeError, match="this wait can't end"),
    ):
        scope.wait(file)


def test_a_wait_without_end_can_be_ended_by_another_thread() -> None:
    scope = CancelScope(clock=FakeClock(patience=30))
    event = threading.Event()
    with meanwhile(event.set):
        scope.wait(event)
    with pytest.raises(ExceptionGroup):
        run(Parallel(Blocking("b"), Raising("r", ValueError("no"))), scope=scope)
