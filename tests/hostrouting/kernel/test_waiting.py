"""Tests for waiting on the kernel, with a fake clock."""

from __future__ import annotations

from hostrouting.kernel.waiting import Deadline, look_until
from hostrouting.testing import FakeKernel
from phases import CancelScope
from phases.testing import FakeClock

LOOK_TAKES_SECONDS, WAIT_SECONDS = 0.1, 10.0


class RestlessKernel(FakeKernel):
    """A kernel that changes continually."""

    def wait_for_change(self, scope: CancelScope) -> None:
        scope.check()


def test_a_flood_gets_at_most_half_the_time() -> None:
    clock, looks = FakeClock(), 0

    def find_missing() -> str:
        nonlocal looks
        looks += 1
        clock.advance(LOOK_TAKES_SECONDS)
        return "the default route"

    deadline = Deadline(clock.monotonic(), WAIT_SECONDS)
    assert look_until(RestlessKernel(), CancelScope(clock=clock), deadline, find_missing) is not None
    assert 0 < looks <= WAIT_SECONDS / LOOK_TAKES_SECONDS / 2 + 1
