"""Where output goes, and what of it: only a terminal gets to see colours."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, TextIO

from hostrouting.cli.page import Row

if TYPE_CHECKING:
    from hostrouting.cli.page import Page


def page_text(page: Page, width: int | None) -> str:
    """A page as lines with colours.

    Args:
        page: lines and rows.
        width: how many columns a terminal has; None: it is for a pipe, where no paragraph is broken.

    Returns:
        The lines; rows are aligned.
    """
    if width is not None:
        from hostrouting.cli.drawn import draw

        return draw(page, width)
    label = max((len(item.label) for item in page if isinstance(item, Row)), default=0)
    lines: list[str] = []
    for item in page:
        if isinstance(item, Row):
            lines.append(f"{item.mark} {item.label:{label}}  {item.said[0]}")
            lines += [f"  {'':{label}}  {said}" for said in item.said[1:]]
        else:
            lines.append(item)
    return "\n".join(lines)


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
    if sys.stdout is None:
        return
    try:
        print(_shown(text, sys.stdout), flush=True)  # noqa: T201
    except BrokenPipeError:
        # Without this the interpreter complains once more as it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(text: str) -> None:
    """Print to standard error, if there is one."""
    if sys.stderr is not None:
        print(_shown(text, sys.stderr), file=sys.stderr)  # noqa: T201


_CODE = re.compile(r"\x1b\[[\d;]+m")
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
    return text if is_wanted and not os.environ.get("NO_COLOR") else _CODE.sub("", text)
