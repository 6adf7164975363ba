"""Run a command repeatedly, making a different system call fail each time.

``refusing.py CONFIG COMMAND COUNT PART OF`` runs on a temporary host. It tries COUNT of the
command's possible refusals, evenly spaced. If COUNT is 0, it tries all refusals in PART, one of OF
parts. The output begins with the number of refusals, followed by one line of JSON per refusal.

A refusal makes one of the calls in ``REFUSALS`` fail with one of the errnos listed there. The
program tries every such call after the command's first access to the host. Because starting Python
takes longer than most commands do, the commands run in children forked from a process that has
already imported what they need. During startup, Python loads only itself and our modules, in the
same way for every command. The ``start`` command covers this phase with one refusal for each
combination of call, errno and kind of path. Calls made by the command's own child processes are
never refused.
"""

from __future__ import annotations

import atexit
import errno
import importlib
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import attrs
from host_states import HostState

from hostrouting.__main__ import run as run_command

RUN = Path("/run/aks-flex-node")
MARKERS = [RUN / f"route-overlap.{name}" for name in ("ok", "detected")]
# A failing netlink socket may be reported like this, whatever the errno.
LOST = "an answer from the kernel was lost"
TRACE = Path("/run/trace")
# Stand-in for a Python that can import hostrouting; it runs in a tenth of the time.
ANY_PYTHON = "/bin/true"
SAID_WITHIN, ENDED_WITHIN, POLL_SECONDS = 5.0, 0.3, 0.005
# Errnos that calls on files and sockets can return.
LOOK, CHANGE = ("EIO", "ENAMETOOLONG", "ENOMEM"), ("EIO", "ENOSPC", "EROFS")
REFUSALS = {
    "openat": ("EMFILE", "ENFILE", *LOOK, "ENOSPC", "EROFS"),
    "newfstatat": LOOK,
    "readlink": LOOK,
    "getdents64": ("EIO", "ENOMEM"),
    "read": ("EIO", "ENOMEM"),
    "write": ("EIO", "ENOSPC"),
    "fsync": ("EIO", "ENOSPC"),
    "fchmod": CHANGE,
    "rename": CHANGE,
    "unlink": CHANGE,
    "unlinkat": CHANGE,
    "mkdir": CHANGE,
    "rmdir": CHANGE,
    "symlink": CHANGE,
    "flock": ("EIO", "ENOLCK"),
    "socket": ("EMFILE", "ENFILE", "ENOMEM"),
    "bind": ("ENOMEM",),
    "sendto": ("ENOBUFS", "ENOMEM"),
    "recvfrom": ("ENOBUFS", "ENOMEM"),
    "pipe2": ("EMFILE", "ENFILE"),
    "epoll_create1": ("EMFILE", "ENFILE", "ENOMEM"),
    "epoll_ctl": ("ENOMEM", "ENOSPC"),
    "close": ("EIO", "ENOSPC"),
    "vfork": ("EAGAIN", "ENOMEM"),
}
TRACER = (
    "strace",
    "--quiet=all",
    "-y",
    "-s",
    "256",
    "-o",
    str(TRACE),
    "-e",
    f"trace={','.join(REFUSALS)}",
)
CALL = re.compile(r"^(\w+)\(")
PATH = re.compile(r'^\w+\((?:\d+<(/[^>]*)>|[^"]*"(/[^"]*)")')
PYTHON = tuple({sys.prefix, sys.base_prefix, *filter(None, (*sys.path, sys.pycache_prefix))})


@attrs.frozen
class Refusal:
    """A call to fail: its name, its number among the calls with that name, and the errno."""

    call: str
    number: int
    error: str


@attrs.frozen
class Run:
    """A command's exit status and output."""

    code: int
    said: str


# --- the host -------------------------------------------------------------------------------------


def read_state() -> HostState:
    return HostState.read(RUN)


def restore(state: HostState) -> None:
    state.restore(read_state())
    assert (restored := read_state()) == state, restored.differences(state)


def litter(state: HostState) -> list[str]:
    """Return temporary files that a run should have removed."""
    return [name for name in (*state.files, *state.run) if ".hostrouting-" in name]


# --- a command ------------------------------------------------------------------------------------


@attrs.frozen
class Story:
    """A command and the commands that precede it.

    Args:
        words: the command's arguments.
        before: the commands to run first.
        is_endless: whether the command runs until it is stopped.
        is_taken_back: whether a failure restores the state before the command or before the
            commands in ``before``; if not, the next run finishes the work.
        is_started: whether each run starts a new Python interpreter.
    """

    words: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    is_endless: bool = False
    is_taken_back: bool = True
    is_started: bool = False

    def run(self, strace: tuple[str, ...] | None = None) -> Run:
        """Run the command, under strace if options for it are given."""
        with tempfile.TemporaryFile() as said:
            pid, tracer = self.begin(said, strace)
            status = self.end(pid)
            assert tracer is None or tracer.wait() == 0
            said.seek(0)
            return Run(os.waitstatus_to_exitcode(status), said.read().decode())

    def begin(
        self, said: IO[bytes], strace: tuple[str, ...] | None
    ) -> tuple[int, subprocess.Popen[bytes] | None]:
        """Start the command, and return its PID and its tracer."""
        may_begin = mmap.mmap(-1, 1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        pid = os.fork()
        if pid == 0:
            # The tracer may attach at any time, so none of these calls may be in ``REFUSALS``.
            os.dup2(nothing, 0)
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            if self.is_started:
                traced = (*TRACER, *strace) if strace is not None else ()
                argv = [*traced, sys.executable, "-m", "hostrouting", *self.words]
                os.execvp(argv[0], argv)
            while not may_begin[0]:
                time.sleep(POLL_SECONDS / 5)
            sys.argv = ["hostrouting", *self.words]
            sys.executable = ANY_PYTHON
            # Exit as Python itself does.
            sys.exit(run_command())
        os.close(nothing)
        tracer = None
        if strace is not None and not self.is_started:
            tracer = subprocess.Popen([*TRACER, *strace, "-p", str(pid)])
            while "TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text():
                assert tracer.poll() is None
                time.sleep(POLL_SECONDS)
        may_begin[0] = 1
        return pid, tracer

    def end(self, pid: int) -> int:
        """Wait for the command's end, stopping an endless one, and return its exit status."""
        until = time.monotonic() + SAID_WITHIN
        while self.is_endless and time.monotonic() < until:
            if has_looked():
                # A command that exits by itself after reporting its verdict does so within this
                # time.
                until = min(until, time.monotonic() + ENDED_WITHIN)
            time.sleep(POLL_SECONDS)
            gone, status = os.waitpid(pid, os.WNOHANG)
            if gone:
                return status
        if self.is_endless:
            os.kill(pid, signal.SIGTERM)
        return os.waitpid(pid, 0)[1]


def has_looked() -> bool:
    """Return whether a watcher has reached a verdict."""
    return any(marker.exists() for marker in MARKERS)


def forget_looks() -> None:
    for marker in MARKERS:
        marker.unlink(missing_ok=True)


def import_what_runs(story: Story) -> None:
    """Import the modules that a command needs, so that its forked children don't have to."""
    names = Path("/run/modules")
    leave_names = atexit.register(lambda: names.write_text("\n".join(sys.modules)))
    run_well(story)
    atexit.unregister(leave_names)
    for name in names.read_text().split():
        importlib.import_module(name)


# --- refusals -------------------------------------------------------------------------------------


def refusals(trace: str, begin: str, *, is_sampled: bool) -> Iterator[Refusal]:
    """Yield a command's possible refusals, based on a trace of a run without faults.

    Args:
        trace: the trace of all calls in ``REFUSALS``.
        begin: a string that identifies the command's first access to the host.
        is_sampled: whether to select only Python's own calls: one of each kind before the config is
            read, before the first change, and after it.
    """
    counts: dict[str, int] = {}
    seen: set[tuple[object, ...]] = set()
    has_begun = has_changed = False
    for line in trace.splitlines():
        if (match := CALL.match(line)) is None:
            continue
        call, kind = match[1], kind_of(line)
        counts[call] = counts.get(call, 0) + 1
        has_begun |= begin in line
        has_changed |= call == "rename"
        key = has_begun, has_changed, call, kind
        if is_sampled and (key in seen or (has_begun and kind[0] != "Python")):
            continue
        seen.add(key)
        if has_begun or is_sampled:
            yield from (
                Refusal(call, counts[call], error)
                for error in REFUSALS[call]
                if can_meet(call, error, line)
            )


def can_meet(call: str, error: str, line: str) -> bool:
    """Return whether a call can fail with an errno.

    Read-only calls need no space, and calls on an open file descriptor use no name. Reading from a
    pipe allocates nothing (pipe_read in Linux' fs/pipe.c). close() can fail only for a file that
    was written to.
    """
    if (call == "read" and "<pipe:" in line) or (
        call == "epoll_ctl" and "EPOLL_CTL_ADD" not in line
    ):
        return False
    if call == "close":
        return ".hostrouting-" in line
    if call == "openat" and error in ("ENOSPC", "EROFS"):
        return any(flag in line for flag in ("O_CREAT", "O_WRONLY", "O_RDWR"))
    return error != "ENAMETOOLONG" or "AT_EMPTY_PATH" not in line


def kind_of(line: str) -> tuple[str, str]:
    """Return the directory and suffix of a call's path, or the first argument if the call has no
    path.
    """
    if (match := PATH.search(line)) is None:
        return line.partition(",")[0], ""
    path = Path(match[1] or match[2])
    return "Python" if str(path).startswith(PYTHON) else str(Path(*path.parts[:3])), path.suffix


def main(config: str, command: str, count: int, part: int, parts: int) -> None:
    trial = ("apply", "--try", "3600", config)
    story = {
        "apply": Story(("apply", config)),
        "remove": Story(("remove",), (("apply", config),), is_taken_back=False),
        "try": Story(trial),
        "confirm": Story(("confirm",), (trial,)),
        "revert": Story(("revert",), (trial,)),
        "watch": Story(("watch", config), (("apply", config),), is_endless=True),
        "start": Story(("apply", config), is_started=True),
    }[command]
    nothing = read_state()
    for words in story.before:
        run_well(Story(words))
    forget_looks()
    before = read_state()
    if not story.is_started:
        import_what_runs(story)
        restore(before)
    run_well(story, ())
    begin = (
        config
        if config in story.words
        else "/etc/hostrouting/installed.json"
        if command == "remove"
        else str(RUN)
    )
    met = [*refusals(TRACE.read_text(), begin, is_sampled=story.is_started)]
    after, healed = read_state(), list[Any]()
    sys.stdout.write(f"{len(met)}\n")
    of_part = [refusal for refusal in met if refusal.number % parts == part]
    for refusal in met[len(met) // (2 * count) :: len(met) // count] if count else of_part:
        restore(before)
        begun = time.monotonic()
        run = story.run(
            ("-e", f"inject={refusal.call}:error={refusal.error}:when={refusal.number}")
        )
        report = attrs.asdict(refusal) | attrs.asdict(run)
        report["line"] = next(
            (line for line in TRACE.read_text().splitlines() if "(INJECTED)" in line), ""
        )
        report["wrong"] = [
            *wrong(story, refusal, run, report["line"], (nothing, before, after), healed)
        ]
        report["seconds"] = round(time.monotonic() - begun, 2)
        sys.stdout.write(f"{json.dumps(report)}\n")
        sys.stdout.flush()


def run_well(story: Story, strace: tuple[str, ...] | None = None) -> None:
    run = story.run(strace)
    assert run.code == 0, run.said


def wrong(
    story: Story,
    refusal: Refusal,
    run: Run,
    line: str,
    states: tuple[HostState, ...],
    healed: list[Any],
) -> Iterator[str]:
    """Yield the guarantees that a refusal broke, and check once per leftover state that the next
    run repairs it.
    """
    state, after = read_state(), states[-1]
    if story.is_taken_back and state not in states:
        yield f"left between: {state.differences(states[1])}"
    if litter(state):
        yield f"left {litter(state)}"
    if run.code == (74 if line.startswith("write(1<") else 0):
        if state != after:
            yield "ended well, and it isn't done"
        return
    # Python's own error messages aren't ours to check.
    if not story.is_started:
        yield from wrong_words(refusal, run, line)
    # A trial that has been confirmed or rolled back can't be confirmed or rolled back again.
    if (
        story.words[0] not in ("confirm", "revert")
        and (found := (state.files, state.run, state.routes)) not in healed
    ):
        healed.append(found)
        forget_looks()
        again = story.run()
        if again.code != 0 or (state := read_state()) != after or litter(state):
            yield f"isn't healed: {again.code} {again.said}"


def wrong_words(refusal: Refusal, run: Run, line: str) -> Iterator[str]:
    """Yield the problems with a failure message."""
    if run.code != (77 if refusal.error == "EROFS" else 1):
        yield f"ended with {run.code}"
    if line.startswith("write(2<"):
        return
    reasons = os.strerror(getattr(errno, refusal.error)), LOST
    if "can't" not in run.said or not any(reason in run.said for reason in reasons):
        yield "doesn't say what can't be done, and why"
    if "without a name" in run.said:
        yield "doesn't name the file"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
