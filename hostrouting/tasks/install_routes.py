"""Install routes in the kernel: wait -> lock -> plan -> install -> verify."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import attrs

from hostrouting.boot.files import remove
from hostrouting.boot.go_package import routes_to_adopt
from hostrouting.boot.host import Host
from hostrouting.boot.locks import Done, exclusive_run, locked
from hostrouting.config.routing import Config, StaticRoute
from hostrouting.host_files.advertisements import why_ignored
from hostrouting.kernel.default_routes import default_route
from hostrouting.kernel.port import RouteBackend, read_default_routes, read_routes
from hostrouting.kernel.waiting import look_until
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family
from hostrouting.model.routes import Route6, Table
from hostrouting.model.verified_uplinks import find_verified
from hostrouting.overlap.may_divert import may_divert
from hostrouting.routes.install import apply_routes
from hostrouting.routes.plan import (
    RoutePlan,
    RoutesReport,
    find_awaited,
    find_gone_uplink,
    find_missing,
    missing_hint,
    plan_now,
    uplinks_of,
)
from hostrouting.routes.verify import verify_routes
from hostrouting.tasks.arguments import ConfigTask
from hostrouting.tasks.remaining import final_note, record_remaining
from phases import CancelScope, Undo, all_or_nothing


def wait_for_network(
    config: Config,
    host: Host,
    scope: CancelScope,
    started: float,
) -> None:
    """Wait until the host has everything that a config's routes need, without holding a lock.

    Then wait for the addresses of kept interfaces, too. If a route can never be installed, the wait
    ends, and planning the routes raises the error.

    Args:
        started: when the run started. The wait for default routes and interfaces ends at most
            ``wait_seconds`` after the start, and the wait for addresses ``address_seconds`` after
            the start.

    Raises:
        RouteError: a default route, a device or a gateway is still missing at the end, or the
            kernel can't be queried.
    """
    backends = host.backends(config.static_routes.families)

    def look() -> str | None:
        try:
            return find_missing(config, *backends)
        except RouteError:  # waiting doesn't help; the caller's plan raises the error again
            return None

    def look_for_uplink() -> str | None:
        return find_gone_uplink(config, host.routes)

    if config.static_routes.routes:
        # Wait for a missing verified uplink, but don't fail without it: then the interface of the
        # default route becomes the uplink.
        look_until(host.routes, scope, started, config.wait_seconds, look_for_uplink)
    # The IPv6 backend also notices IPv4 changes.
    missing = look_until(backends[-1], scope, started, config.wait_seconds, look)
    if missing is not None:
        raise _waited_in_vain(missing, config, host)
    if config.static_routes.keep:
        find = partial(find_awaited, config, host.routes)
        look_until(host.routes, scope, started, config.route_overlap.address_seconds, find)


def _waited_in_vain(missing: str, config: Config, host: Host) -> RouteError:
    hint = missing_hint(missing, config, host.backends(config.static_routes.families))
    hints = (
        *why_no_default6(config, host),
        hint if "uplinks" in hint else f"{hint}, or raise waitSeconds",
        *_ways_to_another_uplink(missing, config, host),
    )
    return RouteError(
        f"can't install the static routes: timed out after {config.wait_seconds} s "
        f"waiting for {missing}",
        hint="\n".join(hints),
    )


def _ways_to_another_uplink(missing: str, config: Config, host: Host) -> tuple[str, ...]:
    """Return how to name another uplink, for a missing verified uplink or default route."""
    verified = find_verified(config.verified, host.routes.facts().links)
    names = ",".join(verified)
    is_missing = bool(verified) and missing.startswith(f"the default route on {names} ")
    if config.uplinks is not None or not is_missing:
        return ()
    since = config.verified[0].since
    out = 'set hostRouting\'s "uplinks": ["NAME"], then: hostrouting apply'
    return (f"{names} is the uplink since {since}; if another one is wanted now: {out}",)


def why_no_default6(config: Config, host: Host) -> tuple[str, ...]:
    """Return a sentence for each interface that ignores the advertisements of a default route.

    An interface is examined only if the config's routes need an IPv6 default route through it, and
    this default route is missing. For a snapshot, which has no sysctls, the result is empty.

    Raises:
        RouteError: the kernel can't be queried.
    """
    wanted = config.static_routes.of(Family.IPV6)
    if not wanted or host.snapshot is not None:
        return ()
    backend = host.routes_of(Family.IPV6)
    links = backend.facts().links
    uplinks = uplinks_of(config, links, backend, [host.routes])
    defaults = read_default_routes(backend)
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
            plan, missing = plan_now(config, *host.planned_backends(config), adopted=adopted)
            waited = scope.clock.monotonic() - started
            is_awaited = plan.awaited and waited < config.route_overlap.address_seconds
            if missing is None and not is_awaited:
                yield _with_diverted(plan, config, host, scope)
                return
        if missing is not None and waited >= config.wait_seconds:
            raise _waited_in_vain(missing, config, host)
        wait_for_network(config, host, scope, started)


def _with_diverted(
    plan: RoutePlan,
    config: Config,
    host: Host,
    scope: CancelScope,
) -> RoutePlan:
    # RemoveHostRouting uses a config without routes and CIDRs.
    is_removal = not (config.static_routes.is_wanted or config.route_overlap.expected_cidrs)
    if is_removal or not plan.changes or not may_divert(plan, host):
        return plan
    from hostrouting.overlap.planned_host import diverted_by

    return attrs.evolve(plan, diverted=diverted_by(config, host, plan, scope))


def apply_and_verify(
    plan: RoutePlan,
    host: Host,
    scope: CancelScope,
    undo: Undo,
) -> RoutePlan:
    """Apply a plan to the kernel, and verify its routes and rules.

    Returns:
        The executed plan.

    Raises:
        RouteError: a route or rule can't be installed or isn't used by the kernel. ``undo`` can
            roll back the changes made so far.
    """
    backends = [host.routes_of(family) for family in Family if family in plan.families]
    done = RoutePlan()
    for backend in backends:
        of_family = plan.of(backend.family)
        change_rules = partial(_change_rules, of_family, backend, scope, undo)
        done |= apply_routes(of_family, backend, scope, undo, change_rules)
    # Verify the rules first, because a rule that comes too late may be why a route loses.
    verify_policies(plan, *backends)
    verify_routes(plan.wanted, *backends, removed=done.remove)
    return attrs.evolve(done, diverted=plan.diverted)


def _change_rules(
    plan: RoutePlan,
    backend: RouteBackend,
    scope: CancelScope,
    undo: Undo,
) -> None:
    """Change rules and side tables, between the additions to table main and its removals."""
    if plan.policies:
        from hostrouting.routes.install_policy import apply_policy

        for policy in plan.policies:
            apply_policy(policy, backend, scope, undo)
    _verify_early(plan, backend)


def verify_policies(plan: RoutePlan, *backends: RouteBackend) -> None:
    """Verify the rules and side tables of a plan that has been carried out.

    Raises:
        RouteError: another program's rule decides before ours, and the error names that rule; or a
            rule or route hasn't been added or removed.
    """
    if not plan.policies:
        return
    from hostrouting.routes.verify_policy import verify_policy, verify_policy_changes

    for backend in backends:
        for policy in plan.policies:
            if policy.family is backend.family:
                verify_policy_changes(policy, backend)
                verify_policy(policy.wanted, backend)


def _verify_early(plan: RoutePlan, backend: RouteBackend) -> None:
    """Verify the wanted routes before old ones are removed, if a rollback couldn't restore these.

    A rollback can't put a removed route back in front of another program's next hops or entries.
    """
    ours = [route for route in plan.remove if isinstance(route, Route6)]
    shares_hops = any(len(route.hops) > 1 for route in ours)
    if shares_hops or _has_followers(ours, backend):
        verify_routes(plan.wanted, backend, has_old=True)


def _has_followers(ours: Iterable[Route6], backend: RouteBackend) -> bool:
    """Return whether another program has added an entry with the key of one of our routes."""
    keys = {route.key for route in ours if route.source_prefix is None}
    if not keys:
        return False
    table = read_routes(backend, Table.MAIN)
    return any(route.key in keys and not route.is_ours for route in table)


def write_routes(
    config: Config,
    host: Host,
    scope: CancelScope,
    started: float,
    adopted: Sequence[StaticRoute],
    done: Done,
) -> RoutePlan:
    """Install a config's routes in the kernel, verify them, and remove our other routes.

    Either all routes are installed or none. A trial in progress ends. Our other routes include
    those taken over from the Go package, unless the config has them. The other arguments are those
    of ``planned_routes``.

    Args:
        done: records the attempted changes.

    Returns:
        The executed plan.

    Raises:
        RouteError: a route can't be installed, or the kernel doesn't use it. The table is
            unchanged.
        FileError: the lock can't be acquired.
    """
    with planned_routes(config, host, scope, started, adopted) as plan, all_or_nothing() as undo:
        done.attempted |= plan.changes
        executed = apply_and_verify(plan, host, scope, undo)
        scope.check()
        remove(host.layout.trial)
        remove(host.layout.adopted)
    return executed


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
        host = self.host
        with exclusive_run(host, scope, is_installing=True) as done:
            adopted = routes_to_adopt(host, replaces_script=False)
            config = host.with_verified(self.config)
            started = scope.clock.monotonic()
            with final_note(done), all_or_nothing() as undo:
                undo.push(partial(record_remaining, done, host))
                plan = write_routes(config, host, scope, started, adopted, done)
            done.succeed(plan.changes)
            remove(host.layout.confirmed)
        return RoutesReport(plan, done.changes)
