"""All comparisons: those with a promise first."""

from __future__ import annotations

from benchmarks import backend, boot, checking, fleet, growth, starting

__all__ = ["ROWS"]

_ALL = (*boot.ROWS, *backend.ROWS, *checking.ROWS, *growth.ROWS, *starting.ROWS, *fleet.ROWS)
ROWS = tuple(sorted(_ALL, key=lambda row: row.most is None))
