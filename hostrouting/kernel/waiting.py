"""Waiting for a kernel to become as needed: a wait only waits."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from hostrouting.config.routing import Config
from hostrouting.kernel.port import RouteBackend
from phases import CancelScope, TimedOut

# Some changes send no event (a sysctl, a nexthop group), so look now and then without one.
_LOOK_SECONDS = 1.0


@attrs.frozen
class Deadline:
    """A time until which a run waits, whatever it waits for.

    Args:
        start: when the run began, by its scope's clock.
        seconds: how long after that.
    """

    start: float
    seconds: float

    def is_over(self, scope: CancelScope) -> bool:
        """Return whether the time has come."""
        return self.left(scope) <= 0

    def left(self, scope: CancelScope) -> float:
        """Return the seconds that are left; negative where it has passed."""
        return self.start + self.seconds - scope.clock.monotonic()


@attrs.frozen
class Deadlines:
    """The two deadlines of a run, set once as it starts.

    Args:
        network: of the wait for the default route, for devices and for gateways.
        addresses: of the wait for InfiniBand's addresses.
    """

    network: Deadline
    addresses: Deadline

    @classmethod
    def of(cls, config: Config, scope: CancelScope) -> Deadlines:
        """Start the deadlines of a run now, by the clock of its scope."""
        start = scope.clock.monotonic()
        return cls(Deadline(start, config.wait_seconds), Deadline(start, config.route_overlap.address_seconds))


def look_until(
    backend: RouteBackend, scope: CancelScope, deadline: Deadline, find_missing: Callable[[], str | None]
) -> str | None:
    """Look, and again after each change, until nothing is missing or the deadline has passed.

    Args:
        backend: tells of changes.
        scope: ends it.
        deadline: when to give up; the first look is made in any case.
        find_missing: looks, and returns what is still missing in words; None: nothing.

    Returns:
        What was missing at the last look; None: nothing.
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
            # A flood of changes gets half of our time at most.
            nap.wait(took)
            backend.wait_for_change(nap)
        except TimedOut:
            scope.check()  # the nap's end is no news; the scope's own deadline is
