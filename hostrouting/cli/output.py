"""Compose pages for people, and write them; only a terminal gets colours."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple, TextIO

_POLL_SECONDS = 0.025


class Row(NamedTuple):
    """A row of a table; rows of one page are aligned.

    Args:
        mark: one character.
        label: what it is about.
        said: paragraphs.
    """

    mark: str
    label: str
    said: list[str]


Page = list[str | Row]


def good(text: str) -> str:
    """Return text in the colour of what is as it should be."""
    return f"\x1b[32m{text}\x1b[0m"


def bad(text: str) -> str:
    """Wrong."""
    return f"\x1b[31m{text}\x1b[0m"


def dim(text: str) -> str:
    """By the way."""
    return f"\x1b[2m{text}\x1b[0m"


def head(text: str) -> str:
    """Return text as a heading."""
    return f"\x1b[1m{text}\x1b[0m"


def columns(stream: TextIO | None) -> int | None:
    """Return the width of a terminal; None if a stream is none, or doesn't know."""
    if stream is None:
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


class OutputError(Exception):
    """Standard output can't be written; what was asked for has been done by then.

    Args:
        error: the refusal of the operating system.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"can't write the output: {error.strerror or error}")


KeepOn = Callable[[], bool]
"""Returns whether to go on waiting for a stream that takes no more; called every 25 ms, and before the first wait."""


def say(text: str, keep_on: KeepOn | None = None) -> None:
    """Print to standard output; a reader that has gone, or that never was, is no failure of what was done.

    Args:
        text: one line or more.
        keep_on: when it returns False, what the stream hasn't taken is dropped; None: wait for as long as it takes,
            as only a process should whose signals end it.

    Raises:
        OutputError: it can't be written, for example for a full disk.
    """
    try:
        _print(text, sys.stdout, BrokenPipeError, keep_on)
    except OSError as error:
        raise OutputError(error) from error


def complain(text: str, keep_on: KeepOn | None = None) -> None:
    """Print to standard error, if there is one; a run goes on and ends alike where that can't be written.

    Args:
        text: one line or more.
        keep_on: as of ``say``.
    """
    _print(text, sys.stderr, OSError, keep_on)


def draw_line(text: str) -> None:
    """Write a part of a line on the terminal of standard error; what that doesn't take at once is dropped."""
    _print(text, sys.stderr, OSError, lambda: False, end="")


def patience(seconds: float) -> KeepOn:
    """Return what keeps on for so long in all."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def _print(text: str, stream: TextIO | None, forgiven: type[OSError], keep_on: KeepOn | None, end: str = "\n") -> None:
    if stream is None:
        return
    try:
        shown = _shown(text, stream)
        if keep_on is None or (descriptor := _descriptor(stream)) is None:
            print(shown, file=stream, end=end, flush=True)
        else:
            stream.flush()  # what was printed otherwise comes first
            _write(f"{shown}{end}".encode(stream.encoding, stream.errors or "strict"), descriptor, keep_on)
    except forgiven:
        # What is left of it would fail once more as the interpreter closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _descriptor(stream: TextIO) -> int | None:
    """Return the file of a stream; None if it is in memory."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def _write(data: bytes, descriptor: int, keep_on: KeepOn) -> None:
    """Write without ever blocking for longer than 25 ms."""
    with ExitStack() as stack:
        # A pipe that has room at all has that much (pipe_poll in fs/pipe.c).
        target, at_once = descriptor, select.PIPE_BUF
        if os.isatty(descriptor):
            try:
                # Opened anew: other processes share the stream's own description, and must find it as it was.
                path = f"/proc/self/fd/{descriptor}"
                target = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
                stack.callback(os.close, target)
            except OSError:  # after su(1) it belongs to another user; a terminal with room has it for one byte
                at_once = 1
        poll = select.poll()
        poll.register(target, select.POLLOUT)
        left = memoryview(data)
        while left:
            if poll.poll(0):
                with suppress(BlockingIOError):
                    left = left[os.write(target, left[:at_once]) :]
                    continue
            if not keep_on():
                return
            time.sleep(_POLL_SECONDS)


_ASCII = str.maketrans({"✓": "ok", "✗": "!!", "•": "--", "·": "-", "…": "...", "━": "="})


def _shown(text: str, stream: TextIO) -> str:
    """Text without the colours and signs that a stream has no way to show (https://no-color.org, https://force-color.org)."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        if not text.isascii():
            text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    is_wanted = os.environ.get("FORCE_COLOR") or (stream.isatty() and os.environ.get("TERM") != "dumb")
    return text if is_wanted and not os.environ.get("NO_COLOR") else re.sub(r"\x1b\[[\d;]+m", "", text)
