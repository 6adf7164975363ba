"""Run trees of tasks that can be cancelled, watched and read in the log.

A task does one thing under a `CancelScope`; `Serial`, `Parallel` and `Timeout` make bigger tasks of tasks;
`run` runs a tree. The layers, each importing only those above it:

    _errors  _clock         Cancelled, TimedOut, ParallelError, notes; time that can be injected
    _threads  _observe      threads that never leak; who is told, and one at a time
    _logging  _process      an observer that logs; one careful subprocess
    _state                  what has ended, or will end, a scope; without a lock
    _scope                  CancelScope: cancel, deadlines, waits and subprocesses that see both
    _undo                   Undo, all_or_nothing: the way back, shielded from the cancel that asks for it
    _task                   the Task protocol, and tasks made of functions
    _run                    run, run_child: records, notes and observers around every task
    _compose                Serial, Parallel, Timeout, describe
    testing                 a fake clock, tasks and an observer that record

What a run of a single task doesn't need is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phases._clock import Clock
from phases._errors import Cancelled, ParallelError, TimedOut
from phases._observe import Observer, Status
from phases._run import run, run_child
from phases._scope import CancelScope
from phases._task import Task, task

if TYPE_CHECKING:
    from phases._compose import Parallel, Serial, Timeout, describe
    from phases._undo import Undo, all_or_nothing

__all__ = [
    "CancelScope",
    "Cancelled",
    "Clock",
    "Observer",
    "Parallel",
    "ParallelError",
    "Serial",
    "Status",
    "Task",
    "TimedOut",
    "Timeout",
    "Undo",
    "all_or_nothing",
    "describe",
    "run",
    "run_child",
    "task",
]


def __getattr__(name: str) -> Any:
    # What runs a single task, as a command does, needs none of these (PEP 562).
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from phases import _compose, _undo

    value = globals()[name] = getattr(_undo if hasattr(_undo, name) else _compose, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
