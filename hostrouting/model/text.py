"""Text from outside: files are opened with care, and words are made fit for a message to a person."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from enum import Enum

_SHOWN_CHARACTERS = 80


class StrEnum(str, Enum):
    """Words that are text: `enum.StrEnum`, which Python 3.10 lacks."""

    __str__ = str.__str__


def shown(value: object) -> str:
    """A value from outside as part of a message: on one line, and no longer than a person will read."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def shortened(words: Sequence[str], separator: str, most: int) -> str:
    """Some words for a person: no more than that many, and how many there are besides."""
    rest = len(words) - most
    glue = " " if separator == ", " else separator
    return separator.join(words[:most]) + (f"{glue}and {rest} more" if rest > 0 else "")


def clean(text: str) -> str:
    """Text from outside, such as an interface's name, without characters and bytes that could steer a terminal."""
    if text.isascii() and text.isprintable():
        return text
    import unicodedata

    return "".join("?" if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\n\t" else c for c in text)


def rfc_3339(seconds: float) -> str:
    """A time since the epoch as text: UTC, in whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def to_json_text(document: object) -> str:
    """A JSON document as it is printed and written: indented, with a newline at its end."""
    import json

    return json.dumps(document, indent=2) + "\n"


def only_regular(path: str, flags: int) -> int:
    """An opener for ``open`` that refuses at once what could be waited for for ever: a FIFO, a device but /dev/null.

    Raises:
        OSError: it can't be opened, or is no regular file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    found = os.fstat(descriptor)
    # /dev/null is what systemd.unit(5) has a masked file linked to.
    is_mask = stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3)
    if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode) or is_mask:  # open refuses a directory itself
        return descriptor
    os.close(descriptor)
    raise OSError("it is not a regular file")
