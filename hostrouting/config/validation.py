"""Strictly parse JSON into typed values, reporting every problem with its path.

This module does no I/O. The attrs classes are the schema: the field ``wait_seconds`` corresponds to
the key ``waitSeconds``, and the field's converter validates its value. attrs itself would stop at
the first problem. So the ``field_transformer`` of each class, ``checked_at_once``, removes the
converters from the fields. ``Section`` runs them after all fields are set, and raises one
``ConfigError`` with all problems and their full paths. Constructor calls are validated in the same
way as JSON.

This module doesn't use cattrs, for two reasons. Without a hook for every type, cattrs coerces
values (``"1"`` to 1, ``True`` to 1). And the error for a field that an attrs validator rejects
names the object, but not the field. The remaining benefits of cattrs don't justify the dependency.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import attrs

from hostrouting.model.errors import ConfigError
from hostrouting.model.jsonable import in_json, json_key
from hostrouting.model.text import shown

Problem = tuple[str, str]
T = TypeVar("T")


_RULE = "rule"
# The value of a required field that the document lacks.
_MISSING = object()


# A field's name, a converter that raises an error on invalid values, and the field's default.
_Rule = tuple[str, Callable[[Any], Any], object]
# A cache, because a config may have thousands of routes. For each class, it holds the rules by
# key, and the required fields.
_KNOWN: dict[type, tuple[dict[str, _Rule], dict[str, object]]] = {}


def _rules(cls: type) -> tuple[dict[str, _Rule], dict[str, object]]:
    if cls not in _KNOWN:
        rules: dict[str, _Rule] = {}
        required: dict[str, object] = {}
        for field in key_fields(cls):
            rules[json_key(field.name)] = (field.name, rule_of(field), field.default)
            if field.default is attrs.NOTHING:
                required[field.name] = _MISSING
        _KNOWN[cls] = (rules, required)
    return _KNOWN[cls]


def checked_at_once(_class: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """Remove the fields' converters, which ``Section`` runs (an attrs ``field_transformer``)."""
    deferred = []
    for field in fields:
        if field.converter:
            field = field.evolve(converter=None, metadata={_RULE: field.converter})
        deferred.append(field)
    return deferred


def key_fields(cls: type) -> list[attrs.Attribute[Any]]:
    """Return the fields of a config class that are keys of the config: those with a converter."""
    return [field for field in attrs.fields(cls) if _RULE in field.metadata]


def rule_of(field: attrs.Attribute[Any]) -> Callable[[Any], Any]:
    """Return a field's converter, which also validates values."""
    rule: Callable[[Any], Any] = field.metadata[_RULE]
    return rule


class Section:
    """Base class for all config classes (attrs classes)."""

    __slots__ = ()
    __attrs_attrs__: ClassVar[Any]

    def __attrs_post_init__(self) -> None:
        if problems := self._problems():
            raise ConfigError(problems)

    def _problems(self) -> list[Problem]:
        """Run all converters and return the problems; an invalid field keeps its original value.

        A subclass extends this method with rules that involve several fields.
        """
        problems: list[Problem] = []
        for key, (name, convert, default) in _rules(type(self))[0].items():
            value = getattr(self, name)
            if value is default:
                continue
            if value is _MISSING:
                problems.append((key, "is missing"))
                continue
            try:
                # Like attrs, set a field of a frozen instance through object.
                object.__setattr__(self, name, convert(value))
            except (ConfigError, ValueError) as error:
                problems += below(key, error)
        return problems

    def to_mapping(self, *keys: str) -> Any:
        """Return this object as JSON that can be parsed again, omitting fields with default values.

        Args:
            keys: the keys to include; by default, all.

        Raises:
            ValueError: a key isn't one of this section's.
        """
        rules, *_ = _rules(type(self))
        for key in keys:
            if key not in rules:
                raise ValueError(f"{shown(key)} isn't a key; expected {', '.join(rules)}")
        document = {}
        for key, (name, _, default) in rules.items():
            value = getattr(self, name)
            if value != default and (not keys or key in keys):
                document[key] = in_json(value)
        return document


Read = TypeVar("Read", bound=Section)


def below(parent: str, refusal: ConfigError | ValueError) -> list[Problem]:
    """Return an exception's problems. Each path begins with the key of the rejected value."""
    if not isinstance(refusal, ConfigError):
        return [(parent, str(refusal))]
    problems = []
    for path, message in refusal.problems:
        separator = "." if path and not path.startswith("[") else ""
        problems.append((f"{parent}{separator}{path}", message))
    return problems


def kind(value: object) -> str:
    """Describe the type of a JSON value, for example "a string"."""
    for types, words in _KINDS:
        if isinstance(value, types):
            return words
    return f"a {type(value).__name__}"


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (Mapping, "an object"),
    (str, "a string"),
    (bool, "a boolean"),
    ((int, float), "a number"),
    (Iterable, "a list"),
    (type(None), "null"),
)


def parse_items(value: Any, parse: Callable[[Any], T]) -> tuple[T, ...]:
    """Parse every item of a list, collecting all problems."""
    if not _is_list(value):
        raise ValueError(f"expected a list, not {kind(value)}")
    items: list[T] = []
    problems: list[Problem] = []
    for position, item in enumerate(value):
        try:
            items.append(parse(item))
        except (ConfigError, ValueError) as error:
            problems += below(f"[{position}]", error)
    if problems:
        raise ConfigError(problems)
    return tuple(items)


def _is_list(value: object) -> bool:
    if isinstance(value, list):  # fast, and most values are lists
        return True
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _key(key: object) -> str:
    """Format a key as a path component, quoting unusual characters."""
    is_usual = isinstance(key, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", key)
    return str(key) if is_usual else shown(str(key))


# Keys from older configs and why they were removed.
_FORMER = {"coverage": "every address of an expected CIDR is checked; leave it out"}


def _unknown(key: object, known: Iterable[str]) -> Problem:
    import difflib

    near = difflib.get_close_matches(str(key), list(known), n=1)
    hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
    return _key(key), f"unknown key; {_FORMER.get(str(key), hint)}"


def read(cls: type[Read], value: object) -> Read:
    """Build an instance of a class from a JSON object, treating ``null`` values as missing.

    Args:
        cls: a subclass of ``Section``.
        value: the value to parse. Unknown and duplicate keys are rejected. Instances of the class
            are returned unchanged.

    Returns:
        The instance.

    Raises:
        ConfigError: the value is invalid; the error lists all problems.
    """
    if isinstance(value, cls):
        return value
    # Most values are dicts, for which isinstance() is fast.
    if not isinstance(value, (dict, Mapping)):
        raise ConfigError([("", f"expected an object, not {kind(value)}")])
    rules, required = _rules(cls)
    duplicates = getattr(value, "duplicates", ())
    problems = [(_key(key), "this key is given twice") for key in duplicates]
    given: dict[str, Any] = {**required}
    for key, item in value.items():
        if key not in rules:
            problems.append(_unknown(key, rules))
        elif item is not None:
            given[rules[key][0]] = item
    try:
        instance = cls(**given)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return instance


def read_section(cls: type[Read], document: object, section: str) -> Read | None:
    """Build an instance of a class from one key of a document, ignoring other components' keys.

    Args:
        cls: a subclass of ``Section``.
        document: the parsed JSON document.
        section: the key of the section.

    Returns:
        The instance; None if the key is missing or ``null``.

    Raises:
        ConfigError: the section is invalid; the error lists all problems, with paths relative to
            the document.
    """
    if not isinstance(document, Mapping):
        problem = f"expected an object with the key {section}, not {kind(document)}"
        raise ConfigError([("", problem)])
    if section in getattr(document, "duplicates", ()):
        raise ConfigError([(section, "this key is given twice")])
    if document.get(section) is None:
        _refuse_near_misses(section, document)
        return None
    try:
        return read(cls, document[section])
    except ConfigError as error:
        raise ConfigError(below(section, error)) from None


def _refuse_near_misses(section: str, document: Mapping[str, Any]) -> None:
    """Raise an error if a key resembles the section's name, because the key may be a typo."""
    plain = {}
    for key in document:
        if key != section:
            letters = str(key).replace("-", "").replace("_", "")
            plain[letters.lower()] = key
    import difflib

    near = difflib.get_close_matches(section.lower(), plain, n=1, cutoff=0.9)
    if near:
        raise ConfigError([(_key(plain[near[0]]), f"unknown key; did you mean {section}?")])
