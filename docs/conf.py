"""The Sphinx configuration of the site and the man pages:  ./run docs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any

import attrs
from sphinx.util.inspect import stringify_signature

from hostrouting import __version__

project = "hostrouting"
copyright = "the hostrouting authors, MIT license"  # noqa: A001 (Sphinx reads this name)
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
smartquotes = False  # options begin with two hyphens

html_theme = "furo"
html_title = f"hostrouting {version}"
html_show_sphinx = False
html_copy_source = False

autodoc_member_order = "alphabetical"
maximum_signature_line_length = 70
_DEFAULT_CHARACTERS = 50
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
python_use_unqualified_type_names = True

# Names outside of these pages have no target. Anything else is text, such as a property's docstring
# with a colon, of which napoleon makes a type.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"[\w.~]+")]  # ~P is a ParamSpec

man_pages: list[tuple[str, str, str, list[str], int]] = [
    (
        "reference/commands",
        "hostrouting",
        "give a node's traffic the right interface, and prove it",
        [],
        1,
    ),
    ("reference/config", "hostrouting-config", "the config file of hostrouting", [], 5),
]


class _Shortened:
    """A default that would take more room in a signature than the rest of it."""

    def __repr__(self) -> str:
        return "…"


def short_signature(function: Callable[..., Any]) -> str:
    """Return a signature without long defaults or annotations, which the arguments' text has."""
    found = inspect.signature(function)
    given = [
        each.replace(default=_Shortened())
        if len(repr(each.default)) > _DEFAULT_CHARACTERS
        else each
        for each in found.parameters.values()
    ]
    return stringify_signature(
        found.replace(parameters=given), show_annotation=False, show_return_annotation=False
    )


def setup(app: Any) -> None:
    """Omit what doesn't help a caller, such as modules' docstrings, and add enums' members."""

    def without_modules(
        _app: Any, what: str, _name: str, _object: Any, _options: Any, lines: list[str]
    ) -> None:
        if what == "module":
            lines.clear()

    def choose_members(
        _app: Any, _what: str, _name: str, value: object, _skip: bool, _options: Any
    ) -> bool | None:
        # The Args section of a NamedTuple documents its fields. An enum's members have no
        # docstrings.
        return (
            True
            if type(value).__name__ == "_tuplegetter"
            else False
            if isinstance(value, Enum)
            else None
        )

    def shorten(
        _app: Any, _what: str, _name: str, value: object, *_given: Any
    ) -> tuple[str, str] | None:
        if getattr(value, "_is_protocol", False):  # it isn't called; its __init__ takes anything
            return "", ""
        return (
            (short_signature(value), "") if isinstance(value, type) and attrs.has(value) else None
        )

    app.connect("autodoc-process-docstring", without_modules)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-skip-member", choose_members)
