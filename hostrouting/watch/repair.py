"""Our routes, put back where they were lost: what can be, whatever else stands in the way."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from hostrouting.boot.files import locked
from hostrouting.model.errors import HostRoutingError, RouteError
from hostrouting.model.routes import Table
from hostrouting.routes.install import apply_what_goes
from hostrouting.routes.plan import RoutePlan, plan_routes
from hostrouting.routes.resolve import describe_missing, resolve
from hostrouting.routes.verify import verify_routes
from hostrouting.watch.backoff import Backoff
from phases import all_or_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from hostrouting.boot.host import Host
    from hostrouting.config.routing import Config
    from hostrouting.kernel.port import RouteBackend
    from hostrouting.model.routes import Route
    from hostrouting.watch.backoff import Setbacks
    from phases import CancelScope

__all__ = ["Repair", "plan_repair", "repair"]


@attrs.frozen
class Repair:
    """How our routes are after a look, and what it took.

    Args:
        kept: ours that are in the table now, by their keys.
        restored: those that were lost since the last look, or missing at the first, and are back.
        followed: those that have changed with the default route, as they are now.
        removed: those that no config asks for any more.
        contested: those that somebody has just taken once more, on purpose, by how often.
        waiting: those that are lost, and are put back later since somebody takes them again and again.
        problems: why not all is as wanted, in words.
        refusals: why the last try to write a route failed, in words, by their keys.
        losses: how often somebody took each, by their keys.
        tries: how often each was written, by their keys, without being seen as wanted afterwards.
    """

    kept: dict[Hashable, Route] = attrs.field(factory=dict)
    restored: tuple[Route, ...] = ()
    followed: tuple[Route, ...] = ()
    removed: tuple[Route, ...] = ()
    contested: dict[Setbacks, list[Route]] = attrs.field(factory=dict)
    waiting: tuple[Route, ...] = ()
    problems: tuple[str, ...] = ()
    refusals: dict[Hashable, str] = attrs.field(factory=dict)
    losses: Backoff = attrs.field(factory=Backoff)
    tries: Backoff = attrs.field(factory=Backoff)

    def next_due(self, now: float) -> float | None:
        """The seconds until a route may be written that may not yet; None if none waits for it."""
        dues = [self.losses.of(route.key).due for route in self.waiting]
        dues += [self.tries.of(key).due for key in self.refusals]
        return max(0.0, min(dues) - now) if dues else None

    def is_due(self, route: Route, now: float) -> bool:
        """Whether a route may be written."""
        return now >= max(self.losses.of(route.key).due, self.tries.of(route.key).due)


def repair(config: Callable[[], Config], host: Host, scope: CancelScope, before: Repair) -> Repair:
    """Have the table hold our routes, as far as that goes now; nothing of anybody else's is touched.

    Args:
        config: gives what is wanted; asked under the lock, as who changes the one changes the other with it.
        host: whose kernel.
        scope: ends it; what was begun is put back.
        before: what became of them at the last look.

    Returns:
        What became of them; what couldn't be done is among its ``problems``.
    """
    now = scope.clock.monotonic()
    try:
        with locked(host.layout.lock, scope):
            plan, problems = plan_repair(config(), host.routes)
            found = _noticed(before, plan, now)
            todo = attrs.evolve(
                plan,
                add=tuple(route for route in plan.add if found.is_due(route, now)),
                replace=tuple(item for item in plan.replace if found.is_due(item.new, now)),
                remove=tuple(route for route in plan.remove if found.is_due(route, now)),
            )
            try:
                with all_or_nothing(scope) as undo:
                    done, refused = apply_what_goes(todo, host.routes, scope, undo)
            except RouteError as error:
                done, refused = RoutePlan(), dict.fromkeys(_changes(todo).values(), str(error))
            refusals = found.refusals | {route.key: reason for route, reason in refused.items()}
            tries = found.tries.after(_changes(todo), now)
            result = _after(attrs.evolve(found, refusals=refusals, tries=tries), before, plan, done, now)
            problems += filter(None, ["\n".join(dict.fromkeys(result.refusals.values()))])
            try:
                verify_routes((*result.kept.values(), *plan.foreign), host.routes)
            except RouteError as error:
                problems.append(str(error))
            return attrs.evolve(result, problems=tuple(problems))
    except HostRoutingError as error:
        return attrs.evolve(before, restored=(), followed=(), removed=(), contested={}, problems=(str(error),))


def _noticed(before: Repair, plan: RoutePlan, now: float) -> Repair:
    """Who of ours is still there, and who was lost: removed or changed by somebody since the last look."""
    changed = (item.new for item in plan.replace if not _is_as_left(item.old, before))
    lost = [route for route in (*plan.add, *changed) if route.key in before.kept]
    losses = before.losses.after([route.key for route in lost], now)
    contested: dict[Setbacks, list[Route]] = {}
    for route in lost:
        if (setbacks := losses.of(route.key)).is_no_accident:
            contested.setdefault(setbacks, []).append(route)
    tries = before.tries.only(_changes(plan))
    return attrs.evolve(before, kept=_by_key(plan.unchanged), contested=contested, losses=losses, tries=tries)


def _after(found: Repair, before: Repair, plan: RoutePlan, done: RoutePlan, now: float) -> Repair:
    """What became of them once some of a plan was done."""
    there = _changes(done)
    left = {key: route for key, route in _changes(plan).items() if key not in there}
    followed = tuple(item.new for item in done.replace if _is_as_left(item.old, before))
    restored = tuple(item.new for item in done.replace if not _is_as_left(item.old, before))
    return attrs.evolve(
        found,
        kept=found.kept | _by_key((*done.add, *followed, *restored)),
        restored=(*done.add, *restored),
        followed=followed,
        removed=done.remove,
        waiting=tuple(route for key, route in left.items() if now < found.losses.of(key).due),
        refusals={key: reason for key, reason in found.refusals.items() if key in left},
    )


def _by_key(routes: Iterable[Route]) -> dict[Hashable, Route]:
    return {route.key: route for route in routes}


def _changes(plan: RoutePlan) -> dict[Hashable, Route]:
    """What a plan writes and removes."""
    return _by_key((*plan.add, *(item.new for item in plan.replace), *plan.remove))


def _is_as_left(ours: Route, before: Repair) -> bool:
    """Whether a route that has to change is as it was at the last look: then what has changed is the default route."""
    left = before.kept.get(ours.key)
    return left is not None and left.has_same_next_hops(ours)


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
        RouteError: the kernel can't be asked.
    """
    main = backend.routes(Table.MAIN)
    wanted = config.static_routes.routes
    if not wanted:
        return RoutePlan(), []
    links, addresses = backend.links(), backend.addresses()
    try:
        resolution = resolve(wanted, links, addresses, main)
    except RouteError as error:
        return RoutePlan(unchanged=tuple(route for route in main if route.is_ours)), [str(error)]
    problems = []
    if resolution.missing:
        problems.append(f"can't keep all static routes: still missing is {describe_missing(resolution.missing)}")
    try:
        plan = plan_routes(resolution.routes, main)
    except RouteError as error:
        plan = plan_routes(tuple(_free(resolution.routes, main)), main)
        problems.append(str(error))
    if problems:
        # What would be removed stays, some of it only because what it needs is missing.
        plan = attrs.evolve(plan, unchanged=(*plan.unchanged, *plan.remove), remove=())
    return plan, problems


def _free(routes: Sequence[Route], main: Sequence[Route]) -> Iterator[Route]:
    """Those routes that nobody's stands in the way of."""
    there: dict[object, list[Route]] = {}
    for route in main:
        there.setdefault(route.destination, []).append(route)
    for route in routes:
        with suppress(RouteError):
            plan_routes((route,), there.get(route.destination, ()))
            yield route
