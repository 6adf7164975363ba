"""Types for writing checks: the examined host and the findings.

Plug-ins can define their own checks and pass them to ``examine``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from shlex import quote

from hostrouting.boot.files import read_text
from hostrouting.boot.gate import SETTINGS
from hostrouting.boot.go_package import is_go_package_script
from hostrouting.boot.host import Host
from hostrouting.boot.layout import SEARCH_PATH, WATCH, Layout
from hostrouting.boot.manifest import Manifest
from hostrouting.boot.parts import differing_parts
from hostrouting.boot.systemd import ANY_INSTANCE, UnitManager
from hostrouting.config.routing import Config
from hostrouting.model.errors import FileError
from hostrouting.model.jsonable import JsonObject, StrEnum
from hostrouting.model.values import frozen
from hostrouting.overlap.check import check_families, check_host
from hostrouting.overlap.findings import OverlapReport
from hostrouting.overlap.planned_host import as_installed
from hostrouting.overlap.rehearsal import Rehearsal, rehearse_installed
from hostrouting.routes.plan import RoutePlan, plan_now
from hostrouting.tasks.preview import NextStart, predict_start
from phases import CancelScope

_PATH = SEARCH_PATH.split(":")


class Severity(StrEnum):
    """The severity of a finding.

    - ``broken``: a guarantee is violated now.
    - ``unknown``: a check couldn't run.
    - ``risk``: something may break later.
    """

    BROKEN = "broken"
    UNKNOWN = "unknown"
    RISK = "risk"


@frozen
class DoctorFinding(JsonObject):
    """A problem found on a host.

    Args:
        kind: a machine-readable identifier, such as ``gate-overridden``.
        subject: the affected file, unit, route or interface.
        message: the problem and its consequences, without the subject.
        hint: how to fix the problem, possibly in several lines.
        severity: whether something is broken, unknown or only a risk.
        cause: the reason why a check couldn't run; empty for other findings. Several checks may
            have the same cause. Not included in the JSON.
    """

    json_names = ("kind", "subject", "message", "hint", "severity")

    kind: str
    subject: str
    message: str
    hint: str
    severity: Severity = Severity.BROKEN
    cause: str = ""

    @property
    def is_broken(self) -> bool:
        """Return whether a guarantee is violated now."""
        return self.severity is Severity.BROKEN


@frozen(slots=False)
class ExaminedHost:
    """A host to examine.

    Args:
        host: the host, which provides the kernel and systemd.
        layout: the paths of the host's files. A snapshot can't be examined, because it contains no
            files.
        given: the wanted config, or None for the installed one.
        config_name: the config argument for commands in hints.
        scope: cancels running checks.
    """

    host: Host
    layout: Layout
    given: Config | None
    config_name: str
    scope: CancelScope

    @cached_property
    def units(self) -> UnitManager:
        """Return the host's service manager, whose calls end if the doctor is cancelled."""
        return self.host.units.within(self.scope)

    @cached_property
    def manifest(self) -> Manifest:
        """Return the installation's manifest.

        Raises:
            FileError: the manifest can't be read.
        """
        return Manifest.load(self.layout)

    @cached_property
    def config(self) -> Config:
        """Return the wanted config, by default the installed one."""
        return self.manifest.config if self.given is None else self.given

    @cached_property
    def differing(self) -> list[str]:
        """Return the names of the parts that CONFIG would change."""
        if self.given is None:
            return []
        return differing_parts(self.manifest, self.given, self.layout)

    @cached_property
    def report(self) -> OverlapReport:
        """Return the result of the check with the installed config."""
        return check_host(self.manifest.config, self.host, self.scope)

    @cached_property
    def report_after_apply(self) -> OverlapReport:
        """Return the result that the installed check would have with CONFIG's routes in the kernel.

        Raises:
            RouteError: CONFIG's routes can't be installed now.
        """
        planned = as_installed(self.config, self.host, self.scope)
        if not planned.models:  # the routes are in the kernel already
            return self.report
        config = self.host.with_verified(self.manifest.config)
        return check_families(config, planned.backend, self.scope)

    @cached_property
    def route_plan(self) -> tuple[RoutePlan, str | None]:
        """Return the plan for the installed config's routes, and what is missing (``plan_now``).

        Raises:
            RouteError: a route can't be installed, or the kernel can't be queried.
        """
        return self._plan_routes(self.manifest.config)

    @cached_property
    def rehearsal(self) -> Rehearsal:
        """Return the rehearsal of the installed config, whose routes a start installs first.

        Raises:
            RouteError: the kernel can't be queried.
        """
        return rehearse_installed(self.manifest.config, self.host, self.scope)

    @cached_property
    def next_start(self) -> NextStart:
        """Return the gate's predicted decision about the next start.

        Raises:
            RouteError: the kernel can't be queried.
        """
        return predict_start(self.manifest.config, self.host, self.rehearsal, self.scope)

    @cached_property
    def wanted_route_plan(self) -> tuple[RoutePlan, str | None]:
        """Return the plan for CONFIG's routes, and what is missing; see ``route_plan``."""
        if self.config == self.manifest.config:
            return self.route_plan
        return self._plan_routes(self.config)

    def _plan_routes(self, config: Config) -> tuple[RoutePlan, str | None]:
        config = self.host.with_verified(config)
        return plan_now(config, *self.host.backends(config.static_routes.families))

    @property
    def has_installation(self) -> bool:
        """Return whether a config is installed, or True if the manifest can't be read."""
        try:
            return bool(self.manifest.parts) and not self.manifest.is_being_removed
        except FileError:
            return True

    @property
    def oneshots(self) -> tuple[str, ...]:
        """Return the oneshot units of the gated parts."""
        return tuple(
            f"{name}.service" for name, part in self.manifest.parts.items() if part.is_gated
        )

    @property
    def consumer(self) -> str:
        """Return the gated unit."""
        return self.manifest.consumer or self.config.consumer

    @cached_property
    def units_of_consumer(self) -> dict[str, dict[str, str]]:
        """Return the consumer's units, each with the properties that the checks need.

        Raises:
            UnitError: systemd can't be queried.
        """
        return {
            name: self.units.show(name, *_PROPERTIES)
            for name in self.units.instances(self.consumer)
        }

    @property
    def instances(self) -> dict[str, dict[str, str]]:
        """Return the consumer's units that are loaded, with their properties.

        Raises:
            UnitError: systemd can't be queried.
        """
        return {
            name: properties
            for name, properties in self.units_of_consumer.items()
            if properties["LoadState"] == "loaded"
        }

    def called(self, instance: str) -> str:
        """Return an instance's name, or the template's name for a template's dummy instance."""
        return self.consumer if f"@{ANY_INSTANCE}." in instance else instance

    @cached_property
    def unlisted(self) -> Manifest:
        """Return a manifest of our files that no manifest lists; empty if there is a manifest."""
        return Manifest() if self.manifest.parts else Manifest.of_host(self.layout)

    @property
    def removing(self) -> str:
        """Return a hint for files of ours that no manifest lists."""
        return f"{self.naming('remove')} removes it, and what else is left"

    @property
    def writing_anew(self) -> str:
        """Return a hint for files that differ from what hostrouting would write."""
        return f"{self.repairing('plan')} shows the difference, {self.repairing('apply')} fixes it"

    def repairing(self, verb: str) -> str:
        """Return a command line for the installed config, even if CONFIG differs."""
        is_asked_for = self.given is not None and not self.differing
        if is_asked_for or not self.manifest.parts or self.manifest.is_being_removed:
            return self.command(verb)
        return f"hostrouting {verb}{self._root} {quote(str(self.layout.manifest))}"

    def command(self, verb: str) -> str:
        """Return a hostrouting command line that can be copied and pasted."""
        return self.naming(verb, self.config_name)

    def naming(self, verb: str, config: str = "") -> str:
        """Return a hostrouting command line with another CONFIG, or without one."""
        return f"hostrouting {verb}{self._root} {config}".rstrip()

    @property
    def _root(self) -> str:
        return f" --root {quote(str(self.layout.root))}" if self.host.is_image else ""


_PROPERTIES = (
    *("LoadState", "SubState", "InactiveExitTimestampMonotonic"),
    *("ExecConditionEx", "ExecStartPreEx", "After", "NeedDaemonReload", "DropInPaths"),
    *(
        *SETTINGS,
        "Requires",
        "Requisite",
        "BindsTo",
        "PartOf",
        "StopPropagatedFrom",
        "Conflicts",
        "ConflictedBy",
    ),
    *(
        "Restart",
        "RestartUSec",
        "RestartPreventExitStatus",
        "StartLimitIntervalUSec",
        "StartLimitBurst",
    ),
    *("PrivateNetwork", "NetworkNamespacePath", "RootDirectory", "RootImage"),
    *("BindPaths", "BindReadOnlyPaths", "TemporaryFileSystem"),
)


def has_no_programs(examined: ExaminedHost) -> bool:
    """Return whether a host is only a test's folder, in which no script runs."""
    folders = [examined.layout.followed(folder) for folder in _PATH]
    return not (examined.host.is_image or any(folder.exists() for folder in folders))


def missing_tools(
    examined: ExaminedHost,
    tools: Mapping[str, str],
    who: str,
) -> Iterator[DoctorFinding]:
    """Yield a finding for each program that isn't found in the scripts' PATH.

    Args:
        examined: the host to examine.
        tools: maps each required program to the package that contains it.
        who: a noun phrase for the components that need the programs.
    """
    if has_no_programs(examined):
        return
    for tool, package in tools.items():
        if not any(
            os.access(examined.layout.followed(f"{folder}/{tool}"), os.X_OK) for folder in _PATH
        ):
            message = f"it isn't in {':'.join(_PATH)}, or can't be run: {who} fail without it"
            yield DoctorFinding("tool-missing", tool, message, f"install {package}")


def stale_files(examined: ExaminedHost, part: str) -> Iterator[DoctorFinding]:
    """Yield findings for a part's unit and script that exist, but aren't in the manifest."""
    layout = examined.layout
    known = set(examined.manifest.files(layout))
    unlisted = set(examined.unlisted.files(layout))
    # It is safe to stop the watcher, but not a oneshot. A machine of an older installation may
    # require the oneshot, and would stop with it.
    disable = "systemctl disable --now" if part == WATCH else "systemctl disable"
    for path in (layout.unit(part), layout.script(part)):
        if path not in known and path.exists() and not path.is_symlink():
            message = (
                "it isn't in the manifest: the Go package, or an earlier run, has left it behind"
            )
            hint = f"{disable} {part}.service; rm {layout.relative(path)}; systemctl daemon-reload"
            if path in unlisted:
                hint = examined.removing
            if not examined.manifest.parts and is_go_package_script(
                read_text(layout.script(part)) or ""
            ):
                message = "it is the Go package's"
                hint = f"keep it: {examined.command('apply')} takes its place, and its routes"
            yield DoctorFinding("stale-file", layout.relative(path), message, hint, Severity.RISK)


@frozen
class DoctorCheck:
    """A doctor check.

    Args:
        name: the check's name (a single word).
        fine: a clause to print if there are no findings.
        look: a function that yields findings.
        is_of_the_installed: whether the check is skipped if nothing is installed.
        is_of_images: whether the check also runs on images, without a running kernel and systemd.
    """

    name: str
    fine: str
    look: Callable[[ExaminedHost], Iterable[DoctorFinding]]
    is_of_the_installed: bool = True
    is_of_images: bool = False
