"""The reports of the tasks."""

from __future__ import annotations

from typing import Any

import attrs

from hostrouting.boot.layout import CHECK, ROUTES, WATCH
from hostrouting.model.changes import Changes
from hostrouting.model.jsonable import fields_in_json
from hostrouting.model.values import frozen
from hostrouting.overlap.findings import OverlapReport
from hostrouting.routes.plan import RoutePlan, RoutesReport


@frozen
class WatchReport:
    """The result of ``ConfigureWatch``.

    Args:
        changes: the changed files and units.
    """

    changes: Changes = attrs.field(factory=Changes)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {"schema": 1} | self.changes.to_json()


@frozen
class ConfigureReport:
    """The result of ``Configure``, or of a trial of routes.

    Args:
        routes: report for the static routes, including their changes.
        watch: report for the watcher, including its changes.
        overlap: report for the check, including its changes.
        changes: all changed routes, rules, files and units. The files include the gate and the
            manifest, which belong to no single part.
        warnings: reasons why the installation can't work yet, one sentence each.
        until: the end of a trial, in RFC 3339 format.
    """

    routes: RoutesReport
    watch: WatchReport
    overlap: OverlapReport
    changes: Changes = attrs.field(factory=Changes)
    warnings: tuple[str, ...] = ()
    until: str = ""

    @classmethod
    def of(
        cls,
        plan: RoutePlan,
        overlap: OverlapReport,
        changes: Changes,
        warnings: tuple[str, ...],
    ) -> ConfigureReport:
        """Build the report for a run.

        Args:
            plan: the executed plan for the kernel's routes.
            overlap: report for the check.
            changes: all changes made by the run.
            warnings: the run's warnings.
        """
        routes = changes.of_kernel | changes.of_part(ROUTES)
        return cls(
            RoutesReport(plan, routes),
            WatchReport(changes.of_part(WATCH)),
            attrs.evolve(overlap, changes=changes.of_part(CHECK)),
            changes,
            warnings,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, with routes in the format of ``ip route show``."""
        document = attrs.evolve(self.routes, changes=self.changes).to_json()
        return document | fields_in_json(
            self,
            "overlap",
            "warnings",
            *(["until"] if self.until else []),
        )
