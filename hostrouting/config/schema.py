"""How attrs classes become a strict JSON schema that reports every problem at once, each with its path.

A class is its own schema: a field's metadata ``key`` is its name in JSON, its converter the rule. A converter
wrapped in ``attempt`` doesn't raise: it leaves an ``Invalid`` in the field, and ``raise_invalid``, called from
``__attrs_post_init__``, raises them all as one ``ConfigError``. So a mapping and a constructor call go through the
same rules, and the problems of a nested object get its path.

cattrs was weighed: it coerces (``"1"`` to 1, ``True`` to 1) unless every type gets a hook, and its paths end at the
object when an attrs validator refuses; what would be left of it is less than this file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import attrs

from hostrouting.model.errors import ConfigError
from hostrouting.model.text import shown

__all__ = ["JsonObject", "attempt", "below", "each", "kind", "raise_invalid", "read", "read_section", "write"]

Problem = tuple[str, str]
T = TypeVar("T")


@attrs.frozen
class Invalid:
    """What a field holds until ``raise_invalid``: the problems of the value that it was given."""

    problems: tuple[Problem, ...]


def attempt(parse: Callable[[Any], T], value: object) -> T:
    """Parse a field's value, or leave its problems in the field for ``raise_invalid``."""
    if isinstance(value, Invalid):
        return cast("T", value)
    try:
        return parse(value)
    except ConfigError as error:
        return cast("T", Invalid(error.problems))
    except ValueError as error:
        return cast("T", Invalid((("", str(error)),)))


def below(parent: str, problems: Iterable[Problem]) -> list[Problem]:
    """The problems of a value, as seen from the object that holds it."""
    return [
        (f"{parent}.{path}" if parent and path and not path.startswith("[") else parent + path, message)
        for path, message in problems
    ]


def raise_invalid(instance: attrs.AttrsInstance, *, more: Iterable[Problem] = ()) -> None:
    """Raise one ``ConfigError`` with the problems of all fields and some more, if there are any."""
    problems: list[Problem] = list(more)
    for field in attrs.fields(type(instance)):
        value = getattr(instance, field.name)
        if isinstance(value, Invalid):
            problems += below(field.metadata["key"], value.problems)
    if problems:
        raise ConfigError(problems)


def kind(value: object) -> str:
    """What a JSON value is, with its article."""
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (Mapping, "an object"),
        (str, "a string"),
        (bool, "a boolean"),
        ((int, float), "a number"),
        (Iterable, "a list"),
        (type(None), "null"),
    )
    return next((words for python, words in kinds if isinstance(value, python)), f"a {type(value).__name__}")


def each(value: object, parse: Callable[[Any], T]) -> tuple[T, ...]:
    """Parse every item of a list, collecting the problems of all."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ValueError(f"expected a list, not {kind(value)}")
    items: list[T] = []
    problems: list[Problem] = []
    for position, item in enumerate(value):
        try:
            items.append(parse(item))
        except ConfigError as error:
            problems += below(f"[{position}]", error.problems)
        except ValueError as error:
            problems.append((f"[{position}]", str(error)))
    if problems:
        raise ConfigError(problems)
    return tuple(items)


class JsonObject(dict[str, Any]):
    """A JSON object that remembers the keys that were given twice; for ``json.loads(object_pairs_hook=)``."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.duplicates: tuple[str, ...] = ()
        if len(self) < len(pairs):
            self.duplicates = tuple(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)


def _key(key: object) -> str:
    """A key as part of a path: quoted if it would garble a line."""
    return key if isinstance(key, str) and re.fullmatch(r"[A-Za-z0-9_-]+", key) else shown(str(key))


def _key_problems(mapping: Mapping[Any, Any], known: list[str]) -> list[Problem]:
    problems = [(_key(key), "this key is given twice") for key in getattr(mapping, "duplicates", ())]
    for key in mapping:
        if key not in known:
            import difflib

            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
            problems.append((_key(key), f"unknown key; {hint}"))
    return problems


def read(cls: type[T], value: object) -> T:
    """Build a class from a JSON object; ``null`` counts as missing.

    Args:
        cls: an attrs class whose fields have a ``key``.
        value: anything; unknown and duplicate keys are problems too.

    Returns:
        The instance.

    Raises:
        ConfigError: with all that is wrong in it.
    """
    if not isinstance(value, Mapping):
        raise ConfigError([("", f"expected an object, not {kind(value)}")])
    fields = {field.metadata["key"]: field for field in attrs.fields(cast("type[attrs.AttrsInstance]", cls))}
    problems = _key_problems(value, list(fields))
    given: dict[str, Any] = {}
    for key, field in fields.items():
        if value.get(key) is not None:
            given[field.name] = value[key]
        elif field.default is attrs.NOTHING:
            given[field.name] = Invalid((("", "is missing"),))
    try:
        instance = cls(**given)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return instance


def read_section(cls: type[T], document: object, section: str) -> T | None:
    """Build a class from one key of a document; its siblings are other components' and ignored.

    Args:
        cls: an attrs class whose fields have a ``key``.
        document: anything.
        section: the key.

    Returns:
        The instance; None if there is no such key, or ``null``.

    Raises:
        ConfigError: with all that is wrong in it; the paths begin with the key.
    """
    if not isinstance(document, Mapping):
        raise ConfigError([("", f"expected an object with the key {section}, not {kind(document)}")])
    if section in getattr(document, "duplicates", ()):
        raise ConfigError([(section, "this key is given twice")])
    for key in document:
        if key != section and str(key).lower() == section.lower():
            raise ConfigError([(str(key), f"unknown key; did you mean {section}?")])
    if document.get(section) is None:
        return None
    try:
        return read(cls, document[section])
    except ConfigError as error:
        raise ConfigError(below(section, error.problems)) from None


def write(instance: attrs.AttrsInstance) -> dict[str, Any]:
    """The fields of an instance by their JSON keys, without those at their default."""
    return {
        field.metadata["key"]: value
        for field in attrs.fields(type(instance))
        if (value := getattr(instance, field.name)) != field.default
    }
