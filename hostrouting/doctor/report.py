"""Pure: what all examinations of a host have found, as one value."""

from __future__ import annotations

from typing import Any

import attrs

from hostrouting.boot.examination import Fault, Severity

__all__ = ["DoctorReport", "ExaminationResult"]


@attrs.frozen
class ExaminationResult:
    """One examination that was made.

    Args:
        name: of the examination, a word.
        fine: what is the case if nothing was found, a clause.
        faults: what was found.
    """

    name: str
    fine: str
    faults: tuple[Fault, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The examination as JSON; what it found is listed once, in the report."""
        return {"name": self.name, "ok": not self.faults, "fine": self.fine}


@attrs.frozen
class DoctorReport:
    """All examinations of a host, in the order in which they were made."""

    results: tuple[ExaminationResult, ...] = ()

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Everything that was found."""
        return tuple(fault for each in self.results for fault in each.faults)

    @property
    def worst(self) -> Severity | None:
        """The gravest that was found; None if nothing was."""
        found = {fault.severity for fault in self.faults}
        return next((severity for severity in Severity if severity in found), None)

    @property
    def is_broken(self) -> bool:
        """Whether anything is broken, or couldn't be seen; not if something only may break later."""
        return self.worst in (Severity.BROKEN, Severity.UNKNOWN)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        findings = [{"examination": e.name, **fault.to_json()} for e in self.results for fault in e.faults]
        return {
            "schema": 1,
            "verdict": "ok" if self.worst is None else str(self.worst),
            "findings": findings,
            "examinations": [each.to_json() for each in self.results],
        }
