"""Write the watcher's outputs: the journal, systemd, and a textfile for Prometheus."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hostrouting.model.text import clean
from hostrouting.overlap.findings import OverlapReport
from hostrouting.overlap.metrics import Metric, check_metrics, exposition
from hostrouting.watch._events import Event
from hostrouting.watch._repair import Drift, Repair


def write_entry(event: Event, journal: Path | None, print_line: Callable[[str], None]) -> None:
    """Make an entry in the journal, with fields; a line of our output where there is no journal.

    Args:
        event: what to say.
        journal: journald's socket; None: our output isn't the journal's, but a person's.
        print_line: prints a line.
    """
    if journal is not None and _send(str(journal), to_datagram(event)):
        return
    # Where journald is away, or the entry is too large, the line goes to it by our output, sd-daemon(3).
    prefix = "" if journal is None else f"<{event.kind.priority}>"
    print_line(f"{prefix}{clean(event.message)}")


def to_datagram(event: Event) -> bytes:
    """Return an event as journald reads it (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/): a value may hold any byte.

    A field that has several values is there several times.
    """
    fields = (
        ("MESSAGE", event.message),
        ("MESSAGE_ID", event.kind.message_id),
        ("PRIORITY", str(event.kind.priority)),
        ("SYSLOG_IDENTIFIER", "hostrouting"),
        ("HOSTROUTING_EVENT", event.kind.name.lower().replace("_", "-")),
        *((f"HOSTROUTING_{name}", value) for name, values in event.fields.items() for value in values),
    )
    datagram = b""
    for name, value in fields:
        content = value.encode("utf-8", "surrogateescape")
        datagram += name.encode() + b"\n" + len(content).to_bytes(8, "little") + content + b"\n"
    return datagram


def notify(address: str, state: str) -> None:
    """Tell systemd how the service is, sd_notify(3); who doesn't listen any more must not end us.

    Args:
        address: NOTIFY_SOCKET of our environment; empty: there is none.
        state: for example ``READY=1``.
    """
    if address:
        _send(f"\0{address[1:]}" if address.startswith("@") else address, state.encode("utf-8", "replace"))


def _send(address: str, datagram: bytes) -> bool:
    """Send a datagram, and return whether it was taken."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.settimeout(1.0)
            to.sendto(datagram, address)
    except OSError:
        return False
    return True


def metrics_text(
    gate: tuple[Metric, ...], report: OverlapReport, repair: Repair, counted: Counter[str], time: float
) -> str:
    """Return the textfile after a look; docs/reference/watch.md lists the metrics.

    Args:
        gate: those of the gate.
        report: of the check.
        repair: of our routes.
        counted: since the watcher was started: ``looks``, and the routes that were fixed, by their drift.
        time: of the look, in seconds since 1970.
    """
    problem = int(bool(repair.problems))
    return exposition(
        *gate,
        *check_metrics(report, time),
        Metric("routes_kept", "gauge", "Static routes that are in place.", {"": repair.kept}),
        Metric("routes_contested", "gauge", "Lost routes that are removed again and again.", {"": len(repair.waiting)}),
        Metric("problem", "gauge", "1 if not all static routes can be kept as wanted.", {"": problem}),
        Metric("checks_total", "counter", "Looks since the watcher was started.", {"": counted["looks"]}),
        Metric(
            "routes_repaired_total",
            "counter",
            "Routes put right since the watcher was started, by what was wrong with them.",
            {f'{{drift="{drift}"}}': counted[drift] for drift in Drift},
        ),
    )
