"""Check with a state machine that ``FakeKernel`` and Linux behave identically."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
from hypothesis import settings
from nightly import by_day
from node import on_linux

from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.model.routes import Route
from hostrouting.testing.conformance import conformance_test

_SETTINGS = settings(max_examples=by_day(3, by_night=5000), stateful_step_count=by_day(12, by_night=40))

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(by_day(300, by_night=7200))]


@contextmanager
def _linux() -> Iterator[NamespaceKernel]:
    yield on_linux()


TestLinux = conformance_test(_linux, settings=_SETTINGS)


# --- the state machine itself ------------------------------------------------------------------------------------


class _LaxKernel(FakeKernel):
    """A backend that ignores the requested table and returns routes from all tables."""

    def routes(self, table: int | None = None) -> tuple[Route, ...]:
        return super().routes()


def test_it_reads_single_tables_too() -> None:
    test_case = conformance_test(lambda: nullcontext(_LaxKernel()), settings=settings(max_examples=1))
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(test_case).run(result)
    assert "DisagreementError: routes of table" in result.errors[0][1]
