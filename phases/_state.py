"""What can end a scope, without a lock."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from attrs import field, frozen

from phases._clock import seconds_or_never
from phases._errors import Cancelled, TimedOut

if TYPE_CHECKING:
    from phases._clock import Clock


class Wake:
    """An eventfd(2) that is readable from the cancel on, so that poll(2) ends at once in every waiter."""

    def __init__(self) -> None:
        self.fd = -1
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    # Closed with the last reference, which a thread that cancels or waits still holds: so its number
    # can't have become that of another file under their hands.
    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


@frozen(eq=False)
class State:
    """What can end a scope. Without locks, as a signal handler may cancel in the midst of any line of it.

    `list.append` and `dict.setdefault` are atomic. A waiter makes its wake before it looks for cancels, a
    canceller adds its cancel before it looks for a wake: so one of them sees the other's.
    """

    above: tuple[State, ...] = ()
    deadline: float | None = None
    seconds: float = 0.0
    cancels: list[tuple[float, str]] = field(factory=list)
    wakes: dict[str, Wake] = field(factory=dict)

    @classmethod
    def below(cls, above: tuple[State, ...], timeout: float | None, clock: Clock) -> State:
        """Make a state that ends with the innermost of these, or after so many seconds."""
        seconds = seconds_or_never(timeout)
        return cls(above) if seconds is None else cls(above, clock.monotonic() + seconds, seconds)

    @property
    def line(self) -> tuple[State, ...]:
        """All states whose end is this one's, the outermost first."""
        return (*self.above, self)

    def cancel(self, when: float, reason: str) -> None:
        """End it and those below."""
        self.cancels.append((when, reason))
        if wake := self.wakes.get("wake"):
            os.eventfd_write(wake.fd, 1)

    def wake(self) -> Wake:
        """Give what a waiter polls for a cancel of this very state."""
        return self.wakes.get("wake") or self.wakes.setdefault("wake", Wake())

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
