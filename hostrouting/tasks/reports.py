"""The reports of the tasks, and an observer that collects their changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.boot.layout import CHECK, ROUTES, WATCH
from hostrouting.model.changes import Changes
from hostrouting.model.jsonable import fields_in_json
from hostrouting.overlap.findings import OverlapReport
from hostrouting.routes.plan import RoutePlan, RoutesReport

if TYPE_CHECKING:
    import phases


@attrs.frozen
class WatchReport:
    """The result of ``ConfigureWatch``.

    Args:
        changes: the changed files and units.
    """

    changes: Changes = attrs.field(factory=Changes)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {"schema": 1} | self.changes.to_json()


@attrs.frozen
class ConfigureReport:
    """The result of ``Configure``, or of a trial of routes.

    Args:
        routes: report for the static routes, including their changes.
        watch: report for the watcher, including its changes.
        overlap: report for the check, including its changes.
        changes: all changed routes, files and units, including the gate and the manifest, which are shared by all
            parts.
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
        cls, plan: RoutePlan, overlap: OverlapReport, changes: Changes, warnings: tuple[str, ...]
    ) -> ConfigureReport:
        """Build the report for a run.

        Args:
            plan: the executed plan for the kernel's routes.
            overlap: report for the check.
            changes: all changes made by the run.
            warnings: the run's warnings.
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
        """Return the report as JSON, with routes in the format of ``ip route show``."""
        document = attrs.evolve(self.routes, changes=self.changes).to_json()
        return document | fields_in_json(self, "overlap", "warnings", *(["until"] if self.until else []))


@attrs.define(eq=False)
class ChangesObserver:
    """A ``phases.Observer`` that collects the changes of all tasks in a tree, even if it fails or is cancelled.

    Tasks that have completed keep their changes if another task fails, and the tree's exception doesn't contain them.
    Your own observer can derive from this one.

    Args:
        changes: every route, file and unit that the tasks have changed and not restored.
    """

    changes: Changes = attrs.field(factory=Changes, init=False)
    _told: list[object] = attrs.field(factory=list, init=False)

    def started(self, path: str) -> None:
        """Do nothing, because a task's changes are known at its end."""

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """Do nothing, because a task's changes are known at its end."""

    def finished(
        self, path: str, status: phases.Status, result: object, error: BaseException | None, seconds: float
    ) -> None:
        """Collect the changes in the task's report or exception."""
        del path, status, seconds
        for outcome in (result, error):
            changes = getattr(outcome, "changes", None)
            # An outer task may pass on the report or exception of an inner one. A plan is part of a report.
            is_new = not isinstance(outcome, RoutePlan) and not any(outcome is told for told in self._told)
            if changes and isinstance(changes, Changes) and is_new:
                self.changes |= changes
                self._told.append(outcome)
