"""Tests of the agent, which use fakes and need no root: python -m pytest
examples/test_traced_agent.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from traced_agent import CountingBackend, bring_up, is_ok

import phases
from hostrouting import (
    Config,
    Host,
    Layout,
    OverlapMode,
    RouteOverlap,
    RouteOverlapError,
    StaticRoute,
    StaticRoutes,
)
from hostrouting.backend import Route, RouteFailure, Write, read_our_routes
from hostrouting.testing import FakeKernel, FakeSystemd

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

CIDR = "172.16.1.0/24"
OVERLAP = RouteOverlap([CIDR], OverlapMode.STRICT)
TREE = "restore-on-failure/serial"
CONFIG = Config(StaticRoutes(True, [StaticRoute(CIDR)]), OVERLAP)


class ActingBackend(CountingBackend):
    """A backend that calls a function before it changes routes."""

    before_write: Callable[[], None] | None = None

    def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        if self.before_write is not None:
            self.before_write()
        return super().write(change, routes)


@pytest.fixture
def backend() -> ActingBackend:
    """Return an H200 whose ib0 shadows the cluster's network."""
    kernel = FakeKernel()
    kernel.ip("""
        link add eth0
        link add ib0
        address add 10.1.0.4/24 dev eth0
        address add 172.16.0.10/16 dev ib0
        route add default via 10.1.0.1 dev eth0 proto dhcp
    """)
    return ActingBackend(kernel)


@pytest.fixture
def host(backend: ActingBackend, tmp_path: Path) -> Host:
    return Host(routes=backend, units=FakeSystemd(), layout=Layout(tmp_path))


@pytest.fixture(autouse=True)
def no_earlier_spans() -> None:
    exporter.clear()


def spans() -> dict[str, ReadableSpan]:
    return {str((span.attributes or {})["path"]): span for span in exporter.get_finished_spans()}


@phases.task("start-node")
def start_node(scope: phases.CancelScope) -> str:
    scope.check()
    return "kube1"


@phases.task("start-node")
def start_nothing(scope: phases.CancelScope) -> str:
    scope.check()
    raise OSError("there is no image")


def test_routes_are_installed_and_counted(host: Host, backend: ActingBackend) -> None:
    assert not asyncio.run(is_ok(CONFIG, host))
    report = asyncio.run(bring_up(CONFIG, start_node, host))
    assert [str(route.destination) for route in report.routes.plan.add] == [CIDR]
    assert backend.counts == {"add": 1}
    assert asyncio.run(is_ok(CONFIG, host))


def test_each_task_has_a_span(host: Host) -> None:
    asyncio.run(bring_up(CONFIG, start_node, host))
    found = spans()
    assert found.keys() >= {
        "restore-on-failure",
        f"{TREE}/configure",
        f"{TREE}/configure/check-route-overlap",
        f"{TREE}/start-node",
    }
    configure, above = found[f"{TREE}/configure"], found[TREE]
    assert configure.parent is not None
    assert above.context is not None
    assert configure.parent.span_id == above.context.span_id
    assert configure.attributes is not None
    assert configure.attributes["status"] == "ok"
    changes = configure.attributes["changes"]
    assert isinstance(changes, tuple)
    assert f"added {CIDR} via 10.1.0.1 dev eth0 proto hostrouting" in changes


def test_a_failed_start_is_rolled_back(host: Host, backend: ActingBackend) -> None:
    with pytest.raises(OSError, match="no image"):
        asyncio.run(bring_up(CONFIG, start_nothing, host))
    assert read_our_routes(backend) == ()
    assert backend.counts == {"add": 1, "delete": 1}
    span = spans()[f"{TREE}/start-node"]
    assert span.status.status_code is trace.StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]


def test_a_cancelled_start_is_rolled_back(host: Host, backend: ActingBackend) -> None:
    """A second cancellation arrives in the midst of the rollback."""

    async def stopped() -> None:
        loop = asyncio.get_running_loop()

        @phases.task("start-node")
        def start_slowly(scope: phases.CancelScope) -> None:
            backend.before_write = cancel
            loop.call_soon_threadsafe(agent.cancel)
            scope.wait(3600)

        def cancel() -> None:
            is_cancelled = threading.Event()
            loop.call_soon_threadsafe(agent.cancel)
            loop.call_soon_threadsafe(is_cancelled.set)
            assert is_cancelled.wait(60)

        agent = asyncio.create_task(bring_up(CONFIG, start_slowly, host))
        await agent

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stopped())
    assert read_our_routes(backend) == ()
    assert (spans()[f"{TREE}/start-node"].attributes or {})["status"] == "cancelled"


def test_no_node_starts_with_a_shadowed_network(host: Host) -> None:
    with pytest.raises(RouteOverlapError):
        asyncio.run(bring_up(Config(route_overlap=OVERLAP), start_node, host))
    assert f"{TREE}/start-node" not in spans()
