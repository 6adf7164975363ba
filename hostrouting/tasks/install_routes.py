"""InstallRoutes: wait -> plan -> install -> verify -> report; apart, as this alone needs nothing that boots."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from hostrouting.boot.files import alone, locked, remove
from hostrouting.boot.host import Host
from hostrouting.config.routing import Config
from hostrouting.kernel.port import look_until
from hostrouting.model.errors import RouteError
from hostrouting.routes.install import apply_routes
from hostrouting.routes.plan import RoutePlan, RoutesReport, plan_now
from hostrouting.routes.verify import verify_routes
from hostrouting.tasks.arguments import ConfigTask
from phases import CancelScope, all_or_nothing


def await_network(
    config: Config, host: Host, scope: CancelScope, look: Callable[[], tuple[RoutePlan, str | None]] | None = None
) -> RoutePlan:
    """Wait until the routes can be installed.

    Args:
        config: what is wanted.
        host: whose kernel.
        scope: ends it.
        look: plans, and says what is missing; None: nothing is changed, and no lock is taken.

    Raises:
        RouteError: they never can, or not in time.
    """
    plan, missing = look_until(host.routes, scope, config.wait_seconds, look or (lambda: plan_now(config, host.routes)))
    if missing is not None:
        raise RouteError(
            f"can't install the static routes: waited {config.wait_seconds} s in vain for {missing}; "
            "bring it up, name another gateway or dev, or raise waitSeconds"
        )
    return plan


def carry_out(
    config: Config, host: Host, scope: CancelScope, begin_trial: Callable[[], None] | None = None
) -> RoutePlan:
    """Take the routes to the kernel: wait, plan, install, prove; or put back what was changed.

    Args:
        config: what is wanted.
        host: whose kernel.
        scope: ends it.
        begin_trial: called with the lock before the first change; None: they are no trial, and end one that stands.

    Raises:
        RouteError: as of the tasks.
        FileError: the lock can't be taken.
    """

    def look() -> tuple[RoutePlan, str | None]:
        with locked(host.layout.lock, scope):
            plan, missing = plan_now(config, host.routes)
            if missing is None:
                if begin_trial is not None:
                    begin_trial()
                with all_or_nothing() as undo:
                    apply_routes(plan, host.routes, scope, undo)
                    verify_routes(plan.wanted, host.routes)
                    scope.check()  # the last look at which a cancel puts back
                if begin_trial is None:
                    remove(host.layout.trial)
            return plan, missing

    return await_network(config, host, scope, look)


@attrs.frozen
class InstallRoutes(ConfigTask):
    """Give the kernel the static routes, all of them or none, and nothing else: no file but the lock is written.

    Args:
        config: what is wanted.
        host: where; None: this host.
    """

    name = "install-routes"

    def do(self, scope: CancelScope) -> RoutesReport:
        """Do it.

        Raises:
            RouteError: a route can't be installed or doesn't win; the table is as before.
            FileError: the lock can't be taken.
        """
        with alone(self.host, scope, is_wanting=True) as run:
            plan = carry_out(self.config, self.host, scope)
            run.changes |= plan.changes
        return RoutesReport(plan, run.changes)
