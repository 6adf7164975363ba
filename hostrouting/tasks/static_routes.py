"""ConfigureStaticRoutes: install the part for the next boot and the routes; and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.boot.alone import alone
from hostrouting.boot.files import locked
from hostrouting.boot.host import Host
from hostrouting.boot.installation import install_part, remove_parts, start_oneshot
from hostrouting.boot.manifest import ROUTES
from hostrouting.boot.parts import routes_part
from hostrouting.model.routes import Table
from hostrouting.routes.install import apply_routes
from hostrouting.routes.plan import RoutesReport, plan_routes
from hostrouting.tasks.install_routes import await_network, carry_out
from phases import CancelScope, all_or_nothing

if TYPE_CHECKING:
    from hostrouting.config.routing import Config
    from hostrouting.model.routes import Route

__all__ = ["ConfigureStaticRoutes", "remove_routes"]


@attrs.frozen
class ConfigureStaticRoutes:
    """Install the static routes of a config, so that longest-prefix match beats a shadowing route.

    Ours of an earlier run that are no longer wanted are removed; nothing of anybody else's is ever changed.

    Args:
        config: what is wanted.
        host: where; None: this host.
    """

    name = "configure-static-routes"

    config: Config
    host: Host | None = attrs.field(default=None, kw_only=True)

    def do(self, scope: CancelScope) -> RoutesReport:
        """Do it.

        Returns:
            What was added, replaced, removed, and left alone.

        Raises:
            RouteError: a route can't be installed or doesn't win; everything is as before.
            FileError: a file can't be written, or the lock can't be taken; everything is as before.
        """
        host = self.host or Host()
        has_routes = bool(self.config.static_routes.routes)
        with alone(host, scope, is_wanting=has_routes):
            if not has_routes:
                return remove_routes(host, scope)
            report = self._install(host, scope)
            start_oneshot(host, ROUTES)
        return report

    def _install(self, host: Host, scope: CancelScope) -> RoutesReport:
        if not host.is_image:
            await_network(self.config, host, scope)
        with all_or_nothing(scope) as undo:
            # Before the routes: a script of before that still waits for the lock sees that it was replaced.
            install_part(host, self.config.consumer, routes_part(self.config, host.layout), undo)
            return RoutesReport() if host.is_image else carry_out(self.config, host, scope)


def remove_routes(host: Host, scope: CancelScope) -> RoutesReport:
    """Take back what an earlier run installed; touch nothing if none did.

    First what would install the routes again.
    """
    remove_parts(host, scope, ROUTES)
    if not _ours(host):
        return RoutesReport()
    with locked(host.layout.lock, scope):
        plan = plan_routes((), _ours(host))
        with all_or_nothing(scope) as undo:
            apply_routes(plan, host.routes, scope, undo)
    return RoutesReport(plan)


def _ours(host: Host) -> tuple[Route, ...]:
    if host.is_image:
        return ()
    return tuple(route for route in host.routes.routes(Table.MAIN) if route.is_ours)
