"""Plan the changes for the next boot. The plan can be printed, or applied by ``installation``."""

from __future__ import annotations

import os
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
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
from hostrouting.model.values import frozen


@frozen(eq=False, repr=False)
class Manifests:
    """The manifests before, during and after the changes.

    Args:
        old: the manifest before the changes.
        interim: the manifest while changes are in progress. The interim manifest lists the files of
            both the old and the new manifest.
        new: the manifest at the end.
    """

    old: Manifest
    interim: Manifest
    new: Manifest

    @property
    def removed_parts(self) -> tuple[str, ...]:
        """Return the names of the installed parts that the new manifest lacks."""
        return tuple(name for name in self.old.parts if name not in self.new.parts)


@frozen(eq=False, repr=False)
class GatePlan:
    """The changes to the scripts that the gate runs, and to the list of these scripts.

    A run that removes the static routes temporarily replaces their script with one that removes our
    routes.

    Args:
        switched: the changed scripts and the changed list, which are replaced together.
        rollback: the scripts and the list for a rollback of the host's first static routes. Empty
            if the host already had static routes. See ``_plan_rollback``.
        final_list: the list at the end of the run; None if it is the one in ``switched``.
    """

    switched: tuple[BootFile, ...] = ()
    rollback: tuple[BootFile, ...] = ()
    final_list: BootFile | None = None


@frozen(eq=False, repr=False)
class FilesPlan:
    """The changes to files other than the gate's scripts and their list.

    Args:
        links: symlinks left by the Go package, which are removed first.
        write: the changed files, in write order.
        remove: the paths to remove at the end.
        access_errors: an error message for each path that should be removed, but can't be accessed.
            Such paths stay in the manifest. So the manifest is kept, even if no part is installed
            any more.
    """

    links: tuple[Path, ...] = ()
    write: tuple[BootFile, ...] = ()
    remove: tuple[Path, ...] = ()
    access_errors: tuple[str, ...] = ()


@frozen(eq=False, repr=False)
class UnitsPlan:
    """The names of the parts whose units change; the run enables units first."""

    enable: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()


@frozen(eq=False, repr=False)
class BootPlan:
    """The changes for the next boot.

    Files are added before the kernel's routes change, and obsolete files are removed afterwards. In
    between, the manifest lists both the new and the obsolete files.

    Args:
        manifests: the manifests before, during and after the changes.
        gate: the changes to the gate's scripts and their list.
        files: the changes to files other than the gate's.
        units: the changes to units.
        is_installing: whether there are parts to install, so that the gate must be verified.
        changes: all changes, for printing.
    """

    manifests: Manifests
    gate: GatePlan
    files: FilesPlan
    units: UnitsPlan
    is_installing: bool
    changes: Changes

    def __bool__(self) -> bool:
        return bool(self.changes)

    @property
    def changes_routes_script(self) -> bool:
        """Return whether the static routes script changes."""
        return any(file.path.stem == ROUTES for file in self.gate.switched)


def plan_next_boot(host: Host, wanted: Wanted) -> BootPlan:
    """Compare the installed state with the wanted parts, without changing anything.

    Raises:
        FileError: a file can't be read.
        UnitError: systemd can't be queried.
    """
    layout = host.layout
    manifests = _plan_manifests(layout, wanted)
    scripts = _gate_scripts(host, wanted, manifests.removed_parts)
    contents_after = _script_contents(layout, manifests.new)
    contents_after |= {name: script.content for name, script in scripts.items()}
    changed = _changed_files(host, wanted, manifests.new, contents_after)
    remove, access_errors = _plan_removal(host, wanted, manifests)
    links = tuple(go_package_links(layout)) if wanted.parts else ()

    has_changes = bool(changed or remove or links)
    gate = _plan_gate(host, manifests, scripts, contents_after, has_changes=has_changes)
    # These files aren't in FilesPlan.write: prepare() writes the interim manifest, and switch()
    # replaces the gate's scripts and list.
    written_separately = {layout.manifest, layout.gate_list}
    written_separately.update(script.path for script in scripts.values())
    write = tuple(file for file in changed if file.path not in written_separately)
    other_files = FilesPlan(links, write, remove, access_errors)
    units = _plan_units(host, wanted, manifests.removed_parts, other_files)
    return BootPlan(
        manifests,
        gate,
        other_files,
        units,
        is_installing=bool(wanted.parts),
        changes=_net_changes(layout, changed, other_files, units),
    )


def _is_up_to_date(file: BootFile, host: Host) -> bool:
    return _look_at(file.path, host) == file.state


def _look_at(path: Path, host: Host) -> files.FileState | None:
    # Root will apply what an ordinary user plans.
    is_for_root = os.geteuid() != 0 and not host.is_image
    return files.look_at(path, host.layout.root if is_for_root else None)


# --- manifests ------------------------------------------------------------------------------------


def _plan_manifests(layout: Layout, wanted: Wanted) -> Manifests:
    old = Manifest.of_host(layout)
    new = wanted_manifest(old, wanted, layout)
    if wanted.parts:
        new = _with_folders(new, layout)
    new = attrs.evolve(new, former=())
    former: set[str] = set()
    if old.parts:
        former = {old.consumer, *old.former} - {new.consumer, ""}
    # Some programs parse the manifest as a config, for example the watcher. So it must not contain
    # the values of removed parts.
    removed = {
        name: attrs.evolve(part, config={})
        for name, part in old.parts.items()
        if name not in new.parts
    }
    interim = attrs.evolve(new, parts=removed | new.parts, former=tuple(sorted(former)))
    return Manifests(old, interim, new)


def _with_folders(manifest: Manifest, layout: Layout) -> Manifest:
    """Return a copy of the manifest that also lists the folders to create for its files."""
    missing = {
        layout.relative(folder)
        for folder in manifest.folders_above(layout)
        if not files.exists(folder)
    }
    folders = sorted({*manifest.folders, *missing})
    return attrs.evolve(manifest, folders=tuple(folders))


# --- the gate -------------------------------------------------------------------------------------


def _gate_scripts(host: Host, wanted: Wanted, removed: Collection[str]) -> dict[str, BootFile]:
    """Return the gate's new scripts by part name.

    If the static routes are being removed, the gate first gets another routes script. The script's
    list of routes is empty, so it removes our routes from the kernel.
    """
    scripts = {part.name: part.files[0] for part in wanted.parts if part.is_gated}
    if ROUTES in removed and not host.is_image:
        installed = _look_at(host.layout.script(ROUTES), host)
        if installed is not None and installed.is_ours:
            scripts[ROUTES] = _no_routes(host.layout)
    return scripts


def _no_routes(layout: Layout) -> BootFile:
    return BootFile(layout.script(ROUTES), render_static_routes(Config(wait_seconds=0)), 0o755)


def _script_contents(layout: Layout, manifest: Manifest) -> dict[str, bytes]:
    """Return the contents of the existing scripts by part name."""
    contents = {}
    for name in manifest.parts:
        state = files.look_at(layout.script(name))
        if state is not None and state.content is not None:
            contents[name] = state.content
    return contents


def _plan_gate(
    host: Host,
    manifests: Manifests,
    scripts: Mapping[str, BootFile],
    contents: Mapping[str, bytes],
    *,
    has_changes: bool,
) -> GatePlan:
    """Plan the gate's changes.

    Args:
        scripts: the gate's new scripts by part name.
        contents: the contents of all scripts after the changes, by part name.
        has_changes: whether any file is written or removed.
    """
    layout = host.layout
    new = manifests.new
    interim = new
    if ROUTES in scripts and ROUTES not in new.parts:
        # The routes script removes our routes from the kernel (see ``_gate_scripts``), and isn't in
        # the list any more at the end.
        of_routes = manifests.old.parts[ROUTES]
        interim = attrs.evolve(new, parts={ROUTES: of_routes} | new.parts)
    interim_list = BootFile(layout.gate_list, list_text(interim, contents))
    final_list = BootFile(layout.gate_list, list_text(new, contents))

    gate_files = [*scripts.values()]
    if has_changes and (new.has_gate or files.is_present(layout.gate_list)):
        gate_files.append(interim_list)
    return GatePlan(
        switched=tuple(file for file in gate_files if not _is_up_to_date(file, host)),
        rollback=_plan_rollback(host, manifests.old, scripts),
        final_list=final_list if new.has_gate and final_list != interim_list else None,
    )


def _plan_rollback(host: Host, old: Manifest, scripts: Container[str]) -> tuple[BootFile, ...]:
    """Return the scripts and the list for a rollback of the host's first static routes.

    Before the rollback, the consumer may have started, and its gate may have installed the routes.
    The rollback's routes script therefore has no routes, and removes our routes from the kernel.
    """
    is_first = ROUTES in scripts and ROUTES not in old.parts
    if host.is_image or not is_first or not old.has_gate:
        return ()
    layout = host.layout
    no_routes = _no_routes(layout)
    part = InstalledPart(is_blocking=True, is_gated=True)
    listed = attrs.evolve(old, parts={**old.parts, ROUTES: part})
    contents = _script_contents(layout, old)
    # When the rollback starts, the run may have replaced the other scripts, so the rollback
    # includes the versions from before the run.
    others = [
        BootFile(layout.script(name), content.decode("utf-8", "surrogateescape"), 0o755)
        for name, content in contents.items()
        if old.parts[name].is_gated
    ]
    text = list_text(listed, contents | {ROUTES: no_routes.content})
    return (no_routes, *others, BootFile(layout.gate_list, text))


# --- other files ----------------------------------------------------------------------------------


def _changed_files(
    host: Host,
    wanted: Wanted,
    new: Manifest,
    contents: Mapping[str, bytes],
) -> list[BootFile]:
    """Return all files that change or are new, including the manifest and the gate's files."""
    layout = host.layout
    new_files = installed_files(layout, new, wanted.parts, contents)
    if new.parts:
        new_files.insert(0, BootFile(layout.manifest, new.to_text()))
    if wanted.record:
        new_files.append(BootFile(layout.verified, wanted.record))
    return [file for file in new_files if not _is_up_to_date(file, host)]


def _plan_removal(
    host: Host,
    wanted: Wanted,
    manifests: Manifests,
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Return the existing paths to remove, and a message for each one that can't be accessed."""
    remove: list[Path] = []
    access_errors: list[str] = []
    layout = host.layout
    gates = manifests.old.gates(layout)
    for path in sorted(_obsolete_paths(host, wanted, manifests)):
        # Some folders can't be read, such as the node exporter's textfile folder. The other paths
        # are still removed. A drop-in of the gate is an exception: left behind without the gate's
        # script, it would block every start.
        try:
            if files.is_present(path):
                remove.append(path)
        except FileError as error:
            if path in gates:
                raise
            access_errors.append(f"{error.message}; if it is there, it stays")
    if access_errors and layout.manifest in remove:
        remove.remove(layout.manifest)
    return tuple(remove), tuple(access_errors)


def _obsolete_paths(host: Host, wanted: Wanted, manifests: Manifests) -> set[Path]:
    layout = host.layout
    old = manifests.old
    new = manifests.new
    obsolete = {*old.files(layout)} - {*new.files(layout)}
    # These symlinks are removed when the units are disabled.
    obsolete -= {layout.enablement(name) for name in old.parts}
    if CHECK in wanted.names and CHECK not in new.parts:
        obsolete |= {*layout.markers, layout.verified}
    if wanted.record == "":
        obsolete.add(layout.verified)
    if host.is_image:
        obsolete.add(layout.verified)  # the record of the host from which the image was made
    if WATCH in wanted.names and WATCH not in new.parts:
        obsolete |= {*layout.snapshots}
    textfile = old.textfile(layout)
    if textfile is not None and textfile != new.textfile(layout):
        obsolete.add(textfile)
    if not new.parts:
        obsolete.add(layout.manifest)
    return obsolete


# --- units ----------------------------------------------------------------------------------------


def _plan_units(
    host: Host,
    wanted: Wanted,
    removed: Sequence[str],
    other_files: FilesPlan,
) -> UnitsPlan:
    enable = _units_to_enable(host, wanted, other_files.links)
    restart = WATCH in wanted.part_names and _needs_restart(host, other_files.write)
    return UnitsPlan(
        enable=enable,
        restart=(WATCH,) if restart else (),
        stop=(WATCH,) if WATCH in removed and _is_watching(host) else (),
        disable=tuple(name for name in removed if _is_enabled(host, name)),
    )


def _units_to_enable(host: Host, wanted: Wanted, links: Iterable[Path]) -> tuple[str, ...]:
    # The Go package's symlinks enable our units, too. The run removes these symlinks, so it must
    # enable each unit that has no symlink of ours.
    losing = {
        link.stem for link in links if not files.is_present(host.layout.enablement(link.stem))
    }
    return tuple(
        name for name in wanted.part_names if name in losing or not _is_enabled(host, name)
    )


def _is_enabled(host: Host, name: str) -> bool:
    if not files.exists(host.layout.unit(name)):
        return False
    # Symlinks other than ours may enable the unit, too.
    has_our_symlink = files.is_present(host.layout.enablement(name))
    return has_our_symlink or host.units.is_enabled(f"{name}.service")


def _needs_restart(host: Host, written: Iterable[BootFile]) -> bool:
    """Return whether the watcher has to be started, or restarted with another unit file."""
    if host.is_image:
        return False
    unit = host.layout.unit(WATCH)
    return any(file.path == unit for file in written) or not _is_watching(host)


def _is_watching(host: Host) -> bool:
    return host.units.is_active(f"{WATCH}.service")


# --- what is printed ------------------------------------------------------------------------------


def _net_changes(
    layout: Layout,
    changed: Iterable[BootFile],
    other_files: FilesPlan,
    units: UnitsPlan,
) -> Changes:
    """Return, for printing, the changes from the state before the run to the state after it."""
    of_files = []
    for file in changed:
        before = files.read_text(file.path)
        action = "added" if before is None else "replaced"
        path = layout.relative(file.path)
        of_files.append(Change(path, action, before=before, after=file.text))
    for removed in (*other_files.remove, *other_files.links):
        before = None if removed in layout.snapshots else _readable_text(removed)
        of_files.append(Change(layout.relative(removed), "removed", before=before))
    of_units = (
        *_unit_changes(units.enable, "enabled"),
        *_unit_changes(units.restart, "restarted"),
        *_unit_changes(units.stop, "stopped"),
        *_unit_changes(units.disable, "disabled"),
    )
    return Changes(files=tuple(of_files), units=of_units)


def _readable_text(path: Path) -> str | None:
    """Return a file's content, or None if it can't be read."""
    try:
        return files.read_text(path)
    except FileError:
        return None


def _unit_changes(names: Iterable[str], action: str) -> list[Change]:
    return [Change(f"{name}.service", action) for name in names]
