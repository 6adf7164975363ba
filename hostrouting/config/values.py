"""Parsers for single values, which raise a ``ValueError`` with a description of the problem.

This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from hostrouting.config.validation import kind, parse_items
from hostrouting.model.jsonable import StrEnum
from hostrouting.model.text import shown

Word = TypeVar("Word", bound=StrEnum)


# See systemd.unit(5); escape sequences and slashes aren't allowed.
_CONSUMER = r"(?!-)[A-Za-z0-9:_.-]+@?\.service"
_INSTANCE = r"([A-Za-z0-9:_.-]+)@[A-Za-z0-9:_.-]+\.service"
_WORD = r"[A-Za-z]*"
_PATTERN = r"[][A-Za-z0-9_.*?-]+"
# The components "." and ".." aren't allowed, because each file must have a unique path.
# The watcher may write to the file's folder and all below, so that isn't / or a folder like /etc.
_TEXTFILE = r"(/(?!\.\.?/)[^/\0]+){3,}(?<!/)\.prom"

# NAME_MAX and PATH_MAX from limits.h (without the trailing NUL), and the number of bytes that a
# temporary file's name adds to the name of the file.
_NAME_BYTES_MAX = 255
_PATH_BYTES_MAX = 4095
_TEMPORARY_BYTES = len(".") + len(".hostrouting-12345678")
# Leave room for the name of an instance's drop-in folder. The gate of a template is verified on the
# instance "hostrouting-probe" (``ANY_INSTANCE``), which never starts.
_CONSUMER_MAX = _NAME_BYTES_MAX - len("hostrouting-probe") - len(".d")
_WAIT_SECONDS_MAX = 600
_TOO_LONG = rf"(?s).{{{_CONSUMER_MAX + 1},}}"


def parse_integer(value: int, highest: int, *, lowest: int = 0) -> int:
    """Validate that a value is an integer from ``lowest`` to ``highest``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{shown(value)} is not an integer")
    if not lowest <= value <= highest:
        raise ValueError(f"{shown(value)} is out of range; expected {lowest} to {highest}")
    return value


def parse_seconds(value: int) -> int:
    """Validate a wait time in seconds."""
    return parse_integer(value, _WAIT_SECONDS_MAX)


def parse_boolean(value: bool) -> bool:
    """Validate that a value is a boolean, rejecting other truthy or falsy values."""
    if kind(value) != "a boolean":
        raise ValueError(f"{shown(value)} is not a boolean; expected true or false")
    return value


def parse_word(
    value: str,
    words: type[Word],
    kind: str,
    default: Word,
) -> Word:
    """Parse an enum member, ignoring case; an empty string selects the default."""
    if _is(value, _WORD):
        word = value.upper() or default.name
        if word in words.__members__:
            return words[word]
    raise ValueError(f"{shown(value)} is not {kind}; expected {' or '.join(words.__members__)}")


def _is(value: object, pattern: str) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def parse_consumer(value: str) -> str:
    """Validate the name of a service or a template."""
    if _is(value, _TOO_LONG):
        raise ValueError(f"{shown(value)} is too long; expected at most {_CONSUMER_MAX} characters")
    if _is(value, _INSTANCE):
        template = f"{value.partition('@')[0]}@.service"
        raise ValueError(
            f"{shown(value)} is one instance, and the node may start another one next time; "
            f"name its template, {template}"
        )
    if not _is(value, _CONSUMER):
        raise ValueError(
            f"{shown(value)} is not the name of a service; "
            "expected for example systemd-nspawn@.service or kubelet.service"
        )
    return value


def parse_pattern(value: str) -> str:
    """Validate a shell pattern for interface names."""
    if not _is(value, _PATTERN):
        raise ValueError(
            f"{shown(value)} is not a pattern of interface names; "
            "it may hold A-Z a-z 0-9 _ . - * ? [ ]"
        )
    return value


def parse_patterns(value: Sequence[str]) -> tuple[str, ...]:
    """Validate shell patterns for interface names."""
    return parse_items(value, parse_pattern)


def parse_named_patterns(value: Sequence[str] | None) -> tuple[str, ...] | None:
    """Validate shell patterns for interface names, or None. An empty list is rejected."""
    patterns = None if value is None else parse_items(value, parse_pattern)
    if patterns == ():
        raise ValueError("must not be empty; leave it out for the default")
    return patterns


def parse_textfile(value: str | None) -> str | None:
    """Validate a path for the node exporter's textfile collector, which reads ``*.prom``."""
    if value is None:
        return None
    if not _is(value, _TEXTFILE) or not value.isprintable():
        raise ValueError(
            f"{shown(value)} is not the absolute path of a textfile, at least two folders below /; "
            "expected for example "
            "/var/lib/node_exporter/textfile_collector/hostrouting.prom"
        )
    names = [len(name.encode()) for name in value.split("/")]
    names[-1] += _TEMPORARY_BYTES
    slashes = len(names) - 1
    if max(names) > _NAME_BYTES_MAX or sum(names) + slashes > _PATH_BYTES_MAX:
        raise ValueError(f"{shown(value)} is too long, or contains a file name that is too long")
    return value
