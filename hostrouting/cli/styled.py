"""Text with a little colour: for a terminal, for a pipe, or as a picture."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, NamedTuple, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "CARD",
    "CSS",
    "PALETTE",
    "Paint",
    "bad",
    "cell",
    "columns",
    "complain",
    "dim",
    "escape",
    "good",
    "head",
    "is_colourful",
    "say",
    "to_svg",
    "to_terminal",
]


class Paint(NamedTuple):
    """The colour of a strip's cell, and of the symbol in it: as a terminal's (of 256), and as a picture's."""

    back: int
    front: int
    fill: str
    ink: str


# What is expected is calm, failures are warm, notes cool or grey. Neighbours differ in lightness, not in hue alone,
# and each has a symbol besides: nobody has to tell red from green. The fills are the terminal's colours.
PALETTE = {
    "expected": Paint(24, 67, "#005f87", "#5f87af"),
    "shadow-0": Paint(208, 16, "#ff8700", "#000000"),
    "shadow-1": Paint(220, 16, "#ffd700", "#000000"),
    "shadow-2": Paint(211, 16, "#ff87af", "#000000"),
    "shadow-3": Paint(137, 16, "#af875f", "#000000"),
    "shadow-4": Paint(223, 16, "#ffd7af", "#000000"),
    "shadow-5": Paint(169, 16, "#d75faf", "#000000"),
    "shadow-6": Paint(229, 16, "#ffffaf", "#000000"),
    "shadow-7": Paint(173, 16, "#d7875f", "#000000"),
    "no-route": Paint(198, 16, "#ff0087", "#000000"),
    "discarded": Paint(196, 16, "#ff0000", "#000000"),
    "own": Paint(250, 16, "#bcbcbc", "#000000"),
    "broadcast": Paint(244, 16, "#808080", "#000000"),
    "container": Paint(140, 16, "#af87d7", "#000000"),
    "cni-discard": Paint(189, 16, "#d7d7ff", "#000000"),
    "allowed-0": Paint(80, 16, "#5fd7d7", "#000000"),
    "allowed-1": Paint(37, 16, "#00afaf", "#000000"),
    "allowed-2": Paint(152, 16, "#afd7d7", "#000000"),
    "not-judged": Paint(236, 240, "#303030", "#585858"),
}

# The same without a visible symbol: who copies the strip gets the symbols all the same.
_SOLID = {f"{role}-solid": paint._replace(front=paint.back, ink=paint.fill) for role, paint in PALETTE.items()}
_PAINTS = PALETTE | _SOLID

_SGR = {"good": "32", "bad": "31", "dim": "2", "head": "1"} | {
    role: f"48;5;{paint.back};38;5;{paint.front}" for role, paint in _PAINTS.items()
}
_ROLE_OF = {code: role for role, code in _SGR.items()}
_CODE = re.compile(r"\x1b\[[\d;]+m")
_SPAN = re.compile(r"\x1b\[([\d;]+)m(.*?)\x1b\[0m")


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


def cell(role: str, text: str) -> str:
    """Cells of a strip side by side, or a swatch of its legend: solid, with one symbol to be seen in the middle.

    Args:
        role: one of ``PALETTE``.
        text: the symbols.
    """
    middle = len(text) // 2
    parts = ((f"{role}-solid", text[:middle]), (role, text[middle]), (f"{role}-solid", text[middle + 1 :]))
    return "".join(_styled(role, part) for role, part in parts if part)


def is_colourful(stream: TextIO) -> bool:
    """Whether a stream is a terminal that takes colours (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns(stream: TextIO | None) -> int | None:
    """How wide a terminal is; None if a stream is none, or doesn't know."""
    if stream is None:
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


_PLAIN = str.maketrans({"✓": "ok", "✗": "!!", "•": "--", "·": "-", "…": "..."})


def to_terminal(text: str, stream: TextIO) -> str:
    """Styled text as a stream can show it: without colours or signs that it has no way to show."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        if not text.isascii():
            text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return text if is_colourful(stream) else _CODE.sub("", text)


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


CARD = "#0b1420"
CSS = (
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
    rows = "\n".join(_row(line, _MARGIN_PX + number * _LINE_PX) for number, line in enumerate(lines) if line)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'xml:space="preserve" role="img" aria-label="{_quoted(title)}">\n<style>{CSS}</style>\n'
        f'<rect width="100%" height="100%" rx="8" fill="{CARD}"/>\n{rows}\n</svg>\n'
    )


def escape(text: str) -> str:
    """Text as the character data of XML (section 2.4)."""
    # Not xml.sax.saxutils': that loads urllib and, with it, what speaks HTTP and TLS.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _quoted(text: str) -> str:
    return escape(text).replace('"', "&quot;")


def _row(line: str, top: int) -> str:
    pieces = list(_pieces(line))
    # Text with a background is set on the grid, whatever the font's real advance is.
    is_on_grid = any(role in _PAINTS for role, _ in pieces)
    backs: list[str] = []
    spans: list[str] = []
    column = 0
    for role, text in pieces:
        x, length = _MARGIN_PX + column * _CHARACTER_PX, len(text) * _CHARACTER_PX
        column += len(text)
        place = f' x="{x:.2f}" textLength="{length:.2f}"' if is_on_grid else ""
        if (paint := _PAINTS.get(role)) is not None:
            size = f'width="{length:.2f}" height="{_LINE_PX - 1}" shape-rendering="crispEdges"'
            backs.append(f'<rect x="{x:.2f}" y="{top}" {size} fill="{paint.fill}"/>')
            place += f' style="fill:{paint.ink}"'
        elif role:
            place += f' class="{role}"'
        spans.append(f"<tspan{place}>{escape(text)}</tspan>" if place else escape(text))
    return f'{"".join(backs)}<text x="{_MARGIN_PX}" y="{top + _LINE_PX - 5}">{"".join(spans)}</text>'


def _pieces(line: str) -> Iterator[tuple[str, str]]:
    """The parts of a line, each with its role; "" for what has none."""
    position = 0
    for match in _SPAN.finditer(line):
        if match.start() > position:
            yield "", line[position : match.start()]
        yield _ROLE_OF[match[1]], match[2]
        position = match.end()
    if position < len(line):
        yield "", line[position:]
