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
        routes: of the static routes, with what was changed for them.
        watch: of the watcher, likewise.
        overlap: of the check, likewise.
        changes: every route, file and unit that was changed: theirs, and the gate's and the manifest's, which all of
            them share.
        warnings: what keeps the installation from doing its job until it comes, a sentence each.
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
            plan: what was done to the kernel's routes.
            overlap: of the check.
            changes: everything that was changed.
            warnings: as of the report.
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
        """Return the report as JSON; each route as ``ip route show`` prints it."""
        document = attrs.evolve(self.routes, changes=self.changes).to_json()
        return document | {"overlap": self.overlap.to_json(), "warnings": [*self.warnings]}
