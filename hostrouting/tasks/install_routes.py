"""The way of the routes into the kernel: wait -> lock -> plan -> install -> verify."""

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

# What was there for the wait, and is gone for the plan, comes and goes.
_FLAP_SECONDS = 0.1


def wait_for_network(config: Config, host: Host, scope: CancelScope, deadline: Deadline) -> None:
    """Wait until the routes of a config can be planned; no lock is held meanwhile.

    Args:
        config: what is wanted.
        host: whose kernel.
        scope: ends it.
        deadline: when to give up.

    Raises:
        RouteError: they can't be in time.
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
    """Wait until the routes can be planned, and plan them with the lock, which is held for the block.

    Raises:
        RouteError: as ``wait_for_network``, or a route is in the way of one.
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
    """Give the kernel the routes of a config, all of them or none, and see each win; ours that it doesn't name go.

    Args:
        config: what is wanted.
        host: whose kernel.
        scope: ends it.
        deadline: of the wait for the network.

    Returns:
        What was carried out. A trial that stands has ended.

    Raises:
        RouteError: a route can't be installed or doesn't win; the table is as before.
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
        with exclusive_run(self.host, scope, is_wanting=True):
            plan = write_routes(self.config, self.host, scope, Deadlines.of(self.config, scope).network)
        return RoutesReport(plan, plan.changes)
