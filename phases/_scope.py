"""Cancel scopes. Tasks only wait through a scope, so every wait can be cancelled.

The module also contains clocks, which tests can replace, and rollbacks, which can't be interrupted.
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

from phases._checks import check_clock, check_number, check_plain, check_timeout, finished
from phases._errors import (
    POLL_SECONDS,
    ROLLBACK_NOTE,
    Cancelled,
    Tell,
    TimedOut,
    add_note,
    add_path_note,
    paths_of,
    rollback_notes,
)
from phases._interrupts import begin, end, guarded

if TYPE_CHECKING:
    import subprocess

    from _typeshed import HasFileno

    _End = tuple[float, Cancelled | TimedOut]


class Clock(Protocol):
    """The protocol for clocks."""

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary epoch.

        Signal handlers call this method, so it must not block.
        """

    def wait(self, happened: Callable[[float], bool], until: float) -> None:
        """Wait until a condition is true or a time is reached.

        Args:
            happened: waits for up to the given number of real seconds, and returns whether the
                condition is true. The function also detects cancellation, so it must be called at
                least every 50 ms.
            until: the time to stop waiting, by this clock; may be infinite.
        """


class SystemClock:
    """The real clock.

    Args:
        slice_seconds: the interval between checks for cancellation, in seconds.
    """

    def __init__(self, slice_seconds: float = POLL_SECONDS) -> None:
        check_number("SystemClock takes", slice_seconds)
        self._slice_seconds = slice_seconds

    def monotonic(self) -> float:
        """Return the CLOCK_MONOTONIC time, see clock_gettime(2)."""
        return time.monotonic()

    def wait(self, happened: Callable[[float], bool], until: float) -> None:
        """Wait in short slices; see `Clock.wait`."""
        while (left := until - time.monotonic()) > 0:
            if happened(min(left, self._slice_seconds)):
                return


class CancelScope(AbstractContextManager["CancelScope"]):
    """A scope that can be cancelled from any thread, by a signal handler, or at a deadline.

    When the scope's deadline passes, the scope raises `TimedOut`. Child scopes raise
    `Cancelled`, because their own deadlines haven't passed. Used as a context manager, the scope
    converts a child's `Cancelled` to `TimedOut` on exit. The scope's `path` is its task's path,
    such as `configure/check-route-overlap`, or empty outside a run.

    Args:
        timeout: seconds until the deadline, which has passed if they aren't above 0; None for no
            deadline.
        clock: the clock to use; the real one by default.
    """

    def __init__(self, *, timeout: float | None = None, clock: Clock | None = None) -> None:
        self.clock: Clock = SystemClock() if clock is None else clock
        check_clock(self.clock)
        self.path = ""
        self.tell: Tell = lambda _call: None
        # A list for each scope, outermost scope first. Each list begins with the scope's deadline,
        # and its cancellations follow. A signal handler may interrupt any line here, so there are
        # no locks. Appending to a list is atomic.
        self._line: tuple[list[_End], ...] = (self._ends(timeout),)

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, Cancelled) and isinstance(end := self.verdict(), TimedOut):
            for path in paths_of(error):  # the path of the task that was waiting
                add_path_note(end, path)
            raise end from error

    @property
    def is_cancelled(self) -> bool:
        """Return whether `check` would raise an exception, due to a cancellation or a deadline."""
        return self.verdict() is not None

    def cancel(self, reason: str) -> None:
        """Cancel the scope and its children; their waits and subprocesses end within 100 ms.

        Only the first reason counts. The method is lock-free, so signal handlers can safely call
        it.

        Args:
            reason: the reason as text.
        """
        self._line[-1].append((self.clock.monotonic(), Cancelled(reason)))

    def child(self, *, timeout: float | None = None) -> CancelScope:
        """Return a child scope that ends no later than this one.

        This scope keeps no reference to the child.

        Args:
            timeout: seconds until the child's own deadline; None for no deadline of its own.
        """
        return self._with(_line=(*self._line, self._ends(timeout)))

    def shield(self) -> CancelScope:
        """Return a scope for rollbacks, which doesn't end when this scope ends."""
        return self._with(_line=(self._ends(None),))

    def at(self, path: str, tell: Tell | None = None) -> CancelScope:
        """Return a copy of this scope with a task's path; used by `run` and `run_child`."""
        return self._with(path=path, tell=tell or self.tell)

    def within(self, outer: CancelScope) -> CancelScope:
        """Return a copy of this scope that also ends with another scope; used by `run_async`."""
        checked_scope(outer)
        return self._with(_line=outer._line + self._line)

    def verdict(self) -> Cancelled | TimedOut | None:
        """Return the exception that `check` would raise; None while the scope hasn't ended."""
        now = self.clock.monotonic()
        passed: list[tuple[float, Cancelled | TimedOut, bool]] = []
        for ends in self._line:
            is_own = ends is self._line[-1]
            passed += [(when, end, is_own) for when, end in ends[:2] if when <= now]
        if not passed:
            return None
        _, end, is_own = min(passed, key=itemgetter(0))
        if isinstance(end, TimedOut) and not is_own:
            return Cancelled(f"an outer deadline passed ({end.seconds:g} s)")
        return copy(end)

    def check(self) -> None:
        """Raise an exception if the scope has ended; later calls raise the same exception.

        Raises:
            Cancelled: this scope or an outer one was cancelled, or an outer deadline passed.
            TimedOut: the scope's own deadline passed.
        """
        if error := self.verdict():
            raise error

    def progress(self, message: str, fraction: float | None = None) -> None:
        """Report the task's progress to the run's observer; a no-op outside a run.

        Args:
            message: a short status, such as what the task is waiting for.
            fraction: the completed fraction from 0 to 1; None if it isn't known.
        """
        self.tell(lambda observer: observer.progress(self.path, message, fraction))

    def wait(self, what: float | threading.Event | HasFileno) -> None:
        """Wait for a number of seconds, an event or a file.

        Tasks should only wait with this method.

        To limit the time, use a child scope: `scope.child(timeout=5).wait(event)`.

        Args:
            what: the number of seconds, the event, or a file to wait for until it is readable.

        Raises:
            Cancelled: the scope was cancelled. Raised within 100 ms, even if the event has happened
                in the meantime.
            TimedOut: the scope's own deadline passed. Raised within 100 ms.
            TypeError: the object's type isn't supported.
            ValueError: the number is NaN.
        """
        until = math.inf
        happened: Callable[[float], bool]
        if isinstance(what, (int, float)):
            check_number("a wait takes", what)
            until = self.clock.monotonic() + what
            happened = threading.Event().wait  # this event never happens
        elif isinstance(what, threading.Event):
            happened = what.wait
        elif hasattr(what, "fileno"):
            happened = partial(_is_readable, what.fileno())
        else:
            raise TypeError(f"can wait for seconds, an Event or a file, not for {what!r}")
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
        """Run a program to completion in its own process group.

        On a cancellation or deadline, the group gets SIGTERM, and SIGKILL at most 50 ms later.
        Child processes in a session or group of their own (setsid) survive these signals. If the
        program exits by itself, its child processes survive, and their later output is lost. The
        program runs in real time, regardless of the clock. All output is kept in memory.
        KeyboardInterrupt also kills the program. A custom signal handler should cancel a scope: if
        it raises an exception during the program's start, the program keeps running.

        Args:
            argv: the program, with its arguments.
            input: the standard input, or None for /dev/null.
            env: the complete environment; inherited by default.
            check: whether to raise an exception for a non-zero return code.

        Returns:
            The return code (or the negative signal number), stdout and stderr. Both are decoded as
            UTF-8, with undecodable bytes replaced.

        Raises:
            Cancelled: the scope was cancelled. Raised within 100 ms, after the whole group has been
                killed.
            TimedOut: the scope's own deadline passed. Raised after the whole group has been killed.
            subprocess.CalledProcessError: the program failed and ``check`` is true. A note contains
                its stderr.
            OSError: the program can't be started.
            TypeError: the arguments aren't a list of strings or paths.
            ValueError: the list is empty.
        """
        from phases._process import run_process

        self.check()
        return run_process(argv, input, env, check, self.check)

    def _ends(self, timeout: float | None) -> list[_End]:
        check_timeout(timeout)
        seconds = math.inf if timeout is None else max(0.0, timeout)
        return [(self.clock.monotonic() + seconds, TimedOut(seconds))]

    def _with(self, **changed: object) -> CancelScope:
        scope = copy(self)
        vars(scope).update(changed)
        return scope


def checked_scope(value: CancelScope) -> CancelScope:
    """Return the scope.

    Raises:
        TypeError: the value isn't a scope.
    """
    if not isinstance(value, CancelScope):
        raise TypeError(f"expected a CancelScope as scope, not {value!r:.200}")
    return value


class Undo:
    """A stack of rollback steps, run in reverse order.

    For its use as a context manager, see `all_or_nothing`.

    Each step is pushed *before* its change is made. If the change was never made, the step must be
    a no-op.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []
        self._interrupted: Callable[[], object] | None = None

    def push(self, step: Callable[[], object]) -> None:
        """Push a step; it runs before all earlier steps.

        Raises:
            TypeError: the step isn't a plain function.
        """
        if not callable(step):
            raise TypeError(f"a rollback step is a function without arguments, not {step!r:.200}")
        check_plain("a rollback step is", step)
        self._steps.append(step)

    def roll_back(self) -> list[str]:
        """Run every step, even if one fails.

        A signal handler may raise an exception in a step or between steps. If something else than
        an `Exception` interrupts a step, such as KeyboardInterrupt, the step is run a second time.

        Returns:
            A message for each failure.
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
            finished("a rollback step is", step())
        except BaseException as error:  # noqa: BLE001 - whatever the error is, the other steps must run
            problems.append(str(error) or repr(error))
            if step is not self._interrupted and not isinstance(error, Exception):
                self._interrupted = step
                return
        self._steps.pop()

    @guarded
    def __enter__(self) -> Undo:
        self._has_begun = begin()
        return self

    @guarded
    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None:
            # The steps of an inner and an outer rollback may fail for the same reason.
            for problem in dict.fromkeys(self.roll_back()):
                note = f"{ROLLBACK_NOTE}{problem}"
                if note not in getattr(error, "__notes__", ()):
                    add_note(error, note)
        try:
            end(self._has_begun)
        except KeyboardInterrupt as interrupt:
            for note in rollback_notes(error):
                add_note(interrupt, note)
            raise


def all_or_nothing() -> AbstractContextManager[Undo]:
    """Roll back if the block fails or is cancelled.

    If a rollback step fails, its error is added as a note to the block's exception. A Ctrl-C aborts
    the block with a KeyboardInterrupt. During the rollback, a Ctrl-C is deferred until the end, and
    its KeyboardInterrupt has the rollback's notes, too. A custom signal handler should cancel a
    scope: if it raises an exception just before the first rollback step, the rollback is skipped.
    """
    return Undo()


def _is_readable(fd: int, seconds: float) -> bool:
    """Return whether a read returns data, the end of the file or an error without blocking."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(math.ceil(seconds * 1000)))
