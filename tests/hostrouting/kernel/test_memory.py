"""Tests for waiting, and for the in-memory kernel beyond tests/kernel/test_facts.py and the conformance machine."""

from __future__ import annotations

import errno
import threading
from ipaddress import IPv4Address

import pytest
from node import add_nics
from scenario import play
from scenario import route as parsed

import phases
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.port import Kernel
from hostrouting.kernel.waiting import Deadline, look_until
from hostrouting.model.errors import RouteError
from hostrouting.model.links import Hardware
from hostrouting.model.routes import Route, RouteType
from hostrouting.model.rules import Rule, RuleAction
from phases import CancelScope
from phases.testing import FakeClock

VIA = "172.16.0.0/16 via 10.0.0.254"


@pytest.fixture
def kernel() -> FakeKernel:
    made = FakeKernel()
    add_nics(made, v0="10.0.0.1/24", v1="10.0.1.1/24")
    return made


def answer(kernel: Kernel, address: str) -> Route | int:
    (lookup,) = kernel.lookup([IPv4Address(address)])
    assert (lookup.route is None) == (lookup.errno is not None)
    return lookup.route if lookup.route is not None else lookup.errno or 0


def test_a_local_default_route_has_the_packets_type(kernel: FakeKernel) -> None:
    """The conformance machine found this behaviour in Linux."""
    play(kernel, "rule add 0 lookup 100\nroute add local default dev v0 scope host")
    for address, kind in (("224.0.0.1", RouteType.MULTICAST), ("255.255.255.255", RouteType.BROADCAST)):
        route = answer(kernel, address)
        assert isinstance(route, Route)
        assert route.type is kind


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(10, RuleAction.GOTO, goto=40000), errno.ENETUNREACH),
        (Rule(10, RuleAction.GOTO, goto=50000), "v0"),
        (Rule(10, RuleAction.PROHIBIT, mark=2, mark_mask=1), errno.EACCES),
        (Rule(10, RuleAction.PROHIBIT, ip_protocol=17), errno.EACCES),
        (Rule(10, table=100, suppress_prefix_length=16), "v0"),
        (Rule(10, table=100, suppress_prefix_length=15), "v1"),
        (Rule(10, table=100, suppress_group=0), "v0"),
    ],
)
def test_rules_for_an_unmarked_packet(kernel: FakeKernel, rule: Rule, expected: int | str) -> None:
    play(kernel, "route add default via 10.0.0.254\nroute add 172.16.0.0/16 dev v1 table 100\nrule add 40000 lookup 77")
    kernel.add_rule(rule)
    assert rule in kernel.rules()
    found = answer(kernel, "172.16.1.1")
    assert (found.devs if isinstance(found, Route) else found) == (
        (expected,) if isinstance(expected, str) else expected
    )


def test_add_refuses_impossible_routes(kernel: FakeKernel) -> None:
    scenario = f"""
        link add down0 down
        route add local 172.16.0.0/16 dev v0 scope link -> EINVAL
        route add 172.16.0.0/16 dev v0 onlink -> EINVAL
        route add {VIA} nhid 7 -> EINVAL
        route add 172.16.0.0/16 via inet6 fe80::1 dev down0 -> ENETDOWN
    """
    play(kernel, scenario)


def test_a_route_by_an_ipv6_gateway_ignores_a_lost_carrier(kernel: FakeKernel) -> None:
    play(kernel, "cable out v0\nroute add 172.16.0.0/16 via inet6 fe80::1 dev v0")
    route = answer(kernel, "172.16.0.1")
    assert isinstance(route, Route)
    assert not route.hops[0].is_linkdown


@pytest.mark.parametrize("left", ["10.0.0.2/24", "127.0.0.2/8", "127.0.0.1/8", "127.0.0.1/16"])
def test_lo_gets_its_address_when_it_comes_up(left: str) -> None:
    """A random run found this. Older kernels add the address only if lo has no addresses at all."""
    kernel = FakeKernel()
    kernel.del_address("lo", "127.0.0.1/8")
    kernel.add_address("lo", left)
    kernel.set_link("lo", up=False)
    kernel.set_link("lo", up=True)
    addresses = [f"{address.local}/{address.prefix_length}" for address in kernel.addresses()]
    blocked = left.endswith("/8")  # EEXIST or EINVAL, because the automatic address has scope host
    assert addresses == ([left] if blocked else ["127.0.0.1/8", left])


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda kernel: kernel.add_link("v0"), errno.EEXIST),
        (lambda kernel: kernel.add_link("v2", master="br0"), errno.ENODEV),
        (lambda kernel: kernel.del_link("lo"), errno.EOPNOTSUPP),
        (lambda kernel: kernel.add_address("v0", "10.0.0.1/24"), errno.EEXIST),
        (lambda kernel: kernel.add_address("lo", "127.0.0.2/8"), errno.EINVAL),
        (lambda kernel: kernel.add_rule(kernel.rules()[0]), errno.EEXIST),
        (lambda kernel: kernel.del_rule(Rule(7)), errno.ENOENT),
    ],
)
def test_a_refused_change_names_the_attempt(kernel: FakeKernel, act: object, expected: int) -> None:
    with pytest.raises(RouteError, match=r"can't (add|set|delete) the ") as caught:
        act(kernel)  # type: ignore[operator]
    assert caught.value.errno == expected


def test_a_link_keeps_its_properties(kernel: FakeKernel) -> None:
    kernel.add_link("br0", kind="bridge")
    kernel.add_link("ib0", kind=None, hardware=Hardware.INFINIBAND, master="br0", up=False)
    link = kernel.links()[-1]
    assert (link.kind, link.hardware, link.master, link.is_up, link.has_carrier) == (None, 32, "br0", False, False)
    kernel.del_link("br0")
    assert kernel.links()[-1].master is None


def test_only_a_threads_first_wait_returns_at_once(kernel: FakeKernel) -> None:
    scope = phases.CancelScope(timeout=30)
    kernel.wait_for_change(scope)
    with pytest.raises(phases.TimedOut):
        kernel.wait_for_change(scope.child(timeout=0.01))
    changer = threading.Timer(0.01, kernel.set_link, ["v0"], {"carrier": False})
    changer.start()
    kernel.wait_for_change(scope)
    changer.join()
    kernel.add_address("v0", "10.0.7.1/24")
    kernel.wait_for_change(scope)


def test_a_write_without_a_change_wakes_no_thread(kernel: FakeKernel) -> None:
    route = parsed(VIA)
    assert kernel.add([route]) == ()
    kernel.wait_for_change(phases.CancelScope())
    assert kernel.replace([route]) == ()
    kernel.set_link("v0", up=True)
    assert [failure.errno for failure in kernel.add([route])] == [errno.EEXIST]
    with pytest.raises(phases.TimedOut):
        kernel.wait_for_change(phases.CancelScope(timeout=0.01))


def test_threads_may_share_it(kernel: FakeKernel) -> None:
    def write(third: int) -> None:
        play(kernel, "\n".join(f"route add 172.16.{third}.{fourth} via 10.0.0.254" for fourth in range(32)))

    threads = [threading.Thread(target=write, args=[third]) for third in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([route for route in kernel.routes() if route.protocol == 217]) == 8 * 32


LOOK_TAKES_SECONDS, WAIT_SECONDS = 0.1, 10.0


class RestlessKernel(FakeKernel):
    """A kernel that changes continually."""

    def wait_for_change(self, scope: CancelScope) -> None:
        scope.check()


def test_a_flood_gets_at_most_half_the_time() -> None:
    clock, looks = FakeClock(), 0

    def find_missing() -> str:
        nonlocal looks
        looks += 1
        clock.advance(LOOK_TAKES_SECONDS)
        return "the default route"

    deadline = Deadline(clock.monotonic(), WAIT_SECONDS)
    assert look_until(RestlessKernel(), CancelScope(clock=clock), deadline, find_missing) is not None
    assert 0 < looks <= WAIT_SECONDS / LOOK_TAKES_SECONDS / 2 + 1
