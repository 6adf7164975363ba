"""Rules for single values, each of which parses a value or raises a ``ValueError`` that says what is wrong with it."""

from __future__ import annotations

import re
from typing import TypeVar

from hostrouting.config.schema import kind
from hostrouting.model.jsonable import StrEnum
from hostrouting.model.text import shown

Word = TypeVar("Word", bound=StrEnum)


# From systemd.unit(5), without any character of a path.
_CONSUMER = r"(?!-)[A-Za-z0-9:_.-]+@?\.service"
_INSTANCE = r"([A-Za-z0-9:_.-]+)@[A-Za-z0-9:_.-]+\.service"
_WORD = r"[A-Za-z]*"
_PATTERN = r"[][A-Za-z0-9_.*?-]+"
# Parts "." and ".." aren't allowed, so that a path has only one spelling.
_TEXTFILE = r"(/(?!\.\.?/)[^/\0]+)+(?<!/)\.prom"

# From limits.h: the limits of a name, and of a path without its final NUL. The name of the temporary file is longer by
# the third number.
_NAME_BYTES_MAX, _PATH_BYTES_MAX, _TEMPORARY_BYTES = 255, 4095, len(".") + len(".hostrouting-12345678")
# The name must leave space for the folder of an instance's drop-ins; "hostrouting-probe" is the made-up instance.
_CONSUMER_MAX = _NAME_BYTES_MAX - len("hostrouting-probe") - len(".d")
_TOO_LONG = rf"(?s).{{{_CONSUMER_MAX + 1},}}"


def parse_integer(value: int, highest: int) -> int:
    """Return an integer after checking that it lies between 0 and a maximum."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{shown(value)} is not an integer")
    if not 0 <= value <= highest:
        raise ValueError(f"{shown(value)} is out of range; expected 0 to {highest}")
    return value


def parse_boolean(value: bool) -> bool:
    """Return a boolean, and refuse other values even if they are truthy or falsy."""
    if kind(value) != "a boolean":
        raise ValueError(f"{shown(value)} is not a boolean; expected true or false")
    return value


def parse_word(value: str, words: type[Word], kind: str, default: Word) -> Word:
    """Return the word that a value names in any case, or the default for an empty string."""
    if _is(value, _WORD):
        word = value.upper() or default.name
        if word in words.__members__:
            return words[word]
    raise ValueError(f"{shown(value)} is not {kind}; expected {' or '.join(words.__members__)}")


def _is(value: object, pattern: str) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def parse_consumer(value: str) -> str:
    """Return the name of a service or of a template after checking it."""
    if _is(value, _TOO_LONG):
        raise ValueError(f"{shown(value)} is too long; expected at most {_CONSUMER_MAX} characters")
    if _is(value, _INSTANCE):
        template = f"{value.partition('@')[0]}@.service"
        raise ValueError(
            f"{shown(value)} is one instance; name its template, {template}: a repave starts another instance, and the "
            "agent's preflight refuses a node where this one has drop-ins"
        )
    if not _is(value, _CONSUMER):
        raise ValueError(
            f"{shown(value)} is not the name of a service; expected for example systemd-nspawn@.service or "
            "kubelet.service"
        )
    return value


def parse_pattern(value: str) -> str:
    """Return a shell pattern of interface names after checking it."""
    if not _is(value, _PATTERN):
        raise ValueError(f"{shown(value)} is not a pattern of interface names; it may hold A-Z a-z 0-9 _ . - * ? [ ]")
    return value


def parse_textfile(value: str | None) -> str | None:
    """Return the path of a file for the textfile collector of Prometheus' node exporter, which reads ``*.prom``."""
    if value is None or value == "":
        return None
    if not _is(value, _TEXTFILE) or not value.isprintable():
        raise ValueError(
            f"{shown(value)} is not the absolute path of a textfile; expected for example "
            "/var/lib/node_exporter/textfile_collector/hostrouting.prom"
        )
    *folders, name = (len(part.encode()) for part in value.split("/"))
    if max(*folders, name + _TEMPORARY_BYTES) > _NAME_BYTES_MAX:
        raise ValueError(
            f"{shown(value)} has too long a name in it; expected at most {_NAME_BYTES_MAX} bytes of a folder's, "
            f"{_NAME_BYTES_MAX - _TEMPORARY_BYTES} of the textfile's"
        )
    if sum(folders) + len(folders) + name + _TEMPORARY_BYTES > _PATH_BYTES_MAX:
        raise ValueError(f"{shown(value)} is too long; expected at most {_PATH_BYTES_MAX - _TEMPORARY_BYTES} bytes")
    return value
