"""Does the gate hold, and in what order does everything start?"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from hostrouting.boot import files
from hostrouting.boot.examination import Fault, Severity
from hostrouting.boot.gate import missing_commands, opening_settings
from hostrouting.boot.manifest import CHECK
from hostrouting.boot.unit_files import drop_ins
from hostrouting.doctor.cycles import find_cycle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostrouting.boot.examination import ExaminedHost

__all__ = ["break_glass", "gate", "ordering", "sight"]


def gate(examined: ExaminedHost) -> Iterator[Fault]:
    """Every instance of the consumer runs the gate before its process starts, and obeys it; also at the next boot."""
    ours = examined.name(examined.layout.gate(examined.consumer))
    check = examined.manifest.parts.get(CHECK)
    is_strict = check is not None and check.is_blocking
    for instance, shown in examined.instances.items():
        missing = missing_commands(shown)
        if missing:
            message = f"it starts without being held back: it lacks {' and '.join(missing)}"
            yield Fault("gate-overridden", examined.called(instance), message, _remedy(instance, shown, ours))
        for clause in opening_settings(shown, is_strict=is_strict):
            yield Fault("gate-disobeyed", examined.called(instance), clause, f"look at: systemctl cat {instance}")
        unread = _unread(examined, instance, shown)
        if shown["NeedDaemonReload"] == "yes" or unread:
            # What they would make of it only systemd can tell, and it does once it has read them.
            what = " and ".join(unread) or "one of its files"
            yield Fault(
                "not-reloaded",
                examined.called(instance),
                f"systemd hasn't read {what} as it is now: whether the gate holds at the next boot can't be seen",
                "systemctl daemon-reload; hostrouting doctor",
                Severity.UNKNOWN,
            )


def _remedy(instance: str, shown: Mapping[str, str], ours: str) -> str:
    if shown["NeedDaemonReload"] == "yes":
        return "systemctl daemon-reload"
    later = [path for path in shown["DropInPaths"].split() if _basename(path) > _basename(ours)]
    lists = "ExecCondition= and ExecStartPre="
    culprits = f"take {lists} out of {' '.join(later)}" if later else f"look at: systemctl cat {instance}"
    return f"{culprits}; then: systemctl daemon-reload"


def _unread(examined: ExaminedHost, instance: str, shown: Mapping[str, str]) -> list[str]:
    """The drop-ins that would be read now and weren't: systemd 252 doesn't see those in new folders by itself."""
    read = {_below_usr(path) for path in shown["DropInPaths"].split()}
    names = {_basename(path) for path in read}
    paths = [examined.name(path) for path in drop_ins(examined.layout, instance).values()]
    # One that is empty, or leads to /dev/null, only masks its namesakes.
    return [
        path
        for path in paths
        if _below_usr(path) not in read and (_basename(path) in names or files.read_text(examined.layout.of(path)))
    ]


def _below_usr(path: str) -> str:
    """/lib and /usr/lib are one folder, or the first has what the second lacks."""
    return path.removeprefix("/usr") if path.startswith("/usr/lib/") else path


def _basename(path: str) -> str:
    return path.rpartition("/")[2]


def ordering(examined: ExaminedHost) -> Iterator[Fault]:
    """The consumer starts after the oneshots, and in no cycle."""
    units = [f"{name}.service" for name in examined.gated]
    for instance, shown in examined.instances.items():
        early = [unit for unit in units if unit not in shown["After"].split()]
        if early:
            yield Fault(
                "not-ordered",
                examined.called(instance),
                f"it doesn't start after {' '.join(early)}, so at boot nothing waits for the network before the gate",
                "systemctl daemon-reload, and if that doesn't help: hostrouting apply",
                Severity.RISK,
            )
    cycle = find_cycle(examined.units.orderings(*units, *examined.instances), [*units, *examined.instances])
    if cycle:
        yield Fault(
            "ordering-cycle",
            cycle[0],
            f"it starts after itself: {' after '.join((*cycle, cycle[0]))}; at each boot systemd drops the start of "
            "one of them, not always of the same one",
            f"take one After= or Before= away: systemctl cat {' '.join(cycle)}",
            Severity.RISK,
        )


_NETWORKS = ("PrivateNetwork", "NetworkNamespacePath")
_ROOTS = ("RootDirectory", "RootImage")
_MOUNTS = ("BindPaths", "BindReadOnlyPaths", "TemporaryFileSystem")


def sight(examined: ExaminedHost) -> Iterator[Fault]:
    """The consumer's gate sees the host's network and files; "+" doesn't lift what a unit mounts."""
    for instance, shown in examined.instances.items():
        settings = [f"{key}={shown[key]}" for key in (*_NETWORKS, *_ROOTS) if shown[key] not in ("", "no")]
        settings += [f"{key}={word}" for key in _MOUNTS for word in shown[key].split() if _hides(examined, key, word)]
        for setting in settings:
            what = "a network namespace" if setting.startswith(_NETWORKS) else "files"
            yield Fault(
                "own-network" if setting.startswith(_NETWORKS) else "own-files",
                examined.called(instance),
                f"its gate sees {what} of its own, not the host's ({setting}): a healthy node may be held back, or a "
                "shadowed one let through",
                f"take it away, or let what the unit runs do it: systemctl cat {instance}",
            )


def _hides(examined: ExaminedHost, key: str, word: str) -> bool:
    """Whether a unit's mount lies over something that the gate reads or writes."""
    parts = word.removeprefix("-").split(":")
    # source[:destination[:options]], systemd.exec(5); a temporary file system has no source.
    place = parts[0] if key == "TemporaryFileSystem" or len(parts) == 1 else parts[1]
    if key == "BindPaths" and place == parts[0]:
        return False  # what is there anyway
    mounted = PurePosixPath(place)
    layout = examined.layout
    folders = [PurePosixPath(examined.name(path)) for path in (layout.manifest.parent, layout.run_dir)]
    return any(mounted.is_relative_to(each) or each.is_relative_to(mounted) for each in folders)


def break_glass(examined: ExaminedHost) -> Iterator[Fault]:
    """Nobody has left the gate open."""
    layout = examined.layout
    if layout.gate_off.exists():
        path = examined.name(layout.gate_off)
        yield Fault("gate-off", path, "as long as it is there every start is admitted unchecked", f"rm {path}")
    words = (files.read_text(layout.of("/proc/cmdline")) or "").split()
    if "hostrouting.gate=off" in words:
        yield Fault(
            "gate-off",
            "/proc/cmdline",
            "the kernel was started with hostrouting.gate=off: every start is admitted unchecked until the next boot",
            "take it out of the boot loader's kernel arguments",
        )
