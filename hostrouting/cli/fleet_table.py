"""Many recorded hosts as a table: a row for each host and failure, in Apache Parquet. Nothing else loads pyarrow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow
from pyarrow import parquet

from hostrouting.config.schema import in_json
from hostrouting.model.errors import FileError
from hostrouting.model.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.overlap.fleet import FleetReport, HostGroup

_WORD, _WORDS = pyarrow.string(), pyarrow.list_(pyarrow.string())
_SCHEMA = pyarrow.schema(
    {
        "host": _WORD,
        "group": pyarrow.int32(),
        "verdict": _WORD,
        "kind": _WORD,
        "cidr": _WORD,
        "devs": _WORDS,
        "fix": _WORDS,
        "reason": _WORD,
    }
)


def write_table(report: FleetReport, path: str) -> None:
    """Write a table with a row for each host and failure; a host without one has a row too.

    Args:
        report: what was found.
        path: of the file.

    Raises:
        FileError: it can't be written.
    """
    try:
        with parquet.ParquetWriter(path, _SCHEMA) as writer:
            for number, group in enumerate(report.groups, 1):
                writer.write_table(pyarrow.Table.from_pylist([*_rows(number, group)], _SCHEMA))
    except OSError as error:
        raise FileError.of(f"write {path}", error) from error


def _rows(number: int, group: HostGroup) -> Iterator[dict[str, Any]]:
    shared = {
        "group": number,
        "verdict": str(group.verdict),
        "fix": [json.dumps(entry) for entry in in_json(group.fix)],
        "reason": clean(group.report.reason) if group.report.reason else None,
    }
    for host in map(clean, group.hosts):
        for failure in group.failures or (None,):
            told = {} if failure is None else failure.to_json()
            yield shared | told | {"host": host, "devs": list(map(clean, told.get("devs", ())))}
