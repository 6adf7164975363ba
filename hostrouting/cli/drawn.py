"""Render pages for a terminal or as SVG. No other module imports rich."""

from __future__ import annotations

import re
from io import StringIO
from itertools import groupby

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from hostrouting.cli.output import Page, Row

PICTURE_COLUMNS = 100
_LEAST_COLUMNS = 40

# Only white, red and green of the eight ANSI colours are used.
_THEME = TerminalTheme(
    (11, 20, 32),
    (214, 222, 235),
    [(255, 255, 255), (255, 123, 114), (127, 219, 138)],
)
# The two rules in rich's SVG that load fonts from the web.
_FONT = re.compile(r"@font-face {.*?}", re.DOTALL)
_FONTS = 2
# Characters that aren't allowed in XML 1.0 (section 2.2).
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def draw(page: Page, width: int) -> str:
    """Return a page with colours, wrapped to the terminal's width.

    If the terminal has fewer than 40 columns, it wraps the lines itself.
    """
    text = _printed(page, max(width, _LEAST_COLUMNS)).export_text(styles=True)
    return "\n".join(line.rstrip(" ") for line in text.strip("\n").split("\n"))


def picture(page: Page, title: str) -> str:
    """Return an SVG image of a page in a terminal window.

    Args:
        page: the page to draw.
        title: the window title, as plain text.

    Returns:
        A self-contained SVG document, encoded as pure ASCII.
    """
    svg = _FONT.sub(
        "",
        _printed(page, PICTURE_COLUMNS).export_svg(title=title, theme=_THEME),
        count=_FONTS,
    )
    return _NOT_XML.sub("?", svg).encode("ascii", "xmlcharrefreplace").decode()


def _printed(page: Page, width: int) -> Console:
    # Use the palette of 256 colours, whatever the terminal and the environment are.
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        record=True,
        force_terminal=True,
        color_system="256",
        no_color=False,
    )
    for _, items in groupby(page, type):
        table = Table.grid(padding=(0, 1))
        for item in items:
            if isinstance(item, Row):
                table.add_row(
                    Text.from_ansi(item.mark),
                    Text(f"{item.label} "),
                    Group(*map(_Paragraph, item.said)),
                )
            else:
                console.print(_Paragraph(item))
        if table.row_count:
            console.print("", table, "", sep="\n")
    return console


class _Paragraph:
    """Text that is wrapped with a hanging indent."""

    def __init__(self, text: str) -> None:
        self._text = Text.from_ansi(text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [self._text]
        if self._text.cell_len > options.max_width:
            lines = list(self._text.wrap(console, options.max_width - 2))
        for line in lines:
            line.rstrip()
        yield Text("\n  ").join(lines)
