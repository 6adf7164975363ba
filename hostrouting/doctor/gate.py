"""Does the gate hold, and in what order does everything start?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.boot import files
from hostrouting.boot.examination import Fault, Severity, read_folder
from hostrouting.boot.gate import missing_commands
from hostrouting.boot.systemd import ANY_INSTANCE
from hostrouting.doctor.cycles import find_cycle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.boot.examination import ExaminedHost

__all__ = ["break_glass", "gate", "namespaces", "ordering", "restarts"]

_ORDERINGS = ("Before", "After")
_UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
)


def gate(examined: ExaminedHost) -> Iterator[Fault]:
    """Every instance of the consumer runs the scripts before its process starts."""
    drop_in = examined.name(examined.layout.gate(examined.consumer))
    for instance, shown in examined.instances.items():
        missing = missing_commands(examined.manifest, shown["ExecStartPreEx"])
        if not missing:
            continue
        lacks = " and ".join(map(str, missing))
        if shown["NeedDaemonReload"] == "yes":
            remedy = "systemctl daemon-reload"
        else:
            later = [path for path in shown["DropInPaths"].split() if _basename(path) > _basename(drop_in)]
            culprits = f"remove ExecStartPre= from {' '.join(later)}" if later else f"look at: systemctl cat {instance}"
            remedy = f"{culprits}; then: systemctl daemon-reload"
        yield Fault(
            "gate-overridden", instance, f"it starts without being held back: its ExecStartPre= lacks {lacks}", remedy
        )


def _basename(path: str) -> str:
    return path.rpartition("/")[2]


def ordering(examined: ExaminedHost) -> Iterator[Fault]:
    """The consumer starts after the oneshots; no cycle, and no ordering that means nothing."""
    units = [f"{name}.service" for name in examined.gated]
    for instance, shown in examined.instances.items():
        early = [unit for unit in units if unit not in shown["After"].split()]
        if early:
            yield Fault(
                "not-ordered",
                instance,
                f"it doesn't start after {' '.join(early)}, so at boot nothing waits for the network before the gate",
                "systemctl daemon-reload, and if that doesn't help: hostrouting apply",
                Severity.RISK,
            )
    yield from _void_orderings(examined)
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


def _void_orderings(examined: ExaminedHost) -> Iterator[Fault]:
    """A template's name in a plain unit stands for the instance that is called like that unit."""
    prefix, at, _ = examined.consumer.partition("@")
    if not at:
        return
    template = f"{prefix}@.service"
    patterns = [f"{folder}/{name}" for folder in _UNIT_FOLDERS for name in ("*.service", "*.service.d/*.conf")]
    for path, text in read_folder(examined.layout, *patterns).items():
        unit = path.parent.name.removesuffix(".d") if path.suffix == ".conf" else path.name
        void = [] if "@" in unit else [key for key in _ORDERINGS if template in _values(text, key)]
        name = unit.removesuffix(".service")
        for key in void:
            yield Fault(
                "void-ordering",
                examined.name(path),
                f"{key}={template} orders nothing: systemd takes it for {prefix}@{name}.service",
                f"say it from the other side, in /etc/systemd/system/{template}.d/{name}.conf: [Unit] "
                f"{'After' if key == 'Before' else 'Before'}={unit}; then: systemctl daemon-reload",
                Severity.RISK,
            )


def _values(text: str, key: str) -> list[str]:
    """The words of all lines ``key=words`` of a unit file."""
    pairs = (line.partition("=") for line in text.splitlines())
    return [word for name, equals, value in pairs if equals and name.strip() == key for word in value.split()]


def restarts(examined: ExaminedHost) -> Iterator[Fault]:
    """After a mend the consumer comes up by itself."""
    without = [name for name, shown in examined.instances.items() if shown["Restart"] in ("", "no")]
    if without:
        is_template = any(f"@{ANY_INSTANCE}." in name for name in without)
        yield Fault(
            "no-restart",
            examined.consumer if is_template else " ".join(without),
            "held back once, it stays down after the mend until somebody starts it: it has no Restart=",
            f"/etc/systemd/system/{examined.consumer}.d/restart.conf: [Service] Restart=on-failure; then: systemctl "
            "daemon-reload",
            Severity.RISK,
        )


def namespaces(examined: ExaminedHost) -> Iterator[Fault]:
    """The consumer's gate sees the host's routes."""
    for instance, shown in examined.instances.items():
        own = [key for key in ("PrivateNetwork", "NetworkNamespacePath") if shown[key] not in ("", "no")]
        if own:
            yield Fault(
                "own-network",
                instance,
                f"its gate sees a network namespace of its own, not the host's ({own[0]}={shown[own[0]]}): STRICT "
                "never lets it start, WARN checks nothing",
                f"take {own[0]}= away, or let it be given its network by what it runs: systemctl cat {instance}",
            )


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
