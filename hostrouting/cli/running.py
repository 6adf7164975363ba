"""How every command runs its task and says its result, and the exit codes that they share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import phases
from hostrouting.cli import styled
from hostrouting.cli.progress import ProgressLine
from hostrouting.cli.signals import cancelled_by_signals
from hostrouting.model.text import to_json_text

if TYPE_CHECKING:
    import argparse

__all__ = ["EXIT_CHECK_UNKNOWN", "EXIT_FAILURE", "EXIT_PLAN_CHANGES", "run_task", "say_as_asked"]

EXIT_FAILURE = 1
EXIT_CHECK_UNKNOWN = 2
EXIT_PLAN_CHANGES = 2


def run_task(task: phases.Task[Any]) -> Any:
    """Run a task that signals end, with a line of progress, and return its result."""
    scope = phases.CancelScope()
    with cancelled_by_signals(scope), ProgressLine(sys.stderr) as observer:
        return phases.run(task, scope=scope, observer=observer)


def say_as_asked(options: argparse.Namespace, document: object, text: str) -> None:
    """Print a result as ``--output`` asks for it."""
    styled.say(to_json_text(document).rstrip() if options.output == "json" else text)
