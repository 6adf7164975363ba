"""Keep two snapshots of the host: the last that is ``ok``, and the first after it that isn't."""

from __future__ import annotations

import math
from pathlib import Path

import attrs

from hostrouting.boot.files import exists, read_text, write_if_changed
from hostrouting.boot.host import Host
from hostrouting.model.errors import FileError, HostRoutingError
from hostrouting.overlap.findings import Verdict
from hostrouting.overlap.snapshots import snapshot_of
from phases import CancelScope

_HOUR_SECONDS = 3600.0
# Write each file at most this often, even if the verdict changes with each event.
_PAUSE_SECONDS = 60.0
_MIB_MAX = 16
# The fewest bytes that a route takes in a snapshot.
_BYTES_A_ROUTE = 64


@attrs.define
class LastSnapshots:
    """The snapshots that the watcher keeps for ``diff``.

    Args:
        host: the host that the watcher watches.
        problem: why the last snapshot couldn't be kept, or an empty string.
        was_ok: whether the last verdict was ``ok``, or None before the first verdict.
        is_due: whether the verdict has changed to or from ``ok`` since the last snapshot.
        written: for each file, the time of the last attempt to write it, on the scope's clock.
    """

    host: Host
    problem: str = ""
    was_ok: bool | None = None
    is_due: bool = True
    written: dict[Path, float] = attrs.field(factory=dict)

    def keep(self, verdict: Verdict, scope: CancelScope) -> None:
        """Write a snapshot when the verdict changes to or from ``ok``, and hourly during ``ok``.

        Each file is written at most once a minute. If the verdict changes within that minute, and
        stays changed, the snapshot follows after the minute. If the watcher is restarted during a
        failure, it keeps the earlier watcher's snapshot of this failure.

        Args:
            verdict: the verdict of this round.
            scope: cancels the reads. Its clock tells the time.
        """
        is_ok = verdict is Verdict.OK
        if is_ok is not self.was_ok:
            self.is_due = is_ok or not self._is_kept_already()
            self.was_ok = is_ok
        path = self.host.layout.good if is_ok else self.host.layout.bad
        now = scope.clock.monotonic()
        if not self._is_time(path, now):
            return
        self.is_due = False
        self.written[path] = now
        try:
            self._write(path, scope)
            self.problem = ""
        except HostRoutingError as error:
            self.problem = error.clause

    def _is_kept_already(self) -> bool:
        """Return whether an earlier watcher has kept a snapshot of the failure that goes on."""
        is_first = self.was_ok is None
        return is_first and _is_newer(self.host.layout.bad, self.host.layout.good)

    def _is_time(self, path: Path, now: float) -> bool:
        """Return whether to write a file now."""
        age = now - self.written.get(path, -math.inf)
        if self.was_ok and age >= _HOUR_SECONDS:
            return True
        return self.is_due and age >= _PAUSE_SECONDS

    def _write(self, path: Path, scope: CancelScope) -> None:
        # Estimate the size first, because taking a snapshot of a million routes takes gigabytes of
        # memory.
        size = self._count_routes() * _BYTES_A_ROUTE
        if size <= _MIB_MAX << 20:
            text = snapshot_of(self.host, scope).to_text()
            size = len(text)
        if size > _MIB_MAX << 20:
            message = f"it would have more than {_MIB_MAX} MiB"
            raise FileError(f"can't keep a snapshot as {path}: {message}")
        write_if_changed(path, text, mode=0o600)

    def _count_routes(self) -> int:
        listed = read_text(self.host.layout.of("/proc/net/fib_triestat")) or ""
        rows = (line.split() for line in listed.splitlines())
        return sum(int(row[1]) for row in rows if row[:1] == ["Prefixes:"])


def _is_newer(path: Path, than: Path) -> bool:
    """Return whether a file exists and is newer than the other one, which may be missing."""
    return exists(path) and (not exists(than) or path.stat().st_mtime > than.stat().st_mtime)
