"""Test that a flap of one of two NICs in a subnet has the predicted result, and that the fixes work."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

import attrs
import pytest
from asking import checked

import phases
from hostrouting.kernel.managers import NETWORKD, Manager
from hostrouting.kernel.snapshot_backend import take_snapshot
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route
from hostrouting.overlap.one_event import anticipate
from hostrouting.report import EventKind, HostEvent

if TYPE_CHECKING:
    from hostrouting.kernel.namespace import NamespaceKernel

NODES = IPv4Network("10.1.0.0/24")
DEFAULT = Route(DEFAULT_DESTINATION, (NextHop("eth0", IPv4Address("10.1.0.1")),), protocol=Protocol.DHCP)
HALVES = [Route(half, (NextHop("eth0"),), protocol=Protocol.STATIC) for half in NODES.subnets()]


@pytest.mark.kernel
@pytest.mark.parametrize(("routes", "verdict"), [([], "overlap"), (HALVES, "ok")])
def test_a_flap_of_two_nics_in_a_subnet(kernel: NamespaceKernel, routes: list[Route], verdict: str) -> None:
    for dev, address in (("eth0", "10.1.0.4/24"), ("eth1", "10.1.0.5/24")):
        kernel.add_link(dev)
        kernel.add_address(dev, address)
    of_networkd = [DEFAULT, *routes]
    assert kernel.add(of_networkd) == ()
    config, before = checked(kernel, [NODES])
    assert before.verdict == "ok"
    snapshot = attrs.evolve(take_snapshot(kernel), managers=(Manager(NETWORKD, ("eth0", "eth1")),))
    flap = HostEvent(EventKind.FLAP, "eth0")
    (told,) = (each for each in anticipate(config, snapshot, phases.CancelScope()) if each.event == flap)

    kernel.set_link("eth0", up=False)
    kernel.set_link("eth0", up=True)
    assert checked(kernel, [NODES])[1].verdict == told.verdict == "unknown"
    assert kernel.add(of_networkd) == ()  # networkd restores its routes
    _, now = checked(kernel, [NODES])
    assert now.verdict == told.lasting_verdict == verdict
    assert [(each.probe, each.devs) for each in told.lasting_findings] == [(e.probe, e.devs) for e in now.findings]
    assert [each.devs for each in now.findings] == ([("eth1",)] if verdict == "overlap" else [])
