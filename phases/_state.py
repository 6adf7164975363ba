"""What can end a scope, without a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen

from phases._clock import seconds_or_never
from phases._errors import Cancelled, TimedOut

if TYPE_CHECKING:
    from phases._clock import Clock


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
