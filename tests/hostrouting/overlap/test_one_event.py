"""Tests that the in-memory kernel predicts the verdict after an event."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Network
from typing import Any

import attrs
import pytest
from asking import checked
from hypothesis import given
from hypothesis import strategies as st
from node import add_nics
from worlds import Question, cut

import phases
from hostrouting import Config, Host, RouteOverlap, Snapshot, Verdict, check
from hostrouting.kernel.after_event import after
from hostrouting.kernel.port import Kernel
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.kernel.snapshot import Ipv6State
from hostrouting.kernel.snapshot_backend import SnapshotBackend, take_snapshot
from hostrouting.model.errors import RouteError
from hostrouting.model.links import Address6, Hardware, Link
from hostrouting.model.managers import NETWORK_MANAGER, NETWORKD, Manager
from hostrouting.model.routes import (
    DEFAULT_DESTINATION,
    NextHop,
    Protocol,
    Route,
    Route6,
    RouteType,
    Scope,
    Table,
)
from hostrouting.model.rules import Rule
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.one_event import anticipate, touching_devs
from hostrouting.report import EventKind, EventVerdict, HostEvent, Outlook
from hostrouting.testing import FakeKernel

NODES, GATEWAY = IPv4Network("10.1.0.0/24"), IPv4Address("10.1.0.1")
DEFAULT = Route(
    DEFAULT_DESTINATION, (NextHop("eth0", GATEWAY),), protocol=Protocol.DHCP, metric=100
)
KEEPING, DROPPING = (Manager(NETWORKD, ("eth0", "eth1"), drops) for drops in (False, True))


def two_nics() -> FakeKernel:
    """Return a kernel with two interfaces in one subnet, where the first connected route wins."""
    kernel = FakeKernel()
    add_nics(kernel, eth0="10.1.0.4/24", eth1="10.1.0.5/24")
    assert kernel.add([DEFAULT]) == ()
    return kernel


def recorded(kernel: FakeKernel, *managers: Manager, **more: Any) -> Snapshot:
    return attrs.evolve(
        take_snapshot(kernel), managers=managers, **{"ignoring_linkdown": ()} | more
    )


def config(*routes: str, cidr: str = str(NODES), watch: bool = False, **more: Any) -> Config:
    static = {
        "enabled": True,
        "routes": [{"destination": each, "gateway": "onlink", "dev": "eth0"} for each in routes],
    }
    section = {"staticRoutes": static} if routes else {}
    return Config.from_mapping(
        {
            "hostRouting": section
            | {"routeOverlap": {"expectedCidrs": [cidr]} | more, "watch": {"enabled": watch}}
        }
    )


def told(config: Config, snapshot: Snapshot) -> dict[tuple[str, str], EventVerdict]:
    found = anticipate(config, snapshot, phases.CancelScope())
    return {(each.event.subject, str(each.event.kind)): each for each in found}


def test_the_order_of_equal_routes_is_a_change() -> None:
    kernel = two_nics()
    for dev in ("eth2", "eth3"):
        kernel.add_link(dev)
        kernel.add_address(dev, f"10.7.0.{dev[-1]}/24")
    section = {"routeOverlap": {"expectedCidrs": ["10.7.0.0/24"], "allowedDevs": ["eth2"]}}
    found = told(Config.from_mapping({"hostRouting": section}), recorded(kernel))
    assert found["eth2", "flap"].verdict is Verdict.OVERLAP
    assert found["eth3", "flap"].verdict is Verdict.OK


def test_routes_that_the_watcher_restores_end_the_risk() -> None:
    kernel = two_nics()
    halves = [str(half) for half in NODES.subnets()]
    assert kernel.add([Route(IPv4Network(half), (NextHop("eth0"),)) for half in halves]) == ()
    watched = told(config(*halves, watch=True), recorded(kernel, KEEPING))["eth0", "flap"]
    assert (watched.restored_by, watched.lasting_verdict) == (
        (NETWORKD, "hostrouting watch"),
        Verdict.OK,
    )
    alone = told(config(*halves), recorded(kernel, KEEPING))["eth0", "flap"]
    assert (alone.restored_by, alone.lasting_verdict) == ((NETWORKD,), Verdict.OVERLAP)


def test_a_late_address_shadows() -> None:
    kernel = two_nics()
    kernel.add_link("ib0", hardware=Hardware.INFINIBAND, up=False)
    found = told(config(cidr="172.16.1.0/24"), recorded(kernel))
    late = found["ib0", "late-address"]
    assert late.event.address == IPv4Interface("172.16.0.1/16")
    assert [(each.cidr, each.devs) for each in late.lasting_findings] == [
        (IPv4Network("172.16.1.0/24"), ("ib0",))
    ]
    assert late.restored_by == ()


def test_another_lease_removes_the_routes_with_the_old_source() -> None:
    kernel = two_nics()
    half = Route(IPv4Network("10.1.0.0/25"), (NextHop("eth0"),), source=IPv4Address("10.1.0.4"))
    assert kernel.add([half]) == ()
    event = HostEvent(
        EventKind.RENUMBERED, "eth0", IPv4Interface("10.1.1.4/24"), IPv4Address("10.1.1.1")
    )
    found = told(config(), recorded(kernel))["eth0", "renumbered"]
    assert found.event == event
    now = after(recorded(kernel), event)
    assert half not in now.routes
    assert [r.hops[0].gateway for r in now.routes if r.destination == DEFAULT_DESTINATION] == [
        event.gateway
    ]
    assert {str(each.local) for each in now.addresses if each.dev == "eth0"} == {"10.1.1.4"}


@pytest.mark.parametrize(("manager", "is_kept"), [(KEEPING, True), (DROPPING, False)])
def test_a_restart_of_networkd_drops_our_routes_or_keeps_them(
    manager: Manager, is_kept: bool
) -> None:
    kernel = two_nics()
    kernel.del_address("eth1", "10.1.0.5/24")
    kernel.add_address("eth1", "10.1.0.5/16")
    assert kernel.add([Route(IPv4Network("10.1.9.0/24"), (NextHop("eth0", GATEWAY),))]) == ()
    each = told(config(cidr="10.1.9.0/24"), recorded(kernel, manager))[NETWORKD, "restart"]
    assert each.verdict is (Verdict.OK if is_kept else Verdict.OVERLAP)
    assert each.restored_by == ()


def test_no_event_befalls_the_loopback_interface() -> None:
    """BGP to the host gives ``lo`` addresses inside the expected CIDRs."""
    kernel, own = two_nics(), IPv6Network("fd00:10::10/128")
    kernel.add_address("lo", "10.1.0.10/32")
    entry = Route6(own, (NextHop("lo"),), RouteType.LOCAL, table=Table.LOCAL, scope=Scope.UNIVERSE)
    ipv6 = Ipv6State((Address6("lo", own[0], 128),), KERNEL_RULES[:2], (entry,))
    overlap = {"expectedCidrs": [str(NODES), "fd00:10::/64"]}
    asked = Config.from_mapping(
        {"hostRouting": {"routeOverlap": overlap, "uplinks": ["eth0", "lo"]}}
    )
    found = anticipate(asked, recorded(kernel, ipv6=ipv6), phases.CancelScope())
    assert {each.event.subject for each in found} == {"eth0", "eth1"}


def test_a_flap_restores_a_broadcast_address_that_was_given() -> None:
    kernel = two_nics()
    kernel.add_address("eth1", "10.9.0.1/24")
    known = recorded(kernel)
    given = [
        attrs.evolve(each, broadcast=IPv4Address("10.5.0.20")) if each.dev == "eth1" else each
        for each in known.addresses
    ]
    later = after(attrs.evolve(known, addresses=tuple(given)), HostEvent(EventKind.FLAP, "eth1"))
    broadcast = {
        str(route.destination) for route in later.routes if route.type is RouteType.BROADCAST
    }
    assert {"10.5.0.20/32", "10.9.0.255/32"} <= broadcast
    assert [
        each.broadcast
        for each in Snapshot.from_document(later.to_document()).addresses
        if each.dev == "eth1"
    ] == [IPv4Address("10.5.0.20")] * 2


def test_an_event_that_the_in_memory_kernel_refuses_is_an_error() -> None:
    with pytest.raises(RouteError):
        after(recorded(two_nics()), HostEvent(EventKind.GONE, "lo"))


def test_the_effect_of_a_restart_may_be_unknown() -> None:
    unknown = Manager(NETWORK_MANAGER, ("eth0",))
    assert (
        told(config(), recorded(two_nics(), unknown))[NETWORK_MANAGER, "restart"].outlook
        is Outlook.UNPREDICTABLE
    )


def test_a_lost_carrier_depends_on_a_sysctl() -> None:
    kernel = two_nics()
    lost = "eth0", "carrier-lost"
    assert told(config(), recorded(kernel))[lost].verdict is Verdict.OK
    assert (
        told(config(), recorded(kernel, ignoring_linkdown=("eth0",)))[lost].verdict
        is Verdict.UNKNOWN
    )
    assert (
        told(config(), recorded(kernel, ignoring_linkdown=None))[lost].outlook
        is Outlook.UNPREDICTABLE
    )
    assert told(config(), recorded(kernel, ignoring_linkdown=("eth1",)))[lost].verdict is Verdict.OK


def test_the_effect_on_a_bridge_port_is_unknown() -> None:
    kernel = two_nics()
    kernel.add_link("br0", kind="bridge")
    kernel.add_address("br0", "10.1.7.1/24")
    kernel.add_link("veth1", master="br0")
    assert (
        told(config(cidr="10.1.7.0/24"), recorded(kernel))["veth1", "gone"].outlook
        is Outlook.UNPREDICTABLE
    )


@pytest.mark.parametrize("links", [(), (Link(1, "lo"), Link(2, "eth0"))])
def test_without_links_nothing_is_predicted(links: tuple[Link, ...]) -> None:
    snapshot = attrs.evolve(recorded(two_nics(), DROPPING), links=links)
    assert {each.outlook for each in told(config(), snapshot).values()} == {Outlook.UNPREDICTABLE}


def test_the_hop_of_an_address_is_not_predicted() -> None:
    kernel = two_nics()
    hops = (NextHop("eth0"), NextHop("eth1"))
    kernel.add_rule(Rule(100, table=100, source=IPv4Network("10.1.0.5/32")))
    for destination, outlook in (
        ("10.9.0.0/24", Outlook.SAME),
        ("10.9.0.7/32", Outlook.UNPREDICTABLE),
    ):
        assert kernel.add([Route(IPv4Network(destination), hops)]) == ()
        found = told(config(cidr="10.9.0.0/24", allowedDevs=["eth1"]), recorded(kernel))
        assert found["eth1", "carrier-lost"].outlook is outlook


def test_events_never_change_the_verdict() -> None:
    host = Host.recorded(recorded(two_nics()))
    report = check(config(mode="STRICT"), host=host, one_event=True)
    assert report.verdict is Verdict.OK
    assert any(each.outlook is Outlook.LASTING for each in report.events or ())
    assert check(config(), host=host).events is None
    assert check(Config(), host=host, one_event=True).events == ()


@given(
    question=cut.questions(),
    kind=st.sampled_from([EventKind.FLAP, EventKind.CARRIER_LOST, EventKind.GONE]),
)
def test_an_interface_without_influence_may_be_skipped(question: Question, kind: EventKind) -> None:
    kernel = FakeKernel()
    for number in range(3):
        kernel.add_link(f"far{number}")
        kernel.add_address(f"far{number}", f"203.0.113.{4 + number}/24")
    question.world.build(kernel)
    overlap = RouteOverlap(tuple(map(str, question.cidrs)), allowed_devs=question.allowed)
    asked, snapshot = Config(route_overlap=overlap), recorded(kernel)

    def verdict(of: Snapshot) -> tuple[object, ...]:
        report = check_overlap(asked, SnapshotBackend(of), phases.CancelScope(), needs_fix=False)
        return report.verdict, report.reason_kind, report.findings

    now = verdict(snapshot)
    devs = {link.name for link in snapshot.links} - {"lo"}
    for dev in devs - touching_devs(asked, snapshot):
        assert verdict(after(snapshot, HostEvent(kind, dev))) == now


HALVES = [Route(half, (NextHop("eth0"),), protocol=Protocol.STATIC) for half in NODES.subnets()]


@pytest.mark.parametrize(("routes", "verdict"), [([], "overlap"), (HALVES, "ok")])
def test_a_flap_of_two_nics_in_a_subnet(
    each_kernel: Kernel, routes: list[Route], verdict: str
) -> None:
    kernel = each_kernel
    add_nics(kernel, eth0="10.1.0.4/24", eth1="10.1.0.5/24")
    of_networkd = [DEFAULT, *routes]
    assert kernel.add(of_networkd) == ()
    asked, before = checked(kernel, [NODES])
    assert before.verdict == "ok"
    snapshot = attrs.evolve(take_snapshot(kernel), managers=(Manager(NETWORKD, ("eth0", "eth1")),))
    flap = HostEvent(EventKind.FLAP, "eth0")
    (told,) = (
        each for each in anticipate(asked, snapshot, phases.CancelScope()) if each.event == flap
    )

    kernel.set_link("eth0", up=False)
    kernel.set_link("eth0", up=True)
    assert checked(kernel, [NODES])[1].verdict == told.verdict == "unknown"
    assert kernel.add(of_networkd) == ()  # networkd restores its routes
    _, now = checked(kernel, [NODES])
    assert now.verdict == told.lasting_verdict == verdict
    assert [(each.probe, each.devs) for each in told.lasting_findings] == [
        (e.probe, e.devs) for e in now.findings
    ]
    assert [each.devs for each in now.findings] == ([("eth1",)] if verdict == "overlap" else [])
