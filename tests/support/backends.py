"""Around any backend: one notes what is written, another refuses some of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hostrouting.model.routes import RouteFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostrouting.kernel.port import RouteBackend
    from hostrouting.model.routes import Route


class Wrapper:
    """A ``RouteBackend`` that passes everything on, and has one place where all writes come by; derive from it.

    Args:
        inner: does the work.
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
        """As ``RouteBackend.add``."""
        return self._write("add", routes)

    def replace(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """As ``RouteBackend.replace``."""
        return self._write("replace", routes)

    def delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """As ``RouteBackend.delete``."""
        return self._write("delete", routes)

    def _write(self, name: str, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        failures: tuple[RouteFailure, ...] = getattr(self._inner, name)(routes)
        return failures


class RecordingBackend(Wrapper):
    """Notes what is written, refused or not.

    Args:
        inner: does the work.

    Attributes:
        written: in order, each route with the name of the call: ``("add", route)``.
    """

    def __init__(self, inner: RouteBackend) -> None:
        super().__init__(inner)
        self.written: list[tuple[str, Route]] = []

    def _write(self, name: str, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        self.written += [(name, route) for route in routes]
        return super()._write(name, routes)


class FailingBackend(Wrapper):
    """Refuses some of what is written.

    Args:
        inner: does the rest.
        fail: by the call's name and the number of the route, counted from 1 over all calls of that name, the
            errno: ``{"add": {3: errno.ENOMEM}}``.
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
