"""Count the failures of a route, and wait longer after each one."""

from __future__ import annotations

from hostrouting.model.values import frozen

# One or two failures may be accidents, such as a restarting daemon or a loose cable. More failures
# are no accident, so the watcher retries with exponential backoff.
_ACCIDENTS_MAX = 2
_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 300.0
_DOUBLINGS_MAX = 16  # 2**16 s is far longer than _LONGEST_SECONDS, and fits in a float

# A failure that comes later than this after the last retry was due starts a new burst.
_FORGET_SECONDS = 900.0


@frozen
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
        """Return the seconds to wait after the last failure; 0 after one or two failures."""
        if self.count <= _ACCIDENTS_MAX:
            return 0.0
        doublings = min(self.count - _ACCIDENTS_MAX - 1, _DOUBLINGS_MAX)
        return min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0**doublings)

    @property
    def due(self) -> float:
        """Return the time of the next attempt."""
        return self.last + self.wait_seconds

    def again(self, now: float, reason: str = "") -> Failures:
        """Return the counter with one more failure, or with 1 if the failure starts a new burst."""
        is_same_burst = now < self.due + _FORGET_SECONDS
        count = self.count + 1 if is_same_burst else 1
        return Failures(count, now, reason)
