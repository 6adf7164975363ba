"""Write the watcher's outputs to the journal, to systemd, and to a textfile for Prometheus."""

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
    """Write an entry with fields to the journal, or a line to standard output if there is no journal.

    Args:
        event: the event to report.
        journal: the socket of journald, or None if our output doesn't go to the journal.
        print_line: a function that prints a line.
    """
    if journal is not None and _send(str(journal), to_datagram(event)):
        return
    # If journald is down or the entry is too large, our output still takes the line to the journal, sd-daemon(3).
    prefix = "" if journal is None else f"<{event.kind.priority}>"
    print_line(f"{prefix}{clean(event.message)}")


def to_datagram(event: Event) -> bytes:
    """Return an event in journald's native format, in which a value may contain any byte.

    A field with several values appears several times (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/).
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
    """Send the service's state to systemd, sd_notify(3), and ignore a missing listener.

    Args:
        address: the value of NOTIFY_SOCKET, or an empty string if it isn't set.
        state: the state, for example ``READY=1``.
    """
    if address:
        _send(f"\0{address[1:]}" if address.startswith("@") else address, state.encode("utf-8", "replace"))


def _send(address: str, datagram: bytes) -> bool:
    """Send a datagram, and return whether it was accepted."""
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
    """Return the textfile's content after a round; docs/reference/watch.md lists the metrics.

    Args:
        gate: the gate's metrics.
        report: the check's report.
        repair: the state of our routes.
        counted: the number of rounds since the watcher's start as ``looks``, and of repaired routes by their drift.
        time: the time of the round, in seconds since 1970.
    """
    problem = int(bool(repair.problems))
    return exposition(
        *gate,
        *check_metrics(report, time),
        Metric("routes_kept", "gauge", "Static routes that are in place.", {"": repair.kept}),
        Metric("routes_contested", "gauge", "Lost routes that are removed again and again.", {"": len(repair.waiting)}),
        Metric("problem", "gauge", "1 if not all static routes can be kept as wanted.", {"": problem}),
        Metric("checks_total", "counter", "Checks since the start of the watcher.", {"": counted["looks"]}),
        Metric(
            "routes_repaired_total",
            "counter",
            "Routes repaired since the start of the watcher, by the kind of their drift.",
            {f'{{drift="{drift}"}}': counted[drift] for drift in Drift},
        ),
    )
