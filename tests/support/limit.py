"""Abort a process with SIGABRT and kill its descendants when its time is up.

``limit.py PID`` reads lines from standard input: the number of seconds that PID has left, or an
empty line for no limit. It exits at end of input, so it doesn't outlive PID. It is a separate
process because PID's threads may be waiting for a lock that is never released. SIGABRT makes
pytest's faulthandler dump the stack of every thread, even if a thread is holding the GIL.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path


def started_by(pid: int) -> list[int]:
    """Return the descendants of a process, excluding this program."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            # The process name may contain anything, including spaces and parentheses.
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    return [child for child in found[1:] if child != os.getpid()]


def words(pid: int) -> str:
    """Return a process's command line and the kernel function in which it is waiting."""
    command = (
        Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    )
    return f"  {pid} in {Path(f'/proc/{pid}/wchan').read_text()}: {command[:200]}\n"


def end(pid: int) -> None:
    """Abort a process, kill its descendants, and print one line per descendant."""
    held: list[int] = []
    said = ""
    for child in started_by(pid):
        with suppress(OSError):  # the process has ended
            held.append(os.pidfd_open(child))  # the pid may be reused
            said += words(child)
    sys.stderr.write(
        f"\nA test took too long: ending process {pid}, and what it has started:\n{said}"
    )
    sys.stderr.flush()
    os.kill(pid, signal.SIGABRT)
    for child in held:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, signal.SIGKILL)


def main(pid: int) -> None:
    """Read a process's time limits and enforce them."""
    due: float | None = None
    while True:
        left = None if due is None else max(0.0, due - time.monotonic())
        if not select.select([0], [], [], left)[0]:
            end(pid)
            return
        told = os.read(0, 65536)
        if not told:
            return
        last = told.decode().split("\n")[-2]
        due = time.monotonic() + float(last) if last else None


if __name__ == "__main__":
    main(int(sys.argv[1]))
