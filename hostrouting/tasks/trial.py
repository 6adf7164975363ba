"""Routes for a while: given to the kernel, and put back in time by systemd unless they are confirmed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs

from hostrouting.boot import trial
from hostrouting.boot.files import alone, remove
from hostrouting.model.errors import RouteError
from hostrouting.model.text import rfc_3339
from hostrouting.overlap.check import check_overlap, unjudged
from hostrouting.overlap.findings import Verdict
from hostrouting.routes.plan import RoutesReport
from hostrouting.tasks.arguments import to_config, to_host
from hostrouting.tasks.configure import CheckRouteOverlap, ConfigureStaticRoutes, ConfigureWatch, ours, raise_if_strict
from hostrouting.tasks.install_routes import await_network, carry_out
from phases import Serial

if TYPE_CHECKING:
    from hostrouting.boot.host import Host
    from hostrouting.config.routing import Config
    from hostrouting.overlap.findings import OverlapReport
    from phases import CancelScope


@attrs.frozen
class TryRoutes:
    """Give the kernel the static routes for a while, and check: no file outside /run is written, no unit installed.

    Our routes of before are put back by a timer of systemd, whatever becomes of this process, unless the trial is
    confirmed, or another run or a start of the consumer ends it first. Where a STRICT check fails they are put back at
    once.

    Args:
        config: what is tried.
        seconds: for how long.
        host: where; None: this host.
    """

    name = "try-routes"

    config: Config = attrs.field(converter=to_config)
    seconds: int
    host: Host = attrs.field(default=None, converter=to_host, kw_only=True, repr=False)

    def do(self, scope: CancelScope) -> tuple[RoutesReport, OverlapReport, str]:
        """Do it.

        Returns:
            The reports of the routes and of the check, and until when the trial stands, RFC 3339.

        Raises:
            RouteOverlapError: in STRICT mode, if something fails or nothing could be judged; everything is as before.
            HostRoutingError: a trial stands already, there is no running systemd, or a route can't be installed;
                everything is as before.
        """
        config, host = self.config, self.host
        with alone(host, scope, is_wanting=True) as run:
            # One whose confirm was killed is to be confirmed too.
            if stands := trial.standing(host.layout.trial) or trial.standing(host.layout.confirmed):
                raise RouteError(
                    f"a trial of routes stands until {stands}: keep them with hostrouting confirm, or end it by "
                    "hostrouting apply with the config that is wanted"
                )
            await_network(config, host, scope)
            until, end = rfc_3339(time.time() + self.seconds), scope.clock.monotonic() + self.seconds

            def begin() -> None:
                trial.begin(host.layout, config, ours(host), until)
                if scope.clock.monotonic() >= end:
                    remove(host.layout.trial)
                    raise RouteError(f"the trial's {self.seconds} s were over before the lock was free; try again")

            trial.start_timer(host, self.seconds)
            try:
                plan = carry_out(config, host, scope, begin)
                overlap = unjudged(config.route_overlap, Verdict.OK)
                if overlap.cidrs:
                    overlap = check_overlap(config.route_overlap, host.routes, scope)
                raise_if_strict(overlap)
            except BaseException:
                trial.put_back(host)
                raise
            run.changes |= plan.changes
        return RoutesReport(plan, run.changes), overlap, until


@attrs.frozen
class ConfirmTrial:
    """Keep what ``TryRoutes`` has given the kernel, and install everything that its config asks for.

    Args:
        host: where; None: this host.
    """

    name = "confirm-trial"

    host: Host = attrs.field(default=None, converter=to_host, kw_only=True, repr=False)

    def do(self, scope: CancelScope) -> tuple[RoutesReport, OverlapReport]:
        """Do it. Where this process is killed, systemd does the rest when the time is over.

        Returns:
            The reports of the routes and of the check.

        Raises:
            RouteError: no trial stands.
            HostRoutingError: what ``Configure`` raises; if nothing is installed the routes of before are put back.
        """
        host = self.host
        with alone(host, scope, is_wanting=True) as run:
            config = trial.claim(host, scope)
            try:
                routes = ConfigureStaticRoutes(config, host=host).do(scope)
            except BaseException:
                trial.give_back(host)
                raise
            try:
                rest = Serial(ConfigureWatch(config, host=host), CheckRouteOverlap(config, host=host), name="configure")
                overlap = rest.do(scope)[1]
            finally:
                trial.forget(host)
        return attrs.evolve(routes, changes=run.changes), overlap
