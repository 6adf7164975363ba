"""ConfigureStaticRoutes: look -> resolve -> plan -> install the part -> install the routes -> verify -> report."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs

from hostrouting.boot.files import locked
from hostrouting.boot.host import Host
from hostrouting.boot.installation import exclusive, install_part, is_installed, remove_part
from hostrouting.boot.manifest import ROUTES
from hostrouting.boot.parts import routes_part
from hostrouting.kernel.waiting import look_until
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import Table
from hostrouting.routes.install import apply_routes
from hostrouting.routes.plan import RoutesReport, plan_now, plan_routes
from hostrouting.routes.verify import verify_routes
from phases import CancelScope, all_or_nothing

if TYPE_CHECKING:
    from hostrouting.boot.parts import Part
    from hostrouting.config.routing import Config
    from hostrouting.model.routes import Route

__all__ = ["ConfigureStaticRoutes", "InstallRoutes", "remove_routes"]


def _carry_out(config: Config, host: Host, scope: CancelScope, part: Part | None) -> RoutesReport:
    """The way of the routes to the kernel: wait, plan, install, prove; or put back what was changed."""

    def look() -> tuple[RoutesReport, str | None]:
        with locked(host.layout.lock, scope):
            plan, missing = plan_now(config, host.routes)
            if missing is None:
                with all_or_nothing(scope) as undo:
                    if part is not None:
                        install_part(host, config.consumer, part, undo)
                    apply_routes(plan, host.routes, scope, undo)
                    verify_routes(plan.wanted, host.routes)
            return RoutesReport(plan), missing

    report, missing = look_until(host.routes, scope, config.wait_seconds, look)
    if missing is not None:
        raise RouteError(
            f"can't install the static routes: waited {config.wait_seconds} s and still missing is {missing}; "
            "bring it up, name another gateway or dev, or raise waitSeconds"
        )
    return report


@attrs.frozen
class InstallRoutes:
    """Give the kernel the static routes, all of them or none, and nothing else: no file but the lock is written.

    Args:
        config: what is wanted.
        host: where; None: this host.
    """

    name: ClassVar[str] = "install-routes"

    config: Config
    host: Host | None = attrs.field(default=None, kw_only=True)

    def do(self, scope: CancelScope) -> RoutesReport:
        """Do it.

        Raises:
            RouteError: a route can't be installed or doesn't win; the table is as before.
            FileError: the lock can't be taken.
        """
        return _carry_out(self.config, self.host or Host(), scope, None)


@attrs.frozen
class ConfigureStaticRoutes:
    """Install the static routes of a config, so that longest-prefix match beats a shadowing route.

    Ours of an earlier run that are no longer wanted are removed; nothing of anybody else's is ever changed.

    Args:
        config: what is wanted.
        host: where; None: this host.
    """

    name: ClassVar[str] = "configure-static-routes"

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
        if not self.config.static_routes.routes:
            return remove_routes(host, scope)
        part = routes_part(self.config, host.layout)
        if host.is_image:
            with all_or_nothing(scope) as undo:
                install_part(host, self.config.consumer, part, undo)
            return RoutesReport()
        return _carry_out(self.config, host, scope, part)


def remove_routes(host: Host, scope: CancelScope) -> RoutesReport:
    """Take back what an earlier run installed; touch nothing if none did."""
    if not is_installed(host, ROUTES) and not _ours(host):
        return RoutesReport()
    with exclusive(host, scope):
        plan = plan_routes((), _ours(host))
        if not plan.is_empty:
            with all_or_nothing(scope) as undo:
                apply_routes(plan, host.routes, scope, undo)
        remove_part(host, ROUTES)
    return RoutesReport(plan)


def _ours(host: Host) -> tuple[Route, ...]:
    if host.is_image:
        return ()
    return tuple(route for route in host.routes.routes(Table.MAIN) if route.is_ours)
