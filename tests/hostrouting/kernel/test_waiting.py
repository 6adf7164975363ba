"""Waiting for the kernel: by a clock that needs no time."""

from __future__ import annotations

from hostrouting.kernel.port import look_until
from hostrouting.testing import FakeKernel
from phases import CancelScope
from phases.testing import FakeClock

LOOK_TAKES_SECONDS, WAIT_SECONDS = 0.1, 10.0


class RestlessKernel(FakeKernel):
    """Something changes all the time."""

    def wait_for_change(self, scope: CancelScope) -> None:
        scope.check()


def test_a_flood_of_changes_gets_half_of_the_time_at_most() -> None:
    clock, looks = FakeClock(), 0

    def look() -> tuple[None, str]:
        nonlocal looks
        looks += 1
        clock.advance(LOOK_TAKES_SECONDS)
        return None, "the default route"

    _, missing = look_until(RestlessKernel(), CancelScope(clock=clock), WAIT_SECONDS, look)
    assert missing is not None
    assert 0 < looks <= WAIT_SECONDS / LOOK_TAKES_SECONDS / 2 + 1
