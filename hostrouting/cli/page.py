"""What a page is made of: lines and rows, with colours as a terminal takes them."""

from __future__ import annotations

from typing import NamedTuple


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
