"""Plan the changes for the next boot. The plan can be printed, or applied by ``installation``."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from pathlib import Path

import attrs

from hostrouting.boot import files
from hostrouting.boot.gate import list_text
from hostrouting.boot.go_package import go_package_links
from hostrouting.boot.host import Host
from hostrouting.boot.layout import CHECK, ROUTES, WATCH, Layout
from hostrouting.boot.manifest import InstalledPart, Manifest
from hostrouting.boot.parts import BootFile, Wanted, installed_files, wanted_manifest
from hostrouting.boot.render import render_static_routes
from hostrouting.config.routing import Config
from hostrouting.model.changes import Change, Changes
from hostrouting.model.errors import FileError


@attrs.frozen
class BootPlan:
    """The changes for the next boot, in execution order.

    Files are added before the kernel's routes change, and obsolete files are removed afterwards. In
    between, the manifest lists both. If the static routes are being removed, their script is
    temporarily replaced with one that removes our routes.

    Args:
        before: the current manifest.
        during: the manifest while changes are in progress.
        after: the final manifest.
        links: symlinks left by the Go package, which are removed first.
        switched: the gate's changed scripts and an interim script list, all replaced together.
        way_back: the scripts and the list to use if a host's first routes have to be rolled back.
        last_list: the final script list, or None if the one in ``switched`` is final.
        write: the other changed files, in write order.
        remove: paths to remove.
        enable: parts whose units to enable.
        restart: parts whose units to restart at the end.
        stop: parts whose units to stop.
        disable: parts whose units to disable.
        going: installed parts to remove.
        is_wanting: whether there are parts to install, so that the gate has to be verified.
        unseen: an error message for each path that should be removed but can't be accessed. As long
            as there is one, the manifest is kept, even without parts.
        changes: all changes, for printing.
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
        """Return whether the static routes script changes."""
        return any(file.path.stem == ROUTES for file in self.switched)


def plan_next_boot(host: Host, wanted: Wanted) -> BootPlan:
    """Compare the installed state with the wanted parts, without changing anything.

    Args:
        host: the target host.
        wanted: the wanted parts.

    Raises:
        FileError: a file can't be read.
        UnitError: systemd can't be queried.
    """
    layout = host.layout
    before = Manifest.of_host(layout)
    after = wanted_manifest(before, wanted, layout)
    after = attrs.evolve(_with_folders(after, layout) if wanted.parts else after, former=())
    going = tuple(name for name in before.parts if name not in after.parts)
    former = (
        tuple(sorted({before.consumer, *before.former} - {after.consumer, ""}))
        if before.parts
        else ()
    )
    # Programs that parse the manifest as a config, such as the watcher, must not see values of
    # removed parts.
    leaving = {name: attrs.evolve(before.parts[name], config={}) for name in going}
    during = attrs.evolve(after, parts={**leaving, **after.parts}, former=former)

    scripts = _gate_scripts(host, wanted, going)
    contents = _contents(layout, after) | {name: script.content for name, script in scripts.items()}
    still_run = {name: before.parts[name] for name in going if name in scripts}
    listed = attrs.evolve(after, parts={**still_run, **after.parts})
    first_list, last_list = (
        BootFile(layout.gate_list, list_text(manifest, contents)) for manifest in (listed, after)
    )

    lasting = [
        *([BootFile(layout.manifest, after.to_text())] if after.parts else ()),
        *installed_files(layout, after, wanted.parts, contents),
    ]
    changed = [file for file in lasting if not _is_there(file)]
    remove, unseen = _removed(layout, wanted, before, after)
    links = tuple(go_package_links(layout)) if wanted.parts else ()
    has_list = after.has_gate or files.is_present(layout.gate_list)
    lists = [first_list] if has_list and (changed or remove or links) else []
    switched = {layout.manifest, layout.gate_list, *(script.path for script in scripts.values())}
    # To systemd, units are also enabled by the Go package's symlinks. The run removes these
    # symlinks, so it has to enable each of the units that our own symlink doesn't enable.
    losing = {link.stem for link in links if not files.is_present(layout.enablement(link.stem))}
    enable = tuple(
        part.name
        for part in wanted.parts
        if part.name in losing or not _is_enabled(host, part.name)
    )
    watches = not host.is_image and any(part.name == WATCH for part in wanted.parts)
    restarts = watches and (
        layout.unit(WATCH) in {file.path for file in changed} or not _is_watching(host)
    )
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
        restart=(WATCH,) if restarts else (),
        stop=(WATCH,) if WATCH in going and _is_watching(host) else (),
        disable=tuple(name for name in going if _is_enabled(host, name)),
        going=going,
        is_wanting=bool(wanted.parts),
        unseen=unseen,
    )
    return attrs.evolve(plan, changes=_changes(layout, plan, changed))


def _is_there(file: BootFile) -> bool:
    return files.look_at(file.path) == file.state


def _is_enabled(host: Host, name: str) -> bool:
    if not files.exists(host.layout.unit(name)):
        return False
    # Symlinks other than ours may enable the unit, too.
    return files.is_present(host.layout.enablement(name)) or host.units.is_enabled(
        f"{name}.service"
    )


def _is_watching(host: Host) -> bool:
    return host.units.is_active(f"{WATCH}.service")


def _with_folders(manifest: Manifest, layout: Layout) -> Manifest:
    """Return a copy of the manifest that also lists the folders to create for its files."""
    missing = {
        layout.relative(each) for each in manifest.folders_above(layout) if not files.exists(each)
    }
    return attrs.evolve(manifest, folders=tuple(sorted({*manifest.folders, *missing})))


def _gate_scripts(host: Host, wanted: Wanted, going: Collection[str]) -> dict[str, BootFile]:
    """Return the gate's scripts by part name.

    If the static routes are being removed, their script is one with an empty list of routes, which
    removes our routes from the kernel.
    """
    scripts = {part.name: part.files[0] for part in wanted.parts if part.is_gated}
    there = files.look_at(host.layout.script(ROUTES))
    if ROUTES in going and not host.is_image and there is not None and there.is_ours:
        scripts[ROUTES] = _no_routes(host.layout)
    return scripts


def _no_routes(layout: Layout) -> BootFile:
    return BootFile(layout.script(ROUTES), render_static_routes(Config(wait_seconds=0)), 0o755)


def _way_back(host: Host, before: Manifest, scripts: Container[str]) -> tuple[BootFile, ...]:
    """Return the scripts and the list to use while a host's first routes are rolled back.

    By then, a start of the consumer may have made the gate install these routes, so this script
    removes them.
    """
    if host.is_image or ROUTES not in scripts or ROUTES in before.parts or not before.has_gate:
        return ()
    layout, script = host.layout, _no_routes(host.layout)
    listed = attrs.evolve(
        before, parts={**before.parts, ROUTES: InstalledPart(is_blocking=True, is_gated=True)}
    )
    contents = _contents(layout, before)
    # Include the current versions of the other scripts, because new versions may be in place by
    # then.
    others = (
        BootFile(layout.script(name), content.decode("utf-8", "surrogateescape"), 0o755)
        for name, content in contents.items()
        if before.parts[name].is_gated
    )
    return (
        script,
        *others,
        BootFile(layout.gate_list, list_text(listed, contents | {ROUTES: script.content})),
    )


def _contents(layout: Layout, manifest: Manifest) -> dict[str, bytes]:
    """Return the contents of the existing scripts by part name."""
    there = {name: files.look_at(layout.script(name)) for name in manifest.parts}
    return {
        name: state.content
        for name, state in there.items()
        if state is not None and state.content is not None
    }


def _removed(
    layout: Layout, wanted: Wanted, before: Manifest, after: Manifest
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Return the existing paths to remove, and an error message for each path that can't be accessed."""
    going = (
        {*before.files(layout)} - {*after.files(layout)} - {*map(layout.enablement, before.parts)}
    )
    if CHECK in wanted.names and CHECK not in after.parts:
        going |= {*layout.markers}
    if WATCH in wanted.names and WATCH not in after.parts:
        going |= {*layout.snapshots}
    textfile = before.textfile(layout)
    if textfile is not None and textfile != after.textfile(layout):
        going.add(textfile)
    if not after.parts:
        going.add(layout.manifest)
    there, unseen, gates = [], [], {*before.gates(layout)}
    for path in sorted(going):
        # An unreadable folder, such as the node exporter's textfile folder, doesn't stop the other
        # removals. However, a gate drop-in left behind without the gate's script would block every
        # start, so this error is raised.
        try:
            there += [path] if files.is_present(path) else []
        except FileError as error:
            if path in gates:
                raise
            unseen.append(f"{error.message}; if it is there, it stays")
    if unseen and layout.manifest in there:
        there.remove(layout.manifest)
    return tuple(there), tuple(unseen)


def _changes(layout: Layout, plan: BootPlan, changed: Sequence[BootFile]) -> Changes:
    """Return the plan's net changes for printing, without intermediate files."""
    found = []
    for file in changed:
        before = files.read_text(file.path)
        action = "added" if before is None else "replaced"
        found.append(Change(layout.relative(file.path), action, before=before, after=file.text))
    found += [Change(layout.relative(path), "removed") for path in (*plan.remove, *plan.links)]
    units = {
        "enabled": plan.enable,
        "restarted": plan.restart,
        "stopped": plan.stop,
        "disabled": plan.disable,
    }
    return Changes(
        files=tuple(found),
        units=tuple(
            Change(f"{name}.service", action) for action, names in units.items() for name in names
        ),
    )
