"""A recorded host: how it is recorded, read back, and asked; it can't be changed."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from hostrouting.config.schema import parse_document, read_document
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.whole_tables import WholeTables
from hostrouting.model.errors import ConfigError, FileError, RouteError
from hostrouting.model.text import rfc_3339

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from ipaddress import IPv4Address

    from hostrouting.kernel.port import RouteBackend
    from hostrouting.model.links import Address, Link
    from hostrouting.model.routes import Lookup, Route, RouteFailure
    from hostrouting.model.rules import Rule
    from phases import CancelScope

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


class SnapshotBackend(WholeTables):
    """A ``RouteBackend`` that answers as the kernel of a recorded host would have; threads may share it.

    Args:
        snapshot: the host.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._seen = threading.local()

    # --- reading -----------------------------------------------------------------------------------------------

    def links(self) -> tuple[Link, ...]:
        """All network interfaces, by index."""
        return self.snapshot.links

    def addresses(self) -> tuple[Address, ...]:
        """All IPv4 addresses of the host."""
        return self.snapshot.addresses

    def rules(self) -> tuple[Rule, ...]:
        """The policy rules in the order in which the kernel asked them."""
        return self.snapshot.rules

    def routes(self, table: int | None = None) -> tuple[Route, ...]:
        """The entries of a table, in the kernel's order; of every table, if none is named."""
        return tuple(route for route in self.snapshot.routes if table is None or route.table == table)

    @contextmanager
    def noticing_changes(self) -> Iterator[Callable[[], bool]]:
        """Nothing ever changes."""
        yield lambda: False

    def lookup(
        self, addresses: Sequence[IPv4Address], *, source: IPv4Address | None = None, is_tcp: bool = False
    ) -> tuple[Lookup, ...]:
        """For each address the entry that wins for a packet of the host (mark 0, tos 0, uid 0, nothing bound)."""
        return tuple(self._fib.lookup(address, source, is_tcp=is_tcp) for address in addresses)

    @cached_property
    def _fib(self) -> Fib:
        return Fib(self.snapshot.rules, self.snapshot.routes, self.snapshot.addresses)

    # --- writing -----------------------------------------------------------------------------------------------

    def add(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Refuse: what is recorded stays as it was."""
        return _refuse("add", routes)

    def replace(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Refuse: what is recorded stays as it was."""
        return _refuse("replace", routes)

    def delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Refuse: what is recorded stays as it was."""
        return _refuse("delete", routes)

    # --- waiting -----------------------------------------------------------------------------------------------

    def wait_for_change(self, scope: CancelScope) -> None:
        """Return at once on this thread's first call; then wait for the scope's end, since nothing ever changes.

        Args:
            scope: ends the wait.

        Raises:
            phases.Cancelled, phases.TimedOut: the scope ended.
        """
        if getattr(self._seen, "is_seen", False):
            scope.wait(threading.Event())
        self._seen.is_seen = True


def _refuse(attempt: str, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
    if not routes:
        return ()
    raise RouteError(f"can't {attempt} {routes[0]}: this is a recorded host; do it on the host itself")
