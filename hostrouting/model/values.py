"""The decorator of our values, which are frozen attrs classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    # Type checkers know attrs' own decorator.
    from attrs import frozen as frozen
else:

    def frozen(cls=None, *, repr=True, **options):  # noqa: A002 - as attrs.frozen
        """Make a class one of ``attrs.frozen``, with a ``__repr__`` that all such classes share.

        attrs would compile a ``__repr__`` for each class during the imports, which takes 6 ms of a
        run. The shared one returns the same text.
        """
        if cls is None:
            return lambda cls: frozen(cls, repr=repr, **options)
        if repr and "__repr__" not in vars(cls):
            cls.__repr__ = _repr
        return attrs.frozen(cls, repr=False, **options)


def _repr(self: Any) -> str:
    words = []
    for field in attrs.fields(type(self)):
        text = field.repr if callable(field.repr) else repr
        if field.repr:
            words.append(f"{field.name}={text(getattr(self, field.name))}")
    # As attrs does, leave out the function in which the class is defined.
    name = type(self).__qualname__.rpartition(">.")[2]
    return f"{name}({', '.join(words)})"
