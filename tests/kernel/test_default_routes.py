"""Test that every form of default route is supported and that packets sent over the installed routes reach a peer."""

from __future__ import annotations

import socket
import struct
import threading
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from pathlib import Path

import attrs
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
    run_ip,
)
from scripts import Sandbox
from wanted import config

import phases
from hostrouting import ConfigureStaticRoutes, Host, Layout
from hostrouting.boot.render import render_static_routes
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.model.routes import NextHop, Route, Table
from hostrouting.testing import FakeSystemd

pytestmark = pytest.mark.kernel

DESTINATION = IPv4Network("172.16.1.0/24")


def install(kernel: NamespaceKernel, tmp_path: Path, **asked: str) -> Route:
    """Install a route with the task, check that a second run and the boot script change nothing, and return it."""
    wanted = config({"destination": str(DESTINATION), **asked}, cidrs=(), waitSeconds=30)
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(tmp_path))
    phases.run(ConfigureStaticRoutes(wanted, host=host))
    (route,) = [route for route in kernel.routes(Table.MAIN) if route.protocol == 217]
    assert phases.run(ConfigureStaticRoutes(wanted, host=host)).plan.unchanged == (route,)
    assert Sandbox(tmp_path).run(render_static_routes(wanted)).stdout == "nothing to change\n"
    return route


@pytest.fixture
def node(kernel: NamespaceKernel) -> NamespaceKernel:
    build_links(kernel)
    build_fabric(kernel)
    return kernel


def test_without_our_route_packets_are_lost_in_the_fabric(node: NamespaceKernel) -> None:
    """Control for the tests below."""
    assert node.add([default_route()]) == ()
    with listening(node, "eth0") as servers:
        assert not hears(servers, patience=LOST_AFTER_SECONDS)


ETH0, ETH1 = NextHop("eth0", GATEWAY), NextHop("eth1", SECOND_GATEWAY)
BY_ETH0, BY_ETH1 = "via 10.1.0.1 dev eth0", "via 10.2.0.1 dev eth1"
MULTIPATH = f"route add default nexthop {BY_ETH0} weight 2 nexthop {BY_ETH1}"
BY_ID = f"nexthop add id 7 {BY_ETH0}\nroute add default nhid 7"
BY_GROUP = (
    f"nexthop add id 7 {BY_ETH0}\nnexthop add id 8 {BY_ETH1}\nnexthop add id 9 group 7,3/8\nroute add default nhid 9"
)
ADDRESS = "addr add 10.1.0.44/24 dev eth0"
TWO = f"route add default {BY_ETH0} metric 100\nroute add default {BY_ETH1} metric 50"


@attrs.frozen
class Form:
    """A form of default route.

    Args:
        does: the ip commands that add the default route.
        hops: the next hops that our route inherits.
        asks: keys of our route in the config, in addition to the destination.
        has: the other expected attributes of our route.
        compat_mode: the sysctl nexthop_compat_mode. If it is 0, the kernel hides the next hops of nexthop objects.
    """

    does: str
    hops: tuple[NextHop, ...]
    asks: dict[str, str] = attrs.field(factory=dict)
    has: dict[str, object] = attrs.field(factory=dict)
    compat_mode: str = "1"


FORMS = {
    "without a metric": Form(f"route add default {BY_ETH0}", (ETH0,)),
    "with the highest metric": Form(f"route add default {BY_ETH0} metric 4294967295", (ETH0,)),
    "multipath": Form(MULTIPATH, (attrs.evolve(ETH0, weight=2), ETH1)),
    "one device of a multipath route": Form(MULTIPATH, (ETH1,), {"dev": "eth1"}),
    "a nexthop object": Form(BY_ID, (ETH0,), has={"nexthop_id": None}),
    "a group of nexthop objects": Form(BY_GROUP, (attrs.evolve(ETH0, weight=3), ETH1)),
    "hidden hops": Form(BY_ID, (ETH0,), has={"nexthop_id": None}, compat_mode="0"),
    "without a gateway": Form("route add default dev eth0", (NextHop("eth0"),), has={"scope": 253}),
    "with a source and an MTU": Form(
        f"{ADDRESS}\nroute add default {BY_ETH0} src 10.1.0.44 mtu lock 1400",
        (ETH0,),
        has={"source": IPv4Address("10.1.0.44"), "mtu": 1400},
    ),
    "the lower of two metrics": Form(TWO, (ETH1,)),
    "the named one of two": Form(TWO, (ETH0,), {"dev": "eth0"}),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_default_route_of_any_form(form: Form, node: NamespaceKernel, tmp_path: Path) -> None:
    Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text(form.compat_mode)  # only in this namespace
    run_ip(form.does)
    route = install(node, tmp_path, **form.asks)
    assert route.hops == form.hops
    assert {name: getattr(route, name) for name in form.has} == form.has
    with listening(node, *route.devs) as servers:
        assert hears(servers)


@pytest.mark.parametrize("compat_mode", ["0", "1"])
def test_a_default_route_with_more_weight_than_routes_have(
    node: NamespaceKernel, tmp_path: Path, compat_mode: str
) -> None:
    """Nexthop group weights have 16 bits, which not every version of ip supports; a route shows only eight of them."""
    Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text(compat_mode)  # only in this namespace
    run_ip(f"nexthop add id 1 {BY_ETH0}\nnexthop add id 2 {BY_ETH1}")
    members = struct.pack("=IBBHIBBH", 1, 43, 1, 0, 2, 2, 0, 0)
    body = struct.pack("=BBBBI", 0, 0, socket.AF_INET, 0, 0) + struct.pack("=HHIHH", 8, 1, 10, 4 + len(members), 2)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.send(struct.pack("=IHHII", 16 + len(body + members), 104, 0x405, 1, 0) + body + members)
        assert struct.unpack_from("=i", kernel.recv(4096), 16) == (0,)
    run_ip("route add default nhid 10")
    assert {hop.dev: hop.weight for hop in install(node, tmp_path).hops} == {"eth0": 44, "eth1": 3}


def test_an_onlink_default_route(kernel: NamespaceKernel, tmp_path: Path) -> None:
    """Azure's /32 addresses need an onlink route because the gateway is outside all of the node's subnets."""
    gateway = IPv4Address("169.254.1.1")
    kernel.add_link("eth0")
    kernel.add_address("eth0", f"{OWN}/32")
    kernel.in_fabric(lambda: kernel.add_address("eth0", f"{gateway}/32"))
    assert kernel.add([default_route(NextHop("eth0", gateway, onlink=True))]) == ()
    assert install(kernel, tmp_path).hops == (NextHop("eth0", gateway, onlink=True),)
    with listening(kernel, "eth0") as servers:
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


def test_a_device_that_comes_late_is_waited_for(kernel: NamespaceKernel, tmp_path: Path) -> None:
    """The link, the address and the gateway appear one after the other, as separate events."""

    def come() -> None:
        kernel.add_link("eth7", up=False)
        kernel.set_link("eth7", up=True)
        kernel.add_address("eth7", "10.7.0.4/24")
        kernel.in_fabric(lambda: kernel.add_address("eth7", "10.7.0.1/24"))

    late = threading.Timer(0.3, come)
    late.start()
    route = install(kernel, tmp_path, dev="eth7", gateway="10.7.0.1")
    late.join()
    assert route.hops == (NextHop("eth7", IPv4Address("10.7.0.1")),)
    with listening(kernel, "eth7") as servers:
        assert hears(servers)
