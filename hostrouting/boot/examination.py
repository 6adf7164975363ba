"""Pure: what an examination of a host finds, and cycles in the order in which units start."""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Ailment", "Diagnosis", "Examined", "Severity", "find_cycle"]


class Severity(StrEnum):
    """``broken``: a promise doesn't hold now; ``risk``: it does, and may not later; ``unknown``: couldn't be seen."""

    BROKEN = "broken"
    RISK = "risk"
    UNKNOWN = "unknown"


@attrs.frozen
class Ailment:
    """Something wrong with a host.

    Args:
        kind: a word for programs, like ``gate-overridden``.
        subject: the file, unit, route or interface that it is about.
        message: what is wrong and what follows from it, for a person; the subject isn't repeated in it.
        remedy: what to do; it may have several lines.
        severity: whether it hurts already.
    """

    kind: str
    subject: str
    message: str
    remedy: str
    severity: Severity = Severity.BROKEN

    def to_json(self) -> dict[str, Any]:
        """The ailment as JSON."""
        return {
            "kind": self.kind,
            "severity": str(self.severity),
            "subject": self.subject,
            "message": self.message,
            "remedy": self.remedy,
        }


@attrs.frozen
class Examined:
    """One examination that was made.

    Args:
        name: of the examination, a word.
        fine: what is the case if nothing was found, a clause.
        ailments: what was found.
    """

    name: str
    fine: str
    ailments: tuple[Ailment, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The examination as JSON; what it found is listed once, in the diagnosis."""
        return {"name": self.name, "ok": not self.ailments, "fine": self.fine}


@attrs.frozen
class Diagnosis:
    """All examinations of a host, in the order in which they were made."""

    examined: tuple[Examined, ...] = ()

    @property
    def ailments(self) -> tuple[Ailment, ...]:
        """Everything that was found."""
        return tuple(ailment for each in self.examined for ailment in each.ailments)

    @property
    def worst(self) -> Severity | None:
        """The gravest that was found; None if nothing was."""
        found = {ailment.severity for ailment in self.ailments}
        return next((severity for severity in Severity if severity in found), None)

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as JSON."""
        findings = [{"examination": e.name, **ailment.to_json()} for e in self.examined for ailment in e.ailments]
        return {
            "schema": 1,
            "verdict": "ok" if self.worst is None else str(self.worst),
            "findings": findings,
            "examinations": [each.to_json() for each in self.examined],
        }


def find_cycle(after: Mapping[str, Iterable[str]], through: Sequence[str]) -> tuple[str, ...]:
    """A shortest cycle in the order in which units start, through one of some units.

    systemd drops the job of one of them, a different one from boot to boot, and doesn't always name the cycle.

    Args:
        after: each unit with those that it starts after.
        through: the units that matter.

    Returns:
        The units of the cycle, each starting after the next, the last after the first; empty if there is none.
    """
    for start in through:
        came_from: dict[str, str] = {}
        todo = deque([start])
        while todo:
            unit = todo.popleft()
            for other in sorted(after.get(unit, ())):
                if other == start:
                    return _path(came_from, unit)
                if other not in came_from:
                    came_from[other] = unit
                    todo.append(other)
    return ()


def _path(came_from: Mapping[str, str], last: str) -> tuple[str, ...]:
    path = [last]
    while path[-1] in came_from:
        path.append(came_from[path[-1]])
    return tuple(reversed(path))
