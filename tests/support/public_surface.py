"""List the public surface, a line for each name that a user's code may contain.

    ./run python tests/support/public_surface.py        # writes tests/public_surface.txt

A review then shows each change of the surface. A field that is an argument of its class's
constructor, and a method of a public base class, are listed once.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef, get_args

import attrs

import hostrouting
import hostrouting.azure
import hostrouting.backend
import hostrouting.report
import hostrouting.tasks
import hostrouting.testing
import hostrouting.testing.conformance
import hostrouting.testing.strategies
import phases
import phases.testing

FILE = Path(__file__).parent.parent / "public_surface.txt"
MODULES: tuple[ModuleType, ...] = (
    phases,
    phases.testing,
    hostrouting,
    hostrouting.tasks,
    hostrouting.report,
    hostrouting.backend,
    hostrouting.testing,
    hostrouting.testing.conformance,
    hostrouting.testing.strategies,
    hostrouting.azure,
)


def surface() -> str:
    """Return the lines for all modules. They are the same with each Python."""
    values = {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in MODULES
        for name in sorted(module.__all__)
    }
    return "".join(f"{line}\n" for path in values for line in _lines(path, values[path]))


def _lines(path: str, value: Any) -> Iterator[str]:
    if inspect.isfunction(value):
        yield f"{path}{_signature(value)}"
    elif get_args(value):  # before Python 3.11, an alias of a built-in class is a class, too
        yield f"{path}: {value}"
    elif isinstance(value, type):
        yield f"class {path}({', '.join(base.__name__ for base in value.__bases__)})"
        if _is_constructed(value):
            yield f"{path}{_signature(value)}"
        yield from (f"{path}.{line}" for line in _members(value))
    else:
        yield f"{path}: {type(value).__name__}"


def _is_constructed(value: type) -> bool:
    if issubclass(value, Enum) or getattr(value, "_is_protocol", False):
        return False
    return any(inspect.isfunction(getattr(value, name)) for name in ("__init__", "__new__"))


def _members(value: type) -> Iterator[str]:
    fields = attrs.fields_dict(value) if attrs.has(value) else {}
    given = inspect.signature(value).parameters if _is_constructed(value) else ()
    for name in (name for name in dir(value) if name[0] != "_"):
        home = next(base for base in value.__mro__ if name in vars(base))
        is_inherited = home is not value and home in _public_classes()
        if is_inherited or home.__module__.partition(".")[0] not in ("hostrouting", "phases"):
            continue
        member = vars(home)[name]
        if isinstance(member, property):
            yield f"{name}: {_type(inspect.signature(member.fget).return_annotation)}"  # type: ignore[arg-type]
        elif isinstance(member, (classmethod, staticmethod)) or inspect.isfunction(member):
            yield f"{name}{_signature(getattr(value, name))}"
        elif issubclass(value, Enum):
            yield f"{name} = {member.value!r}"
        elif name not in fields:
            yield name
        elif name not in given:
            yield f"{name}: {_type(fields[name].type)}"


@cache
def _public_classes() -> set[type]:
    named = (getattr(module, name) for module in MODULES for name in module.__all__)
    return {each for each in named if isinstance(each, type) and not get_args(each)}


class _Words:
    """A text that is its own repr, for a part of a signature."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _signature(function: Any) -> str:
    found = inspect.signature(function)
    parameters = [
        each.replace(annotation=_type(each.annotation), default=_default(each.default))
        for each in found.parameters.values()
    ]
    return str(
        found.replace(parameters=parameters, return_annotation=_type(found.return_annotation))
    )


def _type(annotation: object) -> object:
    if annotation is inspect.Parameter.empty:
        return annotation
    text = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation
    return _Words(text if isinstance(text, str) else getattr(text, "__name__", str(text)))


def _default(value: object) -> object:
    is_short = value is inspect.Parameter.empty or isinstance(
        value, (type(None), bool, int, float, str)
    )
    return value if is_short else _Words("...")


if __name__ == "__main__":
    FILE.write_text(surface())
