"""Routes for a while: given to the kernel, and put back in time by systemd unless they are confirmed.

What stands in /run meanwhile is nowhere else: after a reboot neither the trial's routes are there nor anything that
would undo them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import attrs

from hostrouting.boot import files
from hostrouting.boot.host import Host
from hostrouting.boot.render import fill
from hostrouting.boot.seen import exists
from hostrouting.config.routing import Config
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import Protocol, Route, Scope
from hostrouting.model.text import rfc_3339, to_json_text
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import OverlapReport
from hostrouting.routes.plan import RoutesReport
from hostrouting.tasks.arguments import ConfigTask, to_host
from hostrouting.tasks.configure import CheckRouteOverlap, ConfigureStaticRoutes, ConfigureWatch, ours, raise_if_strict
from hostrouting.tasks.install_routes import await_network, carry_out
from phases import CancelScope, Serial

_UNIT = "hostrouting-trial"
_TIMER, _SERVICE = f"{_UNIT}.timer", f"{_UNIT}.service"


@attrs.frozen
class TryRoutes(ConfigTask):
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

    seconds: int

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
        with files.alone(host, scope, is_wanting=True) as run:
            # One whose confirm was killed is to be confirmed too.
            if stands := standing(host.layout.trial) or standing(host.layout.confirmed):
                raise RouteError(
                    f"a trial of routes stands until {stands}: keep them with hostrouting confirm, or end it by "
                    "hostrouting apply with the config that is wanted"
                )
            await_network(config, host, scope)
            until, end = rfc_3339(time.time() + self.seconds), scope.clock.monotonic() + self.seconds

            def begin() -> None:
                # With the lock, and a timer that goes already.
                script = render_trial(ours(host), until)
                files.write_if_changed(host.layout.trial_script, script, mode=0o755)
                files.write_if_changed(host.layout.trial, to_json_text({"until": until} | config.to_mapping()))
                if scope.clock.monotonic() >= end:
                    files.remove(host.layout.trial)
                    raise RouteError(f"the trial's {self.seconds} s were over before the lock was free; try again")

            # Of an earlier trial that has ended.
            host.units.stop(_TIMER)
            host.units.stop(_SERVICE)
            # Whether or not the script is there by then.
            host.units.run_later(_UNIT, self.seconds, ["/bin/bash", "-p", str(host.layout.trial_script)])
            try:
                plan = carry_out(config, host, scope, begin)
                overlap = check_overlap(config.route_overlap, host.routes, scope)
                raise_if_strict(overlap)
            except BaseException:
                put_back(host)
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
        with files.alone(host, scope, is_wanting=True) as run:
            # Taken from its timer; also one whose confirm was killed.
            with files.locked(host.layout.lock, scope):
                files.move(host.layout.trial, host.layout.confirmed)
            text = files.read_text(host.layout.confirmed)
            if text is None:
                raise RouteError(
                    "there is nothing to confirm: no trial of routes stands; hostrouting apply --try 60 begins one"
                )
            config = Config.from_mapping(json.loads(text))
            try:
                routes = ConfigureStaticRoutes(config, host=host).do(scope)
            except BaseException:
                files.move(host.layout.confirmed, host.layout.trial)
                put_back(host)
                raise
            try:
                rest = Serial(ConfigureWatch(config, host=host), CheckRouteOverlap(config, host=host), name="configure")
                overlap = rest.do(scope)[1]
            finally:
                files.remove(host.layout.confirmed)
                host.units.stop(_TIMER)
        return attrs.evolve(routes, changes=run.changes), overlap


# --- what stands in /run -------------------------------------------------------------------------------------------


def render_trial(routes: Sequence[Route], until: str) -> str:
    """Render the script that puts routes back.

    Args:
        routes: ours before the trial.
        until: when the trial ends; the script does nothing to another one.
    """
    # Those first that others need for their gateway.
    ordered = sorted(routes, key=lambda route: route.scope != Scope.LINK)
    ours, number = f"proto {Protocol.HOSTROUTING.name.lower()}", f"proto {int(Protocol.HOSTROUTING)}"
    lines = [str(route).replace(ours, number).replace("scope link", f"scope {int(Scope.LINK)}") for route in ordered]
    return fill("trial.sh", UNTIL=until, PYTHON=quote(sys.executable), ROUTES="\n".join(lines))


def standing(path: Path) -> str | None:
    """Until when a trial stands, by its file; None if none does."""
    text = files.read_text(path)
    return None if text is None else str(json.loads(text)["until"])


def put_back(host: Host) -> None:
    """End a trial now, if one stands, by the very script that ends it in time.

    Raises:
        UnitError: the script fails; if it can, it tries again when the time is over.
    """
    if exists(host.layout.trial):
        host.units.restart(_SERVICE)
    host.units.stop(_TIMER)
