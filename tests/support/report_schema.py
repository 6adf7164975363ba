"""The JSON Schema of a check's report, as it is and without room for a later release's keys."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA = json.loads(files("hostrouting.overlap").joinpath("route-overlap.schema.json").read_text())


def _closed(schema: Any) -> Any:
    """Return a schema that accepts only the keys and kinds that it names."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    known = [each for each in schema.get("anyOf", ()) if "enum" in each]
    if known:
        schema = {key: value for key, value in schema.items() if key != "anyOf"} | known[0]
    closed = {key: _closed(value) for key, value in schema.items()}
    return closed | (
        {"additionalProperties": False}
        if schema.get("type") == "object" and "properties" in schema
        else {}
    )


OPEN = Draft202012Validator(SCHEMA)
VALIDATOR = Draft202012Validator(
    _closed(SCHEMA), format_checker=Draft202012Validator.FORMAT_CHECKER
)


def problems(document: object) -> list[str]:
    """Return why a document isn't exactly what the schema describes."""
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(document)]
