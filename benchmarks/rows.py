"""All comparisons: those with a promise first."""

from __future__ import annotations

from benchmarks import backend, boot, checking, starting

__all__ = ["ROWS"]

ROWS = tuple(sorted((*boot.ROWS, *backend.ROWS, *checking.ROWS, *starting.ROWS), key=lambda row: row.most is None))
