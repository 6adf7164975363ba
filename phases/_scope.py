"""The scope of a task: all waits use it, so that all of them can be ended.

It also has the clock, which can be injected, and the steps to undo changes, which nothing interrupts.
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
    """A clock that returns the time, and waits until a time or an event."""

    def monotonic(self) -> float:
        """Return the seconds since some fixed moment; called from signal handlers, so it must not block."""

    def wait(self, happened: Callable[[float], bool], until: float) -> None:
        """Wait until something happens or a time is reached.

        Args:
            happened: waits for it for at most so many real seconds, and returns whether it happened; a cancel counts
                too, so call this at least every 50 ms.
            until: the time by this clock; infinite: never.
        """


class SystemClock:
    """The real time.

    Args:
        slice_seconds: how quickly a wait notices a cancel, in seconds.
    """

    def __init__(self, slice_seconds: float = POLL_SECONDS) -> None:
        self._slice_seconds = slice_seconds

    def monotonic(self) -> float:
        """Return the seconds of CLOCK_MONOTONIC, clock_gettime(2)."""
        return time.monotonic()

    def wait(self, happened: Callable[[float], bool], until: float) -> None:
        """Wait as `Clock.wait` promises, in slices."""
        while (left := until - time.monotonic()) > 0:
            if happened(min(left, self._slice_seconds)):
                return


class CancelScope:
    """A scope that ends everything that runs in it: from any thread, from a signal handler, or at a deadline.

    A deadline raises `TimedOut` in this scope, and `Cancelled` in the scopes below, where it can't be confused with
    their own deadlines. As a context manager it turns such a `Cancelled`, when it leaves the block, into `TimedOut`.
    Its `path` is that of its task, like `configure/check-route-overlap`; empty outside a run.

    Args:
        timeout: seconds until its deadline; None: no deadline.
        clock: the source of the time.
    """

    def __init__(self, *, timeout: float | None = None, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.path = ""
        self.tell: Tell = lambda _call: None
        # The ends of the outermost scope first, then of each below it: the deadline, then the cancels. There are no
        # locks, because a signal handler may cancel during any line here; appending to a list is atomic.
        self._line: tuple[list[_End], ...] = (self._ends(timeout),)

    def __enter__(self) -> CancelScope:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, Cancelled) and isinstance(end := self.verdict(), TimedOut):
            raise end from error

    @property
    def is_cancelled(self) -> bool:
        """Return whether `check` would raise, because of a cancel or a deadline."""
        return self.verdict() is not None

    def cancel(self, reason: str) -> None:
        """End the scope and those below it; waits and subprocesses in them end within 100 ms.

        Only the first reason counts. Safe in a signal handler: takes no lock.

        Args:
            reason: the reason in words.
        """
        self._line[-1].append((self.clock.monotonic(), Cancelled(reason)))

    def child(self, *, timeout: float | None = None) -> CancelScope:
        """Return a scope that ends with this one, or earlier; this one keeps no reference to it.

        Args:
            timeout: seconds until the child's own deadline.
        """
        return self._with(_line=(*self._line, self._ends(timeout)))

    def shield(self) -> CancelScope:
        """Return a scope that no cancel or deadline of this one reaches, for rollback: `with … as inner`."""
        return self._with(_line=(self._ends(None),))

    def at(self, path: str, tell: Tell | None = None) -> CancelScope:
        """Return this same scope for a task of a run; used by `run` and `run_child`."""
        return self._with(path=path, tell=tell or self.tell)

    def within(self, outer: CancelScope) -> CancelScope:
        """Return a scope that also ends with another one, and is otherwise this one; used by `run_async`."""
        return self._with(_line=outer._line + self._line)

    def verdict(self) -> Cancelled | TimedOut | None:
        """Return the exception that `check` would raise."""
        now = self.clock.monotonic()
        passed = [(when, end, ends) for ends in self._line for when, end in ends[:2] if when <= now]
        if not passed:
            return None
        _, end, ends = min(passed, key=itemgetter(0))
        if isinstance(end, TimedOut) and ends is not self._line[-1]:
            return Cancelled(f"an outer deadline passed ({end.seconds:g} s)")
        return copy(end)

    def check(self) -> None:
        """Do nothing unless the scope has ended; after that, every call raises the same exception.

        Raises:
            Cancelled: the scope, or one above it, was cancelled; or the deadline of one above passed.
            TimedOut: the scope's own deadline passed.
        """
        if error := self.verdict():
            raise error

    def progress(self, message: str, fraction: float | None = None) -> None:
        """Report the task's progress to the run's observer; outside a run there is no observer.

        Args:
            message: what the task does or waits for.
            fraction: the completed fraction, 0…1; None: unknown.
        """
        self.tell(lambda observer: observer.progress(self.path, message, fraction))

    def wait(self, what: float | threading.Event | HasFileno) -> None:
        """Wait for something to happen; a task should wait only with this method.

        The scope limits the time: `scope.child(timeout=5).wait(event)`.

        Args:
            what: a number of seconds; an event, until it is set; or a file, until a read wouldn't block.

        Raises:
            Cancelled: within 100 ms of the cancel, even if the event has happened before.
            TimedOut: the scope's own deadline passed, with the same delay.
            TypeError: it isn't possible to wait for this object.
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
        """Run a program to its end, in its own process group.

        On a cancel or deadline the group gets SIGTERM and 50 ms later SIGKILL. A child that has created its own session
        or group (setsid) isn't in it any more, and lives on. So do processes that the program leaves running when it
        exits by itself; their output from then on is lost. The program takes real time, never a fake clock's. All
        output is kept in memory. A Ctrl-C that Python itself handles ends the program too. The calling program's own
        signal handler should cancel: if it raises just as the subprocess starts, the subprocess lives on.

        Args:
            argv: the program and its arguments.
            input: text for its standard input; None: /dev/null.
            env: its whole environment; None: ours.
            check: whether a return code other than 0 is an error.

        Returns:
            Its return code (negative: the signal that ended it), standard output and standard error, both decoded as
            UTF-8 with undecodable bytes replaced.

        Raises:
            Cancelled: within 100 ms of the cancel; by then the whole group has been killed.
            TimedOut: the scope's own deadline passed; the group has been killed too.
            subprocess.CalledProcessError: it failed, and ``check`` is true; a note has its standard error.
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
    """The steps to undo changes, the last one first.

    Each step is pushed *before* its change is made, so it must do no harm if the change never happened.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []
        self._interrupted: Callable[[], None] | None = None

    def push(self, step: Callable[[], None]) -> None:
        """Add a step."""
        self._steps.append(step)

    def roll_back(self) -> list[str]:
        """Run every step, even after one has failed, or if a signal handler raises in a step or between two.

        Returns:
            The failures in words.
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
                self._interrupted = step  # run it once more
                return
        self._steps.pop()


def all_or_nothing() -> AbstractContextManager[Undo]:
    """Undo the changes if the block fails or is cancelled; steps that fail are noted on the error.

    A Ctrl-C that Python itself handles ends the block, and then waits until everything is undone. If the program's own
    signal handler raises just before the first step, no step runs: such a handler should cancel a scope instead.
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
    """Sleep while waiting only for the time."""
    time.sleep(seconds)
    return False


def _is_readable(fd: int, seconds: float) -> bool:
    """Return whether a read of a file wouldn't block: there is data, its end, or an error that the read will raise."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(math.ceil(seconds * 1000)))
