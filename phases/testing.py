"""Helpers for testing tasks: a fake clock, and an observer that records its calls."""

from __future__ import annotations

import math
import threading
import time
from bisect import insort
from collections.abc import Callable
from operator import itemgetter

from attrs import field, frozen

from phases import Status
from phases._checks import check_number

__all__ = ["FakeClock", "RecordingObserver"]

_REAL_POLL_SECONDS = 0.002


class FakeClock:
    """A fake clock.

    A wait takes no real time. It sets the fake time to the end of the wait, and runs the calls that
    are scheduled until then.

    A scheduled call runs in the thread whose wait reaches the call's time. A call that sets an
    event, writes to a pipe or cancels a scope ends the waits for that event, pipe or scope. If
    several threads wait concurrently, they all advance the same clock, so their order is undefined.

    Without a timeout and scheduled calls, only another thread can end a wait. If no thread does so
    in time, the wait raises `RuntimeError` instead of hanging.

    Args:
        patience: how long to wait for other threads, in real seconds.
    """

    def __init__(self, *, patience: float = 2.0) -> None:
        check_number("FakeClock takes", patience)
        self._now = 0.0
        self._patience = patience
        self._calls: list[tuple[float, Callable[[], object]]] = []
        self._lock = threading.RLock()

    def monotonic(self) -> float:
        """Return the fake time in seconds."""
        return self._now

    def call_at(self, when: float, function: Callable[[], object]) -> None:
        """Schedule a function call; calls for the same time run in the order of scheduling."""
        check_number("FakeClock.call_at takes", when)
        with self._lock:
            insort(self._calls, (when, function), key=itemgetter(0))

    def advance(self, seconds: float) -> None:
        """Advance the time as a sleep would, running scheduled calls."""
        check_number("FakeClock.advance takes", seconds)
        self.wait(lambda _seconds: False, self._now + seconds)

    def wait(self, happened: Callable[[float], bool], until: float) -> None:
        """Wait as `Clock.wait` promises."""
        while not happened(0) and self._now < until:
            with self._lock:
                when = until
                call = None
                if self._calls and self._calls[0][0] <= until:
                    when, call = self._calls.pop(0)
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
                    "this wait can't end: it has no timeout and no deadline, nothing is scheduled "
                    f"on the FakeClock, and no other thread ended it in {self._patience:g} s"
                )


@frozen(eq=False)
class RecordingObserver:
    """An observer that records its calls.

    Each call is a tuple in `events`: `("started", path)`, `("progress", path, message, fraction)`
    or `("finished", path, status)`. `results`, `errors` and `durations` map paths to results,
    exceptions and durations in seconds.
    """

    events: list[tuple[str | float | None, ...]] = field(factory=list)
    results: dict[str, object] = field(factory=dict)
    errors: dict[str, BaseException] = field(factory=dict)
    durations: dict[str, float] = field(factory=dict)

    def started(self, path: str) -> None:
        """Record a start."""
        self.events.append(("started", path))

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """Record progress."""
        self.events.append(("progress", path, message, fraction))

    def finished(
        self,
        path: str,
        status: Status,
        result: object,
        error: BaseException | None,
        seconds: float,
    ) -> None:
        """Record an end."""
        self.events.append(("finished", path, status))
        self.results[path] = result
        self.durations[path] = seconds
        if error is not None:
            self.errors[path] = error
