"""Run a subprocess and kill its process group on cancellation."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from selectors import EVENT_READ, PollSelector
from typing import BinaryIO

from phases._errors import POLL_SECONDS, Cancelled, TimedOut, add_note
from phases._interrupts import begin, end, guarded

# How long a process may take to end after SIGTERM. A cancelled call must return within 100 ms; the
# other 50 ms are for SIGKILL.
_TERM_SECONDS = 0.05
# How long to wait for a process after SIGKILL. A process usually ends at once, but not during an
# uninterruptible sleep.
_KILL_SECONDS = 1.0
# The default value of /proc/sys/fs/pipe-max-size.
_PIPE_BYTES = 1 << 20


def run_process(
    argv: Sequence[str],
    text: str | None,
    env: Mapping[str, str] | None,
    check: bool,
    keep_on: Callable[[], None],
) -> subprocess.CompletedProcess[str]:
    """Run a program in a new session; see `CancelScope.run`.

    Args:
        argv: the program, with its arguments.
        text: the standard input, or None for /dev/null.
        env: the complete environment; inherited by default.
        check: whether to raise an exception for a non-zero return code.
        keep_on: called every 25 ms; raises an exception to kill the program.
    """
    argv = _checked_argv(argv)
    started: list[subprocess.Popen[bytes]] = []
    has_begun = begin()
    try:
        _start(argv, text, env, started)
        end(False)  # raise a Ctrl-C that was deferred during the start
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


def _checked_argv(argv: object) -> list[str]:
    """Return the program and its arguments, with paths as strings.

    Raises:
        TypeError: the value isn't a list of strings or paths.
        ValueError: the list is empty.
    """
    if isinstance(argv, (str, bytes)) or not isinstance(argv, Sequence):
        raise TypeError(
            'expected a list of the program and its arguments, such as ["ip", "route"], '
            f"not {argv!r:.200}"
        )
    if not argv:
        raise ValueError("expected a program and its arguments, not an empty list")
    return [os.fsdecode(part) for part in argv]


@guarded
def _start(
    argv: list[str],
    text: str | None,
    env: Mapping[str, str] | None,
    started: list[subprocess.Popen[bytes]],
) -> None:
    """Start a program and append it to a list, because an interrupt could lose a return value."""
    with _input_file(text) as stdin:
        started.append(
            subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                start_new_session=True,
            )
        )


def _input_file(text: str | None) -> BinaryIO:
    """Return a file that contains the process's complete input."""
    content = (text or "").encode()
    source = os.devnull if text is None else os.memfd_create("input")
    file = open(source, "r+b")  # noqa: SIM115 - the caller closes it
    file.write(content)
    file.seek(0)
    return file


def _output(process: subprocess.Popen[bytes], keep_on: Callable[[], None]) -> list[bytes]:
    """Return the output of a process until it exits.

    communicate(timeout=) isn't used: on a busy machine, it may time out before it has read
    anything, even if the process has already exited. epoll(7) isn't used either: it needs a file
    descriptor and memory, which may be lacking when a process must be killed.
    """
    output: list[list[bytes]] = []
    with PollSelector() as selector:
        for pipe in filter(None, (process.stdout, process.stderr)):
            chunks: list[bytes] = []
            output.append(chunks)
            selector.register(pipe, EVENT_READ, chunks)
        while True:
            has_exited = process.poll() is not None
            has_pipes = bool(selector.get_map())
            if not has_pipes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
            # Child processes that inherited the pipes may still be writing after the process has
            # exited.
            seconds = POLL_SECONDS if has_pipes and not has_exited else 0
            for key, _ in selector.select(seconds):
                if chunk := os.read(key.fd, _PIPE_BYTES):
                    key.data.append(chunk)
                else:
                    selector.unregister(key.fileobj)
            if has_exited:
                return [b"".join(chunks) for chunks in output]
            keep_on()


@guarded
def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Clean up after a process: kill its group if it is still running, and close the pipes."""
    for process in started:
        if process.returncode is None:
            _signal(process, signal.SIGTERM)
            # Wait until the whole group has closed its pipes.
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_TERM_SECONDS)
            # The group may have ended. The group's ID still can't belong to another group, because
            # the kernel allocates PIDs cyclically.
            _signal(process, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_SECONDS)
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # The group may no longer exist, or may belong to another user after a setuid.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
