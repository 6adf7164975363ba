"""Record a host, and read what was recorded."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from hostrouting.config.document import parse_document, read_document
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.errors import ConfigError, FileError
from hostrouting.model.text import rfc_3339

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from ipaddress import IPv4Address

    from hostrouting.kernel.port import RouteBackend

__all__ = ["STDIN", "load_snapshot", "take_snapshot"]

STDIN = "-"

# A million routes, as ip prints them, are 250 MB.
_SNAPSHOT_BYTES_MAX = 1 << 30


def take_snapshot(
    backend: RouteBackend, *, nameservers: Sequence[IPv4Address] = (), now: Callable[[], float] = time.time
) -> Snapshot:
    """Record a host: one question to the kernel after the other, so while nothing changes.

    Args:
        backend: the kernel.
        nameservers: that the host asks.
        now: the time of day, in seconds since the epoch.

    Returns:
        What was found.

    Raises:
        RouteError: the kernel can't be asked.
    """
    kernel = os.uname()
    return Snapshot(
        links=backend.links(),
        addresses=backend.addresses(),
        rules=backend.rules(),
        routes=backend.routes(),
        # Not part of the port: the kernel in memory has none, and judging needs them only where routes show no hops.
        nexthops=backend.nexthops() if isinstance(backend, NetlinkBackend) else (),
        nameservers=tuple(nameservers),
        time=rfc_3339(now()),
        kernel=f"{kernel.sysname} {kernel.release}",
    )


def load_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """Read a recorded host.

    Args:
        path: of a document that ``Snapshot.to_document`` or ip has made; ``-`` is standard input.

    Returns:
        The snapshot.

    Raises:
        ConfigError: there is no such file, or it isn't a snapshot.
        FileError: it can't be read.
    """
    if path != STDIN:
        return Snapshot.from_document(read_document(path, "snapshot", bytes_max=_SNAPSHOT_BYTES_MAX))
    if sys.stdin is None:
        raise ConfigError([("standard input", "is closed; expected a snapshot")])
    try:
        document = parse_document(sys.stdin.buffer, "standard input", "snapshot", bytes_max=_SNAPSHOT_BYTES_MAX)
    except OSError as error:
        raise FileError.of("read a snapshot from standard input", error) from error
    return Snapshot.from_document(document)
