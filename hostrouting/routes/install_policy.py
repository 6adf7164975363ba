"""Apply a plan for rules and side tables to the kernel, with an undo step.

See ``policy`` for the rules and side tables.
"""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from hostrouting.kernel.port import RouteBackend, Write
from hostrouting.model.changes import Changes
from hostrouting.model.errors import Refusal, RouteError
from hostrouting.model.family import Family
from hostrouting.model.lookups import RouteFailure, RuleFailure
from hostrouting.model.routes import Route
from hostrouting.model.rules import Rule, rule_words
from hostrouting.routes.install import by_gateways, explain
from hostrouting.routes.plan import read_policy
from hostrouting.routes.policy import PolicyPlan, PolicyRouting
from phases import CancelScope, Undo

# The errnos of a removal of a route or rule that is gone, or whose interface is gone.
_IS_GONE = (errnos.ESRCH, errnos.ENOENT, errnos.ENODEV)


def apply_policy(
    plan: PolicyPlan,
    backend: RouteBackend,
    scope: CancelScope,
    undo: Undo,
) -> None:
    """Add routes to side tables, then change rules, then remove routes from side tables.

    In this order, no rule looks up a side table that lacks its routes.

    Args:
        plan: the changes to make.
        backend: the backend for kernel access.
        scope: the cancel scope, checked before each step.
        undo: collects the rollback step for the changes.

    Raises:
        RouteError: the kernel rejected a change. ``undo`` covers the changes made so far.
    """
    if not plan.changes:
        return
    scope.check()
    undo.push(partial(restore_policy, plan.there, backend))
    for refusals, errno in _apply_steps(plan, backend):
        if refusals:
            raise RouteError.of(refusals, errno=errno)
        scope.check()


def restore_policy(there: PolicyRouting, backend: RouteBackend) -> None:
    """Restore our rules and side tables.

    Args:
        there: our rules and the routes in our side tables, as they are to be again.
        backend: the backend for kernel access.

    Raises:
        RouteError: some of the changes can't be undone. All others are undone.
    """
    plan = PolicyPlan(backend.family, there, read_policy(backend))
    refusals: list[Refusal] = []
    for refused, _ in _apply_steps(plan, backend):
        refusals += refused
    if refusals:
        raise RouteError.of(refusals)


def delete_entries(
    rules: tuple[Rule, ...], routes: tuple[Route, ...], backend: RouteBackend
) -> Changes:
    """Delete rules, then routes in any table. What another program has deleted first counts, too.

    Raises:
        RouteError: the kernel rejected a deletion. Its ``changes`` list what has been deleted.
    """
    plan = PolicyPlan(backend.family, there=PolicyRouting(rules, routes))
    for refusals, errno in _apply_steps(plan, backend):
        if refusals:
            error = RouteError.of(refusals, errno=errno)
            error.changes = _deleted(rules, routes, backend)
            raise error
    return plan.changes


def _deleted(rules: Iterable[Rule], routes: Iterable[Route], backend: RouteBackend) -> Changes:
    """Return the deletions of those rules and routes that the kernel no longer has."""
    left = {*backend.facts().rules}
    still = {*backend.entries()}
    gone = PolicyRouting(
        tuple(rule for rule in rules if rule not in left),
        tuple(route for route in routes if route not in still),
    )
    return PolicyPlan(backend.family, there=gone).changes


def _apply_steps(
    plan: PolicyPlan,
    backend: RouteBackend,
) -> Iterator[tuple[list[Refusal], int | None]]:
    """Make a plan's changes step by step, and yield each step's refusals and first errno."""
    steps = plan.rule_steps
    yield from _write(Write.ADD, by_gateways(plan.add), backend)
    yield from _write(Write.REPLACE, by_gateways([pair.new for pair in plan.replace]), backend)
    yield from _write_rules(Write.DELETE, steps.remove_first, backend)
    yield from _write_rules(Write.ADD, steps.add, backend)
    yield from _write_rules(Write.DELETE, steps.remove, backend)
    yield from _write(Write.DELETE, plan.remove, backend)


_VERBS = {Write.ADD: "add", Write.REPLACE: "replace", Write.DELETE: "remove"}


def _write(
    change: Write,
    routes: Sequence[Route],
    backend: RouteBackend,
) -> Iterator[tuple[list[Refusal], int | None]]:
    if not routes:
        return
    failures = [each for each in backend.write(change, routes) if not _needs_nothing(change, each)]
    refusals = [explain(_VERBS[change], failure) for failure in failures]
    yield refusals, failures[0].errno if failures else None


def _write_rules(
    change: Write,
    rules: Sequence[Rule],
    backend: RouteBackend,
) -> Iterator[tuple[list[Refusal], int | None]]:
    if not rules:
        return
    failures = [
        each for each in backend.write_rules(change, rules) if not _needs_nothing(change, each)
    ]
    refusals = [_explain_rule(_VERBS[change], failure, backend.family) for failure in failures]
    yield refusals, failures[0].errno if failures else None


def _needs_nothing(change: Write, failure: RouteFailure | RuleFailure) -> bool:
    return change is Write.DELETE and failure.errno in _IS_GONE


def _explain_rule(verb: str, failure: RuleFailure, family: Family) -> Refusal:
    reason = os.strerror(failure.errno).lower()
    advice = f"look at: ip -{family.value} rule show pref {failure.rule.preference}"
    if failure.errno == errnos.EEXIST:
        reason = "another rule with protocol 217 is in its way"
    elif failure.errno == errnos.EPERM:
        reason, advice = "not permitted", "run as root (CAP_NET_ADMIN)"
    attempt = f"can't {verb} the rule {rule_words(failure.rule)}"
    if failure.is_by_kernel:
        return Refusal(f"{attempt}: {reason} (kernel: {failure.message})", advice)
    # ENOTRECOVERABLE comes from hostrouting's own backends. A program that imports hostrouting may
    # pass a backend of its own, whose messages contain their own advice.
    is_by_ours = failure.errno == errnos.ENOTRECOVERABLE
    return Refusal(f"{attempt}: {failure.message}", advice if is_by_ours else "")
