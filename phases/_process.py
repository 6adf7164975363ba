"""A subprocess, which a cancel ends with all that it started."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, BinaryIO

from phases._errors import POLL_SECONDS, Cancelled, TimedOut, add_note

# A cancelled call ends within 100 ms: what is left of that is for the kernel to end and reap the process.
_TERM_SECONDS = 0.05
# SIGKILL works at once unless the process hangs in the kernel, where nothing can be done for it.
_KILL_SECONDS = 1.0
# No pipe holds more, unless root has raised /proc/sys/fs/pipe-max-size.
_PIPE_BYTES = 1 << 20


def run_process(
    argv: Sequence[str], text: str | None, env: Mapping[str, str] | None, check: bool, keep_on: Callable[[], None]
) -> subprocess.CompletedProcess[str]:
    """Run a program in a session of its own, as `CancelScope.run` promises.

    Args:
        argv: the program and its arguments.
        text: what it reads from its standard input; None: /dev/null.
        env: its whole environment; None: ours.
        check: whether a return code other than 0 is an error.
        keep_on: raises what ends the program; called every 25 ms.
    """
    with _input_file(text) as stdin:
        process = subprocess.Popen(
            list(argv), stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, start_new_session=True
        )
    try:
        out, err = (data.decode(errors="replace") for data in _output(process, keep_on))
    except (Cancelled, TimedOut) as error:
        add_note(error, f"while it ran {shlex.join(argv)}")
        raise
    finally:
        _end(process)
    if check and process.returncode != 0:
        failure = subprocess.CalledProcessError(process.returncode, process.args, out, err)
        raise add_note(failure, f"it said: {err.strip() or '(nothing)'}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _input_file(text: str | None) -> BinaryIO:
    """What a process reads: a file, as communicate(timeout=) sends no more once it has timed out."""
    file = open(os.devnull if text is None else os.memfd_create("input"), "r+b")  # noqa: SIM115 - the caller's
    file.write((text or "").encode())
    file.seek(0)
    return file


def _output(process: subprocess.Popen[bytes], keep_on: Callable[[], None]) -> tuple[bytes, bytes]:
    """What a process wrote until it exited."""
    while True:
        has_exited = process.poll() is not None
        try:
            return process.communicate(timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired as late:
            if has_exited:  # those who inherited its pipes may write for ever
                return (late.output or b"") + _left_in(process.stdout), (late.stderr or b"") + _left_in(process.stderr)
        keep_on()


def _left_in(pipe: IO[bytes] | None) -> bytes:
    """What a process has written to a pipe, and communicate hadn't the time to read."""
    if pipe is not None and not pipe.closed:
        os.set_blocking(pipe.fileno(), False)
        with suppress(BlockingIOError):
            return os.read(pipe.fileno(), _PIPE_BYTES)
    return b""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing of a process: no file, and unless it has exited by itself, none of its group."""
    if process.returncode is None:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_TERM_SECONDS)  # until all of the group have closed its pipes
        # The number of a group that is gone meanwhile isn't anybody else's yet: the kernel takes them in turn.
        _signal(process, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_SECONDS)
    for pipe in filter(None, (process.stdout, process.stderr)):
        pipe.close()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # A group that is gone, or has become another user's (setuid), is out of our hands.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
