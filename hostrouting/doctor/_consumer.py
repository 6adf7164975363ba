"""Check that the consumer exists, may start, runs the gate in order, and recovers after a fix."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from hostrouting.boot import files
from hostrouting.boot.break_glass import ARGUMENT, why_open
from hostrouting.boot.gate import DROP_INS, missing_commands, opening_settings, seconds_of
from hostrouting.boot.installation import KUBELET, has_free_kubelet, is_there
from hostrouting.boot.installed_units import UNIT_PATH, drop_ins, environment_names, settings
from hostrouting.boot.layout import GATE_NAMES, SEARCH_PATH, Layout
from hostrouting.boot.trial_timer import trial_deadline
from hostrouting.doctor._files import changed_gate_files
from hostrouting.doctor.check_types import DoctorFinding, ExaminedHost, Severity
from hostrouting.kernel.default_routes import unicast_defaults
from hostrouting.kernel.port import read_default_routes
from hostrouting.model.errors import FileError, RouteError, UnitError
from hostrouting.model.links import is_infiniband
from hostrouting.overlap.check import check_families
from hostrouting.overlap.findings import Note, NoteKind, UnknownReason, Verdict
from hostrouting.overlap.lasting import advice_on_printed, lasting_file
from hostrouting.overlap.summary import reasons


def consumer(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that the consumer's unit exists and can be started."""
    unit = examined.consumer
    if not is_there(examined.host, unit):
        message = "there is no such unit, so nothing is held back"
        hint = (
            f"name the unit that runs it as consumer in CONFIG, then: {examined.command('apply')}"
        )
        yield DoctorFinding("no-consumer", unit, message, hint)
    if has_free_kubelet(examined.host, unit):
        message = f"it starts at boot, and nothing holds it back: the consumer is {unit}"
        hint = (
            f"set hostRouting.consumer in CONFIG to {KUBELET} if it is the node, then: "
            f"{examined.command('apply')}"
        )
        yield DoctorFinding("not-held", KUBELET, message, hint, Severity.RISK)
    for name, properties in examined.units_of_consumer.items():
        if properties["LoadState"] == "masked":
            message = "it is masked: it doesn't start, whatever the gate says"
            yield DoctorFinding("masked", name, message, f"systemctl unmask {name}", Severity.RISK)


_SEVERAL = 2

# The reasons that a change of the config may fix.
_OF_CONFIG = (UnknownReason.CONTESTED_DEFAULT, UnknownReason.NO_UPLINK, UnknownReason.SWAPPED)


def verdict(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that the overlap check passes now with the installed config."""
    config = examined.manifest.config
    if not config.route_overlap.expected_cidrs:
        message = "no CIDR is expected, so no start of it is checked"
        hint = (
            "name the cluster's CIDRs in CONFIG as routeOverlap.expectedCidrs, then: "
            f"{examined.command('apply')}"
        )
        yield DoctorFinding("nothing-expected", examined.consumer, message, hint, Severity.RISK)
        return
    if trial_deadline(examined.layout.trial) is not None:
        message = (
            "a start ends the trial of routes first, "
            "so the kernel doesn't have the routes that decide it now"
        )
        hint = "hostrouting confirm, or hostrouting revert; then: hostrouting check"
        yield DoctorFinding("unjudged", examined.consumer, message, hint, Severity.UNKNOWN)
        return
    next_start = _next_start(examined)
    report = examined.report
    if report.verdict is Verdict.UNKNOWN:
        message = f"{next_start}: the check can't judge: {report.reason}"
        severity = Severity.BROKEN if examined.manifest.is_strict else Severity.UNKNOWN
        then = "hostrouting check"
        if report.reason_kind in _OF_CONFIG:
            then = examined.command("apply")
        hint = "\n".join((f"fix that, then: {then}", *_snapshots(examined)))
        yield DoctorFinding("unjudged", examined.consumer, message, hint, severity)
    examined.scope.check()
    yield from _doubtful_uplinks(examined)
    yield from _shadowed(examined, next_start)
    yield from _unrecorded(examined)
    yield from _printed(examined)


def _doubtful_uplinks(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Yield a finding for each note that puts the uplinks in doubt."""
    for note in examined.report.notes:
        if note.kind is NoteKind.MOVED:
            hint = "hostrouting check"
            yield DoctorFinding("moved", examined.consumer, note.message, hint, Severity.RISK)
        if note.kind is NoteKind.CONTESTED and note.cidr is not None:
            hint = "hostrouting check"
            yield DoctorFinding("contested", examined.consumer, note.message, hint, Severity.RISK)
        elif note.kind is NoteKind.CONTESTED and _asks_for_uplinks(note, examined):
            yield _contested(note.message, examined, is_lost=_has_lost_default(note, examined))
    if message := _told_by_the_record(examined):
        yield _contested(message, examined)


def _contested(message: str, examined: ExaminedHost, *, is_lost: bool = False) -> DoctorFinding:
    """Return the finding that the uplinks are in doubt.

    Args:
        message: which interfaces may be the uplinks.
        examined: the host.
        is_lost: whether the named uplinks may be right, and have lost their default route.
    """
    apply = examined.command("apply")
    installed = examined.manifest.config.uplinks
    hint = f"name the node's uplinks in CONFIG as hostRouting.uplinks, then: {apply}"
    if examined.config.uplinks not in (None, installed):
        hint = f"CONFIG names other uplinks than the installed config: {apply}"
    elif is_lost:
        devs = ",".join(examined.report.default_devs)
        hint = (
            f"if {devs} leads to the cluster, add its default route again in the network manager's "
            "configuration or at the DHCP server; if not, name the uplinks that do in CONFIG as "
            f"hostRouting.uplinks, then: {apply}"
        )
    return DoctorFinding("contested", examined.consumer, message, hint, Severity.RISK)


def _told_by_the_record(examined: ExaminedHost) -> str:
    """Return that only the record tells which of several default routes is the uplink's, or "".

    The first check that passed has recorded the interface of the default route that won then.
    Nothing has shown that it is the right one.
    """
    config = examined.manifest.config
    report = examined.report
    has_moved = any(note.kind is NoteKind.MOVED for note in report.notes)
    if config.uplinks is not None or report.verdict is Verdict.UNKNOWN or has_moved:
        return ""
    defaults = unicast_defaults(read_default_routes(examined.host.routes))
    if len({route.devs for route in defaults}) < _SEVERAL:
        return ""
    bare = check_families(config, examined.host.routes_of, examined.scope)
    new = (note for note in bare.notes if note not in report.notes)
    contested = [note.message for note in new if note.kind is NoteKind.CONTESTED]
    if bare.reason_kind is UnknownReason.CONTESTED_DEFAULT:
        contested.append(bare.reason_detail)
    devs = ",".join(report.default_devs)
    why = "the check first passed with it"
    return f"{devs} is the uplink only because {why}; {contested[0]}" if contested else ""


def _asks_for_uplinks(note: Note, examined: ExaminedHost) -> bool:
    """Return whether a note means that the config should name uplinks, or other uplinks than now.

    A note about uplinks that the config names counts only in one case: these uplinks are InfiniBand
    interfaces, and other uplinks are NICs.
    """
    devs = {*examined.report.default_devs}
    if examined.manifest.config.uplinks is None or devs.isdisjoint(note.devs):
        return True
    fabric = _infiniband(examined)
    return fabric.issuperset(note.devs) and not fabric.issuperset(devs)


def _has_lost_default(note: Note, examined: ExaminedHost) -> bool:
    """Return whether a note is about named NICs without a default route, next to one that has."""
    devs = {*examined.report.default_devs}
    is_named = examined.manifest.config.uplinks is not None
    return is_named and devs.isdisjoint(note.devs) and not devs <= _infiniband(examined)


def _infiniband(examined: ExaminedHost) -> set[str]:
    return {link.name for link in examined.host.routes.facts().links if is_infiniband(link)}


def _unrecorded(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Yield a finding if no uplink is recorded, and only the default route tells the uplink."""
    config = examined.manifest.config
    if not (config.verifies_uplinks and examined.manifest.is_strict) or config.uplinks is not None:
        return
    # A record that can't be read leaves no verdict. Another finding then names the error.
    with suppress(FileError):
        if examined.host.verified:
            return
        message = (
            "no uplink is recorded, so whichever default route comes first or wins tells the uplink"
        )
        hint = f"{examined.repairing('apply')} records the uplink with which the check passes"
        yield DoctorFinding("no-record", examined.consumer, message, hint, Severity.RISK)


def _printed(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Yield a finding if anything is left of what ``fix --format ip`` printed."""
    report = examined.report
    if report.verdict is Verdict.UNKNOWN:
        return
    is_named = examined.given is not None and examined.config_name not in ("", "CONFIG")
    config = examined.config if is_named else examined.manifest.config
    given = examined.config_name if is_named else ""
    file = lasting_file(examined.host, given, config)
    if advice := advice_on_printed(config, examined.host, file, report, examined.scope):
        yield DoctorFinding("not-lasting", examined.consumer, *advice, Severity.RISK)


UNPREDICTED = "whether its next start is held isn't known"


def _next_start(examined: ExaminedHost) -> str:
    """Return a clause that says whether the gate admits the next start after a failed check."""
    changed = changed_gate_files(examined)
    why = why_open(examined.layout)
    if why and examined.layout.relative(examined.layout.gate_script) not in changed:
        return f"its next start is let through unchecked, because {why}"
    if changed and not _bare_instances(examined):
        return f"{UNPREDICTED}, because {' and '.join(changed)} isn't as installed"
    is_strict = examined.manifest.is_strict
    is_admitted = _is_admitted(examined)
    if is_admitted and not is_strict:
        return "its next start is let through, because the mode is WARN"
    if bare := _bare_instances(examined):
        called = " ".join(map(examined.called, bare))
        return f"nothing holds the next start of {called}, as its gate is overridden"
    if is_admitted:
        return "its next start is let through, because it first installs the routes"
    held = "its next start is held back"
    if not is_strict:
        held += " although the mode is WARN, because the static routes can't take effect"
    return held


def _is_admitted(examined: ExaminedHost) -> bool:
    try:
        return bool(examined.next_start.is_admitted)
    except (RouteError, FileError):  # the doctor's check ``routes`` reports what can't be read
        return False


def _shadowed(examined: ExaminedHost, next_start: str) -> Iterator[DoctorFinding]:
    """Yield a finding for each failure. The hint says how to fix the failure, or why it can't."""
    if not examined.report.findings:
        return
    after_apply = examined.report
    with suppress(RouteError):  # ``routes`` reports why routes can't be installed
        after_apply = examined.report_after_apply
    fixable = {finding.cidr for finding in after_apply.findings if finding.fix or finding.rules}
    for finding in examined.report.findings:
        lines = reasons(after_apply, finding.cidr)
        if finding.cidr in fixable:
            what = "the rest" if lines else "it"
            lines.append(f"{examined.command('fix')} prints what fixes {what}")
        if not lines:
            lines = [_applying(examined)]
        hint = "\n".join((*lines, *_snapshots(examined)))
        message = f"{next_start}: {finding.message}"
        yield DoctorFinding("shadowed", examined.consumer, message, hint)


def _applying(examined: ExaminedHost) -> str:
    """Return the command that installs the routes of CONFIG, which fix a failure.

    If the installed routes fix it, too, the command leaves the installed config as it is.
    """
    is_installed = examined.given is None or _is_admitted(examined)
    return examined.repairing("apply") if is_installed else examined.command("apply")


def _snapshots(examined: ExaminedHost) -> list[str]:
    """Return a line with the command that compares the watcher's two snapshots, if both exist."""
    paths = examined.layout.snapshots
    if not all(map(files.exists, paths)):
        return []
    names = " ".join(map(examined.layout.relative, paths))
    return [f"what has changed since it was ok: hostrouting diff {names}"]


def _bare_instances(examined: ExaminedHost) -> list[str]:
    try:
        return [
            instance
            for instance, properties in examined.instances.items()
            if missing_commands(properties)
        ]
    except UnitError:  # the doctor's check ``gate`` reports this error
        return []


# Within this time, the gate lets a start through. A start that takes longer is held.
_LOOK_SECONDS = 3


def held(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Find starts that the gate is currently holding."""
    for instance, properties in examined.instances.items():
        began = int(properties["InactiveExitTimestampMonotonic"] or 0) / 1e6
        seconds = time.clock_gettime(time.CLOCK_MONOTONIC) - began
        if properties["SubState"] == "condition" and seconds > _LOOK_SECONDS:
            message = (
                f"its start has been held for {seconds:.0f} s; it continues by itself after the fix"
            )
            yield DoctorFinding(
                "held",
                instance,
                message,
                f"journalctl -u {instance} says what it waits for",
            )


# --- the gate -------------------------------------------------------------------------------------


def gate(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that every consumer instance runs the gate on start and can't bypass it."""
    if examined.host.is_image:
        yield from _gate_of_image(examined)
    for instance, properties in examined.instances.items():
        called = examined.called(instance)
        if missing := missing_commands(properties):
            message = f"it starts without being held back: it lacks {' and '.join(missing)}"
            yield DoctorFinding(
                "gate-overridden",
                called,
                message,
                _hint(examined, instance, properties),
            )
        environment = environment_names(examined.layout, properties["EnvironmentFiles"])
        for clause in opening_settings(
            properties,
            is_strict=examined.manifest.is_strict,
            environment=environment,
        ):
            yield DoctorFinding(
                "gate-disobeyed",
                called,
                clause,
                f"look at: systemctl cat {instance}",
            )
        unread = _unread(examined, instance, properties)
        if properties["NeedDaemonReload"] == "yes" or unread:
            # Before systemd has loaded changed files, their effect can't be checked.
            what = " and ".join(unread) or "one of its files"
            message = (
                f"systemd hasn't read {what} as it is now: "
                "whether the gate holds at the next boot can't be seen"
            )
            hint = "systemctl daemon-reload; hostrouting doctor"
            if _is_edited(examined):
                hint = examined.writing_anew  # this command also reloads the units
            yield DoctorFinding("not-reloaded", called, message, hint, Severity.UNKNOWN)


def _gate_of_image(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Find the drop-ins that open the gate by reading files, because an image has no systemd."""
    units = {examined.consumer}
    prefix, _, suffix = examined.consumer.partition("@.")
    if suffix:
        for path in UNIT_PATH:
            folders = files.matching(examined.layout.of(path), f"{prefix}@*.{suffix}.d")
            units |= {folder.name.removesuffix(".d") for folder in folders}
    for unit in sorted(units):
        for why, hint in _opening_drop_ins(examined, unit):
            yield DoctorFinding("gate-overridden", unit, f"{why}: the gate doesn't hold", hint)


def _opening_drop_ins(examined: ExaminedHost, unit: str) -> Iterator[tuple[str, str]]:
    """Yield a description and a fix for each drop-in that disables a drop-in of ours."""
    layout = examined.layout
    read = drop_ins(layout, unit)
    for ours in layout.gates(examined.consumer):
        if (there := read.get(ours.name, ours)) != ours:
            name = layout.relative(there)
            yield f"{name} takes the place of {layout.relative(ours)}", f"rm {name}"
    for path in read.values():
        name = layout.relative(path)
        if lists := " and ".join(_emptied_lists(layout, path)):
            yield f"{name} empties {lists}", f"take the empty {lists} out of {name}"


# Map each setting that contains our commands to the last of our drop-ins that sets it. A later
# drop-in that empties the setting removes our commands.
_LISTS = dict(zip(("ExecCondition", "ExecStartPre"), GATE_NAMES, strict=True))


def _emptied_lists(layout: Layout, path: Path) -> list[str]:
    """Return the settings that a drop-in empties after our drop-ins have filled them."""
    text = files.read_text(layout.followed(layout.relative(path))) or ""
    emptied = [key for key, value in settings(text) if key in _LISTS and not value]
    return [f"{key}=" for key in emptied if path.name > _LISTS[key]]


def _is_edited(examined: ExaminedHost) -> bool:
    """Return whether our drop-ins have been modified."""
    gates = examined.layout.gates(examined.consumer)
    return any(files.read_text(path) != text for path, text in zip(gates, DROP_INS, strict=True))


def _hint(examined: ExaminedHost, instance: str, properties: Mapping[str, str]) -> str:
    if _is_edited(examined):
        return examined.writing_anew
    if properties["NeedDaemonReload"] == "yes":
        return "systemctl daemon-reload"
    hints = [hint for _, hint in _opening_drop_ins(examined, instance)]
    if not hints:
        hints.append(f"look at: systemctl cat {instance}")
    return "; ".join([*hints, "then: systemctl daemon-reload"])


def _unread(examined: ExaminedHost, instance: str, properties: Mapping[str, str]) -> list[str]:
    """Return existing drop-ins that systemd hasn't loaded yet.

    In systemd 252, NeedDaemonReload doesn't report drop-ins in new folders.
    """
    read = {_below_usr(path) for path in properties["DropInPaths"].split()}
    names = {PurePosixPath(path).name for path in read}
    return [
        examined.layout.relative(path)
        for name, path in drop_ins(examined.layout, instance).items()
        # An empty drop-in or a symlink to /dev/null matters only if it hides a loaded drop-in.
        if _below_usr(examined.layout.relative(path)) not in read
        and (name in names or files.read_text(path))
    ]


def _below_usr(path: str) -> str:
    """Return a path without the ``/usr`` of ``/usr/lib``, because /lib may be the same folder."""
    return path.removeprefix("/usr") if path.startswith("/usr/lib/") else path


def break_glass(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that the gate hasn't been left open."""
    why = why_open(examined.layout)
    off = examined.layout.relative(examined.layout.gate_off)
    if why and ARGUMENT in why:
        message = f"{why}: every start is admitted unchecked until the next boot"
        hint = f"take {ARGUMENT} out of the boot loader's kernel arguments"
        yield DoctorFinding("gate-off", "/proc/cmdline", message, hint)
    elif why:
        message = "as long as it is there every start is admitted unchecked"
        yield DoctorFinding("gate-off", off, message, f"rm {off}")


_NETWORKS = ("PrivateNetwork", "NetworkNamespacePath")
_ROOTS = ("RootDirectory", "RootImage")
_MOUNTS = ("BindPaths", "BindReadOnlyPaths", "TemporaryFileSystem")


def sight(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that the gate sees the host's network and files when it runs in the consumer's unit.

    The gate's commands have the prefix "+", but still run in the unit's mount namespace.
    """
    for instance, properties in examined.instances.items():
        for setting in _hiding_settings(examined, properties):
            kind = "own-files"
            what = "files"
            if setting.startswith(_NETWORKS):
                kind = "own-network"
                what = "a network namespace"
            message = (
                f"its gate sees {what} of its own, not the host's ({setting}): "
                "a healthy node may be held back, or a shadowed one let through"
            )
            hint = f"remove it, or let the unit's program do it instead: systemctl cat {instance}"
            yield DoctorFinding(kind, examined.called(instance), message, hint)


def _hiding_settings(examined: ExaminedHost, properties: Mapping[str, str]) -> Iterator[str]:
    for key in (*_NETWORKS, *_ROOTS):
        if properties[key] not in ("", "no"):
            yield f"{key}={properties[key]}"
    for key in _MOUNTS:
        for word in properties[key].split():
            if _hides(examined, key, word):
                yield f"{key}={word}"


def _hides(examined: ExaminedHost, key: str, word: str) -> bool:
    """Return whether one of the unit's mounts hides a path that the gate uses.

    For example, ``BindPaths=/srv/etc:/etc`` hides the config in /etc.

    Args:
        key: the name of the setting, one of ``_MOUNTS``.
        word: one mount of the setting: ``SOURCE[:DESTINATION[:OPTIONS]]``, or without a source if
            the setting is TemporaryFileSystem= (see systemd.exec(5)).
    """
    source, *more = word.removeprefix("-").split(":")
    is_empty = key == "TemporaryFileSystem"
    destination = more[0] if more and not is_empty else source
    shows_same_files = destination == source and not is_empty
    if shows_same_files and key == "BindPaths":
        return False
    return _hides_needed(destination, examined.layout, hides_programs=not shows_same_files)


def _hides_needed(destination: str, layout: Layout, *, hides_programs: bool) -> bool:
    """Return whether a mount at a destination hides a path that the gate uses.

    Args:
        hides_programs: whether programs at the destination can't be run any more. A destination
            that is mounted onto itself, even read-only, doesn't hide its programs.
    """
    mounted = layout.of(destination).resolve()
    ours = (layout.manifest.parent, layout.config.parent, layout.run_dir)
    needed = [folder.resolve() for folder in ours]
    if any(mounted.is_relative_to(folder) for folder in needed):
        return True
    if hides_programs:
        needed += _used(layout)
    return any(path.is_relative_to(mounted) for path in needed)


# The programs that the scripts run.
_PROGRAMS = (
    *(
        "awk",
        "bash",
        "busybox",
        "cat",
        "env",
        "flock",
        "gawk",
        "ip",
        "mawk",
        "mkdir",
        "mv",
        "rm",
        "sleep",
        "sort",
    ),
    *("systemctl", "tail", "test", "timeout"),
)
# The paths that the scripts and their programs read, or the folders of these paths.
_READ = (
    *(
        "/dev/fd",
        "/dev/null",
        "/lib",
        "/lib64",
        "/proc/1",
        "/proc/cmdline",
        "/proc/self",
        "/proc/uptime",
    ),
    "/usr/lib",
)


def _used(layout: Layout) -> Iterator[Path]:
    yield from map(layout.of, _READ)
    for folder in SEARCH_PATH.split(":"):
        for program in _PROGRAMS:
            path = layout.of(f"{folder}/{program}")
            yield from (path, path.resolve())


# --- the order ------------------------------------------------------------------------------------


def ordering(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that the consumer is ordered after the oneshots and that there is no ordering cycle."""
    for instance, properties in examined.instances.items():
        early = [unit for unit in examined.oneshots if unit not in properties["After"].split()]
        if early:
            message = (
                f"it doesn't start after {' '.join(early)}, "
                "so at boot nothing waits for the network before the gate"
            )
            hint = "systemctl daemon-reload, and if that doesn't help: hostrouting apply"
            yield DoctorFinding(
                "not-ordered",
                examined.called(instance),
                message,
                hint,
                Severity.RISK,
            )
    ours = [*examined.oneshots, *examined.instances]
    cycle = find_cycle(examined.units.orderings(*ours), ours)
    if cycle:
        message = (
            f"it starts after itself: {' after '.join((*cycle, cycle[0]))}; "
            "at each boot systemd drops the start of one of them, not always of the same one"
        )
        hint = f"remove one After= or Before=: systemctl cat {' '.join(cycle)}"
        yield DoctorFinding("ordering-cycle", cycle[0], message, hint, Severity.RISK)


def find_cycle(after: Mapping[str, Iterable[str]], through: Iterable[str]) -> tuple[str, ...]:
    """Return an ordering cycle through one of the given units, as short as possible.

    systemd breaks a cycle by dropping the job of one unit. The unit may be a different one at each
    boot, and systemd doesn't always log it.

    Args:
        after: for each unit, the units it is ordered after.
        through: the cycle must contain at least one of these units.

    Returns:
        The units of the cycle. Each unit is ordered after the next, and the last unit after the
            first. If there is no cycle, the tuple is empty.
    """
    for start in through:
        seen = {start}
        paths: list[tuple[str, ...]] = [(start,)]
        for path in paths:  # the list grows in the loop
            for unit in sorted(after.get(path[-1], ())):
                if unit == start:
                    return path
                if unit not in seen:
                    seen.add(unit)
                    paths.append((*path, unit))
    return ()


# --- the effects of the oneshots, and recovery ----------------------------------------------------


# systemd.unit(5)
_NEEDING = ("Requires", "Requisite", "BindsTo")
_STOPPED_BY = ("PartOf", "StopPropagatedFrom")
_CONFLICTING = ("Conflicts", "ConflictedBy")
_TYING = (*_NEEDING, *_STOPPED_BY, *_CONFLICTING)


def ties(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that stopping or starting a oneshot can't stop the consumer or prevent its start."""
    for instance, properties in examined.instances.items():
        for unit in examined.oneshots:
            keys = [key for key in _TYING if unit in properties[key].split()]
            if not keys:
                continue
            tied = " and ".join(f"{key}={unit}" for key in keys)
            message = f"{tied}: {', '.join(_costs(unit, keys))}"
            hint = (
                f"remove it from the files that systemctl cat {instance} shows, and remove the "
                "links that this finds: find /etc/systemd /run/systemd /usr/lib/systemd -path "
                f"'*.requires/{unit}'; the gate and its Wants= make it unnecessary; then: "
                "systemctl daemon-reload"
            )
            yield DoctorFinding("tied", examined.called(instance), message, hint, Severity.RISK)


def _costs(oneshot: str, keys: Iterable[str]) -> Iterator[str]:
    """Yield the consequences of the properties that tie the consumer's unit to a oneshot."""
    tied = {*keys}
    if not tied.isdisjoint((*_NEEDING, *_STOPPED_BY)):
        yield f"stopping or restarting {oneshot} stops this unit too"
    if not tied.isdisjoint(_CONFLICTING):
        yield f"starting {oneshot} stops this unit, and vice versa"
    if not tied.isdisjoint(_NEEDING):
        yield "a start that fails because of it isn't retried by Restart="
        yield "after hostrouting remove, a start is refused"


# How long the gate holds a start at least before refusing it (HOLD_SECONDS in gate.sh), and the
# exit status of a refusal.
_HOLD_SECONDS = 3
_FAILS_WITH = "255"


def restarts(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that the consumer recovers by itself once a problem is fixed."""
    found: dict[tuple[str, str], list[str]] = {}
    for instance, properties in examined.instances.items():
        if why := _why_it_stays_down(properties):
            found.setdefault(why, []).append(examined.called(instance))
    folder = f"/etc/systemd/system/{examined.consumer}.d"
    for (because, lines), names in found.items():
        message = (
            f"once a held start has timed out, it stays down until it is started by hand: {because}"
        )
        hint = (
            f"mkdir -p {folder}; printf '{lines}\\n' >>{folder}/zz-restart.conf; "
            "systemctl daemon-reload"
        )
        # A template's drop-in also applies to its instances.
        subject = examined.consumer if examined.consumer in names else ", ".join(names)
        yield DoctorFinding("no-restart", subject, message, hint, Severity.RISK)


def _why_it_stays_down(properties: Mapping[str, str]) -> tuple[str, str] | None:
    """Return why a failed unit isn't restarted, and the drop-in lines that fix this, or None."""
    if properties["Restart"] not in ("on-failure", "always"):  # systemd.service(5)
        is_set = properties["Restart"] not in ("", "no")
        because = f"Restart={properties['Restart']}" if is_set else "it has no Restart="
        return because, r"[Service]\nRestart=on-failure"
    prevents = properties["RestartPreventExitStatus"].split()
    if _FAILS_WITH in prevents:
        because = f"RestartPreventExitStatus= holds {_FAILS_WITH}, with which the gate fails"
        others = [each for each in prevents if each != _FAILS_WITH]
        lists = ["", " ".join(others)] if others else [""]
        return because, r"\n".join(["[Service]", *map("RestartPreventExitStatus={}".format, lists)])
    if _reaches_start_limit(properties):
        because = (
            f"after {properties['StartLimitBurst']} starts in "
            f"{properties['StartLimitIntervalUSec']} systemd gives up (StartLimitBurst=)"
        )
        return because, r"[Unit]\nStartLimitIntervalSec=0"
    return None


def _reaches_start_limit(properties: Mapping[str, str]) -> bool:
    """Return whether a unit that the gate refuses again and again reaches its start limit."""
    interval = seconds_of(properties["StartLimitIntervalUSec"])
    burst = int(properties["StartLimitBurst"] or 0)
    if not interval or not burst:
        return False
    return burst * (_HOLD_SECONDS + seconds_of(properties["RestartUSec"])) <= interval
