"""Convert values, keys and times to JSON, and documents to text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, ClassVar


class StrEnum(str, Enum):
    """An enum whose members are strings, like `enum.StrEnum`, which Python 3.10 lacks."""

    __str__ = str.__str__


def rfc_3339(seconds: float) -> str:
    """Return a time since the epoch as text, in UTC and whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def to_json_text(document: object) -> str:
    """Return a JSON document as text, indented and with a newline at its end."""
    import json

    return json.dumps(document, indent=2) + "\n"


def in_json(value: Any) -> Any:
    """Return a value as JSON: as a list, an object, a number, null or text."""
    if hasattr(value, "to_mapping"):
        return value.to_mapping()
    if isinstance(value, tuple):
        return [in_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): in_json(item) for key, item in value.items()}
    if hasattr(value, "to_json"):
        return value.to_json()
    return value if value is None or isinstance(value, int) else str(value)


def fields_in_json(instance: object, *names: str) -> dict[str, Any]:
    """Return a JSON object with the named fields of a value."""
    return {json_key(name): in_json(getattr(instance, name)) for name in names}


class JsonObject:
    """A value whose JSON is an object with its fields, or with the fields and properties in ``json_names``."""

    __slots__ = ()
    json_names: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the value as JSON."""
        return fields_in_json(self, *(self.json_names or getattr(self, "__match_args__", ())))


@cache
def json_key(name: str) -> str:
    """Return the JSON key of a field, such as ``waitSeconds`` for ``wait_seconds``."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
