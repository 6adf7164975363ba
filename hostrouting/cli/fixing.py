"""Change a config's file, and keep all text outside our sections the same byte for byte."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, BinaryIO

from hostrouting.boot import files
from hostrouting.config.documents import parse_document
from hostrouting.config.routing import CONFIG_BYTES_MAX, SECTION, StaticRoute
from hostrouting.model.changes import Change, Changes
from hostrouting.model.errors import ConfigError, FileError
from hostrouting.model.jsonable import to_json_text

_BLANKS = re.compile(r"\s*")


def fixed(
    path: str | os.PathLike[str],
    document: dict[str, Any] | None,
    entries: Sequence[StaticRoute],
    cidrs: Sequence[IPv4Network] = (),
    *,
    is_in_place: bool,
) -> tuple[dict[str, Any], Changes]:
    """Return a config with additional static routes and expected CIDRs.

    Args:
        path: the config's path.
        document: the config's content when it was judged, or None if there is no config and only routes were asked for.
        entries: the routes to add.
        cidrs: the CIDRs to add, except those that the config already expects.
        is_in_place: whether to write the file, which only happens if there is something to add.

    Returns:
        The document, and the changes that were made.

    Raises:
        FileError: the file can't be written, or it has changed since it was judged.
    """
    before = document or {}
    section = before.get(SECTION) or {}
    routes = section.get("staticRoutes") or {}
    more = {"enabled": True, "routes": [*(routes.get("routes") or ()), *(entry.to_mapping() for entry in entries)]}
    if entries or document is None:
        section = section | {"staticRoutes": routes | more}
    overlap = section.get("routeOverlap") or {}
    expected = overlap.get("expectedCidrs") or []
    known = [item["cidr"] if isinstance(item, dict) else item for item in expected]
    new = [cidr for cidr in dict.fromkeys(map(str, cidrs)) if cidr not in known]
    if new:
        section = section | {"routeOverlap": overlap | {"expectedCidrs": [*expected, *new]}}
    is_new = bool(entries or new)
    after = before | {SECTION: section} if is_new or document is None else before
    if not (is_new and is_in_place):
        return after, Changes()

    def edit(file: BinaryIO) -> str:
        content = file.read(CONFIG_BYTES_MAX + 1)
        if parse_document(BytesIO(content), str(path), "config", bytes_max=CONFIG_BYTES_MAX) != before:
            raise FileError(f"{path} was changed in the meantime, so the proposal may not fix it", hint="run it again")
        return _with_value(content.decode("utf-8", "surrogateescape"), SECTION, section)

    files.rewrite(Path(path), edit)
    return after, Changes(files=(Change(path, "replaced"),))


def set_sections(path: str | os.PathLike[str], sections: Mapping[str, Any]) -> Changes:
    """Write our keys into a JSON file; if it doesn't exist, create it so that only its owner can read it.

    Args:
        path: the file's path; other components may have their own keys, and secrets, in it.
        sections: the values of our keys.

    Returns:
        The changes, of which there are none if the keys already have these values.

    Raises:
        ConfigError: the file isn't a JSON object, or has one of our keys twice.
        FileError: the file can't be read or written.
    """
    text = files.read_text(Path(path))
    if text is None:
        files.write_if_changed(Path(path), to_json_text(sections), mode=0o600)
        return Changes(files=(Change(path, "added"),))

    def values(text: str) -> str:
        content = BytesIO(text.encode("utf-8", "surrogateescape"))
        document = parse_document(content, str(path), "config", bytes_max=CONFIG_BYTES_MAX)
        if not isinstance(document, dict):
            raise ConfigError([(str(path), "is not a JSON object")])
        # The values are compared as JSON text, because 1 equals True in Python.
        return json.dumps([document.get(key) for key in sections], sort_keys=True)

    wanted = json.dumps([*sections.values()], sort_keys=True)
    if values(text) == wanted:
        return Changes()

    def edit(file: BinaryIO) -> str:
        text = file.read(CONFIG_BYTES_MAX + 1).decode("utf-8", "surrogateescape")
        values(text)
        for key, value in sections.items():
            text = _with_value(text, key, value)
        if values(text) != wanted:
            raise ConfigError([(str(path), f"has one of the keys {', '.join(sections)} twice: which one counts?")])
        return text

    files.rewrite(Path(path), edit)
    return Changes(files=(Change(path, "replaced"),))


def _with_value(text: str, key: str, value: object) -> str:
    """Return the text of a JSON object with the value of one key replaced or added."""
    decode = json.JSONDecoder().raw_decode

    def begin(at: int) -> int:
        """Return the position of the next token."""
        blanks = _BLANKS.match(text, at)
        return at if blanks is None else blanks.end()

    at = end = begin(0) + 1
    while text[at := begin(at)] != "}":
        name, at = decode(text, at)
        at = begin(begin(at) + 1)
        start, (_, end) = at, decode(text, at)
        if name == key:
            return text[:start] + _indented(value) + text[end:]
        at = begin(end)
        at += text[at] == ","
    comma = "," if end > begin(0) + 1 else ""
    return f"{text[:end]}{comma}\n  {json.dumps(key)}: {_indented(value)}\n{text[at:]}"


def _indented(value: object) -> str:
    return json.dumps(value, indent=2).replace("\n", "\n  ")
