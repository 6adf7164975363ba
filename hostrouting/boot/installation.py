"""Apply the plan for the next boot, step by step, and verify that the gate is effective.

The order of the steps matters, because no start may slip past the gate:

1. Write the manifest, which lists everything that a crash might leave behind (``prepare``).
2. Replace the gate's scripts and their list together (``apply_additions``).
3. Write the other files, the gate's drop-ins last. Then reload systemd, and enable units.
4. Change the kernel's routes, which is left to the caller. If a step up to here fails, all steps
   are rolled back in reverse order.
5. Remove the obsolete scripts from the gate's list (``apply_removals``). If the gate is being
   removed, no script is left in the list, so every start passes.
6. Remove the obsolete drop-ins, then the other obsolete files, and at last the manifest.

The caller holds the run lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TypeAlias

from hostrouting.boot import files
from hostrouting.boot._switch import put, remove_old_stages, switch
from hostrouting.boot.gate import SETTINGS, missing_commands, opening_settings
from hostrouting.boot.host import Host
from hostrouting.boot.installed_units import environment_names, unit_files, unit_names
from hostrouting.boot.layout import CHECK, ROUTES, WATCH, Layout
from hostrouting.boot.locks import locked
from hostrouting.boot.manifest import Manifest
from hostrouting.boot.parts import BootFile
from hostrouting.boot.plan import BootPlan
from hostrouting.boot.systemd import ANY_INSTANCE, RUNNING, UnitManager
from hostrouting.model.changes import Change, Changes
from hostrouting.model.errors import UnitError
from phases import CancelScope, Undo

Loaded: TypeAlias = Mapping[str, Mapping[str, str]]
"""The properties of our units and of the consumers' units, as systemd has loaded them, by unit."""

# --- installation ---------------------------------------------------------------------------------


def prepare(plan: BootPlan, host: Host, undo: Undo) -> Loaded | None:
    """Clean up after killed runs, and write a manifest of both the current and the planned files.

    Args:
        undo: collects the rollback steps.

    Returns:
        The units' properties; None if the plan changes what systemd has loaded.

    Raises:
        FileError: a file can't be written or removed.
        UnitError: a systemctl call fails, or a symlink created by the Go package can't be removed.
    """
    layout = host.layout
    interim = plan.manifests.interim
    files.remove_litter(layout.manifest, layout.verified, *interim.files(layout))
    changes_units = plan.files.links or _writes_units(plan, layout)
    loaded = None if changes_units else _loaded(host.units, interim)
    if not plan:
        return loaded
    if not loaded:
        require_systemd(plan, host)
    undo.push(partial(files.remove_empty_folder, layout.manifest.parent))
    if plan.files.links:
        undo.push(host.units.within(CancelScope()).reload)
        _remove_links(plan.files.links, host, undo)
    if interim.parts:
        _write(BootFile(layout.manifest, interim.to_text()), undo)
    undo.push(partial(_remove_folders, layout, interim))
    switched = [file.path for file in plan.gate.switched]
    old_states = {path: files.look_at(path) for path in switched}
    undo.push(partial(switch, layout, old_states))
    return loaded


def require_systemd(plan: BootPlan, host: Host) -> None:
    """Raise an error if systemd isn't running, but the plan installs something.

    Raises:
        UnitError: systemd doesn't answer.
    """
    if plan and plan.is_installing:
        host.units.is_active(f"{WATCH}.service")


def apply_additions(
    plan: BootPlan,
    host: Host,
    undo: Undo,
    loaded: Loaded | None,
) -> Changes:
    """Write a plan's new and changed files, and verify the gate of each instance of the consumer.

    Args:
        plan: the plan, after ``prepare``.
        undo: collects the rollback steps.
        loaded: the result of ``prepare``.

    Returns:
        The changes, not including the plan's removals.

    Raises:
        FileError: a file can't be written.
        UnitError: a systemctl call fails, or an instance bypasses the gate.
    """
    layout = host.layout
    units = host.units
    new = plan.manifests.new
    if plan.gate.rollback:
        undo.push(partial(switch, layout, _states(plan.gate.rollback)))
    switch(layout, _states(plan.gate.switched))

    _write_files(plan, host, undo)
    unread: list[str] = []
    if _writes_units(plan, layout):
        units.reload()
    else:
        # A killed run may have written unit files that systemd hasn't read.
        if loaded is None:
            loaded = _loaded(units, plan.manifests.interim)
        unread = _unread(loaded)
        if unread:
            units.reload()
            loaded = None
    if plan.units.enable:
        _enable(plan, host, undo)
        loaded = None

    if plan.is_installing and new.has_gate:
        # If nothing was reloaded or enabled, systemd still has the same units loaded.
        if loaded is None:
            loaded = _loaded(units, new)
        _verify_gate(loaded, new, layout)
    return _changes_so_far(plan, layout, unread)


def _states(scripts: Iterable[BootFile]) -> dict[Path, files.FileState | None]:
    return {file.path: file.state for file in scripts}


def _writes_units(plan: BootPlan, layout: Layout) -> bool:
    return any(file.path.is_relative_to(layout.units) for file in plan.files.write)


def _write_files(plan: BootPlan, host: Host, undo: Undo) -> None:
    """Write the files, the gate's drop-ins after its scripts.

    A rollback goes backwards: it removes the drop-ins, reloads systemd, removes the other files,
    and reloads systemd again, if there are units among them. Without the first reload, systemd
    would still run the gate's commands while the rollback removes their scripts.
    """
    reload = host.units.within(CancelScope()).reload
    drop_ins = plan.manifests.new.gates(host.layout)
    first_drop_in = next((file for file in plan.files.write if file.path in drop_ins), None)
    if _writes_units(plan, host.layout):
        undo.push(reload)
    for file in plan.files.write:
        if file is first_drop_in:
            undo.push(reload)
        _write(file, undo)


def _enable(plan: BootPlan, host: Host, undo: Undo) -> None:
    units_of_rollback = host.units.within(CancelScope())
    for name in plan.units.enable:
        undo.push(partial(units_of_rollback.disable, f"{name}.service"))
        host.units.enable(f"{name}.service")


def _changes_so_far(plan: BootPlan, layout: Layout, unread: Iterable[str]) -> Changes:
    """Return the changes that are complete once files are added, before any are removed."""
    removed = {layout.relative(path) for path in plan.files.remove}
    planned = {change.what: change for change in plan.changes.files}
    of_files = [change for what, change in planned.items() if what not in removed]
    # The manifest and the gate's files have interim content now. If the run removes one of these
    # files at the end, the file counts as replaced until then.
    interim = {layout.manifest, *(file.path for file in plan.gate.switched)}
    replaced = [layout.relative(path) for path in plan.files.remove if path in interim]
    of_files += [Change(what, "replaced", before=planned[what].before) for what in replaced]
    of_units = [Change(name, "reloaded") for name in unread]
    of_units += [Change(f"{name}.service", "enabled") for name in plan.units.enable]
    return Changes(files=tuple(of_files), units=tuple(of_units))


def _loaded(units: UnitManager, manifest: Manifest) -> Loaded:
    if not manifest.parts:
        return {}
    ours = [unit for part in manifest.parts.values() for unit in part.units]
    consumers = [name for name in (manifest.consumer, *manifest.former) if name]
    return units.show_each(ours, *_STATES, *_SETTINGS, consumers=consumers)


def _unread(loaded: Loaded) -> list[str]:
    """Return the units whose files have changed since systemd read them, as after a killed run."""
    return [name for name, properties in loaded.items() if properties["NeedDaemonReload"] == "yes"]


def _verify_gate(loaded: Loaded, manifest: Manifest, layout: Layout) -> None:
    """Verify that systemd has loaded the gate's commands, and that no setting bypasses the gate.

    systemd ignores lines that it can't parse, and another drop-in may reset a list.
    """
    for instance, properties in loaded.items():
        if manifest.consumer not in unit_names(instance)[:2]:
            continue
        # A missing or masked unit has no settings to compare. When the unit appears, systemd loads
        # the unit together with our drop-in.
        if properties["LoadState"] in ("not-found", "masked"):
            continue
        environment = environment_names(layout, properties["EnvironmentFiles"])
        hint = f"look at: systemctl cat {instance}"
        if missing := missing_commands(properties):
            what = " and ".join(missing)
            raise UnitError(
                f"the gate doesn't hold {instance}: it lacks {what}; "
                "something overrides zz-hostrouting.conf",
                hint=hint,
            )
        opening = opening_settings(
            properties, is_strict=manifest.is_strict, environment=environment
        )
        if reasons := "; ".join(opening):
            raise UnitError(
                f"the gate doesn't hold {instance}: {reasons}",
                hint=f"fix that, then apply again; {hint}",
            )


_STATES = ("ActiveState", "NeedDaemonReload")
_SETTINGS = ("LoadState", "ExecConditionEx", "ExecStartPreEx", *SETTINGS)


def _remove_links(links: Sequence[Path], host: Host, undo: Undo) -> None:
    """Remove the Go package's symlinks to our oneshots, and verify that no consumer needs them.

    While a consumer requires a oneshot, starting or stopping the oneshot stops the running machine.
    """
    for link in links:
        undo.push(partial(files.link, link, files.target(link)))
        files.remove(link)
        files.remove_empty_folder(link.parent)
    host.units.reload()
    for consumer in {link.parent.name.rpartition(".")[0] for link in links}:
        for instance in host.units.instances(consumer):
            _verify_no_oneshot_is_required(host.units, instance)


def _verify_no_oneshot_is_required(units: UnitManager, instance: str) -> None:
    required = units.show(instance, "Requires")["Requires"].split()
    if f"{ROUTES}.service" in required or f"{CHECK}.service" in required:
        raise UnitError(
            f"{instance} still requires {' '.join(required)} after its links were removed; "
            "touching those units would stop it",
            hint=f"look at: systemctl cat {instance}",
        )


# --- removal --------------------------------------------------------------------------------------


def apply_removals(plan: BootPlan, host: Host, scope: CancelScope) -> Iterator[Changes]:
    """Apply a plan's removals and restart the watcher if it has changed.

    Yields:
        Each change, as soon as it has been made.

    Raises:
        FileError: a file can't be removed. The next run completes the removals.
        UnitError: a systemctl call fails. The next run completes the removals.
    """
    layout = host.layout
    for name in plan.units.stop:
        # The plan lists no oneshot here: a machine of an older installation may still require the
        # oneshot, and would stop with it.
        host.units.stop(f"{name}.service")
        yield _of_unit(name, "stopped")
    if plan.gate.final_list is not None:
        files.write_if_changed(layout.gate_list, plan.gate.final_list.text)
    yield from _remove_from_boot(plan, host, scope)
    removed_last = {layout.manifest, *layout.markers}
    yield from _remove_all(
        plan, layout, [path for path in plan.files.remove if path not in removed_last]
    )
    remove_old_stages(layout)
    if WATCH in plan.manifests.removed_parts:
        _remove_snapshots(layout)
    _remove_folders(layout, plan.manifests.interim)
    yield from _finish_manifest(plan, layout)
    yield from _remove_results(plan, host, scope)
    for name in plan.units.restart:
        host.units.restart(f"{name}.service")
        yield _of_unit(name, "restarted")


def _finish_manifest(plan: BootPlan, layout: Layout) -> Iterator[Changes]:
    """Replace the interim manifest with the new one. If nothing is installed, remove it."""
    manifests = plan.manifests
    if manifests.new.parts:
        if manifests.new != manifests.interim:
            files.write_if_changed(layout.manifest, manifests.new.to_text())
        return
    # A file that can't be accessed may still be there. So the manifest, which lists it, stays.
    if plan.files.access_errors:
        return
    removed = [*_remove_all(plan, layout, [layout.manifest])]
    # A manifest that only this run has written isn't in the plan, and its removal isn't reported.
    if layout.manifest in plan.files.remove:
        yield from removed
    files.remove_empty_folder(layout.manifest.parent)
    _remove_folders(layout, manifests.interim)


# The scripts' temporary files, the unfinished marker of a killed check, and the times at which the
# watcher failed.
_SCRATCH = (
    *(f"{name}.sh.[0-9]*" for name in (ROUTES, CHECK)),
    "route-overlap.[0-9]*",
    "watch-failures",
)


def _remove_results(plan: BootPlan, host: Host, scope: CancelScope) -> Iterator[Changes]:
    """Remove obsolete markers and, if no part is installed, leftovers of killed scripts."""
    layout = host.layout
    markers = [path for path in plan.files.remove if path in layout.markers]
    scratch: list[Path] = []
    if not plan.manifests.new.parts:
        for pattern in _SCRATCH:
            scratch += files.matching(layout.run_dir, pattern)
    if not markers and not scratch:
        return
    # The scripts hold this lock while they create their scratch files. The watcher holds the lock
    # while it decides whether to write the markers.
    with nullcontext() if host.is_image else locked(layout.lock, scope):
        yield from _remove_all(plan, layout, markers)
        for path in scratch:
            files.remove(path)


def _remove_snapshots(layout: Layout) -> None:
    """Remove the snapshots that the watcher may have written before it was stopped."""
    files.remove_litter(*layout.snapshots)
    for path in layout.snapshots:
        files.remove(path)
    files.remove_empty_folder(layout.good.parent)


def _remove_from_boot(plan: BootPlan, host: Host, scope: CancelScope) -> Iterator[Changes]:
    """Remove obsolete drop-ins and then units, and reload systemd."""
    layout = host.layout
    units = host.units
    old = plan.manifests.old
    of_systemd = [path for path in plan.files.remove if path.is_relative_to(layout.units)]
    gates = old.gates(layout)
    drop_ins = [path for path in of_systemd if path in gates]
    yield from _remove_all(plan, layout, drop_ins)
    if drop_ins:
        _wait_for_starts(units, (old.consumer, *old.former), scope)
    for name in plan.manifests.removed_parts:
        units.disable(f"{name}.service")
        if name in plan.units.disable:
            yield _of_unit(name, "disabled")
        # `systemctl disable` doesn't remove dangling symlinks.
        files.remove(layout.enablement(name))
    yield from _remove_all(plan, layout, of_systemd)
    if of_systemd:
        units.reload()


def _of_unit(part: str, action: str) -> Changes:
    return Changes(units=(Change(f"{part}.service", action),))


def _remove_all(plan: BootPlan, layout: Layout, paths: Iterable[Path]) -> Iterator[Changes]:
    planned = {change.what: change for change in plan.changes.files}
    for path in paths:
        what = layout.relative(path)
        if files.remove(path):
            before = planned[what].before if what in planned else None
            yield Changes(files=(Change(what, "removed", before=before),))


# A gate that is being removed has an empty list by now, or only the script that removes our routes.
# The gate script rereads the list before each step, so most starts pass within this time.
_START_WAIT_SECONDS = 15
_START_POLL_SECONDS = 0.1


def _wait_for_starts(units: UnitManager, consumers: Iterable[str], scope: CancelScope) -> None:
    """Wait until no instance is running its pre-start commands, but not for ever.

    systemd may run a command that a reload removes. systemd then skips the commands that follow.
    """
    instances: list[str] = []
    for consumer in filter(None, consumers):
        instances += units.instances(consumer)
    deadline = scope.clock.monotonic() + _START_WAIT_SECONDS
    while any(_is_starting(units, instance) for instance in instances):
        if scope.clock.monotonic() >= deadline:
            return
        scope.progress("waiting for starts that run the gate")
        scope.wait(_START_POLL_SECONDS)


def _is_starting(units: UnitManager, instance: str) -> bool:
    return units.show(instance, "SubState")["SubState"] in ("condition", "start-pre")


# --- the current state ----------------------------------------------------------------------------


_ONLINE = "network-online.target"


def start_oneshots(
    host: Host,
    names: Iterable[str],
    loaded: Loaded | None,
) -> Iterator[Changes]:
    """Start the oneshots that aren't active, without waiting for them.

    The caller must not hold the lock, because the oneshots acquire it.

    Before the network is up, this is a no-op: the boot will start them anyway.

    Args:
        names: names of installed parts.
        loaded: the result of ``prepare``. If all oneshots were active then, systemd isn't asked
            again.

    Yields:
        A change for each unit that was started.

    Raises:
        UnitError: a unit can't be started.
    """
    oneshots = {name: f"{name}.service" for name in names}
    known = loaded or {}
    states = [known.get(unit, {}).get("ActiveState") for unit in oneshots.values()]
    if all(state == "active" for state in states):
        return
    by_unit = host.units.show_each([_ONLINE, *oneshots.values()], "ActiveState")
    if by_unit[_ONLINE]["ActiveState"] not in RUNNING:
        return
    for name, unit in oneshots.items():
        if by_unit[unit]["ActiveState"] not in RUNNING:
            host.units.start(unit)
            yield _of_unit(name, "started")


def is_installed(host: Host, name: str) -> bool:
    """Return whether the manifest lists a part as installed."""
    return name in Manifest.load(host.layout).parts


def requiring_units(host: Host, *names: str) -> dict[str, tuple[str, ...]]:
    """Return the units that require a part's oneshot, and so can't start without it.

    Args:
        names: the names of the parts.

    Returns:
        For each required oneshot, the sorted names of the units that require it.
    """
    requiring = {}
    for unit in (f"{name}.service" for name in names):
        properties = host.units.show(unit, "RequiredBy", "RequisiteOf", "BoundBy")
        if words := " ".join(properties.values()).split():
            requiring[unit] = tuple(sorted(set(words)))
    return requiring


def is_there(host: Host, consumer: str) -> bool:
    """Return whether the consumer's unit or template exists.

    Raises:
        UnitError: systemd can't be queried.
    """
    if host.is_image or unit_files(host.layout, consumer):
        return bool(unit_files(host.layout, consumer))
    instance = consumer.replace("@.", f"@{ANY_INSTANCE}.")
    return host.units.show(instance, "LoadState")["LoadState"] != "not-found"


KUBELET = "kubelet.service"


def has_free_kubelet(host: Host, consumer: str) -> bool:
    """Return whether an ungated kubelet starts at boot, because the consumer is another unit.

    Raises:
        UnitError: systemd can't be queried.
    """
    is_installed = consumer != KUBELET and bool(unit_files(host.layout, KUBELET))
    return is_installed and host.units.is_enabled(KUBELET)


def _remove_folders(layout: Layout, manifest: Manifest) -> None:
    """Remove those folders of the installation that are empty, innermost first."""
    for folder in sorted(map(layout.of, manifest.folders), reverse=True):
        files.remove_empty_folder(folder)


def _write(file: BootFile, undo: Undo) -> None:
    undo.push(partial(put, file.path, files.look_at(file.path)))
    files.write_if_changed(file.path, file.text, mode=file.mode)
