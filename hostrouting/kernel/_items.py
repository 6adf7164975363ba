"""Pure: JSON objects as fields and back, key by key; every problem at once, with its path.

What a kernel holds is a value already, and its class can't be its own schema, as a config's is (``config.schema``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from hostrouting.config.schema import below, kind
from hostrouting.model.errors import ConfigError

NEEDED = object()


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


def read(value: object, keys: Iterable[Key]) -> dict[str, Any]:
    """The fields of an object; keys that aren't named are passed over.

    Raises:
        ConfigError: with all that is wrong in it.
    """
    if not isinstance(value, Mapping):
        raise ConfigError([("", f"expected an object, not {kind(value)}")])
    fields: dict[str, Any] = {}
    problems: list[tuple[str, str]] = []
    for key, field, parse, _, default, _ in keys:
        fields[field] = default
        item = value.get(key)
        if item is None and (key not in value or parse not in (is_set, is_unset)):
            if default is NEEDED:
                problems.append((key, "is missing"))
            continue
        try:
            fields[field] = parse(item)
        except ConfigError as error:
            problems += below(key, error.problems)
        except ValueError as error:
            problems.append((key, str(error)))
    if problems:
        raise ConfigError(problems)
    return fields


def write(fields: Mapping[str, Any], keys: Iterable[Key]) -> dict[str, Any]:
    """The object that reads back as these fields."""
    return {key.key: key.show(fields[key.field]) for key in keys if key.is_always or fields[key.field] != key.default}
