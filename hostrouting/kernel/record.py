"""Record a host, and read what was recorded."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from hostrouting.boot.resolvers import nameservers
from hostrouting.config.document import parse_document, read_document
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.errors import ConfigError, FileError
from hostrouting.overlap.check import rfc_3339

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.boot.host import Host

__all__ = ["STDIN", "load_snapshot", "take_snapshot"]

STDIN = "-"

# A million routes, as ip prints them, are 250 MB.
_SNAPSHOT_BYTES_MAX = 1 << 30


def take_snapshot(host: Host, *, now: Callable[[], float] = time.time) -> Snapshot:
    """Record a host: one question to the kernel after the other, so while nothing changes.

    Args:
        host: that runs.
        now: the time of day, in seconds since the epoch.

    Returns:
        What was found.

    Raises:
        RouteError: the kernel can't be asked.
        FileError: a file that names the nameservers can't be read.
    """
    kernel = os.uname()
    return Snapshot(
        links=host.routes.links(),
        addresses=host.routes.addresses(),
        rules=host.routes.rules(),
        routes=host.routes.routes(),
        # Not part of the port: the kernel in memory has none, and judging needs them only where routes show no hops.
        nexthops=host.routes.nexthops() if isinstance(host.routes, NetlinkBackend) else (),
        nameservers=nameservers(host.layout),
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
