"""Routes on trial, which are installed in the kernel and removed by systemd after a time unless they are confirmed.

A trial's state exists only in /run. So after a reboot, neither the trial's routes exist nor anything that would undo
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Any

import attrs

from hostrouting.boot import files
from hostrouting.boot.host import Host
from hostrouting.boot.layout import Layout
from hostrouting.boot.locks import exclusive_run, locked
from hostrouting.boot.parts import Wanted
from hostrouting.boot.python import python_of
from hostrouting.boot.render import fill
from hostrouting.boot.trial import is_overdue, put_back, read_trial, standing, start_timer, stop_timer, times_of
from hostrouting.config.routing import Config
from hostrouting.kernel.waiting import Deadlines
from hostrouting.model.changes import Changes
from hostrouting.model.errors import RouteError
from hostrouting.model.jsonable import to_json_text
from hostrouting.model.routes import Route, Scope
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import OverlapReport
from hostrouting.routes.install import apply_routes
from hostrouting.routes.plan import RoutesReport
from hostrouting.routes.verify import verify_routes
from hostrouting.tasks.arguments import ConfigTask, to_host
from hostrouting.tasks.configure import Run, raise_if_strict, warnings_of
from hostrouting.tasks.install_routes import planned_routes, wait_for_network
from hostrouting.tasks.reports import ConfigureReport
from phases import CancelScope, all_or_nothing


@attrs.frozen
class TrialReport:
    """The result of ``TryRoutes``.

    Args:
        routes: the report on the static routes.
        overlap: the check's report.
        until: the end of the trial, RFC 3339.
    """

    routes: RoutesReport
    overlap: OverlapReport
    until: str

    @property
    def changes(self) -> Changes:
        """The routes that were changed; no files or units change."""
        return self.routes.changes

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return self.routes.to_json() | {"overlap": self.overlap.to_json(), "until": self.until}


@attrs.frozen
class TryRoutes(ConfigTask):
    """Install the static routes in the kernel for a limited time, and check, without files outside /run or units.

    A timer of systemd restores our former routes, whatever happens to this process. It doesn't if the trial was
    confirmed, or if another run or a start of the consumer ended it before. If a STRICT check fails, they are restored
    at once.

    Args:
        config: the config to try.
        seconds: the length of the trial in seconds.
        host: the host to work on; by default this host.
    """

    name = "try-routes"

    seconds: int

    def do(self, scope: CancelScope) -> TrialReport:
        """Start the trial.

        Returns:
            The changes, the check's result, and the end of the trial.

        Raises:
            RouteOverlapError: something fails or nothing could be judged, and the mode is STRICT; all changes are
                undone.
            HostRoutingError: a trial is already in progress, systemd isn't running, or a route can't be installed; all
                changes are undone.
        """
        config, host = self.config, self.host.within(scope)
        with exclusive_run(host, scope, is_wanting=True):
            if is_overdue(host.layout):
                put_back(host)
            # A trial whose confirmation was killed also has to be confirmed.
            if stands := standing(host.layout.trial) or standing(host.layout.confirmed):
                raise RouteError(
                    f"a trial of routes stands until {stands}",
                    hint="hostrouting confirm keeps them; hostrouting remove, or apply with the wanted config, ends it",
                )
            deadline = Deadlines.of(config, scope).network
            wait_for_network(config, host, scope, deadline)
            times, end = times_of(self.seconds), scope.clock.monotonic() + self.seconds
            start_timer(host, self.seconds)
            try:
                with planned_routes(config, host, scope, deadline) as plan:
                    # Write the script that restores the routes before any of them changes.
                    script = render_trial(host.routes.our_routes(), times["until"])
                    files.write_if_changed(host.layout.trial_script, script, mode=0o755)
                    files.write_if_changed(host.layout.trial, to_json_text(times | config.to_mapping()))
                    if scope.clock.monotonic() >= end:
                        files.remove(host.layout.trial)
                        raise RouteError(
                            f"the trial's {self.seconds} s were over before the lock was free", hint="try again"
                        )
                    with all_or_nothing() as undo:
                        apply_routes(plan, host.routes, scope, undo)
                        verify_routes(plan.wanted, host.routes)
                overlap = check_overlap(config, host.routes, scope)
                scope.check()
                raise_if_strict(overlap)
            except BaseException:
                put_back(host)
                raise
        return TrialReport(RoutesReport(plan, plan.changes), overlap, times["until"])


@attrs.frozen
class ConfirmTrial:
    """Keep the routes that ``TryRoutes`` has installed in the kernel, and install everything that its config asks for.

    Args:
        host: the host to work on; by default this host.
    """

    name = "confirm-trial"

    host: Host = attrs.field(default=None, converter=to_host, kw_only=True, repr=False)

    def do(self, scope: CancelScope) -> ConfigureReport:
        """Confirm the trial; if this process is killed, systemd ends the trial when its time is over.

        Returns:
            The report of ``Configure``.

        Raises:
            RouteError: there is no trial.
            HostRoutingError: any error of ``Configure``; if nothing was installed, the former routes are restored.
        """
        host = self.host.within(scope)
        with exclusive_run(host, scope, is_wanting=True) as done:
            # From here on the timer can't end the trial, even if an earlier confirmation was killed.
            with locked(host.layout.lock, scope):
                files.move(host.layout.trial, host.layout.confirmed)
            document = read_trial(host.layout.confirmed)
            if document is None:
                raise RouteError(
                    "there is nothing to confirm: no trial of routes stands",
                    hint="its time ends a trial, and so does a start of the consumer; to install for good: hostrouting "
                    "apply",
                )
            config = Config.from_mapping(document)
            wanted = Wanted.of(config, host.layout)
            run = Run(config, host, wanted, Deadlines.of(config, scope), warnings_of(config, wanted, host), done)
            try:
                plan = run.install(scope)
            except BaseException:
                files.move(host.layout.confirmed, host.layout.trial)
                put_back(host)
                raise
            try:
                overlap = run.finish(scope)
            finally:
                files.remove(host.layout.confirmed)
                stop_timer(host)
        return ConfigureReport.of(plan, overlap, done.changes, run.warnings)


# --- the files in /run ---------------------------------------------------------------------------------------------


def render_trial(routes: Sequence[Route], until: str) -> str:
    """Render the script that restores routes after a trial.

    Args:
        routes: our routes before the trial.
        until: the end of the trial, by which the script recognizes it; the script leaves another trial alone.
    """
    # Routes that other routes need for their gateways come first.
    ordered = sorted(routes, key=lambda route: route.scope != Scope.LINK)
    lines = [route.words(is_numeric=True) for route in ordered]
    return fill("trial.sh", UNTIL=until, PYTHON=quote(python_of(Layout())), ROUTES="\n".join(lines))
