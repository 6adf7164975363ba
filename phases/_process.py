"""What a signal handler must not tear apart: a subprocess, which a cancel ends with all it started, and threads."""

from __future__ import annotations

import _thread
import math
import os
import queue
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from phases._errors import POLL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# A cancelled call ends within 100 ms: what is left of that is for the kernel to end and reap the process.
_TERM_SECONDS = 0.05
# SIGKILL works at once unless the process hangs in the kernel, where nothing can be done for it.
_KILL_SECONDS = 1.0


def run_process(
    argv: Sequence[str],
    *,
    input: str | None,  # noqa: A002 - as subprocess.run
    env: Mapping[str, str] | None,
    cwd: str | os.PathLike[str] | None,
    seconds: float | None,
    stopped: Callable[[], bool],
) -> subprocess.CompletedProcess[str] | None:
    """Run a program in a session of its own; ends its process group if that takes too long.

    Args:
        argv: the program and its arguments.
        input: text for its standard input; None: /dev/null.
        env: its whole environment; None: ours.
        cwd: its working directory; None: ours.
        seconds: how long it may take; None: no end.
        stopped: tells whether it is to be ended.

    Returns:
        What came of it; None if it was ended.

    Raises:
        OSError: it can't be started.
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    started: list[subprocess.Popen[bytes]] = []
    errors: list[BaseException] = []

    def start() -> None:
        try:
            with _input_file(input) as stdin:
                process = subprocess.Popen(
                    list(argv),
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=env,
                    cwd=cwd,
                    start_new_session=True,
                )
            started.append(process)
        except Exception as error:  # noqa: BLE001 - raised in the calling thread
            errors.append(error)

    try:
        # Aside, as a signal handler might raise after the fork and before we know of the process.
        run_aside(start, on_interrupt=errors.append)
        if errors:
            raise errors[0]
        (process,) = started
        output = _output(process, end, stopped)
        if output is None:
            return None
        out, err = (data.decode(errors="replace") for data in output)
        return subprocess.CompletedProcess(process.args, process.wait(), out, err)
    finally:
        for process in started:
            if process.returncode is None:
                _end(process)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


@contextmanager
def _input_file(text: str | None) -> Iterator[int]:
    """What a process reads: a file, as communicate(timeout=) sends no more once it has timed out."""
    if text is None:
        yield subprocess.DEVNULL
        return
    with open(os.memfd_create("input"), "w+b") as file:
        file.write(text.encode())
        file.seek(0)
        yield file.fileno()


def _output(process: subprocess.Popen[bytes], end: float, stopped: Callable[[], bool]) -> tuple[bytes, bytes] | None:
    """What a process wrote until it exited; None if it is to be ended first."""
    while True:
        has_exited = process.poll() is not None
        left = end - time.monotonic()
        if not has_exited and (left <= 0 or stopped()):
            return None
        try:
            return process.communicate(timeout=POLL_SECONDS if has_exited else min(left, POLL_SECONDS))
        except subprocess.TimeoutExpired as late:
            # Those who inherited its pipes may write for ever; what it left in them itself has been read.
            if has_exited:
                return late.output or b"", late.stderr or b""


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_TERM_SECONDS)  # until all of the group have closed its pipes
    finally:
        # The number of a group that is gone meanwhile isn't anybody else's yet: the kernel takes them in turn.
        _signal(process, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_SECONDS)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # A group that is gone, or has become another user's (setuid), is out of our hands.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def run_aside(work: Callable[[], None], *, on_interrupt: Callable[[BaseException], None]) -> None:
    """Do a work where no signal handler can raise in its midst: in a thread that is not the main one.

    Args:
        work: what to do; must not raise.
        on_interrupt: is called with what a signal handler raises here meanwhile, or with the error if no
            more threads can be started; what hasn't begun by then is not done.
    """
    aside = _Aside(work)
    while True:
        try:
            aside.begin()
            aside.wait()
        except BaseException as error:  # noqa: BLE001 - given to the caller
            aside.is_interrupted = True
            on_interrupt(error)
        else:
            return


class _Aside:
    """A thread that is started by a single call.

    If that is interrupted nobody knows whether it ever runs: so whoever claims the work first, it or the one
    who waits, decides whether there is anything to wait for.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.is_interrupted = False
        self._work = work
        self._claims: dict[str, bool] = {}
        self._has_begun = False
        self._is_over = False
        self._over: queue.SimpleQueue[None] = queue.SimpleQueue()

    def begin(self) -> None:
        """Start it, once."""
        if not self._has_begun:
            self._has_begun = True
            _thread.start_new_thread(self._do, ())

    def wait(self) -> None:
        """Wait until the work is done; after an interrupt only if it has begun."""
        while not self._is_over and not (self.is_interrupted and not self._claims.setdefault("begun", False)):
            with suppress(queue.Empty):
                self._over.get(timeout=POLL_SECONDS)

    def _do(self) -> None:
        if self._claims.setdefault("begun", True):
            try:
                self._work()
            finally:
                self._is_over = True
                self._over.put(None)
