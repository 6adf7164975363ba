"""The tasks that install: one function brings about what each of them asks for, in one direction.

Wait for the network -> scripts, units and gate -> routes -> what goes -> oneshots -> the check.
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

    Ours of an earlier run that are no longer wanted are removed; no other program's route is ever changed. On a
    running STRICT node use ``Configure``: it changes routes and expected CIDRs in one step.

    Args:
        config: what is wanted.
        host: where; None: this host.
    """

    name = "configure-static-routes"

    def do(self, scope: CancelScope) -> RoutesReport:
        """Do it.

        Returns:
            The routes that were added, replaced, removed and left alone; and the files and units that were changed.

        Raises:
            RouteError: a route can't be installed or doesn't win; everything is as before.
            FileError: a file can't be written, or the lock can't be taken; everything is as before.
        """
        report = configure(self.config, self.host, scope, ROUTES)
        return attrs.evolve(report.routes, changes=report.changes)


@attrs.frozen
class ConfigureWatch(ConfigTask):
    """Have the watcher run if a config asks for one, and not if it doesn't.

    The watcher keeps true what is installed, as the manifest names it; so it follows the other tasks by itself.

    Args:
        config: what is wanted.
        host: where; None: this host.
    """

    name = "configure-watch"

    def do(self, scope: CancelScope) -> WatchReport:
        """Do it.

        Returns:
            What was installed, changed or removed.

        Raises:
            UnitError: systemd refuses, or can't run this Python; everything is as before.
            FileError: a file can't be written, or the lock can't be taken; everything is as before.
        """
        return WatchReport(configure(self.config, self.host, scope, WATCH).changes)


@attrs.frozen
class CheckRouteOverlap(ConfigTask):
    """Prove that every expected CIDR leaves by the node's uplinks, and leave a marker that says so.

    On a running STRICT node use ``Configure``: it changes routes and expected CIDRs in one step.

    Args:
        config: the expected CIDRs, and what a failure means.
        host: where; None: this host.
    """

    name = "check-route-overlap"

    def do(self, scope: CancelScope) -> OverlapReport:
        """Do it.

        Returns:
            The report; in WARN mode also where something fails.

        Raises:
            RouteOverlapError: in STRICT mode, if something fails or nothing could be judged. The markers are written
                first, and nothing is undone.
            UnitError: the installed routes have other uplinks; ``Configure`` changes both.
            FileError: a file can't be written, or the lock can't be taken.
        """
        report = configure(self.config, self.host, scope, CHECK)
        return attrs.evolve(report.overlap, changes=report.changes)


@attrs.frozen
class Configure(ConfigTask):
    """Install the static routes and the watcher, then prove that every expected CIDR leaves by the default interface.

    This is one step: scripts and expected CIDRs are in place before the kernel's first route changes, so a start of the
    node is judged by all of the old config or by all of the new one.

    Args:
        config: what is wanted.
        host: where; None: this host.
    """

    name = "configure"

    def do(self, scope: CancelScope) -> ConfigureReport:
        """Do all of it; the check is the last, as it may raise in STRICT mode.

        Returns:
            The reports of routes, watcher and check, and everything that was changed.

        Raises:
            HostRoutingError: what any of the tasks raises; the check doesn't run after a failed installation.
        """
        return configure(self.config, self.host, scope)


@attrs.frozen
class RemoveHostRouting:
    """Take back everything that was ever installed, without the config that asked for it.

    Args:
        host: where; None: this host.
    """

    name = "remove-host-routing"

    host: Host = attrs.field(default=None, converter=to_host, kw_only=True, repr=False)

    def do(self, scope: CancelScope) -> RoutesReport:
        """Do it.

        Returns:
            The routes, files and units that were removed.

        Raises:
            RouteError: a route can't be removed; the table is as before.
            FileError: a file can't be removed; or one can't be looked at, and all else is gone. A later run goes on.
        """
        report = configure(Config(), self.host, scope)
        if report.warnings:
            raise FileError("\n".join(report.warnings), hint="then remove again", changes=report.changes)
        return attrs.evolve(report.routes, changes=report.changes)


# --- one way -------------------------------------------------------------------------------------------------------


def configure(config: Config, host: Host, scope: CancelScope, *names: str) -> ConfigureReport:
    """Bring about what a config asks of some parts, and take back of them what it doesn't ask for.

    Args:
        config: what is wanted.
        host: where.
        scope: ends it.
        names: of the parts that are decided upon, others stay as they are; without any, all of a config's.

    Raises:
        HostRoutingError: with what stays changed; an installation that fails is taken back.
        StoppedRun: it was cancelled, and something stays changed.
    """
    host = host.within(scope)
    wanted = Wanted.of(config, host.layout, *names)
    with exclusive_run(host, scope, is_wanting=bool(wanted.parts)) as done:
        run = Run(config, host, wanted, Deadlines.of(config, scope), warnings_of(config, wanted, host), done)
        if len(wanted.parts) > 1:
            # Logs and observers hear of two tasks in it.
            plan = run_child(task("configure-static-routes")(run.install), scope)
            overlap = run_child(task("check-route-overlap")(run.finish), scope)
        else:
            plan, overlap = run.install(scope), run.finish(scope)
        if not host.is_image:
            # A trial whose confirm was killed ends with a run that succeeds.
            remove(host.layout.confirmed)
    return ConfigureReport.of(plan, overlap, done.changes, run.warnings)


def warnings_of(config: Config, wanted: Wanted, host: Host) -> tuple[str, ...]:
    """Return what keeps an installation from doing its job, without being an error: it may come later.

    Raises:
        UnitError: systemd can't be asked, though there is one.
    """
    warnings = []
    if WATCH in wanted.names and config.watch.enabled and not config.is_gated:
        warnings.append("there is nothing to watch, so no watcher is installed: CONFIG names no route and no CIDR")
    if not any(part.is_gated for part in wanted.parts):
        return tuple(warnings)
    if host.layout.is_this_host and CHECK in {part.name for part in wanted.parts} and not python_of(host.layout):
        warnings.append(
            f"at boot nothing explains a failing verdict: {sys.executable} -I finds no hostrouting, and root starts "
            "none to which a variable of the environment or a home leads"
        )
    for folder in (host.layout.config.parent, host.layout.manifest.parent):
        if exists(folder) and others_may_write(folder, host.layout.root):
            name = host.layout.relative(folder)
            warnings.append(f"others than root can change what root runs from {name}; hostrouting doctor says who")
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
            raise  # without a systemd nothing can be told
    return tuple(warnings)


@attrs.define
class Run:
    """The state of a run of ``configure``.

    Args:
        config: what is wanted.
        host: where.
        wanted: the parts that are decided upon.
        deadlines: of its waits.
        warnings: are told with the report, or with a failing check.
        done: what is changed and not put back.
        boot: the plan of the next boot, once it is made.
    """

    config: Config
    host: Host
    wanted: Wanted
    deadlines: Deadlines
    warnings: tuple[str, ...]
    done: Done
    boot: BootPlan = attrs.field(init=False)

    def install(self, scope: CancelScope) -> RoutePlan:
        """Install for the next boot and give the kernel the routes: all of it or nothing.

        Args:
            scope: ends it.

        Returns:
            What became of the routes. What goes for the next boot is still to be taken away.

        Raises:
            HostRoutingError: it can't be done; everything is as before.
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
                # A start of the node meanwhile may give the kernel the new routes before this does.
                undo.push(partial(_restore, host.routes.our_routes(), host))
            placed, plan = put_in_place(self.boot, host, undo), RoutePlan()
            # A script that holds the lock may just be writing routes of ours.
            if has_routes and (config.static_routes.routes or exists(host.layout.lock) or host.routes.our_routes()):
                plan = write_routes(config, host, scope, network)
        self.done.changes |= placed | plan.changes
        return plan

    def finish(self, scope: CancelScope) -> OverlapReport:
        """Take away what goes, check, and have the oneshots run.

        Args:
            scope: ends it.

        Raises:
            RouteOverlapError: in STRICT mode, if something fails or nothing could be judged.
            HostRoutingError: something can't be taken away or checked; a later run goes on from there.
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
            f"all of it is installed; what runs goes on, the next start of {self.wanted.consumer} is held back until "
            "this is fixed; to take it back: hostrouting remove"
        )

    def _check(self, scope: CancelScope) -> OverlapReport:
        """Check, if that is among the parts that are decided upon, and leave the markers."""
        overlap, host = self.config.route_overlap, self.host
        if CHECK not in self.wanted.names or not overlap.expected_cidrs:
            return nothing_expected(overlap)
        if host.is_image:
            return unjudged(overlap, UnknownReason.NO_KERNEL, "an image is checked at its first boot")
        report = check_overlap(self.config, host.routes, scope, deadlines=self.deadlines)
        # As the script and the watcher do: two that write at once could leave both markers.
        with locked(host.layout.lock, scope):
            write_markers(host.layout, report)
        return report


def raise_if_strict(report: OverlapReport, warnings: tuple[str, ...] = (), *, hint: str = "") -> None:
    """Raise what a report says, if something fails, or nothing could be judged, in STRICT mode.

    Where nothing is expected no unit is held back.
    """
    is_asked = report.reason_kind is not UnknownReason.NOTHING_EXPECTED
    if report.mode is OverlapMode.STRICT and report.verdict is not Verdict.OK and is_asked:
        raise RouteOverlapError(error_text(report), report, warnings, hint=hint)


def _restore(before: Sequence[Route], host: Host) -> None:
    """Have the kernel hold those of our routes that it held before; who waits for a busy lock isn't kept by it."""
    if list(host.routes.our_routes()) == list(before):
        return
    scope = CancelScope()
    with locked(host.layout.lock, scope), all_or_nothing() as undo:
        apply_routes(plan_routes(before, host.routes.routes(Table.MAIN)), host.routes, scope, undo)
