"""The figures of rows and charts, and a whole run as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks.measure import Contender, Span


class Measured(NamedTuple):
    """The figures of a row.

    Args:
        rounds: the spans of each round: first ours, then the alternative's, if there is one.
        notes: any other observations.
    """

    rounds: Sequence[Sequence[Span]]
    notes: Sequence[str] = ()

    @property
    def medians(self) -> list[float]:
        """Return the median of each side's spans."""
        return [
            statistics.median(value for value, _ in side) for side in zip(*self.rounds, strict=True)
        ]

    @property
    def ratios(self) -> list[float]:
        """Return the median ratio of the times and, if measured, of the processor times."""
        fields = [
            [(ours[at], theirs[0][at]) for ours, *theirs in self.rounds if theirs] for at in (0, 1)
        ]
        return [
            statistics.median(a / b for a, b in pairs)
            for pairs in fields
            if pairs and all(b for _, b in pairs)
        ]


class Row(NamedTuple):
    """A comparison.

    Args:
        name: the name on the command line.
        what: what hostrouting does.
        against: the alternative, or an empty string if there is none.
        most: the upper limit, or None if there is none. It is a ratio, or seconds if there is no
            alternative.
        size: the number of routes, CIDRs or snapshots.
        rounds: the number of times that each side runs.
        measure: the function that measures, given a size and a number of rounds.
        is_memory: whether the figures are bytes.
    """

    name: str
    what: str
    against: str
    most: float | None
    size: int
    rounds: int
    measure: Callable[[int, int], Measured]
    is_memory: bool = False


Curves = dict[str, list[tuple[int, float]]]
"""The sizes and times in seconds of each contender by name, first hostrouting's."""


class Growth(NamedTuple):
    """A chart of how the cost of several contenders grows.

    Args:
        name: the name on the command line.
        title: the title of the chart.
        size: the name of the quantity that grows.
        powers: the exponents of the sizes, which are powers of ten.
        make: the function that returns the groups of contenders for a size. The members of a group
            run side by side.
    """

    name: str
    title: str
    size: str
    powers: range
    make: Callable[[int], Iterator[Mapping[str, Contender]]]


class Report(NamedTuple):
    """The results of a run.

    Args:
        made: the machine, the date and the load, each under its name.
        rows: the figures of each row, under its name.
        growths: the curves of each chart, under its name.
    """

    made: dict[str, str]
    rows: dict[str, Measured]
    growths: dict[str, Curves]

    def to_json(self) -> str:
        """Return the report as JSON with a line for each row.

        The figures are in seconds and bytes.
        """
        rows = {name: measured._asdict() for name, measured in self.rows.items()}
        parts = (
            f"{json.dumps(key)}: {{\n"
            + ",\n".join(
                f" {json.dumps(name)}: {json.dumps(value)}" for name, value in part.items()
            )
            + "\n}"
            for key, part in {**self._asdict(), "rows": rows}.items()
        )
        return "{" + ",\n".join(parts) + "}\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Parse the output of ``to_json``."""
        document = json.loads(text)
        rows = {name: Measured(**row) for name, row in document["rows"].items()}
        return cls(document["made"], rows, document["growths"])
