"""Wait for a host to become as needed, driven by its events."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from phases import CancelScope, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.kernel.port import RouteBackend

T = TypeVar("T")

# Some changes send no event (a sysctl, a nexthop group), so look now and then without one.
_LOOK_SECONDS = 1.0


def look_until(
    backend: RouteBackend, scope: CancelScope, seconds: float, look: Callable[[], tuple[T, str | None]]
) -> tuple[T, str | None]:
    """Look, and again after each change, until nothing is missing or the time is up.

    Args:
        backend: tells of changes.
        scope: ends it.
        seconds: how long, at most.
        look: returns a result, and what is still missing in words.

    Returns:
        The last look.
    """
    start = scope.clock.monotonic()
    while True:
        before = scope.clock.monotonic()
        result, missing = look()
        waited, took = scope.clock.monotonic() - start, scope.clock.monotonic() - before
        if missing is None or waited >= seconds:
            return result, missing
        scope.progress(f"waiting up to {seconds:g} s for {missing}", waited / seconds)
        nap = scope.child(timeout=min(_LOOK_SECONDS, seconds - waited))
        try:
            # A flood of changes gets half of our time at most.
            nap.wait(took)
            backend.wait_for_change(nap)
        except TimedOut:
            scope.check()  # the nap's end is no news; the scope's own deadline is
