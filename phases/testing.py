"""For tests of tasks: a clock that needs no time, and tasks and an observer that record."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from attrs import field, frozen

from phases._run import check_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from phases._errors import Status
    from phases._scope import CancelScope

T_co = TypeVar("T_co", covariant=True)

_REAL_POLL_SECONDS = 0.002


class FakeClock:
    """Time that advances only in waits, at once: to the end of the wait or to the next scheduled call.

    A scheduled call runs in the thread whose wait reaches its time, and may set an event, write to a pipe
    or cancel a scope: the wait for that then ends at that moment. Threads that wait at the same time each
    advance the same time, so which of them comes first is not determined.

    A wait without an end, for which nothing is scheduled, can only be ended by another thread. That gets
    some real time to do so; then the wait raises `RuntimeError` rather than hang.

    Args:
        start: the time at the start, in seconds.
        patience: real seconds that other threads get.
    """

    def __init__(self, start: float = 0.0, *, patience: float = 2.0) -> None:
        self._now = start
        self._patience = patience
        self._calls: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._lock = threading.RLock()

    def monotonic(self) -> float:
        """Give the fake time in seconds."""
        return self._now

    def call_at(self, when: float, function: Callable[[], object]) -> None:
        """Call a function as soon as a wait reaches this time; equal times in the order of these calls."""
        with self._lock:
            heapq.heappush(self._calls, (when, next(self._numbers), function))

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Call a function as soon as a wait reaches the time so many seconds from now."""
        self.call_at(self._now + seconds, function)

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass, with the calls scheduled for them, as if somebody had slept."""
        self.wait(lambda _seconds: False, seconds, lambda: False)

    def wait(self, happened: Callable[[float], bool], seconds: float | None, stopped: Callable[[], bool]) -> bool:
        """Wait as `Clock.wait` promises."""
        end = None if seconds is None else self._now + seconds
        while not happened(0):
            if stopped() or (end is not None and self._now >= end):
                return False
            if not self._jump(end):
                self._wait_for_others(lambda: happened(0) or stopped())
        return True

    def _jump(self, end: float | None) -> bool:
        """Go to the next call or to the end, whichever is first; False if there is neither."""
        with self._lock:
            if self._calls and (end is None or self._calls[0][0] <= end):
                when, _, function = heapq.heappop(self._calls)
            elif end is not None:
                when, function = end, _nothing
            else:
                return False
            self._now = max(self._now, when)
        function()
        return True

    def _wait_for_others(self, happened: Callable[[], bool]) -> None:
        end = time.monotonic() + self._patience
        while not (happened() or self._calls):
            if time.monotonic() >= end:
                raise RuntimeError(
                    "this wait can't end: it has no timeout and no deadline, nothing is scheduled on the "
                    f"FakeClock, and no other thread ended it in {self._patience:g} s"
                )
            time.sleep(_REAL_POLL_SECONDS)


def _nothing() -> None:
    """Stand for the call at the end of a wait."""


@frozen(eq=False)
class Returning(Generic[T_co]):
    """A task that returns a value; `calls` gets its path each time it is done.

    Give several tasks the same list as `calls` to see their order.
    """

    name: str = field(validator=check_name)
    result: T_co
    calls: list[str] = field(factory=list, kw_only=True)

    def do(self, scope: CancelScope) -> T_co:
        """Return the value."""
        self.calls.append(scope.path)
        return self.result


@frozen(eq=False)
class Raising:
    """A task that raises an exception; `calls` gets its path each time it is done."""

    name: str = field(validator=check_name)
    error: BaseException
    calls: list[str] = field(factory=list, kw_only=True)

    def do(self, scope: CancelScope) -> NoReturn:
        """Raise the exception."""
        self.calls.append(scope.path)
        raise self.error


@frozen(eq=False)
class Blocking:
    """A task that waits until its scope ends; `started` is set and `calls` gets its path as it begins."""

    name: str = field(validator=check_name)
    calls: list[str] = field(factory=list, kw_only=True)
    started: threading.Event = field(factory=threading.Event, kw_only=True)

    def do(self, scope: CancelScope) -> NoReturn:
        """Wait for the end of the scope, which raises."""
        self.calls.append(scope.path)
        self.started.set()
        while True:
            scope.wait(math.inf)


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
