"""The parts of a check: the host as it was found, and the findings that are found on it.

A plug-in makes its own checks of them, and hands them to ``examine``.
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
    """``broken``: a promise doesn't hold now; ``unknown``: couldn't be seen; ``risk``: it does, and may not later."""

    BROKEN = "broken"
    UNKNOWN = "unknown"
    RISK = "risk"


@attrs.frozen
class DoctorFinding:
    """Something wrong with a host.

    Args:
        kind: a word for programs, like ``gate-overridden``.
        subject: the file, unit, route or interface that it is about.
        message: what is wrong and what follows from it, for a person; the subject isn't repeated in it.
        hint: what to do; it may have several lines.
        severity: whether it hurts already.
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
        host: whose kernel, systemd and files to look at.
        config: what is asked for; None: what the installed parts were rendered from.
        config_name: what a command has to name so that it reads that config.
        scope: ends what a check waits for.
        addresses: that the config's document gives other components.
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
        """Return the manifest of what was installed.

        Raises:
            FileError: the manifest can't be read.
        """
        return Manifest.load(self.layout)

    @cached_property
    def config(self) -> Config:
        """Return the config that the host should have: the given one, else that of the installed parts."""
        return self.manifest.config if self.given is None else self.given

    @property
    def has_installation(self) -> bool:
        """Return whether anything is installed, or that can't be told."""
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
        """The consumer's units, each with what is looked at.

        Raises:
            UnitError: systemd can't be asked.
        """
        return {name: self.units.show(name, *_PROPERTIES) for name in self.units.instances(self.consumer)}

    @property
    def instances(self) -> dict[str, dict[str, str]]:
        """Return the instances that could start now; raise as ``units_of_consumer`` does."""
        return {name: shown for name, shown in self.units_of_consumer.items() if shown["LoadState"] == "loaded"}

    def called(self, instance: str) -> str:
        """Return the name of an instance; its template's for one that doesn't exist: then it is so with all."""
        return self.consumer if f"@{ANY_INSTANCE}." in instance else instance

    @property
    def writing_anew(self) -> str:
        """The hint for a file of ours that isn't as rendered."""
        return f"{self.command('plan')} shows the difference, {self.command('apply')} ends it"

    def command(self, verb: str) -> str:
        """One of our commands, to be pasted."""
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
    """Yield the programs that aren't in the path of the scripts.

    Args:
        examined: the host.
        tools: programs, each with the package that has it.
        who: fails without them, in words.
    """
    for tool, package in tools.items():
        if not any(os.access(examined.layout.followed(f"{folder}/{tool}"), os.X_OK) for folder in _PATH):
            message = f"it isn't in {':'.join(_PATH)}, or can't be run: {who} fail without it"
            yield DoctorFinding("tool-missing", tool, message, f"install {package}")


def stale_files(examined: ExaminedHost, part: str) -> Iterator[DoctorFinding]:
    """Yield unit and script of a part that no installation knows of."""
    layout = examined.layout
    known = set(examined.manifest.files(layout))
    # The watcher may be stopped; as for a oneshot, machines of older installations may still require it.
    disable = "systemctl disable --now" if part == WATCH else "systemctl disable"
    for path in (layout.unit(part), layout.script(part)):
        if path not in known and path.exists() and not path.is_symlink():
            message = "no installation knows of it: the reference, or an earlier run, has left it behind"
            hint = f"{disable} {part}.service; rm {layout.relative(path)}; systemctl daemon-reload"
            yield DoctorFinding("stale-file", layout.relative(path), message, hint, Severity.RISK)


@attrs.frozen
class DoctorCheck:
    """Something to look at.

    Args:
        name: a word.
        fine: what is the case if nothing is found, a clause.
        look: finds what is wrong.
        is_of_the_installed: whether it has nothing to look at where nothing is installed.
        is_of_images: whether an image, which has neither kernel nor running systemd, can be examined so.
    """

    name: str
    fine: str
    look: Callable[[ExaminedHost], Iterable[DoctorFinding]]
    is_of_the_installed: bool = True
    is_of_images: bool = False
