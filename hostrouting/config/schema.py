"""Turn JSON into typed values, strictly, and report every problem with its path.

A class is its own schema: the field ``wait_seconds`` is the key ``waitSeconds``, and the field's converter is its rule.
With ``checked_at_once`` as the ``field_transformer``, ``Section`` applies the rules once all fields are given, and
raises all problems as one ``ConfigError``. So the same rules apply to a mapping and to a constructor call, and the
problems of a nested object have its path.

cattrs isn't used, because it coerces values (``"1"`` to 1, ``True`` to 1) unless every type gets a hook, and because
its paths end at the object when an attrs validator refuses a field. Its remaining benefit is smaller than this file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import attrs

from hostrouting.model.errors import ConfigError
from hostrouting.model.jsonable import in_json, json_key
from hostrouting.model.text import shown

Problem = tuple[str, str]
T = TypeVar("T")


_RULE = "rule"
# The value of a required field that wasn't given.
_MISSING = object()


class _Rules(NamedTuple):
    """The rules of a class.

    Args:
        by_key: for each key, the name of the field, its converter, which raises an error for invalid values, and its
            default.
        needed: the names of the fields that have no default.
    """

    by_key: dict[str, tuple[str, Callable[[Any], Any], object]]
    needed: tuple[str, ...]


# The rules of each class, cached because there may be thousands of routes.
_KNOWN: dict[type, _Rules] = {}


def _rules(cls: type) -> _Rules:
    if cls not in _KNOWN:
        fields = attrs.fields(cls)
        by_key = {json_key(field.name): (field.name, rule_of(field), field.default) for field in fields}
        _KNOWN[cls] = _Rules(by_key, tuple(field.name for field in fields if field.default is attrs.NOTHING))
    return _KNOWN[cls]


def checked_at_once(_class: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """Leave the converters to ``Section``, which reports all problems; for ``attrs.frozen(field_transformer=)``."""
    return [
        field.evolve(converter=None, metadata={_RULE: field.converter}) if field.converter else field
        for field in fields
    ]


def rule_of(field: attrs.Attribute[Any]) -> Callable[[Any], Any]:
    """Return the function that converts and checks a field's values."""
    rule: Callable[[Any], Any] = field.metadata[_RULE]
    return rule


def problems_of(refusal: ConfigError | ValueError) -> Sequence[Problem]:
    """Return the problems of a value, with paths relative to the value."""
    return refusal.problems if isinstance(refusal, ConfigError) else [("", str(refusal))]


class Section:
    """The base of all classes of a config, each of which is an attrs class."""

    __slots__ = ()
    __attrs_attrs__: ClassVar[Any]

    def __attrs_post_init__(self) -> None:
        if problems := self._apply_rules():
            raise ConfigError(problems)

    def _apply_rules(self) -> list[Problem]:
        """Convert the value of each field with its rule, and return the problems.

        A field with a problem keeps its original value.
        """
        problems: list[Problem] = []
        for key, (name, convert, default) in _rules(type(self)).by_key.items():
            value = getattr(self, name)
            if value is default:
                continue
            if value is _MISSING:
                problems.append((key, "is missing"))
                continue
            try:
                object.__setattr__(self, name, convert(value))  # attrs does the same
            except (ConfigError, ValueError) as error:
                problems += below(key, problems_of(error))
        return problems

    def to_mapping(self) -> Any:
        """Return this value as JSON that can be read back, without the fields that have their defaults."""
        return {
            json_key(field.name): in_json(value)
            for field in attrs.fields(type(self))
            if (value := getattr(self, field.name)) != field.default
        }


Read = TypeVar("Read", bound=Section)


def below(parent: str, problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems of a value, with paths relative to the object that contains it."""
    return [
        (f"{parent}.{path}" if parent and path and not path.startswith("[") else parent + path, message)
        for path, message in problems
    ]


def kind(value: object) -> str:
    """Return the kind of a JSON value as text with an article, such as "a string"."""
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (Mapping, "an object"),
        (str, "a string"),
        (bool, "a boolean"),
        ((int, float), "a number"),
        (Iterable, "a list"),
        (type(None), "null"),
    )
    return next((words for python, words in kinds if isinstance(value, python)), f"a {type(value).__name__}")


def each(value: Any, parse: Callable[[Any], T]) -> tuple[T, ...]:
    """Parse every item of a list, and collect the problems of all items."""
    # Most values are lists, and a list is quick to test for.
    if not isinstance(value, list) and (isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable)):
        raise ValueError(f"expected a list, not {kind(value)}")
    items: list[T] = []
    problems: list[Problem] = []
    for position, item in enumerate(value):
        try:
            items.append(parse(item))
        except (ConfigError, ValueError) as error:
            problems += below(f"[{position}]", problems_of(error))
    if problems:
        raise ConfigError(problems)
    return tuple(items)


def _key(key: object) -> str:
    """Return a key as part of a path, quoted if it contains unusual characters."""
    return key if isinstance(key, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", key) else shown(str(key))


# Keys that older configs may have, and why they were removed.
_FORMER = {"coverage": "every address of an expected CIDR is checked; leave it out"}


def _unknown(key: object, known: Iterable[str]) -> Problem:
    import difflib

    near = difflib.get_close_matches(str(key), list(known), n=1)
    hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
    return _key(key), f"unknown key; {_FORMER.get(str(key), hint)}"


def read(cls: type[Read], value: object) -> Read:
    """Build a class from a JSON object, in which ``null`` counts as missing.

    Args:
        cls: a subclass of ``Section``.
        value: any value. Unknown and duplicate keys are also problems. An instance of the class is returned unchanged.

    Returns:
        The instance.

    Raises:
        ConfigError: the value has problems; the error lists all of them.
    """
    if isinstance(value, cls):
        return value
    if not isinstance(value, (dict, Mapping)):  # most values are dicts, and a dict is quick to test for
        raise ConfigError([("", f"expected an object, not {kind(value)}")])
    rules, needed = _rules(cls)
    problems = [(_key(key), "this key is given twice") for key in getattr(value, "duplicates", ())]
    given: dict[str, Any] = {}
    for key, item in value.items():
        if key not in rules:
            problems.append(_unknown(key, rules))
        elif item is not None:
            given[rules[key][0]] = item
    for name in needed:
        given.setdefault(name, _MISSING)
    try:
        instance = cls(**given)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return instance


def read_section(cls: type[Read], document: object, section: str) -> Read | None:
    """Build a class from one key of a document, and ignore the other keys, which belong to other components.

    Args:
        cls: a subclass of ``Section``.
        document: any value.
        section: the name of the key.

    Returns:
        The instance, or None if the key is missing or its value is ``null``.

    Raises:
        ConfigError: the section has problems; the error lists all of them, with paths that begin with the key.
    """
    if not isinstance(document, Mapping):
        raise ConfigError([("", f"expected an object with the key {section}, not {kind(document)}")])
    if section in getattr(document, "duplicates", ()):
        raise ConfigError([(section, "this key is given twice")])
    if document.get(section) is None:
        import difflib

        # This accepts at most one edit. A typo in the key must not mean that nothing is wanted.
        plain = {str(key).replace("-", "").replace("_", "").lower(): key for key in document if key != section}
        if near := difflib.get_close_matches(section.lower(), plain, n=1, cutoff=0.9):
            raise ConfigError([(_key(plain[near[0]]), f"unknown key; did you mean {section}?")])
        return None
    try:
        return read(cls, document[section])
    except ConfigError as error:
        raise ConfigError(below(section, error.problems)) from None
