"""Test with a state machine that ``FakeKernel`` and Linux give the same answers."""

from __future__ import annotations

import errno
import unittest
from contextlib import contextmanager, nullcontext
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from nightly import by_day
from node import on_linux

from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import Route
from hostrouting.testing.conformance import (
    ConformanceMachine,
    DisagreementError,
    _difference,
    _refusals,
    conformance_test,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostrouting.model.routes import RouteFailure

_SETTINGS = settings(max_examples=by_day(6, by_night=5000), stateful_step_count=by_day(15, by_night=40))
_FEWER = settings(_SETTINGS, max_examples=by_day(2, by_night=1000))

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(by_day(300, by_night=7200))]


def _set(sysctl: str) -> None:
    Path("/proc/sys/net/ipv4/conf/all", sysctl).write_text("1")


@contextmanager
def _linux() -> Iterator[NamespaceKernel]:
    yield on_linux()


@contextmanager
def _promoting_linux() -> Iterator[NamespaceKernel]:
    with _linux() as kernel:
        _set("promote_secondaries")
        yield kernel


@contextmanager
def _linkdown_ignoring_linux() -> Iterator[NamespaceKernel]:
    with _linux() as kernel:
        _set("ignore_routes_with_linkdown")
        yield kernel


TestLinux = conformance_test(_linux, settings=_SETTINGS)
TestLinuxThatPromotesSecondaries = conformance_test(
    _promoting_linux, make_reference=lambda: FakeKernel(promote_secondaries=True), settings=_FEWER
)
TestLinuxThatIgnoresLinkdown = conformance_test(
    _linkdown_ignoring_linux, make_reference=lambda: FakeKernel(ignore_routes_with_linkdown=True), settings=_FEWER
)


# --- the state machine itself ------------------------------------------------------------------------------------


class _FirmKernel(FakeKernel):
    """A backend that raises an error for a table that doesn't exist."""

    def routes(self, table: int | None = None) -> tuple[Route, ...]:
        entries = super().routes(table)
        if table is not None and not entries:
            raise RouteError(f"there is no table {table}", errno=errno.ENOENT)
        return entries


class _LaxKernel(FakeKernel):
    """A backend that shows every table, no matter which one is requested."""

    def routes(self, table: int | None = None) -> tuple[Route, ...]:
        return super().routes()


@pytest.mark.parametrize("kernel_class", [_FirmKernel, _LaxKernel])
def test_it_reads_single_tables_too(kernel_class: type[FakeKernel]) -> None:
    test_case = conformance_test(lambda: nullcontext(kernel_class()), settings=settings(max_examples=1))
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(test_case).run(result)
    assert "DisagreementError: routes of table" in result.errors[0][1]


class _ForgetfulKernel(FakeKernel):
    """A backend that omits every refusal except EINVAL."""

    def delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        return tuple(failure for failure in super().delete(routes) if failure.errno == errno.EINVAL)


def test_only_refusals_that_differ_are_reported() -> None:
    class Machine(ConformanceMachine):
        make_kernel = staticmethod(lambda: nullcontext(_ForgetfulKernel()))
        make_reference = FakeKernel

    machine = Machine()
    same, differing = (Route(IPv4Network("10.9.0.0/16"), metric=metric) for metric in (-1, 7))
    with pytest.raises(DisagreementError) as caught:
        machine._both(lambda kernel: _refusals(kernel.delete([same, differing, same])))
    told = str(caught.value).splitlines()
    assert told[0] == "refusals differ:"
    assert told[-1] == f"-{(differing, errno.ESRCH)!r}"
    assert len(told) == 5
    machine.teardown()


def test_answers_that_differ_in_number_or_order_are_reported() -> None:
    differences = [_difference("routes", ["a", "b"], answer).splitlines() for answer in (["a", "b", "b"], ["b", "a"])]
    assert [lines[:3] for lines in differences] == [["routes differ:", "--- reference", "+++ candidate"]] * 2
    assert differences[0][4:] == ["+'b'"]
    assert sorted(line[0] for line in differences[1][3:]) == ["+", "-", "@", "@"]
