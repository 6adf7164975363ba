"""Wait until the state of the kernel is as needed, without changing it."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from hostrouting.config.routing import Config
from hostrouting.kernel.port import RouteBackend
from phases import CancelScope, TimedOut

# Some changes send no event (a sysctl, a nexthop group), so check at regular intervals too.
_LOOK_SECONDS = 1.0


@attrs.frozen
class Deadline:
    """A deadline for all waits of a run.

    Args:
        start: when the run began, in seconds on the clock of its scope.
        seconds: how long after the start the deadline is.
    """

    start: float
    seconds: float

    def is_over(self, scope: CancelScope) -> bool:
        """Return whether the deadline has passed."""
        return self.left(scope) <= 0

    def left(self, scope: CancelScope) -> float:
        """Return the number of seconds left, which is negative after the deadline."""
        return self.start + self.seconds - scope.clock.monotonic()


@attrs.frozen
class Deadlines:
    """The two deadlines of a run, which are set when it starts.

    Args:
        network: the deadline for the default route, devices and gateways.
        addresses: the deadline for InfiniBand addresses.
    """

    network: Deadline
    addresses: Deadline

    @classmethod
    def of(cls, config: Config, scope: CancelScope) -> Deadlines:
        """Start the deadlines of a run now, on the clock of its scope."""
        start = scope.clock.monotonic()
        return cls(Deadline(start, config.wait_seconds), Deadline(start, config.route_overlap.address_seconds))


def look_until(
    backend: RouteBackend, scope: CancelScope, deadline: Deadline, find_missing: Callable[[], str | None]
) -> str | None:
    """Repeat a check after each change until nothing is missing or the deadline has passed.

    Args:
        backend: the backend that reports changes.
        scope: the scope that can cancel the wait.
        deadline: when to give up. The first check always happens.
        find_missing: a function that checks and describes what is still missing, or returns None.

    Returns:
        A description of what was missing at the last check, or None if nothing was.
    """
    while True:
        before = scope.clock.monotonic()
        missing = find_missing()
        left, took = deadline.left(scope), scope.clock.monotonic() - before
        if missing is None or left <= 0:
            return missing
        scope.progress(f"waiting up to {deadline.seconds:g} s for {missing}", 1 - left / deadline.seconds)
        nap = scope.child(timeout=min(_LOOK_SECONDS, left))
        try:
            # During a flood of changes, at most half of the time is spent on checks.
            nap.wait(took)
            backend.wait_for_change(nap)
        except TimedOut:
            scope.check()  # only the end of the scope is an error, not the end of the nap
