"""What is installed for the next boot: the parts that a config asks for and their files; and what that changes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hostrouting.boot import files
from hostrouting.boot.gate import DROP_IN, list_text
from hostrouting.boot.host import Host
from hostrouting.boot.layout import Layout
from hostrouting.boot.manifest import CHECK, ROUTES, WATCH, InstalledPart, Manifest
from hostrouting.boot.render import fill, render_check, render_static_routes
from hostrouting.boot.seen import exists, is_present, matching
from hostrouting.config.overlap import OverlapMode
from hostrouting.config.routing import SECTION, Config
from hostrouting.model.changes import Change, Changes
from hostrouting.model.errors import UnitError
from hostrouting.model.routes import Protocol

# What host routing's config asks for, or, by not asking, takes back; the others are somebody else's to ask for.
CONFIGURED = (ROUTES, CHECK, WATCH)


@attrs.frozen
class BootFile:
    """A file with its content and permission bits."""

    path: Path
    text: str
    mode: int = 0o644


@attrs.frozen
class Part:
    """One of the things that run at boot: those of the gate, and the watcher.

    Args:
        name: of its unit, and of its script, if it has one.
        files: script and unit, and what else goes with them, in the order in which they are written: scripts before
            units.
        config: what it was rendered from: by the section of the config, its keys.
        is_blocking: whether its failure holds the consumer back.
        is_gated: whether the gate runs its script.
    """

    name: str
    files: tuple[BootFile, ...]
    config: Mapping[str, Mapping[str, Any]]
    is_blocking: bool = False
    is_gated: bool = True

    def installed(self, layout: Layout) -> InstalledPart:
        """The part as the manifest names it."""
        names = tuple(layout.relative(file.path) for file in self.files)
        return InstalledPart(self.is_blocking, self.is_gated, names, self.config)


PROTOCOL_NAMES = f"# hostrouting: the routes that it installs\n{int(Protocol.HOSTROUTING)}\thostrouting\n"

_ROUTES_DESCRIPTION = "More specific host routes, so that no other interface shadows the cluster's network"
_CHECK_DESCRIPTION = "Check that every expected CIDR leaves by the default route's interface"

# The longest that a config may ask for, and the lock; the check waits for the lock at each look.
_ROUTES_SECONDS = 660
_CHECK_SECONDS = 1260
# What may come late and bring routes; neither is waited for where it isn't there.
_NETWORK = "network-online.target systemd-udev-settle.service ib_rdma_configure.service"


def routes_part(config: Config, layout: Layout) -> Part:
    """What installs the static routes at boot; a failure holds the consumer back in either mode."""
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
    """What checks at boot; a failure holds the consumer back in STRICT mode."""
    # An image has its own Python, if any.
    script = render_check(config, python=sys.executable if layout.is_this_host else "")
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
    """What a part is rendered from: one key of the config, and the wait."""
    section = config.to_mapping()[SECTION]
    return {SECTION: {key: section[key], "waitSeconds": config.wait_seconds}}


def unit_text(
    name: str,
    description: str,
    seconds: int,
    *after: str,
    remover: str = "hostrouting remove",
) -> str:
    """The text of a oneshot's unit, which no config changes.

    Args:
        name: of the unit, and of the script that it runs.
        description: what it does.
        seconds: after which systemd ends it, and whoever is ordered after it goes on.
        after: the units that it starts after, beside the network's.
        remover: the command that takes it back.
    """
    return fill(
        "oneshot.service",
        NAME=name,
        DESCRIPTION=description,
        AFTER=" ".join((_NETWORK, *after)),
        REMOVER=remover,
        TIMEOUT_SECONDS=f"{seconds:d}",
    )


def watch_part(config: Config, layout: Layout) -> Part:
    """What keeps all of it true after boot; nothing waits for it, so nothing fails with it.

    Raises:
        UnitError: systemd can't run this Python.
    """
    python = sys.executable
    # string_is_safe in systemd's src/basic/string-util.c: no quoting helps.
    if not python or not python.isprintable() or any(letter in python for letter in "\"'\\"):
        raise UnitError(
            f"can't install {WATCH}.service: systemd refuses to run {python!r} for the characters in its path; "
            "install hostrouting elsewhere, or leave out watch.enabled"
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
    """One word of a unit's line, systemd.syntax(7)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def wanted_parts(config: Config, layout: Layout) -> tuple[Part, ...]:
    """The parts that a config asks for."""
    return (
        *((routes_part(config, layout),) if config.static_routes.routes else ()),
        *((check_part(config, layout),) if config.route_overlap.expected_cidrs else ()),
        *((watch_part(config, layout),) if is_watched(config) else ()),
    )


def is_watched(config: Config) -> bool:
    """Whether a config asks for a watcher, and gives it something to do."""
    return config.watch.enabled and bool(config.static_routes.routes or config.route_overlap.expected_cidrs)


def wanted_manifest(there: Manifest, config: Config, parts: Sequence[Part], layout: Layout) -> Manifest:
    """What is installed, with a config's parts in the place of what a config can ask for; without any no gate moves."""
    wanted = there.without(*CONFIGURED)
    for part in parts:
        wanted = wanted.with_part(part.name, part.installed(layout))
    return attrs.evolve(wanted, consumer=config.consumer if parts else there.consumer or config.consumer)


def with_folders(manifest: Manifest, layout: Layout) -> Manifest:
    """The same with the folders that have to be made for what it names."""
    above = {folder for path in (layout.manifest, *manifest.files(layout)) for folder in path.parents}
    missing = {layout.relative(each) for each in above if each.is_relative_to(layout.root) and not exists(each)}
    return attrs.evolve(manifest, folders=tuple(sorted({*manifest.folders, *missing})))


def reference_links(layout: Layout) -> list[Path]:
    """The links by which consumers require or want our oneshots, also those that lead nowhere from here."""
    # Not by a pattern with the link's own name: before Python 3.13 glob leaves out links that dangle, and in an image
    # all of these do.
    folders = [folder for kind in ("requires", "wants") for folder in matching(layout.units, f"*.service.{kind}")]
    links = [folder / f"{name}.service" for folder in folders for name in (ROUTES, CHECK)]
    return [link for link in links if is_present(link)]


def wanted_files(layout: Layout, manifest: Manifest, parts: Iterable[Part]) -> list[BootFile]:
    """All files of some parts and of the gate, in the order in which they are written."""
    wanted = [file for part in parts for file in part.files]
    if manifest.has_gate:
        wanted += [
            BootFile(layout.gate_script, fill("gate.sh"), 0o755),
            BootFile(layout.gate_list, list_text(manifest)),
            BootFile(layout.gate(manifest.consumer), DROP_IN),
        ]
    return wanted


# --- what has to change, told without changing anything --------------------------------------------------------------


def plan_boot(config: Config, host: Host) -> Changes:
    """Compare what stays for the next boot with what a config asks for, changing nothing.

    Args:
        config: what is wanted; parts that it can't ask for stay as they are.
        host: where.

    Returns:
        Files and units that would change; that a oneshot which hasn't run is started isn't foreseen.

    Raises:
        FileError: a file can't be read.
        UnitError: systemd can't be asked.
    """
    layout = host.layout
    there, parts = Manifest.load(layout), wanted_parts(config, layout)
    wanted = wanted_manifest(there, config, parts, layout)
    return _plan(host, there, wanted, parts, () if CHECK in wanted.parts else layout.markers)


def plan_part(host: Host, consumer: str, part: Part) -> Changes:
    """What ``install_part`` would change; arguments and errors are its own."""
    there = Manifest.load(host.layout)
    wanted = there.with_part(part.name, part.installed(host.layout))
    return _plan(host, there, attrs.evolve(wanted, consumer=consumer), [part])


def plan_removal(host: Host, *names: str) -> Changes:
    """What ``remove_parts`` would change; arguments and errors are its own."""
    there = Manifest.load(host.layout)
    wanted = there.without(*names)
    return Changes() if wanted == there else _plan(host, there, wanted, [])


def _plan(host: Host, there: Manifest, wanted: Manifest, parts: Sequence[Part], going: Iterable[Path] = ()) -> Changes:
    """What is between a manifest and another one, of whose parts some are written anew; and what else goes."""
    layout = host.layout
    wanted = attrs.evolve(with_folders(wanted, layout) if parts else wanted, former=())
    written: list[BootFile] = []
    if parts or (wanted.parts and wanted.parts.keys() != there.parts.keys()):
        written = [BootFile(layout.manifest, wanted.to_text()), *wanted_files(layout, wanted, parts)]
    # A removal mends no script and no drop-in.
    kept = () if parts else (layout.gate_script, layout.gate(wanted.consumer))
    changes = []
    for file in written:
        if file.path not in kept and not files.is_written(file.path, file.text, mode=file.mode):
            before = files.read_text(file.path)
            fate = "added" if before is None else "replaced"
            changes.append(Change(layout.relative(file.path), fate, before=before, after=file.text))
    goes = {*there.files(layout), *going} - {*wanted.files(layout)} - {*map(layout.enablement, there.parts)}
    textfile = there.textfile(layout)
    if textfile is not None and textfile != wanted.textfile(layout):
        goes.add(textfile)
    if not wanted.parts:
        goes.add(layout.manifest)
    gone = [path for path in sorted(goes) if is_present(path)]
    gone += reference_links(layout) if parts else []
    changes += [Change(layout.relative(path), "removed") for path in gone]
    return Changes(files=tuple(changes), units=tuple(_unit_changes(host, there, wanted, parts, changes)))


def _unit_changes(
    host: Host, there: Manifest, wanted: Manifest, parts: Sequence[Part], changes: Iterable[Change]
) -> Iterator[Change]:
    """What becomes of the units, in the order in which it is done."""
    units, layout, watcher = host.units, host.layout, f"{WATCH}.service"
    new, going = {part.name for part in parts}, [name for name in there.parts if name not in wanted.parts]
    enabled = {name for name in {*going, *new} if exists(layout.unit(name)) and units.is_enabled(f"{name}.service")}
    for part in parts:
        if part.name not in enabled:
            yield Change(f"{part.name}.service", "enabled")
    if WATCH in new and not host.is_image:
        is_new = WATCH not in enabled or there.parts.get(WATCH) != wanted.parts[WATCH]
        is_new = is_new or layout.relative(layout.unit(WATCH)) in {change.what for change in changes}
        if is_new or not units.is_active(watcher):
            yield Change(watcher, "restarted")
    if WATCH in going and units.is_active(watcher):
        yield Change(watcher, "stopped")
    for name in going:
        if name in enabled:
            yield Change(f"{name}.service", "disabled")
