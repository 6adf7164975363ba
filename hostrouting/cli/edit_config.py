"""Edit a config file and preserve everything outside our sections byte for byte."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from ipaddress import ip_network
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hostrouting.boot import files
from hostrouting.config.documents import CONFIG_BYTES_MAX, parse_document
from hostrouting.config.routing import SECTION, StaticRoutes
from hostrouting.model.changes import Change, Changes
from hostrouting.model.errors import ConfigError, FileError
from hostrouting.model.family import IpNetwork
from hostrouting.model.jsonable import to_json_text

_BLANKS = re.compile(r"\s*")


def merged(
    document: dict[str, Any] | None,
    entries: StaticRoutes,
    cidrs: Sequence[IpNetwork],
    *,
    uplinks: Sequence[str] = (),
    watches: bool = False,
) -> dict[str, Any]:
    """Return a document with additional static routes, rules, kept interfaces, CIDRs and uplinks.

    Args:
        document: the document to extend, or None without a CONFIG.
        entries: the routes, rules and kept interfaces to add. A rule replaces the config's rule for
            the same CIDR.
        cidrs: the CIDRs to add; those that the config already expects are skipped.
        uplinks: the new uplinks, or none to keep the config's uplinks.
        watches: whether to enable the watcher.
    """
    before = document or {}
    section = _object(before, SECTION)
    if entries.is_wanted or document is None:
        static = _object(section, "staticRoutes")
        section = section | {"staticRoutes": _with_entries(static, entries)}
    if uplinks:
        section = section | {"uplinks": [*uplinks]}
    if watches:
        section = section | {"watch": _object(section, "watch") | {"enabled": True}}
    overlap = _object(section, "routeOverlap")
    if new := _unexpected(overlap, cidrs):
        expected = [*_list(overlap, "expectedCidrs"), *new]
        section = section | {"routeOverlap": overlap | {"expectedCidrs": expected}}
    return before | {SECTION: section} if section else before


def _object(parent: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object under a key, or an empty one if the key is missing or null."""
    return parent.get(key) or {}


def _list(parent: Mapping[str, Any], key: str) -> list[Any]:
    """Return a copy of the list under a key; empty if the key is missing or null."""
    return [*(parent.get(key) or ())]


def _with_entries(static: dict[str, Any], entries: StaticRoutes) -> dict[str, Any]:
    routes = [*_list(static, "routes"), *(route.to_mapping() for route in entries.routes)]
    static = static | {"enabled": True, "routes": routes}
    if entries.rules:
        rules = [*_list(static, "rules"), *(rule.to_mapping() for rule in entries.rules)]
        by_cidr = {ip_network(rule["to"]): rule for rule in rules}
        static = static | {"rules": [*by_cidr.values()]}
    if entries.keep:
        present = _list(static, "keep")
        kept = [entry.to_mapping() for entry in entries.keep]
        static = static | {"keep": present + [each for each in kept if each not in present]}
    return static


def _unexpected(overlap: Mapping[str, Any], cidrs: Sequence[IpNetwork]) -> list[str]:
    """Return the CIDRs that the section ``routeOverlap`` doesn't expect yet, without duplicates."""
    expected = _list(overlap, "expectedCidrs")
    known = [item["cidr"] if isinstance(item, dict) else item for item in expected]
    return [cidr for cidr in dict.fromkeys(map(str, cidrs)) if cidr not in known]


def set_sections(
    path: str | os.PathLike[str],
    sections: Mapping[str, Any],
    known: dict[str, Any] | None = None,
) -> Changes:
    """Write our keys into a JSON file. A missing file is created with mode 0600.

    Args:
        path: the file's path; it may also contain other components' keys and secrets.
        sections: our keys and their values.
        known: the document that the file had when the values were made from it. If the file
            contains another document by now, this is an error. None if the values don't depend on
            the file.

    Returns:
        The changes; empty if the keys already have these values.

    Raises:
        ConfigError: the file isn't a JSON object, or contains one of our keys twice.
        FileError: the file can't be read or written, or no longer contains the known document.
    """
    path = Path(path)
    if known is None and files.read_text(path) is None:
        files.write_if_changed(files.followed_folder(path), to_json_text(sections), mode=0o600)
        return Changes(files=(Change(path, "added"),))

    def edit(file: BinaryIO) -> str | None:
        text, document = _read(file, path)
        if known is not None and document != known:
            raise FileError(
                f"{path} was changed in the meantime, so the proposal may not fix it",
                hint="run it again",
            )
        _require_keys_once(document, sections, path)
        new = [key for key in sections if _sorted(document.get(key)) != _sorted(sections[key])]
        # A file that has only our keys, on one line, has no layout to keep, so it gets ours.
        if new and _has_only_ours_on_one_line(text, sections):
            return to_json_text(document | sections)
        for key in new:
            text = _with_value(text, key, sections[key])
        return text if new else None

    if not files.rewrite(path, edit):
        return Changes()
    return Changes(files=(Change(path, "replaced"),))


def _require_keys_once(document: object, keys: Iterable[str], path: Path) -> None:
    if not isinstance(document, dict):
        raise ConfigError([(str(path), "is not a JSON object")])
    doubled = [key for key in keys if key in getattr(document, "duplicates", ())]
    if doubled:
        message = f"contains {', '.join(doubled)} twice; remove one of them"
        raise ConfigError([(str(path), message)])


def _has_only_ours_on_one_line(text: str, keys: Container[str]) -> bool:
    """Return whether a JSON object has only our keys, and none of them begins a line."""
    members = [*_members(text)]
    is_ours = all(member.name in keys and member.indent is None for member in members)
    return bool(members) and is_ours


def _sorted(value: object) -> str:
    """Return a value as JSON, in which 1 and true differ, unlike 1 and True in Python."""
    return json.dumps(value, sort_keys=True)


def _read(file: BinaryIO, path: Path) -> tuple[str, Any]:
    """Return the text and the parsed document of an open config."""
    content = file.read(CONFIG_BYTES_MAX + 1)
    document = parse_document(BytesIO(content), str(path), "config", bytes_max=CONFIG_BYTES_MAX)
    return content.decode("utf-8", "surrogateescape"), document


class _Member(NamedTuple):
    """A key of a JSON object, as it stands in the text.

    Args:
        name: the key's text, without quotes.
        start: the position of the value.
        end: the position after the value.
        indent: the blanks before the key; None if the key doesn't begin its line.
    """

    name: str
    start: int
    end: int
    indent: str | None


def _members(text: str) -> Iterator[_Member]:
    """Yield the keys of a JSON object, with the positions of their values in the text."""
    decode = json.JSONDecoder().raw_decode
    at = _begin(text, _begin(text, 0) + 1)
    while text[at] != "}":
        _, newline, lead = text[:at].rpartition("\n")
        name, end = decode(text, at)
        start = _begin(text, _begin(text, end) + 1)
        _, end = decode(text, start)
        yield _Member(name, start, end, lead if newline and not lead.strip() else None)
        at = _begin(text, end)
        if text[at] == ",":
            at = _begin(text, at + 1)


def _begin(text: str, at: int) -> int:
    """Return the position of the first character from ``at`` on that isn't blank."""
    blanks = _BLANKS.match(text, at)
    return at if blanks is None else blanks.end()


def _with_value(text: str, key: str, value: object) -> str:
    """Return a JSON object's text with one key's value replaced or added, in the text's style."""
    members = [*_members(text)]
    for member in members:
        if member.name == key:
            return text[: member.start] + _styled(value, member.indent) + text[member.end :]
    if not members:
        opened = _begin(text, 0) + 1
        added = f"\n  {json.dumps(key)}: {_styled(value, '  ')}\n"
        return f"{text[:opened]}{added}{text[_begin(text, opened) :]}"
    last = members[-1]
    glue = " " if last.indent is None else f"\n{last.indent}"
    added = f",{glue}{json.dumps(key)}: {_styled(value, last.indent)}"
    return f"{text[: last.end]}{added}{text[last.end :]}"


def _styled(value: object, indent: str | None) -> str:
    """Return a value as JSON: on one line, or indented like the keys of its object."""
    if indent is None:
        return json.dumps(value)
    return json.dumps(value, indent=indent).replace("\n", f"\n{indent}")
