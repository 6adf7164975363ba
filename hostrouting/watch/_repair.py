"""Restore our lost routes: as many as possible, even if others are blocked, and at the right time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable

import attrs

from hostrouting.boot.files import exists
from hostrouting.boot.host import Host
from hostrouting.boot.locks import locked
from hostrouting.config.routing import Config
from hostrouting.kernel.port import RouteBackend
from hostrouting.model.errors import HostRoutingError, RouteError
from hostrouting.model.jsonable import StrEnum
from hostrouting.model.routes import Route, Table
from hostrouting.routes.install import apply_what_goes
from hostrouting.routes.plan import RoutePlan, plan_what_goes
from hostrouting.routes.resolve import resolve
from hostrouting.routes.verify import verify_routes
from phases import CancelScope, all_or_nothing

# --- when to repair ------------------------------------------------------------------------------------------------

# A failure that happens once or twice is an accident, such as a daemon that restarts or a cable. If it happens more
# often, it is intended or won't be over soon, so each further try comes later.
_ACCIDENTS_MAX = 2
_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 300.0
# After this long without a failure, earlier ones are forgotten.
_FORGET_SECONDS = 900.0


@attrs.frozen
class Failures:
    """How often one thing has failed.

    Args:
        count: the number of failures since there was last a long time without one.
        last: the time of the last failure, by the watcher's clock.
    """

    count: int = 0
    last: float = 0.0

    @property
    def wait_seconds(self) -> float:
        """Return the seconds between the last failure and the next try, or 0 if it may have been an accident."""
        doublings = min(self.count - _ACCIDENTS_MAX - 1, 16)
        return min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0**doublings) if doublings >= 0 else 0.0

    @property
    def due(self) -> float:
        """Return the time of the next try."""
        return self.last + self.wait_seconds

    def again(self, now: float) -> Failures:
        """Count a failure that happens now, and forget the earlier ones if they are long ago."""
        return Failures(self.count + 1 if now < self.due + _FORGET_SECONDS else 1, now)


# --- what to repair ------------------------------------------------------------------------------------------------


class Drift(StrEnum):
    """The ways in which a route may differ from what is wanted, named as in the metrics."""

    MISSING = "missing"
    """The route was never seen before: it was missing at the first check, or is new in the config."""
    LOST = "lost"
    DEFAULT_CHANGED = "default-changed"
    UNWANTED = "unwanted"


@attrs.frozen
class Repair:
    """The state of our routes after a check, and the repairs that were made.

    Args:
        kept: the number of our routes in the table now.
        fixed: the repaired routes, in their current state, by their drift.
        contested: the routes that another program has just removed again on purpose, by their failures.
        waiting: the lost routes that are restored later, because another program keeps removing them.
        problems: the reasons why not everything is as wanted.
    """

    kept: int = 0
    fixed: dict[Drift, list[Route]] = attrs.field(factory=dict)
    contested: dict[Failures, list[Route]] = attrs.field(factory=dict)
    waiting: tuple[Route, ...] = ()
    problems: tuple[str, ...] = ()


def _no_failures() -> defaultdict[Hashable, Failures]:
    return defaultdict(Failures)


@attrs.define
class Reconciler:
    """A reconciler that keeps our routes in the table and remembers their state between checks.

    Args:
        kept: our routes that were in the table after the last check, by their keys.
        seen: the keys of all routes that were in the table after any check.
        refusals: the reason why the last try to write a route failed, by the route's key.
        losses: how often each route was removed, by its key.
        tries: how often each route was written without being as wanted afterwards, by its key.
        due: when the next waiting route may be written, by the scope's clock, or None if no route waits.
    """

    kept: dict[Hashable, Route] = attrs.field(factory=dict)
    seen: set[Hashable] = attrs.field(factory=set)
    refusals: dict[Hashable, str] = attrs.field(factory=dict)
    losses: defaultdict[Hashable, Failures] = attrs.field(factory=_no_failures)
    tries: defaultdict[Hashable, Failures] = attrs.field(factory=_no_failures)
    due: float | None = None

    def repair(self, config: Callable[[], Config], host: Host, scope: CancelScope) -> Repair:
        """Restore our routes as far as it is possible now, without touching other programs' routes.

        Args:
            config: a function that returns the wanted config. It is called under the lock, under which other runs
                change config and routes.
            host: the host whose routes are repaired.
            scope: cancels the repair; changes made so far are then undone.

        Returns:
            The result; its ``problems`` include repairs that failed.
        """
        self.due = None
        try:
            with locked(host.layout.lock, scope):
                if exists(host.layout.trial):
                    return Repair(len(self.kept), problems=("leaves our routes alone as long as a trial stands",))
                plan, problems = plan_repair(config(), host.routes)
                repair = self._carry_out(plan, host, scope)
                if self.refusals:
                    problems.append("\n".join(dict.fromkeys(self.refusals.values())))
                try:
                    verify_routes((*self.kept.values(), *plan.foreign), host.routes)
                except RouteError as error:
                    problems.append(str(error))
                return attrs.evolve(repair, problems=tuple(problems))
        except HostRoutingError as error:
            return Repair(len(self.kept), problems=(str(error),))

    def _carry_out(self, plan: RoutePlan, host: Host, scope: CancelScope) -> Repair:
        now = scope.clock.monotonic()
        wanted, changes = _writes(plan), _changes(plan)
        # If a route must change although it is as the last check left it, the default route has changed.
        follows = {item.new.key for item in plan.replace if self._is_as_left(item.old)}
        contested: dict[Failures, list[Route]] = {}
        for key, route in wanted.items():
            if key in self.kept and key not in follows:
                self.losses[key] = lost = self.losses[key].again(now)
                if lost.wait_seconds:
                    contested.setdefault(lost, []).append(route)

        for key in self.tries.keys() - changes:
            del self.tries[key]
        todo = attrs.evolve(
            plan,
            add=tuple(route for route in plan.add if self._due(route.key) <= now),
            replace=tuple(item for item in plan.replace if self._due(item.new.key) <= now),
            remove=tuple(route for route in plan.remove if self._due(route.key) <= now),
        )
        try:
            with all_or_nothing() as undo:
                done, refused = apply_what_goes(todo, host.routes, scope, undo)
        except RouteError as error:
            done, refused = RoutePlan(), dict.fromkeys(_changes(todo).values(), str(error))
        for key in _changes(todo):
            self.tries[key] = self.tries[key].again(now)

        written = _writes(done)
        left = changes.keys() - _changes(done)
        reasons = self.refusals | {route.key: reason for route, reason in refused.items()}
        self.refusals = {key: reason for key, reason in reasons.items() if key in left}
        self.kept = {route.key: route for route in plan.unchanged} | written
        fixed = {Drift.UNWANTED: list(done.remove)}
        for key, route in written.items():
            known = Drift.LOST if key in self.seen else Drift.MISSING
            fixed.setdefault(Drift.DEFAULT_CHANGED if key in follows else known, []).append(route)
        self.seen |= self.kept.keys()
        self.due = min(map(self._due, left), default=None)
        waiting = tuple(route for key, route in wanted.items() if key in left and now < self.losses[key].due)
        return Repair(len(self.kept), fixed, contested, waiting)

    def _is_as_left(self, ours: Route) -> bool:
        left = self.kept.get(ours.key)
        return left is not None and left.has_same_next_hops(ours)

    def _due(self, key: Hashable) -> float:
        return max(self.losses[key].due, self.tries[key].due)


def _writes(plan: RoutePlan) -> dict[Hashable, Route]:
    return {route.key: route for route in (*plan.add, *(item.new for item in plan.replace))}


def _changes(plan: RoutePlan) -> dict[Hashable, Route]:
    return _writes(plan) | {route.key: route for route in plan.remove}


def plan_repair(config: Config, backend: RouteBackend) -> tuple[RoutePlan, list[str]]:
    """Plan the repairs that are possible at this moment, and describe what blocks the others.

    Unlike ``routes.plan.plan_now``, this doesn't wait for all routes, so a route whose device is gone doesn't block the
    others. If something is missing, nothing is removed. If no routes are wanted, nothing is changed at all.

    Args:
        config: the wanted routes.
        backend: the backend that accesses the kernel.

    Returns:
        The plan, and the reasons why other repairs aren't possible.

    Raises:
        RouteError: the kernel can't be queried, or a route can never be installed.
    """
    wanted = config.static_routes.routes
    if not wanted:
        return RoutePlan(), []
    main = backend.routes(Table.MAIN)
    routes, missing = resolve(wanted, backend.links(), backend.addresses(), main, config.uplinks)
    plan, refusals = plan_what_goes(routes, main)
    problems = ["\n".join(map(str, refusals))] if refusals else []
    if missing:
        problems.append(f"can't keep all static routes without {missing}")
    if problems:
        # No route is removed, because some may only seem obsolete while something that they need is missing.
        plan = attrs.evolve(plan, unchanged=(*plan.unchanged, *plan.remove), remove=())
    return plan, problems
