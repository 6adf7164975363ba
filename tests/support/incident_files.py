"""Read the files in ``tests/incidents``, whose fields CONTRIBUTING explains."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[1] / "incidents"


class Field(NamedTuple):
    """The type of a field's value, for strings a regular expression, and both in words."""

    type: type
    words: str
    pattern: str = ""
    is_required: bool = True


_TEXT = Field(str, "a text", r"(?s).*\S.*")
_LINES = Field(list, "a list")
_OBJECT = Field(dict, "an object")
_SOURCE = Field(str, "OWNER/REPOSITORY#NUMBER or a URL", r"\S+/\S+#\d+|https?://[^/\s]+/\S*")
_DATE = Field(str, "a date such as 2026-06-05, or unknown", r"\d{4}-\d\d-\d\d|unknown")

_OF_ALL = {"host": _LINES, "config": _OBJECT, "probes": _LINES, "expect": _OBJECT}
_FIELDS = {
    "cases": {
        "source": _SOURCE,
        "date": _DATE,
        "class": _TEXT,
        **dict.fromkeys(("symptom", "cause", "people"), _TEXT),
        **dict.fromkeys(("assumed", "why", "gateway"), _TEXT._replace(is_required=False)),
        **_OF_ALL,
        "owner": _OBJECT._replace(is_required=False),
    },
    "healthy": {"source": _TEXT, **_OF_ALL, "named": _OBJECT},
}
_OPTIONAL_TEXT = Field(str, "a text", is_required=False)
_OWNER = {
    "advised": _TEXT,
    "does": _LINES._replace(is_required=False),
    "answer": _OBJECT._replace(is_required=False),
}
_PROBE = {
    "to": _TEXT,
    "through": _TEXT,
    **dict.fromkeys(("via", "source", "from", "in"), _OPTIONAL_TEXT),
    **dict.fromkeys(("mtu", "uid"), Field(int, "a number", is_required=False)),
}
_EXPECT = {
    **dict.fromkeys(("leaves", "says"), _LINES),
    **dict.fromkeys(("fixes", "breaks"), _LINES._replace(is_required=False)),
}


def documents(folder: str) -> dict[str, dict[str, Any]]:
    """Return the JSON of each case in a folder by its name.

    Raises:
        ValueError: a file has a field that isn't as CONTRIBUTING says.
    """
    found = {}
    for path in sorted((FOLDER / folder).glob("*.json")):
        document = json.loads(path.read_text())
        if problem := problem_of(document, folder):
            raise ValueError(f"tests/incidents/{folder}/{path.name}: {problem}")
        found[path.stem] = document
    return found


def problem_of(document: Mapping[str, Any], folder: str) -> str:
    """Return what is wrong with a case in a folder, or an empty string."""
    problem = _problem(document, _FIELDS[folder]) or _problem_inside(document)
    if problem or folder != "cases":
        return problem
    for key, name in (("class", "classes.json"), ("why", "reasons.json")):
        known = json.loads((FOLDER / name).read_text())
        if key in document and document[key] not in known:
            return f"{key} {document[key]!r} isn't a key of {name}"
    return ""


def _problem_inside(document: Mapping[str, Any]) -> str:
    """Return what is wrong with a field of an object in a case, or an empty string."""
    objects = [("expect.", document["expect"], _EXPECT)]
    for number, probe in enumerate(document["probes"]):
        if not isinstance(probe, dict):
            return f"probes[{number}] is {probe!r}; expected an object"
        objects.append((f"probes[{number}].", probe, _PROBE))
    if "owner" in document:
        objects.append(("owner.", document["owner"], _OWNER))
    problems = (_problem(found, fields, within) for within, found, fields in objects)
    return next(filter(None, problems), "")


def _problem(found: Mapping[str, Any], fields: Mapping[str, Field], within: str = "") -> str:
    for key in found:
        if key not in fields:
            return f"unknown field {within}{key}; expected one of {', '.join(fields)}"
    for key, field in fields.items():
        if key not in found:
            if field.is_required:
                return f"{within}{key} is missing; expected {field.words}"
            continue
        value = found[key]
        if not isinstance(value, field.type) or (
            field.pattern and not re.fullmatch(field.pattern, str(value))
        ):
            return f"{within}{key} is {value!r}; expected {field.words}"
    return ""
