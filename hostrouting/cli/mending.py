"""A config's file with more static routes: all that isn't of host routing stays as it is written, byte for byte."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from hostrouting.boot import files
from hostrouting.config.routing import SECTION, StaticRoute, read_config
from hostrouting.model.changes import Change, Changes
from hostrouting.model.errors import FileError


def mended(
    path: str | os.PathLike[str],
    document: dict[str, Any] | None,
    entries: Sequence[StaticRoute],
    cidrs: Sequence[IPv4Network] = (),
    *,
    is_in_place: bool,
) -> tuple[dict[str, Any], Changes]:
    """A config with some more static routes and expected CIDRs.

    Args:
        path: of the config.
        document: what it held when it was judged; None: there is none, and these routes are all.
        entries: the routes.
        cidrs: the CIDRs; those that it expects already aren't added.
        is_in_place: whether it is written, unless nothing is new.

    Returns:
        The document, and what was changed.

    Raises:
        FileError: it can't be written, or somebody has changed it meanwhile.
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
    if read_config(path) != before:
        raise FileError(f"{path} was changed meanwhile, so what is proposed may not mend it; run again")
    files.rewrite(Path(path), _with_value(files.read_text(Path(path)) or "", SECTION, section))
    return after, Changes(files=(Change(path, "replaced"),))


def _with_value(text: str, key: str, value: object) -> str:
    """The text of a JSON object with another value of one of its keys, or with one more."""
    decode = json.JSONDecoder().raw_decode

    def begin(at: int) -> int:
        """Where the next word begins."""
        return len(text) - len(text[at:].lstrip())

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
