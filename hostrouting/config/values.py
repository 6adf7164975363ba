"""The rules of single values of the config: each parses one, or says in a ``ValueError`` what is wrong with it."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TypeVar

from hostrouting.model.text import shown

__all__ = ["parse_boolean", "parse_consumer", "parse_integer", "parse_pattern", "parse_textfile", "parse_word"]

Word = TypeVar("Word", bound=StrEnum)

# systemd.unit(5); no path can hide in it.
_CONSUMER = re.compile(r"[A-Za-z0-9:_.-]+@?[A-Za-z0-9:_.-]*\.service")
_PATTERN = re.compile(r"[][A-Za-z0-9_.*?-]+")
# No "." or ".." as a part: where it leads is what it says.
_TEXTFILE = re.compile(r"(/(?!\.\.?/)[^/\0]+)+(?<!/)\.prom")


def parse_integer(value: object, highest: int) -> int:
    """A whole number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{shown(value)} is not an integer")
    if not 0 <= value <= highest:
        raise ValueError(f"{shown(value)} is out of range; expected 0 to {highest}")
    return value


def parse_boolean(value: object) -> bool:
    """True or false, and nothing that merely counts as one of them."""
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not a boolean; expected true or false")
    return value


def parse_word(value: object, words: type[Word], kind: str, default: Word) -> Word:
    """One of some words, in any case; the default for an empty string."""
    if isinstance(value, str) and value.isascii():  # upper() makes ASCII of some letters that aren't
        word = value.upper() or default
        if word in words.__members__:
            return words[word]
    raise ValueError(f"{shown(value)} is not {kind}; expected {' or '.join(words.__members__)}")


def parse_consumer(value: object) -> str:
    """The name of a service, an instance or a template."""
    if not isinstance(value, str) or not _CONSUMER.fullmatch(value):
        raise ValueError(
            f"{shown(value)} is not the name of a service; expected for example systemd-nspawn@.service, "
            "systemd-nspawn@kube1.service or kubelet.service"
        )
    return value


def parse_pattern(value: object) -> str:
    """A shell pattern of interface names."""
    if not isinstance(value, str) or not _PATTERN.fullmatch(value):
        raise ValueError(f"{shown(value)} is not a pattern of interface names; it may hold A-Z a-z 0-9 _ . - * ? [ ]")
    return value


def parse_textfile(value: object) -> str | None:
    """The path of a file for the textfile collector of Prometheus' node exporter, which reads ``*.prom``."""
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not value.isprintable() or not _TEXTFILE.fullmatch(value):
        raise ValueError(
            f"{shown(value)} is not the absolute path of a textfile; expected for example "
            "/var/lib/node_exporter/textfile_collector/hostrouting.prom"
        )
    return value
