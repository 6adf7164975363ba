"""The plan of the next boot: a value that is printed, or carried out.

``look_at_disk`` reads, ``plan_boot`` is pure, and ``installation`` carries out.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from hostrouting.boot import files
from hostrouting.boot.files import FileState
from hostrouting.boot.gate import list_text
from hostrouting.boot.host import Host
from hostrouting.boot.layout import Layout
from hostrouting.boot.manifest import CHECK, ROUTES, WATCH, InstalledPart, Manifest
from hostrouting.boot.parts import BootFile, Part, gate_files, wanted_manifest
from hostrouting.boot.render import render_static_routes
from hostrouting.boot.seen import exists, is_present, matching
from hostrouting.config.routing import Config
from hostrouting.model.changes import Change, Changes


@attrs.frozen
class Wanted:
    """The parts that a config asks for, and the unit that they gate.

    Args:
        names: of the parts that it decides upon; others stay as they are.
        parts: those of them that are to be installed.
        consumer: the unit to hold back.
    """

    names: tuple[str, ...]
    parts: tuple[Part, ...]
    consumer: str


@attrs.frozen
class Disk:
    """The state, on disk and in systemd, of everything that a plan may touch.

    Args:
        layout: where.
        is_image: whether the system isn't running.
        manifest: what is installed.
        files: what is at each path that is or would be ours; None: nothing.
        folders: those that are there, of the ones above these paths.
        links: by which units require or want our oneshots, as the Go package's installation has made them.
        enabled: our units that start at every boot.
        is_watching: whether the watcher runs.
    """

    layout: Layout
    is_image: bool
    manifest: Manifest
    files: Mapping[Path, FileState | None]
    folders: frozenset[Path]
    links: tuple[Path, ...]
    enabled: frozenset[str]
    is_watching: bool

    def text(self, path: Path) -> str | None:
        """Return what a file holds, as text; None if there is none."""
        state = self.files[path]
        return None if state is None or state.content is None else state.content.decode("utf-8", "surrogateescape")

    def holds(self, file: BootFile) -> bool:
        """Return whether a file is as wanted already."""
        return self.files[file.path] == FileState(file.text.encode("utf-8", "surrogateescape"), file.mode)


@attrs.frozen
class BootPlan:
    """The changes that the next boot needs, in the order in which they are made.

    What is put in place comes before the kernel's routes change, what goes afterwards. Meanwhile the manifest names
    both, and the script of routes that go is one that takes them back.

    Args:
        before: the manifest as it is.
        during: the manifest from the first write to the last removal.
        after: the manifest as it will be.
        links: of the Go package's installation; they go first.
        scripts: those of the gate that differ; they and the list are put in place as one.
        gate_list: the gate's list, until the routes have changed; None: there is none, or it is like that already.
        way_back: scripts and list that are in force while routes are taken back of which there were none before.
        last_list: the list afterwards, where it is another one.
        write: the other files that differ, in order.
        remove: files that go.
        enable: parts whose units shall start at every boot.
        restart: parts whose units are restarted at the end.
        stop: parts whose units are stopped.
        disable: parts whose units shall not start at boot any more.
        going: installed parts that go.
        is_wanting: whether any part is to be installed, so that the gate must hold.
        changes: all of it, as it is printed.
    """

    before: Manifest
    during: Manifest
    after: Manifest
    links: tuple[Path, ...] = ()
    scripts: tuple[BootFile, ...] = ()
    gate_list: BootFile | None = None
    way_back: tuple[BootFile, ...] = ()
    last_list: BootFile | None = None
    write: tuple[BootFile, ...] = ()
    remove: tuple[Path, ...] = ()
    enable: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    going: tuple[str, ...] = ()
    is_wanting: bool = False
    changes: Changes = attrs.field(factory=Changes)

    def __bool__(self) -> bool:
        return bool(self.changes)

    @property
    def changes_routes_script(self) -> bool:
        """Return whether the script of the static routes changes."""
        return any(file.path.stem == ROUTES for file in self.scripts)


def plan_next_boot(host: Host, wanted: Wanted) -> BootPlan:
    """Compare what stays for the next boot with what is wanted, changing nothing.

    Args:
        host: where.
        wanted: what a run decides upon.

    Raises:
        FileError: a file can't be read.
        UnitError: systemd can't be asked.
    """
    return plan_boot(look_at_disk(host, wanted), wanted)


def look_at_disk(host: Host, wanted: Wanted) -> Disk:
    """Read all that a plan depends on; arguments and errors as of ``plan_next_boot``."""
    layout, units = host.layout, host.units
    manifest = Manifest.of_host(layout)
    after = wanted_manifest(manifest, wanted.names, wanted.parts, wanted.consumer, layout)
    paths = {layout.manifest, layout.gate_list, *layout.markers, *map(layout.script, {**manifest.parts, **after.parts})}
    paths |= {*manifest.files(layout), *after.files(layout), *filter(None, [manifest.textfile(layout)])}
    above = {folder for path in (layout.manifest, *after.files(layout)) for folder in path.parents}
    names = {*manifest.parts, *after.parts}
    is_watched = not host.is_image and WATCH in names
    return Disk(
        layout,
        host.is_image,
        manifest,
        files={path: files.look_at(path) for path in paths},
        folders=frozenset(filter(exists, above)),
        links=tuple(reference_links(layout)) if wanted.parts else (),
        enabled=frozenset(name for name in names if exists(layout.unit(name)) and units.is_enabled(f"{name}.service")),
        is_watching=is_watched and units.is_active(f"{WATCH}.service"),
    )


def reference_links(layout: Layout) -> list[Path]:
    """Return the links by which units require or want our oneshots, also those that lead nowhere from here."""
    # Not by a pattern with the link's own name: before Python 3.13 glob leaves out links that dangle, and in an image
    # all of these do.
    folders = [folder for kind in ("requires", "wants") for folder in matching(layout.units, f"*.service.{kind}")]
    links = [folder / f"{name}.service" for folder in folders for name in (ROUTES, CHECK)]
    return [link for link in links if is_present(link)]


def plan_boot(disk: Disk, wanted: Wanted) -> BootPlan:
    """Plan the next boot.

    Args:
        disk: what is there.
        wanted: what a run decides upon.
    """
    layout, before = disk.layout, disk.manifest
    after = wanted_manifest(before, wanted.names, wanted.parts, wanted.consumer, layout)
    after = attrs.evolve(_with_folders(after, disk) if wanted.parts else after, former=())
    going = tuple(name for name in before.parts if name not in after.parts)
    former = tuple(sorted({before.consumer, *before.former} - {after.consumer, ""})) if before.parts else ()
    # What goes isn't wanted any more by who reads it as a config, such as the watcher.
    leaving = {name: attrs.evolve(part, config={}) for name, part in _parts(before, going).items()}
    during = attrs.evolve(after, parts={**leaving, **after.parts}, former=former)

    scripts = _gate_scripts(disk, wanted, going)
    contents = _contents(disk, after) | {name: script.text.encode() for name, script in scripts.items()}
    listed = attrs.evolve(after, parts={**_parts(before, going, only=scripts), **after.parts})
    first_list, last_list = (BootFile(layout.gate_list, list_text(manifest, contents)) for manifest in (listed, after))
    has_list = after.has_gate or disk.files[layout.gate_list] is not None

    lasting = [
        *([BootFile(layout.manifest, after.to_text())] if after.parts else ()),
        *(file for part in wanted.parts for file in part.files),
        *gate_files(layout, after, contents),
    ]
    changed = [file for file in lasting if not disk.holds(file)]
    remove = tuple(_removed(disk, wanted, after))
    is_moving = bool(changed or remove or disk.links)
    switched = {layout.manifest, layout.gate_list, *(script.path for script in scripts.values())}
    plan = BootPlan(
        before,
        during,
        after,
        links=disk.links,
        scripts=tuple(script for script in scripts.values() if not disk.holds(script)),
        gate_list=first_list if has_list and is_moving and not disk.holds(first_list) else None,
        last_list=last_list if after.has_gate and last_list != first_list else None,
        way_back=_way_back(disk, scripts),
        write=tuple(file for file in changed if file.path not in switched),
        remove=remove,
        enable=tuple(part.name for part in wanted.parts if part.name not in disk.enabled),
        restart=(WATCH,) if _restarts_watcher(disk, wanted, after, changed) else (),
        stop=(WATCH,) if WATCH in going and disk.is_watching else (),
        disable=tuple(name for name in going if name in disk.enabled),
        going=going,
        is_wanting=bool(wanted.parts),
    )
    return attrs.evolve(plan, changes=_changes(disk, plan, changed))


def _parts(manifest: Manifest, names: Iterable[str], *, only: Container[str] | None = None) -> dict[str, InstalledPart]:
    return {name: manifest.parts[name] for name in names if only is None or name in only}


def _with_folders(manifest: Manifest, disk: Disk) -> Manifest:
    """Return the manifest with the folders that have to be made for what it names; its own is nobody else's."""
    layout = disk.layout
    above = {folder for path in manifest.files(layout) for folder in path.parents} - {layout.manifest.parent}
    missing = {layout.relative(each) for each in above if each.is_relative_to(layout.root) and each not in disk.folders}
    return attrs.evolve(manifest, folders=tuple(sorted({*manifest.folders, *missing})))


def _gate_scripts(disk: Disk, wanted: Wanted, going: Collection[str]) -> dict[str, BootFile]:
    """Return the scripts that the gate gets, by their parts' names.

    Where the routes go, that is one without routes until the kernel's are gone: what still runs it takes them back.
    """
    scripts = {part.name: part.files[0] for part in wanted.parts if part.is_gated}
    there = disk.files.get(disk.layout.script(ROUTES))
    if ROUTES in going and not disk.is_image and there is not None and there.is_ours:
        scripts[ROUTES] = _no_routes(disk.layout)
    return scripts


def _no_routes(layout: Layout) -> BootFile:
    return BootFile(layout.script(ROUTES), render_static_routes(Config(wait_seconds=0)), 0o755)


def _way_back(disk: Disk, scripts: Mapping[str, BootFile]) -> tuple[BootFile, ...]:
    """Return what is in force while the first routes are taken back: a start may have given them to the kernel."""
    layout, before = disk.layout, disk.manifest
    if disk.is_image or ROUTES not in scripts or ROUTES in before.parts or not before.has_gate:
        return ()
    script = _no_routes(layout)
    listed = attrs.evolve(before, parts={**before.parts, ROUTES: InstalledPart(is_blocking=True, is_gated=True)})
    contents = _contents(disk, before) | {ROUTES: script.text.encode()}
    # By then those of after may be in their places.
    others = (
        BootFile(layout.script(name), content.decode("utf-8", "surrogateescape"), 0o755)
        for name, content in contents.items()
        if name != ROUTES and before.parts[name].is_gated
    )
    return script, *others, BootFile(layout.gate_list, list_text(listed, contents))


def _contents(disk: Disk, manifest: Manifest) -> dict[str, bytes]:
    """Return what the scripts hold that are there, by the names of the installed parts."""
    there = {name: disk.files[disk.layout.script(name)] for name in manifest.parts}
    return {name: state.content for name, state in there.items() if state is not None and state.content is not None}


def _removed(disk: Disk, wanted: Wanted, after: Manifest) -> Iterator[Path]:
    """Yield the paths that are there and go."""
    layout, before = disk.layout, disk.manifest
    going = {*before.files(layout)} - {*after.files(layout)} - {*map(layout.enablement, before.parts)}
    if CHECK in wanted.names and CHECK not in after.parts:
        going |= {*layout.markers}
    textfile = before.textfile(layout)
    if textfile is not None and textfile != after.textfile(layout):
        going.add(textfile)
    if not after.parts:
        going.add(layout.manifest)
    yield from (path for path in sorted(going) if disk.files[path] is not None)


def _restarts_watcher(disk: Disk, wanted: Wanted, after: Manifest, changed: Sequence[BootFile]) -> bool:
    if disk.is_image or all(part.name != WATCH for part in wanted.parts):
        return False
    is_new = WATCH not in disk.enabled or disk.manifest.parts.get(WATCH) != after.parts[WATCH]
    return is_new or not disk.is_watching or disk.layout.unit(WATCH) in {file.path for file in changed}


def _changes(disk: Disk, plan: BootPlan, changed: Sequence[BootFile]) -> Changes:
    """Return a plan as it is printed: what is there at its end, without what is there only meanwhile."""
    layout, found = disk.layout, []
    for file in changed:
        before = disk.text(file.path)
        action = "added" if before is None else "replaced"
        found.append(Change(layout.relative(file.path), action, before=before, after=file.text))
    found += [Change(layout.relative(path), "removed") for path in (*plan.remove, *plan.links)]
    units = (
        *((name, "enabled") for name in plan.enable),
        *((name, "restarted") for name in plan.restart),
        *((name, "stopped") for name in plan.stop),
        *((name, "disabled") for name in plan.disable),
    )
    return Changes(files=tuple(found), units=tuple(Change(f"{name}.service", action) for name, action in units))
