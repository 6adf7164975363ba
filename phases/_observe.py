"""Who is told what happens in a run, and how: one call at a time, and no error lost."""

from __future__ import annotations

from enum import StrEnum
from threading import RLock
from typing import TYPE_CHECKING, Protocol

from attrs import evolve, field, frozen

from phases._errors import Cancelled, TimedOut, add_note, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Status(StrEnum):
    """How a task ended."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"

    @classmethod
    def of(cls, error: BaseException) -> Status:
        """Give the status of a task that raised this."""
        match error:
            case Cancelled():
                return cls.CANCELLED
            case TimedOut():
                return cls.TIMED_OUT
            case _:
                return cls.FAILED


class Observer(Protocol):
    """Is told what happens in a run; one call at a time, from whichever thread a task runs in."""

    def started(self, path: str) -> None:
        """A task starts; its path is the names from the root of the tree, joined by slashes."""

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """A task got on: what it does or waits for, and how much is done (0…1) if that is known."""

    def finished(self, path: str, status: Status, error: BaseException | None, seconds: float) -> None:
        """A task ended after so many seconds, with this exception unless the status is `ok`."""


class Reporter:
    """Tells several observers, one call at a time; keeps the first error of each for the end of the run."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)
        self._failures: dict[int, Exception] = {}
        # Reentrant: an observer, or a signal handler in its midst, may report progress itself.
        self._lock = RLock()

    def started(self, path: str) -> None:
        """Tell that a task starts."""
        self._tell(lambda observer: observer.started(path))

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """Tell that a task got on."""
        self._tell(lambda observer: observer.progress(path, message, fraction))

    def finished(self, path: str, status: Status, error: BaseException | None, seconds: float) -> None:
        """Tell that a task ended."""
        self._tell(lambda observer: observer.finished(path, status, error, seconds))

    def add_failures_to(self, error: BaseException) -> None:
        """Note the observers' errors on the exception that ends the run."""
        for failure in self._failures.values():
            add_note(error, f"besides, an observer or log handler of the run failed: {text_of(failure)}")

    def raise_failures(self) -> None:
        """Raise the observers' errors, if there are any: one as it is, several as a group."""
        failures = list(self._failures.values())
        for failure in failures:
            add_note(failure, "raised by an observer or log handler; the tasks of the run ended well")
        if len(failures) > 1:
            raise ExceptionGroup("observers of the run failed", failures)
        if failures:
            raise failures[0]

    def _tell(self, call: Callable[[Observer], None]) -> None:
        with self._lock:
            for index, observer in enumerate(self._observers):
                try:
                    call(observer)
                except Exception as error:  # noqa: BLE001 - kept, and raised at the end of the run
                    self._failures.setdefault(index, error)


@frozen
class Context:
    """What a scope knows of the run it serves: the task's path, and whom to tell."""

    path: str = ""
    reporter: Reporter = field(factory=Reporter)

    def at(self, name: str) -> Context:
        """Give the context of a task of this name below this one."""
        return evolve(self, path=f"{self.path}/{name}" if self.path else name)
