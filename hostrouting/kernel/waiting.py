"""Wait until the kernel reaches the required state, without changing it."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from hostrouting.config.routing import Config
from hostrouting.kernel.port import RouteBackend
from phases import CancelScope, TimedOut

# Some changes don't trigger an event (sysctls, nexthop groups), so poll at regular intervals too.
_LOOK_SECONDS = 1.0


@attrs.frozen
class Deadline:
    """A deadline shared by all waits in a run.

    Args:
        start: when the run started, in seconds on its scope's clock.
        seconds: the time from the start to the deadline.
    """

    start: float
    seconds: float

    def is_over(self, scope: CancelScope) -> bool:
        """Return whether the deadline has passed."""
        return self.left(scope) <= 0

    def left(self, scope: CancelScope) -> float:
        """Return the number of seconds left. It is negative after the deadline."""
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
        """Start a run's deadlines now, using its scope's clock."""
        start = scope.clock.monotonic()
        return cls(Deadline(start, config.wait_seconds), Deadline(start, config.route_overlap.address_seconds))


def look_until(
    backend: RouteBackend, scope: CancelScope, deadline: Deadline, find_missing: Callable[[], str | None]
) -> str | None:
    """Repeat a check after each change until nothing is missing or the deadline has passed.

    Args:
        backend: the backend that reports changes.
        scope: the cancel scope for the wait.
        deadline: when to give up. At least one check is made.
        find_missing: a function that returns a description of what is still missing, or None.

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
            # If the state changes constantly, spend at most half of the time on checks.
            nap.wait(took)
            backend.wait_for_change(nap)
        except TimedOut:
            scope.check()  # only the end of the scope is an error, not the end of the nap
