"""Translate the ``OSError``s of backends that aren't this library's into ``RouteError``s."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import attrs

from hostrouting.kernel.forwarding import ForwardingBackend
from hostrouting.kernel.port import ChangeListener, RouteBackend
from hostrouting.model.errors import RouteError
from phases import CancelScope

_METHODS = ("facts", "entries", "lookup", "sources", "write", "write_rules")
_LIBRARY = f"{__name__.partition('.')[0]}."


def translated(backend: RouteBackend) -> RouteBackend:
    """Return a backend that raises no ``OSError``; one of this library is returned unchanged."""
    if all(type(each).__module__.startswith(_LIBRARY) for each in _layers(backend)):
        return backend
    return cast("RouteBackend", _Translating(backend))


def innermost(backend: RouteBackend) -> RouteBackend:
    """Return the backend beneath all wrappers."""
    *_, last = _layers(backend)
    return last


def _layers(backend: RouteBackend) -> Iterator[RouteBackend]:
    yield backend
    while isinstance(backend, (ForwardingBackend, _Translating)):
        backend = backend.inner
        yield backend


@attrs.frozen(repr=False)
class _Translating:
    """A backend as it is, except that its errors are translated."""

    inner: RouteBackend

    def __repr__(self) -> str:
        return repr(self.inner)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name == "changes":
            return self._changes
        return self._translated(name, found) if name in _METHODS else found

    def _translated(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def translated_call(*args: object, **named: object) -> Any:
            with self._translating(name):
                return call(*args, **named)

        return translated_call

    @contextmanager
    def _changes(self, *args: Any, **named: Any) -> Iterator[ChangeListener]:
        """Listen for changes. The errors of the ``with`` block itself stay what they are."""
        with ExitStack() as stack:
            with self._translating("changes"):
                listener = stack.enter_context(self.inner.changes(*args, **named))
            yield _TranslatingListener(listener, partial(self._translating, "changes"))

    @contextmanager
    def _translating(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            method = f"{type(self.inner).__name__}.{name}"
            raise RouteError(f"{method} failed: {reason}", errno=error.errno) from error


@attrs.frozen
class _TranslatingListener(ChangeListener):
    _inner: ChangeListener
    _translating: Callable[[], AbstractContextManager[None]]

    def happened(self) -> bool:
        with self._translating():
            return self._inner.happened()

    def wait(self, scope: CancelScope) -> None:
        with self._translating():
            self._inner.wait(scope)
