"""Observe or disturb a run from within: a systemd that acts before each call, and whether a lock is
held.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from wanted import MACHINE

import phases
from hostrouting import Layout, UnitError
from hostrouting.testing import FakeSystemd


class ActingSystemd(FakeSystemd):
    """A systemd with a running machine that calls ``act`` with the name and the arguments of each
    call before it.

    Args:
        layout: the layout to read unit files from.
        act: the function; if it raises an exception, the call fails with it.
    """

    def __init__(self, layout: Layout, act: Callable[..., object] = lambda *_: None) -> None:
        super().__init__(layout, running=[MACHINE])
        self.act = act
        for name in ("reload", "enable", "disable", "restart", "start", "run_later", "show"):
            setattr(self, name, partial(self._call, name, getattr(self, name)))

    def _call(self, name: str, call: Callable[..., Any], *given: object) -> Any:
        self.act(name, *given)
        return call(*given)

    def within(self, scope: phases.CancelScope) -> Any:
        """Return this systemd with calls that fail once the scope is cancelled."""
        return _BoundSystemd(self, scope)


class _BoundSystemd:
    """A systemd whose calls fail once a scope is cancelled, as those of ``Systemctl`` do."""

    def __init__(self, units: ActingSystemd, scope: phases.CancelScope) -> None:
        self._units = units
        self._scope = scope
        self.within = units.within

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def _call(self, name: str, *given: Any, **named: Any) -> Any:
        self._scope.check()
        return getattr(self._units, name)(*given, **named)


def at(name: str, act: Callable[[], object]) -> Callable[..., None]:
    """Return a function for ``act`` that calls another one before each call with this name."""

    def look(call: str, *_: object) -> None:
        if call == name:
            act()

    return look


def refusing(*refused: str) -> Callable[..., None]:
    """Return a function for ``act`` that refuses all calls that begin with this name and these
    arguments.
    """

    def act(*call: object) -> None:
        if call[: len(refused)] == refused:
            raise UnitError("`systemctl` failed: Connection timed out")

    return act


def is_held(lock: Path) -> bool:
    """Return whether a run holds this lock."""
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
