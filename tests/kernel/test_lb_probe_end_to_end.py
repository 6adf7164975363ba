"""The tasks of the load balancer's probes on a real node: what they do, as a probe and a pod see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ipv6_frames import ALL_NODES, router_advertisement
from probe_world import (
    ANSWER,
    BALANCER_MAC,
    HOST_PORT,
    NODE,
    NODE_BY_SECOND_NIC,
    PIN,
    SERVICE_PORT,
    World,
    counters,
    icmp,
    ip,
    nft,
    routes,
    serving,
    tables,
)

import phases
from hostrouting import Host, Layout
from hostrouting.azure.config import HostNetworking, LoadBalancerProbe
from hostrouting.azure.probe.linux import LinuxProbeNode
from hostrouting.azure.probe.ruleset import PROBE_SOURCE, REMOVAL, REWRITTEN_SOURCE, TABLE, render_ruleset
from hostrouting.azure.probe.tasks import ConfigureLoadBalancerProbe, RemoveLoadBalancerProbe
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from pathlib import Path

    from hostrouting.kernel.namespace import NamespaceKernel

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("nft")]

# Without wait: what a node needs is there, or is known to be missing.
CONFIG = HostNetworking(LoadBalancerProbe(enabled=True, required=True, wait_seconds=0))


@pytest.fixture
def world(kernel: NamespaceKernel) -> World:
    return World()


@pytest.fixture
def host(world: World, kernel: NamespaceKernel, tmp_path: Path) -> Host:
    layout = Layout(tmp_path)
    return Host(routes=kernel, units=FakeSystemd(layout), layout=layout)


def configure(host: Host) -> bool:
    return ConfigureLoadBalancerProbe(CONFIG, host=host, node=LinuxProbeNode()).do(phases.CancelScope()).changed


def advertise_default_route(world: World) -> None:
    world.send_to_node(icmp(ALL_NODES, router_advertisement(BALANCER_MAC)))


def test_a_configured_node_answers_probes_and_a_second_run_changes_nothing(world: World, host: Host) -> None:
    advertise_default_route(world)
    with serving(SERVICE_PORT, world.pod) as service, serving(HOST_PORT):
        assert world.is_lost()
        assert configure(host)
        assert world.probe() == ANSWER
        before = counters()
        assert not configure(host)
        assert counters() == before
        ip("route del default")
        assert world.probe() == ANSWER
        assert world.probe(NODE, HOST_PORT) == ANSWER
    assert service.peers == [REWRITTEN_SOURCE] * 2


def test_a_configured_node_hears_the_balancers_advertisements(world: World, host: Host) -> None:
    """Without which its default route would run out, and the next boot's have none."""
    advertise_default_route(world)
    configure(host)
    ip("route del default")
    advertise_default_route(world)
    assert f"default via {PROBE_SOURCE} dev eth0 proto ra" in routes("show", "default")


@pytest.mark.parametrize("wipe", ["flush ruleset", REMOVAL, f"flush table ip6 {TABLE}"])
def test_configuring_again_mends_what_others_have_wiped(world: World, host: Host, wipe: str) -> None:
    advertise_default_route(world)
    configure(host)
    nft(wipe)
    ip(f"route del {PIN}")
    with serving(SERVICE_PORT, world.pod):
        assert world.is_lost()
        assert configure(host)
        assert world.probe() == ANSWER


def test_of_two_default_routes_one_device_gets_rules_and_probes_by_the_other_are_answered_as_without(
    world: World, host: Host
) -> None:
    world.add_nic()
    for dev, metric in (("eth0", 10), ("eth1", 20)):
        ip(f"route add default via {PROBE_SOURCE} dev {dev} metric {metric}")
    with serving(SERVICE_PORT, world.pod), serving(HOST_PORT) as own:
        assert world.probe(NODE_BY_SECOND_NIC, HOST_PORT, by="eth1") == ANSWER
        configure(host)
        assert world.probe(NODE_BY_SECOND_NIC, HOST_PORT, by="eth1") == ANSWER
        assert world.probe(NODE, HOST_PORT) == ANSWER
        assert world.probe() == ANSWER
        assert own.peers == [PROBE_SOURCE, PROBE_SOURCE, REWRITTEN_SOURCE]
        # With rules of its own they would be lost: their answers would leave by the pinned route.
        nft(render_ruleset("eth1").replace('"eth1"', '{ "eth0", "eth1" }'))
        assert world.is_lost(NODE_BY_SECOND_NIC, HOST_PORT, by="eth1")


def test_rules_that_are_required_are_there_before_an_ipv6_address_that_comes_late(world: World, host: Host) -> None:
    ip(f"address del {NODE}/64 dev eth0", f"route add default via {PROBE_SOURCE} dev eth0")
    assert configure(host)
    ip(f"address add {NODE}/64 dev eth0")
    with serving(SERVICE_PORT, world.pod), serving(HOST_PORT):
        assert world.probe() == ANSWER
        assert world.probe(NODE, HOST_PORT) == ANSWER
    assert not configure(host)


def test_where_the_uplink_is_a_bridges_port_the_bridge_is_configured(world: World, host: Host) -> None:
    world.bridge()
    ip(f"route add default via {PROBE_SOURCE} dev azure0")
    assert configure(host)
    ip("route del default")
    with serving(SERVICE_PORT, world.pod), serving(HOST_PORT):
        assert world.probe() == ANSWER
        assert world.probe(NODE, HOST_PORT) == ANSWER


def test_after_the_removal_nothing_is_rewritten_and_nothing_is_left(world: World, host: Host) -> None:
    ip(f"route add default via {PROBE_SOURCE} dev eth0")
    before = routes("show")
    configure(host)
    assert RemoveLoadBalancerProbe(host=host, node=LinuxProbeNode()).do(phases.CancelScope()).changed
    with serving(SERVICE_PORT, world.pod) as service, serving(HOST_PORT) as own:
        assert world.is_lost()
        assert world.probe(NODE, HOST_PORT) == ANSWER
    assert service.peers == []
    assert own.peers == [PROBE_SOURCE]
    assert tables() == ""
    assert routes("show") == before
