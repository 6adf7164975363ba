"""The next boot: parts are installed and taken back, and the gate is seen to hold.

The order is what keeps the gate shut at every moment: a script is in place before the drop-in names it, and the
drop-in is gone before the script goes. The manifest is written first and removed last, so that whatever a crash
leaves behind is named in it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.boot import files
from hostrouting.boot.gate import drop_in_text, missing_commands
from hostrouting.boot.manifest import CHECK, ROUTES, WATCH, Manifest
from hostrouting.boot.parts import CONFIGURED, BootFile, Part, wanted_files, wanted_parts
from hostrouting.model.errors import UnitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hostrouting.boot.host import Host
    from hostrouting.boot.layout import Layout
    from hostrouting.boot.systemd import UnitManager
    from hostrouting.config.routing import Config
    from phases import CancelScope, Undo

__all__ = [
    "BootPlan",
    "FileChange",
    "exclusive",
    "install_part",
    "is_installed",
    "plan_boot",
    "plan_part",
    "reference_links",
    "remove_part",
]


@attrs.frozen
class FileChange:
    """A file that differs from what a config asks for.

    Args:
        path: as the running system sees it.
        before: its content; None: it isn't there.
        after: the content asked for; None: it goes.
    """

    path: str
    before: str | None
    after: str | None


@attrs.frozen
class BootPlan:
    """What has to change for the next boot.

    Args:
        files: that are written or removed.
        enable: units that shall start at boot and don't.
        disable: units that start at boot and shall not.
    """

    files: tuple[FileChange, ...] = ()
    enable: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether everything is as asked."""
        return not (self.files or self.enable or self.disable)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON; contents as they would be."""
        return {
            "files": [{"path": change.path, "content": change.after} for change in self.files],
            "enable": list(self.enable),
            "disable": list(self.disable),
        }


def plan_boot(config: Config, host: Host) -> BootPlan:
    """Compare what stays for the next boot with what a config asks for, changing nothing.

    Args:
        config: what is wanted; parts that it can't ask for stay as they are.
        host: where.

    Returns:
        The plan.

    Raises:
        FileError: a file can't be read.
        UnitError: systemd can't be asked.
    """
    there = Manifest.load(host.layout)
    parts = wanted_parts(config, host.layout)
    wanted = there.without(*CONFIGURED)
    for part in parts:
        wanted = wanted.with_part(part.name, part.installed(host.layout))
    # A config that asks for nothing moves nobody else's gate.
    return _plan(host, there, attrs.evolve(wanted, consumer=config.consumer if parts else there.consumer), parts)


def plan_part(host: Host, consumer: str, part: Part | None, name: str) -> BootPlan:
    """Compare what stays for the next boot with what it would be with a part, or without it, changing nothing.

    Args:
        host: where.
        consumer: the unit to hold back.
        part: as ``install_part`` would install it; None: ``remove_part`` would take it back.
        name: of the part.

    Returns:
        The plan; all other parts stay as they are.

    Raises:
        FileError: a file can't be read.
        UnitError: systemd can't be asked.
    """
    there = Manifest.load(host.layout)
    if part is not None:
        wanted = there.with_part(name, part.installed(host.layout))
        return _plan(host, there, attrs.evolve(wanted, consumer=consumer), [part])
    if name not in there.parts:
        return BootPlan()
    return _plan(host, there, there.without(name), [])


def _plan(host: Host, there: Manifest, wanted: Manifest, parts: Sequence[Part]) -> BootPlan:
    """What is between a manifest and another one, of whose parts some are written anew."""
    layout = host.layout
    wanted = attrs.evolve(wanted, former=())
    goes = {*there.files(layout)} - {*wanted.files(layout)} - {layout.enablement(name) for name in there.parts}
    changes = [
        FileChange(layout.relative(file.path), before, file.text)
        for file in wanted_files(layout, wanted, parts)
        if (before := files.read_text(file.path)) != file.text
    ]
    changes += [
        FileChange(layout.relative(path), before, None)
        for path in sorted(goes)
        if (before := files.read_text(path)) is not None
    ]
    known = {*there.parts, *(part.name for part in parts)}
    enabled = {
        name for name in known if files.read_text(layout.unit(name)) and host.units.is_enabled(f"{name}.service")
    }
    return BootPlan(
        tuple(changes),
        enable=tuple(f"{part.name}.service" for part in parts if part.name not in enabled),
        disable=tuple(f"{name}.service" for name in there.parts if name in enabled and name not in wanted.parts),
    )


# --- there ---------------------------------------------------------------------------------------------------------


def exclusive(host: Host, scope: CancelScope) -> AbstractContextManager[None]:
    """The lock of a running host; an image has no other runs, and no /run to leave a file in."""
    return nullcontext() if host.is_image else files.locked(host.layout.lock, scope)


def is_installed(host: Host, name: str) -> bool:
    """Whether a part is installed, as the manifest says."""
    return name in Manifest.load(host.layout).parts


def install_part(host: Host, consumer: str, part: Part, undo: Undo) -> bool:
    """Install a part, and see that every instance of the consumer is held back by it.

    Args:
        host: where.
        consumer: the unit to hold back.
        part: what to install.
        undo: gets the way back.

    Returns:
        Whether anything changed.

    Raises:
        FileError: a file can't be written.
        UnitError: systemd refuses, or an instance doesn't hold the gate.
    """
    layout, units = host.layout, host.units
    before = Manifest.load(layout)
    _remove_litter(layout, before)
    former = tuple(sorted({before.consumer, *before.former} - {consumer})) if before.parts else ()
    manifest = attrs.evolve(before.with_part(part.name, part.installed(layout)), consumer=consumer, former=former)
    paths = [layout.manifest, *manifest.files(layout)]
    manifest = attrs.evolve(manifest, folders=tuple(sorted({*before.folders, *_missing_folders(layout, paths)})))

    undo.push(units.reload)
    _leave_the_reference(host, undo)
    changed = _write(layout, manifest, BootFile(layout.manifest, manifest.to_text()), undo)
    for file in wanted_files(layout, manifest, [part]):
        changed |= _write(layout, manifest, file, undo)
    if former:
        for name in former:
            old = layout.gate(name)
            undo.push(partial(_restore, layout, manifest, old, files.read_state(old)))
            changed |= files.remove(old)
        kept = attrs.evolve(manifest, former=())
        _remove_folders(layout, manifest, keep=[layout.manifest, *kept.files(layout)])
        manifest = kept
        _write(layout, manifest, BootFile(layout.manifest, manifest.to_text()), undo)
    unit = f"{part.name}.service"
    if changed or _needs_reload(units, manifest):
        units.reload()
        changed = True
    if not units.is_enabled(unit):
        undo.push(partial(units.disable, unit))
        units.enable(unit)
        changed = True
    _see_that_it_holds(units, manifest)
    return changed


def _needs_reload(units: UnitManager, manifest: Manifest) -> bool:
    """Whether systemd hasn't read what is there: a run that was killed between writing and reloading."""
    instances = units.instances(manifest.consumer)
    beside = [unit for part in manifest.parts.values() for unit in part.after]
    watched = [*instances, *(f"{name}.service" for name in manifest.parts), *beside] if instances else []
    return any(units.show(name, "NeedDaemonReload")["NeedDaemonReload"] == "yes" for name in watched)


# A unit that isn't there yet, or can't be started, has no settings to read back; its drop-in is read with it.
_NOTHING_TO_HOLD = ("not-found", "masked")


def _see_that_it_holds(units: UnitManager, manifest: Manifest) -> None:
    """Read the gate back: a line that systemd doesn't understand is ignored, and an override may empty the list."""
    for instance in units.instances(manifest.consumer):
        shown = units.show(instance, "LoadState", "ExecStartPreEx")
        if shown["LoadState"] in _NOTHING_TO_HOLD:
            continue
        missing = missing_commands(manifest, shown["ExecStartPreEx"])
        if missing:
            raise UnitError(
                f"the gate doesn't hold {instance}: its ExecStartPre= lacks {' and '.join(map(str, missing))}; "
                f"something overrides zz-hostrouting.conf: look at: systemctl cat {instance}"
            )


def _leave_the_reference(host: Host, undo: Undo) -> None:
    """Remove the links by which the reference's installation has the consumer require our units, and see them gone.

    As long as one is in force, starting or stopping a oneshot stops the running machine.
    """
    layout, units = host.layout, host.units
    links = reference_links(layout)
    if not links:
        return
    for link in links:
        undo.push(partial(files.link, link, files.target(link)))
        files.remove(link)
        files.remove_empty_folder(link.parent)
    units.reload()
    for consumer in {link.parent.name.rpartition(".")[0] for link in links}:
        for instance in units.instances(consumer):
            still = units.show(instance, "Requires")["Requires"].split()
            if any(f"{name}.service" in still for name in (ROUTES, CHECK)):
                raise UnitError(
                    f"{instance} still requires {' '.join(still)} after its links were removed; touching those units "
                    f"would stop it: look at: systemctl cat {instance}"
                )


def reference_links(layout: Layout) -> list[Path]:
    """The links by which consumers require or want our oneshots, also those that lead nowhere from here."""
    # Not by a pattern with the link's own name: before Python 3.13 glob leaves out links that dangle, and in an image
    # all of these do.
    folders = [folder for kind in ("requires", "wants") for folder in sorted(layout.units.glob(f"*.service.{kind}"))]
    links = [folder / f"{name}.service" for folder in folders for name in (ROUTES, CHECK)]
    return [link for link in links if link.is_symlink() or link.exists()]


# --- and back ------------------------------------------------------------------------------------------------------


def remove_part(host: Host, name: str) -> tuple[str, ...]:
    """Take a part back: first out of the gate, then from boot, then its files; the manifest goes with the last.

    Args:
        host: where.
        name: of the part; one that isn't installed is fine.

    Returns:
        The files that were removed, as the running system sees them.

    Raises:
        FileError: one can't be removed; a later run goes on from there.
        UnitError: systemd refuses; likewise.
    """
    layout, units = host.layout, host.units
    before = Manifest.load(layout)
    if name not in before.parts:
        return ()
    _remove_litter(layout, before)
    if name == WATCH:
        # Never a oneshot: machines of older installations may still require those.
        units.stop(f"{name}.service")
    left = attrs.evolve(before.without(name), former=())
    for consumer in (before.consumer, *before.former):
        if left.has_gate and consumer == before.consumer:
            files.write_if_changed(layout.gate(consumer), drop_in_text(left))
        else:
            files.remove(layout.gate(consumer))
    units.reload()
    units.disable(f"{name}.service")
    removed = [path for path in before.files_of(layout, name) if files.remove(path)]
    units.reload()
    if left.parts:
        files.write_if_changed(layout.manifest, left.to_text())
    else:
        files.remove(layout.manifest)
    _remove_folders(layout, before, keep=[layout.manifest, *left.files(layout)] if left.parts else ())
    return tuple(layout.relative(path) for path in removed)


def _remove_litter(layout: Layout, manifest: Manifest) -> None:
    for path in (layout.manifest, *manifest.files(layout)):
        files.remove_litter(path)


def _missing_folders(layout: Layout, paths: Iterable[Path]) -> list[str]:
    folders = {folder for path in paths for folder in path.parents if folder.is_relative_to(layout.root)}
    return [layout.relative(folder) for folder in sorted(folders) if not folder.exists()]


def _remove_folders(layout: Layout, manifest: Manifest, *, keep: Iterable[Path] = ()) -> None:
    """Remove the folders that were made, innermost first, unless somebody has put something into them."""
    kept = {folder for path in keep for folder in path.parents}
    for name in sorted(manifest.folders, reverse=True):
        folder = layout.of(name)
        if folder not in kept:
            files.remove_empty_folder(folder)


def _write(layout: Layout, manifest: Manifest, file: BootFile, undo: Undo) -> bool:
    undo.push(partial(_restore, layout, manifest, file.path, files.read_state(file.path)))
    return files.write_if_changed(file.path, file.text, mode=file.mode)


def _restore(layout: Layout, manifest: Manifest, path: Path, before: tuple[bytes, int] | None) -> None:
    if before is not None:
        files.write_if_changed(path, before[0], mode=before[1])
    else:
        files.remove(path)
        _remove_folders(layout, manifest)
