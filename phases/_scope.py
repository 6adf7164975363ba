"""The scope of a task, which all waits use, so that all of them can be ended.

The module also has the clock, which can be injected, and the steps that undo changes, which nothing interrupts.
"""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

from phases._errors import POLL_SECONDS, Cancelled, Tell, TimedOut, add_note
from phases._interrupts import begin, end, guarded

if TYPE_CHECKING:
    import subprocess

    from _typeshed import HasFileno

    _End = tuple[float, Cancelled | TimedOut]


class Clock(Protocol):
    """A clock, which returns the time and waits for a time or an event."""

    def monotonic(self) -> float:
        """Return the seconds since a fixed moment, without blocking, because signal handlers call this."""

    def wait(self, happened: Callable[[float], bool], until: float) -> None:
        """Wait until something happens or a time is reached.

        Args:
            happened: a function that waits for at most the given number of real seconds, and returns whether the thing
                has happened. It also reports a cancellation, so it must be called at least every 50 ms.
            until: the time by this clock; if it is infinite, the wait has no limit.
        """


class SystemClock:
    """A clock that returns the real time.

    Args:
        slice_seconds: how quickly a wait notices a cancellation, in seconds.
    """

    def __init__(self, slice_seconds: float = POLL_SECONDS) -> None:
        self._slice_seconds = slice_seconds

    def monotonic(self) -> float:
        """Return the seconds of CLOCK_MONOTONIC, clock_gettime(2)."""
        return time.monotonic()

    def wait(self, happened: Callable[[float], bool], until: float) -> None:
        """Wait as `Clock.wait` promises, in short slices."""
        while (left := until - time.monotonic()) > 0:
            if happened(min(left, self._slice_seconds)):
                return


class CancelScope:
    """A scope that can end everything that runs in it, from any thread, from a signal handler, or at a deadline.

    A deadline raises `TimedOut` in this scope. In the scopes below it raises `Cancelled`, which can't be confused with
    their own deadlines. As a context manager, the scope turns such a `Cancelled` into `TimedOut` when it leaves the
    block. The scope's `path` is that of its task, such as `configure/check-route-overlap`, and is empty outside a run.

    Args:
        timeout: the number of seconds until the deadline, or None for no deadline.
        clock: the source of the time.
    """

    def __init__(self, *, timeout: float | None = None, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.path = ""
        self.tell: Tell = lambda _call: None
        # The ends of each scope, starting with the outermost: first its deadline, then its cancellations. There are no
        # locks, because a signal handler may cancel during any line here. Appending to a list is atomic.
        self._line: tuple[list[_End], ...] = (self._ends(timeout),)

    def __enter__(self) -> CancelScope:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, Cancelled) and isinstance(end := self.verdict(), TimedOut):
            raise end from error

    @property
    def is_cancelled(self) -> bool:
        """Return whether `check` would raise an exception, because of a cancellation or a deadline."""
        return self.verdict() is not None

    def cancel(self, reason: str) -> None:
        """End the scope and those below it; waits and subprocesses in them end within 100 ms.

        Only the first reason counts. The method takes no lock, so a signal handler can safely call it.

        Args:
            reason: the reason as text.
        """
        self._line[-1].append((self.clock.monotonic(), Cancelled(reason)))

    def child(self, *, timeout: float | None = None) -> CancelScope:
        """Return a scope that ends with this one or earlier; this scope keeps no reference to it.

        Args:
            timeout: the number of seconds until the child's own deadline.
        """
        return self._with(_line=(*self._line, self._ends(timeout)))

    def shield(self) -> CancelScope:
        """Return a scope that isn't affected when this one ends, for use in a rollback."""
        return self._with(_line=(self._ends(None),))

    def at(self, path: str, tell: Tell | None = None) -> CancelScope:
        """Return this scope for a task of a run, with the task's path; used by `run` and `run_child`."""
        return self._with(path=path, tell=tell or self.tell)

    def within(self, outer: CancelScope) -> CancelScope:
        """Return a scope that is like this one but also ends with another scope; used by `run_async`."""
        return self._with(_line=outer._line + self._line)

    def verdict(self) -> Cancelled | TimedOut | None:
        """Return the exception that `check` would raise, or None if the scope hasn't ended."""
        now = self.clock.monotonic()
        passed = [(when, end, ends) for ends in self._line for when, end in ends[:2] if when <= now]
        if not passed:
            return None
        _, end, ends = min(passed, key=itemgetter(0))
        if isinstance(end, TimedOut) and ends is not self._line[-1]:
            return Cancelled(f"an outer deadline passed ({end.seconds:g} s)")
        return copy(end)

    def check(self) -> None:
        """Raise an exception if the scope has ended; every later call raises the same exception.

        Raises:
            Cancelled: this scope or an outer one was cancelled, or the deadline of an outer one passed.
            TimedOut: the scope's own deadline passed.
        """
        if error := self.verdict():
            raise error

    def progress(self, message: str, fraction: float | None = None) -> None:
        """Report the task's progress to the observer of the run; outside a run there is none.

        Args:
            message: what the task does or waits for.
            fraction: the completed fraction from 0 to 1, or None if it is unknown.
        """
        self.tell(lambda observer: observer.progress(self.path, message, fraction))

    def wait(self, what: float | threading.Event | HasFileno) -> None:
        """Wait for something to happen; a task should wait only with this method.

        To limit the time, use a child scope: `scope.child(timeout=5).wait(event)`.

        Args:
            what: a number of seconds; an event, which is waited for until it is set; or a file, which is waited for
                until a read wouldn't block.

        Raises:
            Cancelled: the scope was cancelled. This is raised within 100 ms, even if the event has already happened.
            TimedOut: the scope's own deadline passed. This is raised within 100 ms, too.
            TypeError: the object is of a kind that can't be waited for.
        """
        until = math.inf
        happened: Callable[[float], bool] = _sleep
        if isinstance(what, (int, float)):
            until = self.clock.monotonic() + what
        elif isinstance(what, threading.Event):
            happened = what.wait
        elif hasattr(what, "fileno"):
            happened = partial(_is_readable, what.fileno())
        else:
            raise TypeError(f"can wait for seconds, an Event or a file, not for {what!r}")
        self.check()
        until = min(until, *(ends[0][0] for ends in self._line))
        self.clock.wait(lambda seconds: self.is_cancelled or happened(seconds), until)
        self.check()

    def run(
        self,
        argv: Sequence[str],
        *,
        input: str | None = None,  # noqa: A002 - as subprocess.run
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program until it ends, in its own process group.

        On a cancellation or deadline, the group gets SIGTERM, and SIGKILL 50 ms later. A child that has created its own
        session or group (setsid) is no longer in the group and survives. So do processes that are still running when
        the program exits on its own; their output from then on is lost. The program takes real time, whatever the
        clock. All output is kept in memory. A Ctrl-C that Python itself handles also ends the program. A signal handler
        of the calling program should cancel a scope. If it raises an exception just when the subprocess starts, the
        subprocess survives.

        Args:
            argv: the program and its arguments.
            input: the text for the standard input, or None for /dev/null.
            env: the whole environment; by default that of this process.
            check: whether a return code other than 0 is an error.

        Returns:
            The return code (if it is negative, it is the signal that ended the program), standard output and standard
            error. Both are decoded as UTF-8, with undecodable bytes replaced.

        Raises:
            Cancelled: the scope was cancelled. This is raised within 100 ms, when the whole group has been killed.
            TimedOut: the scope's own deadline passed. By then the whole group has been killed.
            subprocess.CalledProcessError: the program failed and ``check`` is true. A note has its standard error.
            OSError: the program can't be started.
        """
        from phases._process import run_process

        self.check()
        return run_process(argv, input, env, check, self.check)

    def _ends(self, timeout: float | None) -> list[_End]:
        seconds = math.inf if timeout is None else max(0.0, timeout)
        return [(self.clock.monotonic() + seconds, TimedOut(seconds))]

    def _with(self, **changed: object) -> CancelScope:
        scope = copy(self)
        vars(scope).update(changed)
        return scope


class Undo:
    """The steps that undo changes; the last step runs first.

    Each step is pushed *before* its change is made, so it must do no harm if the change was never made.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []
        self._interrupted: Callable[[], None] | None = None

    def push(self, step: Callable[[], None]) -> None:
        """Add a step, which will run before all earlier ones."""
        self._steps.append(step)

    def roll_back(self) -> list[str]:
        """Run every step, even if a step fails or a signal handler raises an exception in a step or between two.

        Returns:
            A text for each failure.
        """
        problems: list[str] = []
        while True:
            try:
                while self._steps:
                    self._take_last(problems)
                return problems
            except BaseException as error:  # noqa: BLE001 - between two steps: the next step must still run
                problems.append(str(error) or repr(error))

    def _take_last(self, problems: list[str]) -> None:
        step = self._steps[-1]
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - whatever the error is, the other steps must run
            problems.append(str(error) or repr(error))
            if step is not self._interrupted and not isinstance(error, Exception):
                self._interrupted = step  # the step runs once more
                return
        self._steps.pop()


def all_or_nothing() -> AbstractContextManager[Undo]:
    """Undo the changes if the block fails or is cancelled; if a step fails, add a note to the block's exception.

    A Ctrl-C that Python itself handles ends the block, and then waits until everything is undone. If the program's own
    signal handler raises an exception just before the first step, no step runs. Such a handler should cancel a scope
    instead.
    """
    return _AllOrNothing()


class _AllOrNothing:
    def __init__(self) -> None:
        self._undo = Undo()

    @guarded
    def __enter__(self) -> Undo:
        self._has_begun = begin()
        return self._undo

    @guarded
    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None:
            for problem in self._undo.roll_back():
                add_note(error, f"while putting things back: {problem}")
        end(self._has_begun)


def _sleep(seconds: float) -> bool:
    """Sleep; used by a wait for which only the time counts."""
    time.sleep(seconds)
    return False


def _is_readable(fd: int, seconds: float) -> bool:
    """Return whether a read of a file wouldn't block, because there is data, the end of the file, or an error."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(math.ceil(seconds * 1000)))
