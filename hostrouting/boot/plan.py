"""Plan the changes for the next boot. A plan can be printed, or carried out by ``installation``."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Container, Sequence
from pathlib import Path

import attrs

from hostrouting.boot import files
from hostrouting.boot.gate import list_text
from hostrouting.boot.host import Host
from hostrouting.boot.layout import Layout
from hostrouting.boot.manifest import CHECK, ROUTES, WATCH, InstalledPart, Manifest
from hostrouting.boot.parts import BootFile, Wanted, gate_files, wanted_manifest
from hostrouting.boot.render import render_static_routes
from hostrouting.config.routing import Config
from hostrouting.model.changes import Change, Changes
from hostrouting.model.errors import FileError

# NAME_MAX in linux/limits.h.
_NAME_BYTES_MAX = 255


@attrs.frozen
class BootPlan:
    """The changes for the next boot, in the order in which they are made.

    Files are added before the kernel's routes change, and removed afterwards. In between, the manifest names both
    kinds. If routes are to be removed, their script is replaced in the meantime by one that removes them.

    Args:
        before: the current manifest.
        during: the manifest from the first write until the last removal.
        after: the final manifest.
        links: the links of the Go package's installation, which are removed first.
        switched: the gate's scripts that differ, and the list to use until the routes have changed; all change
            together.
        way_back: the scripts and the list to use while the first routes of a host are undone.
        last_list: the final list, or None if the list in ``switched`` is final.
        write: the other files that differ, in the order to write them.
        remove: the paths to remove.
        enable: the parts whose units are to start at every boot.
        restart: the parts whose units are restarted at the end.
        stop: the parts whose units are stopped.
        disable: the parts whose units no longer start at boot.
        going: the installed parts to remove.
        is_wanting: whether any part is to be installed, so that the gate has to be effective.
        unseen: a sentence about each file that should be removed but can't be examined, and so may stay. If nothing
            else is installed, the manifest stays too.
        changes: all changes, to print.
    """

    before: Manifest
    during: Manifest
    after: Manifest
    links: tuple[Path, ...] = ()
    switched: tuple[BootFile, ...] = ()
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
    unseen: tuple[str, ...] = ()
    changes: Changes = attrs.field(factory=Changes)

    def __bool__(self) -> bool:
        return bool(self.changes)

    @property
    def changes_routes_script(self) -> bool:
        """Return whether the script of the static routes changes."""
        return any(file.path.stem == ROUTES for file in self.switched)


def plan_next_boot(host: Host, wanted: Wanted) -> BootPlan:
    """Compare the installation with what a run wants for the next boot, without changing anything.

    Args:
        host: the host to work on.
        wanted: the parts that the run wants.

    Raises:
        FileError: a file can't be read.
        UnitError: systemd can't be queried.
    """
    layout = host.layout
    before = Manifest.of_host(layout)
    after = wanted_manifest(before, wanted, layout)
    after = attrs.evolve(_with_folders(after, layout) if wanted.parts else after, former=())
    going = tuple(name for name in before.parts if name not in after.parts)
    former = tuple(sorted({before.consumer, *before.former} - {after.consumer, ""})) if before.parts else ()
    # Programs that read the manifest as a config, such as the watcher, must not see the parts that are being removed.
    leaving = {name: attrs.evolve(before.parts[name], config={}) for name in going}
    during = attrs.evolve(after, parts={**leaving, **after.parts}, former=former)

    scripts = _gate_scripts(host, wanted, going)
    contents = _contents(layout, after) | {name: script.text.encode() for name, script in scripts.items()}
    still_run = {name: before.parts[name] for name in going if name in scripts}
    listed = attrs.evolve(after, parts={**still_run, **after.parts})
    first_list, last_list = (BootFile(layout.gate_list, list_text(manifest, contents)) for manifest in (listed, after))

    lasting = [
        *([BootFile(layout.manifest, after.to_text())] if after.parts else ()),
        *(file for part in wanted.parts for file in part.files),
        *gate_files(layout, after, contents),
    ]
    changed = [file for file in lasting if not _is_there(file)]
    remove, unseen = _removed(layout, wanted, before, after)
    links = tuple(reference_links(layout)) if wanted.parts else ()
    has_list = after.has_gate or files.is_present(layout.gate_list)
    lists = [first_list] if has_list and (changed or remove or links) else []
    switched = {layout.manifest, layout.gate_list, *(script.path for script in scripts.values())}
    enable = tuple(part.name for part in wanted.parts if not _is_enabled(host, part.name))
    is_new = WATCH in enable or layout.unit(WATCH) in {file.path for file in changed}
    is_new = is_new or before.parts.get(WATCH) != after.parts.get(WATCH)
    restarts = any(part.name == WATCH for part in wanted.parts) and not host.is_image
    plan = BootPlan(
        before,
        during,
        after,
        links,
        switched=tuple(file for file in (*scripts.values(), *lists) if not _is_there(file)),
        last_list=last_list if after.has_gate and last_list != first_list else None,
        way_back=_way_back(host, before, scripts),
        write=tuple(file for file in changed if file.path not in switched),
        remove=remove,
        enable=enable,
        restart=(WATCH,) if restarts and (is_new or not _is_watching(host)) else (),
        stop=(WATCH,) if WATCH in going and _is_watching(host) else (),
        disable=tuple(name for name in going if _is_enabled(host, name)),
        going=going,
        is_wanting=bool(wanted.parts),
        unseen=unseen,
    )
    return attrs.evolve(plan, changes=_changes(layout, plan, changed))


def reference_links(layout: Layout) -> list[Path]:
    """Return the links by which units require or want our oneshots, including dangling ones."""
    # The link's own name isn't used as the pattern: before Python 3.13 glob leaves out dangling links, and in an image
    # all of these links dangle.
    folders = [folder for kind in ("requires", "wants") for folder in files.matching(layout.units, f"*.service.{kind}")]
    links = [folder / f"{name}.service" for folder in folders for name in (ROUTES, CHECK)]
    return [link for link in links if files.is_present(link)]


def _is_there(file: BootFile) -> bool:
    return files.look_at(file.path) == file.state


def _is_enabled(host: Host, name: str) -> bool:
    return files.exists(host.layout.unit(name)) and host.units.is_enabled(f"{name}.service")


def _is_watching(host: Host) -> bool:
    return not host.is_image and host.units.is_active(f"{WATCH}.service")


def _with_folders(manifest: Manifest, layout: Layout) -> Manifest:
    """Return the manifest with the folders that will be created for its files."""
    missing = {layout.relative(each) for each in manifest.folders_above(layout) if not files.exists(each)}
    return attrs.evolve(manifest, folders=tuple(sorted({*manifest.folders, *missing})))


def _gate_scripts(host: Host, wanted: Wanted, going: Collection[str]) -> dict[str, BootFile]:
    """Return the gate's scripts, by their parts' names.

    If the routes are to be removed, their script gets no routes until those in the kernel are gone, so running it
    removes them.
    """
    scripts = {part.name: part.files[0] for part in wanted.parts if part.is_gated}
    there = files.look_at(host.layout.script(ROUTES))
    if ROUTES in going and not host.is_image and there is not None and there.is_ours:
        scripts[ROUTES] = _no_routes(host.layout)
    return scripts


def _no_routes(layout: Layout) -> BootFile:
    return BootFile(layout.script(ROUTES), render_static_routes(Config(wait_seconds=0)), 0o755)


def _way_back(host: Host, before: Manifest, scripts: Container[str]) -> tuple[BootFile, ...]:
    """Return the scripts and the list to use while a host's first routes are undone.

    A start of the consumer may have installed these routes already.
    """
    if host.is_image or ROUTES not in scripts or ROUTES in before.parts or not before.has_gate:
        return ()
    layout, script = host.layout, _no_routes(host.layout)
    listed = attrs.evolve(before, parts={**before.parts, ROUTES: InstalledPart(is_blocking=True, is_gated=True)})
    contents = _contents(layout, before)
    # By then the new scripts may already be in place.
    others = (
        BootFile(layout.script(name), content.decode("utf-8", "surrogateescape"), 0o755)
        for name, content in contents.items()
        if before.parts[name].is_gated
    )
    return script, *others, BootFile(layout.gate_list, list_text(listed, contents | {ROUTES: script.text.encode()}))


def _contents(layout: Layout, manifest: Manifest) -> dict[str, bytes]:
    """Return the contents of the existing scripts, by the names of the installed parts."""
    there = {name: files.look_at(layout.script(name)) for name in manifest.parts}
    return {name: state.content for name, state in there.items() if state is not None and state.content is not None}


def _removed(
    layout: Layout, wanted: Wanted, before: Manifest, after: Manifest
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Return the existing paths to remove, and a sentence about each path that can't be examined."""
    going = {*before.files(layout)} - {*after.files(layout)} - {*map(layout.enablement, before.parts)}
    if CHECK in wanted.names and CHECK not in after.parts:
        going |= {*layout.markers}
    textfile = before.textfile(layout)
    if textfile is not None and textfile != after.textfile(layout):
        going.add(textfile)
    if not after.parts:
        going.add(layout.manifest)
    there, unseen, gates = [], [], {*before.gates(layout)}
    for path in sorted(going):
        # If a folder can't be read, such as that of the node exporter's textfiles, the other removals continue. But a
        # drop-in that stayed without the gate's script would block every start.
        try:
            there += [path] if files.is_present(path) else []
        except FileError as error:
            if path in gates:
                raise
            # A name that is too long for every file system can't exist.
            if error.errno != errno.ENAMETOOLONG or max(map(len, map(os.fsencode, path.parts))) <= _NAME_BYTES_MAX:
                unseen.append(f"{error.message}; if it is there, it stays")
    if unseen and layout.manifest in there:
        there.remove(layout.manifest)
    return tuple(there), tuple(unseen)


def _changes(layout: Layout, plan: BootPlan, changed: Sequence[BootFile]) -> Changes:
    """Return the plan's changes for printing, as the final state without intermediate files."""
    found = []
    for file in changed:
        before = files.read_text(file.path)
        action = "added" if before is None else "replaced"
        found.append(Change(layout.relative(file.path), action, before=before, after=file.text))
    found += [Change(layout.relative(path), "removed") for path in (*plan.remove, *plan.links)]
    units = {"enabled": plan.enable, "restarted": plan.restart, "stopped": plan.stop, "disabled": plan.disable}
    return Changes(
        files=tuple(found),
        units=tuple(Change(f"{name}.service", action) for action, names in units.items() for name in names),
    )
