"""Entries for systemd's journal, with fields, by its native protocol; or as lines where there is no journal."""

from __future__ import annotations

import json
import socket
import sys
from typing import TYPE_CHECKING

import attrs

from hostrouting.model.text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import TextIO

    from hostrouting.watch.events import Event

__all__ = ["Journal", "fields_of", "to_datagram"]

Fields = tuple[tuple[str, str], ...]


@attrs.frozen
class Journal:
    """Where a watcher's words go.

    Args:
        path: journald's socket; None: they are printed.
        has_prefix: whether a printed line starts with its priority, ``<4>``, sd-daemon(3).
        stream: where to print; None: standard output, as it is at that time.
    """

    path: Path | None = None
    has_prefix: bool = False
    stream: TextIO | None = attrs.field(default=None, eq=False)

    @classmethod
    def of(cls, environment: Mapping[str, str], path: Path) -> Journal:
        """The journal if systemd has started us with its output there; else standard output.

        Args:
            environment: ours.
            path: journald's socket.
        """
        is_service = "JOURNAL_STREAM" in environment
        return cls(path if is_service and path.is_socket() else None, has_prefix=is_service)

    def write(self, event: Event) -> None:
        """Make an entry.

        Raises:
            OSError: it can be neither sent nor printed.
        """
        if self.path is not None and self._send(to_datagram(fields_of(event))):
            return
        prefix = f"<{int(event.priority)}>" if self.has_prefix else ""
        print(f"{prefix}{clean(event.message)}", file=self.stream or sys.stdout, flush=True)

    def _send(self, datagram: bytes) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.settimeout(1.0)
            try:
                to.sendto(datagram, str(self.path))
            except OSError:  # journald is away, or it is too large: the line still goes to our output
                return False
        return True


def fields_of(event: Event) -> Fields:
    """The fields of an entry; one that has several values is there several times."""
    return (
        ("MESSAGE", event.message),
        ("MESSAGE_ID", event.kind.value),
        ("PRIORITY", str(int(event.priority))),
        ("SYSLOG_IDENTIFIER", "hostrouting"),
        ("HOSTROUTING_EVENT", event.kind.name.lower().replace("_", "-")),
        *((("HOSTROUTING_CIDR", event.cidr),) if event.cidr is not None else ()),
        *(("HOSTROUTING_ROUTE", route) for route in event.routes),
        *(("HOSTROUTING_DEV", dev) for dev in event.devs),
        *(("HOSTROUTING_FIX", json.dumps(entry.to_mapping())) for entry in event.fix),
    )


def to_datagram(fields: Fields) -> bytes:
    """Fields as journald reads them (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/): a value may hold any byte."""
    parts = []
    for name, value in fields:
        content = value.encode("utf-8", "surrogateescape")
        if b"\n" in content:
            parts.append(name.encode() + b"\n" + len(content).to_bytes(8, "little") + content + b"\n")
        else:
            parts.append(name.encode() + b"=" + content + b"\n")
    return b"".join(parts)
