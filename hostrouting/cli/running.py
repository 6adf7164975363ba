"""Run a command's task and print its result."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Any, TypeVar

import phases
from hostrouting.cli.output import KeepOn, columns, complain, dim, draw_line, good, say
from hostrouting.model.jsonable import to_json_text
from hostrouting.model.text import clean

T = TypeVar("T")

EXIT_FAILURE = 1
EXIT_CHECK_UNKNOWN = 2
EXIT_PLAN_CHANGES = 2

_SAME_SIGNAL_SECONDS = 0.5
_BAR_COLUMNS, _LEAST_BAR_COLUMNS = 20, 8
# The width to use if the terminal doesn't report one.
_NO_COLUMNS = 80


def run_task(task: phases.Task[T], scope: phases.CancelScope | None = None) -> T:
    """Run a task, let signals cancel it, show what it waits for, and return its result.

    Args:
        task: the task to run.
        scope: a scope that signals already cancel; by default, a new scope for this task alone.
    """
    if scope is not None:
        return phases.run(task, scope=scope, observer=_Waits())
    scope = phases.CancelScope()
    with cancelled_by_signals(scope):
        return run_task(task, scope)


def say_json(document: dict[str, Any], keep_on: KeepOn | None = None) -> None:
    """Print a result as JSON; if the document doesn't name a host, this host's name is added."""
    say(to_json_text({"schema": 1, "host": os.uname().nodename} | document).rstrip(), keep_on)


def say_as_asked(
    options: argparse.Namespace,
    document: Callable[[], dict[str, Any]],
    text: Callable[[], str],
    keep_on: KeepOn | None = None,
) -> None:
    """Print a result in the form that ``--output`` asks for, without building the other one, which may be large.

    Args:
        options: the command's options.
        document: builds the JSON document.
        text: builds the text.
        keep_on: as for ``say``.
    """
    if options.output == "json":
        say_json(({} if options.image is None else {"host": options.image.name}) | document(), keep_on)
    else:
        say(text(), keep_on)


@contextmanager
def cancelled_by_signals(scope: phases.CancelScope) -> Iterator[None]:
    """Make SIGINT, SIGTERM and SIGHUP cancel the scope, so that changes made so far are undone.

    A signal that is ignored stays ignored: nohup(1) ignores SIGHUP, and a shell ignores SIGINT for background jobs. A
    second SIGINT or SIGTERM ends the process at once, and changes that haven't been undone by then remain. It only
    counts if it comes half a second or more after the first. The reason is that timeout(1) sends each signal twice, and
    a shell and a terminal may both send a signal for the same Ctrl-C.
    """
    asked_at: list[float] = []

    def cancel(number: int, _frame: object) -> None:
        scope.cancel(signal.Signals(number).name)
        if number == signal.SIGHUP:
            return
        asked_at.append(time.monotonic())
        if asked_at[-1] - asked_at[0] >= _SAME_SIGNAL_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    before: dict[signal.Signals, Any] = {}
    with suppress(ValueError):  # in a thread other than the main one, the caller cancels the scope by other means
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, cancel)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Waits:
    """An observer that shows on standard error what a task waits for, as a bar on a terminal and otherwise as lines.

    It never waits for the reader, because signal handlers run in the same thread and couldn't end such a wait.
    """

    def __init__(self) -> None:
        self._columns = 0
        self._last = ""

    def started(self, path: str) -> None:
        """Show nothing yet, because the task may not wait."""

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """Show the message and the progress."""
        del path
        text = clean(message)
        if sys.stderr is not None and sys.stderr.isatty():
            line, shown = bar_line(text, fraction, columns(sys.stderr) or _NO_COLUMNS)
            draw_line(f"\r{line}{' ' * (self._columns - shown)}")
            self._columns = shown
        elif text != self._last:
            complain(text, keep_on=lambda: False)
        self._last = text

    def finished(self, path: str, status: phases.Status, error: BaseException | None, seconds: float) -> None:
        """Clear the bar."""
        del path, status, error, seconds
        if self._columns:
            draw_line(f"\r{' ' * self._columns}\r")
        self._columns, self._last = 0, ""


def bar_line(text: str, fraction: float | None, width: int) -> tuple[str, int]:
    """Draw a bar and a text that together are short enough for one line of the terminal.

    Args:
        text: what the task waits for.
        fraction: the progress from 0 to 1, or None if it is unknown, in which case no bar is drawn.
        width: the terminal's columns.

    Returns:
        The line with colours, and its width in columns. Characters outside ASCII count double, because many are wide.
    """
    # The last column is left empty, because a terminal may wrap as soon as it is used.
    room = width - 1
    sizes = [*accumulate((1 if letter.isascii() else 2 for letter in text), initial=0)]
    fitting = bisect(sizes, room) - 1
    text, used = text[:fitting], sizes[fitting]
    bar = min(_BAR_COLUMNS, room - used - 1)
    if fraction is None or bar < _LEAST_BAR_COLUMNS:
        return text, used
    filled = round(min(max(fraction, 0.0), 1.0) * bar)
    return f"{good('━' * filled)}{dim('━' * (bar - filled))} {text}", bar + 1 + used
