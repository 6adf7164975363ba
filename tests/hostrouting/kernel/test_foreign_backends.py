"""Tests of backends that a program brings: their own refusals, and the errors that they leak."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from node import shadowed_kernel
from wanted import ROUTE, SHADOWED, config

import phases
from hostrouting import (
    Configure,
    Host,
    Layout,
    RouteError,
    check,
    examine,
    explain,
    plan,
    snapshot,
)
from hostrouting.backend import ForwardingBackend, RouteBackend, RouteFailure, Write
from hostrouting.testing import FakeSystemd

CONFIG = config(ROUTE, cidrs=[SHADOWED])


def host(backend: RouteBackend, layout: Layout) -> Host:
    return Host(backend, FakeSystemd(), layout)


# --- a backend that refuses a route ---------------------------------------------------------------


class Refusing(ForwardingBackend):
    """A backend that refuses to add routes.

    Args:
        inner: the wrapped backend.
        number: the errno of each refusal.
    """

    def __init__(self, inner: RouteBackend, number: int) -> None:
        super().__init__(inner)
        self._number = number

    def write(self, change: Write, routes: Any) -> tuple[RouteFailure, ...]:
        if change is Write.DELETE:
            return super().write(change, routes)
        return tuple(
            RouteFailure(route, self._number, "the change window is closed", is_by_kernel=False)
            for route in routes
        )


@pytest.mark.parametrize(
    "number", [errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL, errno.ENETUNREACH, errno.ECANCELED]
)
def test_a_backends_own_refusal_has_no_hint_about_the_kernel(layout: Layout, number: int) -> None:
    on = host(Refusing(shadowed_kernel(), number), layout)
    with pytest.raises(RouteError, match="hostrouting: the change window is closed\n") as caught:
        phases.run(Configure(CONFIG, host=on))
    assert (caught.value.hint, caught.value.errno) == ("", number)


# --- a backend that leaks an OSError --------------------------------------------------------------


class Leaking(ForwardingBackend):
    """A backend that has a socket of its own, and doesn't translate its errors."""


METHODS = ["facts", "entries", "lookup", "sources", "write", "write_rules", "changes"]
CALLS: dict[str, Callable[[Host], object]] = {
    "check": lambda on: check(CONFIG, host=on),
    "plan": lambda on: plan(CONFIG, host=on),
    "explain": lambda on: explain("172.16.1.9", host=on),
    "snapshot": lambda on: snapshot(host=on),
    "examine": lambda on: examine(CONFIG, host=on),
    "Configure": lambda on: phases.run(Configure(CONFIG, host=on)),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_os_error_of_a_backend_becomes_a_route_error(
    layout: Layout, call: Callable[[Host], object], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the backend's class and method."""
    raised: list[OSError] = []

    def fail(*_: object, **__: object) -> Any:
        raised.append(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
        raise raised[-1]

    monkeypatch.setattr(Leaking, method, fail)
    on = host(Leaking(shadowed_kernel()), layout)
    try:
        told = repr(call(on))
    except RouteError as error:
        assert error.errno == errno.ECONNREFUSED
        assert error.__cause__ in raised
        told = error.message
    assert (f"Leaking.{method} failed: Connection refused" in told) == bool(raised)


def test_a_listener_of_a_backend_is_translated(layout: Layout) -> None:
    class Deaf:
        def happened(self) -> bool:
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

        def wait(self, _: phases.CancelScope) -> None:
            self.happened()

    class Listening(ForwardingBackend):
        def changes(self, inside: Any = None) -> Any:
            del inside
            return nullcontext(Deaf())

    with host(Listening(shadowed_kernel()), layout).routes.changes() as listener:
        for listen in (listener.happened, lambda: listener.wait(phases.CancelScope())):
            with pytest.raises(RouteError, match=r"Listening\.changes failed: Connection timed"):
                listen()
