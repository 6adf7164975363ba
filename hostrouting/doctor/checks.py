"""The building blocks of checks: the examined host, and the findings about it.

A plug-in builds its own checks from these types and passes them to ``examine``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from shlex import quote
from typing import Any

import attrs

from hostrouting.boot.gate import SETTINGS
from hostrouting.boot.host import Host
from hostrouting.boot.layout import SEARCH_PATH, Layout
from hostrouting.boot.manifest import WATCH, Manifest
from hostrouting.boot.systemd import ANY_INSTANCE, UnitManager
from hostrouting.config.routing import Config
from hostrouting.model.errors import FileError
from hostrouting.model.jsonable import StrEnum
from hostrouting.overlap.node_ip import NONE_GIVEN, NodeAddresses
from phases import CancelScope

_PATH = SEARCH_PATH.split(":")


class Severity(StrEnum):
    """How bad a finding is.

    ``broken`` means that a promise doesn't hold now, ``unknown`` that something can't be examined, and ``risk`` that it
    may break later.
    """

    BROKEN = "broken"
    UNKNOWN = "unknown"
    RISK = "risk"


@attrs.frozen
class DoctorFinding:
    """A problem of a host.

    Args:
        kind: an identifier for programs, such as ``gate-overridden``.
        subject: the file, unit, route or interface that has the problem.
        message: the problem and its consequence, without the subject.
        hint: how to fix the problem; it may have several lines.
        severity: whether the problem already has an effect.
    """

    kind: str
    subject: str
    message: str
    hint: str
    severity: Severity = Severity.BROKEN

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON."""
        return attrs.asdict(self)


class ExaminedHost:
    """A host to examine.

    Args:
        host: the host with the kernel, systemd and files to examine.
        config: the wanted config, or None for the config from which the installed parts were rendered.
        config_name: the argument with which our commands read that config.
        scope: cancels the waits of a check.
        addresses: the addresses that the config's document has for other components.
    """

    def __init__(
        self,
        host: Host,
        config: Config | None,
        config_name: str,
        scope: CancelScope,
        addresses: NodeAddresses = NONE_GIVEN,
    ) -> None:
        self.host = host
        self.scope = scope
        self.layout: Layout = host.layout
        self.units: UnitManager = host.units.within(scope)
        self.given = config
        self.addresses = addresses
        self._config_name = config_name

    @cached_property
    def manifest(self) -> Manifest:
        """Return the manifest of the installation.

        Raises:
            FileError: the manifest can't be read.
        """
        return Manifest.load(self.layout)

    @cached_property
    def config(self) -> Config:
        """Return the config that the host should have, which is the given one or that of the installed parts."""
        return self.manifest.config if self.given is None else self.given

    @property
    def has_installation(self) -> bool:
        """Return whether anything is installed, or the manifest can't be read."""
        try:
            return bool(self.manifest.parts)
        except FileError:
            return True

    @property
    def oneshots(self) -> tuple[str, ...]:
        """The units of the installed parts of the gate."""
        return tuple(f"{name}.service" for name, part in self.manifest.parts.items() if part.is_gated)

    @property
    def consumer(self) -> str:
        """The unit that the gate can block."""
        return self.manifest.consumer or self.config.consumer

    @cached_property
    def units_of_consumer(self) -> dict[str, dict[str, str]]:
        """The consumer's units, each with the properties that the checks examine.

        Raises:
            UnitError: systemd can't be queried.
        """
        return {name: self.units.show(name, *_PROPERTIES) for name in self.units.instances(self.consumer)}

    @property
    def instances(self) -> dict[str, dict[str, str]]:
        """Return the instances that could start now.

        Raises:
            UnitError: systemd can't be queried.
        """
        return {name: shown for name, shown in self.units_of_consumer.items() if shown["LoadState"] == "loaded"}

    def called(self, instance: str) -> str:
        """Return an instance's name, or its template's name if it is the made-up instance, which stands for all."""
        return self.consumer if f"@{ANY_INSTANCE}." in instance else instance

    @property
    def writing_anew(self) -> str:
        """The hint for one of our files if it differs from the rendered file."""
        return f"{self.command('plan')} shows the difference, {self.command('apply')} fixes it"

    def command(self, verb: str) -> str:
        """Return one of our commands in a form that can be pasted."""
        root = f" --root {quote(str(self.layout.root))}" if self.host.is_image else ""
        return f"hostrouting {verb}{root} {self._config_name}".rstrip()


_PROPERTIES = (
    *("LoadState", "SubState", "InactiveExitTimestampMonotonic"),
    *("ExecConditionEx", "ExecStartPreEx", "After", "NeedDaemonReload", "DropInPaths"),
    *(*SETTINGS, "Requires", "Requisite", "BindsTo", "PartOf", "StopPropagatedFrom", "Conflicts", "ConflictedBy"),
    *("Restart", "RestartUSec", "RestartPreventExitStatus", "StartLimitIntervalUSec", "StartLimitBurst"),
    *("PrivateNetwork", "NetworkNamespacePath", "RootDirectory", "RootImage"),
    *("BindPaths", "BindReadOnlyPaths", "TemporaryFileSystem"),
)


def missing_tools(examined: ExaminedHost, tools: Mapping[str, str], who: str) -> Iterator[DoctorFinding]:
    """Yield a finding for each program that isn't in the scripts' path.

    Args:
        examined: the host to examine.
        tools: the programs, each with the package that contains it.
        who: what fails without the programs, as a noun phrase.
    """
    for tool, package in tools.items():
        if not any(os.access(examined.layout.followed(f"{folder}/{tool}"), os.X_OK) for folder in _PATH):
            message = f"it isn't in {':'.join(_PATH)}, or can't be run: {who} fail without it"
            yield DoctorFinding("tool-missing", tool, message, f"install {package}")


def stale_files(examined: ExaminedHost, part: str) -> Iterator[DoctorFinding]:
    """Yield findings for a part's unit and script if they exist but aren't part of the installation."""
    layout = examined.layout
    known = set(examined.manifest.files(layout))
    # The watcher may be stopped. A oneshot must not be stopped, because machines of older installations may require it.
    disable = "systemctl disable --now" if part == WATCH else "systemctl disable"
    for path in (layout.unit(part), layout.script(part)):
        if path not in known and path.exists() and not path.is_symlink():
            message = "no installation knows of it: the reference, or an earlier run, has left it behind"
            hint = f"{disable} {part}.service; rm {layout.relative(path)}; systemctl daemon-reload"
            yield DoctorFinding("stale-file", layout.relative(path), message, hint, Severity.RISK)


@attrs.frozen
class DoctorCheck:
    """A check of the doctor.

    Args:
        name: the check's name, a single word.
        fine: a clause that describes the host if there are no findings.
        look: the function that yields the findings.
        is_of_the_installed: whether the check is skipped if nothing is installed.
        is_of_images: whether the check also works for an image, which has neither a kernel nor a running systemd.
    """

    name: str
    fine: str
    look: Callable[[ExaminedHost], Iterable[DoctorFinding]]
    is_of_the_installed: bool = True
    is_of_images: bool = False
