"""The scope that a task works in: everything that waits goes through it, so that everything can be ended."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self

from attrs import frozen

from phases._clock import SYSTEM_CLOCK, Clock, is_readable, seconds_or_never, sleep
from phases._errors import Cancelled, TimedOut, add_note
from phases._observe import Context
from phases._state import State

if TYPE_CHECKING:
    import os
    import subprocess
    from collections.abc import Callable, Mapping, Sequence

    from phases._state import End


class HasFileno(Protocol):
    """A file, socket or the like."""

    def fileno(self) -> int:
        """Give its file descriptor."""


@frozen(init=False, eq=False, repr=False)
class CancelScope:
    """Ends what runs in it: from any thread, from a signal handler, or at a deadline.

    A deadline is `TimedOut` on this scope, and `Cancelled` on those below: nobody there can take it for a
    deadline of theirs. As a context manager it turns such a `Cancelled`, on its way out, into `TimedOut`.

    Args:
        timeout: seconds until its deadline; None: it has none.
        clock: the time that deadlines and waits go by.
    """

    clock: Clock
    """The time that deadlines and waits go by."""
    context: Context
    """The run that the scope serves; for tasks that are made of tasks."""
    _state: State

    def __init__(self, *, timeout: float | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.__attrs_init__(clock, Context(), State.below((), timeout, clock))

    def __repr__(self) -> str:
        state = "open" if (error := self.verdict()) is None else repr(error)
        return f"<CancelScope {self.path or '-'}: {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, Cancelled) and (end := self._end()) and end.is_deadline_of(self._state):
            raise end.error_in(self._state) from error

    @property
    def path(self) -> str:
        """The path of the task that it was given to, as `configure/check-route-overlap`; empty outside a run."""
        return self.context.path

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
        return self._with(self.context, State.below(self._state.line, timeout, self.clock))

    def shield(self) -> CancelScope:
        """Make a scope that no cancel and no deadline of this one reaches, for rollback: `with … as inner`."""
        return self._with(self.context, State.below((), None, self.clock))

    def within(self, context: Context) -> CancelScope:
        """Give this very scope under another context; used by `run` and `run_child`."""
        return self._with(context, self._state)

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
        self.context.reporter.progress(self.path, message, fraction)

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
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, whatever its return code, in a process group of its own.

        On a cancel or deadline the group gets SIGTERM and 50 ms later SIGKILL. What the program leaves
        running when it exits by itself lives on; its output from then on is lost. It takes real time,
        whatever the clock: what is left by the clock when it starts.

        Args:
            argv: the program and its arguments.
            input: text for its standard input; None: /dev/null.
            env: its whole environment; None: ours.
            cwd: its working directory; None: ours.
            timeout: the seconds that it may take; None: those of the scope.

        Returns:
            Its return code (negative: the signal that ended it), standard output and standard error, both
            UTF-8 with undecodable bytes replaced.

        Raises:
            Cancelled: within 100 ms of the cancel; by then the whole group has been killed.
            TimedOut: likewise the timeout, or the scope's own deadline.
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
        return done

    def _with(self, context: Context, state: State) -> CancelScope:
        scope = CancelScope.__new__(CancelScope)
        scope.__attrs_init__(self.clock, context, state)
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
