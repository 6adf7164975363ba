"""Convert values, keys and timestamps to JSON, and serialize documents."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, ClassVar


class StrEnum(str, Enum):
    """A backport of `enum.StrEnum`, which Python 3.10 lacks."""

    __str__ = str.__str__


def rfc_3339(seconds: float) -> str:
    """Format a Unix timestamp per RFC 3339, in UTC and whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def to_json_text(document: object) -> str:
    """Serialize a JSON document, indented and with a trailing newline."""
    return json.dumps(document, indent=2) + "\n"


def in_json(value: Any) -> Any:
    """Convert a value to a JSON list, object, number, null or string."""
    if hasattr(value, "to_mapping"):
        return value.to_mapping()
    if isinstance(value, (tuple, list)):
        return [in_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): in_json(item) for key, item in value.items()}
    if hasattr(value, "to_json"):
        return value.to_json()
    return value if value is None or isinstance(value, int) else str(value)


def fields_in_json(instance: object, *names: str) -> dict[str, Any]:
    """Return a JSON object with the given fields of an instance."""
    return {json_key(name): in_json(getattr(instance, name)) for name in names}


class JsonObject:
    """Base class for values that convert to a JSON object.

    The JSON object has the attributes in ``json_names``, or all fields if ``json_names`` is empty.
    """

    __slots__ = ()
    json_names: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the value as JSON."""
        return fields_in_json(self, *(self.json_names or getattr(self, "__match_args__", ())))


@cache
def json_key(name: str) -> str:
    """Return the JSON key for a field, for example ``waitSeconds`` for ``wait_seconds``."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
