"""Run trees of tasks that can be cancelled, watched and read in the log.

A task does one thing under a `CancelScope`; `Serial`, `Parallel` and `Timeout` make bigger tasks of tasks;
`run` runs a tree. The layers, each importing only those above it:

    _compat     what Python 3.10 lacks
    _errors     Cancelled, TimedOut, Status, Observer; PathNote, path_of: which task failed
    _scope      CancelScope: cancel, deadlines and waits that see both; the clock; Undo, all_or_nothing: the way back
    _process    one subprocess, which a cancel ends
    _run        Task; run, run_child: log records, notes and observers around every task
    _function   task
    _compose    Serial, Parallel, Timeout
    _async      run_async
    testing     a fake clock, and an observer that records

What a run of a single task doesn't need is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phases._errors import Cancelled, Observer, PathNote, Status, TimedOut, path_of
from phases._run import Task, run, run_child
from phases._scope import CancelScope, Clock, SystemClock, Undo, all_or_nothing

if TYPE_CHECKING:
    from phases._async import run_async
    from phases._compose import Parallel, Serial, Timeout
    from phases._function import task

__all__ = [
    "CancelScope",
    "Cancelled",
    "Clock",
    "Observer",
    "Parallel",
    "PathNote",
    "Serial",
    "Status",
    "SystemClock",
    "Task",
    "TimedOut",
    "Timeout",
    "Undo",
    "all_or_nothing",
    "path_of",
    "run",
    "run_async",
    "run_child",
    "task",
]


def __getattr__(name: str) -> Any:
    # What runs a single task, as a command does, needs none of these (PEP 562).
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "run_async":
        from phases._async import run_async

        return run_async
    if name == "task":
        from phases._function import task

        return task
    from phases import _compose

    return getattr(_compose, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
