"""An observer that collects the changes of all tasks in a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.model.changes import Changes
from hostrouting.routes.plan import RoutePlan
from hostrouting.tasks.preview import Plan

if TYPE_CHECKING:
    import phases


@attrs.define(eq=False)
class ChangesObserver:
    """A ``phases.Observer`` that collects the changes of all tasks in a tree, even if the tree fails or is cancelled.

    If a task fails, the changes of completed tasks remain, but the tree's exception doesn't contain
    these changes. Your own observer can derive from this one.

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
        self,
        path: str,
        status: phases.Status,
        result: object,
        error: BaseException | None,
        seconds: float,
    ) -> None:
        """Collect the changes in the task's report or exception."""
        del path, status, seconds
        for outcome in (result, error):
            changes = getattr(outcome, "changes", None)
            # An outer task may pass on the report or exception of an inner one. A plan only
            # predicts its changes.
            is_new = not isinstance(outcome, RoutePlan | Plan) and not any(
                outcome is told for told in self._told
            )
            if changes and isinstance(changes, Changes) and is_new:
                self.changes |= changes
                self._told.append(outcome)
