"""The tasks that install something; one function, ``configure``, carries out all of them.

Its steps are: wait for the network -> scripts, units and gate -> routes -> removals -> oneshots -> the check.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from functools import partial

import attrs

from hostrouting.boot.files import exists, others_may_write, remove
from hostrouting.boot.host import Host
from hostrouting.boot.installation import (
    KUBELET,
    has_free_kubelet,
    is_there,
    prepare,
    put_in_place,
    start_oneshots,
    take_away,
)
from hostrouting.boot.locks import Done, exclusive_run, locked
from hostrouting.boot.manifest import CHECK, ROUTES, WATCH
from hostrouting.boot.parts import Wanted
from hostrouting.boot.plan import BootPlan, plan_next_boot
from hostrouting.boot.python import python_of
from hostrouting.config.routing import Config, OverlapMode
from hostrouting.kernel.waiting import Deadlines
from hostrouting.model.errors import FileError, UnitError
from hostrouting.model.routes import Route, Table
from hostrouting.overlap.check import check_overlap, nothing_expected, unjudged
from hostrouting.overlap.findings import OverlapReport, RouteOverlapError, UnknownReason, Verdict
from hostrouting.overlap.markers import write_markers
from hostrouting.overlap.wording import error_text
from hostrouting.routes.install import apply_routes
from hostrouting.routes.plan import RoutePlan, RoutesReport, plan_routes
from hostrouting.tasks.arguments import ConfigTask, to_host
from hostrouting.tasks.install_routes import wait_for_network, write_routes
from hostrouting.tasks.reports import ConfigureReport, WatchReport
from phases import CancelScope, all_or_nothing, run_child, task


@attrs.frozen
class ConfigureStaticRoutes(ConfigTask):
    """Install the static routes of a config, so that longest-prefix match beats a shadowing route.

    The task removes our routes from an earlier run that are no longer wanted, and never changes another program's
    route. On a running STRICT node use ``Configure``, which changes routes and expected CIDRs in one step.

    Args:
        config: the wanted config.
        host: the host to work on; by default this host.
    """

    name = "configure-static-routes"

    def do(self, scope: CancelScope) -> RoutesReport:
        """Install the routes.

        Returns:
            The routes that were added, replaced, removed and left alone, and the files and units that were changed.

        Raises:
            RouteError: a route can't be installed or doesn't win; all changes are undone.
            FileError: a file can't be written, or the lock can't be taken; all changes are undone.
        """
        report = configure(self.config, self.host, scope, ROUTES)
        return attrs.evolve(report.routes, changes=report.changes)


@attrs.frozen
class ConfigureWatch(ConfigTask):
    """Install the watcher if a config asks for one; otherwise remove it.

    The watcher works from the manifest of the installation, so it follows the other tasks on its own.

    Args:
        config: the wanted config.
        host: the host to work on; by default this host.
    """

    name = "configure-watch"

    def do(self, scope: CancelScope) -> WatchReport:
        """Install or remove the watcher.

        Returns:
            The changes.

        Raises:
            UnitError: systemd refuses, or can't run this Python; all changes are undone.
            FileError: a file can't be written, or the lock can't be taken; all changes are undone.
        """
        return WatchReport(configure(self.config, self.host, scope, WATCH).changes)


@attrs.frozen
class CheckRouteOverlap(ConfigTask):
    """Prove that every expected CIDR leaves through the node's uplinks, and write a marker with the result.

    On a running STRICT node use ``Configure``, which changes routes and expected CIDRs in one step.

    Args:
        config: the expected CIDRs, and the mode, which decides what a failure does.
        host: the host to work on; by default this host.
    """

    name = "check-route-overlap"

    def do(self, scope: CancelScope) -> OverlapReport:
        """Check the expected CIDRs, and install the check for every boot.

        Returns:
            The report; in WARN mode it is also returned if something fails.

        Raises:
            RouteOverlapError: something fails or nothing could be judged, and the mode is STRICT. The markers are
                written before that, and nothing is undone.
            UnitError: the installed routes were rendered with other uplinks; use ``Configure`` to change both parts.
            FileError: a file can't be written, or the lock can't be taken.
        """
        report = configure(self.config, self.host, scope, CHECK)
        return attrs.evolve(report.overlap, changes=report.changes)


@attrs.frozen
class Configure(ConfigTask):
    """Install the static routes and the watcher, then prove that every expected CIDR leaves through the uplinks.

    All of this is one step. Scripts and expected CIDRs are in place before the first route in the kernel changes, so a
    start of the node is judged either by the old config or by the new one.

    Args:
        config: the wanted config.
        host: the host to work on; by default this host.
    """

    name = "configure"

    def do(self, scope: CancelScope) -> ConfigureReport:
        """Install everything, and check last, because the check may raise an error in STRICT mode.

        Returns:
            The reports on routes, watcher and check, and all changes.

        Raises:
            HostRoutingError: any error of the other tasks; the check doesn't run after a failed installation.
        """
        return configure(self.config, self.host, scope)


@attrs.frozen
class RemoveHostRouting:
    """Remove everything that was ever installed; no config is needed.

    Args:
        host: the host to work on; by default this host.
    """

    name = "remove-host-routing"

    host: Host = attrs.field(default=None, converter=to_host, kw_only=True, repr=False)

    def do(self, scope: CancelScope) -> RoutesReport:
        """Remove the installation.

        Returns:
            The routes, files and units that were removed.

        Raises:
            RouteError: a route can't be removed; the table is unchanged.
            FileError: a file can't be removed or examined; the rest is removed, and a later run continues.
        """
        report = configure(Config(), self.host, scope)
        if report.warnings:
            raise FileError("\n".join(report.warnings), hint="then remove again", changes=report.changes)
        return attrs.evolve(report.routes, changes=report.changes)


# --- the run -------------------------------------------------------------------------------------------------------


def configure(config: Config, host: Host, scope: CancelScope, *names: str) -> ConfigureReport:
    """Apply a config to some parts: install those that it asks for, and remove the others.

    Args:
        config: the wanted config.
        host: the host to work on.
        scope: cancels the run.
        names: the parts to install or remove, while others don't change; by default all parts that a config can ask
            for.

    Raises:
        HostRoutingError: the run failed. The error lists the changes that remain; a failed installation is undone.
        StoppedRun: the run was cancelled, and some changes remain.
    """
    host = host.within(scope)
    wanted = Wanted.of(config, host.layout, *names)
    with exclusive_run(host, scope, is_wanting=bool(wanted.parts)) as done:
        run = Run(config, host, wanted, Deadlines.of(config, scope), warnings_of(config, wanted, host), done)
        if len(wanted.parts) > 1:
            # Logs and observers see this run as two tasks.
            plan = run_child(task("configure-static-routes")(run.install), scope)
            overlap = run_child(task("check-route-overlap")(run.finish), scope)
        else:
            plan, overlap = run.install(scope), run.finish(scope)
        if not host.is_image:
            # A successful run also ends a trial whose confirmation was killed.
            remove(host.layout.confirmed)
    return ConfigureReport.of(plan, overlap, done.changes, run.warnings)


def warnings_of(config: Config, wanted: Wanted, host: Host) -> tuple[str, ...]:
    """Return the reasons why an installation can't work yet; they aren't errors, because they may be solved later.

    Raises:
        UnitError: systemd is running but can't be queried.
    """
    warnings = []
    if WATCH in wanted.names and config.watch.enabled and not config.is_gated:
        warnings.append("there is nothing to watch, so no watcher is installed: CONFIG names no route and no CIDR")
    if not any(part.is_gated for part in wanted.parts):
        return tuple(warnings)
    if host.layout.is_this_host and CHECK in {part.name for part in wanted.parts} and not python_of(host.layout):
        warnings.append(
            f"at boot nothing explains a failing verdict: {sys.executable} -I finds no hostrouting, and root starts no "
            "Python that depends on the environment or a home"
        )
    for folder in (host.layout.config.parent, host.layout.manifest.parent):
        if exists(folder) and others_may_write(folder, host.layout.root):
            name = host.layout.relative(folder)
            warnings.append(
                f"users other than root can change programs that root runs from {name}; see hostrouting doctor"
            )
    try:
        if not is_there(host, wanted.consumer):
            warnings.append(f"there is no unit {wanted.consumer}: until there is, nothing is held back")
        if has_free_kubelet(host, wanted.consumer):
            warnings.append(
                f"{KUBELET} starts at boot, and nothing holds it back: the consumer is {wanted.consumer}; if the "
                f"kubelet is the node, set hostRouting.consumer to {KUBELET}"
            )
    except UnitError as error:
        if error.errno not in (None, errno.ENOENT):
            raise  # without a systemd nothing is known about units
    return tuple(warnings)


@attrs.define
class Run:
    """The state of a run of ``configure``.

    Args:
        config: the wanted config.
        host: the host to work on.
        wanted: the parts to install or remove.
        deadlines: the deadlines of the run's waits.
        warnings: the warnings, which go into the report or into the error of a failing check.
        done: the changes made so far, except those that were undone.
        boot: the plan for the next boot, once it is made.
    """

    config: Config
    host: Host
    wanted: Wanted
    deadlines: Deadlines
    warnings: tuple[str, ...]
    done: Done
    boot: BootPlan = attrs.field(init=False)

    def install(self, scope: CancelScope) -> RoutePlan:
        """Install everything for the next boot and the routes in the kernel, or nothing if a step fails.

        Args:
            scope: cancels the installation.

        Returns:
            The plan of the routes. What the next boot no longer needs still has to be removed.

        Raises:
            HostRoutingError: the installation failed; all changes are undone.
        """
        config, host, network = self.config, self.host, self.deadlines.network
        has_routes = not host.is_image and ROUTES in self.wanted.names
        if has_routes:
            wait_for_network(config, host, scope, network)
        self.boot = plan_next_boot(host, self.wanted)
        self.warnings += self.boot.unseen
        with all_or_nothing() as undo:
            prepare(self.boot, host, undo)
            if has_routes and self.boot.changes_routes_script:
                # A start of the node may install the new routes in the kernel before this run does.
                undo.push(partial(_restore, host.routes.our_routes(), host))
            placed, plan = put_in_place(self.boot, host, undo), RoutePlan()
            # A script that holds the lock may be writing our routes at this moment.
            if has_routes and (config.static_routes.routes or exists(host.layout.lock) or host.routes.our_routes()):
                plan = write_routes(config, host, scope, network)
        self.done.changes |= placed | plan.changes
        return plan

    def finish(self, scope: CancelScope) -> OverlapReport:
        """Remove what is no longer wanted, check, and start the oneshots.

        Args:
            scope: cancels the run.

        Raises:
            RouteOverlapError: something fails or nothing could be judged, and the mode is STRICT.
            HostRoutingError: a removal or the check failed; a later run continues from there.
        """
        self.done.add(take_away(self.boot, self.host, scope))
        overlap = self._check(scope)
        if not self.host.is_image:
            self.done.add(start_oneshots(self.host, [part.name for part in self.wanted.parts if part.is_gated]))
            scope.check()
            raise_if_strict(overlap, self.warnings, hint=self._where_it_leaves())
        return overlap

    def _where_it_leaves(self) -> str:
        if not self.wanted.parts:
            return ""
        return (
            f"everything is installed; running machines continue, the next start of {self.wanted.consumer} is held "
            "back until this is fixed; to remove it: hostrouting remove"
        )

    def _check(self, scope: CancelScope) -> OverlapReport:
        """Check and write the markers, if the check is one of the run's parts."""
        overlap, host = self.config.route_overlap, self.host
        if CHECK not in self.wanted.names or not overlap.expected_cidrs:
            return nothing_expected(overlap)
        if host.is_image:
            return unjudged(overlap, UnknownReason.NO_KERNEL, "an image is checked at its first boot")
        report = check_overlap(self.config, host.routes, scope, deadlines=self.deadlines)
        # The script and the watcher take the lock too. If two of them wrote at once, both markers could remain.
        with locked(host.layout.lock, scope):
            write_markers(host.layout, report)
        return report


def raise_if_strict(report: OverlapReport, warnings: tuple[str, ...] = (), *, hint: str = "") -> None:
    """Raise a report as an error if the mode is STRICT and something fails or nothing could be judged.

    Without expected CIDRs nothing is raised, because no unit is blocked then.
    """
    is_asked = report.reason_kind is not UnknownReason.NOTHING_EXPECTED
    if report.mode is OverlapMode.STRICT and report.verdict is not Verdict.OK and is_asked:
        raise RouteOverlapError(error_text(report), report, warnings, hint=hint)


def _restore(before: Sequence[Route], host: Host) -> None:
    """Restore our former routes in the kernel, or return at once if they are unchanged, even if the lock is busy."""
    if list(host.routes.our_routes()) == list(before):
        return
    scope = CancelScope()
    with locked(host.layout.lock, scope), all_or_nothing() as undo:
        apply_routes(plan_routes(before, host.routes.routes(Table.MAIN)), host.routes, scope, undo)
