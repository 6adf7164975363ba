"""Our routes, put back where they were lost: what can be, whatever else stands in the way, and when."""

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

# --- when ----------------------------------------------------------------------------------------------------------

# Once or twice is an accident: a daemon that starts anew, a cable. What goes wrong again and again does so on purpose,
# or will not get better soon; then it is tried later each time.
_ACCIDENTS_MAX = 2
_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 300.0
# What goes well for so long is over.
_FORGET_SECONDS = 900.0


@attrs.frozen
class Failures:
    """Count of how often one thing failed.

    Args:
        count: how many times, since it last went well for long.
        last: when, by the watcher's clock.
    """

    count: int = 0
    last: float = 0.0

    @property
    def wait_seconds(self) -> float:
        """Return the seconds between the last time and the next try; 0: at once, as it may have been an accident."""
        doublings = min(self.count - _ACCIDENTS_MAX - 1, 16)
        return min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0**doublings) if doublings >= 0 else 0.0

    @property
    def due(self) -> float:
        """Return when it is tried again."""
        return self.last + self.wait_seconds

    def again(self, now: float) -> Failures:
        """Count one more that happens now; those before a long time without one are forgotten."""
        return Failures(self.count + 1 if now < self.due + _FORGET_SECONDS else 1, now)


# --- what ----------------------------------------------------------------------------------------------------------


class Drift(StrEnum):
    """Kinds of drift of a route, as the metrics name them."""

    MISSING = "missing"
    """No earlier look has seen it: it was missing at the first, or is new in the config."""
    LOST = "lost"
    DEFAULT_CHANGED = "default-changed"
    UNWANTED = "unwanted"


@attrs.frozen
class Repair:
    """State of our routes after a look, and what it took.

    Args:
        kept: how many of ours are in the table now.
        fixed: those that were put right, as they are now, by what was wrong with them.
        contested: those that another program has just removed once more, on purpose, by how often.
        waiting: those that are lost, and are put back later, since another program keeps removing them.
        problems: why not all is as wanted, in words.
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
    """Keeps our routes in the table, and knows from one look to the next how they were.

    Args:
        kept: ours that were in the table after the last look, by their keys.
        seen: the keys of those that were in it after any look.
        refusals: why the last try to write a route failed, in words, by their keys.
        losses: how often each was removed, by their keys.
        tries: how often each was written without being seen as wanted afterwards, by their keys.
        due: when a route may be written that may not yet, by the scope's clock; None if none waits for it.
    """

    kept: dict[Hashable, Route] = attrs.field(factory=dict)
    seen: set[Hashable] = attrs.field(factory=set)
    refusals: dict[Hashable, str] = attrs.field(factory=dict)
    losses: defaultdict[Hashable, Failures] = attrs.field(factory=_no_failures)
    tries: defaultdict[Hashable, Failures] = attrs.field(factory=_no_failures)
    due: float | None = None

    def repair(self, config: Callable[[], Config], host: Host, scope: CancelScope) -> Repair:
        """Have the table hold our routes, as far as that goes now; no other program's route is touched.

        Args:
            config: gives what is wanted; asked under the lock, as who changes the one changes the other with it.
            host: whose kernel.
            scope: ends it; what was begun is put back.

        Returns:
            What became of them; what couldn't be done is among its ``problems``.
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
        # What has to change though it is as at the last look follows the default route.
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
    """Plan what can be put right at this moment, and say what can't.

    Unlike ``routes.plan.plan_now`` it doesn't wait for all: a route whose device is gone keeps no other one lost. Where
    something is missing nothing is removed, and without wanted routes nothing is touched at all.

    Args:
        config: what is wanted.
        backend: the kernel.

    Returns:
        The plan, and what stands in the way of the rest, in words.

    Raises:
        RouteError: the kernel can't be asked, or waiting can't help one of them.
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
        # What would be removed stays, some of it only because what it needs is missing.
        plan = attrs.evolve(plan, unchanged=(*plan.unchanged, *plan.remove), remove=())
    return plan, problems
