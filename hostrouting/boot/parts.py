"""The parts that a config asks for, and their files for the next boot."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hostrouting.boot.files import FileState
from hostrouting.boot.gate import DROP_INS, list_text
from hostrouting.boot.layout import Layout
from hostrouting.boot.manifest import CHECK, ROUTES, SHARED_KEYS, WATCH, InstalledPart, Manifest
from hostrouting.boot.python import python_of
from hostrouting.boot.render import fill, render_check, render_static_routes
from hostrouting.config.routing import SECTION, Config, OverlapMode
from hostrouting.model.errors import UnitError
from hostrouting.model.routes import Protocol

# The parts that a config of host routing installs, or removes if it doesn't ask for them. Other parts have their own
# configs.
CONFIGURED = (ROUTES, CHECK, WATCH)


@attrs.frozen
class BootFile:
    """A file to write, with its content and permission bits."""

    path: Path
    text: str
    mode: int = 0o644

    @property
    def state(self) -> FileState:
        """Return the state that the path has once the file is written."""
        return FileState(self.text.encode("utf-8", "surrogateescape"), self.mode)


@attrs.frozen
class Part:
    """A part of the installation that runs at boot, in the gate or as the watcher.

    Args:
        name: the name of its unit, and of its script if it has one.
        files: the script, the unit and any other files, in the order in which they are written.
        config: the keys from which it is rendered, by the section of the config.
        is_blocking: whether its failure blocks the consumer.
        is_gated: whether the gate runs its script.
    """

    name: str
    files: tuple[BootFile, ...]
    config: Mapping[str, Mapping[str, Any]]
    is_blocking: bool = False
    is_gated: bool = True

    def installed(self, layout: Layout) -> InstalledPart:
        """Return the part as the manifest records it."""
        names = tuple(layout.relative(file.path) for file in self.files)
        return InstalledPart(self.is_blocking, self.is_gated, names, self.config)


PROTOCOL_NAMES = f"# hostrouting: the routes that it installs\n{int(Protocol.HOSTROUTING)}\thostrouting\n"

_ROUTES_DESCRIPTION = "More specific host routes, so that no other interface shadows the cluster's network"
_CHECK_DESCRIPTION = "Check that every expected CIDR leaves by the node's uplink"

# The longest wait that a config may ask for, plus the wait for the lock. The check takes the lock before each read.
_ROUTES_SECONDS = 660
_CHECK_SECONDS = 1260
# Units that may start late and add routes. systemd doesn't wait for a unit that doesn't exist.
_NETWORK = "network-online.target systemd-udev-settle.service ib_rdma_configure.service"


def routes_part(config: Config, layout: Layout) -> Part:
    """Return the part that installs the static routes at boot; its failure blocks the consumer in both modes."""
    return Part(
        ROUTES,
        is_blocking=True,
        config=_section(config, "staticRoutes"),
        files=(
            BootFile(layout.script(ROUTES), render_static_routes(config), 0o755),
            BootFile(layout.unit(ROUTES), unit_text(ROUTES, _ROUTES_DESCRIPTION, _ROUTES_SECONDS)),
            BootFile(layout.protocol_names, PROTOCOL_NAMES),
        ),
    )


def check_part(config: Config, layout: Layout) -> Part:
    """Return the part that checks the routes at boot; its failure blocks the consumer in STRICT mode."""
    # An image may have another Python, or none.
    script = render_check(config, python=python_of(layout) if layout.is_this_host else "")
    return Part(
        CHECK,
        is_blocking=config.route_overlap.mode is OverlapMode.STRICT,
        config=_section(config, "routeOverlap"),
        files=(
            BootFile(layout.script(CHECK), script, 0o755),
            BootFile(layout.unit(CHECK), unit_text(CHECK, _CHECK_DESCRIPTION, _CHECK_SECONDS, f"{ROUTES}.service")),
        ),
    )


def _section(config: Config, key: str) -> dict[str, dict[str, Any]]:
    """Return the values that a part is rendered from, which are one key of the config and the shared keys."""
    section = config.to_mapping()[SECTION] | {"waitSeconds": config.wait_seconds}
    return {SECTION: {each: section[each] for each in (key, *SHARED_KEYS) if each in section}}


def unit_text(name: str, description: str, seconds: int, *after: str) -> str:
    """Return the text of a oneshot's unit; it is the same for every config.

    Args:
        name: the name of the unit and of its script.
        description: the unit's purpose.
        seconds: the time after which systemd ends the oneshot, so that the units ordered after it can continue.
        after: the units after which it starts, in addition to those of the network.
    """
    return fill(
        "oneshot.service",
        NAME=name,
        DESCRIPTION=description,
        AFTER=" ".join((_NETWORK, *after)),
        TIMEOUT_SECONDS=f"{seconds:d}",
    )


def watch_part(config: Config, layout: Layout) -> Part:
    """Return the watcher's part; no unit waits for the watcher or fails with it.

    Raises:
        UnitError: systemd can't run this Python, or must not run it as root.
    """
    python = python_of(layout)
    if not python:
        raise UnitError(
            f"can't install {WATCH}.service: {sys.executable or 'Python'} -I finds no hostrouting, and root starts no "
            "Python that depends on the environment or a home",
            hint="install hostrouting where every user finds it, or leave out watch.enabled",
        )
    # string_is_safe in systemd's src/basic/string-util.c: quoting doesn't help.
    if not python.isprintable() or any(letter in python for letter in "\"'\\"):
        raise UnitError(
            f"can't install {WATCH}.service: systemd refuses to run {python!r} because of the characters in its path",
            hint="install hostrouting elsewhere, or leave out watch.enabled",
        )
    textfile = config.watch.textfile
    folder = "" if textfile is None else f"ReadWritePaths={_quoted('-' + (textfile.rpartition('/')[0] or '/'))}"
    text = fill(f"{WATCH}.service", READ_WRITE_PATHS=folder, PYTHON=_quoted(python))
    return Part(
        WATCH,
        is_gated=False,
        config={SECTION: {"watch": config.watch.to_mapping()}},
        files=(BootFile(layout.unit(WATCH), text),),
    )


def _quoted(word: str) -> str:
    """Quote one argument in a line of a unit (systemd.syntax(7))."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


@attrs.frozen
class Wanted:
    """The parts that a config asks for, and the unit that they gate.

    Args:
        names: the parts that the config decides about; others don't change.
        parts: the parts to install, which are among these.
        consumer: the unit that the gate can block.
    """

    names: tuple[str, ...]
    parts: tuple[Part, ...]
    consumer: str

    @classmethod
    def of(cls, config: Config, layout: Layout, *names: str) -> Wanted:
        """Return what a config asks for among the named parts, or among all configurable parts if none is named."""
        names = names or CONFIGURED
        return cls(names, tuple(part for part in wanted_parts(config, layout) if part.name in names), config.consumer)


def wanted_parts(config: Config, layout: Layout) -> tuple[Part, ...]:
    """Return all parts that a config asks for."""
    return (
        *((routes_part(config, layout),) if config.static_routes.routes else ()),
        *((check_part(config, layout),) if config.route_overlap.expected_cidrs else ()),
        *((watch_part(config, layout),) if is_watched(config) else ()),
    )


def is_watched(config: Config) -> bool:
    """Return whether a config asks for a watcher and gives it something to do."""
    return config.watch.enabled and config.is_gated


def wanted_manifest(there: Manifest, wanted: Wanted, layout: Layout) -> Manifest:
    """Return the manifest with some parts replaced; the consumer changes only if the gate runs one of the wanted parts.

    Args:
        there: the current manifest.
        wanted: the parts to replace, and their consumer.
        layout: where the files are.
    """
    manifest = there.with_parts(wanted.names, {part.name: part.installed(layout) for part in wanted.parts})
    moves_gate = any(part.is_gated for part in wanted.parts)
    return attrs.evolve(manifest, consumer=wanted.consumer if moves_gate else there.consumer or wanted.consumer)


def gate_files(layout: Layout, manifest: Manifest, scripts: Mapping[str, bytes]) -> list[BootFile]:
    """Return the gate's files, or none if no part of the manifest needs the gate.

    Args:
        layout: where the host's files are.
        manifest: the manifest of the installation.
        scripts: the contents of the parts' scripts, by the names of the parts.
    """
    if not manifest.has_gate:
        return []
    return [
        BootFile(layout.gate_script, fill("gate.sh"), 0o755),
        BootFile(layout.gate_list, list_text(manifest, scripts)),
        *map(BootFile, layout.gates(manifest.consumer), DROP_INS),
    ]
