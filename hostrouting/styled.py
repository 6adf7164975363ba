"""Text with a little colour: for a terminal, for a pipe, or as a picture."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from typing import TYPE_CHECKING, TextIO
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["bad", "clean", "complain", "dim", "good", "head", "is_colourful", "say", "to_svg", "to_terminal"]

_SGR = {"good": "32", "bad": "31", "dim": "2", "head": "1"}
_ROLE_OF = {code: role for role, code in _SGR.items()}
_SPAN = re.compile(r"\x1b\[(\d+)m(.*?)\x1b\[0m")


def _styled(role: str, text: str) -> str:
    return f"\x1b[{_SGR[role]}m{text}\x1b[0m"


def good(text: str) -> str:
    """As it should be."""
    return _styled("good", text)


def bad(text: str) -> str:
    """Wrong."""
    return _styled("bad", text)


def dim(text: str) -> str:
    """By the way."""
    return _styled("dim", text)


def head(text: str) -> str:
    """A heading."""
    return _styled("head", text)


def clean(text: str) -> str:
    """Text from outside, such as an interface's name, without characters that could steer a terminal."""
    return "".join("?" if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t" else c for c in text)


def is_colourful(stream: TextIO) -> bool:
    """Whether a stream is a terminal that takes colours (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


_PLAIN = str.maketrans({"✓": "ok", "✗": "!!", "·": "-", "…": "..."})


def to_terminal(text: str, stream: TextIO) -> str:
    """Styled text as a stream can show it: without colours or signs that it has no way to show."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return text if is_colourful(stream) else _SPAN.sub(r"\2", text)


def say(text: str) -> None:
    """Print to standard output; a reader that has gone, or that never was, is no failure of what was done.

    Raises:
        OSError: it can't be written for any other reason, for example a full disk.
    """
    if sys.stdout is None:
        return
    try:
        print(to_terminal(text, sys.stdout), flush=True)  # noqa: T201
    except BrokenPipeError:
        # Without this the interpreter complains once more as it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(text: str) -> None:
    """Print to standard error, if there is one."""
    if sys.stderr is not None:
        print(to_terminal(text, sys.stderr), file=sys.stderr)  # noqa: T201


_CSS = (
    "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d6deeb;white-space:pre}"
    ".good{fill:#7fdb8a}.bad{fill:#ff7b72}.dim{fill:#8b98a9}.head{fill:#fff;font-weight:bold}"
)
_LINE_PX, _CHARACTER_PX, _MARGIN_PX = 18, 7.85, 16


def to_svg(text: str, *, title: str) -> str:
    """Styled text as a picture of a terminal, in one self-contained SVG document.

    Args:
        text: lines as the functions above make them.
        title: what the picture shows, for those who can't see it.

    Returns:
        The document.
    """
    lines = text.rstrip("\n").split("\n")
    width = round(max(len(_SPAN.sub(r"\2", line)) for line in lines) * _CHARACTER_PX + 2 * _MARGIN_PX)
    height = len(lines) * _LINE_PX + 2 * _MARGIN_PX
    rows = "\n".join(
        f'<text x="{_MARGIN_PX}" y="{_MARGIN_PX + (number + 1) * _LINE_PX - 5}">{"".join(_spans(line))}</text>'
        for number, line in enumerate(lines)
        if line
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'xml:space="preserve" role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">\n<style>{_CSS}</style>\n'
        f'<rect width="100%" height="100%" rx="8" fill="#0b1420"/>\n{rows}\n</svg>\n'
    )


def _spans(line: str) -> Iterable[str]:
    position = 0
    for match in _SPAN.finditer(line):
        yield escape(line[position : match.start()])
        yield f'<tspan class="{_ROLE_OF[match[1]]}">{escape(match[2])}</tspan>'
        position = match.end()
    yield escape(line[position:])
