"""Install routes in the kernel: wait -> lock -> plan -> install -> verify."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import attrs

from hostrouting.boot.files import remove
from hostrouting.boot.go_package import routes_to_adopt
from hostrouting.boot.host import Host
from hostrouting.boot.locks import exclusive_run, locked
from hostrouting.config.routing import Config, StaticRoute
from hostrouting.host_files.advertisements import why_ignored
from hostrouting.kernel.default_routes import default_route
from hostrouting.kernel.port import RouteBackend, read_default_routes, read_routes
from hostrouting.kernel.waiting import look_until
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family
from hostrouting.model.routes import Route6, Table
from hostrouting.routes.install import apply_routes
from hostrouting.routes.plan import (
    MISSING_HINT,
    RoutePlan,
    RoutesReport,
    find_missing,
    plan_now,
    uplinks_of,
)
from hostrouting.routes.verify import verify_routes
from hostrouting.tasks.arguments import ConfigTask
from phases import CancelScope, Undo, all_or_nothing


def wait_for_network(
    config: Config,
    host: Host,
    scope: CancelScope,
    started: float,
) -> None:
    """Wait until the host has everything that a config's routes need, without holding a lock.

    If a route can never be installed, the wait ends without an error. The error is raised when the
    routes are planned.

    Args:
        started: when the run started. The wait ends at most ``wait_seconds`` later.

    Raises:
        RouteError: a default route, a device or a gateway is still missing at the end, or the
            kernel can't be queried.
    """
    backends = host.backends(config.static_routes.families)

    def look() -> str | None:
        try:
            return find_missing(config, *backends)
        except RouteError:  # waiting doesn't help, and planning raises the error again
            return None

    # The IPv6 backend also notices IPv4 changes.
    missing = look_until(backends[-1], scope, started, config.wait_seconds, look)
    if missing is not None:
        raise _waited_in_vain(missing, config, host)


def _waited_in_vain(missing: str, config: Config, host: Host) -> RouteError:
    hints = (*why_no_default6(config, host), f"{MISSING_HINT}, or raise waitSeconds")
    return RouteError(
        f"can't install the static routes: timed out after {config.wait_seconds} s "
        f"waiting for {missing}",
        hint="; ".join(hints),
    )


def why_no_default6(config: Config, host: Host) -> tuple[str, ...]:
    """Return a sentence for each interface that ignores the advertisements of a default route.

    An interface is examined only if the config's routes inherit from an IPv6 default route through
    it, and there is no such route. For a snapshot, which has no sysctls, the result is empty.

    Raises:
        RouteError: the kernel can't be queried.
    """
    wanted = config.static_routes.of(Family.IPV6)
    if not wanted or host.snapshot is not None:
        return ()
    backend = host.routes_of(Family.IPV6)
    uplinks = uplinks_of(config, backend, [host.routes])
    defaults = read_default_routes(backend)
    links = backend.facts().links
    inheriting = [route for route in wanted if route.gateway is None or route.dev is None]
    reasons: set[str] = set()
    for devs in {uplinks if route.dev is None else (route.dev,) for route in inheriting}:
        if default_route(defaults, devs) is None:
            reasons.update(why_ignored(host.layout, links, devs))
    return tuple(sorted(reasons))


@contextmanager
def planned_routes(
    config: Config,
    host: Host,
    scope: CancelScope,
    started: float,
    adopted: Sequence[StaticRoute] = (),
) -> Iterator[RoutePlan]:
    """Wait until the routes can be planned, plan them, and hold the lock for the ``with`` block.

    Args:
        started: when the run started, for ``wait_for_network``.
        adopted: the Go package's routes to take over.

    Raises:
        RouteError: the wait timed out (see ``wait_for_network``), a route can't be installed as
            configured, a conflicting route exists, or the kernel can't be queried.
        FileError: the lock can't be acquired.
    """
    while True:
        with locked(host.layout.lock, scope):
            backends = host.backends(config.static_routes.families)
            plan, missing = plan_now(config, *backends, adopted=adopted)
            if missing is None:
                yield plan
                return
        if scope.clock.monotonic() >= started + config.wait_seconds:
            raise _waited_in_vain(missing, config, host)
        wait_for_network(config, host, scope, started)


def apply_and_verify(
    plan: RoutePlan,
    host: Host,
    scope: CancelScope,
    undo: Undo,
) -> RoutePlan:
    """Apply a plan to the kernel, and verify its routes.

    Returns:
        The executed plan.

    Raises:
        RouteError: a route can't be installed or isn't used by the kernel. ``undo`` covers the
            changes made so far.
    """
    backends = host.backends(plan.families)
    done = RoutePlan()
    for backend in backends:
        of_family = plan.of(backend.family)
        verify_early = partial(_verify_early, of_family, backend)
        done |= apply_routes(of_family, backend, scope, undo, verify_early)
    verify_routes(plan.wanted, *backends)
    return done


def _verify_early(plan: RoutePlan, backend: RouteBackend) -> None:
    """Verify the wanted routes before our old ones are removed, if these couldn't be put back.

    If another program's next hops or entries follow our old routes, a rollback couldn't put ours
    back in front of them.
    """
    ours = [route for route in plan.remove if isinstance(route, Route6)]
    keys = {route.key for route in ours if route.source_prefix is None}
    table = read_routes(backend, Table.MAIN) if keys else ()
    shares_hops = any(len(route.hops) > 1 for route in ours)
    has_followers = any(route.key in keys and not route.is_ours for route in table)
    if shares_hops or has_followers:
        verify_routes(plan.wanted, backend, has_old=True)


def write_routes(
    config: Config,
    host: Host,
    scope: CancelScope,
    started: float,
    adopted: Sequence[StaticRoute],
) -> RoutePlan:
    """Install a config's routes in the kernel, verify them, and remove our other routes.

    This is atomic: if a route can't be installed, none is. Routes that are taken over from the Go
    package are removed, too, unless the config has them. The arguments are those of
    ``planned_routes``.

    Returns:
        The executed plan. Any trial has been ended.

    Raises:
        RouteError: a route can't be installed, or the kernel doesn't use it. The table is
            unchanged.
        FileError: the lock can't be acquired.
    """
    with planned_routes(config, host, scope, started, adopted) as plan, all_or_nothing() as undo:
        done = apply_and_verify(plan, host, scope, undo)
        scope.check()
        remove(host.layout.trial)
        remove(host.layout.adopted)
    return done


@attrs.frozen
class InstallRoutes(ConfigTask):
    """Install all static routes in the kernel, or none, and write no file except the lock's."""

    name = "install-routes"

    def do(self, scope: CancelScope) -> RoutesReport:
        """Install the routes.

        Raises:
            RouteError: a route can't be installed, or the kernel doesn't use it. The table is
                unchanged.
            FileError: the lock can't be acquired.
        """
        with exclusive_run(self.host, scope, is_installing=True):
            adopted = routes_to_adopt(self.host, replaces_script=False)
            plan = write_routes(self.config, self.host, scope, scope.clock.monotonic(), adopted)
            remove(self.host.layout.confirmed)
        return RoutesReport(plan, plan.changes)
