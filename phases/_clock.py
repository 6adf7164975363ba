"""Time, behind a protocol so that tests need not wait for it."""

from __future__ import annotations

import errno
import math
import os
import select
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_SECONDS = 0.025
"""How long anything here blocks at a stretch, before it looks for cancels.

Nothing could wake it up for all of them: a signal that comes between the main thread's last line and its
blocking system call doesn't interrupt that, and the handler, which may want to cancel, runs in that thread only.
"""


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
