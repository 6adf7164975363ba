"""Run a command's task and print its result."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import phases
from hostrouting.cli.inputs import host_asked_for
from hostrouting.cli.output import columns, complain, say
from hostrouting.model.jsonable import to_json_text
from hostrouting.model.text import clean

T = TypeVar("T")

_SAME_SIGNAL_SECONDS = 0.5
# The width of a terminal that doesn't report it.
_NO_COLUMNS = 80


def run_task(
    task: phases.Task[T],
    scope: phases.CancelScope | None = None,
    *,
    waits: bool = True,
) -> T:
    """Run a task with progress output, cancel it on signals, and return its result.

    Args:
        task: the task to run.
        scope: a scope for which the caller has called ``cancelled_by_signals``. By default, a new
            scope, which signals cancel, too.
        waits: whether the task's progress says what the task is waiting for. Such progress is
            printed even without a terminal, for readers of a log.
    """
    if scope is not None:
        return phases.run(task, scope=scope, observers=[_Progress(is_logged=waits)])
    scope = phases.CancelScope()
    with cancelled_by_signals(scope):
        return run_task(task, scope, waits=waits)


def run_function(
    name: str,
    function: Callable[[phases.CancelScope], T],
    *,
    waits: bool = True,
) -> T:
    """Run a function as a task with this name; the function takes the scope."""
    return run_task(phases.task(name)(function), waits=waits)


def say_json(document: dict[str, Any], patience: float | None = None) -> None:
    """Print a result as JSON, with this host's name unless the document has one."""
    whole = {"schema": 1, "host": os.uname().nodename} | document
    say(to_json_text(whole).rstrip(), patience)


class Result(NamedTuple):
    """A command's output. Only the requested format is made.

    Args:
        document: a function that returns the JSON document. By default, the document is empty.
        text: a function that returns the text. An empty text isn't printed.
        code: the command's exit code.
        warnings: warnings for stderr, one sentence each.
    """

    document: Callable[[], dict[str, Any]] = dict
    text: Callable[[], str] = str
    code: int = 0
    warnings: Sequence[str] = ()


def say_result(options: argparse.Namespace, result: Result, patience: float | None = None) -> None:
    """Print a result as JSON or text, depending on ``--output``, and its warnings to stderr.

    Args:
        options: the command's options.
        result: the command's result.
        patience: as for ``say``, but JSON is never truncated.
    """
    for line in "\n".join(result.warnings).splitlines():
        complain(f"hostrouting: {line}")
    if options.output == "json":
        say_json(host_asked_for(options) | result.document())
    elif text := result.text():
        say(text, patience)


@contextmanager
def cancelled_by_signals(scope: phases.CancelScope) -> Iterator[None]:
    """Cancel the scope on SIGINT, SIGTERM and SIGHUP. The changes are then rolled back.

    A signal that is ignored stays ignored: nohup(1) ignores SIGHUP, and a shell ignores SIGINT for
    its background jobs. A second SIGINT or SIGTERM ends the process at once, and the rollback stays
    incomplete. A second signal within half a second is ignored, because it may have the same cause.
    timeout(1) sends each signal twice. For one Ctrl-C, both the shell and the terminal may send a
    signal.
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
    # Only the main thread can handle signals. In another thread, the caller cancels the scope.
    with suppress(ValueError):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, cancel)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Progress:
    """An observer that prints progress on stderr: in one line of a terminal, or else in several.

    The observer never blocks on the stream, because a signal handler in the same thread couldn't
    end the write.

    Args:
        is_logged: whether progress is printed if stderr isn't a terminal.
    """

    def __init__(self, *, is_logged: bool) -> None:
        self._is_logged = is_logged
        self._columns = 0
        self._last = ""

    def started(self, path: str) -> None:
        """Do nothing, because most tasks finish without waiting."""

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """Show the message and the progress."""
        del path
        text = clean(message)
        if sys.stderr is not None and sys.stderr.isatty():
            share = "" if fraction is None else f" ({min(fraction, 1.0):.0%})"
            # Leave the last column empty: if a character is in it, some terminals start a new line.
            line = f"{text}{share}"[: (columns(sys.stderr) or _NO_COLUMNS) - 1]
            complain(f"\r{line.ljust(self._columns)}", patience=0, end="")
            self._columns = len(line)
        elif self._is_logged and text != self._last:
            complain(text, patience=0)
        self._last = text

    def finished(
        self,
        path: str,
        status: phases.Status,
        result: object,
        error: BaseException | None,
        seconds: float,
    ) -> None:
        """Clear the progress line on the terminal."""
        del path, status, result, error, seconds
        if self._columns:
            complain(f"\r{' ' * self._columns}\r", patience=0, end="")
        self._columns = 0
        self._last = ""
