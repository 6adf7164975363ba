"""What an examination of a host is made of: the host as it was found, and the faults that are found on it.

The examinations themselves are ``doctor``'s, and those of whoever else installs parts.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.boot import files
from hostrouting.boot.gate import CHECK, GATED, ROUTES
from hostrouting.boot.parts import CONFIGURED, WATCH, BootFile, Manifest, wanted_files, wanted_parts
from hostrouting.boot.readback import read_check_route_overlap_script, read_static_routes_script
from hostrouting.config.routing import Config
from hostrouting.model.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from hostrouting.boot.host import Host
    from hostrouting.boot.layout import Layout

__all__ = ["Examination", "ExaminedHost", "Fault", "Severity", "read_folder", "resolve_link"]

_READERS = {ROUTES: read_static_routes_script, CHECK: read_check_route_overlap_script}
_LINKS_MAX = 40


class Severity(StrEnum):
    """``broken``: a promise doesn't hold now; ``risk``: it does, and may not later; ``unknown``: couldn't be seen."""

    BROKEN = "broken"
    RISK = "risk"
    UNKNOWN = "unknown"


@attrs.frozen
class Fault:
    """Something wrong with a host.

    Args:
        kind: a word for programs, like ``gate-overridden``.
        subject: the file, unit, route or interface that it is about.
        message: what is wrong and what follows from it, for a person; the subject isn't repeated in it.
        remedy: what to do; it may have several lines.
        severity: whether it hurts already.
    """

    kind: str
    subject: str
    message: str
    remedy: str
    severity: Severity = Severity.BROKEN

    def to_json(self) -> dict[str, Any]:
        """The fault as JSON."""
        return {
            "kind": self.kind,
            "severity": str(self.severity),
            "subject": self.subject,
            "message": self.message,
            "remedy": self.remedy,
        }


class ExaminedHost:
    """A host to examine.

    Args:
        host: whose kernel, systemd and files to look at.
        config: what is asked for; None: what the installed scripts were rendered from.
        config_name: what a command has to name so that it reads that config.
    """

    def __init__(self, host: Host, config: Config | None, config_name: str) -> None:
        self.host = host
        self.layout = host.layout
        self.units = host.units
        self.given = config
        self._config_name = config_name

    @cached_property
    def manifest(self) -> Manifest:
        """What was installed.

        Raises:
            FileError: the manifest can't be read.
        """
        return Manifest.load(self.layout)

    @cached_property
    def read_back(self) -> dict[str, Config | None]:
        """For each installed part the config that its script was rendered from; None where it can't be told."""
        return {name: self._read_back(name) for name in self.manifest.parts if name in _READERS}

    def _read_back(self, name: str) -> Config | None:
        text = files.read_text(self.layout.script(name))
        return None if text is None else _READERS[name](text)

    @cached_property
    def config(self) -> Config:
        """What the host should be like."""
        if self.given is not None:
            return self.given
        routes, check = self.read_back.get(ROUTES), self.read_back.get(CHECK)
        either = routes or check
        return Config(
            static_routes=Config().static_routes if routes is None else routes.static_routes,
            route_overlap=Config().route_overlap if check is None else check.route_overlap,
            wait_seconds=Config().wait_seconds if either is None else either.wait_seconds,
            consumer=self.manifest.consumer or Config().consumer,
        )

    @cached_property
    def files(self) -> list[BootFile]:
        """The files that should be installed, with what they should hold, as far as that is known."""
        parts = wanted_parts(self.config, self.layout)
        manifest = self.manifest
        if self.given is not None:
            wanted = {part.name: part.is_blocking for part in parts} | self.neighbours
            manifest = Manifest(self.given.consumer, wanted)
        return wanted_files(self.layout, manifest, parts) if manifest.parts else []

    @property
    def neighbours(self) -> dict[str, bool]:
        """The installed parts that the config of host routing doesn't ask for, and can't."""
        return {name: blocks for name, blocks in self.manifest.parts.items() if name not in CONFIGURED}

    @property
    def has_installation(self) -> bool:
        """Whether anything is installed, or that can't be told."""
        try:
            return bool(self.manifest.parts)
        except FileError:
            return True

    @property
    def parts(self) -> dict[str, bool]:
        """The installed parts of the gate, each with whether its failure holds the consumer back."""
        return {name: blocks for name, blocks in self.manifest.parts.items() if name in GATED}

    @property
    def consumer(self) -> str:
        """The unit that is held back."""
        return self.manifest.consumer or self.config.consumer

    @cached_property
    def instances(self) -> dict[str, dict[str, str]]:
        """The consumer's units that could start now, each with what is looked at.

        Raises:
            UnitError: systemd can't be asked.
        """
        shown = {name: self.units.show(name, *_PROPERTIES) for name in self.units.instances(self.consumer)}
        return {name: properties for name, properties in shown.items() if properties["LoadState"] == "loaded"}

    @cached_property
    def is_watched(self) -> bool:
        """Whether the watcher puts lost routes back."""
        return self.units.is_active(f"{WATCH}.service")

    def command(self, verb: str) -> str:
        """One of our commands, to be pasted."""
        return f"hostrouting {verb} {self._config_name}".rstrip()

    def name(self, path: Path) -> str:
        """A path as the running system sees it."""
        return self.layout.relative(path)


_PROPERTIES = (
    *("LoadState", "ExecStartPreEx", "After", "NeedDaemonReload", "DropInPaths"),
    *("Restart", "PrivateNetwork", "NetworkNamespacePath"),
)


@attrs.frozen
class Link:
    """Where a path leads.

    Args:
        end: what it leads to, as the running system sees it.
        is_there: whether there is anything.
    """

    end: str
    is_there: bool


def resolve_link(layout: Layout, path: str) -> Link:
    """Follow symbolic links below a layout's root, as the running system would.

    Args:
        layout: whose root.
        path: as the running system sees it.

    Returns:
        Where it leads.

    Raises:
        FileError: it can't be followed.
    """
    seen = layout.of(path)
    try:
        for _ in range(_LINKS_MAX):
            if not seen.is_symlink():
                return Link(layout.relative(seen), seen.exists() or layout.relative(seen) == "/dev/null")
            target = seen.readlink()
            seen = layout.of(str(target)) if target.is_absolute() else seen.parent / target
            seen = layout.root.joinpath(*_without_dots(seen.relative_to(layout.root).parts))
    except OSError as error:
        raise FileError.of(f"follow {path}", error) from error
    return Link(path, is_there=False)


def _without_dots(parts: tuple[str, ...]) -> list[str]:
    kept: list[str] = []
    for part in parts:
        if part == "..":
            kept = kept[:-1]
        else:
            kept.append(part)
    return kept


def read_folder(layout: Layout, *patterns: str) -> dict[Path, str]:
    """The texts of all files that match, in the order of their names.

    Raises:
        FileError: one can't be read.
    """
    found = sorted({path for pattern in patterns for path in layout.root.glob(pattern.lstrip("/"))})
    # A link to /dev/null stands for an empty file, which masks its namesakes elsewhere.
    texts = {path: files.read_text(path) if path.is_file() else "" for path in found if not path.is_dir()}
    return {path: text for path, text in texts.items() if text is not None}


@attrs.frozen
class Examination:
    """Something to look at.

    Args:
        name: a word.
        fine: what is the case if nothing is found, a clause.
        look: finds what is wrong.
        is_of_the_installed: whether it has nothing to look at where nothing is installed.
    """

    name: str
    fine: str
    look: Callable[[ExaminedHost], Iterable[Fault]]
    is_of_the_installed: bool = True
