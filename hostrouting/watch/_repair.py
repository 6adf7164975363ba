"""Restore our lost routes with backoff; those that can't be restored don't stop the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Set
from itertools import chain
from typing import NamedTuple

import attrs

from hostrouting.boot.files import is_present
from hostrouting.boot.host import Host
from hostrouting.boot.locks import is_held, locked
from hostrouting.config.routing import Config, StaticRoute
from hostrouting.kernel.port import RouteBackend, read_routes
from hostrouting.model.changes import Replacement
from hostrouting.model.errors import HostRoutingError, RouteError
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.jsonable import StrEnum
from hostrouting.model.routes import Route, Table
from hostrouting.model.values import frozen
from hostrouting.model.verified_uplinks import find_verified
from hostrouting.routes.install import apply_possible
from hostrouting.routes.plan import RoutePlan, plan_possible, resolve_with
from hostrouting.routes.verify import verify_routes
from hostrouting.watch._backoff import Failures
from hostrouting.watch._policy import PolicyReconciler, PolicyRepair
from phases import CancelScope, all_or_nothing

# The delay until the next attempt if an installation holds the run lock.
_RUN_SECONDS = 5.0


class Drift(StrEnum):
    """The reason for which a route is repaired. The values are labels of metrics."""

    LOST = "lost"
    DEFAULT_CHANGED = "default-changed"
    UNWANTED = "unwanted"


@frozen
class Repair:
    """The result of a repair, and the number of our routes afterwards.

    Args:
        in_place: number of our routes that are in the table.
        repaired: the restored, changed and removed routes by drift.
        lost_again: the routes that were lost since the previous repair, at least the third time.
            Routes with equal failure counters are listed together.
        waiting: the lost routes that aren't restored yet, because another program keeps removing
            them.
        unmoved: the routes that stay as they are, although their default route has moved to another
            interface. Each route is listed as it is and as it would be.
        policy: the repair of rules and side tables. None if the config has neither rules nor kept
            interfaces, or if the repair ended early.
        problems: descriptions of everything that couldn't be repaired.
        is_on_trial: whether nothing was repaired because a trial of routes is in progress.
    """

    in_place: int = 0
    repaired: dict[Drift, list[Route]] = attrs.field(factory=dict)
    lost_again: dict[Failures, list[Route]] = attrs.field(factory=dict)
    waiting: tuple[Route, ...] = ()
    unmoved: tuple[Replacement, ...] = ()
    policy: PolicyRepair | None = None
    problems: tuple[str, ...] = ()
    is_on_trial: bool = False


@attrs.define
class Reconciler:
    """A reconciler that keeps our routes in the table. It remembers how often each was lost.

    Args:
        in_place: our routes that were in the table after the last repair, by route key.
        former: our wanted routes as they last were in the table, by route key. A lost route stays
            in here.
        failures: for each route key, a counter of losses and failed writes of the route.
        policy: the reconciler of our rules and side tables.
        due: the time of the next attempt, on the scope's clock, if a route has to wait or an
            installation was in progress. Otherwise None.
    """

    in_place: dict[Hashable, Route] = attrs.field(factory=dict)
    former: dict[Hashable, Route] = attrs.field(factory=dict)
    failures: dict[Hashable, Failures] = attrs.field(factory=lambda: defaultdict(Failures))
    policy: PolicyReconciler = attrs.field(factory=PolicyReconciler)
    due: float | None = None

    def repair(self, config: Callable[[], Config], host: Host, scope: CancelScope) -> Repair:
        """Restore those of our routes that can be restored now. Leave other programs' routes alone.

        Args:
            config: a function that returns the wanted config. The function is called with the lock
                held, because other runs change the config and the routes under the same lock.
            host: the host to repair.
            scope: cancels the repair and rolls back its changes.

        Returns:
            The result; failed repairs are listed in ``problems``.
        """
        self.due = None
        try:
            with locked(host.layout.lock, scope):
                if is_present(host.layout.trial):
                    refusal = self._no_repair("doesn't change routes during a trial")
                    return attrs.evolve(refusal, is_on_trial=True)
                if is_held(host.layout.run_lock):
                    # An installation holds this lock. If the installation fails, it first restores
                    # the old routes, and then the old manifest. In between, the manifest still
                    # lists the new routes, and a repair would install them again.
                    self.due = scope.clock.monotonic() + _RUN_SECONDS
                    return self._no_repair()
                return self._repair(config(), host, scope)
        except HostRoutingError as error:
            return self._no_repair(error.clause)

    def _no_repair(self, *problems: str) -> Repair:
        return Repair(len(self.in_place), problems=problems)

    def _repair(self, config: Config, host: Host, scope: CancelScope) -> Repair:
        backends = host.backends(config.static_routes.families)
        plan, problems = plan_repair(config, *backends)
        plan, unmoved = without_moves(plan, config, self.former, backends)
        repair = self._write_due(plan, backends, scope)
        self._remember(plan, unmoved)
        problems += repair.problems
        try:
            verify_routes((*self.in_place.values(), *plan.foreign), *backends)
        except RouteError as error:
            problems.append(error.clause)
        policy = self._repair_policy(config, backends, scope)
        if policy is not None:
            problems += policy.problems
        return attrs.evolve(repair, unmoved=unmoved, policy=policy, problems=tuple(problems))

    def _repair_policy(
        self,
        config: Config,
        backends: Iterable[RouteBackend],
        scope: CancelScope,
    ) -> PolicyRepair | None:
        policy = self.policy.repair(config, backends, scope)
        if policy is not None and policy.due is not None:
            self.due = policy.due if self.due is None else min(self.due, policy.due)
        return policy

    def _write_due(
        self,
        plan: RoutePlan,
        backends: Iterable[RouteBackend],
        scope: CancelScope,
    ) -> Repair:
        """Write the routes that are due, and set ``due`` to the time at which the next one is due.

        A route that was lost once or twice is due at once. If the route keeps getting lost, or the
        kernel refuses it, the route's failure counter makes the route wait.

        Returns:
            A ``Repair`` without ``unmoved`` and ``policy``, and only with the kernel's refusals as
            ``problems``.
        """
        now = scope.clock.monotonic()
        outdated = self._outdated(plan)
        # Count the losses first, because ``_is_due`` reads the counters.
        lost_again = self._count_losses(plan, outdated, now)
        attempted = plan.only(lambda route: self._is_due(route, now))
        written, refused, settled = _write_possible(attempted, backends, scope)
        self._count_refusals(written, refused, now)
        self.in_place = {route.key: route for route in plan.unchanged} | _writes(written)
        postponed = {key: self.failures[key] for key in _changes(plan) if key not in settled}
        self.due = min((failures.due for failures in postponed.values()), default=None)
        return Repair(
            len(self.in_place),
            repaired=_by_drift(written, outdated),
            lost_again=lost_again,
            waiting=_waiting(plan, postponed),
            problems=_problems(postponed),
        )

    def _is_due(self, route: Route, now: float) -> bool:
        return self.failures.get(route.key, Failures()).due <= now

    def _outdated(self, plan: RoutePlan) -> set[Hashable]:
        """Return the keys of the routes to replace because the default route has changed.

        These routes inherit from the default route, and are still as the last repair left them.
        """
        outdated: set[Hashable] = set()
        for item in plan.replace:
            left = self.in_place.get(item.old.key)
            if left is not None and left.has_same_effect(item.old):
                outdated.add(item.new.key)
        return outdated

    def _count_losses(
        self,
        plan: RoutePlan,
        outdated: Container[Hashable],
        now: float,
    ) -> dict[Failures, list[Route]]:
        """Count a failure for each lost route. Return the routes that must wait now, by counter."""
        lost_again: dict[Failures, list[Route]] = {}
        for key, route in _writes(plan).items():
            is_lost = key in self.in_place and key not in outdated
            if not is_lost:
                continue
            failures = self.failures[key].again(now)
            self.failures[key] = failures
            if failures.wait_seconds:
                lost_again.setdefault(failures, []).append(route)
        return lost_again

    def _count_refusals(
        self,
        written: RoutePlan,
        refused: Mapping[Route, str],
        now: float,
    ) -> None:
        """Count a failure for each refused route. For written routes, forget former refusals."""
        for route, reason in refused.items():
            self.failures[route.key] = self.failures[route.key].again(now, reason)
        for key in _writes(written):
            # Keep a counter without a reason, because it counts losses.
            if self.failures[key].reason:
                del self.failures[key]

    def _remember(self, plan: RoutePlan, unmoved: Iterable[Replacement]) -> None:
        """Update ``former``. A lost route stays in it as long as the route is wanted."""
        wanted = {*_writes(plan), *(move.new.key for move in unmoved)}
        still_wanted = {key: route for key, route in self.former.items() if key in wanted}
        unmoved_routes = {move.old.key: move.old for move in unmoved}
        self.former = still_wanted | self.in_place | unmoved_routes


class _Attempt(NamedTuple):
    """The result of an attempt to carry out a plan.

    Args:
        written: the part of the plan that was carried out.
        refused: the routes that the kernel refused, each with the reason.
        settled: the keys of the routes that need no further attempt.
    """

    written: RoutePlan
    refused: Mapping[Route, str]
    settled: Set[Hashable]


def _write_possible(
    plan: RoutePlan,
    backends: Iterable[RouteBackend],
    scope: CancelScope,
) -> _Attempt:
    """Carry out as much of a plan as the kernel accepts."""
    written = RoutePlan()
    refused: dict[Route, str] = {}
    settled: set[Hashable] = set()
    try:
        with all_or_nothing() as undo:
            for backend in backends:
                of_family = plan.of(backend.family)
                applied, failed = apply_possible(of_family, backend, scope, undo)
                written |= applied
                refused |= failed
                # By then, a route to remove may have been gone, or replaced by another program.
                # This removal is settled, although ``applied`` lacks it. After a refusal, no route
                # was removed at all.
                settled.update(_changes(applied if failed else of_family))
    except RouteError as error:
        return _Attempt(RoutePlan(), dict.fromkeys(_changes(plan).values(), error.clause), set())
    return _Attempt(written, refused, settled)


def _by_drift(written: RoutePlan, outdated: Container[Hashable]) -> dict[Drift, list[Route]]:
    """Return the written and removed routes by drift.

    Args:
        written: the part of the plan that was carried out.
        outdated: the keys of the routes whose default route has changed.
    """
    repaired = {Drift.UNWANTED: list(written.remove)}
    for key, route in _writes(written).items():
        drift = Drift.DEFAULT_CHANGED if key in outdated else Drift.LOST
        repaired.setdefault(drift, []).append(route)
    return repaired


def _waiting(plan: RoutePlan, postponed: Mapping[Hashable, Failures]) -> tuple[Route, ...]:
    """Return the lost routes that have to wait; not those that the kernel has refused."""
    wanted = _writes(plan).items()
    return tuple(route for key, route in wanted if key in postponed and not postponed[key].reason)


def _problems(postponed: Mapping[Hashable, Failures]) -> tuple[str, ...]:
    reasons = dict.fromkeys(failures.reason for failures in postponed.values() if failures.reason)
    return ("\n".join(reasons),) if reasons else ()


def _writes(plan: RoutePlan) -> dict[Hashable, Route]:
    return {route.key: route for route in (*plan.add, *(item.new for item in plan.replace))}


def _changes(plan: RoutePlan) -> dict[Hashable, Route]:
    return _writes(plan) | {route.key: route for route in plan.remove}


def plan_repair(config: Config, *backends: RouteBackend) -> tuple[RoutePlan, list[str]]:
    """Plan all repairs that are currently possible, and describe why others aren't.

    Unlike ``routes.plan.plan_now``, plan the other routes even if a route's device is missing.
    While any repair is blocked, no route is removed. If the config has no static routes, the plan
    is empty.

    Args:
        config: the wanted routes.
        backends: the backends for kernel access, one for each address family.

    Returns:
        The plan, and the reasons why other repairs are blocked.

    Raises:
        RouteError: the kernel's routes can't be queried.
    """
    plan = RoutePlan()
    problems: list[str] = []
    for backend in backends if config.static_routes.routes else ():
        main = read_routes(backend, Table.MAIN)
        try:
            routes, missing = resolve_with(config, backend.facts(), main, backend, backends)
        except RouteError as error:
            problems.append(error.clause)
            continue
        of_family, refusals = plan_possible(routes, main)
        plan |= of_family
        if refusals:
            problems.append("\n".join(map(str, refusals)))
        if missing:
            problems.append(f"can't keep all static routes without {missing}")
    if problems:
        # Don't remove anything: while a wanted route's device or gateway is missing, the installed
        # route may look obsolete.
        plan = attrs.evolve(plan, unchanged=(*plan.unchanged, *plan.remove), remove=())
    return plan, problems


def without_moves(
    plan: RoutePlan,
    config: Config,
    former: Mapping[Hashable, Route],
    backends: Iterable[RouteBackend],
) -> tuple[RoutePlan, tuple[Replacement, ...]]:
    """Leave out of a plan the changes that would move a route along with the default route.

    For example, a VPN that adds a default route must not divert a running node. A route only
    follows the default route to another interface if the route's own interface is gone or has
    become a port of a bridge. If the config names uplinks, or verified ones exist, all routes
    follow.

    Args:
        plan: the repairs that the routes need.
        config: the wanted routes.
        former: our routes as the watcher last left them in the table, by route key.
        backends: the backends for kernel access, one for each address family.

    Returns:
        The plan without those changes, and those changes.
    """
    links = [*chain.from_iterable(backend.facts().links for backend in backends)]
    if config.uplinks is not None or find_verified(config.verified, links):
        return plan, ()
    inheriting = _inheriting(config.static_routes.routes)
    usable = {link.name for link in links if link.master is None}
    unmoved = tuple(
        pair for pair in _as_last_left(plan, former) if _moves(pair, inheriting, usable)
    )
    return _leaving(plan, {pair.new.key for pair in unmoved}), unmoved


def _as_last_left(plan: RoutePlan, former: Mapping[Hashable, Route]) -> Iterator[Replacement]:
    """Yield each route to add or replace, as the watcher last left it and as the plan writes it.

    Another program may have changed or removed the route in between.
    """
    for route in plan.add:
        if route.key in former:
            yield Replacement(former[route.key], route)
    for pair in plan.replace:
        yield Replacement(former.get(pair.new.key, pair.old), pair.new)


def _moves(
    pair: Replacement,
    inheriting: Container[tuple[IpNetwork, int]],
    usable: Set[str],
) -> bool:
    """Return whether a route that inherits its interface would move, although it needn't.

    Args:
        pair: the route as it is, and as planned.
        inheriting: destination and metric of the routes that inherit their interface.
        usable: the interfaces through which a route may still leave.
    """
    if (pair.new.destination, pair.new.metric) not in inheriting:
        return False
    devs = _devs_of(pair.old)
    return not usable.isdisjoint(devs) and not _devs_of(pair.new) <= devs


def _leaving(plan: RoutePlan, keys: Container[Hashable]) -> RoutePlan:
    """Return a plan that leaves the routes with the given keys as they are."""
    left = [pair for pair in plan.replace if pair.new.key in keys]
    return attrs.evolve(
        plan,
        add=tuple(route for route in plan.add if route.key not in keys),
        replace=tuple(pair for pair in plan.replace if pair.new.key not in keys),
        unchanged=(*plan.unchanged, *(pair.old for pair in left)),
    )


def _inheriting(static: Iterable[StaticRoute]) -> set[tuple[IpNetwork, int]]:
    """Return the destination and metric of each static route that inherits its interface."""
    inheriting: set[tuple[IpNetwork, int]] = set()
    for route in static:
        if route.dev is None:
            metric = route.metric or Family.of(route.destination).usual_metric
            inheriting.add((route.destination, metric))
    return inheriting


def _devs_of(route: Route) -> set[str | None]:
    """Return the interfaces of all hops, including dead ones."""
    return {hop.dev for hop in route.hops}
