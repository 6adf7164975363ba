"""Write the watcher's output to the journal, systemd and a Prometheus textfile."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hostrouting.model.text import clean
from hostrouting.overlap.findings import OverlapReport
from hostrouting.watch._events import Event
from hostrouting.watch._repair import Drift, Repair
from hostrouting.watch.metrics import Metric, check_metrics, exposition


def write_entry(event: Event, journal: Path | None, print_line: Callable[[str], None]) -> None:
    """Send an event to the journal. Without a journal, print it as a line.

    Args:
        event: the event to report.
        journal: journald's socket; None if our output isn't connected to the journal.
        print_line: a callback that prints a line.
    """
    if journal is not None and _send(str(journal), to_datagram(event)):
        return
    # If journald is down or the entry is too large, print a line. If stdout is connected to the
    # journal, the prefix is the line's priority (sd-daemon(3)).
    prefix = "" if journal is None else f"<{event.kind.priority}>"
    print_line(f"{prefix}{clean(event.message)}")


def to_datagram(event: Event) -> bytes:
    """Serialize an event in journald's native format, which allows arbitrary bytes in values.

    Fields with multiple values are repeated (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/).
    """
    fields = (
        ("MESSAGE", event.message),
        ("MESSAGE_ID", event.kind.message_id),
        ("PRIORITY", str(event.kind.priority)),
        ("SYSLOG_IDENTIFIER", "hostrouting"),
        ("HOSTROUTING_EVENT", event.kind.name.lower().replace("_", "-")),
        *(
            (f"HOSTROUTING_{name}", value)
            for name, values in event.fields.items()
            for value in values
        ),
    )
    datagram = b""
    for name, value in fields:
        content = value.encode("utf-8", "surrogateescape")
        datagram += name.encode() + b"\n" + len(content).to_bytes(8, "little") + content + b"\n"
    return datagram


def notify(address: str, state: str) -> None:
    """Notify systemd of the service's state (sd_notify(3)); ignore errors.

    Args:
        address: the value of NOTIFY_SOCKET, or an empty string if unset.
        state: the state, for example ``READY=1``.
    """
    if address:
        _send(
            f"\0{address[1:]}" if address.startswith("@") else address,
            state.encode("utf-8", "replace"),
        )


def _send(address: str, datagram: bytes) -> bool:
    """Send a datagram and return whether that succeeded."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.settimeout(1.0)
            to.sendto(datagram, address)
    except OSError:
        return False
    return True


def metrics_text(
    gate: tuple[Metric, ...],
    report: OverlapReport,
    repair: Repair,
    counted: Counter[str],
    time: float,
) -> str:
    """Render the metrics textfile; the metrics are documented in docs/reference/watch.md.

    Args:
        gate: the metrics of the host's gate.
        report: the check's report.
        repair: the result of the last repair.
        counted: counters since the watcher's start: rounds as ``looks``, repaired routes by kind of
            drift, and as ``rules`` the changes to rules and side tables.
        time: the round's Unix timestamp.
    """
    policy = repair.policy
    rules_in_place = {} if policy is None else {"": policy.in_place}
    rules_repaired = {} if policy is None else {"": counted["rules"]}
    problem = int(bool(repair.problems or repair.unmoved))
    return exposition(
        *gate,
        *check_metrics(report, time),
        Metric("routes_kept", "gauge", "Static routes that are in place.", {"": repair.in_place}),
        Metric(
            "routes_contested",
            "gauge",
            "Lost routes that are removed again and again.",
            {"": len(repair.waiting)},
        ),
        Metric(
            "problem",
            "gauge",
            "1 if not all static routes and rules can be kept in place.",
            {"": problem},
        ),
        Metric(
            "checks_total",
            "counter",
            "Checks since the start of the watcher.",
            {"": counted["looks"]},
        ),
        Metric(
            "routes_repaired_total",
            "counter",
            "Routes repaired since the start of the watcher, by the kind of their drift.",
            {f'{{drift="{drift}"}}': counted[drift] for drift in Drift},
        ),
        Metric("rules_kept", "gauge", "Policy rules that are in place.", rules_in_place),
        Metric(
            "rules_repaired_total",
            "counter",
            "Changes to policy rules and side tables since the start of the watcher.",
            rules_repaired,
        ),
    )
