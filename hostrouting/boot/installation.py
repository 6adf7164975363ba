"""Carry out the plan for the next boot, and check that the gate is effective.

The order keeps the gate closed at every moment. On installation, the scripts and the list change together, before the
drop-in names the gate. On removal, the list first admits every start, then the drop-in is removed, and the scripts come
last. The manifest is written first and removed last, so it names everything that a crash may leave behind. The caller
holds the lock for the whole run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from hostrouting.boot import files
from hostrouting.boot._switch import put, remove_old_stages, switch
from hostrouting.boot.gate import SETTINGS, missing_commands, opening_settings
from hostrouting.boot.host import Host
from hostrouting.boot.layout import Layout
from hostrouting.boot.locks import locked
from hostrouting.boot.manifest import CHECK, ROUTES, Manifest
from hostrouting.boot.parts import BootFile
from hostrouting.boot.plan import BootPlan
from hostrouting.boot.systemd import ANY_INSTANCE, UnitManager
from hostrouting.boot.unit_files import unit_files
from hostrouting.model.changes import Change, Changes
from hostrouting.model.errors import UnitError
from phases import CancelScope, Undo

# --- installation --------------------------------------------------------------------------------------------------


def prepare(plan: BootPlan, host: Host, undo: Undo) -> None:
    """Clean up after killed runs, and write the manifest that names everything that is or will be installed.

    Args:
        plan: the plan to carry out.
        host: the host to work on.
        undo: receives the steps that undo the work; the last one makes the gate run its former scripts.

    Raises:
        FileError: a file can't be written or removed.
        UnitError: systemd refuses, or a link of the Go package's installation can't be removed.
    """
    layout = host.layout
    for path in {layout.manifest, *plan.during.files(layout)}:
        files.remove_litter(path)
    if not plan:
        return
    undo.push(partial(files.remove_empty_folder, layout.manifest.parent))
    if plan.links:
        undo.push(host.units.within(CancelScope()).reload)
        _remove_links(plan.links, host, undo)
    if plan.during.parts:
        _write(BootFile(layout.manifest, plan.during.to_text()), undo)
    undo.push(partial(_remove_folders, layout, plan.during))
    undo.push(partial(remove_old_stages, layout))
    undo.push(partial(switch, layout, {file.path: files.look_at(file.path) for file in plan.switched}))


def put_in_place(plan: BootPlan, host: Host, undo: Undo) -> Changes:
    """Write the files that a plan adds or replaces, and check that the gate holds for every instance of the consumer.

    Args:
        plan: the plan, after ``prepare``.
        host: the host to work on.
        undo: receives the steps that undo the work.

    Returns:
        The changes, without the plan's removals.

    Raises:
        FileError: a file can't be written.
        UnitError: systemd refuses, or the gate doesn't hold for an instance.
    """
    layout, units, units_back = host.layout, host.units, host.units.within(CancelScope())
    if plan.way_back:
        undo.push(partial(switch, layout, {file.path: file.state for file in plan.way_back}))
    switch(layout, {file.path: file.state for file in plan.switched})
    is_stale = any(file.path.is_relative_to(layout.units) for file in plan.write)
    if is_stale:
        undo.push(units_back.reload)
    first_gate = next((file for file in plan.write if file.path in plan.after.gates(layout)), None)
    for file in plan.write:
        if file is first_gate:
            # When this is undone, systemd forgets the gate before the gate's scripts are removed.
            undo.push(units_back.reload)
        _write(file, undo)
    unread = () if is_stale else _unread(units, plan.during)
    if is_stale or unread:
        units.reload()
    for name in plan.enable:
        undo.push(partial(units_back.disable, f"{name}.service"))
        units.enable(f"{name}.service")
    if plan.is_wanting:
        _see_that_it_holds(units, plan.after)
    reloaded = tuple(Change(name, "reloaded") for name in unread)
    gone = {layout.relative(path) for path in plan.remove}
    placed = [change for change in plan.changes.files if change.what not in gone]
    # Their content only gets its final form at the end.
    written = {layout.manifest, *(file.path for file in plan.switched)}
    placed += [Change(layout.relative(path), "replaced") for path in plan.remove if path in written]
    enabled = tuple(change for change in plan.changes.units if change.action == "enabled")
    return Changes(files=tuple(placed), units=(*reloaded, *enabled))


def _unread(units: UnitManager, manifest: Manifest) -> tuple[str, ...]:
    """Return the units whose files systemd hasn't reloaded.

    This happens if a run was killed after writing the files and before the reload.
    """
    if not manifest.parts:
        return ()
    consumers = filter(None, (manifest.consumer, *manifest.former))
    instances = [instance for consumer in consumers for instance in units.instances(consumer)]
    ours = [unit for part in manifest.parts.values() for unit in part.units]
    watched = [*instances, *ours] if instances else []
    return tuple(name for name in watched if units.show(name, "NeedDaemonReload")["NeedDaemonReload"] == "yes")


def _see_that_it_holds(units: UnitManager, manifest: Manifest) -> None:
    """Check that systemd has loaded the gate as it was written.

    systemd ignores a line that it doesn't understand, and an override may empty a list.
    """
    for instance in units.instances(manifest.consumer) if manifest.has_gate else ():
        shown = units.show(instance, *_SETTINGS)
        # A missing or masked unit has no settings to compare; once the unit is loaded, so is its drop-in.
        if shown["LoadState"] in ("not-found", "masked"):
            continue
        if missing := missing_commands(shown):
            why, todo = f"it lacks {' and '.join(missing)}; something overrides zz-hostrouting.conf", ""
        elif opening := tuple(opening_settings(shown, is_strict=manifest.is_strict)):
            why, todo = "; ".join(opening), "fix that, then apply again; "
        else:
            continue
        raise UnitError(f"the gate doesn't hold {instance}: {why}", hint=f"{todo}look at: systemctl cat {instance}")


_SETTINGS = ("LoadState", "ExecConditionEx", "ExecStartPreEx", *SETTINGS)


def _remove_links(links: Sequence[Path], host: Host, undo: Undo) -> None:
    """Remove the Go package's links that make the consumer require our units, and check that they have no effect.

    As long as a link is in effect, starting or stopping a oneshot stops the running machine.
    """
    units = host.units
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
                    "would stop it",
                    hint=f"look at: systemctl cat {instance}",
                )


# --- removal -------------------------------------------------------------------------------------------------------


def take_away(plan: BootPlan, host: Host, scope: CancelScope) -> Iterator[Changes]:
    """Remove what a plan removes, and restart the watcher if it has changed.

    Args:
        plan: the plan to carry out.
        host: the host to work on.
        scope: cancels the wait for starting units.

    Yields:
        Each change as soon as it is made.

    Raises:
        FileError: a file can't be removed. A later run continues from there.
        UnitError: systemd refuses. A later run continues from there.
    """
    layout, units = host.layout, host.units
    for name in plan.stop:
        # Never stop a oneshot: machines of older installations may still require it.
        units.stop(f"{name}.service")
        yield _of_unit(name, "stopped")
    if plan.last_list is not None:
        files.write_if_changed(layout.gate_list, plan.last_list.text)
    yield from _take_out_of_boot(plan, host, scope)
    markers = [path for path in plan.remove if path in layout.markers]
    kept = {layout.manifest, *markers}
    yield from _remove_all(layout, (path for path in plan.remove if path not in kept))
    remove_old_stages(layout)
    _remove_folders(layout, plan.during)
    if plan.after.parts:
        if plan.after != plan.during:
            files.write_if_changed(layout.manifest, plan.after.to_text())
    elif not plan.unseen:
        # This run wrote the manifest itself if it had to reconstruct it.
        made = list(_remove_all(layout, [layout.manifest]))
        yield from made if layout.manifest in plan.remove else ()
        files.remove_empty_folder(layout.manifest.parent)
        _remove_folders(layout, plan.during)
    if markers:
        # The watcher checks under the lock whether its routes are still wanted.
        with nullcontext() if host.is_image else locked(layout.lock, scope):
            yield from _remove_all(layout, markers)
    for name in plan.restart:
        units.restart(f"{name}.service")
        yield _of_unit(name, "restarted")


def _take_out_of_boot(plan: BootPlan, host: Host, scope: CancelScope) -> Iterator[Changes]:
    """Remove the obsolete drop-ins and then the units, and make systemd reload its files."""
    layout, units = host.layout, host.units
    of_systemd = [path for path in plan.remove if path.is_relative_to(layout.units)]
    gates = {*plan.before.gates(layout)}
    yield from _remove_all(layout, (path for path in of_systemd if path in gates))
    if gates & {*of_systemd}:
        _wait_for_starts(units, (plan.before.consumer, *plan.before.former), scope)
    for name in plan.going:
        units.disable(f"{name}.service")
        if name in plan.disable:
            yield _of_unit(name, "disabled")
        # systemd doesn't remove a dangling link.
        files.remove(layout.enablement(name))
    yield from _remove_all(layout, of_systemd)
    if of_systemd:
        units.reload()


def _of_unit(part: str, action: str) -> Changes:
    return Changes(units=(Change(f"{part}.service", action),))


def _remove_all(layout: Layout, paths: Iterable[Path]) -> Iterator[Changes]:
    for path in paths:
        if files.remove(path):
            yield Changes(files=(Change(layout.relative(path), "removed"),))


# A gate takes at most 20 s, and a gate that starts now admits its unit at once.
_START_WAIT_SECONDS = 15
_START_POLL_SECONDS = 0.1


def _wait_for_starts(units: UnitManager, consumers: Iterable[str], scope: CancelScope) -> None:
    """Wait until no instance is running the commands before its process, because a reload would skip the rest of them.

    Give up after 15 s.
    """
    instances = [instance for consumer in consumers if consumer for instance in units.instances(consumer)]
    deadline = scope.clock.monotonic() + _START_WAIT_SECONDS
    while any(units.show(instance, "SubState")["SubState"] in ("condition", "start-pre") for instance in instances):
        if scope.clock.monotonic() >= deadline:
            return
        scope.progress("waiting for starts that run the gate")
        scope.wait(_START_POLL_SECONDS)


# --- the current state ---------------------------------------------------------------------------------------------


def start_oneshots(host: Host, names: Iterable[str]) -> Iterator[Changes]:
    """Start the oneshots that aren't running and haven't run, without waiting for them.

    The caller must not hold the lock, because the oneshots take it.

    If the network isn't up yet, do nothing: boot's own job starts them then, and our job would also wait for the
    network.

    Args:
        host: the host to work on.
        names: the names of installed parts.

    Yields:
        A change for each start.

    Raises:
        UnitError: systemd refuses.
    """
    if not names or not host.units.is_active("network-online.target"):
        return
    for name in names:
        if not host.units.is_active(f"{name}.service"):
            host.units.start(f"{name}.service")
            yield _of_unit(name, "started")


def is_installed(host: Host, name: str) -> bool:
    """Return whether a part is installed, according to the manifest."""
    return name in Manifest.load(host.layout).parts


def requiring_units(host: Host, *names: str) -> dict[str, tuple[str, ...]]:
    """Return the units that require the parts' oneshots, and so can't start once these are removed.

    Args:
        host: the host to work on.
        names: the names of the parts.

    Returns:
        The sorted names of the requiring units, by the oneshot that they require.
    """
    found = {}
    for unit in (f"{name}.service" for name in names):
        shown = host.units.show(unit, "RequiredBy", "RequisiteOf", "BoundBy")
        found[unit] = tuple(sorted({word for value in shown.values() for word in value.split()}))
    return {unit: words for unit, words in found.items() if words}


def is_there(host: Host, consumer: str) -> bool:
    """Return whether the consumer's unit or template exists.

    Raises:
        UnitError: systemd can't be queried.
    """
    if host.is_image:
        return bool(unit_files(host.layout, consumer))
    instance = consumer.replace("@.", f"@{ANY_INSTANCE}.")
    return host.units.show(instance, "LoadState")["LoadState"] != "not-found"


KUBELET = "kubelet.service"


def has_free_kubelet(host: Host, consumer: str) -> bool:
    """Return whether the host's own kubelet starts at boot but isn't the consumer, so that nothing can block it.

    Raises:
        UnitError: systemd can't be queried.
    """
    return consumer != KUBELET and host.units.is_enabled(KUBELET)


def _remove_folders(layout: Layout, manifest: Manifest) -> None:
    """Remove the folders that the installation created, innermost first, unless they contain something."""
    for folder in sorted(map(layout.of, manifest.folders), reverse=True):
        files.remove_empty_folder(folder)


def _write(file: BootFile, undo: Undo) -> None:
    undo.push(partial(put, file.path, files.look_at(file.path)))
    files.write_if_changed(file.path, file.text, mode=file.mode)
