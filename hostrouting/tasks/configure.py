"""What stays for the next boot and is true now: the routes, the watcher, the check, all of them; and the way back."""

from __future__ import annotations

from contextlib import nullcontext

import attrs

from hostrouting.boot.files import Run, alone, locked, remove
from hostrouting.boot.host import Host
from hostrouting.boot.installation import change_files, install_part, remove_parts, start_oneshot
from hostrouting.boot.manifest import CHECK, ROUTES, WATCH
from hostrouting.boot.parts import check_part, is_watched, plan_part, routes_part, watch_part
from hostrouting.boot.seen import exists
from hostrouting.config.overlap import OverlapMode
from hostrouting.model.changes import Change, Changes
from hostrouting.model.routes import Route, Table
from hostrouting.overlap.check import check_overlap, unjudged
from hostrouting.overlap.findings import OverlapReport, RouteOverlapError, Verdict
from hostrouting.overlap.outputs import write_markers
from hostrouting.overlap.wording import error_text
from hostrouting.routes.install import apply_routes
from hostrouting.routes.plan import RoutePlan, RoutesReport, plan_routes
from hostrouting.tasks.arguments import ConfigTask, to_host
from hostrouting.tasks.install_routes import await_network, carry_out
from phases import CancelScope, Serial, all_or_nothing


@attrs.frozen
class ConfigureStaticRoutes(ConfigTask):
    """Install the static routes of a config, so that longest-prefix match beats a shadowing route.

    Ours of an earlier run that are no longer wanted are removed; nothing of anybody else's is ever changed.

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
        has_routes = bool(self.config.static_routes.routes)
        with alone(self.host, scope, is_wanting=has_routes) as run:
            plan = self._install(scope, run) if has_routes else _remove_routes(self.host, scope, run)
        return RoutesReport(plan, run.changes)

    def _install(self, scope: CancelScope, run: Run) -> RoutePlan:
        config, host = self.config, self.host
        if not host.is_image:
            await_network(config, host, scope)
        with all_or_nothing() as undo:
            # Before the routes: a script of before that still waits for the lock sees that it was replaced.
            installed = install_part(host, config.consumer, routes_part(config, host.layout), undo)
            plan = RoutePlan() if host.is_image else carry_out(config, host, scope)
        run.changes |= installed | plan.changes
        start_oneshot(host, ROUTES, run)
        return plan


@attrs.frozen
class ConfigureWatch(ConfigTask):
    """Have the watcher run if a config asks for one, and not if it doesn't.

    The watcher keeps true what is installed, as the manifest names it; so it follows the other tasks by itself.

    Args:
        config: what is wanted.
        host: where; None: this host.
    """

    name = "configure-watch"

    def do(self, scope: CancelScope) -> Changes:
        """Do it.

        Returns:
            What was installed, changed or removed; false if nothing was.

        Raises:
            UnitError: systemd refuses, or can't run this Python; everything is as before.
            FileError: a file can't be written, or the lock can't be taken; everything is as before.
        """
        host, is_wanting = self.host, is_watched(self.config)
        with alone(host, scope, is_wanting=is_wanting) as run:
            if not is_wanting:
                remove_parts(host, scope, run, WATCH)
                return run.changes
            part = watch_part(self.config, host.layout)
            restarted = Change(f"{WATCH}.service", "restarted")
            # What else is installed it reads by itself.
            is_new = restarted in plan_part(host, self.config.consumer, part).units
            with all_or_nothing() as undo:
                installed = install_part(host, self.config.consumer, part, undo)
            run.changes |= installed
            if not host.is_image and (is_new or installed.units):
                host.units.restart(f"{WATCH}.service")
                run.changes |= Changes(units=(restarted,))
        return run.changes


@attrs.frozen
class CheckRouteOverlap(ConfigTask):
    """Prove that every expected CIDR leaves by the default route's interface, and leave a marker that says so.

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
            FileError: a file can't be written, or the lock can't be taken.
        """
        config, host = self.config, self.host
        has_cidrs = bool(config.route_overlap.expected_cidrs)
        with alone(host, scope, is_wanting=has_cidrs) as run:
            if not has_cidrs:
                remove_parts(host, scope, run, CHECK)
                _remove_markers(host, scope, run)
                return unjudged(config.route_overlap, Verdict.OK)
            with all_or_nothing() as undo:
                installed = install_part(host, config.consumer, check_part(config, host.layout), undo)
            run.changes |= installed
            if host.is_image:
                reason = "an image has no kernel to ask; it is checked at its first boot"
                return unjudged(config.route_overlap, Verdict.UNKNOWN, reason)
            result = check_overlap(config.route_overlap, host.routes, scope, wait_seconds=config.wait_seconds)
            # As the script and the watcher do: two that write at once could leave both markers.
            with locked(host.layout.lock, scope):
                write_markers(host.layout, result)
            start_oneshot(host, CHECK, run)
            raise_if_strict(result)
            return result


def raise_if_strict(report: OverlapReport) -> None:
    """Raise what a report says, if something fails, or nothing could be judged, in STRICT mode."""
    if report.mode is OverlapMode.STRICT and report.verdict is not Verdict.OK:
        raise RouteOverlapError(error_text(report), report)


@attrs.frozen
class Configure(ConfigTask):
    """Install the static routes and the watcher, then prove that every expected CIDR leaves by the default interface.

    Args:
        config: what is wanted.
        host: where; None: this host.
    """

    name = "configure"

    def do(self, scope: CancelScope) -> tuple[RoutesReport, OverlapReport]:
        """Do all of them; the check is the last, as it may raise in STRICT mode.

        Returns:
            The reports of the routes, with every file and unit that any of them has changed, and of the check.

        Raises:
            HostRoutingError: what any of them raises; the check doesn't run after a failed installation.
        """
        config, host = self.config, self.host
        tasks = Serial(
            ConfigureStaticRoutes(config, host=host),
            ConfigureWatch(config, host=host),
            CheckRouteOverlap(config, host=host),
            name=self.name,
        )
        is_wanting = bool(config.static_routes.routes or config.route_overlap.expected_cidrs)
        with alone(host, scope, is_wanting=is_wanting) as run:
            routes, _, overlap = tasks.do(scope)
        return attrs.evolve(routes, changes=run.changes), overlap


# --- and back ------------------------------------------------------------------------------------------------------


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
            FileError: a file can't be removed; a later run goes on from there.
        """
        with alone(self.host, scope, is_wanting=False) as run:
            # All at once: without its routes a node isn't let through by a check that is left.
            remove_parts(self.host, scope, run, WATCH, CHECK, ROUTES)
            _remove_markers(self.host, scope, run)
            plan = _remove_routes(self.host, scope, run)
        return RoutesReport(plan, run.changes)


def _remove_routes(host: Host, scope: CancelScope, run: Run) -> RoutePlan:
    """Take back what an earlier run installed; touch nothing if none did.

    First what would install the routes again.
    """
    remove_parts(host, scope, run, ROUTES)
    if host.is_image or not (ours(host) or exists(host.layout.trial)):
        return RoutePlan()
    with locked(host.layout.lock, scope):
        plan = plan_routes((), ours(host))
        with all_or_nothing() as undo:
            apply_routes(plan, host.routes, scope, undo)
        remove(host.layout.trial)
    run.changes |= plan.changes
    return plan


def ours(host: Host) -> list[Route]:
    """Our routes in the kernel."""
    return [route for route in host.routes.routes(Table.MAIN) if route.is_ours]


def _remove_markers(host: Host, scope: CancelScope, run: Run) -> None:
    """Take the markers back; of a check that isn't installed any more."""
    if any(exists(path) for path in host.layout.markers):
        # The watcher looks under the lock whether they are still asked for.
        with nullcontext() if host.is_image else locked(host.layout.lock, scope):
            markers = (Change(host.layout.relative(path), "removed") for path in host.layout.markers)
            change_files(host.layout, markers, run)
