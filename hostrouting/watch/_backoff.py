"""Count the failures of a route, and wait longer after each one."""

from __future__ import annotations

import attrs

# One or two failures may be accidents, such as a restarting daemon or a loose cable. More failures
# are no accident, so the watcher retries with exponential backoff.
_ACCIDENTS_MAX = 2
_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 300.0
_DOUBLINGS_MAX = 16  # far beyond the longest delay, and small enough for a float

# If no failure follows within this time after a retry was due, the count starts again.
_FORGET_SECONDS = 900.0


@attrs.frozen
class Failures:
    """A failure counter with exponential backoff.

    Args:
        count: number of failures in the current burst.
        last: when the last failure occurred, on the watcher's clock.
        reason: why the route couldn't be written, or an empty string if the failures are losses of
            the route.
    """

    count: int = 0
    last: float = 0.0
    reason: str = ""

    @property
    def wait_seconds(self) -> float:
        """Return the delay after the last failure, or 0 if the failures may be accidental."""
        if self.count <= _ACCIDENTS_MAX:
            return 0.0
        doublings = min(self.count - _ACCIDENTS_MAX - 1, _DOUBLINGS_MAX)
        return min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0**doublings)

    @property
    def due(self) -> float:
        """Return the time of the next attempt."""
        return self.last + self.wait_seconds

    def again(self, now: float, reason: str = "") -> Failures:
        """Count a new failure; start over at 1 if the last failure was long ago."""
        is_same_burst = now < self.due + _FORGET_SECONDS
        count = self.count + 1 if is_same_burst else 1
        return Failures(count, now, reason)
