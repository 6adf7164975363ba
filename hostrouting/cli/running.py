"""How every command runs its task and says its result, and the exit codes that they share."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import phases
from hostrouting.cli.output import Page, Row, complain, say
from hostrouting.model.text import clean, to_json_text

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")

EXIT_FAILURE = 1
EXIT_CHECK_UNKNOWN = 2
EXIT_PLAN_CHANGES = 2


def run_task(task: phases.Task[T]) -> T:
    """Run a task that signals end, telling what it waits for, and return its result."""
    scope = phases.CancelScope()
    with cancelled_by_signals(scope):
        return phases.run(task, scope=scope, observer=_Waits())


def say_json(document: dict[str, Any]) -> None:
    """Print a result for programs; where it doesn't name the host that it is about, that is this one."""
    say(to_json_text({"schema": 1, "host": os.uname().nodename} | document).rstrip())


def say_as_asked(options: argparse.Namespace, document: Callable[[], dict[str, Any]], text: Callable[[], str]) -> None:
    """Print a result as ``--output`` asks for it; the other form, of thousands of routes maybe, isn't made."""
    if options.output == "json":
        say_json(document())
    else:
        say(text())


def page_text(page: Page, width: int | None) -> str:
    """A page as lines with colours.

    Args:
        page: lines and rows.
        width: how many columns a terminal has; None: it is for a pipe, where no paragraph is broken.

    Returns:
        The lines; rows are aligned.
    """
    if width is not None:
        from hostrouting.cli.drawn import draw

        return draw(page, width)
    label = max((len(item.label) for item in page if isinstance(item, Row)), default=0)
    lines: list[str] = []
    for item in page:
        if isinstance(item, Row):
            lines.append(f"{item.mark} {item.label:{label}}  {item.said[0]}")
            lines += [f"  {'':{label}}  {said}" for said in item.said[1:]]
        else:
            lines.append(item)
    return "\n".join(lines)


@contextmanager
def cancelled_by_signals(scope: phases.CancelScope) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP cancel the scope, so that what was begun is put back.

    One that is ignored stays so: nohup(1) ignores SIGHUP, and a shell SIGINT of what it runs in the background.
    """

    def cancel(number: int, _frame: object) -> None:
        scope.cancel(signal.Signals(number).name)

    before: dict[signal.Signals, Any] = {}
    with suppress(ValueError):  # in another thread: whoever runs us there cancels the scope by other means
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, cancel)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Waits:
    """An observer that tells on standard error what is waited for: a bar on a terminal, a line a message elsewhere."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._last = ""

    def started(self, path: str) -> None:
        """Nothing is told of a task that doesn't wait."""

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """Tell a message, and how far it is."""
        del path
        text = clean(message)
        if sys.stderr is not None and sys.stderr.isatty():
            if self._bar is None:
                from hostrouting.cli.drawn import bar

                self._bar = bar(sys.stderr)
                self._bar.start()
                self._bar.add_task(text)
            total = None if fraction is None else 1
            self._bar.update(self._bar.task_ids[0], description=text, total=total, completed=fraction)
        elif text != self._last:
            complain(text)
        self._last = text

    def finished(self, path: str, status: phases.Status, error: BaseException | None, seconds: float) -> None:
        """Clear the bar."""
        del path, status, error, seconds
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._last = ""
