"""Text from outside, made fit for a message to a person."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN_CHARACTERS = 80


def shown(value: object) -> str:
    """Return a value from outside as part of a message: on one line, and cut after 80 characters."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def shortened(words: Sequence[str], separator: str, most: int) -> str:
    """Return at most ``most`` words, joined, and how many more there are."""
    rest = len(words) - most
    glue = " " if separator == ", " else separator
    return separator.join(words[:most]) + (f"{glue}and {rest:,} more" if rest > 0 else "")


# Controls, formats and surrogates; and what breaks a line on some terminals.
_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")


def clean(text: str) -> str:
    """Return text without the characters that could steer a terminal; an interface's name may have them."""
    if text.isascii() and text.isprintable():
        return text
    import unicodedata

    return "".join("?" if unicodedata.category(c) in _STEERING and c not in "\n\t" else c for c in text)
