"""Apply the plan for the next boot and verify that the gate is effective.

The order matters: no start may slip past the gate. During installation, the scripts and the list
are replaced together before the drop-ins are written. During removal, the list first loses every
script, except for one that only removes our routes, so that every start passes. Then the drop-ins
are removed, and then the scripts. The manifest is written first and removed last, so it covers
everything that a crash might leave behind. The caller holds the run lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from hostrouting.boot import files
from hostrouting.boot._switch import put, remove_old_stages, switch
from hostrouting.boot.gate import SETTINGS, missing_commands, opening_settings
from hostrouting.boot.host import Host
from hostrouting.boot.installed_units import environment_names, unit_files, unit_names
from hostrouting.boot.layout import CHECK, ROUTES, WATCH, Layout
from hostrouting.boot.locks import locked
from hostrouting.boot.manifest import Manifest
from hostrouting.boot.next_boot import BootPlan
from hostrouting.boot.parts import BootFile
from hostrouting.boot.systemd import ANY_INSTANCE, RUNNING, UnitManager
from hostrouting.model.changes import Change, Changes
from hostrouting.model.errors import UnitError
from phases import CancelScope, Undo

# --- installation ---------------------------------------------------------------------------------


def prepare(plan: BootPlan, host: Host, undo: Undo) -> None:
    """Clean up after killed runs and write the manifest of all current and planned files.

    Args:
        plan: the plan to apply.
        host: the target host.
        undo: collects the rollback steps; the last step added here restores the gate's previous
            scripts.

    Raises:
        FileError: a file can't be written or removed.
        UnitError: a systemctl call fails, or a symlink created by the Go package can't be removed.
    """
    layout = host.layout
    for path in {layout.manifest, *plan.during.files(layout)}:
        files.remove_litter(path)
    if not plan:
        return
    require_systemd(plan, host)
    undo.push(partial(files.remove_empty_folder, layout.manifest.parent))
    if plan.links:
        undo.push(host.units.within(CancelScope()).reload)
        _remove_links(plan.links, host, undo)
    if plan.during.parts:
        _write(BootFile(layout.manifest, plan.during.to_text()), undo)
    undo.push(partial(_remove_folders, layout, plan.during))
    undo.push(
        partial(switch, layout, {file.path: files.look_at(file.path) for file in plan.switched})
    )


def require_systemd(plan: BootPlan, host: Host) -> None:
    """Raise an error if the plan installs something but systemd isn't running.

    Raises:
        UnitError: systemd doesn't answer.
    """
    if plan and plan.is_wanting:
        host.units.is_active(f"{WATCH}.service")


def apply_additions(plan: BootPlan, host: Host, undo: Undo) -> Changes:
    """Write a plan's new and changed files and verify the gate for each of the consumer's instances.

    Args:
        plan: the plan, after ``prepare``.
        host: the target host.
        undo: collects the rollback steps.

    Returns:
        The changes, not including the plan's removals.

    Raises:
        FileError: a file can't be written.
        UnitError: a systemctl call fails, or an instance bypasses the gate.
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
            # On rollback, systemd has to drop the gate's commands before the gate's scripts are
            # removed.
            undo.push(units_back.reload)
        _write(file, undo)
    loaded = {} if is_stale else _loaded(units, plan.during)
    unread = tuple(name for name, shown in loaded.items() if shown["NeedDaemonReload"] == "yes")
    if is_stale or unread:
        units.reload()
    for name in plan.enable:
        undo.push(partial(units_back.disable, f"{name}.service"))
        units.enable(f"{name}.service")
    if plan.is_wanting and plan.after.has_gate:
        if is_stale or unread or plan.enable:
            loaded = _loaded(units, plan.after)
        _see_that_it_holds(loaded, plan.after, layout)
    reloaded = tuple(Change(name, "reloaded") for name in unread)
    gone = {layout.relative(path) for path in plan.remove}
    placed = [change for change in plan.changes.files if change.what not in gone]
    # These files have interim content now. Those that the run removes at the end count as replaced
    # until then.
    written = {layout.manifest, *(file.path for file in plan.switched)}
    placed += [Change(layout.relative(path), "replaced") for path in plan.remove if path in written]
    enabled = (Change(f"{name}.service", "enabled") for name in plan.enable)
    return Changes(files=tuple(placed), units=(*reloaded, *enabled))


def _loaded(units: UnitManager, manifest: Manifest) -> dict[str, dict[str, str]]:
    """Return the properties of our units and of the current and former consumers' units, as systemd has loaded them.

    A unit needs a daemon-reload if an earlier run was killed between writing the files and
    reloading.
    """
    if not manifest.parts:
        return {}
    ours = [unit for part in manifest.parts.values() for unit in part.units]
    consumers = [name for name in (manifest.consumer, *manifest.former) if name]
    return units.show_each(ours, "NeedDaemonReload", *_SETTINGS, consumers=consumers)


def _see_that_it_holds(
    loaded: Mapping[str, Mapping[str, str]], manifest: Manifest, layout: Layout
) -> None:
    """Verify that systemd has loaded the gate's commands unmodified, and that no other setting bypasses the gate.

    systemd ignores lines that it can't parse, and another drop-in may reset a list.
    """
    for instance, shown in loaded.items():
        if manifest.consumer not in unit_names(instance)[:2]:
            continue
        # A missing or masked unit has no settings to compare; our drop-in is loaded along with the
        # unit.
        if shown["LoadState"] in ("not-found", "masked"):
            continue
        environment = environment_names(layout, shown["EnvironmentFiles"])
        if missing := missing_commands(shown):
            why, todo = (
                f"it lacks {' and '.join(missing)}; something overrides zz-hostrouting.conf",
                "",
            )
        elif opening := tuple(
            opening_settings(shown, is_strict=manifest.is_strict, environment=environment)
        ):
            why, todo = "; ".join(opening), "fix that, then apply again; "
        else:
            continue
        raise UnitError(
            f"the gate doesn't hold {instance}: {why}",
            hint=f"{todo}look at: systemctl cat {instance}",
        )


_SETTINGS = ("LoadState", "ExecConditionEx", "ExecStartPreEx", *SETTINGS)


def _remove_links(links: Sequence[Path], host: Host, undo: Undo) -> None:
    """Remove the Go package's symlinks to our oneshots, and verify that no consumer requires a oneshot any more.

    While a consumer requires a oneshot, starting or stopping the oneshot stops the running machine.
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


# --- removal --------------------------------------------------------------------------------------


def apply_removals(plan: BootPlan, host: Host, scope: CancelScope) -> Iterator[Changes]:
    """Apply a plan's removals and restart the watcher if it has changed.

    Args:
        plan: the plan to apply.
        host: the target host.
        scope: cancels waiting for units that are starting.

    Yields:
        Each change, as soon as it has been made.

    Raises:
        FileError: a file can't be removed. The next run picks up from there.
        UnitError: a systemctl call fails. The next run picks up from there.
    """
    layout, units = host.layout, host.units
    for name in plan.stop:
        # Never stop a oneshot: machines from older installations may still have Requires= on it.
        units.stop(f"{name}.service")
        yield _of_unit(name, "stopped")
    if plan.last_list is not None:
        files.write_if_changed(layout.gate_list, plan.last_list.text)
    yield from _remove_from_boot(plan, host, scope)
    markers = [path for path in plan.remove if path in layout.markers]
    kept = {layout.manifest, *markers}
    yield from _remove_all(layout, (path for path in plan.remove if path not in kept))
    remove_old_stages(layout)
    if WATCH in plan.going:
        _remove_snapshots(layout)
    _remove_folders(layout, plan.during)
    if plan.after.parts:
        if plan.after != plan.during:
            files.write_if_changed(layout.manifest, plan.after.to_text())
    elif not plan.unseen:
        # A manifest that this run has reconstructed isn't reported as removed.
        made = list(_remove_all(layout, [layout.manifest]))
        yield from made if layout.manifest in plan.remove else ()
        files.remove_empty_folder(layout.manifest.parent)
        _remove_folders(layout, plan.during)
    scratch = (
        []
        if plan.after.parts
        else [path for each in _SCRATCH for path in files.matching(layout.run_dir, each)]
    )
    if markers or scratch:
        # The watcher holds this lock while it checks whether it should still write the markers, and
        # the scripts hold it while they create their scratch files.
        with nullcontext() if host.is_image else locked(layout.lock, scope):
            yield from _remove_all(layout, markers)
            for path in scratch:
                files.remove(path)
    for name in plan.restart:
        units.restart(f"{name}.service")
        yield _of_unit(name, "restarted")


def _remove_snapshots(layout: Layout) -> None:
    """Remove the snapshots that the watcher may have written before it was stopped."""
    for path in layout.snapshots:
        files.remove_litter(path)
        files.remove(path)
    files.remove_empty_folder(layout.good.parent)


# Files that pass data between scripts, awk and ip, a killed check's unfinished marker, and the
# times of the watcher's failures.
_SCRATCH = (
    *(f"{name}.sh.[0-9]*" for name in (ROUTES, CHECK)),
    "route-overlap.[0-9]*",
    "watch-failures",
)


def _remove_from_boot(plan: BootPlan, host: Host, scope: CancelScope) -> Iterator[Changes]:
    """Remove obsolete drop-ins and then units, and reload systemd."""
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
        # `systemctl disable` doesn't remove dangling symlinks.
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


# When the gate is uninstalled, its list is empty by now, or has only the script that removes our
# routes. So a gate that starts now soon admits its unit. Each run of a gate through its list ends
# within 20 s.
_START_WAIT_SECONDS = 15
_START_POLL_SECONDS = 0.1


def _wait_for_starts(units: UnitManager, consumers: Iterable[str], scope: CancelScope) -> None:
    """Wait until no instance is running its pre-start commands, but for at most 15 s.

    If systemd reloads while a removed command is running, it skips the commands after that one.
    """
    instances = [
        instance for consumer in consumers if consumer for instance in units.instances(consumer)
    ]
    deadline = scope.clock.monotonic() + _START_WAIT_SECONDS
    while any(
        units.show(instance, "SubState")["SubState"] in ("condition", "start-pre")
        for instance in instances
    ):
        if scope.clock.monotonic() >= deadline:
            return
        scope.progress("waiting for starts that run the gate")
        scope.wait(_START_POLL_SECONDS)


# --- the current state ----------------------------------------------------------------------------


_ONLINE = "network-online.target"


def start_oneshots(host: Host, names: Iterable[str]) -> Iterator[Changes]:
    """Start the oneshots that aren't active, without waiting for them.

    The caller must not hold the lock, because the oneshots acquire it.

    If the network isn't up yet, this is a no-op: the boot transaction starts them later, and a job
    from us would wait for the network as well.

    Args:
        host: the target host.
        names: names of installed parts.

    Yields:
        One change per started unit.

    Raises:
        UnitError: a unit can't be started.
    """
    oneshots = {name: f"{name}.service" for name in names}
    if not oneshots:
        return
    shown = host.units.show_each([_ONLINE, *oneshots.values()], "ActiveState")
    if shown[_ONLINE]["ActiveState"] not in RUNNING:
        return
    for name, unit in oneshots.items():
        if shown[unit]["ActiveState"] not in RUNNING:
            host.units.start(unit)
            yield _of_unit(name, "started")


def is_installed(host: Host, name: str) -> bool:
    """Return whether the manifest lists a part as installed."""
    return name in Manifest.load(host.layout).parts


def requiring_units(host: Host, *names: str) -> dict[str, tuple[str, ...]]:
    """Return the units that require a part's oneshot and so can't start once it's removed.

    Args:
        host: the target host.
        names: names of parts.

    Returns:
        For each required oneshot, the sorted names of the units that require it.
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
    if host.is_image or unit_files(host.layout, consumer):
        return bool(unit_files(host.layout, consumer))
    instance = consumer.replace("@.", f"@{ANY_INSTANCE}.")
    return host.units.show(instance, "LoadState")["LoadState"] != "not-found"


KUBELET = "kubelet.service"


def has_free_kubelet(host: Host, consumer: str) -> bool:
    """Return whether a kubelet starts on the host at boot without being gated, because it isn't the consumer.

    Raises:
        UnitError: systemd can't be queried.
    """
    return (
        consumer != KUBELET
        and bool(unit_files(host.layout, KUBELET))
        and host.units.is_enabled(KUBELET)
    )


def _remove_folders(layout: Layout, manifest: Manifest) -> None:
    """Remove the folders that the installation created, innermost first, skipping any that aren't empty."""
    for folder in sorted(map(layout.of, manifest.folders), reverse=True):
        files.remove_empty_folder(folder)


def _write(file: BootFile, undo: Undo) -> None:
    undo.push(partial(put, file.path, files.look_at(file.path)))
    files.write_if_changed(file.path, file.text, mode=file.mode)
