"""Tests of the base class for wrappers of a backend."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from backends import Altered
from nightly import by_day

from hostrouting.backend import (
    Family,
    ForwardingBackend,
    NetlinkBackend,
    NetlinkBackend6,
    RouteBackend,
)
from hostrouting.testing import FakeKernel, Kernel
from hostrouting.testing.conformance import conformance_test, pair

CALLS = sorted(
    name
    for name, _ in inspect.getmembers(RouteBackend, inspect.isfunction)
    if not name.startswith("_")
)


@contextmanager
def wrapped_kernel() -> Iterator[Kernel]:
    kernel = FakeKernel()
    yield pair(ForwardingBackend(kernel), world=kernel)


TestWrappedKernel = conformance_test(wrapped_kernel, max_examples=by_day(1, by_night=200))


@pytest.mark.parametrize("name", CALLS)
def test_each_call_of_the_port_is_forwarded(name: str) -> None:
    """So a fast read of the inner backend stays fast."""
    expected = inspect.signature(getattr(RouteBackend, name))
    forward = getattr(ForwardingBackend, name)
    assert inspect.signature(forward) == expected

    given: list[tuple[tuple[object, ...], dict[str, object]]] = []
    answer = object()

    def answered(*args: object, **named: object) -> object:
        given.append((args, named))
        return answer

    _, *parameters = expected.parameters.values()
    named = {each.name: object() for each in parameters if each.kind is each.KEYWORD_ONLY}
    args = [object() for each in parameters if each.kind is not each.KEYWORD_ONLY]
    returned = forward(ForwardingBackend(Altered(FakeKernel(), **{name: answered})), *args, **named)
    assert returned is answer
    assert given == [(tuple(args), named)]


def test_a_wrapper_has_the_inner_backends_family() -> None:
    assert ForwardingBackend(NetlinkBackend()).family is Family.IPV4
    assert ForwardingBackend(NetlinkBackend6()).family is Family.IPV6
