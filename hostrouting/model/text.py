"""Sanitize text from other programs for use in messages."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

_SHOWN_CHARACTERS = 80
_JSON_WORDS = ((True, "true"), (False, "false"), (None, "null"))
# The characters that "surrogateescape" makes of bytes that aren't UTF-8.
_ESCAPED = re.compile("[\udc80-\udcff]")


def shown(value: object) -> str:
    """Return a value's ``repr``, cut to 80 characters; write null, true and false as in JSON."""
    text = next((word for each, word in _JSON_WORDS if value is each), repr(value))
    if isinstance(value, float) and abs(value) == float("inf"):
        text = "a number beyond 1.7e308"  # such as 1e999, which Python's json reads as infinity
    if isinstance(value, str) and _ESCAPED.search(value):
        text += " (which isn't UTF-8)"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def shortened(words: Sequence[str], separator: str, most: int) -> str:
    """Join up to ``most`` words with a separator, and append the number of omitted words."""
    rest = len(words) - most
    glue = " " if separator.startswith(",") else separator
    return separator.join(words[:most]) + (f"{glue}and {rest:,} more" if rest > 0 else "")


def plural(noun: str) -> str:
    """Return the plural of a regular noun."""
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 route" or "2 addresses"."""
    return f"{count:,} {noun if count == 1 else plural(noun)}"


_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d*)")


def with_runs(names: Iterable[str]) -> list[str]:
    """Return names, with three or more consecutive ones as a range, such as ``ib0-ib7``."""
    runs: list[list[str]] = []
    following = ""
    for name in names:
        if name == following:
            runs[-1].append(name)
        else:
            runs.append([name])
        numbered = _NUMBERED.fullmatch(name)
        following = "" if numbered is None else f"{numbered[1]}{int(numbered[2]) + 1}"
    words: list[str] = []
    for run in runs:
        words += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else run
    return words


# Unicode categories of control, format and surrogate characters, and of characters that break lines
# on some terminals.
_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")


def clean(text: str) -> str:
    """Replace characters that could control a terminal; an interface's name may contain some."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        "?" if unicodedata.category(c) in _STEERING and c not in "\n\t" else c for c in text
    )
