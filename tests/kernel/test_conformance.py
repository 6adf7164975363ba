"""``FakeKernel`` and Linux give the same answers: the state machine in namespaces of its own."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from hostrouting.backends.memory import FakeKernel
from hostrouting.backends.namespace import NamespaceKernel, enter_namespace
from hostrouting.testing.conformance import conformance_test

if TYPE_CHECKING:
    from collections.abc import Iterator

_IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
_SETTINGS = settings(stateful_step_count=40 if _IS_NIGHTLY else 15)
_FEWER = settings(_SETTINGS, max_examples=1000 if _IS_NIGHTLY else 20)

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(7200 if _IS_NIGHTLY else 300)]


def _set(sysctl: str) -> None:
    Path("/proc/sys/net/ipv4/conf/all", sysctl).write_text("1")


@contextmanager
def _linux() -> Iterator[NamespaceKernel]:
    enter_namespace()
    yield NamespaceKernel()


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
