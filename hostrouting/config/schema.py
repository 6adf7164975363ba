"""How JSON becomes typed values, strictly: documents, objects, single values; every problem at once, with its path.

A class is its own schema: a field ``wait_seconds`` is the key ``waitSeconds``, and its converter the rule. Where
``collecting`` is the ``field_transformer``, a converter that refuses a value leaves an ``Invalid`` in the field, and
``Section`` raises them all as one ``ConfigError``. So a mapping and a constructor call go through the same rules, and
the problems of a nested object get its path.

cattrs was weighed: it coerces (``"1"`` to 1, ``True`` to 1) unless every type gets a hook, and its paths end at the
object when an attrs validator refuses; what would be left of it is less than this file.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cache, partial
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, TypeVar, cast

import attrs

from hostrouting.model.errors import ConfigError, FileError
from hostrouting.model.text import StrEnum, only_regular, shown
from hostrouting.model.uncollected import uncollected

if TYPE_CHECKING:
    import os


Problem = tuple[str, str]
T = TypeVar("T")


class Invalid(tuple[Problem, ...]):
    """What a field holds until ``raise_invalid``: the problems of the value that it was given."""

    __slots__ = ()


def collecting(_class: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """For ``attrs.frozen(field_transformer=)``: converters leave what is wrong in the field, for ``raise_invalid``."""
    return [field.evolve(converter=partial(_attempt, cast("Any", field.converter))) for field in fields]


def _attempt(convert: Callable[[Any], T], value: object) -> T | Invalid:
    if isinstance(value, Invalid):
        return value
    try:
        return convert(value)
    except (ConfigError, ValueError) as error:
        return Invalid(problems_of(error))


def problems_of(refusal: ConfigError | ValueError) -> Sequence[Problem]:
    """What is wrong with a value, as seen from itself."""
    return refusal.problems if isinstance(refusal, ConfigError) else [("", str(refusal))]


class Section:
    """What all classes of a config have in common; each of them is an attrs class."""

    __slots__ = ()
    __attrs_attrs__: ClassVar[Any]

    def __attrs_post_init__(self) -> None:
        raise_invalid(self)

    def to_mapping(self) -> Any:
        """The JSON value that reads back as this, without the fields at their default."""
        return {
            json_key(field.name): in_json(value)
            for field in attrs.fields(type(self))
            if (value := getattr(self, field.name)) != field.default
        }


Read = TypeVar("Read", bound=Section)


def in_json(value: Any) -> Any:
    """What stands for a value in JSON: lists, objects of what has its own, numbers, and else its words."""
    if isinstance(value, Section):
        return value.to_mapping()
    if isinstance(value, tuple):
        return [in_json(item) for item in value]
    if hasattr(value, "to_json"):
        return value.to_json()
    return value if value is None or isinstance(value, int) else str(value)


def fields_in_json(instance: object, *names: str) -> dict[str, Any]:
    """Some fields of a value, by their keys."""
    return {json_key(name): in_json(getattr(instance, name)) for name in names}


def below(parent: str, problems: Iterable[Problem]) -> list[Problem]:
    """The problems of a value, as seen from the object that holds it."""
    return [
        (f"{parent}.{path}" if parent and path and not path.startswith("[") else parent + path, message)
        for path, message in problems
    ]


def raise_invalid(instance: Section, *, more: Sequence[Problem] = ()) -> None:
    """Raise one ``ConfigError`` with the problems of all fields and some more, if there are any."""
    problems = list(more)
    for field in attrs.fields(type(instance)):
        value = getattr(instance, field.name)
        if isinstance(value, Invalid):
            problems += below(json_key(field.name), value)
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


def each(value: Any, parse: Callable[[Any], T]) -> tuple[T, ...]:
    """Parse every item of a list, collecting the problems of all."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
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
    """A key as part of a path: quoted if it would garble a line."""
    return key if isinstance(key, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", key) else shown(str(key))


@cache
def json_key(name: str) -> str:
    """The key of a field."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


# What an older config may have, and why it isn't known any more.
_FORMER = {"coverage": "every address of an expected CIDR is checked; leave it out"}


def _key_problems(mapping: Mapping[Any, Any], known: Set[str]) -> list[Problem]:
    problems = [(_key(key), "this key is given twice") for key in getattr(mapping, "duplicates", ())]
    for key in (key for key in mapping if key not in known):
        import difflib

        near = difflib.get_close_matches(str(key), list(known), n=1)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        problems.append((_key(key), f"unknown key; {_FORMER.get(key, hint)}"))
    return problems


def read(cls: type[Read], value: object) -> Read:
    """Build a class from a JSON object; ``null`` counts as missing.

    Args:
        cls: a ``Section``.
        value: anything; unknown and duplicate keys are problems too. An instance is given back.

    Returns:
        The instance.

    Raises:
        ConfigError: with all that is wrong in it.
    """
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError([("", f"expected an object, not {kind(value)}")])
    fields = {json_key(field.name): field for field in attrs.fields(cls)}
    problems = _key_problems(value, fields.keys())
    given: dict[str, Any] = {}
    for key, field in fields.items():
        if value.get(key) is not None:
            given[field.name] = value[key]
        elif field.default is attrs.NOTHING:
            given[field.name] = Invalid([("", "is missing")])
    try:
        instance = cls(**given)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return instance


def read_section(cls: type[Read], document: object, section: str) -> Read | None:
    """Build a class from one key of a document; its siblings are other components' and ignored.

    Args:
        cls: a ``Section``.
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
    if document.get(section) is None:
        import difflib

        # One edit; a typo must not read as "nothing is wanted".
        plain = {str(key).replace("-", "").replace("_", "").lower(): key for key in document if key != section}
        if near := difflib.get_close_matches(section.lower(), plain, n=1, cutoff=0.9):
            raise ConfigError([(_key(plain[near[0]]), f"unknown key; did you mean {section}?")])
        return None
    try:
        with uncollected():
            return read(cls, document[section])
    except ConfigError as error:
        raise ConfigError(below(section, error.problems)) from None


# --- single values: each parses one, or says in a ValueError what is wrong with it -----------------------------------


Word = TypeVar("Word", bound=StrEnum)

# systemd.unit(5); no path can hide in it.
_CONSUMER = r"[A-Za-z0-9:_.-]+@?\.service"
_INSTANCE = r"([A-Za-z0-9:_.-]+)@[A-Za-z0-9:_.-]+\.service"
_WORD = r"[A-Za-z]*"
_PATTERN = r"[][A-Za-z0-9_.*?-]+"
# No "." or ".." as a part: where it leads is what it says.
_TEXTFILE = r"(/(?!\.\.?/)[^/\0]+)+(?<!/)\.prom"


def parse_integer(value: int, highest: int) -> int:
    """A whole number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{shown(value)} is not an integer")
    if not 0 <= value <= highest:
        raise ValueError(f"{shown(value)} is out of range; expected 0 to {highest}")
    return value


def parse_boolean(value: bool) -> bool:
    """True or false, and nothing that merely counts as one of them."""
    if kind(value) != "a boolean":
        raise ValueError(f"{shown(value)} is not a boolean; expected true or false")
    return value


def parse_word(value: str, words: type[Word], kind: str, default: Word) -> Word:
    """One of some words, in any case; the default for an empty string."""
    if _is(value, _WORD):
        word = value.upper() or default.name
        if word in words.__members__:
            return words[word]
    raise ValueError(f"{shown(value)} is not {kind}; expected {' or '.join(words.__members__)}")


def _is(value: object, pattern: str) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def parse_consumer(value: str) -> str:
    """Return the name of a service or a template."""
    if _is(value, _INSTANCE):
        template = f"{value.partition('@')[0]}@.service"
        raise ValueError(
            f"{shown(value)} is one instance; name its template, {template}: a repave starts another instance, and the "
            "agent's preflight refuses a node where this one has drop-ins"
        )
    if not _is(value, _CONSUMER):
        raise ValueError(
            f"{shown(value)} is not the name of a service; expected for example systemd-nspawn@.service or "
            "kubelet.service"
        )
    return value


def parse_pattern(value: str) -> str:
    """A shell pattern of interface names."""
    if not _is(value, _PATTERN):
        raise ValueError(f"{shown(value)} is not a pattern of interface names; it may hold A-Z a-z 0-9 _ . - * ? [ ]")
    return value


def parse_textfile(value: str | None) -> str | None:
    """The path of a file for the textfile collector of Prometheus' node exporter, which reads ``*.prom``."""
    if value is None or value == "":
        return None
    if not _is(value, _TEXTFILE) or not value.isprintable():
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
        ConfigError: there is no such file, or it isn't JSON.
        FileError: it can't be read.
    """
    name = str(path)
    try:
        with open(name, "rb", opener=only_regular) as file:
            return parse_document(file, name, what, bytes_max=bytes_max)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError([(name, "there is no such file")]) from None
    except IsADirectoryError:
        raise ConfigError([(name, "is a directory; expected a JSON file")]) from None
    except OSError as error:
        raise FileError.of(f"read the {what} {name}", error) from error
    except ValueError as error:  # a NUL in the path
        raise ConfigError([(repr(name), f"is not a path: {error}")]) from None


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
    if raw.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        # Notepad and PowerShell begin a file with one.
        raise ConfigError([(name, "begins with a byte order mark (BOM): save it as UTF-8 without BOM")])
    try:
        # As os.fsdecode would: to the kernel any bytes make an interface's name, and ip prints them as they are.
        with uncollected():
            return json.loads(raw.decode("utf-8", "surrogateescape"), object_pairs_hook=_json_object)
    except RecursionError:
        raise ConfigError([(name, f"is not a {what}: it is nested too deeply")]) from None
    except ValueError as error:
        raise ConfigError([(name, f"is not JSON: {error}")]) from None


class _Doubled(dict[str, Any]):
    """A JSON object in which some keys were given twice: it holds the last values, and ``first`` the others."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.first = dict(reversed(pairs))
        self.duplicates = tuple(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For ``json.loads(object_pairs_hook=)``."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Doubled(pairs)
