"""Time, behind a protocol so that tests need not wait for it."""

from __future__ import annotations

import errno
import math
import os
import select
import time
from typing import TYPE_CHECKING, Protocol

from phases._threads import POLL_SECONDS, longest_wait

if TYPE_CHECKING:
    from collections.abc import Sequence
    from threading import Event


class Clock(Protocol):
    """Tells the time and waits for it, for events and for file descriptors."""

    def monotonic(self) -> float:
        """Give seconds since some fixed moment; called from signal handlers, so it must not block."""

    def wait_event(self, event: Event, fds: Sequence[int], seconds: float | None) -> bool:
        """Wait until the event is set, one of the fds is readable or the time is over.

        Args:
            event: what is waited for.
            fds: file descriptors that end the wait.
            seconds: the longest wait; None: no end.

        Returns:
            Whether the event is set.
        """

    def wait_readable(self, fds: Sequence[int], seconds: float | None) -> list[int]:
        """Wait until one of the fds is readable or the time is over.

        Args:
            fds: open file descriptors.
            seconds: the longest wait; None: no end.

        Returns:
            The readable ones; none if the time is over.
        """


class SystemClock:
    """The real time."""

    def monotonic(self) -> float:
        """Give the seconds of CLOCK_MONOTONIC, clock_gettime(2)."""
        return time.monotonic()

    def wait_event(self, event: Event, fds: Sequence[int], seconds: float | None) -> bool:
        """Wait for the event in slices of `POLL_SECONDS`, as no fd can wake a thread out of it."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            left = max(0.0, end - time.monotonic())
            if event.wait(min(left, POLL_SECONDS)):
                return True
            if left == 0 or readable(fds):
                return event.is_set()

    def wait_readable(self, fds: Sequence[int], seconds: float | None) -> list[int]:
        """Wait in poll(2)."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            left = max(0.0, end - time.monotonic())
            found = readable(fds, min(left, longest_wait()))
            if found or left == 0:
                return found


SYSTEM_CLOCK = SystemClock()


def readable(fds: Sequence[int], seconds: float = 0.0) -> list[int]:
    """Give those file descriptors that a read wouldn't block on: data, end of file or an error.

    Args:
        fds: open file descriptors.
        seconds: the longest wait for the first one.

    Raises:
        OSError: one of them is closed (EBADF).
    """
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    found = poll.poll(math.ceil(seconds * 1000))
    for fd, event in found:
        if event & select.POLLNVAL:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), f"fd {fd}")
    return [fd for fd, _ in found]


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
