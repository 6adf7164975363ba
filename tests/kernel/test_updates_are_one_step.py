"""Test that at every moment of an update a start gets the answer of either the old config or the new one.

``./run search`` makes the same search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from nightly import IS_NIGHTLY, by_day
from search.moments import Kind
from search.pairs import KUBELET, MACHINE, PAIRS, TWO_STEPS
from search.run import Result, search

from hostrouting.cli.output import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = pytest.mark.kernel

KINDS = [kind.value for kind in Kind]
# By day every second pair is tried at one random moment, and several pairs share a world. By night each pair is tried
# at every moment.
TRIED = [pair.name for pair in PAIRS[:: by_day(2, by_night=1)]]
SHARES = by_day(3, by_night=len(TRIED))
MOST = None if IS_NIGHTLY else 1


def said(results: Sequence[Result]) -> str:
    return "\n".join(str(one) for result in results for one in result.counterexamples)


@pytest.mark.parametrize("share", range(SHARES))
def test_an_update_is_one_step(share: int, record_property: Callable[[str, object], None]) -> None:
    """A node that is healthy under both configs is never held, and one that is shadowed under both never admitted."""
    results = [*search(TRIED[share::SHARES], KINDS, most=MOST)]
    states = sum(sum(result.states.values()) for result in results)
    record_property("states", states)
    say(f"{states} states of {len(results)} updates")
    assert states >= len(TRIED[share::SHARES])
    assert not any(result.counterexamples for result in results), said(results)


def test_an_update_of_two_steps_is_found() -> None:
    """Two tasks swap routes and CIDRs one after the other, so a healthy node is held in between."""
    (result,) = search([TWO_STEPS.name], [Kind.FREEZE.value], most=by_day(4, by_night=40))
    held = [one for one in result.counterexamples if "under both configs" in one.complaint]
    assert held
    assert any("expected CIDR 172.16.1.0/24" in one.words for one in held)


@pytest.mark.parametrize(
    ("machine", "kubelet", "is_wrong"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_moving_gate_holds_one_consumer(machine: bool, kubelet: bool, is_wrong: bool) -> None:
    (pair,) = (pair for pair in PAIRS if pair.name == "shadowed, consumer changed")
    assert bool(pair.complaints_between({MACHINE: machine, KUBELET: kubelet})) == is_wrong
