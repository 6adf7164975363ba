"""What pages for people are made of; and where output goes: only a terminal gets to see colours."""

from __future__ import annotations

import os
import re
import sys
from typing import NamedTuple, TextIO


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
    """As it should be."""
    return f"\x1b[32m{text}\x1b[0m"


def bad(text: str) -> str:
    """Wrong."""
    return f"\x1b[31m{text}\x1b[0m"


def dim(text: str) -> str:
    """By the way."""
    return f"\x1b[2m{text}\x1b[0m"


def head(text: str) -> str:
    """A heading."""
    return f"\x1b[1m{text}\x1b[0m"


def columns(stream: TextIO | None) -> int | None:
    """How wide a terminal is; None if a stream is none, or doesn't know."""
    if stream is None:
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def say(text: str) -> None:
    """Print to standard output; a reader that has gone, or that never was, is no failure of what was done.

    Raises:
        OSError: it can't be written for any other reason, for example a full disk.
    """
    _print(text, sys.stdout, BrokenPipeError)


def complain(text: str) -> None:
    """Print to standard error, if there is one; a run goes on and ends alike where that can't be written."""
    _print(text, sys.stderr, OSError)


def _print(text: str, stream: TextIO | None, forgiven: type[OSError]) -> None:
    if stream is None:
        return
    try:
        print(_shown(text, stream), file=stream, flush=True)
    except forgiven:
        # What is left of it would fail once more as the interpreter closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_ASCII = str.maketrans({"✓": "ok", "✗": "!!", "•": "--", "·": "-", "…": "..."})


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
