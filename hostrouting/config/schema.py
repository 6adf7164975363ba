"""How JSON becomes typed values, strictly: documents, objects, single values; every problem at once, with its path.

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
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import attrs

from hostrouting.config.opening import open_at_once
from hostrouting.model.errors import ConfigError, FileError
from hostrouting.model.text import shown
from hostrouting.model.uncollected import uncollected

if TYPE_CHECKING:
    import os

__all__ = [
    "attempt",
    "below",
    "each",
    "kind",
    "parse_boolean",
    "parse_consumer",
    "parse_document",
    "parse_integer",
    "parse_pattern",
    "parse_textfile",
    "parse_word",
    "raise_invalid",
    "read",
    "read_document",
    "read_section",
    "write",
]

Problem = tuple[str, str]
T = TypeVar("T")


@attrs.frozen
class Invalid:
    """What a field holds until ``raise_invalid``: the problems of the value that it was given."""

    problems: tuple[Problem, ...]


def attempt(parse: Callable[..., T], value: object, *rules: object) -> T:
    """Parse a field's value by some rules, or leave its problems in the field for ``raise_invalid``."""
    if isinstance(value, Invalid):
        return cast("T", value)
    try:
        return parse(value, *rules)
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


def raise_invalid(instance: attrs.AttrsInstance, *, more: Sequence[Problem] = ()) -> None:
    """Raise one ``ConfigError`` with the problems of all fields and some more, if there are any."""
    values = _values(type(instance))(instance)
    if not more and Invalid not in map(type, values):
        return
    problems: list[Problem] = list(more)
    for key, value in zip(_names(type(instance)), values, strict=True):
        if isinstance(value, Invalid):
            problems += below(key, value.problems)
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


class _Doubled(dict[str, Any]):
    """A JSON object in which some keys were given twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.duplicates = tuple(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For ``json.loads(object_pairs_hook=)``."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Doubled(pairs)


def _key(key: object) -> str:
    """A key as part of a path: quoted if it would garble a line."""
    return key if isinstance(key, str) and re.fullmatch(r"[A-Za-z0-9_-]+", key) else shown(str(key))


@cache
def _names(cls: type) -> dict[str, str]:
    """The names of a class's fields by their JSON keys."""
    return {field.metadata["key"]: field.name for field in attrs.fields(cls)}


@cache
def _required(cls: type) -> tuple[str, ...]:
    """The names of the fields without a default."""
    return tuple(field.name for field in attrs.fields(cls) if field.default is attrs.NOTHING)


@cache
def _values(cls: type) -> Callable[[object], tuple[object, ...]]:
    """What takes the values of the fields, of which every class here has several, off an instance."""
    return attrgetter(*_names(cls).values())


# What an older config may have, and why it isn't known any more.
_FORMER = {"coverage": "every address of an expected CIDR is checked; leave it out"}


def _key_problems(mapping: Mapping[Any, Any], known: Set[str]) -> list[Problem]:
    problems = [(_key(key), "this key is given twice") for key in getattr(mapping, "duplicates", ())]
    if not mapping.keys() <= known:
        for key in (key for key in mapping if key not in known):
            import difflib

            near = difflib.get_close_matches(str(key), list(known), n=1)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
            problems.append((_key(key), f"unknown key; {_FORMER.get(key, hint)}"))
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
    if not isinstance(value, (dict, Mapping)):  # of a dict it is known in half the time
        raise ConfigError([("", f"expected an object, not {kind(value)}")])
    names = _names(cast("type", cls))
    problems = _key_problems(value, names.keys())
    given: dict[str, Any] = {names[key]: item for key, item in value.items() if item is not None and key in names}
    for name in _required(cast("type", cls)):
        if name not in given:
            given[name] = Invalid((("", "is missing"),))
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
        with uncollected():
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


# --- single values: each parses one, or says in a ValueError what is wrong with it -----------------------------------


Word = TypeVar("Word", bound=StrEnum)

# systemd.unit(5); no path can hide in it.
_CONSUMER = re.compile(r"[A-Za-z0-9:_.-]+@?[A-Za-z0-9:_.-]*\.service")
_PATTERN = re.compile(r"[][A-Za-z0-9_.*?-]+")
# No "." or ".." as a part: where it leads is what it says.
_TEXTFILE = re.compile(r"(/(?!\.\.?/)[^/\0]+)+(?<!/)\.prom")


def parse_integer(value: object, highest: int) -> int:
    """A whole number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{shown(value)} is not an integer")
    if not 0 <= value <= highest:
        raise ValueError(f"{shown(value)} is out of range; expected 0 to {highest}")
    return value


def parse_boolean(value: object) -> bool:
    """True or false, and nothing that merely counts as one of them."""
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not a boolean; expected true or false")
    return value


def parse_word(value: object, words: type[Word], kind: str, default: Word) -> Word:
    """One of some words, in any case; the default for an empty string."""
    if isinstance(value, str) and value.isascii():  # upper() makes ASCII of some letters that aren't
        word = value.upper() or default
        if word in words.__members__:
            return words[word]
    raise ValueError(f"{shown(value)} is not {kind}; expected {' or '.join(words.__members__)}")


def parse_consumer(value: object) -> str:
    """The name of a service, an instance or a template."""
    if not isinstance(value, str) or not _CONSUMER.fullmatch(value):
        raise ValueError(
            f"{shown(value)} is not the name of a service; expected for example systemd-nspawn@.service, "
            "systemd-nspawn@kube1.service or kubelet.service"
        )
    return value


def parse_pattern(value: object) -> str:
    """A shell pattern of interface names."""
    if not isinstance(value, str) or not _PATTERN.fullmatch(value):
        raise ValueError(f"{shown(value)} is not a pattern of interface names; it may hold A-Z a-z 0-9 _ . - * ? [ ]")
    return value


def parse_textfile(value: object) -> str | None:
    """The path of a file for the textfile collector of Prometheus' node exporter, which reads ``*.prom``."""
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not value.isprintable() or not _TEXTFILE.fullmatch(value):
        raise ValueError(
            f"{shown(value)} is not the absolute path of a textfile; expected for example "
            "/var/lib/node_exporter/textfile_collector/hostrouting.prom"
        )
    return value


# --- documents: JSON (RFC 8259, UTF-8) from outside ------------------------------------------------------------------


def read_document(path: str | os.PathLike[str], what: str, *, bytes_max: int) -> Any:
    """Read a file.

    Args:
        path: of the file.
        what: it should be, in a word, for the messages.
        bytes_max: a larger file is refused.

    Returns:
        The document; ``read`` finds the keys that were given twice in it.

    Raises:
        ConfigError: there is no such file, it isn't JSON, or it is a pipe or device with a name, which might never
            end; what a shell hands over in /dev/fd is fine.
        FileError: it can't be read.
    """
    try:
        with open(path, "rb", opener=open_at_once) as file:
            return parse_document(file, str(path), what, bytes_max=bytes_max)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError([(str(path), "there is no such file")]) from None
    except IsADirectoryError:
        raise ConfigError([(str(path), "is a directory; expected a JSON file")]) from None
    except OSError as error:
        raise FileError.of(f"read the {what} {path}", error) from error
    except ValueError as error:  # a NUL in the path
        raise ConfigError([(repr(str(path)), f"is not a path: {error}")]) from None


def parse_document(file: BinaryIO, name: str, what: str, *, bytes_max: int) -> Any:
    """Read an open file.

    Args:
        file: from where it is read to its end.
        name: of the file, for the messages.
        what: it should be, in a word.
        bytes_max: a larger one is refused.

    Returns:
        The document, as of ``read_document``.

    Raises:
        ConfigError: it isn't JSON.
        OSError: it can't be read.
    """
    import json

    raw = file.read(bytes_max + 1)
    if len(raw) > bytes_max:
        raise ConfigError([(name, f"is no {what}: it is larger than {bytes_max >> 20} MiB")])
    if not raw.strip():
        raise ConfigError(
            [(name, "is empty (a shell empties the file that it redirects output to, before we read it)")]
        )
    try:
        # As os.fsdecode would: to the kernel any bytes make an interface's name, and ip prints them as they are.
        with uncollected():
            return json.loads(raw.decode("utf-8", "surrogateescape"), object_pairs_hook=_json_object)
    except RecursionError:
        raise ConfigError([(name, f"is not a {what}: it is nested too deeply")]) from None
    except ValueError as error:
        raise ConfigError([(name, f"is not JSON: {error}")]) from None
