"""The phase tasks: config in, a host that is as asked or an error that says why not.

The way of the data: read the host -> resolve -> plan (both pure) -> install -> verify -> report.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

import attrs

from hostrouting.boot.files import locked, remove
from hostrouting.boot.gate import CHECK, PROBE, ROUTES
from hostrouting.boot.host import Host
from hostrouting.boot.installation import exclusive, install_part, is_installed, remove_part
from hostrouting.boot.parts import WATCH, check_part, is_watched, routes_part, watch_part
from hostrouting.cli import report
from hostrouting.config.routing import Config, OverlapMode
from hostrouting.kernel.waiting import look_until
from hostrouting.model.errors import ConfigError, RouteError, RouteOverlapError
from hostrouting.model.values import Table
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import OverlapReport, Verdict
from hostrouting.overlap.markers import write_markers
from hostrouting.routes.install import all_or_nothing, apply_routes
from hostrouting.routes.plan import RoutePlan, RoutesReport, plan_routes
from hostrouting.routes.resolve import describe_missing, resolve
from hostrouting.routes.verify import verify_routes
from phases import CancelScope, Serial

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hostrouting.boot.layout import Layout
    from hostrouting.kernel.port import RouteBackend
    from hostrouting.model.values import Route
    from hostrouting.routes.install import Undo

__all__ = [
    "CheckRouteOverlap",
    "Configure",
    "ConfigureStaticRoutes",
    "InstallRoutes",
    "RemoveHostRouting",
    "plan_now",
]


# --- routes ------------------------------------------------------------------------------------------------------


def plan_now(config: Config, backend: RouteBackend) -> tuple[RoutePlan, str | None]:
    """Plan for the host as it is at this moment, changing nothing.

    Args:
        config: what is wanted.
        backend: the kernel.

    Returns:
        The plan, and what is still missing in words; then the plan is empty.

    Raises:
        RouteError: a route can't ever be installed like that, or the kernel can't be asked.
    """
    main = backend.routes(Table.MAIN)
    wanted = config.static_routes.routes
    if not wanted:
        return plan_routes((), main), None
    resolution = resolve(wanted, backend.links(), backend.addresses(), main)
    if resolution.missing:
        return RoutePlan(), describe_missing(resolution.missing)
    return plan_routes(resolution.routes, main), None


def _carry_out(config: Config, host: Host, scope: CancelScope, *, with_files: bool) -> RoutesReport:
    """Change the host as planned and prove it, or put back what was changed."""
    is_watch_new = False

    def look() -> tuple[RoutesReport, str | None]:
        nonlocal is_watch_new
        with locked(host.layout.lock, scope):
            plan, missing = plan_now(config, host.routes)
            if missing is None:
                with all_or_nothing(scope) as undo:
                    if with_files:
                        install_part(host, config.consumer, routes_part(config, host.layout), undo)
                        is_watch_new = _install_watch(config, host, undo)
                    apply_routes(plan, host.routes, scope, undo)
                    verify_routes(plan.wanted, host.routes)
            return RoutesReport(plan), missing

    result, missing = look_until(host.routes, scope, config.wait_seconds, look)
    if missing is not None:
        raise RouteError(
            f"can't install the static routes: waited {config.wait_seconds} s and still missing is {missing}; "
            "bring it up, name another gateway or dev, or raise waitSeconds"
        )
    if with_files:
        _start_watch(config, host, is_new=is_watch_new)
    return result


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
        return _carry_out(self.config, self.host or Host(), scope, with_files=False)


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
        if not is_watched(self.config):
            _remove_watch(host, scope)
        if not self.config.static_routes.routes:
            return _remove_routes(host, scope, self.config)
        if host.is_image:
            with all_or_nothing(scope) as undo:
                install_part(host, self.config.consumer, routes_part(self.config, host.layout), undo)
                _install_watch(self.config, host, undo)
            return RoutesReport()
        return _carry_out(self.config, host, scope, with_files=True)


def _remove_routes(host: Host, scope: CancelScope, config: Config) -> RoutesReport:
    """Take back what an earlier run installed; touch nothing if none did."""
    if not is_installed(host, ROUTES) and not _ours(host):
        return RoutesReport()
    with exclusive(host, scope):
        is_watch_new = False
        if is_installed(host, WATCH):
            # Or it would put them back.
            with all_or_nothing(scope) as undo:
                is_watch_new = _install_watch(config, host, undo)
        plan = plan_routes((), _ours(host))
        if not plan.is_empty:
            with all_or_nothing(scope) as undo:
                apply_routes(plan, host.routes, scope, undo)
        remove_part(host, ROUTES)
    if is_watch_new:
        _start_watch(config, host, is_new=True)
    return RoutesReport(plan)


def _ours(host: Host) -> tuple[Route, ...]:
    if host.is_image:
        return ()
    return tuple(route for route in host.routes.routes(Table.MAIN) if route.is_ours)


# --- the check ---------------------------------------------------------------------------------------------------


@attrs.frozen
class CheckRouteOverlap:
    """Prove that every expected CIDR leaves by the default route's interface, and leave a marker that says so.

    Args:
        config: the expected CIDRs, and what a failure means.
        host: where; None: this host.
        now: the time of day, in seconds since the epoch; for the report.
    """

    name: ClassVar[str] = "check-route-overlap"

    config: Config
    host: Host | None = attrs.field(default=None, kw_only=True)
    now: Callable[[], float] = attrs.field(default=time.time, kw_only=True, repr=False)

    def do(self, scope: CancelScope) -> OverlapReport:
        """Do it.

        Returns:
            The report; in WARN mode also where something fails.

        Raises:
            RouteOverlapError: in STRICT mode, if something fails or nothing could be judged. The markers are written
                first, and nothing is undone.
            FileError: a marker can't be written.
        """
        host = self.host or Host()
        if not is_watched(self.config):
            _remove_watch(host, scope)
        if not self.config.route_overlap.expected_cidrs:
            _remove_check(host, scope, self.config)
            return check_overlap(self.config, host, scope, now=self.now)
        with exclusive(host, scope), all_or_nothing(scope) as undo:
            install_part(host, self.config.consumer, check_part(self.config, host.layout), undo)
            is_watch_new = _install_watch(self.config, host, undo)
        _start_watch(self.config, host, is_new=is_watch_new)
        result = check_overlap(self.config, host, scope, now=self.now)
        if host.is_image:
            return result
        write_markers(host.layout, result)
        if is_held_back(result.mode, result.verdict):
            remedy = None if result.verdict is Verdict.UNKNOWN else result.remedy
            raise RouteOverlapError(
                report.error_text(result), findings=result.findings, reason=result.reason, remedy=remedy
            )
        return result


def is_held_back(mode: OverlapMode, verdict: Verdict) -> bool:
    """Whether a node must not start on this verdict."""
    return mode is OverlapMode.STRICT and verdict is not Verdict.OK


def _remove_check(host: Host, scope: CancelScope, config: Config) -> None:
    is_watch_new = False
    if is_installed(host, CHECK):
        with exclusive(host, scope):
            if is_installed(host, WATCH):
                with all_or_nothing(scope) as undo:
                    is_watch_new = _install_watch(config, host, undo)
            remove_part(host, CHECK)
    if is_watch_new:
        # Before the markers go, or the one that still runs would write them again.
        _start_watch(config, host, is_new=True)
    for path in (host.layout.marker_ok, host.layout.marker_detected, host.layout.report):
        remove(path)


# --- the watcher -------------------------------------------------------------------------------------------------


def _install_watch(config: Config, host: Host, undo: Undo) -> bool:
    """Have the watcher keep this config true, if it asks for one; whether anything changed.

    Under the lock in which what the config asks for is changed: the watcher reads it there, and takes no side.
    """
    if not is_watched(config):
        return False
    before = _textfile(host.layout)
    is_new = install_part(host, config.consumer, watch_part(config, host.layout), undo)
    if before is not None and before != _textfile(host.layout):
        remove(before)
    return is_new


def _start_watch(config: Config, host: Host, *, is_new: bool) -> None:
    """Start what was installed; not under the lock, which the watcher takes as it starts."""
    unit = f"{WATCH}.service"
    if is_watched(config) and not host.is_image and (is_new or not host.units.is_active(unit)):
        host.units.restart(unit)


def _remove_watch(host: Host, scope: CancelScope) -> None:
    if not is_installed(host, WATCH):
        return
    with exclusive(host, scope):
        textfile = _textfile(host.layout)
        remove_part(host, WATCH)
        if textfile is not None:
            remove(textfile)


def _textfile(layout: Layout) -> Path | None:
    """Where the installed watcher writes metrics."""
    try:
        name = Config.load(layout.watch_config).watch.textfile
    except ConfigError:  # gone, or somebody has edited it: then nothing is known of it
        return None
    return None if name is None else layout.root / name.lstrip("/")


# --- both, and back ----------------------------------------------------------------------------------------------


@attrs.frozen
class Configure:
    """Install the static routes, then prove that every expected CIDR leaves by the default route's interface.

    Args:
        config: what is wanted.
        host: where; None: this host.
    """

    name: ClassVar[str] = "configure"

    config: Config
    host: Host | None = attrs.field(default=None, kw_only=True)

    @property
    def tasks(self) -> tuple[ConfigureStaticRoutes, CheckRouteOverlap]:
        """The two tasks that this one is made of, in order."""
        host = self.host or Host()
        return (ConfigureStaticRoutes(self.config, host=host), CheckRouteOverlap(self.config, host=host))

    def do(self, scope: CancelScope) -> tuple[RoutesReport, OverlapReport]:
        """Do both.

        Returns:
            Both reports.

        Raises:
            HostRoutingError: what either of them raises; the check doesn't run after a failed installation.
        """
        routes, overlap = Serial[RoutesReport | OverlapReport](*self.tasks, name=self.name).do(scope)
        return routes, overlap  # type: ignore[return-value]


@attrs.frozen
class RemoveHostRouting:
    """Take back everything that was ever installed, without the config that asked for it; the probes' rules too.

    Args:
        host: where; None: this host.
    """

    name: ClassVar[str] = "remove-host-routing"

    host: Host | None = attrs.field(default=None, kw_only=True)

    def do(self, scope: CancelScope) -> RoutesReport:
        """Do it.

        Returns:
            The routes that were removed.

        Raises:
            RouteError: a route can't be removed; the table is as before.
            LoadBalancerProbeError: the rules that rewrite probes can't be removed; everything is as before.
            FileError: a file can't be removed; a later run goes on from there.
        """
        host = self.host or Host()
        if is_installed(host, PROBE):
            from hostrouting.azure.probe.tasks import RemoveLoadBalancerProbe

            RemoveLoadBalancerProbe(host=host).do(scope)
        _remove_watch(host, scope)
        result = _remove_routes(host, scope, Config())
        _remove_check(host, scope, Config())
        return result
