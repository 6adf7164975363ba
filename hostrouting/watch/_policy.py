"""Put back lost rules and side tables with backoff."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import attrs

from hostrouting.config.routing import Config
from hostrouting.kernel.port import RouteBackend, read_default_routes
from hostrouting.model.changes import Changes
from hostrouting.model.errors import RouteError
from hostrouting.model.rules import Rule
from hostrouting.model.values import frozen
from hostrouting.routes.install_policy import apply_policy
from hostrouting.routes.plan import plan_policy
from hostrouting.routes.policy import PolicyPlan
from hostrouting.routes.verify_policy import verify_policy
from hostrouting.watch._backoff import Failures
from phases import CancelScope, all_or_nothing

# A restored rule that is lost within this time counts as a failure: another program probably
# removes whatever the watcher restores. systemd-networkd removes all rules now and then. So a later
# loss sets the count to 0.
_CONTEST_SECONDS = 1.0

CONTESTED = (
    "another program, or a link that goes down and up, keeps removing our rules"
    " or routes in side tables; "
    "hostrouting waits longer each time before it restores them"
)


@frozen
class PolicyRepair:
    """The result of a repair of rules and side tables.

    Args:
        in_place: number of our rules that are in place.
        changes: what was changed on the host.
        problems: descriptions of everything that couldn't be repaired.
        due: the time of the next attempt, on the scope's clock; None if nothing has to wait.
    """

    in_place: int = 0
    changes: Changes = attrs.field(factory=Changes)
    problems: tuple[str, ...] = ()
    due: float | None = None


@attrs.define
class PolicyReconciler:
    """A reconciler that keeps our rules and side tables in place.

    A repair changes all of a family's rules and side tables, or none.

    Args:
        in_place: our rules, and the keys of our routes in side tables, that were in place after
            the last repair.
        restored: when a rule or side table was last restored, on the scope's clock.
        failures: counts how often rules or routes were lost right after they were restored.
    """

    in_place: frozenset[Hashable] = frozenset()
    restored: float = -_CONTEST_SECONDS
    failures: Failures = attrs.field(factory=Failures)

    def repair(
        self,
        config: Config,
        backends: Iterable[RouteBackend],
        scope: CancelScope,
    ) -> PolicyRepair | None:
        """Restore our rules and side tables. The caller holds the lock.

        Args:
            config: the wanted config.
            backends: the backends for kernel access, one for each address family.
            scope: cancels the repair and rolls back its changes.

        Returns:
            The result; None if the config has neither rules nor kept interfaces.
        """
        static = config.static_routes
        if not (static.rules or static.keep):
            self.in_place = frozenset()
            return None
        plans, problems = _plan(config, backends)
        due = self._count_losses([plan for _, plan in plans], scope.clock.monotonic())
        if due is not None:
            return PolicyRepair(self._rules_in_place, problems=(*problems, CONTESTED), due=due)
        changes = Changes()
        now = scope.clock.monotonic()
        in_place: set[Hashable] = set()
        for backend, plan in plans:
            possible = _possible(plan)
            try:
                with all_or_nothing() as undo:
                    apply_policy(possible, backend, scope, undo)
                changes |= possible.changes
                in_place |= {*possible.wanted.rules, *(route.key for route in plan.wanted.routes)}
                verify_policy(plan.wanted, backend)
            except RouteError as error:
                problems.append(error.clause)
        self.in_place = frozenset(in_place)
        if changes:
            self.restored = now
        return PolicyRepair(self._rules_in_place, changes, tuple(problems))

    @property
    def _rules_in_place(self) -> int:
        return sum(isinstance(part, Rule) for part in self.in_place)

    def _count_losses(self, plans: Iterable[PolicyPlan], now: float) -> float | None:
        """Count a loss of rules or routes. Return when to restore them; None means at once."""
        missing: set[Hashable] = set()
        for plan in plans:
            missing.update(plan.rule_steps.add)
            missing.update(route.key for route in plan.add)
        if self.in_place.isdisjoint(missing):  # nothing new is lost; earlier losses may wait
            return self.failures.due if missing and now < self.failures.due else None
        is_contested = now < self.restored + _CONTEST_SECONDS
        self.failures = self.failures.again(now) if is_contested else Failures()
        self.in_place -= missing
        return self.failures.due if self.failures.wait_seconds else None


def _plan(
    config: Config,
    backends: Iterable[RouteBackend],
) -> tuple[list[tuple[RouteBackend, PolicyPlan]], list[str]]:
    """Plan the repairs of each address family, or describe why the family can't be repaired."""
    plans: list[tuple[RouteBackend, PolicyPlan]] = []
    problems: list[str] = []
    for backend in backends:
        try:
            planned = plan_policy(
                config,
                backend,
                backend.facts(),
                read_default_routes(backend),
            )
        except RouteError as error:
            problems.append(error.clause)
        else:
            plans += [(backend, plan) for plan in planned]
    return plans, problems


def _possible(plan: PolicyPlan) -> PolicyPlan:
    """Return the part of a plan that can be carried out now.

    While a kept interface isn't ready, the plan doesn't want the interface's rules, but a later
    plan will. So no rule is removed until then.
    """
    return plan.without_removals() if plan.wanted.pending else plan
