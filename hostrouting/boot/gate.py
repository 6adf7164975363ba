"""Pure: the gate, what its drop-in says, and whether a unit's settings hold it.

Why this scheme and no other: ``Before=`` in a plain unit orders nothing against a template, ``Requires=`` opens on
systemd 252 where the required unit is missing or masked and bounces the machine when it is restarted. A script run
as ``ExecStartPre=`` of the consumer itself judges at every start, blocks, shows as a failed unit, is retried by
``Restart=``, and nothing that happens to the oneshots stops a running machine.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from hostrouting.boot.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostrouting.boot.manifest import Manifest

__all__ = ["GateCommand", "drop_in_text", "gate_commands", "missing_commands", "opening_settings"]


@attrs.frozen
class GateCommand:
    """A command that must succeed before a consumer's process starts.

    Args:
        argv: the script and its argument.
        is_blocking: whether a failure holds the consumer back.
    """

    argv: tuple[str, ...]
    is_blocking: bool

    def __str__(self) -> str:
        # "+": outside the consumer's sandbox and as root, systemd.service(5); the network namespace stays.
        return f"{'' if self.is_blocking else '-'}+{' '.join(self.argv)}"


def gate_commands(manifest: Manifest) -> tuple[GateCommand, ...]:
    """The commands of the gate, in the order in which they run."""
    layout = Layout()
    return tuple(
        GateCommand((str(layout.script(name)), "gate"), part.is_blocking)
        for name, part in manifest.parts.items()
        if part.is_gated
    )


def drop_in_text(manifest: Manifest) -> str:
    """The drop-in of a consumer; the scripts are run directly, so that an empty or truncated one fails."""
    gated = {name: part for name, part in manifest.parts.items() if part.is_gated}
    units = [f"{name}.service" for name in gated]
    earlier = dict.fromkeys((*units, *(unit for part in gated.values() for unit in part.after)))
    lines = "\n".join(f"ExecStartPre={command}" for command in gate_commands(manifest))
    return (
        "# Written by hostrouting; taken back by: hostrouting remove\n"
        "# To let a node start all the same: touch /etc/aks-flex-node/gate.off\n"
        f"[Unit]\nWants={' '.join(units)}\nAfter={' '.join(earlier)}\n\n[Service]\n{lines}\n"
    )


_COMMAND = re.compile(r"\{ path=\S* ; argv\[\]=(?P<argv>.*?) ; flags=(?P<flags>.*?) ;")


def missing_commands(manifest: Manifest, exec_start_pre: str) -> tuple[GateCommand, ...]:
    """The commands of the gate that a unit doesn't hold.

    Args:
        manifest: what is installed.
        exec_start_pre: the property ``ExecStartPreEx`` as ``systemctl show`` prints it.

    Returns:
        Those that are missing, or that have lost their privileges or their force.
    """
    held: set[tuple[str, bool]] = set()
    for match in _COMMAND.finditer(exec_start_pre):
        flags = match["flags"].split()
        if "privileged" in flags:
            held.add((match["argv"], "ignore-failure" not in flags))
    return tuple(c for c in gate_commands(manifest) if (" ".join(c.argv), c.is_blocking) not in held)


# The gate ends within 20 s; a consumer with less patience ends it first.
START_SECONDS = 25

# By what a gate can end: its own 255, bash's, those of a script that can't be run, systemd's (EXIT_CHDIR to
# EXIT_NUMA_POLICY in its src/basic/exit-status.h), and what kills it.
_ENDS = {"255", "2", "126", "127", *map(str, range(200, 244)), "KILL", "TERM", "ABRT"}


def opening_settings(shown: Mapping[str, str], *, is_strict: bool) -> tuple[str, ...]:
    """The settings of a unit by which it starts though the gate fails, or fails though the gate would let it start.

    Args:
        shown: the properties ``SuccessExitStatus`` and ``TimeoutStartUSec`` as ``systemctl show`` prints them.
        is_strict: whether the check holds it back; if not, the gate makes do with a shorter time-out.

    Returns:
        Each as a clause.
    """
    found = []
    forgiven = [word for word in shown["SuccessExitStatus"].split() if word.removeprefix("SIG") in _ENDS]
    if forgiven:
        found.append(f"SuccessExitStatus={' '.join(forgiven)} takes a gate that fails for one that succeeds")
    seconds = _seconds(shown["TimeoutStartUSec"])
    if is_strict and seconds is not None and seconds < START_SECONDS:
        found.append(f"TimeoutStartSec={seconds:g} ends a gate that may take 20 s; give it {START_SECONDS} or more")
    return tuple(found)


_SHORT = re.compile(r"(?P<number>[0-9.]+)(?P<unit>s|ms|us|)")
_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}


def _seconds(span: str) -> float | None:
    """A time span of less than a minute as systemd prints it; None for a longer one."""
    match = _SHORT.fullmatch(span)
    return None if match is None else float(match["number"]) * _UNITS[match["unit"]]
