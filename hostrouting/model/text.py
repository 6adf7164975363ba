"""Make text from other programs safe to show in messages."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN_CHARACTERS = 80


def shown(value: object) -> str:
    """Return a value as part of a message: on one line, and cut after 80 characters."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def shortened(words: Sequence[str], separator: str, most: int) -> str:
    """Return at most ``most`` words, joined by the separator, and how many more there are."""
    rest = len(words) - most
    glue = " " if separator == ", " else separator
    return separator.join(words[:most]) + (f"{glue}and {rest:,} more" if rest > 0 else "")


# The categories of control, format and surrogate characters, and of characters that break a line on some terminals.
_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")


def clean(text: str) -> str:
    """Return text without characters that could control a terminal, which an interface's name may contain."""
    if text.isascii() and text.isprintable():
        return text
    import unicodedata

    return "".join("?" if unicodedata.category(c) in _STEERING and c not in "\n\t" else c for c in text)
