"""Signals that end a command in good order."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from phases import CancelScope

__all__ = ["cancelled_by_signals"]


@contextmanager
def cancelled_by_signals(scope: CancelScope) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP cancel the scope, so that what was begun is put back.

    One that is ignored stays so: nohup(1) ignores SIGHUP, and a shell SIGINT of what it runs in the background.
    """

    def cancel(number: int, _frame: object) -> None:
        scope.cancel(signal.Signals(number).name)

    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, cancel)
    except ValueError:  # in another thread: whoever runs us there cancels the scope by other means
        before.clear()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
