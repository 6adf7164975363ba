"""The next boot: parts are installed and taken back, and the gate is seen to hold.

The order is what keeps the gate shut at every moment: a script is in place before the list names it, the list before
the drop-in is, and on the way back the list goes first and the scripts last. The manifest is written first and removed
last, so that whatever a crash leaves behind is named in it. Whoever calls this holds the lock of a whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import attrs

from hostrouting.boot import files
from hostrouting.boot.files import Run
from hostrouting.boot.gate import missing_commands, opening_settings
from hostrouting.boot.host import Host
from hostrouting.boot.layout import Layout
from hostrouting.boot.manifest import CHECK, ROUTES, WATCH, Manifest
from hostrouting.boot.parts import BootFile, Part, plan_part, plan_removal, reference_links, wanted_files, with_folders
from hostrouting.boot.systemd import ANY_INSTANCE, UnitManager
from hostrouting.boot.unit_files import unit_files
from hostrouting.model.changes import Change, Changes
from hostrouting.model.errors import UnitError
from phases import CancelScope, Undo

# --- there ---------------------------------------------------------------------------------------------------------


def is_installed(host: Host, name: str) -> bool:
    """Whether a part is installed, as the manifest says."""
    return name in Manifest.load(host.layout).parts


def install_part(host: Host, consumer: str, part: Part, undo: Undo) -> Changes:
    """Install a part, and see that every instance of the consumer is held back by it.

    Args:
        host: where.
        consumer: the unit to hold back.
        part: what to install.
        undo: gets the way back.

    Returns:
        What has changed; false if nothing.

    Raises:
        FileError: a file can't be written.
        UnitError: systemd refuses, or an instance doesn't hold the gate.
    """
    layout, units, unit = host.layout, host.units, f"{part.name}.service"
    before = Manifest.load(layout)
    _remove_litter(layout, before)
    plan = plan_part(host, consumer, part)
    former = tuple(sorted({before.consumer, *before.former} - {consumer})) if before.parts else ()
    manifest = attrs.evolve(before.with_part(part.name, part.installed(layout)), consumer=consumer, former=former)
    manifest = with_folders(manifest, layout)
    paths = {layout.of(str(change.what)): change.fate for change in plan.files}
    is_stale = any(path.is_relative_to(layout.units) for path in paths)
    if is_stale:
        undo.push(units.reload)
    undo.push(partial(_remove_folders, layout, manifest))
    _leave_the_reference(host, undo)
    for file in (BootFile(layout.manifest, manifest.to_text()), *wanted_files(layout, manifest, [part])):
        _write(file, undo)
    for path in (path for path, fate in paths.items() if fate == "removed"):
        undo.push(partial(_restore, path, files.read_state(path)))
        files.remove(path)
    if former:
        _remove_folders(layout, manifest)
        _write(BootFile(layout.manifest, attrs.evolve(manifest, former=()).to_text()), undo)
    unread = () if is_stale else _unread(units, manifest)
    if is_stale or unread:
        units.reload()
    enabled = tuple(change for change in plan.units if change.fate == "enabled")
    if enabled:
        undo.push(partial(units.disable, unit))
        units.enable(unit)
    _see_that_it_holds(units, manifest)
    reloaded = tuple(Change(name, "reloaded") for name in unread)
    return Changes(files=tuple(Change(each.what, each.fate) for each in plan.files), units=(*reloaded, *enabled))


def _unread(units: UnitManager, manifest: Manifest) -> tuple[str, ...]:
    """The units that systemd hasn't read as they are: a run was killed between writing and reloading."""
    instances = units.instances(manifest.consumer)
    ours = [unit for part in manifest.parts.values() for unit in part.units]
    watched = [*instances, *ours] if instances else []
    return tuple(name for name in watched if units.show(name, "NeedDaemonReload")["NeedDaemonReload"] == "yes")


def _see_that_it_holds(units: UnitManager, manifest: Manifest) -> None:
    """Read the gate back: a line that systemd doesn't understand is ignored, and an override may empty a list."""
    for instance in units.instances(manifest.consumer) if manifest.has_gate else ():
        shown = units.show(instance, *_SETTINGS)
        # A unit that isn't there yet, or can't be started, has no settings to read back; its drop-in is read with it.
        if shown["LoadState"] in ("not-found", "masked"):
            continue
        if missing := missing_commands(shown):
            why = f"it lacks {' and '.join(missing)}; something overrides zz-hostrouting.conf:"
        elif opening := tuple(opening_settings(shown, is_strict=manifest.is_strict)):
            why = f"{'; '.join(opening)}; mend that, then apply again;"
        else:
            continue
        raise UnitError(f"the gate doesn't hold {instance}: {why} look at: systemctl cat {instance}")


_SETTINGS = ("LoadState", "ExecConditionEx", "ExecStartPreEx", "SuccessExitStatus", "TimeoutStartUSec")


def start_oneshot(host: Host, name: str, run: Run) -> None:
    """Have a part's oneshot run if it doesn't and hasn't, without waiting for it; not under the lock, which it takes.

    Where the network isn't up yet, boot's own job starts it; one of ours would pull the waiting for it in.

    Raises:
        UnitError: systemd refuses.
    """
    units, unit = host.units, f"{name}.service"
    if units.is_active("network-online.target") and not units.is_active(unit):
        units.start(unit)
        run.changes |= Changes(units=(Change(unit, "started"),))


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


# --- and back ------------------------------------------------------------------------------------------------------


def remove_parts(host: Host, scope: CancelScope, run: Run, *names: str) -> None:
    """Take parts back: first out of the list, then out of boot, and their scripts last.

    Args:
        host: where.
        scope: ends the wait for starts.
        run: what is changed is noted there, at each step.
        names: of the parts; those that aren't installed are fine.

    Raises:
        FileError: one can't be removed; a later run goes on from there.
        UnitError: systemd refuses; likewise.
    """
    layout, units = host.layout, host.units
    before, plan = Manifest.load(layout), plan_removal(host, *names)
    if not plan:
        return
    _remove_litter(layout, before)
    planned = {layout.of(str(change.what)): change for change in plan.files}
    gates = [path for path in before.gates(layout) if path in planned]

    def carry_out(is_due: Callable[[Path], bool]) -> None:
        change_files(layout, (change for path, change in planned.items() if is_due(path)), run)

    going = [name for name in names if name in before.parts]
    if WATCH in going:
        # Never a oneshot: machines of older installations may still require those.
        units.stop(f"{WATCH}.service")
        run.changes |= Changes(units=tuple(change for change in plan.units if change.fate == "stopped"))
    carry_out(lambda path: path == layout.gate_list)
    carry_out(lambda path: path in gates)
    if gates:
        _wait_for_starts(units, (before.consumer, *before.former), scope)
    for name in going:
        disabled = Change(f"{name}.service", "disabled")
        units.disable(f"{name}.service")
        run.changes |= Changes(units=(disabled,) if disabled in plan.units else ())
        # One that leads nowhere systemd leaves there.
        change_files(layout, [Change(layout.relative(layout.enablement(name)), "removed")], run)
    carry_out(lambda path: path.is_relative_to(layout.units))
    units.reload()
    carry_out(lambda path: path != layout.manifest)
    carry_out(lambda path: path == layout.manifest)
    _remove_folders(layout, before)


def change_files(layout: Layout, changes: Iterable[Change], run: Run) -> None:
    """Write and remove files as they are planned, and note what hadn't been done yet.

    Raises:
        FileError: one can't be written or removed.
    """
    for change in changes:
        path = layout.of(str(change.what))
        if files.remove(path) if change.after is None else files.write_if_changed(path, change.after):
            run.changes |= Changes(files=(Change(change.what, change.fate),))


# As long as a gate takes at most would be 20 s; one that begins now admits at once.
_START_WAIT_SECONDS = 15
_START_POLL_SECONDS = 0.1


def _wait_for_starts(units: UnitManager, consumers: Iterable[str], scope: CancelScope) -> None:
    """Wait until no instance runs what comes before its process: a reload would skip the rest of that."""
    instances = [instance for consumer in consumers for instance in units.instances(consumer)]
    deadline = scope.clock.monotonic() + _START_WAIT_SECONDS
    while any(units.show(instance, "SubState")["SubState"] in ("condition", "start-pre") for instance in instances):
        if scope.clock.monotonic() >= deadline:
            return
        scope.progress("waiting for starts that run the gate")
        scope.wait(_START_POLL_SECONDS)


def requiring_units(host: Host, *names: str) -> dict[str, tuple[str, ...]]:
    """Who requires the oneshots of parts: such a unit isn't started any more when they are gone.

    Args:
        host: where.
        names: of the parts.

    Returns:
        By the oneshot, the units that require it, sorted; without those that nobody requires.
    """
    found = {}
    for unit in (f"{name}.service" for name in names):
        shown = host.units.show(unit, "RequiredBy", "RequisiteOf", "BoundBy")
        found[unit] = tuple(sorted({word for value in shown.values() for word in value.split()}))
    return {unit: words for unit, words in found.items() if words}


def is_there(host: Host, consumer: str) -> bool:
    """Whether there is such a unit, or template.

    Raises:
        UnitError: systemd can't be asked.
    """
    if host.is_image:
        return bool(unit_files(host.layout, consumer))
    instance = consumer.replace("@.", f"@{ANY_INSTANCE}.")
    return host.units.show(instance, "LoadState")["LoadState"] != "not-found"


def _remove_litter(layout: Layout, manifest: Manifest) -> None:
    for path in (layout.manifest, *manifest.files(layout)):
        files.remove_litter(path)


def _remove_folders(layout: Layout, manifest: Manifest) -> None:
    """Remove the folders that were made, innermost first, unless something is in them."""
    for name in sorted(manifest.folders, reverse=True):
        files.remove_empty_folder(layout.of(name))


def _write(file: BootFile, undo: Undo) -> None:
    undo.push(partial(_restore, file.path, files.read_state(file.path)))
    files.write_if_changed(file.path, file.text, mode=file.mode)


def _restore(path: Path, before: tuple[bytes, int] | None) -> None:
    if before is not None:
        files.write_if_changed(path, before[0], mode=before[1])
    else:
        files.remove(path)
