"""Run trees of tasks that can be cancelled, observed and logged.

A task does one thing under a `CancelScope`. `Serial`, `Parallel` and `Timeout` combine tasks, and `task` makes a task
from a function. `run` runs a tree, and `run_async` runs it from asyncio. A task waits and runs programs through the
scope, so that a cancellation or a deadline can end it. `all_or_nothing` undoes the changes of a task that fails.
"""

# The modules of this package. Each of them imports only modules above it.
#
#     _errors     Cancelled, TimedOut, Status and Observer; PathNote and path_of, which name the task that failed
#     _interrupts the delay of a Ctrl-C while changes are being undone or a program is starting
#     _scope      CancelScope, with its deadlines and waits; the clock; Undo and all_or_nothing
#     _process    a subprocess, which is ended if the scope is cancelled
#     _log        the log records of a run
#     _run        Task; run, run_async and run_child, which call the observers and add notes for every task
#     _compose    task; Serial, Parallel and Timeout
#     testing     a fake clock, and an observer that records its calls

from phases._compose import Parallel, Serial, Timeout, task
from phases._errors import Cancelled, Observer, PathNote, Status, TimedOut, path_of
from phases._run import Task, run, run_async, run_child
from phases._scope import CancelScope, Clock, SystemClock, Undo, all_or_nothing

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

# Tracebacks, logs and help show the public module name.
for _name in __all__:
    globals()[_name].__module__ = __name__
