"""A plan is carried out: rules are loaded and seen in force, the route is pinned and seen to win."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hostrouting.azure.errors import LoadBalancerProbeError
from hostrouting.azure.probe.ruleset import REMOVAL, REWRITTEN_SOURCE, TABLE

if TYPE_CHECKING:
    from hostrouting.azure.probe.plan import ProbePlan
    from hostrouting.azure.probe.port import Pin, ProbeNode
    from phases import CancelScope, Undo

__all__ = ["apply_plan", "see_way"]


def apply_plan(plan: ProbePlan, node: ProbeNode, scope: CancelScope, undo: Undo) -> None:
    """Load the rules, see them in force, and change the routes."""
    if plan.has_new_rules:
        scope.check()
        undo.push(partial(_put_back, node, plan.rules_before))
        node.load(plan.ruleset)
        see_rules(node, plan)
    # On the way back those of before come first, each in the place of what took its own.
    for pin in plan.pins.add:
        undo.push(partial(node.unpin, pin))
    for pin in plan.pins.remove:
        undo.push(partial(node.pin, pin))
    for pin in plan.pins.add:
        scope.check()
        node.pin(pin)
    for pin in plan.pins.remove:
        scope.check()
        node.unpin(pin)


def see_way(node: ProbeNode, pin: Pin) -> None:
    """A policy rule may lead past table main, and others may have changed it meanwhile."""
    hop = node.next_hop(REWRITTEN_SOURCE)
    if hop is not None and (hop.dev, hop.gateway) == (pin.dev, pin.gateway):
        return
    instead = "nowhere" if hop is None else f"{'' if hop.gateway is None else f'via {hop.gateway} '}dev {hop.dev}"
    raise LoadBalancerProbeError(
        f"the pinned route doesn't win ({pin}): answers to probes would go {instead}; look at: ip -6 rule; "
        f"ip -6 route show table all {REWRITTEN_SOURCE}"
    )


def see_rules(node: ProbeNode, plan: ProbePlan) -> None:
    if node.listing(TABLE) != plan.rules_after:
        raise LoadBalancerProbeError(
            f"the nftables table ip6 {TABLE} isn't as it was loaded: somebody else changes it; look at: "
            f"nft list table ip6 {TABLE}"
        )


def _put_back(node: ProbeNode, before: str | None) -> None:
    if node.listing(TABLE) != before:
        node.load(REMOVAL + (before or ""))
