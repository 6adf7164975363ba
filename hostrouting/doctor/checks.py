"""The building blocks of checks: the examined host, and the findings on it.

A plug-in makes its own checks from these, and passes them to ``examine``.
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
    """``broken``: a promise doesn't hold now; ``unknown``: can't be examined; ``risk``: it may break later."""

    BROKEN = "broken"
    UNKNOWN = "unknown"
    RISK = "risk"


@attrs.frozen
class DoctorFinding:
    """A problem of a host.

    Args:
        kind: a word for programs, like ``gate-overridden``.
        subject: the file, unit, route or interface concerned.
        message: the problem and its consequence, for people; it doesn't repeat the subject.
        hint: how to fix it; it may have several lines.
        severity: whether it has an effect already.
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
        config: the wanted config; None: the one that the installed parts were rendered from.
        config_name: the argument with which commands read that config.
        scope: cancels a check's waits.
        addresses: the addresses that the config's document gives other components.
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
        """Return the config that the host should have: the given one, or that of the installed parts."""
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
        """The unit that is held back."""
        return self.manifest.consumer or self.config.consumer

    @cached_property
    def units_of_consumer(self) -> dict[str, dict[str, str]]:
        """The consumer's units, each with the properties to examine.

        Raises:
            UnitError: systemd can't be queried.
        """
        return {name: self.units.show(name, *_PROPERTIES) for name in self.units.instances(self.consumer)}

    @property
    def instances(self) -> dict[str, dict[str, str]]:
        """Return the instances that could start now; raise like ``units_of_consumer``."""
        return {name: shown for name, shown in self.units_of_consumer.items() if shown["LoadState"] == "loaded"}

    def called(self, instance: str) -> str:
        """Return the name of an instance; its template's if it doesn't exist, because then it is true for all."""
        return self.consumer if f"@{ANY_INSTANCE}." in instance else instance

    @property
    def writing_anew(self) -> str:
        """The hint for a file of ours that differs from the rendered one."""
        return f"{self.command('plan')} shows the difference, {self.command('apply')} fixes it"

    def command(self, verb: str) -> str:
        """Return one of our commands, to paste."""
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
    """Yield the programs that aren't in the scripts' path.

    Args:
        examined: the host.
        tools: programs, each with the package that has it.
        who: what fails without them, in words.
    """
    for tool, package in tools.items():
        if not any(os.access(examined.layout.followed(f"{folder}/{tool}"), os.X_OK) for folder in _PATH):
            message = f"it isn't in {':'.join(_PATH)}, or can't be run: {who} fail without it"
            yield DoctorFinding("tool-missing", tool, message, f"install {package}")


def stale_files(examined: ExaminedHost, part: str) -> Iterator[DoctorFinding]:
    """Yield a part's unit and script that no installation includes."""
    layout = examined.layout
    known = set(examined.manifest.files(layout))
    # The watcher may be stopped; a oneshot must not be, because machines of older installations may require it.
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
        name: a word.
        fine: the state if nothing is found, a clause.
        look: finds the problems.
        is_of_the_installed: whether the check is skipped if nothing is installed.
        is_of_images: whether the check works for an image, which has neither kernel nor running systemd.
    """

    name: str
    fine: str
    look: Callable[[ExaminedHost], Iterable[DoctorFinding]]
    is_of_the_installed: bool = True
    is_of_images: bool = False
