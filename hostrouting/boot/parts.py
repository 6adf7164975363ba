"""The parts that a config enables, and the files they need at the next boot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from hostrouting.boot.files import FileState
from hostrouting.boot.gate import DROP_INS, list_text
from hostrouting.boot.layout import CHECK, ROUTES, WATCH, Layout
from hostrouting.boot.manifest import InstalledPart, Manifest
from hostrouting.boot.python import python_of, why_unsuitable
from hostrouting.boot.render import fill, part_config, render_check, render_static_routes
from hostrouting.config.routing import SECTION, Config, OverlapMode, Watch
from hostrouting.model.errors import UnitError
from hostrouting.model.family import Family
from hostrouting.model.routes import Protocol
from hostrouting.model.values import frozen
from hostrouting.model.verified_uplinks import verified_text

# The parts that the host routing config controls. Parts that the config enables are installed, and
# the others are removed. The parts of plug-ins have their own configs.
CONFIGURED = (ROUTES, CHECK, WATCH)


@frozen
class BootFile:
    """A file to write, along with its content and mode."""

    path: Path
    text: str
    mode: int = 0o644

    @property
    def content(self) -> bytes:
        """Return the file's bytes."""
        return self.text.encode("utf-8", "surrogateescape")

    @property
    def state(self) -> FileState:
        """Return the path's expected state after the write."""
        return FileState(self.content, self.mode)


@frozen
class Part:
    """A part that can be installed: a oneshot and its script, or the watcher.

    Args:
        name: the base name of the part's unit, and of its script if it has one.
        files: the script, the unit and any other files, in the order in which they are written.
        config: the config values that the part is rendered from, by section and key.
        is_blocking: whether the part's failure blocks the consumer.
        is_gated: whether the gate runs the part's script.
        settle_seconds: how long the script waits for addresses of kept interfaces.
    """

    name: str
    files: tuple[BootFile, ...]
    config: Mapping[str, Mapping[str, Any]]
    is_blocking: bool = False
    is_gated: bool = True
    settle_seconds: int = 0

    def installed(self, layout: Layout) -> InstalledPart:
        """Return the part's manifest entry."""
        names = tuple(layout.relative(file.path) for file in self.files)
        return InstalledPart(
            self.is_blocking,
            self.is_gated,
            names,
            self.config,
            self.settle_seconds,
        )


PROTOCOL_NAMES = (
    f"# hostrouting: the routes that it installs\n{int(Protocol.HOSTROUTING)}\thostrouting\n"
)

_ROUTES_DESCRIPTION = (
    "More specific host routes, so that no other interface shadows the cluster's network"
)
_CHECK_DESCRIPTION = "Check that every expected CIDR leaves through the node's uplink"

# The longest wait that a config can set (600 s) plus the timeout of the lock (60 s). The check gets
# 600 s more, because the check takes the lock before each read.
_ROUTES_SECONDS = 660
_CHECK_SECONDS = 1260
# Units that may start late and add routes. Listing a nonexistent unit is harmless.
_NETWORK = "network-online.target systemd-udev-settle.service ib_rdma_configure.service"


def routes_part(config: Config, layout: Layout) -> Part:
    """Return the part that installs the static routes at boot.

    If this part fails, the gate blocks the consumer, both in STRICT and in WARN mode.
    """
    return Part(
        ROUTES,
        is_blocking=True,
        config=part_config(config, "staticRoutes"),
        settle_seconds=config.route_overlap.address_seconds if config.static_routes.keep else 0,
        files=(
            BootFile(layout.script(ROUTES), render_static_routes(config), 0o755),
            BootFile(
                layout.unit(ROUTES),
                _unit_text(ROUTES, _ROUTES_DESCRIPTION, _ROUTES_SECONDS, _NETWORK),
            ),
            BootFile(layout.protocol_names, PROTOCOL_NAMES),
        ),
    )


def check_part(config: Config, layout: Layout) -> Part:
    """Return the part that checks the routes at boot.

    If the check fails and its mode is STRICT, the gate blocks the consumer.
    """
    # An image may have a different Python or none at all.
    script = render_check(config, python=python_of(layout) if layout.is_this_host else "")
    after = f"{_NETWORK} {ROUTES}.service"
    sockets = _sockets(config)
    return Part(
        CHECK,
        is_blocking=config.route_overlap.mode is OverlapMode.STRICT,
        config=part_config(config, "routeOverlap"),
        files=(
            BootFile(layout.script(CHECK), script, 0o755),
            BootFile(
                layout.unit(CHECK),
                _unit_text(CHECK, _CHECK_DESCRIPTION, _CHECK_SECONDS, after, sockets),
            ),
        ),
    )


def _unit_text(
    name: str,
    description: str,
    seconds: int,
    after: str,
    sockets: str = "",
) -> str:
    """Render the unit file of a oneshot.

    Args:
        name: the base name of the unit and its script.
        description: the unit's description.
        seconds: the start timeout. Without a timeout, a hanging oneshot would block the units after
            it forever.
        after: the units in ``After=``.
        sockets: see ``_sockets``.
    """
    values = {
        "NAME": name,
        "DESCRIPTION": description,
        "AFTER": after,
        "TIMEOUT_SECONDS": f"{seconds:d}",
    }
    return fill("oneshot.service", MORE_SOCKETS=sockets, **values)


def _sockets(config: Config) -> str:
    """Return the setting that permits IPv6 sockets. The check uses them to find sources."""
    if Family.IPV6 not in config.route_overlap.families:
        return ""
    return "\nRestrictAddressFamilies=AF_INET6"


def watch_part(config: Config, layout: Layout) -> Part:
    """Return the part for the watcher, which no other unit waits for or depends on.

    Raises:
        UnitError: systemd can't run this Python, or running it as root would be unsafe.
    """
    python = python_of(layout)
    if not python:
        raise UnitError(
            f"can't install {WATCH}.service: {why_unsuitable(layout)}, and root starts no Python "
            "that depends on the environment, a home or another user",
            hint="install hostrouting where every user finds it, or leave out watch.enabled",
        )
    # systemd rejects these characters even if quoted (string_is_safe in src/basic/string-util.c).
    if not python.isprintable() or any(letter in python for letter in "\"'\\"):
        raise UnitError(
            f"can't install {WATCH}.service: systemd refuses to run {python!r} because of the "
            "characters in its path",
            hint="install hostrouting elsewhere, or leave out watch.enabled",
        )
    text = fill(
        f"{WATCH}.service",
        READ_WRITE_PATHS=_textfile_folder(config.watch),
        PYTHON=_quoted(python),
        MORE_SOCKETS=_sockets(config),
    )
    return Part(
        WATCH,
        is_gated=False,
        config={SECTION: {"watch": config.watch.to_mapping()}},
        files=(BootFile(layout.unit(WATCH), text),),
    )


def _textfile_folder(watch: Watch) -> str:
    """Return the setting that permits the watcher to write its metrics, or an empty string."""
    if watch.textfile is None:
        return ""
    folder = watch.textfile.rpartition("/")[0] or "/"
    return f"ReadWritePaths={_quoted('-' + folder)}"


def _quoted(word: str) -> str:
    """Quote an argument for use in a unit file (see systemd.syntax(7))."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


@frozen
class Wanted:
    """The parts that a config enables, and the consumer whose starts they gate.

    Args:
        names: the parts to install or remove. Other parts stay as they are.
        parts: the parts to install. The rest of ``names`` is removed.
        consumer: the unit whose starts the gate checks.
        record: the record of verified uplinks to restore. Empty to remove the record; None to leave
            it as it is.
    """

    names: tuple[str, ...]
    parts: tuple[Part, ...]
    consumer: str
    record: str | None = None

    @property
    def part_names(self) -> tuple[str, ...]:
        """Return the names of the parts to install."""
        return tuple(part.name for part in self.parts)

    @classmethod
    def of(cls, config: Config, layout: Layout, *names: str) -> Wanted:
        """Return the parts that a config enables. If names are passed, other parts are left out."""
        names = names or CONFIGURED
        parts = [part for part in wanted_parts(config, layout) if part.name in names]
        former = config.former_record
        record = None if former is None else verified_text(former.restored)
        return cls(names, tuple(parts), config.consumer, record)


def wanted_parts(config: Config, layout: Layout) -> tuple[Part, ...]:
    """Return all parts that a config enables."""
    parts = []
    if config.static_routes.is_wanted:
        parts.append(routes_part(config, layout))
    if config.route_overlap.expected_cidrs:
        parts.append(check_part(config, layout))
    if is_watched(config):
        parts.append(watch_part(config, layout))
    return tuple(parts)


def is_watched(config: Config) -> bool:
    """Return whether a config enables the watcher and gives it anything to watch."""
    return config.watch.enabled and config.is_gated


def wanted_manifest(manifest: Manifest, wanted: Wanted, layout: Layout) -> Manifest:
    """Return the manifest once the wanted parts are installed, and the rest of ``names`` removed.

    The wanted consumer replaces the manifest's consumer only if a wanted part is gated.
    """
    parts = {part.name: part.installed(layout) for part in wanted.parts}
    consumer = manifest.consumer or wanted.consumer
    if any(part.is_gated for part in wanted.parts):
        consumer = wanted.consumer
    return attrs.evolve(manifest.with_parts(wanted.names, parts), consumer=consumer)


def differing_parts(manifest: Manifest, config: Config, layout: Layout) -> list[str]:
    """Return the names of the parts that a config would change.

    If the gate would move to another consumer, the last item says so.
    """
    wanted = Wanted.of(config, layout)
    old = manifest.parts
    new = wanted_manifest(manifest, wanted, layout).parts
    names = sorted({*old, *new})
    differing = [name for name in names if old.get(name) != new.get(name)]
    if new and manifest.consumer not in ("", config.consumer):
        differing.append(f"the gate on {manifest.consumer}")
    return differing


def installed_files(
    layout: Layout,
    manifest: Manifest,
    parts: Iterable[Part],
    scripts: Mapping[str, bytes],
) -> list[BootFile]:
    """Return the files of an installation except for the manifest, in the order to write them.

    Args:
        manifest: the installation's manifest.
        parts: the parts whose files to include.
        scripts: the contents of the gate's scripts, by part name.
    """
    files = [file for part in parts for file in part.files]
    if manifest.has_gate:
        files.append(BootFile(layout.gate_script, fill("gate.sh"), 0o755))
        files.append(BootFile(layout.gate_list, list_text(manifest, scripts)))
        files += map(BootFile, layout.gates(manifest.consumer), DROP_INS)
    return files
