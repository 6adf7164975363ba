"""A check of large and of changing tables: it reads what matters, in one state, or says that it couldn't."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from node import build_node

import phases
from hostrouting import Config, Host, Layout, OverlapReport
from hostrouting.backend import NetlinkBackend, RouteBackend
from hostrouting.kernel.memory import FakeKernel
from hostrouting.model.routes import NextHop, Route
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.overlap._reading import read_host
from hostrouting.overlap.check import check_overlap
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.kernel.namespace import NamespaceKernel
    from hostrouting.model.routes import Lookup

GATEWAY = IPv4Address("10.1.0.1")


def check(backend: RouteBackend, *cidrs: str) -> OverlapReport:
    section = {"routeOverlap": {"expectedCidrs": list(cidrs)}, "waitSeconds": 0}
    host = Host(routes=backend, units=FakeSystemd(), layout=Layout(Path("/nonexistent")))
    return check_overlap(Config.from_mapping({"hostRouting": section}), host.routes, phases.CancelScope())


def by_eth0(network: str) -> Route:
    return Route(IPv4Network(network), (NextHop("eth0", GATEWAY),))


def by_ib0(network: str) -> Route:
    return Route(IPv4Network(network), (NextHop("ib0"),))


class Restless:
    """A kernel whose tables change while the kernel is asked: before each of the first look-ups something is done."""

    def __init__(self, inner: FakeKernel | NamespaceKernel, steps: Sequence[Callable[[], object]]) -> None:
        self._inner, self._steps, self.lookups = inner, list(steps), 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def lookup(self, addresses: Sequence[IPv4Address], **more: Any) -> tuple[Lookup, ...]:
        self.lookups += 1
        if self._steps:
            self._steps.pop(0)()
        return self._inner.lookup(addresses, **more)


@pytest.fixture(params=["memory", pytest.param("linux", marks=pytest.mark.kernel)])
def node(request: pytest.FixtureRequest) -> FakeKernel | NamespaceKernel:
    made = FakeKernel() if request.param == "memory" else request.getfixturevalue("kernel")
    build_node(made)
    return made


def test_a_shadow_that_comes_between_tables_and_look_ups_is_seen(node: FakeKernel | NamespaceKernel) -> None:
    restless = Restless(node, [lambda: node.add([by_ib0("10.96.7.0/24")])])
    (finding,) = check(restless, "10.96.0.0/12").findings  # type: ignore[arg-type]
    assert [str(part) for part in finding.ranges] == ["10.96.7.0/24"]
    assert restless.lookups == 2


def test_other_routes_may_come_and_go_without_end(node: FakeKernel | NamespaceKernel) -> None:
    restless = Restless(node, [lambda n=n: node.add([by_eth0(f"20.0.{n}.0/24")]) for n in range(9)])  # type: ignore[misc]
    assert check(restless, "10.96.0.0/12").verdict == "ok"  # type: ignore[arg-type]


def test_a_shadow_that_never_stays_is_unknown_with_the_reason(node: FakeKernel | NamespaceKernel) -> None:
    def flap() -> None:
        if not node.delete([by_ib0("10.96.7.0/24")]):
            return
        node.add([by_ib0("10.96.7.0/24")])

    report = check(Restless(node, [flap] * 100), "10.96.0.0/12")  # type: ignore[arg-type]
    assert report.verdict == "unknown"
    assert (report.reason or "").startswith("check-failed: the routes changed ")


@pytest.mark.kernel
def test_of_a_large_table_only_what_may_decide_is_read(kernel: NamespaceKernel) -> None:
    build_node(kernel)
    kernel.add([by_eth0(f"20.{high}.{low}.0/24") for high in range(8) for low in range(256)])
    kernel.add([by_eth0("172.16.5.0/24"), by_ib0("20.1.0.0/25")])
    config = Config.from_mapping({"hostRouting": {"routeOverlap": {"expectedCidrs": ["172.16.0.0/16", "20.0.0.0/8"]}}})
    reading = read_host(config, kernel, phases.CancelScope())
    assert reading is not None
    plain = [route for route in reading.routes if route.devs == ("eth0",) and route.hops[0].gateway is not None]
    plain = [route for route in plain if route.destination.prefixlen]
    assert [str(route.destination) for route in plain] == ["172.16.5.0/24"]


@pytest.mark.kernel
def test_of_a_large_table_the_ways_to_gateways_are_read_too(kernel: NamespaceKernel) -> None:
    """The default route is passed over by the rules, the subnet of its gateway isn't."""
    build_node(kernel)
    kernel.add([by_eth0(f"20.{high}.{low}.0/24") for high in range(8) for low in range(256)])
    kernel.add_rule(Rule(10, suppress_prefix_length=23))
    kernel.add_rule(Rule(11, action=RuleAction.PROHIBIT))
    remedy = check(kernel, "10.96.0.0/12").remedy
    assert (len(remedy.routes), remedy.unmendable) == (2**12, ())


@pytest.mark.kernel
def test_connected_shadows_are_read_in_one_pass_and_others_in_two(
    kernel: NamespaceKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_node(kernel)
    passes: list[object] = []
    read = NetlinkBackend.routes_except

    def counted(self: NetlinkBackend, *args: Any, **more: Any) -> tuple[Route, ...]:
        passes.append(more["inside"])
        return read(self, *args, **more)

    monkeypatch.setattr(NetlinkBackend, "routes_except", counted)
    assert check(kernel, "172.16.0.0/16", "10.96.0.0/12", "10.1.0.0/24").verdict == "overlap"
    assert len(passes) == 1
    kernel.add([by_ib0("10.96.7.0/24"), by_eth0("10.96.7.128/25")])
    (_, finding) = check(kernel, "172.16.0.0/16", "10.96.0.0/12").findings
    assert [str(part) for part in finding.ranges] == ["10.96.7.0/25"]
    assert len(passes) == 3
