"""Configure: the tasks together; and RemoveHostRouting, the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.boot.alone import alone
from hostrouting.boot.host import Host
from hostrouting.boot.manifest import CHECK, ROUTES
from hostrouting.tasks.route_overlap import CheckRouteOverlap, remove_markers
from hostrouting.tasks.static_routes import ConfigureStaticRoutes, remove_routes
from hostrouting.tasks.watch import ConfigureWatch, remove_watch
from phases import CancelScope, Serial

if TYPE_CHECKING:
    from hostrouting.config.routing import Config
    from hostrouting.overlap.findings import OverlapReport
    from hostrouting.routes.plan import RoutesReport

__all__ = ["Configure", "RemoveHostRouting"]


@attrs.frozen
class Configure:
    """Install the static routes and the watcher, then prove that every expected CIDR leaves by the default interface.

    Args:
        config: what is wanted.
        host: where; None: this host.
    """

    name = "configure"

    config: Config
    host: Host | None = attrs.field(default=None, kw_only=True)

    @property
    def tasks(self) -> tuple[ConfigureStaticRoutes, ConfigureWatch, CheckRouteOverlap]:
        """The tasks that this one is made of, in order; the check is the last, as it may raise in STRICT mode."""
        config, host = self.config, self.host or Host()
        return (
            ConfigureStaticRoutes(config, host=host),
            ConfigureWatch(config, host=host),
            CheckRouteOverlap(config, host=host),
        )

    def do(self, scope: CancelScope) -> tuple[RoutesReport, OverlapReport]:
        """Do all of them.

        Returns:
            The reports of the routes and of the check.

        Raises:
            HostRoutingError: what any of them raises; the check doesn't run after a failed installation.
        """
        is_wanting = bool(self.config.static_routes.routes or self.config.route_overlap.expected_cidrs)
        with alone(self.host or Host(), scope, is_wanting=is_wanting):
            routes, _, overlap = Serial(*self.tasks, name=self.name).do(scope)
        return routes, overlap


@attrs.frozen
class RemoveHostRouting:
    """Take back everything that was ever installed, without the config that asked for it.

    Args:
        host: where; None: this host.
    """

    name = "remove-host-routing"

    host: Host | None = attrs.field(default=None, kw_only=True)

    def do(self, scope: CancelScope) -> RoutesReport:
        """Do it.

        Returns:
            The routes that were removed.

        Raises:
            RouteError: a route can't be removed; the table is as before.
            FileError: a file can't be removed; a later run goes on from there.
        """
        host = self.host or Host()
        with alone(host, scope, is_wanting=False):
            # All at once: without its routes a node isn't let through by a check that is left.
            remove_watch(host, scope, CHECK, ROUTES)
            remove_markers(host, scope)
            return remove_routes(host, scope)
