"""Make text from outside safe for messages to people."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN_CHARACTERS = 80


def shown(value: object) -> str:
    """Return a value from outside as part of a message: on one line, cut after 80 characters."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def shortened(words: Sequence[str], separator: str, most: int) -> str:
    """Return at most ``most`` words, joined, and the number of the others."""
    rest = len(words) - most
    glue = " " if separator == ", " else separator
    return separator.join(words[:most]) + (f"{glue}and {rest:,} more" if rest > 0 else "")


# Control, format and surrogate characters, and those that break a line on some terminals.
_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")


def clean(text: str) -> str:
    """Return text without characters that could control a terminal; an interface's name may contain them."""
    if text.isascii() and text.isprintable():
        return text
    import unicodedata

    return "".join("?" if unicodedata.category(c) in _STEERING and c not in "\n\t" else c for c in text)
