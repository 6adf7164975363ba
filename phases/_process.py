"""One subprocess, run so that it can be ended at any moment, with all that it started."""

from __future__ import annotations

import fcntl
import math
import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial
from typing import IO, TYPE_CHECKING

from phases._clock import POLL_SECONDS
from phases._threads import run_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# A cancelled call ends within 100 ms: what is left of that is for the kernel to end and reap the process.
TERM_SECONDS = 0.05
# SIGKILL works at once unless the process hangs in the kernel, where nothing can be done for it.
_KILL_SECONDS = 1.0
_CHUNK_BYTES = 1 << 16


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
    data = b"" if input is None else input.encode()
    started: list[_Running] = []
    errors: list[BaseException] = []

    def start() -> None:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
            started.append(_Running(process, data))
        except Exception as error:  # noqa: BLE001 - raised in the calling thread
            errors.append(error)

    try:
        # Aside, as a signal handler might raise after the fork and before we know of the process.
        run_aside(start, on_interrupt=errors.append)
        if errors:
            raise errors[0]
        running = started[0]
        if not running.pump(seconds, stopped):
            return None
        running.drain()
        return running.completed()
    finally:
        for running in started:
            running.close()


class _Running:
    """A process, its pipes, and a pidfd that is readable once it has exited (pidfd_open(2))."""

    def __init__(self, process: subprocess.Popen[bytes], data: bytes) -> None:
        self._process = process
        self._unsent = memoryview(data)
        self._received: dict[IO[bytes], bytearray] = {}
        self._has_exited = False
        self._pidfd = -1
        self._selector = selectors.DefaultSelector()
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def pump(self, seconds: float | None, stopped: Callable[[], bool]) -> bool:
        """Move input and output until the process has exited (True), or is to be ended (False)."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        while not self._has_exited:
            left = end - time.monotonic()
            if left <= 0 or stopped():
                return False
            self._step(left)
        return True

    def drain(self) -> None:
        """Read what the process left in its pipes, without waiting for those who inherited them."""
        for pipe, received in self._received.items():
            if not pipe.closed:
                # Heirs of the pipe may write for ever; the process itself left no more than fits into it.
                limit = len(received) + fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
                while len(received) < limit and self._receive(pipe):
                    pass

    def completed(self) -> subprocess.CompletedProcess[str]:
        """Reap the process, which has exited, and tell what came of it."""
        code = self._process.wait()
        out, err = (received.decode(errors="replace") for received in self._received.values())
        return subprocess.CompletedProcess(self._process.args, code, out, err)

    def close(self) -> None:
        """End and reap the process group, unless the process has exited by itself, and close all files."""
        try:
            if self._process.returncode is None:
                self._end()
        finally:
            self._selector.close()
            if self._pidfd >= 0:
                os.close(self._pidfd)
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()

    def _connect(self) -> None:
        self._pidfd = os.pidfd_open(self._process.pid)
        self._selector.register(self._pidfd, selectors.EVENT_READ, self._note_exit)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            self._received[pipe] = bytearray()
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, partial(self._receive, pipe))
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)
            self._selector.register(
                self._process.stdin, selectors.EVENT_WRITE, partial(self._send, self._process.stdin)
            )

    def _step(self, seconds: float) -> None:
        """Wait, but no longer than `POLL_SECONDS`, for something to happen, and serve it."""
        for key, _ in self._selector.select(min(seconds, POLL_SECONDS)):
            key.data()

    def _note_exit(self) -> None:
        self._has_exited = True
        self._selector.unregister(self._pidfd)

    def _send(self, pipe: IO[bytes]) -> None:
        try:
            sent = os.write(pipe.fileno(), self._unsent[:_CHUNK_BYTES])
        except BlockingIOError:
            return
        except BrokenPipeError:
            # Nobody reads any more, which is the program's own business (as in subprocess.communicate).
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._hang_up(pipe)

    def _receive(self, pipe: IO[bytes]) -> int:
        """Read once; gives the number of bytes, 0 at the end of the file or if there is nothing yet."""
        try:
            data = os.read(pipe.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return 0
        self._received[pipe] += data
        if not data:
            self._hang_up(pipe)
        return len(data)

    def _hang_up(self, pipe: IO[bytes]) -> None:
        self._selector.unregister(pipe)
        pipe.close()

    def _end(self) -> None:
        """End the group, then reap the process: until then its number can't become anybody else's."""
        try:
            self._signal(signal.SIGTERM)
            self._linger(TERM_SECONDS)
        finally:
            self._signal(signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_SECONDS)

    def _linger(self, seconds: float) -> None:
        """Wait until the process has exited and all its pipes are closed: its children have ended too."""
        end = time.monotonic() + seconds
        while not (self._has_exited and all(pipe.closed for pipe in self._received)):
            left = end - time.monotonic()
            if left <= 0:
                return
            self._step(left)

    def _signal(self, number: signal.Signals) -> None:
        # A group that is gone, or has become another user's (setuid), is out of our hands.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
