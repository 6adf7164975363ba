"""Write the JSON Schemas of the config and of a check's report from their classes:  ./run docs.

A key has the type, the default and the description of its field. Other constraints are found by
calling its converter with an empty string, an empty list, a list with the same item twice, and
numbers. The pattern of its strings depends on the function of ``model.parsing`` or
``config.values`` that its converter calls. This module has a regular expression for each of these
functions.
"""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from types import CodeType, NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import attrs
from attrs import NOTHING
from make_reference import arguments

import hostrouting.backend
import hostrouting.report
from hostrouting import Config, ConfigError, Keep, OverlapReport, StaticRoutes, StaticRule
from hostrouting.azure import HostNetworking
from hostrouting.config import values
from hostrouting.config.routing import KEEP_PRIORITIES
from hostrouting.config.validation import Section, key_fields, rule_of
from hostrouting.model import parsing
from hostrouting.model.family import Family
from hostrouting.model.jsonable import JsonObject, StrEnum, json_key, to_json_text
from hostrouting.report import FamilyVerdict, Finding, FindingKind, NoteKind

DRAFT = "https://json-schema.org/draft/2020-12/schema"

# These modules define the names in annotations that the classes import only for type checkers.
PUBLIC = (typing, hostrouting, hostrouting.backend, hostrouting.report)
KNOWN = {name: getattr(module, name) for module in PUBLIC for name in module.__all__}

OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
REST = rf"(\.{OCTET}){{3}}"
UNICAST = rf"([1-9]|[1-9][0-9]|1[013-9][0-9]|12[0-689]|2[01][0-9]|22[0-3]){REST}"

CIDR = (
    rf"{UNICAST}/(3[0-2]|[12]?[0-9])|(0|127){REST}/[0-7]|(22[4-9]|2[34][0-9]|25[0-5]){REST}/[0-2]"
)
IPV6, IPV6_LENGTH = "[0-9A-Fa-f]*:[0-9A-Fa-f:]+", "(12[0-8]|1[01][0-9]|[1-9]?[0-9])"

# The constraints of strings, as ECMA-262 regular expressions.
STRINGS: dict[object, str] = {
    parsing.parse_any_cidr: f"{CIDR}|{IPV6}/{IPV6_LENGTH}",
    parsing.parse_gateway: f"{UNICAST}|{IPV6}",
    parsing.parse_ipv4_gateway: UNICAST,
    parsing.parse_any_prefix: (
        rf"0\.0\.0\.0/[1-7]|{UNICAST}/(3[0-2]|[12][0-9]|[1-9])"
        rf"|{IPV6}/(?!0$){IPV6_LENGTH}"
    ),
    parsing.parse_any_address: "[0-9A-Fa-f:.]+",
    parsing.parse_device: r"(?!\.{1,2}$)[A-Za-z0-9_.\-]{1,15}",
    values.parse_pattern: r"[\]\[A-Za-z0-9_.*?\-]+",
    values.parse_consumer: r"(?!-|.{237})[A-Za-z0-9:_.\-]+@?\.service",
    values.parse_textfile: r"(/(?!\.\.?/)[^/\u0000-\u001f\u007f]+){3,}(?<!/)\.prom",
    IPv4Address: rf"{OCTET}{REST}",
    IPv4Interface: rf"{OCTET}{REST}/(3[0-2]|[12]?[0-9])",
    IPv4Network: rf"{OCTET}{REST}/(3[0-2]|[12]?[0-9])",
    IPv6Address: IPV6,
    IPv6Network: f"{IPV6}/{IPV6_LENGTH}",
}

# Dependencies between keys, and the forms of text that a class accepts.
OPT_IN = {
    "properties": {"routes": {"uniqueItems": True}, "rules": {"uniqueItems": True}},
    "if": {
        "anyOf": [
            {"properties": {key: {"type": "array", "minItems": 1}}, "required": [key]}
            for key in ("routes", "rules", "keep")
        ]
    },
    "then": {"properties": {"enabled": {"const": True}}, "required": ["enabled"]},
}
MISSPELT = {
    "if": {"properties": {"hostRouting": {"type": "null"}}},
    "then": {
        "patternProperties": {
            r"^(?!hostRouting$)[Hh][Oo][Ss][Tt][_\-]*[Rr][Oo][Uu][Tt][Ii][Nn][Gg]$": False
        },
        "properties": {"staticRoutes": False, "routeOverlap": False},
    },
}
# A later release may add kinds.
GROWING = (FindingKind, NoteKind)
SOME, NONE, NULL = {"minItems": 1}, {"maxItems": 0}, {"type": "null"}
VERDICTS = {
    "ok": {"findings": NONE, "reason": NULL},
    "overlap": {"findings": SOME, "defaultDevs": SOME, "reason": NULL},
    # Even if there are findings in one family, the other one may have no verdict.
    "unknown": {"reason": {"type": "string"}},
}
MADE = {
    StaticRoutes: [OPT_IN],
    StaticRule: [{"properties": {"priority": {"not": {"enum": [*KEEP_PRIORITIES]}}}}],
    Finding: [
        {
            "properties": {
                "message": {"pattern": "^[A-Z-]+: expected CIDR "},
                "ranges": SOME,
                "expectedDevs": SOME,
            }
        }
    ],
    OverlapReport: [
        {"properties": {"time": {"pattern": "^[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}Z$"}}},
        *(
            {"if": {"properties": {"verdict": {"const": verdict}}}, "then": {"properties": then}}
            for verdict, then in VERDICTS.items()
        ),
    ],
}


def _fields(cls: type) -> Sequence[attrs.Attribute[Any]]:
    if issubclass(cls, Section):
        return key_fields(cls)
    return attrs.fields(cls) if attrs.has(cls) else ()


class Definitions(dict[str, Any]):
    """The definitions of classes that refer to each other.

    Args:
        is_report: whether the schema describes documents that we write. In those that we read, null
            counts as missing.
    """

    def __init__(self, *, is_report: bool) -> None:
        super().__init__()
        self._is_report = is_report

    def reference(self, cls: type) -> dict[str, Any]:
        """Add the definition of a class, and return a reference to it."""
        name = cls.__name__[0].lower() + cls.__name__[1:]
        self[name] = {}  # keeps its place before the definitions that it refers to
        self[name] = self.definition(cls)
        return {"$ref": f"#/$defs/{name}"}

    def definition(self, cls: Any) -> dict[str, Any]:
        """Return the schema of the objects that a class describes."""
        types, said = get_type_hints(cls, vars(sys.modules[cls.__module__]) | KNOWN), arguments(cls)
        fields = {field.name: field for field in _fields(cls)}
        if cls is HostNetworking:  # the consumer is a key of hostRouting
            del fields["consumer"]
        keys = {}
        # A family is the key of its verdict.
        for name in getattr(cls, "json_names", ()) or fields or cls._fields[1:]:
            made = inspect.getattr_static(cls, name, None)
            if isinstance(made, property):
                types[name] = get_type_hints(made.fget)["return"]
                said[name] = (inspect.getdoc(made) or "").removeprefix("Return ")
            words = said.get(
                name,
                "The version of this form, another where keys have gone or mean something else",
            )
            keys[json_key(name)] = {
                "title": name.replace("_", " ").capitalize(),
                "description": f"{words[0].upper()}{words[1:].removesuffix('.')}.",
                **self._key(cls, types[name], fields.get(name)),
            }
        optional = {
            json_key(name)
            for name in fields
            if issubclass(cls, Section) and fields[name].default is not NOTHING
        }
        told: dict[str, Any] = {
            "description": (inspect.getdoc(cls) or "").partition("\n")[0],
            "type": "object",
        }
        if not self._is_report:  # a later release may add keys to a report
            told["additionalProperties"] = False
        told["required"] = [key for key in keys if key not in optional]
        return told | {"properties": keys} | ({"allOf": MADE[cls]} if cls in MADE else {})

    def _key(self, cls: type, type_: Any, field: attrs.Attribute[Any] | None) -> dict[str, Any]:
        told, is_null = self._value(type_, ()), NoneType in get_args(type_)
        if self._is_report or field is None:
            return _or_null(told) if is_null and not issubclass(cls, Section) else told
        convert = rule_of(field)
        told = self._value(type_, [convert, *_called_by(convert)])
        if "pattern" in told and _takes(convert, ""):
            told["pattern"] = f"^({told['pattern'][1:-1]})?$"
        elif told.get("type") == "array":
            told |= {} if _takes(convert, []) else SOME
            if field.default and not _takes(convert, [*field.default] * 2):
                told["maxItems"] = len(field.default)
        elif told.get("type") == "integer":
            told |= _limits(convert)
        if field.default is NOTHING:
            return told
        default = [*field.default] if isinstance(field.default, tuple) else field.default
        return _or_null(told) | (
            {} if default is None or isinstance(default, Section) else {"default": default}
        )

    def _value(self, type_: Any, called: Iterable[Any]) -> dict[str, Any]:
        """Return the schema of a value.

        The first called function with a known pattern decides about its strings.
        """
        origin, inner = (
            get_origin(type_),
            [each for each in get_args(type_) if each is not NoneType],
        )
        rules = [STRINGS[each] for each in called if inspect.isfunction(each) and each in STRINGS]
        if origin in (ClassVar, Union, UnionType) and len(inner) == 1:
            return self._value(inner[0], called)
        if origin is tuple:
            items = self._value(inner[0], called)
            is_unique = (
                {"uniqueItems": True} if self._is_report and items.get("type") == "string" else {}
            )
            return {"type": "array", "items": items, **is_unique}
        if origin is list:  # keys of the config to set, which the config's schema describes
            return {"type": "array", "items": {"type": "object", "minProperties": 1}}
        if origin is Literal:
            return {"const": inner[0]}
        if type_ in (bool, int):
            return {"type": "boolean"} if type_ is bool else {"type": "integer", "minimum": 0}
        if origin is None and issubclass(type_, StrEnum):
            if self._is_report:
                kinds = {"enum": [*type_]}
                return {"anyOf": [kinds, {"type": "string"}]} if type_ in GROWING else kinds
            any_case = "|".join(
                "".join(f"[{letter}{letter.lower()}]" for letter in word) for word in type_
            )
            return {
                "anyOf": [
                    {"enum": [*type_, "", None]},
                    {"type": "string", "pattern": f"^({any_case})$"},
                ]
            }
        if origin is None and issubclass(type_, Section | JsonObject):
            reference = self.reference(type_)
            if self._is_report and type_ is Keep:  # an entry that has only a pattern is a string
                return {"anyOf": [{"type": "string", "minLength": 1}, reference]}
            return (
                {"anyOf": [{"type": "string", "pattern": f"^({rules[0]})$"}, reference]}
                if rules
                else reference
            )
        words = [word for each in inner if get_origin(each) is Literal for word in get_args(each)]
        rules = rules[:1] or [STRINGS[each] for each in (type_, *inner) if each in STRINGS]
        pattern = {"pattern": f"^({'|'.join((*words, *rules))})$"} if rules else {"minLength": 1}
        return {"type": "string", **pattern}


def _called_by(function: Any) -> Iterator[Any]:
    """Yield the globals of its module that a function uses."""
    codes = [function.__code__]
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        yield from (
            function.__globals__[name] for name in code.co_names if name in function.__globals__
        )


def _takes(convert: Any, value: object) -> bool:
    try:
        convert(value)
    except (ValueError, ConfigError):
        return False
    return True


def _limits(convert: Any) -> dict[str, int]:
    """Return the smallest and the largest value that a converter takes, from its message."""
    try:
        convert(-1)
    except ValueError as error:
        lowest, highest = re.findall(r"expected (\d+) to (\d+)", str(error))[0]
        return {"minimum": int(lowest), "maximum": int(highest)}
    raise AssertionError(f"{convert} takes -1")


def _or_null(told: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in told:
        return told
    return told | {"type": [told["type"], "null"]} if "type" in told else {"anyOf": [told, NULL]}


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of the config."""
    definitions = Definitions(is_report=False)
    sections = {"hostRouting": Config, "hostNetworking": HostNetworking}
    return {
        "$schema": DRAFT,
        "title": "Config of hostrouting",
        "description": "The config of AKSFlexNode as hostrouting reads it. "
        "Other keys belong to other components. null counts as missing everywhere. "
        "What a schema can't say, hostrouting says: hostrouting plan CONFIG.",
        "type": "object",
        "properties": {key: _or_null(definitions.reference(cls)) for key, cls in sections.items()},
        **MISSPELT,
        "$defs": definitions,
    }


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema of a check's report."""
    definitions = Definitions(is_report=True)
    title = {"$schema": DRAFT, "title": "Result of a hostrouting check"}
    report = definitions.definition(OverlapReport)
    # The only key that isn't in every report.
    report["properties"]["families"] = {
        "title": "Families",
        "description": "The verdict on the CIDRs of each family, if IPv6 CIDRs are expected.",
        "type": "object",
        "properties": {
            str(family).lower(): definitions.reference(FamilyVerdict)
            | {"description": f"The verdict on {family}."}
            for family in Family
        },
    }
    return title | report | {"$defs": definitions}


def main(folder: Path = Path(__file__).parents[1] / "hostrouting") -> None:
    """Write both schemas."""
    made = {
        "config/config.schema.json": config_schema(),
        "overlap/route-overlap.schema.json": report_schema(),
    }
    for name, schema in made.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(to_json_text(schema), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
