"""A subprocess, which a cancel ends with its process group."""

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

# A cancelled call ends within 100 ms: what is left of that is for the kernel to end and reap the process.
_TERM_SECONDS = 0.05
# SIGKILL works at once unless the process hangs in the kernel, where nothing can be done for it.
_KILL_SECONDS = 1.0
# No pipe holds more, unless root has raised /proc/sys/fs/pipe-max-size.
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 16


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
    """Start a program, and put it into a list: who is interrupted as this returns has it all the same."""
    with _input_file(text) as stdin:
        started.append(
            subprocess.Popen(
                list(argv), stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, start_new_session=True
            )
        )


def _input_file(text: str | None) -> BinaryIO:
    """Return what a process reads: a file, which is all there before the process is."""
    content = (text or "").encode()
    file = open(os.devnull if text is None else os.memfd_create("input"), "r+b")  # noqa: SIM115 - the caller's
    file.write(content)
    file.seek(0)
    return file


def _output(process: subprocess.Popen[bytes], keep_on: Callable[[], None]) -> list[bytes]:
    """Return what a process wrote until it exited.

    Not by communicate(timeout=), which puts all of it together anew each time that it looks.
    """
    with _opened(process) as selector:
        found: list[list[bytes]] = [key.data for key in selector.get_map().values()]
        while True:
            has_exited = process.poll() is not None
            if selector.get_map():
                # What has inherited the pipes of a process that has exited may write for ever.
                _read(selector, 0 if has_exited else POLL_SECONDS, _PIPE_BYTES if has_exited else _READ_BYTES)
            else:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
            if has_exited:
                break
            keep_on()
    return [b"".join(chunks) for chunks in found]


def _opened(process: subprocess.Popen[bytes]) -> PollSelector:
    """Return what waits for the output of a process, each pipe with a list for it.

    Not by epoll(7), which takes a descriptor and memory that may be refused, also where a process is to be ended.
    """
    selector = PollSelector()
    for pipe in filter(None, (process.stdout, process.stderr)):
        selector.register(pipe, EVENT_READ, list[bytes]())
    return selector


def _read(selector: PollSelector, seconds: float, most: int) -> None:
    """Read once from each pipe that has something, and forget those that have ended."""
    for key, _ in selector.select(seconds):
        if chunk := os.read(key.fd, most):
            key.data.append(chunk)
        else:
            selector.unregister(key.fileobj)


@guarded
def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Leave nothing of a process: no file, and unless it has exited by itself, none of its group."""
    for process in started:
        if process.returncode is None:
            _signal(process, signal.SIGTERM)
            _await_end(process, _TERM_SECONDS)
            # The number of a group that is gone meanwhile isn't another group's yet: the kernel takes them in turn.
            _signal(process, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_SECONDS)
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()


def _await_end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until all of a group have closed its pipes, so that none of them waits for a reader."""
    until = time.monotonic() + seconds
    with _opened(process) as selector:
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            _read(selector, left, _READ_BYTES)
            for key in selector.get_map().values():
                key.data.clear()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # A group that is gone, or has become another user's (setuid), is out of our hands.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
