"""Tests of backends and service managers that a program brings: their own refusals, and the errors
that they leak.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from subprocess import CalledProcessError
from typing import Any

import attrs
import pytest
from node import shadowed_kernel
from wanted import MACHINE, ROUTE, SHADOWED, config

import phases
from hostrouting import (
    Config,
    Configure,
    Host,
    Layout,
    RemoveHostRouting,
    RouteError,
    UnitError,
    check,
    examine,
    explain,
    plan,
    snapshot,
)
from hostrouting.backend import (
    ForwardingBackend,
    Lookup,
    NextHop,
    Route,
    RouteBackend,
    RouteFailure,
    RuleFailure,
    Write,
    read_routes,
)
from hostrouting.testing import FakeSystemd
from hostrouting.testing.conformance import pair

CONFIG = config(ROUTE, cidrs=[SHADOWED])


def with_keys(given: Config, **keys: Any) -> Config:
    return attrs.evolve(given, static_routes=attrs.evolve(given.static_routes, **keys))


def host(backend: RouteBackend, layout: Layout) -> Host:
    return Host(backend, FakeSystemd(), layout)


# --- a backend that refuses a route ---------------------------------------------------------------


class Refusing(ForwardingBackend):
    """A backend that refuses to add routes and rules.

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

    def write_rules(self, change: Write, rules: Any) -> tuple[RuleFailure, ...]:
        if change is Write.DELETE:
            return super().write_rules(change, rules)
        return tuple(
            RuleFailure(rule, self._number, "the change window is closed", is_by_kernel=False)
            for rule in rules
        )


RULE = {"to": "10.9.0.0/16", "priority": 20}


@pytest.mark.parametrize(
    ("wanted", "refused"),
    [(CONFIG, "hostrouting"), (config(rules=[RULE]), "to 10.9.0.0/16 lookup local")],
    ids=["a route", "a rule"],
)
@pytest.mark.parametrize(
    "number", [errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL, errno.ENETUNREACH, errno.ECANCELED]
)
def test_a_backends_own_refusal_has_no_hint_about_the_kernel(
    layout: Layout, number: int, wanted: Config, refused: str
) -> None:
    on = host(Refusing(shadowed_kernel(), number), layout)
    with pytest.raises(RouteError, match=f"{refused}: the change window is closed\n") as caught:
        phases.run(Configure(wanted, host=on))
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
        assert error.message.startswith("can't ")
        assert "Leaking isn't a class of hostrouting" in error.hint
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


ERRORS: dict[str, tuple[Exception, str]] = {
    "another error": (
        KeyError("token"),
        "can't add 172.16.1.0/24 .*: Leaking.write failed: KeyError: 'token'",
    ),
    "an error of the library": (RouteError("no lease"), "no lease"),
}


@pytest.mark.parametrize(("error", "message"), ERRORS.values(), ids=ERRORS)
def test_any_error_of_a_backend_becomes_a_route_error(
    layout: Layout, error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise error

    monkeypatch.setattr(Leaking, "write", fail)
    with pytest.raises(RouteError, match=f"^{message}\n") as caught:
        phases.run(Configure(CONFIG, host=host(Leaking(shadowed_kernel()), layout)))
    assert error in (caught.value, caught.value.__cause__)


def test_an_assertion_in_a_backend_ends_the_test(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise AssertionError("nothing may be written here")

    monkeypatch.setattr(Leaking, "facts", fail)
    with pytest.raises(AssertionError, match="nothing may be written here"):
        check(CONFIG, host=host(Leaking(shadowed_kernel()), layout))


# --- a backend that returns something else --------------------------------------------------------

GONE = Route(IPv4Network("172.16.9.0/24"), (NextHop("ib0"),))
NO: Any = None
RETURNED: dict[str, tuple[str, Any, str]] = {
    "facts": ("facts", None, "expected Facts"),
    "entries": ("entries", [], r"expected Entries, such as wanted.filter\(routes\)"),
    "lookup": ("lookup", None, "expected a tuple of Lookup"),
    "sources": ("sources", [], "expected a tuple of tuples of addresses"),
    "write": ("write", None, "expected a tuple of RouteFailure, which is empty if none failed"),
    "write_rules": ("write_rules", None, "expected a tuple of RuleFailure"),
    "lookups of another number": (
        "lookup",
        (),
        r"returned a tuple of 0 for 1; expected a tuple of Lookup, one for each address",
    ),
    "lookups of other addresses": (
        "lookup",
        (Lookup(IPv4Address("10.9.9.8"), None, errno.ENETUNREACH),),
        r"returned a lookup of 10\.9\.9\.8 for 10\.9\.9\.9; expected",
    ),
    "sources of another number": ("sources", ((), ()), "returned a tuple of 2 for 0; expected"),
    "sources without addresses": ("sources", (None,), "returned a tuple with null; expected"),
    "lookups of routes": ("lookup", (GONE,), r"a tuple with Route\(.*; expected a tuple of Lookup"),
    "routes that failed": ("write", (GONE,), r"a tuple with Route\(.*; expected a tuple of RouteF"),
    "texts": ("write_rules", ("no",), "a tuple with 'no'; expected a tuple of RuleFailure"),
    "no errno": ("write", (RouteFailure(GONE, NO, "no"),), r"with RouteFailure\(.*; expected"),
    "no route": ("write", (RouteFailure(NO, 1, "no"),), r"with RouteFailure\(.*; expected"),
    "changes": ("changes", None, "expected a context manager, which yields a ChangeListener"),
    "listener": ("changes", nullcontext(), "takes a ChangeListener, not null"),
}


@pytest.mark.parametrize(
    "pass_on",
    [
        lambda backend, _: pair(backend, world=shadowed_kernel()),
        lambda backend, layout: host(backend, layout).routes,
    ],
    ids=["pair", "host"],
)
@pytest.mark.parametrize(("method", "value", "message"), RETURNED.values(), ids=RETURNED)
def test_what_a_backend_returns_is_checked(
    layout: Layout, pass_on: Any, method: str, value: Any, message: str
) -> None:
    """The error names the class and the method, in a conformance test, too."""
    backend = Leaking(shadowed_kernel())
    setattr(backend, method, lambda *_, **__: value)
    used = pass_on(backend, layout)
    arguments: dict[str, tuple[Any, ...]] = {
        "lookup": ([IPv4Address("10.9.9.9")],),
        "sources": ([],),
        "write": (Write.ADD, []),
        "write_rules": (Write.ADD, []),
    }
    with (
        pytest.raises(TypeError, match=rf"Leaking\.{method}.* {message}"),
        ExitStack() as stack,
    ):
        stack.enter_context(getattr(used, method)(*arguments.get(method, ())))


def test_a_write_that_returns_nothing_is_taken_back(layout: Layout) -> None:
    class Forgetful(ForwardingBackend):
        def write(self, change: Write, routes: Any) -> Any:
            super().write(change, routes)

    kernel = shadowed_kernel()
    before = read_routes(kernel)
    with pytest.raises(TypeError, match=r"^Forgetful\.write returned None; expected a tuple of"):
        phases.run(Configure(CONFIG, host=host(Forgetful(kernel), layout)))
    assert read_routes(kernel) == before


def test_a_write_that_does_nothing_is_told_from_another_programs_change(layout: Layout) -> None:
    class Idle(ForwardingBackend):
        def write(self, change: Write, routes: Any) -> tuple[RouteFailure, ...]:
            return ()

    told = r"^Idle\.write reported no failure, but 172\.16\..* isn't in the table\n"
    with pytest.raises(RouteError, match=told):
        phases.run(Configure(CONFIG, host=host(Idle(shadowed_kernel()), layout)))


KEPT = with_keys(CONFIG, keep=["ib*"], rules=[{"to": "10.244.0.0/16", "priority": 5269}])


@pytest.mark.parametrize("is_diverted", [False, True])
def test_rules_that_were_not_written_are_not_blamed_on_others(
    layout: Layout, *, is_diverted: bool
) -> None:
    class Idle(ForwardingBackend):
        def write_rules(self, change: Write, rules: Any) -> tuple[RuleFailure, ...]:
            return ()

    kernel = shadowed_kernel()
    if is_diverted:
        kernel.ip(
            "rule add pref 9000 to 10.244.0.0/16 table 99\nroute add default dev ib0 table 99"
        )
    told = r"^Idle\.write_rules reported no failure, but the rule .* isn't among the rules"
    with pytest.raises(RouteError, match=told) as caught:
        phases.run(Configure(KEPT, host=host(Idle(kernel), layout)))
    assert "from all lookup local" not in str(caught.value)
    assert set(caught.value.hint.splitlines()) == {"look at: ip monitor rule"}


def test_rules_that_another_program_removes_at_once_are_named(layout: Layout) -> None:
    kernel = shadowed_kernel()

    class Flushed(ForwardingBackend):
        def lookup(self, addresses: Any, **named: Any) -> Any:
            for rule in kernel.facts().rules:
                if rule.is_ours:
                    kernel.del_rule(rule)
            return super().lookup(addresses, **named)

    told = r"the rule 2170: from 172\.16\.0\.10 lookup 2170000 isn't among the rules"
    with pytest.raises(RouteError, match=told) as caught:
        phases.run(Configure(KEPT, host=host(Flushed(kernel), layout)))
    assert "because of" not in str(caught.value)
    assert "ip monitor rule" in caught.value.hint


@pytest.mark.parametrize("task", [partial(Configure, Config()), RemoveHostRouting])
@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("write", r"^Keeping\.write reported no failure, but .* is still in the table"),
        ("write_rules", r"^Keeping\.write_rules reported no failure, but .* still among the rules"),
    ],
)
def test_a_removal_that_did_not_happen_is_an_error(
    layout: Layout, task: Callable[..., Any], method: str, told: str
) -> None:
    class Keeping(ForwardingBackend):
        pass

    kernel = shadowed_kernel()
    phases.run(Configure(KEPT, host=host(kernel, layout)))
    backend = Keeping(kernel)
    write = getattr(kernel, method)

    def keep(change: Write, items: Any) -> Any:
        return () if change is Write.DELETE else write(change, items)

    setattr(backend, method, keep)
    with pytest.raises(RouteError, match=told):
        phases.run(task(host=host(backend, layout)))


# --- a program's own service manager --------------------------------------------------------------


class LeakingUnits(FakeSystemd):
    """A service manager with one method that raises an error of its own."""

    def __init__(self, layout: Layout, method: str, error: BaseException) -> None:
        super().__init__(layout, running=[MACHINE])
        setattr(self, method, partial(self._fail, error))

    def _fail(self, error: BaseException, *_: object, **__: object) -> Any:
        raise error


@pytest.mark.parametrize(
    ("method", "attempt"),
    [
        ("enable", "enable static-routes.service"),
        ("reload", "reload the unit files"),
        ("show_each", "query systemd"),
        ("within", "query systemd"),
    ],
)
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "Permission denied"),
        (CalledProcessError(1, ["systemctl"]), "CalledProcessError: Command "),
    ],
    ids=["OSError", "of a command"],
)
def test_an_error_of_a_service_manager_becomes_a_unit_error(
    method: str, attempt: str, error: Exception, reason: str, layout: Layout
) -> None:
    units = LeakingUnits(layout, method, error)
    with pytest.raises(UnitError) as caught:
        phases.run(Configure(CONFIG, host=Host(shadowed_kernel(), units, layout)))
    assert caught.value.message.startswith(f"can't {attempt}")
    assert f": LeakingUnits.{method} failed: {reason}" in caught.value.message
    assert caught.value.errno == getattr(error, "errno", None)
    assert caught.value.__cause__ is error
    assert "LeakingUnits isn't a class of hostrouting" in caught.value.hint


@pytest.mark.parametrize("error", [UnitError("no bus"), phases.Cancelled("SIGTERM")])
def test_an_error_that_is_no_fault_of_a_service_manager_is_passed_on(
    error: BaseException, layout: Layout
) -> None:
    units = LeakingUnits(layout, "enable", error)
    with pytest.raises(type(error)) as caught:
        phases.run(Configure(CONFIG, host=Host(shadowed_kernel(), units, layout)))
    assert caught.value is error


def test_a_host_with_a_service_manager_of_a_program_is_equal_and_shown_as_before(
    layout: Layout,
) -> None:
    units = LeakingUnits(layout, "enable", UnitError("no bus"))
    first = Host(backend := shadowed_kernel(), units, layout)
    again = Host(backend, first.units, layout)
    assert first == again
    assert first.units is again.units
    assert repr(units) in repr(first)
