"""Check what a program's own backend returns, and translate its errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar, cast

from hostrouting.kernel.arguments import check_methods, check_returned
from hostrouting.kernel.forwarding import ForwardingBackend
from hostrouting.kernel.port import ChangeListener, RouteBackend, Write
from hostrouting.model.errors import NAMED_MAX, HostRoutingError, RouteError
from hostrouting.model.text import shortened
from hostrouting.model.values import frozen
from phases import CancelScope, TimedOut

B = TypeVar("B", bound=RouteBackend)
E = TypeVar("E", bound=HostRoutingError)

_METHODS = ("facts", "entries", "lookup", "sources", "write", "write_rules")
_LIBRARY = f"{__name__.partition('.')[0]}."
# An AssertionError must reach the test that raised it, and a MemoryError isn't the backend's fault.
NEVER_TRANSLATED = (HostRoutingError, TimedOut, AssertionError, MemoryError)


def translated(backend: RouteBackend) -> RouteBackend:
    """Return a backend whose errors are ``RouteError``s, and whose results are checked.

    A backend of this library is returned unchanged.
    """
    if all(map(is_of_library, _layers(backend))):
        return backend
    return cast("RouteBackend", _Translating(backend))


def is_of_library(value: object) -> bool:
    """Return whether an object's class is one of this library."""
    return type(value).__module__.startswith(_LIBRARY)


def foreign_error(kind: type[E], attempt: str, owner: object, method: str, error: Exception) -> E:
    """Return the error for a method of a program's own class that raised another exception.

    Args:
        kind: the class of the error.
        attempt: what the call attempts, as a verb phrase.
        owner: the program's own object.
        method: the name of the method.
        error: the exception.
    """
    name = type(owner).__name__
    reason = f"{type(error).__name__}: {error}"
    errno = None
    if isinstance(error, OSError):
        errno = error.errno
        reason = os.strerror(errno) if errno else str(error)
    return kind(
        f"can't {attempt}: {name}.{method} failed: {reason}",
        hint=f"{name} isn't a class of hostrouting: its own error is the __cause__",
        errno=errno,
    )


def checked(backend: B) -> B:
    """Return a backend that raises a ``TypeError`` if a method returns a wrong type."""
    return cast("B", _Checking(backend))


def foreign_name(backend: RouteBackend) -> str:
    """Return the class name of a program's own backend, or an empty string for ours."""
    return type(backend.inner).__name__ if isinstance(backend, _Checking) else ""


def innermost(backend: RouteBackend) -> RouteBackend:
    """Return the backend beneath all wrappers."""
    *_, last = _layers(backend)
    return last


def _layers(backend: RouteBackend) -> Iterator[RouteBackend]:
    yield backend
    while isinstance(backend, (ForwardingBackend, _Checking)):
        backend = backend.inner
        yield backend


@frozen(repr=False)
class _Checking:
    """A backend that checks the types of what another backend returns."""

    inner: RouteBackend

    def __repr__(self) -> str:
        return repr(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name == "changes":
            return self._changes
        return partial(self._call, name) if name in _METHODS else getattr(self.inner, name)

    def _call(self, name: str, *args: object, **named: object) -> Any:
        with self._translating(name, *args):
            value = getattr(self.inner, name)(*args, **named)
        check_returned(self.inner, name, value, next(iter((*args, *named.values())), None))
        return value

    @contextmanager
    def _changes(self, *args: Any, **named: Any) -> Iterator[ChangeListener]:
        """Listen for changes. Errors that the ``with`` block raises aren't translated."""
        with ExitStack() as stack:
            with self._translating("changes"):
                block = self.inner.changes(*args, **named)
            check_returned(self.inner, "changes", block)
            with self._translating("changes"):
                listener = stack.enter_context(block)
            method = f"{type(self.inner).__name__}.changes"
            check_methods(listener, ChangeListener, f"the with block of {method}")
            yield _TranslatingListener(listener, partial(self._translating, "changes"))

    def _translating(self, name: str, *args: object) -> AbstractContextManager[None]:
        """Return a context for a call of the inner backend. Here, it doesn't translate errors."""
        del name, args
        return nullcontext()


class _Translating(_Checking):
    """A backend that checks what another backend returns, and translates its errors."""

    @contextmanager
    def _translating(self, name: str, *args: object) -> Iterator[None]:
        try:
            yield
        except NEVER_TRANSLATED:
            raise
        except Exception as error:
            attempt = _attempt(name, *args)
            raise foreign_error(RouteError, attempt, self.inner, name, error) from error


_ATTEMPTS = {
    "facts": "read the links, addresses and rules",
    "entries": "read the routes",
    "lookup": "look up routes",
    "sources": "look up source addresses",
    "write": "change routes",
    "write_rules": "change rules",
    "changes": "listen for changes",
}


def _attempt(name: str, *args: object) -> str:
    """Return what a call of a backend's method attempts, such as ``add 10.0.0.0/8 dev eth0``."""
    match args:
        case Write() as change, [_, *_] as items:
            return f"{change} {shortened([*map(str, items)], ', ', NAMED_MAX)}"
        case _:
            return _ATTEMPTS[name]


@frozen(eq=False, repr=False)
class _TranslatingListener(ChangeListener):
    _inner: ChangeListener
    _translating: Callable[[], AbstractContextManager[None]]

    def happened(self) -> bool:
        with self._translating():
            return self._inner.happened()

    def wait(self, scope: CancelScope) -> None:
        with self._translating():
            self._inner.wait(scope)
