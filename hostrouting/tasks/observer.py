"""The changes of a task or of all tasks in a tree, from their results and exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.boot.layout import Layout
from hostrouting.model.changes import Changes
from hostrouting.routes.plan import RoutePlan
from hostrouting.tasks.preview import Plan

if TYPE_CHECKING:
    import phases


def changes_of(result: object, error: BaseException | None = None) -> Changes:
    """Return the changes of a task, from the arguments of an observer's ``finished``.

    The changes are in the task's report, or in its exception if it has failed or was cancelled.
    ``Configure``'s steps, ``Serial`` and ``Parallel`` have no report with changes, so the result is
    empty for them. A plan only predicts changes, so it has none.

    A task that passes on the report or exception of a subtask has the same changes as the subtask.
    So a sum over all tasks would count them twice, and ``ChangesObserver`` counts each once.

    Args:
        result: the task's result.
        error: the task's exception, or None.
    """
    changes = Changes()
    for outcome in (result, error):
        changes |= _reported(outcome) or Changes()
    return changes


def _reported(outcome: object) -> Changes | None:
    """Return the changes in a task's report or exception; None if it has none."""
    found = getattr(outcome, "changes", None)
    is_reported = isinstance(found, Changes) and not isinstance(outcome, RoutePlan | Plan)
    return found if is_reported else None


@attrs.define(eq=False)
class ChangesObserver:
    """A ``phases.Observer`` that collects the changes of all tasks in a tree.

    Its ``changes`` are the differences between the state before the tree and the state after it: a
    change that the task itself or a later one has undone isn't among them. Nor are the check's
    results, even if they have been removed. If the tree fails or is cancelled, the changes of its
    completed tasks remain. This observer lists these changes, but the tree's exception doesn't. The
    same observer can be passed to several runs.
    """

    changes: Changes = attrs.field(factory=Changes, init=False)
    _collected: list[Changes] = attrs.field(factory=list, init=False)

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
            changes = _reported(outcome)
            # An outer task may pass on the report or exception of an inner one, whose changes may
            # have been undone meanwhile.
            if changes and not any(changes is earlier for earlier in self._collected):
                self.changes |= _without_results(changes)
                self._collected.append(changes)


def _without_results(changes: Changes) -> Changes:
    """Return changes without those of the check's results, which are written without a report."""
    results = {*map(str, Layout().markers)}
    return attrs.evolve(
        changes, files=tuple(each for each in changes.files if str(each.what) not in results)
    )
