"""Pure: the gate, what its drop-in says, and whether a unit's settings hold it.

Why this scheme and no other: ``Before=`` in a plain unit orders nothing against a template, ``Requires=`` opens on
systemd 252 where the required unit is missing or masked and bounces the machine when it is restarted. A script run
as ``ExecStartPre=`` of the consumer itself judges at every start, blocks, shows as a failed unit, is retried by
``Restart=``, and nothing that happens to the oneshots stops a running machine.
"""

from __future__ import annotations

import re

import attrs

from hostrouting.boot.layout import Layout

__all__ = [
    "CHECK",
    "FLUSHERS",
    "GATED",
    "PROBE",
    "ROUTES",
    "GateCommand",
    "drop_in_text",
    "gate_commands",
    "missing_commands",
]

ROUTES = "static-routes"
CHECK = "check-route-overlap"
PROBE = "load-balancer-probe"
GATED = (ROUTES, CHECK, PROBE)

# Debian's, and the reference agent's, which each machine requires without being ordered after it: both flush the
# whole ruleset of nftables, and with it the probe's rules.
FLUSHERS = ("nftables.service", "nftables-flush.service")


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


def gate_commands(parts: dict[str, bool]) -> tuple[GateCommand, ...]:
    """The commands of the gate.

    Args:
        parts: the installed parts, each with whether its failure holds the consumer back; those that aren't part of
            the gate don't matter.

    Returns:
        The commands in the order in which they run.
    """
    return tuple(GateCommand((str(Layout().script(name)), "gate"), parts[name]) for name in GATED if name in parts)


def drop_in_text(parts: dict[str, bool]) -> str:
    """The drop-in of a consumer; the scripts are run directly, so that an empty or truncated one fails."""
    units = " ".join(f"{name}.service" for name in GATED if name in parts)
    earlier = " ".join((units, *FLUSHERS)) if PROBE in parts else units
    lines = "\n".join(f"ExecStartPre={command}" for command in gate_commands(parts))
    return (
        "# Written by hostrouting; taken back by: hostrouting remove\n"
        "# To let a node start all the same: touch /etc/aks-flex-node/gate.off\n"
        f"[Unit]\nWants={units}\nAfter={earlier}\n\n[Service]\n{lines}\n"
    )


_COMMAND = re.compile(r"\{ path=\S* ; argv\[\]=(?P<argv>.*?) ; flags=(?P<flags>.*?) ;")


def missing_commands(parts: dict[str, bool], exec_start_pre: str) -> tuple[GateCommand, ...]:
    """The commands of the gate that a unit doesn't hold.

    Args:
        parts: as for ``gate_commands``.
        exec_start_pre: the property ``ExecStartPreEx`` as ``systemctl show`` prints it.

    Returns:
        Those that are missing, or that have lost their privileges or their force.
    """
    held: set[tuple[str, bool]] = set()
    for match in _COMMAND.finditer(exec_start_pre):
        flags = match["flags"].split()
        if "privileged" in flags:
            held.add((match["argv"], "ignore-failure" not in flags))
    return tuple(c for c in gate_commands(parts) if (" ".join(c.argv), c.is_blocking) not in held)
