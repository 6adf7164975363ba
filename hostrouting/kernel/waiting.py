"""Wait until the kernel reaches the required state, without changing the kernel.

``overlap/uplinks.py`` says what a check waits for, and ``tasks/install_routes.py`` what an
installation waits for.
"""

from __future__ import annotations

from collections.abc import Callable

from hostrouting.kernel.port import RouteBackend
from phases import CancelScope, TimedOut

# Check at least this often, because the kernel sends no event for some changes (sysctls, nexthop
# groups).
_LOOK_SECONDS = 1.0


def look_until(
    backend: RouteBackend,
    scope: CancelScope,
    started: float,
    seconds: float,
    find_missing: Callable[[], str | None],
) -> str | None:
    """Look for what is missing after each change, until nothing is missing or the time is up.

    Args:
        backend: the backend that reports changes.
        scope: the cancel scope for the wait.
        started: when the run started, in seconds on the scope's clock.
        seconds: how long to wait from ``started`` on. At least one check is made.
        find_missing: a function that returns a description of what is still missing, or None.

    Returns:
        What was missing at the last look; None if nothing was.
    """
    with backend.changes() as changes:
        while True:
            before = scope.clock.monotonic()
            missing = find_missing()
            scope.check()
            now = scope.clock.monotonic()
            left = started + seconds - now
            if missing is None or left <= 0:
                return missing
            scope.progress(f"waiting up to {seconds:g} s for {missing}", 1 - left / seconds)
            nap = scope.child(timeout=min(_LOOK_SECONDS, left))
            try:
                # Wait as long as the check took, to spend at most half of the time on checks.
                nap.wait(now - before)
                changes.wait(nap)
            except TimedOut:
                scope.check()  # only the end of the scope is an error, not the end of the nap
