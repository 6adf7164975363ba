"""The scope that a task works in: everything that waits goes through it, so that everything can be ended.

Besides: the time that it goes by, which can be injected.
"""

from __future__ import annotations

import errno
import math
import os
import select
import threading
import time
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Protocol

from attrs import field, frozen

from phases._compat import add_note
from phases._errors import POLL_SECONDS, Cancelled, TimedOut

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Self  # noqa: UP035 - Python 3.10

    from phases._errors import Observer


class Clock(Protocol):
    """Tells the time and waits for it, and for what may happen meanwhile."""

    def monotonic(self) -> float:
        """Give seconds since some fixed moment; called from signal handlers, so it must not block."""

    def wait(self, happened: Callable[[float], bool], seconds: float | None, stopped: Callable[[], bool]) -> bool:
        """Wait until something happens, the time is over or the wait is stopped.

        Args:
            happened: waits at most so many real seconds for it, and tells whether it happened.
            seconds: the longest wait; None: no end.
            stopped: tells whether the wait is to end; to be asked at least every 50 ms.

        Returns:
            Whether it happened.
        """


class SystemClock:
    """The real time."""

    def monotonic(self) -> float:
        """Give the seconds of CLOCK_MONOTONIC, clock_gettime(2)."""
        return time.monotonic()

    def wait(self, happened: Callable[[float], bool], seconds: float | None, stopped: Callable[[], bool]) -> bool:
        """Wait in slices of `POLL_SECONDS`."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            left = max(0.0, end - time.monotonic())
            if happened(min(left, POLL_SECONDS)):
                return True
            if left == 0 or stopped():
                return False


SYSTEM_CLOCK = SystemClock()


def sleep(seconds: float) -> bool:
    """Sleep, while nothing is waited for."""
    time.sleep(seconds)
    return False


def is_readable(fd: int, seconds: float) -> bool:
    """Tell whether a read of a file wouldn't block: there is data, the end of the file or an error.

    Args:
        fd: its file descriptor.
        seconds: how long to wait for that.

    Raises:
        OSError: it is closed (EBADF).
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    events = [event for _, event in poll.poll(math.ceil(seconds * 1000))]
    if any(event & select.POLLNVAL for event in events):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), f"fd {fd}")
    return bool(events)


def seconds_or_never(seconds: float | None) -> float | None:
    """Give a time span that can be counted with: negative is 0, infinite is None.

    Raises:
        ValueError: it is not a number.
    """
    if seconds is None or seconds == math.inf:
        return None
    if math.isnan(seconds):
        raise ValueError("a number of seconds can't be NaN")
    return max(0.0, seconds)


@frozen(eq=False)
class State:
    """What can end a scope. Without locks, as a signal handler may cancel in the midst of any line of it.

    A cancel is an append to a list, which is atomic, and a scope looks up to those above it: so a parent knows
    nothing of its children and can't keep them alive.
    """

    above: tuple[State, ...] = ()
    deadline: float | None = None
    seconds: float = 0.0
    cancels: list[tuple[float, str]] = field(factory=list)

    @classmethod
    def below(cls, above: tuple[State, ...], timeout: float | None, clock: Clock) -> State:
        """Make a state that ends with the innermost of these, or after so many seconds."""
        seconds = seconds_or_never(timeout)
        return cls(above) if seconds is None else cls(above, clock.monotonic() + seconds, seconds)

    @property
    def line(self) -> tuple[State, ...]:
        """All states whose end is this one's, the outermost first."""
        return (*self.above, self)

    def end(self, now: float) -> End | None:
        """Give what ended this first, if anything had by now."""
        ends = []
        for state in self.line:
            if state.deadline is not None and state.deadline <= now:
                ends.append(End(state.deadline, state))
            if state.cancels:
                when, reason = state.cancels[0]
                ends.append(End(when, state, reason))
        return min(ends, key=lambda end: end.when, default=None)


@frozen(eq=False)
class End:
    """When, where and why a state ended; without a reason it was the deadline."""

    when: float
    state: State
    reason: str | None = None

    def is_deadline_of(self, state: State) -> bool:
        """Tell whether it was this very state's deadline."""
        return self.reason is None and self.state is state

    def error_in(self, state: State) -> Cancelled | TimedOut:
        """Give what a checkpoint in this state raises."""
        if self.is_deadline_of(state):
            return TimedOut(state.seconds)
        if self.reason is None:
            return Cancelled(f"a deadline further out passed ({self.state.seconds:g} s)")
        return Cancelled(self.reason)


class HasFileno(Protocol):
    """A file, socket or the like."""

    def fileno(self) -> int:
        """Give its file descriptor."""


class CancelScope:
    """Ends what runs in it: from any thread, from a signal handler, or at a deadline.

    A deadline is `TimedOut` on this scope, and `Cancelled` on those below: nobody there can take it for a
    deadline of theirs. As a context manager it turns such a `Cancelled`, on its way out, into `TimedOut`.

    Args:
        timeout: seconds until its deadline; None: it has none.
        clock: the time that deadlines and waits go by.
    """

    def __init__(self, *, timeout: float | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.path = ""
        """Of the task that it was given to, as `configure/check-route-overlap`; empty outside a run."""
        self.reporter: Observer | None = None
        self._state = State.below((), timeout, clock)

    def __repr__(self) -> str:
        state = "open" if (error := self.verdict()) is None else repr(error)
        return f"<CancelScope {self.path or '-'}: {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, Cancelled) and (end := self._end()) and end.is_deadline_of(self._state):
            raise end.error_in(self._state) from error

    @property
    def is_cancelled(self) -> bool:
        """Whether `check` would raise, be it for a cancel or a deadline."""
        return self._end() is not None

    def cancel(self, reason: str) -> None:
        """End the scope and those below it; waits and subprocesses in them end within 100 ms.

        The first reason is kept. Safe in a signal handler: takes no lock.

        Args:
            reason: why, in words.
        """
        if not self._state.cancels:
            self._state.cancels.append((self.clock.monotonic(), reason))

    def child(self, *, timeout: float | None = None) -> CancelScope:
        """Make a scope that ends with this one, or before it; this one keeps no reference to it.

        Args:
            timeout: seconds until the child's own deadline.
        """
        return self._with(_state=State.below(self._state.line, timeout, self.clock))

    def shield(self) -> CancelScope:
        """Make a scope that no cancel and no deadline of this one reaches, for rollback: `with … as inner`."""
        return self._with(_state=State.below((), None, self.clock))

    def at(self, path: str, reporter: Observer | None) -> CancelScope:
        """Give this very scope to a task of a run; used by `run` and `run_child`."""
        return self._with(path=path, reporter=reporter)

    def verdict(self) -> Cancelled | TimedOut | None:
        """Give what `check` would raise."""
        end = self._end()
        return None if end is None else end.error_in(self._state)

    def check(self) -> None:
        """Do nothing unless the scope has ended; once it has, every call raises the same.

        Raises:
            Cancelled: the scope, or one above it, was cancelled; or a deadline of one above passed.
            TimedOut: the scope's own deadline passed.
        """
        if error := self.verdict():
            raise error

    def remaining(self) -> float | None:
        """Give the seconds to the nearest deadline, its own or one above; None if there is none."""
        deadline = self._deadline()
        return None if deadline is None else max(0.0, deadline - self.clock.monotonic())

    def progress(self, message: str, fraction: float | None = None) -> None:
        """Tell the run's observer how the task gets on; outside a run nobody hears it.

        Args:
            message: what is done or waited for.
            fraction: how much is done, 0…1; None: nobody knows.
        """
        if self.reporter is not None:
            self.reporter.progress(self.path, message, fraction)

    def wait(self, what: float | threading.Event | HasFileno, *, timeout: float | None = None) -> bool:
        """Wait for something to happen; the only way in which a task should wait.

        Args:
            what: a number of seconds; an event, until it is set; or a file, until a read wouldn't block.
            timeout: the longest wait in seconds; None: no end.

        Returns:
            True when it happened, False if the timeout came first.

        Raises:
            Cancelled: within 100 ms of the cancel, even if it has happened before.
            TimedOut: likewise the scope's own deadline.
            TypeError: it is nothing that can be waited for.
        """
        limit = seconds_or_never(timeout)
        if isinstance(what, (int, float)):
            span = seconds_or_never(what)
            shorter = _shortest(span, limit)
            self._until(sleep, shorter)
            return shorter == span
        if isinstance(what, threading.Event):
            return self._until(what.wait, limit)
        if not hasattr(what, "fileno"):
            raise TypeError(f"can wait for seconds, an Event or a file, not for {what!r}")
        return self._until(partial(is_readable, what.fileno()), limit)

    def run(
        self,
        argv: Sequence[str],
        *,
        input: str | None = None,  # noqa: A002 - as subprocess.run
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, in a process group of its own.

        On a cancel or deadline the group gets SIGTERM and 50 ms later SIGKILL. What the program leaves
        running when it exits by itself lives on; its output from then on is lost. It takes real time,
        whatever the clock: what is left by the clock when it starts.

        Args:
            argv: the program and its arguments.
            input: text for its standard input; None: /dev/null.
            env: its whole environment; None: ours.
            cwd: its working directory; None: ours.
            timeout: the seconds that it may take; None: those of the scope.
            check: whether a return code other than 0 is an error.

        Returns:
            Its return code (negative: the signal that ended it), standard output and standard error, both
            UTF-8 with undecodable bytes replaced.

        Raises:
            Cancelled: within 100 ms of the cancel; by then the whole group has been killed.
            TimedOut: likewise the timeout, or the scope's own deadline.
            subprocess.CalledProcessError: it failed, and ``check``; what it wrote to standard error is noted on it.
            OSError: it can't be started.
        """
        from phases._process import run_process

        self.check()
        limit, left = seconds_or_never(timeout), self.remaining()
        seconds = _shortest(limit, left)
        done = run_process(argv, input=input, env=env, cwd=cwd, seconds=seconds, stopped=lambda: self.is_cancelled)
        if done is None:
            import shlex

            raise add_note(self._late(limit if limit == seconds else None), f"while it ran {shlex.join(argv)}")
        if check and done.returncode != 0:
            import subprocess

            error = subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
            raise add_note(error, f"it said: {done.stderr.strip() or '(nothing)'}")
        return done

    def _with(self, **changed: object) -> CancelScope:
        scope = copy(self)
        vars(scope).update(changed)
        return scope

    def _end(self) -> End | None:
        return self._state.end(self.clock.monotonic())

    def _deadline(self) -> float | None:
        deadlines = [state.deadline for state in self._state.line if state.deadline is not None]
        return min(deadlines, default=None)

    def _late(self, limit: float | None) -> Cancelled | TimedOut:
        """Give what to raise for a process that was ended: by the scope, or after `limit` seconds."""
        # The process went by real time: by the clock the deadline may be yet to come.
        deadline = self._deadline() if limit is None else None
        end = self._end() or (None if deadline is None else self._state.end(deadline))
        return TimedOut(limit or 0.0) if end is None else end.error_in(self._state)

    def _until(self, happened: Callable[[float], bool], seconds: float | None) -> bool:
        end = None if seconds is None else self.clock.monotonic() + seconds
        while True:
            self.check()
            left = None if end is None else max(0.0, end - self.clock.monotonic())
            if self.clock.wait(happened, _shortest(left, self.remaining()), lambda: self.is_cancelled):
                return True
            if end is not None and self.clock.monotonic() >= end:
                self.check()
                return False


def _shortest(*spans: float | None) -> float | None:
    return min((span for span in spans if span is not None), default=None)
