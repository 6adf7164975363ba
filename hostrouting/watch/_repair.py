"""Restore our lost routes with backoff, as many as possible even if some are blocked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable

import attrs

from hostrouting.boot.files import exists
from hostrouting.boot.host import Host
from hostrouting.boot.locks import is_held, locked
from hostrouting.config.routing import Config
from hostrouting.kernel.port import RouteBackend
from hostrouting.model.errors import HostRoutingError, RouteError
from hostrouting.model.jsonable import StrEnum
from hostrouting.model.routes import Route, Table
from hostrouting.routes.install import apply_possible
from hostrouting.routes.plan import RoutePlan, is_same, plan_possible, uplinks_of
from hostrouting.routes.resolve import resolve
from hostrouting.routes.verify import verify_routes
from hostrouting.watch._backoff import Failures
from phases import CancelScope, all_or_nothing

# Look again after this long if another run was in progress.
_RUN_SECONDS = 5.0


class Drift(StrEnum):
    """How a route can differ from the wanted state; the values are used as metric labels."""

    LOST = "lost"
    DEFAULT_CHANGED = "default-changed"
    UNWANTED = "unwanted"


@attrs.frozen
class Repair:
    """The result of a repair, including the state of our routes.

    Args:
        kept: number of our routes that are in the table.
        fixed: the repaired routes in their new state, by kind of drift.
        contested: routes that another program has repeatedly removed, grouped by their failure
            counters.
        waiting: lost routes that are in backoff because another program keeps removing them.
        problems: descriptions of everything that couldn't be repaired.
    """

    kept: int = 0
    fixed: dict[Drift, list[Route]] = attrs.field(factory=dict)
    contested: dict[Failures, list[Route]] = attrs.field(factory=dict)
    waiting: tuple[Route, ...] = ()
    problems: tuple[str, ...] = ()


@attrs.define
class Reconciler:
    """A reconciler that keeps our routes in the table and tracks their state between checks.

    Args:
        kept: our routes that were in the table after the last check, by route key.
        failures: for each route key, how often the route was lost or couldn't be written.
        due: when to write the next waiting route, or to look again after another run, on the
            scope's clock; None if nothing waits.
    """

    kept: dict[Hashable, Route] = attrs.field(factory=dict)
    failures: dict[Hashable, Failures] = attrs.field(factory=lambda: defaultdict(Failures))
    due: float | None = None

    def repair(self, config: Callable[[], Config], host: Host, scope: CancelScope) -> Repair:
        """Restore our routes as far as currently possible, without touching other programs' routes.

        Args:
            config: a function that returns the wanted config. It is called with the lock held,
                because other runs change the config and the routes under the same lock.
            host: the host to repair.
            scope: cancels the repair and rolls back its changes.

        Returns:
            The result; failed repairs are listed in ``problems``.
        """
        self.due = None
        try:
            with locked(host.layout.lock, scope):
                if exists(host.layout.trial):
                    return Repair(
                        len(self.kept), problems=("doesn't change routes during a trial",)
                    )
                if is_held(host.layout.run_lock):
                    # If the other run fails, it restores the old routes first and the old manifest
                    # afterwards. In between, the manifest would make us install the new routes
                    # again.
                    self.due = scope.clock.monotonic() + _RUN_SECONDS
                    return Repair(len(self.kept))
                wanted = config()
                backends = host.backends(wanted.static_routes.families)
                plan, problems = plan_repair(wanted, *backends)
                repair = self._carry_out(plan, backends, scope)
                problems += repair.problems
                try:
                    verify_routes((*self.kept.values(), *plan.foreign), *backends)
                except RouteError as error:
                    problems.append(str(error))
                return attrs.evolve(repair, problems=tuple(problems))
        except HostRoutingError as error:
            return Repair(len(self.kept), problems=(str(error),))

    def _carry_out(
        self, plan: RoutePlan, backends: Iterable[RouteBackend], scope: CancelScope
    ) -> Repair:
        now = scope.clock.monotonic()
        wanted = _writes(plan)
        # If a route needs a change even though nothing has touched it since the last check, the
        # default route has changed.
        follows = {item.new.key for item in plan.replace if self._is_as_left(item.old)}
        contested: dict[Failures, list[Route]] = {}
        for key, route in wanted.items():
            if key in self.kept and key not in follows:
                self.failures[key] = self.failures[key].again(now)
                if self.failures[key].wait_seconds:
                    contested.setdefault(self.failures[key], []).append(route)

        todo = plan.only(lambda route: self.failures.get(route.key, Failures()).due <= now)
        done, refused = RoutePlan(), dict[Route, str]()
        try:
            with all_or_nothing() as undo:
                for backend in backends:
                    applied, failed = apply_possible(todo.of(backend.family), backend, scope, undo)
                    done, refused = done | applied, refused | failed
        except RouteError as error:
            done, refused = RoutePlan(), dict.fromkeys(_changes(todo).values(), str(error))
        for route, reason in refused.items():
            self.failures[route.key] = self.failures[route.key].again(now, reason)

        written = _writes(done)
        fixed = {Drift.UNWANTED: list(done.remove)}
        for key, route in written.items():
            if self.failures[key].reason:
                del self.failures[key]
            fixed.setdefault(Drift.DEFAULT_CHANGED if key in follows else Drift.LOST, []).append(
                route
            )
        # Without refusals, all of ``todo`` is completed. A route to remove that ``done`` lacks
        # didn't need removing: it was gone, or is another program's by now.
        completed = _changes(done if refused else todo)
        left = {key: self.failures[key] for key in _changes(plan) if key not in completed}
        reasons = dict.fromkeys(each.reason for each in left.values() if each.reason)
        self.kept = {route.key: route for route in plan.unchanged} | written
        self.due = min((each.due for each in left.values()), default=None)
        waiting = tuple(
            route for key, route in wanted.items() if key in left and not left[key].reason
        )
        return Repair(
            len(self.kept), fixed, contested, waiting, ("\n".join(reasons),) if reasons else ()
        )

    def _is_as_left(self, ours: Route) -> bool:
        left = self.kept.get(ours.key)
        return left is not None and is_same(left, ours)


def _writes(plan: RoutePlan) -> dict[Hashable, Route]:
    return {route.key: route for route in (*plan.add, *(item.new for item in plan.replace))}


def _changes(plan: RoutePlan) -> dict[Hashable, Route]:
    return _writes(plan) | {route.key: route for route in plan.remove}


def plan_repair(config: Config, *backends: RouteBackend) -> tuple[RoutePlan, list[str]]:
    """Plan all repairs that are currently possible, and describe what blocks the rest.

    Unlike ``routes.plan.plan_now``, this isn't all-or-nothing, so a route with a missing device
    doesn't block the others. Nothing is removed while any repair is blocked. Without any wanted
    routes, this is a no-op.

    Args:
        config: the wanted routes.
        backends: the backends for kernel access, one for each address family.

    Returns:
        The plan, and the reasons why other repairs are blocked.

    Raises:
        RouteError: the kernel's routes can't be queried.
    """
    plan, problems = RoutePlan(), list[str]()
    for backend in backends if config.static_routes.routes else ():
        wanted, main = config.static_routes.of(backend.family), backend.routes(Table.MAIN)
        uplinks = uplinks_of(config, backend, backends)
        try:
            routes, missing = resolve(wanted, backend.links(), backend.addresses(), main, uplinks)
        except RouteError as error:
            problems.append(str(error))
            continue
        of_family, refusals = plan_possible(routes, main)
        plan |= of_family
        if refusals:
            problems.append("\n".join(map(str, refusals)))
        if missing:
            problems.append(f"can't keep all static routes without {missing}")
    if problems:
        # Don't remove anything, because a route may only look obsolete while its device or gateway
        # is missing.
        plan = attrs.evolve(plan, unchanged=(*plan.unchanged, *plan.remove), remove=())
    return plan, problems
