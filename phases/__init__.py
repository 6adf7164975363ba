"""Run trees of tasks that can be cancelled, watched and read in the log.

A task does one thing under a `CancelScope`; `Serial`, `Parallel` and `Timeout` make bigger tasks of tasks;
`run` runs a tree. The layers, each importing only those above it:

    _compat     what Python 3.10 lacks
    _errors     Cancelled, TimedOut, notes, Status, Observer
    _scope      CancelScope: cancel, deadlines and waits that see both; the clock
    _process    one subprocess, which a cancel ends; a thread aside
    _run        Task, task; run, run_child: log records, notes and observers around every task
    _compose    Serial, Parallel, Timeout, all_or_nothing
    testing     a fake clock, tasks and an observer that record
"""

from phases._compose import Parallel, Serial, Timeout, Undo, all_or_nothing
from phases._errors import Cancelled, Observer, Status, TimedOut
from phases._run import Task, run, run_child, task
from phases._scope import CancelScope, Clock

__all__ = [
    "CancelScope",
    "Cancelled",
    "Clock",
    "Observer",
    "Parallel",
    "Serial",
    "Status",
    "Task",
    "TimedOut",
    "Timeout",
    "Undo",
    "all_or_nothing",
    "run",
    "run_child",
    "task",
]
