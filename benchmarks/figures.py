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
        rounds: in each hostrouting's side, then the other's, if there is one.
        notes: what else was found.
    """

    rounds: Sequence[Sequence[Span]]
    notes: Sequence[str] = ()

    @property
    def medians(self) -> list[float]:
        """The median of each side."""
        return [statistics.median(value for value, _ in side) for side in zip(*self.rounds, strict=True)]

    @property
    def ratios(self) -> list[float]:
        """The median of the rounds' ratios, and the same of the processor time; as far as there are any."""
        fields = [[(ours[at], theirs[0][at]) for ours, *theirs in self.rounds if theirs] for at in (0, 1)]
        return [statistics.median(a / b for a, b in pairs) for pairs in fields if pairs and all(b for _, b in pairs)]


class Row(NamedTuple):
    """A comparison.

    Args:
        name: to choose it by.
        what: hostrouting does.
        against: the other way to do the same; empty if there is none.
        most: the limit: a ratio, or seconds where there is no other way; None: only for comparison.
        size: how many routes, CIDRs or snapshots there are.
        rounds: how often each side runs.
        measure: does it, with a size and a number of rounds.
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
"""Sizes and seconds, by the name of the way; hostrouting's first."""


class Growth(NamedTuple):
    """A picture of how the cost of several ways grows.

    Args:
        name: to choose it by.
        title: of the picture.
        size: what grows, in words.
        powers: of ten, the sizes.
        make: the contenders of a size, that run side by side, a group after the other.
    """

    name: str
    title: str
    size: str
    powers: range
    make: Callable[[int], Iterator[Mapping[str, Contender]]]


class Report(NamedTuple):
    """A run.

    Args:
        made: on what machine, when, and how busy it was; words by words.
        rows: what was measured, by the row's name.
        growths: the curves, by the picture's name.
    """

    made: dict[str, str]
    rows: dict[str, Measured]
    growths: dict[str, Curves]

    def to_json(self) -> str:
        """Write JSON, with a line for each row; figures are seconds and bytes."""
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
        """Read what ``to_json`` has written."""
        document = json.loads(text)
        rows = {name: Measured(**row) for name, row in document["rows"].items()}
        return cls(document["made"], rows, document["growths"])
