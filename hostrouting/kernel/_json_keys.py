"""Convert JSON objects to fields and back, and report all problems with their JSON paths.

The objects are links, routes and so on, whose keys are ip's. So each key is listed with its field.
(``config.validation`` derives a config's keys from the fields of its classes.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from hostrouting.config.validation import below, kind
from hostrouting.model.errors import ConfigError
from hostrouting.model.jsonable import in_json

NEEDED = object()

# Longer strings aren't cached.
_WORD_MAX = 64


class Key(NamedTuple):
    """A JSON key with its field, parser, default and formatter.

    A value that equals the default isn't written.
    """

    key: str
    field: str
    parse: Callable[[Any], Any]
    default: Any = NEEDED
    show: Callable[[Any], Any] = in_json


def is_set(value: object) -> bool:
    """Parse a flag. A value of null or true means that the flag is set."""
    return value is not False


def is_unset(value: object) -> bool:
    """Parse a flag whose presence means False."""
    return value is False


class Keys:
    """The keys of a JSON object, such as a route in the output of ``ip -j``.

    Args:
        keys: the keys, in output order. Problems are reported in the same order.
    """

    def __init__(self, *keys: Key) -> None:
        self.keys = keys
        self._defaults = {key.field: key.default for key in keys}
        self._needed = [(key.key, key.field) for key in keys if key.default is NEEDED]
        # The same strings occur many times. Without a cache, checks of snapshots take a third
        # longer.
        self._parsers = {key.key: (key.field, key.parse, lru_cache(key.parse)) for key in keys}

    def read(self, value: object) -> dict[str, Any]:
        """Return the fields of an object, ignoring unknown keys.

        Raises:
            ConfigError: the object is invalid. The error lists all problems.
        """
        if not isinstance(value, (dict, Mapping)):  # dict is the usual type, and quick to check
            raise ConfigError([("", f"expected an object, not {kind(value)}")])
        fields = self._defaults.copy()
        problems: dict[str, list[tuple[str, str]]] = {}
        for name, item in value.items():
            if (known := self._parsers.get(name)) is None:
                continue
            field, parse, parse_word = known
            if item is None and parse not in (is_set, is_unset):
                continue
            try:
                is_word = type(item) is str and len(item) <= _WORD_MAX
                fields[field] = parse_word(item) if is_word else parse(item)
            except (ConfigError, ValueError) as error:
                problems[name] = below(name, error)
        for name, field in self._needed:
            if fields[field] is NEEDED:
                problems.setdefault(name, [(name, "is missing")])
        if problems:
            raise self._error_of(problems)
        return fields

    def _error_of(self, problems: Mapping[str, list[tuple[str, str]]]) -> ConfigError:
        """Return an error that lists problems in the order of the keys."""
        return ConfigError([each for key in self.keys for each in problems.get(key.key, ())])

    def write(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON object for fields, from which ``read`` gets the same fields again."""
        return {
            key.key: key.show(fields[key.field])
            for key in self.keys
            if fields[key.field] != key.default
        }
