"""Figures: rows, pictures, and a run as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks.measure import Contender, Span


class Measured(NamedTuple):
    """The figures of a row.

    Args:
        rounds: for each round hostrouting's side, then the other side, if there is one.
        notes: other observations.
    """

    rounds: Sequence[Sequence[Span]]
    notes: Sequence[str] = ()

    @property
    def medians(self) -> list[float]:
        """Return the median of each side."""
        return [statistics.median(value for value, _ in side) for side in zip(*self.rounds, strict=True)]

    @property
    def ratios(self) -> list[float]:
        """Return the medians of the rounds' ratios of time and of processor time, as far as there are any."""
        fields = [[(ours[at], theirs[0][at]) for ours, *theirs in self.rounds if theirs] for at in (0, 1)]
        return [statistics.median(a / b for a, b in pairs) for pairs in fields if pairs and all(b for _, b in pairs)]


class Row(NamedTuple):
    """A comparison.

    Args:
        name: the name on the command line.
        what: what hostrouting does.
        against: the alternative; empty if there is none.
        most: the limit: a ratio, or seconds without an alternative; None: there is no limit.
        size: how many routes, CIDRs or snapshots there are.
        rounds: how often each side runs.
        measure: measures, with a size and a number of rounds.
        is_memory: whether figures are bytes.
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
"""Sizes and seconds, by the contender's name; hostrouting's first."""


class Growth(NamedTuple):
    """A picture of how the cost of several contenders grows.

    Args:
        name: the name on the command line.
        title: the picture's title.
        size: the name of the growing quantity.
        powers: the sizes, as powers of ten.
        make: makes the contenders of a size, which run side by side, one group after the other.
    """

    name: str
    title: str
    size: str
    powers: range
    make: Callable[[int], Iterator[Mapping[str, Contender]]]


class Report(NamedTuple):
    """A run.

    Args:
        made: the machine, the date and the load, by name.
        rows: the figures, by the row's name.
        growths: the curves, by the picture's name.
    """

    made: dict[str, str]
    rows: dict[str, Measured]
    growths: dict[str, Curves]

    def to_json(self) -> str:
        """Return JSON, with a line for each row; figures are seconds and bytes."""
        rows = {name: measured._asdict() for name, measured in self.rows.items()}
        parts = (
            f"{json.dumps(key)}: {{\n"
            + ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in part.items())
            + "\n}"
            for key, part in {**self._asdict(), "rows": rows}.items()
        )
        return "{" + ",\n".join(parts) + "}\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read the output of ``to_json``."""
        document = json.loads(text)
        rows = {name: Measured(**row) for name, row in document["rows"].items()}
        return cls(document["made"], rows, document["growths"])
