"""Lay out a page: as plain aligned lines for a pipe, or with rich for a terminal."""

from __future__ import annotations

from hostrouting.cli.output import Page, Row


def page_text(page: Page, width: int | None) -> str:
    """Return a page as lines with colours.

    Args:
        page: the lines and rows of the page.
        width: the terminal's width in columns, or None for a pipe, where lines aren't wrapped.

    Returns:
        The lines, with aligned rows.
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
