"""For tests of tasks: a clock that needs no time, and an observer that records."""

from __future__ import annotations

import math
import threading
import time
from bisect import insort
from collections.abc import Callable
from operator import itemgetter

from attrs import field, frozen

from phases import Status

_REAL_POLL_SECONDS = 0.002


class FakeClock:
    """Time that advances only in waits, at once: to the end of the wait or to the next scheduled call.

    A scheduled call runs in the thread whose wait reaches its time, and may set an event, write to a pipe
    or cancel a scope: the wait for that then ends at that moment. Threads that wait at the same time each
    advance the same time, so which of them comes first is not determined.

    A wait without an end, for which nothing is scheduled, can only be ended by another thread. That gets
    some real time to do so; then the wait raises `RuntimeError` rather than hang.

    Args:
        patience: real seconds that other threads get.
    """

    def __init__(self, *, patience: float = 2.0) -> None:
        self._now = 0.0
        self._patience = patience
        self._calls: list[tuple[float, Callable[[], object]]] = []
        self._lock = threading.RLock()

    def monotonic(self) -> float:
        """Give the fake time in seconds."""
        return self._now

    def call_at(self, when: float, function: Callable[[], object]) -> None:
        """Call a function as soon as a wait reaches this time; equal times in the order of these calls."""
        with self._lock:
            insort(self._calls, (when, function), key=itemgetter(0))

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass, with the calls scheduled for them, as a sleep would."""
        self.wait(lambda _seconds: False, self._now + seconds)

    def wait(self, happened: Callable[[float], bool], until: float) -> None:
        """Wait as `Clock.wait` promises."""
        while not happened(0) and self._now < until:
            with self._lock:
                is_call = bool(self._calls) and self._calls[0][0] <= until
                when, call = self._calls.pop(0) if is_call else (until, None)
                if when != math.inf:
                    self._now = max(self._now, when)
            if call is not None:
                call()
            elif when == math.inf:
                self._wait_for_others(happened)

    def _wait_for_others(self, happened: Callable[[float], bool]) -> None:
        end = time.monotonic() + self._patience
        while not (self._calls or happened(_REAL_POLL_SECONDS)):
            if time.monotonic() >= end:
                raise RuntimeError(
                    "this wait can't end: it has no timeout and no deadline, nothing is scheduled on the "
                    f"FakeClock, and no other thread ended it in {self._patience:g} s"
                )


@frozen(eq=False)
class RecordingObserver:
    """An observer that keeps what it is told, as tuples in that order.

    `("started", path)`, `("progress", path, message, fraction)`, `("finished", path, status)`; the
    exceptions are in `errors` and the durations in seconds in `durations`, both by path.
    """

    events: list[tuple[str | float | None, ...]] = field(factory=list)
    errors: dict[str, BaseException] = field(factory=dict)
    durations: dict[str, float] = field(factory=dict)

    def started(self, path: str) -> None:
        """Keep a start."""
        self.events.append(("started", path))

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """Keep a progress."""
        self.events.append(("progress", path, message, fraction))

    def finished(self, path: str, status: Status, error: BaseException | None, seconds: float) -> None:
        """Keep an end."""
        self.events.append(("finished", path, status))
        self.durations[path] = seconds
        if error is not None:
            self.errors[path] = error
