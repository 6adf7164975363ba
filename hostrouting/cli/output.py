"""Write text to the standard streams, with colours only on a terminal."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from contextlib import ExitStack, suppress
from typing import NamedTuple, TextIO

_POLL_SECONDS = 0.025


class Row(NamedTuple):
    """A table row on a page.

    Args:
        mark: the character at the row's start.
        label: the row's heading, such as a CIDR.
        said: the paragraphs to the right of the label.
    """

    mark: str
    label: str
    said: list[str]


Page = list[str | Row]


def good(text: str) -> str:
    """Return the text in green, for good results."""
    return f"\x1b[32m{text}\x1b[0m"


def bad(text: str) -> str:
    """Return the text in red, for bad results."""
    return f"\x1b[31m{text}\x1b[0m"


def dim(text: str) -> str:
    """Return the text dimmed, for minor details."""
    return f"\x1b[2m{text}\x1b[0m"


def head(text: str) -> str:
    """Return text as a heading."""
    return f"\x1b[1m{text}\x1b[0m"


def columns(stream: TextIO | None) -> int | None:
    """Return the terminal's width; None if it isn't known, or the stream isn't a terminal."""
    if stream is None:
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


class OutputError(Exception):
    """The command has finished, but its output can't be written to stdout.

    Args:
        error: the operating system's error.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"can't write the output: {error.strerror or error}")


def say(text: str, patience: float | None = None) -> None:
    """Print to stdout. A closed pipe or a missing stdout isn't an error.

    Args:
        text: one or more lines.
        patience: for how many seconds to wait while the stream blocks. Then the rest of the text is
            dropped. With None, this function may block until a signal ends the process.

    Raises:
        OutputError: the output can't be written, e.g. because the disk is full.
    """
    try:
        _print(text, sys.stdout, BrokenPipeError, patience)
    except OSError as error:
        raise OutputError(error) from error


def complain(text: str, patience: float | None = None, end: str = "\n") -> None:
    """Print to stderr, ignoring write errors.

    Args:
        text: one or more lines.
        patience: as for ``say``.
        end: what to print after the text.
    """
    _print(text, sys.stderr, OSError, patience, end)


def _print(
    text: str,
    stream: TextIO | None,
    forgiven: type[OSError],
    patience: float | None,
    end: str = "\n",
) -> None:
    if stream is None:
        return
    try:
        shown = _shown(text, stream)
        if patience is None or (descriptor := _descriptor(stream)) is None:
            print(
                shown,
                file=stream,
                end=end,
                flush=True,
            )
        else:
            stream.flush()  # write first what print() has buffered
            _write(
                f"{shown}{end}".encode(stream.encoding, stream.errors or "strict"),
                descriptor,
                patience,
            )
    except forgiven:
        # Without this, the interpreter would try to flush the stream at exit, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _descriptor(stream: TextIO) -> int | None:
    """Return the stream's file descriptor, or None for an in-memory stream."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def _write(data: bytes, descriptor: int, patience: float) -> None:
    """Write the data; drop the rest if the descriptor blocks for ``patience`` seconds."""
    with ExitStack() as stack:
        # A writable pipe has space for at least PIPE_BUF bytes (pipe_poll in fs/pipe.c).
        target = descriptor
        at_once = select.PIPE_BUF
        if os.isatty(descriptor):
            try:
                # Open the terminal again. Other processes share the file description of this
                # descriptor, so O_NONBLOCK would affect them, too.
                path = f"/proc/self/fd/{descriptor}"
                target = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
                stack.callback(os.close, target)
            # After su(1), another user owns the terminal, so it can't be opened. Once poll() says
            # that the terminal is writable, it has space for at least one byte.
            except OSError:
                at_once = 1
        poll = select.poll()
        poll.register(target, select.POLLOUT)
        left = memoryview(data)
        end = time.monotonic() + patience
        while left:
            if poll.poll(0):
                with suppress(BlockingIOError):
                    left = left[os.write(target, left[:at_once]) :]
                    end = time.monotonic() + patience
                    continue
            if time.monotonic() >= end:
                return
            time.sleep(_POLL_SECONDS)


_ASCII = str.maketrans({"✓": "ok", "✗": "!!", "•": "--", "·": "-", "…": "..."})


def _shown(text: str, stream: TextIO) -> str:
    """Return the text as the stream can show it: in its encoding, and with colours on a terminal.

    NO_COLOR turns colours off, and FORCE_COLOR turns them on (https://no-color.org,
    https://force-color.org).
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        if not text.isascii():
            text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    is_able = stream.isatty() and os.environ.get("TERM") != "dumb"
    is_wanted = os.environ.get("FORCE_COLOR") or is_able
    if is_wanted and not os.environ.get("NO_COLOR"):
        return text
    return re.sub(r"\x1b\[[\d;]+m", "", text)
