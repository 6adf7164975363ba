"""Wrappers around any backend that record its writes or refuse some of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hostrouting.model.routes import RouteFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostrouting.kernel.port import RouteBackend
    from hostrouting.model.routes import Route


class Wrapper:
    """A base class for a ``RouteBackend`` that forwards every call, and routes all writes through one method.

    Args:
        inner: the backend that does the work.
    """

    def __init__(self, inner: RouteBackend) -> None:
        self._inner = inner
        self.links = inner.links
        self.addresses = inner.addresses
        self.rules = inner.rules
        self.routes = inner.routes
        self.routes_by_attributes = inner.routes_by_attributes
        self.default_routes = inner.default_routes
        self.our_routes = inner.our_routes
        self.routes_except = inner.routes_except
        self.noticing_changes = inner.noticing_changes
        self.lookup = inner.lookup
        self.sources = inner.sources
        self.wait_for_change = inner.wait_for_change

    def add(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes, as ``RouteBackend.add`` does."""
        return self._write("add", routes)

    def replace(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Replace routes, as ``RouteBackend.replace`` does."""
        return self._write("replace", routes)

    def delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Delete routes, as ``RouteBackend.delete`` does."""
        return self._write("delete", routes)

    def _write(self, name: str, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        failures: tuple[RouteFailure, ...] = getattr(self._inner, name)(routes)
        return failures


class RecordingBackend(Wrapper):
    """A backend that records every write, even if it is refused.

    Args:
        inner: the backend that does the work.

    Attributes:
        written: the routes in the order they were written, each with the method's name, as in ``("add", route)``.
    """

    def __init__(self, inner: RouteBackend) -> None:
        super().__init__(inner)
        self.written: list[tuple[str, Route]] = []

    def _write(self, name: str, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        self.written += [(name, route) for route in routes]
        return super()._write(name, routes)


class FailingBackend(Wrapper):
    """A backend that refuses some writes.

    Args:
        inner: the backend that handles the other writes.
        fail: the errno to fail with, by the method's name and the number of the route, as in
            ``{"add": {3: errno.ENOMEM}}``. Routes are counted from 1 over all calls of that method.
    """

    def __init__(self, inner: RouteBackend, fail: Mapping[str, Mapping[int, int]]) -> None:
        super().__init__(inner)
        self._fail = fail
        self._count = dict.fromkeys(("add", "replace", "delete"), 0)

    def _write(self, name: str, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        failures: list[RouteFailure] = []
        for route in routes:
            self._count[name] += 1
            errno = self._fail.get(name, {}).get(self._count[name])
            if errno is None:
                failures += super()._write(name, [route])
            else:
                failures.append(RouteFailure(route, errno, os.strerror(errno)))
        return tuple(failures)
