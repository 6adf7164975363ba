"""Run a subprocess, and end its process group when it is cancelled."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from selectors import EVENT_READ, PollSelector
from typing import BinaryIO

from phases._errors import POLL_SECONDS, Cancelled, TimedOut, add_note
from phases._interrupts import begin, end, guarded, raise_what_waited

# A cancelled call ends within 100 ms. The remaining time is for the kernel to end and reap the process.
_TERM_SECONDS = 0.05
# SIGKILL works at once, unless the process hangs in the kernel; nothing can end such a process.
_KILL_SECONDS = 1.0
# The maximum capacity of a pipe, unless root has raised /proc/sys/fs/pipe-max-size.
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 16


def run_process(
    argv: Sequence[str], text: str | None, env: Mapping[str, str] | None, check: bool, keep_on: Callable[[], None]
) -> subprocess.CompletedProcess[str]:
    """Run a program in its own session, as `CancelScope.run` promises.

    Args:
        argv: the program and its arguments.
        text: the text for the standard input, or None for /dev/null.
        env: the whole environment; by default that of this process.
        check: whether a return code other than 0 is an error.
        keep_on: a function that is called every 25 ms and raises an exception to end the program.
    """
    started: list[subprocess.Popen[bytes]] = []
    has_begun = begin()
    try:
        _start(argv, text, env, started)
        raise_what_waited()
        (process,) = started
        out, err = (data.decode(errors="replace") for data in _output(process, keep_on))
    except (Cancelled, TimedOut) as error:
        add_note(error, f"while it ran {shlex.join(argv)}")
        raise
    finally:
        _end(started)
        end(has_begun)
    if check and process.returncode != 0:
        failure = subprocess.CalledProcessError(process.returncode, process.args, out, err)
        raise add_note(failure, f"it said: {err.strip() or '(nothing)'}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@guarded
def _start(
    argv: Sequence[str], text: str | None, env: Mapping[str, str] | None, started: list[subprocess.Popen[bytes]]
) -> None:
    """Start a program and append it to a list, so that an interrupt during the return doesn't lose it."""
    with _input_file(text) as stdin:
        started.append(
            subprocess.Popen(
                list(argv), stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, start_new_session=True
            )
        )


def _input_file(text: str | None) -> BinaryIO:
    """Return a process's input as a file, which is complete before the process starts."""
    content = (text or "").encode()
    file = open(os.devnull if text is None else os.memfd_create("input"), "r+b")  # noqa: SIM115 - the caller's
    file.write(content)
    file.seek(0)
    return file


def _output(process: subprocess.Popen[bytes], keep_on: Callable[[], None]) -> list[bytes]:
    """Return what a process writes until it exits.

    This doesn't use communicate(timeout=), which joins all output again at each check.
    """
    with _opened(process) as selector:
        found: list[list[bytes]] = [key.data for key in selector.get_map().values()]
        while True:
            has_exited = process.poll() is not None
            if selector.get_map():
                # Processes that inherited the pipes may still write after the process has exited.
                _read(selector, 0 if has_exited else POLL_SECONDS, _PIPE_BYTES if has_exited else _READ_BYTES)
            else:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
            if has_exited:
                break
            keep_on()
    return [b"".join(chunks) for chunks in found]


def _opened(process: subprocess.Popen[bytes]) -> PollSelector:
    """Return a selector for the output of a process, with a list for each pipe.

    This doesn't use epoll(7), because it needs a descriptor and memory, which may be refused even when a process must
    be ended.
    """
    selector = PollSelector()
    for pipe in filter(None, (process.stdout, process.stderr)):
        selector.register(pipe, EVENT_READ, list[bytes]())
    return selector


def _read(selector: PollSelector, seconds: float, most: int) -> None:
    """Read once from each pipe that has data, and unregister pipes that are closed."""
    for key, _ in selector.select(seconds):
        if chunk := os.read(key.fd, most):
            key.data.append(chunk)
        else:
            selector.unregister(key.fileobj)


@guarded
def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Clean up after a process: close its files, and kill its group unless the process has exited on its own."""
    for process in started:
        if process.returncode is None:
            _signal(process, signal.SIGTERM)
            _await_end(process, _TERM_SECONDS)
            # If the group is already gone, its number isn't used by another group yet, because the kernel assigns
            # numbers in turn.
            _signal(process, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_SECONDS)
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()


def _await_end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until the whole group has closed its pipes, and read them so that no process waits for a reader."""
    until = time.monotonic() + seconds
    with _opened(process) as selector:
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            _read(selector, left, _READ_BYTES)
            for key in selector.get_map().values():
                key.data.clear()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # A group that is gone, or that now belongs to another user (setuid), can't be signalled.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
