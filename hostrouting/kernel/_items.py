"""Pure: JSON objects as fields and back, key by key; every problem at once, with its path.

What a kernel holds is a value already, and its class can't be its own schema, as a config's is (``config.schema``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from hostrouting.config.schema import below, kind, problems_of
from hostrouting.model.errors import ConfigError

NEEDED = object()

# What is kept of words is small.
_WORD_MAX = 64


class Key(NamedTuple):
    """A key: the field that it is, how it is read and written, what it is if it is missing, whether that is written."""

    key: str
    field: str
    parse: Callable[[Any], Any]
    show: Callable[[Any], Any]
    default: Any = NEEDED
    is_always: bool = False


def is_set(value: object) -> bool:
    """Parse a flag: it is a key whose value is null or true."""
    return value is not False


def is_unset(value: object) -> bool:
    """Parse a flag that says what a field is not."""
    return value is False


class Keys:
    """The keys of an object.

    Args:
        keys: in the order in which they are written, and their problems told.
    """

    def __init__(self, *keys: Key) -> None:
        self.keys = keys
        # The same words occur again and again, on one host and on many: judging takes a third longer without caches.
        self._rows = [(key, lru_cache(key.parse), key.parse in (is_set, is_unset)) for key in keys]

    def read(self, value: object) -> dict[str, Any]:
        """Return the fields of an object; keys that aren't named are passed over.

        Raises:
            ConfigError: with all that is wrong in it.
        """
        if not isinstance(value, Mapping):
            raise ConfigError([("", f"expected an object, not {kind(value)}")])
        fields: dict[str, Any] = {}
        problems: list[tuple[str, str]] = []
        for key, parse_word, is_flag in self._rows:
            if key.key not in value or (value[key.key] is None and not is_flag):
                fields[key.field] = key.default
                problems += [(key.key, "is missing")] if key.default is NEEDED else []
                continue
            item = value[key.key]
            try:
                is_word = type(item) is str and len(item) <= _WORD_MAX
                fields[key.field] = parse_word(item) if is_word else key.parse(item)
            except (ConfigError, ValueError) as error:
                problems += below(key.key, problems_of(error))
        if problems:
            raise ConfigError(problems)
        return fields

    def write(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object that reads back as these fields."""
        written = (key for key in self.keys if key.is_always or fields[key.field] != key.default)
        return {key.key: key.show(fields[key.field]) for key in written}
