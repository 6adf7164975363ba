"""Wait until the kernel's state is as needed. Waiting changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from hostrouting.config.routing import Config
from hostrouting.kernel.port import RouteBackend
from phases import CancelScope, TimedOut

# Some changes send no event (a sysctl, a nexthop group), so check now and then without one.
_LOOK_SECONDS = 1.0


@attrs.frozen
class Deadline:
    """A deadline for all waits of a run.

    Args:
        start: when the run began, by its scope's clock, in seconds.
        seconds: the time after that.
    """

    start: float
    seconds: float

    def is_over(self, scope: CancelScope) -> bool:
        """Return whether the deadline has passed."""
        return self.left(scope) <= 0

    def left(self, scope: CancelScope) -> float:
        """Return the seconds left; negative once the deadline has passed."""
        return self.start + self.seconds - scope.clock.monotonic()


@attrs.frozen
class Deadlines:
    """The two deadlines of a run, set once when it starts.

    Args:
        network: for the default route, devices and gateways.
        addresses: for InfiniBand's addresses.
    """

    network: Deadline
    addresses: Deadline

    @classmethod
    def of(cls, config: Config, scope: CancelScope) -> Deadlines:
        """Start the deadlines of a run now, by its scope's clock."""
        start = scope.clock.monotonic()
        return cls(Deadline(start, config.wait_seconds), Deadline(start, config.route_overlap.address_seconds))


def look_until(
    backend: RouteBackend, scope: CancelScope, deadline: Deadline, find_missing: Callable[[], str | None]
) -> str | None:
    """Check, and check again after each change, until nothing is missing or the deadline has passed.

    Args:
        backend: reports changes.
        scope: cancels the wait.
        deadline: when to give up; the first check always happens.
        find_missing: checks, and returns in words what is still missing; None: nothing is.

    Returns:
        What was missing at the last check; None: nothing was.
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
            # At most half of our time goes to a flood of changes.
            nap.wait(took)
            backend.wait_for_change(nap)
        except TimedOut:
            scope.check()  # only the scope's own end is an error, not the nap's
