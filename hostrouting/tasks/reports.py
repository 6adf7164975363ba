"""The reports of the tasks."""

from __future__ import annotations

from typing import Any

import attrs

from hostrouting.boot.manifest import CHECK, ROUTES, WATCH
from hostrouting.model.changes import Changes
from hostrouting.overlap.findings import OverlapReport
from hostrouting.routes.plan import RoutePlan, RoutesReport


@attrs.frozen
class WatchReport:
    """The result of ``ConfigureWatch``.

    Args:
        changes: the files and units that were changed.
    """

    changes: Changes = attrs.field(factory=Changes)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {"schema": 1} | self.changes.to_json()


@attrs.frozen
class ConfigureReport:
    """The result of ``Configure``.

    Args:
        routes: the report on the static routes, with their changes.
        watch: the watcher's report, with its changes.
        overlap: the check's report, with its changes.
        changes: every route, file and unit that was changed, for a part or for the gate and the manifest, which the
            parts share.
        warnings: the reasons why the installation can't work yet, one sentence each.
    """

    routes: RoutesReport
    watch: WatchReport
    overlap: OverlapReport
    changes: Changes = attrs.field(factory=Changes)
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, plan: RoutePlan, overlap: OverlapReport, changes: Changes, warnings: tuple[str, ...]
    ) -> ConfigureReport:
        """Make the report of a run.

        Args:
            plan: the plan of the kernel's routes, after it was carried out.
            overlap: the check's report.
            changes: all changes of the run.
            warnings: the warnings of the run.
        """
        routes = Changes(routes=changes.routes) | changes.of_part(ROUTES)
        return cls(
            RoutesReport(plan, routes),
            WatchReport(changes.of_part(WATCH)),
            attrs.evolve(overlap, changes=changes.of_part(CHECK)),
            changes,
            warnings,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, with each route as ``ip route show`` prints it."""
        document = attrs.evolve(self.routes, changes=self.changes).to_json()
        return document | {"overlap": self.overlap.to_json(), "warnings": [*self.warnings]}
