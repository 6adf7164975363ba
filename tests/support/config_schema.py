"""The config's JSON Schema, which marks in an editor what the code refuses, if it can."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

SCHEMA = json.loads(files("hostrouting.config").joinpath("config.schema.json").read_text())

# Problems that a schema can't express.
_UNSAYABLE = (
    "has host bits set",
    *("is already routes[", "is already rules["),
    "matches only uplinks",
    "is not an integer",  # 1.0 is an integer in a schema
    "did you mean hostRouting?",  # for a key that is one edit away
    "did you mean hostNetworking?",
    "isn't one interface",  # naming the same interface twice is allowed
    "is too long, or contains a file name that is too long",  # in bytes
    *("lies in ::", "lies in f", "is not an IPv6 prefix"),  # IPv6 has many spellings
    *("gateway for", "is link-local; name dev"),  # a gateway depends on the destination
)


def _pattern(
    _validator: Any, pattern: str, value: object, _schema: object
) -> Iterator[ValidationError]:
    """Match a pattern as ECMA-262 does, where ``$`` doesn't match before a trailing newline."""
    if isinstance(value, str) and not re.search(pattern.replace("$", r"\Z"), value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


VALIDATOR = extend(Draft202012Validator, {"pattern": _pattern})(SCHEMA)


def unmarked(document: object, problems: Iterable[tuple[str, str]]) -> list[str]:
    """Return those of a document's problems that the schema could express, if it accepts the
    document all the same.
    """
    if not VALIDATOR.is_valid(document):
        return []
    return [message for _, message in problems if not any(words in message for words in _UNSAYABLE)]


def keys_of_routing() -> list[str]:
    """Return the path of each key, or item of a list, below ``hostRouting`` that contains no other
    one.
    """
    paths = [*dict.fromkeys(_keys(SCHEMA["properties"]["hostRouting"], ""))]
    return [
        path
        for path in paths
        if not any(each.startswith((f"{path}.", f"{path}[")) for each in paths)
    ]


def _keys(schema: dict[str, Any], path: str) -> Iterator[str]:
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    if path:
        yield path
    for option in schema.get("anyOf", ()):
        yield from _keys(option, path)
    for key, value in schema.get("properties", {}).items():
        yield from _keys(value, f"{path}.{key}" if path else key)
    if "items" in schema:
        yield from _keys(schema["items"], f"{path}[0]")


def integer_keys() -> dict[str, dict[str, Any]]:
    """Return the schema of each key whose value is an integer, by its path in error messages."""
    return dict(_integers(SCHEMA, ""))


def _integers(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    if "integer" in schema.get("type", ()):
        yield path, schema
    for option in schema.get("anyOf", ()):
        yield from _integers(option, path)
    for key, value in schema.get("properties", {}).items():
        yield from _integers(value, f"{path}.{key}" if path else key)
    if "items" in schema:
        yield from _integers(schema["items"], f"{path}[0]")
