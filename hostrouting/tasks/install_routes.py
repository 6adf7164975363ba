"""InstallRoutes: wait -> plan -> install -> verify -> report; apart, as this alone needs nothing that boots."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs

from hostrouting.boot.files import locked
from hostrouting.boot.host import Host
from hostrouting.kernel.waiting import look_until
from hostrouting.model.errors import RouteError
from hostrouting.routes.install import apply_routes
from hostrouting.routes.plan import RoutesReport, plan_now
from hostrouting.routes.verify import verify_routes
from phases import CancelScope, all_or_nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.config.routing import Config
    from phases import Undo

__all__ = ["InstallRoutes", "carry_out"]


def carry_out(config: Config, host: Host, scope: CancelScope, first: Callable[[Undo], object]) -> RoutesReport:
    """Take the routes to the kernel: wait, plan, install, prove; or put back what was changed.

    Args:
        config: what is wanted.
        host: where.
        scope: ends the wait.
        first: is done before the table is changed.

    Raises:
        RouteError: as of the tasks.
        FileError: the lock can't be taken.
    """

    def look() -> tuple[RoutesReport, str | None]:
        with locked(host.layout.lock, scope):
            plan, missing = plan_now(config, host.routes)
            if missing is None:
                with all_or_nothing(scope) as undo:
                    first(undo)
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
        return carry_out(self.config, self.host or Host(), scope, lambda _: None)
