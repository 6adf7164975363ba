"""Test that every form of default route is supported, and that the installed routes carry packets to a peer."""

from __future__ import annotations

import socket
import struct
import subprocess
import threading
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from node import (
    GATEWAY,
    LOST_AFTER_SECONDS,
    OWN,
    SECOND_GATEWAY,
    build_fabric,
    build_links,
    default_route,
    hears,
    listening,
)

import phases
from hostrouting import Config, ConfigureStaticRoutes, Host, Layout
from hostrouting.model.routes import NextHop, Route, Table
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from hostrouting.kernel.namespace import NamespaceKernel

pytestmark = pytest.mark.kernel

DESTINATION = IPv4Network("172.16.1.0/24")


def config(wait: int = 30, **route: object) -> Config:
    entry = {"destination": str(DESTINATION), **route}
    return Config.from_mapping(
        {"hostRouting": {"staticRoutes": {"enabled": True, "routes": [entry]}, "waitSeconds": wait}}
    )


def install(kernel: NamespaceKernel, tmp_path: Path, wanted: Config | None = None) -> Route:
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(tmp_path))
    phases.run(ConfigureStaticRoutes(wanted or config(), host=host))
    (route,) = [route for route in kernel.routes(Table.MAIN) if route.protocol == 217]
    assert phases.run(ConfigureStaticRoutes(wanted or config(), host=host)).plan.unchanged == (route,)
    return route


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def node(kernel: NamespaceKernel) -> NamespaceKernel:
    build_links(kernel)
    build_fabric(kernel)
    return kernel


def test_without_our_route_packets_are_lost_in_the_fabric(node: NamespaceKernel) -> None:
    """This is the control for the tests below."""
    assert node.add([default_route()]) == ()
    with listening(node, "eth0") as servers:
        assert not hears(servers, patience=LOST_AFTER_SECONDS)


@pytest.mark.parametrize("metric", [0, 100, 4294967295])
def test_a_default_route_with_any_metric(node: NamespaceKernel, tmp_path: Path, metric: int) -> None:
    assert node.add([default_route(metric=metric)]) == ()
    assert install(node, tmp_path).hops == (NextHop("eth0", GATEWAY),)
    with listening(node, "eth0") as servers:
        assert hears(servers)


def test_a_multipath_default_route(node: NamespaceKernel, tmp_path: Path) -> None:
    hops = (NextHop("eth0", GATEWAY, weight=2), NextHop("eth1", SECOND_GATEWAY))
    assert node.add([default_route(*hops)]) == ()
    assert install(node, tmp_path).hops == hops
    with listening(node, "eth0", "eth1") as servers:
        assert hears(servers)


def test_one_device_of_a_multipath_default_route(node: NamespaceKernel, tmp_path: Path) -> None:
    assert node.add([default_route(NextHop("eth0", GATEWAY), NextHop("eth1", SECOND_GATEWAY))]) == ()
    assert install(node, tmp_path, config(dev="eth1")).hops == (NextHop("eth1", SECOND_GATEWAY),)
    with listening(node, "eth1") as servers:
        assert hears(servers)


def test_a_default_route_by_nexthop_id(node: NamespaceKernel, tmp_path: Path) -> None:
    ip("nexthop", "add", "id", "7", "via", str(GATEWAY), "dev", "eth0")
    ip("route", "add", "default", "nhid", "7")
    route = install(node, tmp_path)
    assert (route.hops, route.nexthop_id) == ((NextHop("eth0", GATEWAY),), None)
    with listening(node, "eth0") as servers:
        assert hears(servers)


def test_a_default_route_by_a_group_of_nexthops(node: NamespaceKernel, tmp_path: Path) -> None:
    ip("nexthop", "add", "id", "7", "via", str(GATEWAY), "dev", "eth0")
    ip("nexthop", "add", "id", "8", "via", str(SECOND_GATEWAY), "dev", "eth1")
    ip("nexthop", "add", "id", "9", "group", "7,3/8")
    ip("route", "add", "default", "nhid", "9")
    assert install(node, tmp_path).hops == (
        NextHop("eth0", GATEWAY, weight=3),
        NextHop("eth1", SECOND_GATEWAY),
    )
    with listening(node, "eth0", "eth1") as servers:
        assert hears(servers)


def test_a_default_route_whose_hops_the_kernel_hides(node: NamespaceKernel, tmp_path: Path) -> None:
    Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text("0")  # only in this namespace
    ip("nexthop", "add", "id", "7", "via", str(GATEWAY), "dev", "eth0")
    ip("route", "add", "default", "nhid", "7")
    route = install(node, tmp_path)
    assert (route.hops, route.nexthop_id) == ((NextHop("eth0", GATEWAY),), None)
    with listening(node, "eth0") as servers:
        assert hears(servers)


@pytest.mark.parametrize("compat_mode", ["0", "1"])
def test_a_default_route_with_more_weight_than_routes_have(
    node: NamespaceKernel, tmp_path: Path, compat_mode: str
) -> None:
    """A nexthop group member has a 16-bit weight, which not every ip can set. A route shows only eight bits of it."""
    Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text(compat_mode)  # only in this namespace
    ip("nexthop", "add", "id", "1", "via", str(GATEWAY), "dev", "eth0")
    ip("nexthop", "add", "id", "2", "via", str(SECOND_GATEWAY), "dev", "eth1")
    members = struct.pack("=IBBHIBBH", 1, 43, 1, 0, 2, 2, 0, 0)
    body = struct.pack("=BBBBI", 0, 0, socket.AF_INET, 0, 0) + struct.pack("=HHIHH", 8, 1, 10, 4 + len(members), 2)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.send(struct.pack("=IHHII", 16 + len(body + members), 104, 0x405, 1, 0) + body + members)
        assert struct.unpack_from("=i", kernel.recv(4096), 16) == (0,)
    ip("route", "add", "default", "nhid", "10")
    assert {hop.dev: hop.weight for hop in install(node, tmp_path).hops} == {"eth0": 44, "eth1": 3}


def test_an_onlink_default_route(kernel: NamespaceKernel, tmp_path: Path) -> None:
    """Azure's /32 addresses require such a route, as the gateway is in no subnet of the node."""
    gateway = IPv4Address("169.254.1.1")
    kernel.add_link("eth0")
    kernel.add_address("eth0", f"{OWN}/32")
    kernel.in_fabric(lambda: kernel.add_address("eth0", f"{gateway}/32"))
    assert kernel.add([default_route(NextHop("eth0", gateway, onlink=True))]) == ()
    assert install(kernel, tmp_path).hops == (NextHop("eth0", gateway, onlink=True),)
    with listening(kernel, "eth0") as servers:
        assert hears(servers)


def test_a_default_route_without_a_gateway(node: NamespaceKernel, tmp_path: Path) -> None:
    assert node.add([default_route(NextHop("eth0"))]) == ()
    route = install(node, tmp_path)
    assert (route.hops, route.scope) == ((NextHop("eth0"),), 253)
    with listening(node, "eth0") as servers:
        assert hears(servers)


def test_a_default_route_with_an_ipv6_gateway(kernel: NamespaceKernel, tmp_path: Path) -> None:
    """RFC 8950 allows such routes."""

    def without_waiting_for_duplicates() -> None:
        for name in ("accept_dad", "dad_transmits"):
            Path(f"/proc/sys/net/ipv6/conf/default/{name}").write_text("0")

    def link_local_address() -> IPv6Address:
        lines = Path("/proc/thread-self/net/if_inet6").read_text().splitlines()
        (word,) = [fields[0] for line in lines if (fields := line.split())[-1] == "eth0"]
        return IPv6Address(bytes.fromhex(word))

    without_waiting_for_duplicates()
    kernel.in_fabric(without_waiting_for_duplicates)
    build_links(kernel)
    gateway = kernel.in_fabric(link_local_address)
    assert kernel.add([default_route(NextHop("eth0", gateway))]) == ()
    assert install(kernel, tmp_path).hops == (NextHop("eth0", gateway),)
    with listening(kernel, "eth0") as servers:
        assert hears(servers)


def test_a_default_route_with_source_and_mtu(node: NamespaceKernel, tmp_path: Path) -> None:
    node.add_address("eth0", "10.1.0.44/24")
    source = IPv4Address("10.1.0.44")
    assert node.add([default_route(source=source, mtu=1400)]) == ()
    route = install(node, tmp_path)
    assert (route.source, route.mtu) == (source, 1400)
    with listening(node, "eth0") as servers:
        assert hears(servers)


def test_a_default_route_that_comes_late_is_waited_for(node: NamespaceKernel, tmp_path: Path) -> None:
    late = threading.Timer(0.3, lambda: node.add([default_route()]))
    late.start()
    route = install(node, tmp_path)
    late.join()
    assert route.hops == (NextHop("eth0", GATEWAY),)
    with listening(node, "eth0") as servers:
        assert hears(servers)


def test_a_device_that_comes_late_is_waited_for(kernel: NamespaceKernel, tmp_path: Path) -> None:
    """The link, the address and the gateway arrive one after the other, each as a separate event."""

    def come() -> None:
        kernel.add_link("eth7", up=False)
        kernel.set_link("eth7", up=True)
        kernel.add_address("eth7", "10.7.0.4/24")
        kernel.in_fabric(lambda: kernel.add_address("eth7", "10.7.0.1/24"))

    late = threading.Timer(0.3, come)
    late.start()
    route = install(kernel, tmp_path, config(dev="eth7", gateway="10.7.0.1"))
    late.join()
    assert route.hops == (NextHop("eth7", IPv4Address("10.7.0.1")),)
    with listening(kernel, "eth7") as servers:
        assert hears(servers)


def test_the_default_route_with_the_lower_metric_wins(node: NamespaceKernel, tmp_path: Path) -> None:
    second = default_route(NextHop("eth1", SECOND_GATEWAY), metric=50)
    assert node.add([default_route(), second]) == ()
    assert install(node, tmp_path).devs == ("eth1",)
    route = install(node, tmp_path, config(dev="eth0"))
    assert route.hops == (NextHop("eth0", GATEWAY),)
