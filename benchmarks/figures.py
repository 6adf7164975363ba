"""What was measured."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.measure import Span
    from benchmarks.worlds import Effort

__all__ = ["Curve", "Figures", "Growth", "Measured", "Report", "Result", "Row"]


@attrs.frozen
class Figures:
    """Of one side of a row.

    Args:
        median: in seconds; of memory in bytes.
        least: the lowest.
        most: the highest.
        rounds: of how many.
        cpu: the median of the processor time, in seconds; None where that isn't the point.
    """

    median: float
    least: float
    most: float
    rounds: int
    cpu: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Figures:
        """Of plain numbers."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    @classmethod
    def of_spans(cls, spans: Sequence[Span]) -> Figures:
        """Of times."""
        cpu = statistics.median(span.cpu for span in spans)
        return attrs.evolve(cls.of([span.wall for span in spans]), cpu=cpu)


@attrs.frozen
class Measured:
    """What a row's function returns.

    Args:
        ours: hostrouting's side.
        theirs: the other's; None where the target is a time.
        notes: what else was found.
    """

    ours: Figures
    theirs: Figures | None = None
    notes: tuple[str, ...] = ()


@attrs.frozen
class Row:
    """A comparison.

    Args:
        name: to choose it by.
        what: hostrouting does.
        against: the other way to do the same.
        measure: does it.
        most: the target: a ratio, or without ``theirs`` seconds; None: only for comparison.
        is_memory: whether figures are bytes.
    """

    name: str
    what: str
    against: str
    measure: Callable[[Effort], Measured]
    most: float | None = None
    is_memory: bool = False


@attrs.frozen
class Result:
    """A row with its figures.

    Args:
        name: of the row.
        what: of the row.
        against: of the row.
        most: of the row.
        is_memory: of the row.
        ours: hostrouting's side.
        theirs: the other's.
        notes: what else was found.
    """

    name: str
    what: str
    against: str
    most: float | None
    is_memory: bool
    ours: Figures
    theirs: Figures | None
    notes: tuple[str, ...]

    @property
    def value(self) -> float:
        """The ratio of the medians; without another side the median."""
        return self.ours.median if self.theirs is None else self.ours.median / self.theirs.median

    @property
    def cpu_ratio(self) -> float | None:
        """The ratio of the processor times."""
        if self.theirs is None or self.ours.cpu is None or not self.theirs.cpu:
            return None
        return self.ours.cpu / self.theirs.cpu

    @property
    def is_met(self) -> bool:
        """Whether the target, if there is one, is met."""
        return self.most is None or self.value <= self.most


@attrs.frozen
class Curve:
    """How the cost of one way grows.

    Args:
        name: of the way.
        points: size and seconds.
    """

    name: str
    points: tuple[tuple[int, float], ...]


@attrs.frozen
class Growth:
    """How the cost of several ways grows.

    Args:
        name: to choose it by.
        title: of the picture.
        size: what grows, in words.
        curves: hostrouting's first.
    """

    name: str
    title: str
    size: str
    curves: tuple[Curve, ...]


@attrs.frozen
class Report:
    """A whole run.

    Args:
        made: on what machine, when, and how busy it was; words by words.
        results: of the rows.
        growths: what the pictures show.
    """

    made: Mapping[str, str]
    results: tuple[Result, ...]
    growths: tuple[Growth, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON; the figures are in seconds and bytes."""
        return attrs.asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Report:
        """Back from JSON."""
        return cls(
            made=document["made"],
            results=tuple(_result(each) for each in document["results"]),
            growths=tuple(_growth(each) for each in document["growths"]),
        )


def _result(document: Mapping[str, Any]) -> Result:
    theirs = document["theirs"]
    sides = {"ours": Figures(**document["ours"]), "theirs": None if theirs is None else Figures(**theirs)}
    return Result(**{**document, **sides, "notes": tuple(document["notes"])})


def _growth(document: Mapping[str, Any]) -> Growth:
    curves = tuple(
        Curve(each["name"], tuple((size, seconds) for size, seconds in each["points"])) for each in document["curves"]
    )
    return Growth(**{**document, "curves": curves})
