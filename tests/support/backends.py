"""Backend wrappers that record writes or make some of them fail."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from hostrouting.backend import (
    ChangeListener,
    ForwardingBackend,
    Route,
    RouteBackend,
    RouteFailure,
    Rule,
    RuleFailure,
    Write,
)
from phases import CancelScope


class Altered:
    """A backend that calls other functions in place of some of its methods."""

    def __init__(self, inner: RouteBackend, **others: Callable[..., Any]) -> None:
        self.__dict__.update(others)
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Listening(ChangeListener):
    """A listener for changes that calls functions."""

    def __init__(
        self,
        wait: Callable[[CancelScope], object] = CancelScope.check,
        happened: Callable[[], bool] = lambda: False,
    ) -> None:
        self._wait, self._happened = wait, happened

    def wait(self, scope: CancelScope) -> None:
        self._wait(scope)

    def happened(self) -> bool:
        return self._happened()


def listening(wait: Callable[[CancelScope], object]) -> Callable[..., Any]:
    """Return a method ``changes`` whose listener waits in this way."""
    return lambda inside=None: nullcontext(Listening(wait))


class RecordingBackend(ForwardingBackend):
    """A backend that records every write, including writes that fail.

    Args:
        inner: the wrapped backend.

    Attributes:
        written: the routes in the order of the writes, each with the kind of change, for example
            ``("add", route)``.
        written_rules: the rules, alike.
    """

    def __init__(self, inner: RouteBackend) -> None:
        super().__init__(inner)
        self.written: list[tuple[str, Route]] = []
        self.written_rules: list[tuple[str, Rule]] = []

    def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        self.written += [(change.value, route) for route in routes]
        return super().write(change, routes)

    def write_rules(self, change: Write, rules: Sequence[Rule]) -> tuple[RuleFailure, ...]:
        self.written_rules += [(change.value, rule) for rule in rules]
        return super().write_rules(change, rules)


class FailingBackend(ForwardingBackend):
    """A backend on which some writes fail.

    Args:
        inner: the backend for all other writes.
        fail: errnos by kind of change and route number, for example ``{"add": {3: errno.ENOMEM}}``.
            The kinds for rules are ``add rule`` and ``delete rule``. Routes and rules are numbered
            from 1 across all changes of the same kind.
    """

    def __init__(self, inner: RouteBackend, fail: Mapping[str, Mapping[int, int]]) -> None:
        super().__init__(inner)
        self._fail = fail
        self._count = Counter[str]()

    def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        failures: list[RouteFailure] = []
        for route in routes:
            errno = self._next(change.value)
            if errno is None:
                failures += super().write(change, [route])
            else:
                failures.append(RouteFailure(route, errno, os.strerror(errno)))
        return tuple(failures)

    def write_rules(self, change: Write, rules: Sequence[Rule]) -> tuple[RuleFailure, ...]:
        failures: list[RuleFailure] = []
        for rule in rules:
            errno = self._next(f"{change} rule")
            if errno is None:
                failures += super().write_rules(change, [rule])
            else:
                failures.append(RuleFailure(rule, errno, os.strerror(errno)))
        return tuple(failures)

    def _next(self, kind: str) -> int | None:
        self._count[kind] += 1
        return self._fail.get(kind, {}).get(self._count[kind])
