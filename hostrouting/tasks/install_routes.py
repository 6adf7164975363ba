"""Install the routes in the kernel, in the steps wait -> lock -> plan -> install -> verify."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import attrs

from hostrouting.boot.files import remove
from hostrouting.boot.host import Host
from hostrouting.boot.locks import exclusive_run, locked
from hostrouting.config.routing import Config
from hostrouting.kernel.waiting import Deadline, Deadlines, look_until
from hostrouting.model.errors import RouteError
from hostrouting.routes.install import apply_routes
from hostrouting.routes.plan import RoutePlan, RoutesReport, find_missing, plan_now
from hostrouting.routes.verify import verify_routes
from hostrouting.tasks.arguments import ConfigTask
from phases import CancelScope, all_or_nothing

# If something existed during the wait but not for the plan, it is unstable, so look again after this time.
_FLAP_SECONDS = 0.1


def wait_for_network(config: Config, host: Host, scope: CancelScope, deadline: Deadline) -> None:
    """Wait, without holding a lock, until the routes of a config can be planned.

    Args:
        config: the wanted routes.
        host: the host whose kernel is queried.
        scope: cancels the wait.
        deadline: the time at which to give up.

    Raises:
        RouteError: the deadline has passed, and the routes still can't be planned.
    """
    missing = look_until(host.routes, scope, deadline, partial(find_missing, config, host.routes))
    if missing is not None:
        raise _waited_in_vain(missing, deadline)


def _waited_in_vain(missing: str, deadline: Deadline) -> RouteError:
    return RouteError(
        f"can't install the static routes: waited {deadline.seconds:g} s in vain for {missing}",
        hint="bring it up, name another gateway or dev, or raise waitSeconds",
    )


@contextmanager
def planned_routes(config: Config, host: Host, scope: CancelScope, deadline: Deadline) -> Iterator[RoutePlan]:
    """Wait until the routes can be planned, then plan them under the lock, and hold it during the block.

    Raises:
        RouteError: as for ``wait_for_network``, or a conflicting route exists.
        FileError: the lock can't be taken.
    """
    while True:
        wait_for_network(config, host, scope, deadline)
        with locked(host.layout.lock, scope):
            plan, missing = plan_now(config, host.routes)
            if missing is None:
                yield plan
                return
        if deadline.is_over(scope):
            raise _waited_in_vain(missing, deadline)
        scope.wait(_FLAP_SECONDS)


def write_routes(config: Config, host: Host, scope: CancelScope, deadline: Deadline) -> RoutePlan:
    """Install the routes of a config in the kernel, verify them, and remove our other routes.

    If one of the routes can't be installed, none is.

    Args:
        config: the wanted routes.
        host: the host whose kernel is changed.
        scope: cancels the run.
        deadline: the deadline of the wait for the network.

    Returns:
        The plan that was carried out. If there was a trial, it has ended.

    Raises:
        RouteError: a route can't be installed or doesn't win; the table is unchanged.
        FileError: the lock can't be taken.
    """
    with planned_routes(config, host, scope, deadline) as plan, all_or_nothing() as undo:
        apply_routes(plan, host.routes, scope, undo)
        verify_routes(plan.wanted, host.routes)
        scope.check()
        remove(host.layout.trial)
    return plan


@attrs.frozen
class InstallRoutes(ConfigTask):
    """Install the static routes in the kernel, all of them or none, without writing any file but the lock.

    Args:
        config: the wanted config.
        host: the host to work on; by default this host.
    """

    name = "install-routes"

    def do(self, scope: CancelScope) -> RoutesReport:
        """Install the routes.

        Raises:
            RouteError: a route can't be installed or doesn't win; the table is unchanged.
            FileError: the lock can't be taken.
        """
        with exclusive_run(self.host, scope, is_wanting=True):
            plan = write_routes(self.config, self.host, scope, Deadlines.of(self.config, scope).network)
        return RoutesReport(plan, plan.changes)
