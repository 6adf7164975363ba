"""Backend wrappers that record writes or make some of them fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hostrouting.backend import ForwardingBackend, Route, RouteBackend, RouteFailure


class Wrapper(ForwardingBackend):
    """Base class for a wrapper that routes all writes through one method."""

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
        failures: tuple[RouteFailure, ...] = getattr(self.inner, name)(routes)
        return failures


class Altered:
    """A backend that calls other functions in place of some of its methods."""

    def __init__(self, inner: RouteBackend, **others: Callable[..., Any]) -> None:
        self.__dict__.update(others)
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class RecordingBackend(Wrapper):
    """A backend that records every write, including writes that fail.

    Args:
        inner: the wrapped backend.

    Attributes:
        written: the routes in the order of the writes, each with the method's name, for example
            ``("add", route)``.
    """

    def __init__(self, inner: RouteBackend) -> None:
        super().__init__(inner)
        self.written: list[tuple[str, Route]] = []

    def _write(self, name: str, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        self.written += [(name, route) for route in routes]
        return super()._write(name, routes)


class FailingBackend(Wrapper):
    """A backend on which some writes fail.

    Args:
        inner: the backend for all other writes.
        fail: errnos by method name and route number, for example ``{"add": {3: errno.ENOMEM}}``.
            Routes are numbered from 1 across all calls to the same method.
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
