"""Our routes, put back where they were lost: what can be, whatever else stands in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.boot.files import locked
from hostrouting.model.errors import HostRoutingError, RouteError
from hostrouting.model.routes import Table
from hostrouting.routes.install import apply_what_goes
from hostrouting.routes.plan import RoutePlan, plan_routes
from hostrouting.routes.resolve import describe_missing, resolve
from hostrouting.routes.verify import verify_routes
from hostrouting.watch.backoff import Backoff, Losses, Repair
from phases import all_or_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.boot.host import Host
    from hostrouting.config.routing import Config
    from hostrouting.kernel.port import RouteBackend
    from hostrouting.model.routes import Route
    from phases import CancelScope

__all__ = ["plan_repair", "repair"]


def repair(config: Callable[[], Config], host: Host, scope: CancelScope, before: Repair | None) -> Repair:
    """Have the table hold our routes, as far as that goes now; nothing of anybody else's is touched.

    Args:
        config: gives what is wanted; asked again under the lock, as who changes the one changes the other with it.
        host: whose kernel.
        scope: ends it; what was begun is put back.
        before: the last look; None: this is the first.

    Returns:
        What became of them; what couldn't be done is its ``problem``.
    """
    now = scope.clock.monotonic()
    backoff, refused = (before.backoff, before.refused) if before else (Backoff(), Backoff())
    refusals = before.refusals if before else {}
    failures = before.failures if before else None
    kept: tuple[Route, ...] = before.kept if before else ()
    lost: tuple[Route, ...] = ()
    try:
        plan, problem = plan_repair(config(), host.routes)
        kept, done = plan.unchanged, RoutePlan()
        if plan.is_empty:
            failures = None
        elif before and failures and now < failures.due:
            return attrs.evolve(before, kept=kept, restored=(), followed=(), removed=(), lost=())
        else:
            with locked(host.layout.lock, scope):
                plan, problem = plan_repair(config(), host.routes)
                kept = plan.unchanged
                lost = _lost(before, plan)
                backoff = backoff.after(lost, now)
                with all_or_nothing(scope) as undo:
                    done, fresh = apply_what_goes(_due(plan, (backoff, refused), now), host.routes, scope, undo)
            refused = refused.after(fresh, now)
            refusals = {**refusals, **{route.key: reason for route, reason in fresh.items()}}
            failures = None
    except HostRoutingError as error:
        failed = Losses(failures.count + 1 if failures else 1, now)
        return Repair(
            kept,
            lost=lost,
            problem=str(error),
            backoff=backoff,
            refused=refused,
            refusals=refusals,
            failures=failed,
        )
    missed = _missed(plan, done)
    refusals = {route.key: refusals[route.key] for route in missed if route.key in refusals}
    left = _by_key(before)
    replaced = {item.new: _follows(item.old, left) for item in done.replace}
    result = Repair(
        kept=(*kept, *done.add, *replaced),
        restored=(*done.add, *(route for route, follows in replaced.items() if not follows)),
        followed=tuple(route for route, follows in replaced.items() if follows),
        removed=done.remove,
        lost=lost,
        waiting=tuple(route for route in missed if route.key not in refusals),
        problem=_lines(problem, *refusals.values()),
        backoff=backoff,
        refused=refused,
        refusals=refusals,
        failures=failures,
    )
    try:
        verify_routes((*result.kept, *plan.foreign), host.routes)
    except RouteError as error:
        return attrs.evolve(result, problem=_lines(result.problem, str(error)))
    return result


def _lines(*problems: str | None) -> str | None:
    return "\n".join(filter(None, problems)) or None


def plan_repair(config: Config, backend: RouteBackend) -> tuple[RoutePlan, str | None]:
    """Plan what can be put right at this moment, and say what can't.

    Unlike ``routes.plan.plan_now`` it doesn't wait for all: a route whose device is gone keeps no other one lost. Where
    something is missing nothing is removed, and without wanted routes nothing is touched at all.

    Args:
        config: what is wanted.
        backend: the kernel.

    Returns:
        The plan, and what stands in the way of the rest in words; None if nothing does.

    Raises:
        RouteError: the kernel can't be asked.
    """
    main = backend.routes(Table.MAIN)
    wanted = config.static_routes.routes
    if not wanted:
        return RoutePlan(), None
    links, addresses = backend.links(), backend.addresses()
    try:
        resolution = resolve(wanted, links, addresses, main)
    except RouteError as error:
        return RoutePlan(unchanged=tuple(route for route in main if route.is_ours)), str(error)
    problems = []
    if resolution.missing:
        problems.append(f"can't keep all static routes: still missing is {describe_missing(resolution.missing)}")
    try:
        plan = plan_routes(resolution.routes, main)
    except RouteError as error:
        plan = _plan_each(resolution.routes, main)
        problems.append(str(error))
    if problems:
        # What would be removed stays, some of it only because what it needs is missing.
        return attrs.evolve(plan, unchanged=(*plan.unchanged, *plan.remove), remove=()), "\n".join(problems)
    return plan, None


def _plan_each(routes: Sequence[Route], main: Sequence[Route]) -> RoutePlan:
    """The plans of those routes that nobody's stands in the way of."""
    there: dict[object, list[Route]] = {}
    for route in main:
        there.setdefault(route.destination, []).append(route)
    merged: dict[str, tuple[Route, ...]] = {}
    for route in routes:
        try:
            plan = plan_routes((route,), there.get(route.destination, ()))
        except RouteError:
            continue
        for name, items in attrs.asdict(plan, recurse=False).items():
            merged[name] = (*merged.get(name, ()), *items)
    return RoutePlan(**merged)  # type: ignore[arg-type]


def _lost(before: Repair | None, plan: RoutePlan) -> tuple[Route, ...]:
    """Routes that were there after the last look, and that somebody has removed or changed since."""
    if before is None:
        return ()
    kept = _by_key(before)
    changed = (item.new for item in plan.replace if not _follows(item.old, kept))
    return tuple(route for route in (*plan.add, *changed) if route.key in kept)


def _by_key(before: Repair | None) -> dict[object, Route]:
    """The routes that were there after the last look."""
    return {} if before is None else {route.key: route for route in before.kept}


def _follows(old: Route, kept: dict[object, Route]) -> bool:
    """Whether a route that has to change is as we left it: then it isn't it that has changed."""
    left = kept.get(old.key)
    return left is not None and left.has_same_next_hops(old)


def _due(plan: RoutePlan, waits: Sequence[Backoff], now: float) -> RoutePlan:
    def is_due(route: Route) -> bool:
        return all(backoff.is_due(route, now) for backoff in waits)

    return attrs.evolve(
        plan,
        add=tuple(route for route in plan.add if is_due(route)),
        replace=tuple(item for item in plan.replace if is_due(item.new)),
    )


def _missed(plan: RoutePlan, done: RoutePlan) -> tuple[Route, ...]:
    wanted = (*plan.add, *(item.new for item in plan.replace))
    written = {*done.add, *(item.new for item in done.replace)}
    return tuple(route for route in wanted if route not in written)
