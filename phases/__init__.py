"""Run trees of tasks that can be cancelled, observed and logged.

A task does one thing within a `CancelScope`. `Serial`, `Parallel` and `Timeout` combine tasks, and
`task` turns a function into a task. `run` runs a tree, and `run_async` runs it from asyncio;
`call_async` calls a function with a scope from asyncio. Tasks wait and run programs through the
scope, so they can be cancelled or time out. `all_or_nothing` rolls back the changes of a failed
task.
"""

# The modules of this package. When a module is imported, it only imports modules above it.
# (CancelScope.run imports _process when it is called.)
#
#     _checks     checks of arguments
#     _errors     Cancelled, TimedOut, Status, Observer; PathNote and path_of name a failed task
#     _interrupts deferral of Ctrl-C during rollbacks and while a program is starting
#     _scope      CancelScope with deadlines and waits; clocks; Undo and all_or_nothing
#     _process    subprocesses, which are killed if the scope is cancelled
#     _log        logging of task runs
#     _run        Task; run, run_async and run_child, which notify observers and annotate exceptions
#                 (call_async calls a function that takes a scope)
#     _compose    task; Serial, Parallel and Timeout
#     testing     a fake clock, and an observer that records its calls

from phases._compose import Parallel, Serial, Timeout, task
from phases._errors import Cancelled, Observer, PathNote, Status, TimedOut, path_of
from phases._run import Task, call_async, run, run_async, run_child
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
    "call_async",
    "path_of",
    "run",
    "run_async",
    "run_child",
    "task",
]

# Show the public module name in tracebacks, logs and help().
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
