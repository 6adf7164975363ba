"""Tasks that record their path when they run, an observer that acts when one waits, and handlers of
signals.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, NoReturn, TypeVar

from attrs import field, frozen

from phases import CancelScope
from phases.testing import RecordingObserver

T_co = TypeVar("T_co", covariant=True)


@contextmanager
def handling(number: signal.Signals, act: Callable[[], object]) -> Iterator[None]:
    """Call a function for each of these signals."""
    before = signal.signal(number, lambda _number, _frame: act())
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def meanwhile(action: Callable[[], object]) -> Iterator[None]:
    """Call a function in another thread, and wait for its end."""
    thread = threading.Thread(target=action)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@frozen(eq=False)
class Returning(Generic[T_co]):
    """A task that returns a value and appends its path to `calls` each time it runs.

    To see the order in which several tasks run, pass the same list to all of them.
    """

    name: str
    result: T_co
    calls: list[str] = field(factory=list, kw_only=True)

    def do(self, scope: CancelScope) -> T_co:
        self.calls.append(scope.path)
        return self.result


@frozen(eq=False)
class Raising:
    """A task that raises an exception and appends its path to `calls` each time it runs."""

    name: str
    error: BaseException
    calls: list[str] = field(factory=list, kw_only=True)

    def do(self, scope: CancelScope) -> NoReturn:
        self.calls.append(scope.path)
        raise self.error


@frozen(eq=False)
class Blocking:
    """A task that blocks until its scope ends, and then raises `error` if there is one.

    When it starts, it sets `started` and appends its path to `calls`.
    """

    name: str
    error: BaseException | None = None
    calls: list[str] = field(factory=list, kw_only=True)
    started: threading.Event = field(factory=threading.Event, kw_only=True)

    def do(self, scope: CancelScope) -> NoReturn:
        self.calls.append(scope.path)
        self.started.set()
        try:
            while True:
                scope.wait(math.inf)
        finally:
            if self.error is not None:
                raise self.error


@frozen(eq=False)
class OnProgress(RecordingObserver):
    """An observer that acts once a task reports that it is waiting, and records its words."""

    act: Callable[[], object] = field(kw_only=True)
    messages: list[str] = field(factory=list, kw_only=True)

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        self.messages.append(message)
        if len(self.messages) == 1:
            self.act()
