"""The test nodes, one of each family, and helpers that check whether packets arrive."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Network
from pathlib import Path
from typing import Any

from hostrouting.kernel.namespace import NamespaceKernel, enter_namespace
from hostrouting.kernel.port import Kernel
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route
from hostrouting.testing import FakeKernel

GATEWAY = IPv4Address("10.1.0.1")
SECOND_GATEWAY = IPv4Address("10.2.0.1")
OWN = IPv4Address("10.1.0.4")
API_SERVER = IPv4Address("172.16.1.9")
PORT = 6443

SUBNETS6 = {"eth0": IPv6Network("fd00:a::/64"), "ib0": IPv6Network("fd00:b::/64")}

PAIR = """
    link add eth0
    link add ib0
    addr add 10.1.0.4/24 dev eth0
    addr add 10.2.0.4/24 dev ib0
"""
"""A scenario: two NICs, and no routes but the kernel's."""

PATIENCE_SECONDS = 30.0
LOST_AFTER_SECONDS = 0.1


def on_linux() -> NamespaceKernel:
    """Move this thread into a new network namespace that contains only ``lo``, and return its kernel."""
    enter_namespace()
    return NamespaceKernel()


def default_route(*hops: NextHop, **more: Any) -> Route:
    fields: dict[str, Any] = {"protocol": Protocol.DHCP, "metric": 100} | more
    return Route(DEFAULT_DESTINATION, hops or (NextHop("eth0", GATEWAY),), **fields)


def add_nics(kernel: Kernel, **addresses: str) -> None:
    """Add interfaces, each with an address and prefix length."""
    for dev, address in addresses.items():
        kernel.add_link(dev)
        kernel.add_address(dev, address)


def build_links(kernel: Kernel) -> None:
    """Add two NICs and an InfiniBand interface whose connected route shadows 172.16.0.0/16."""
    add_nics(kernel, eth0=f"{OWN}/24", eth1="10.2.0.4/24", ib0="172.16.0.10/16")


def build_node(kernel: Kernel, default: Route | None = None) -> None:
    build_links(kernel)
    assert kernel.add([default or default_route()]) == ()


def nics(*devs: str) -> tuple[str, ...]:
    """Return the commands that create interfaces without ARP, each with a peer in the same namespace."""
    return tuple(
        step
        for number, dev in enumerate(devs)
        for step in (
            f"ip link add {dev} address 02:00:00:00:00:0{number} type veth peer name peer-{dev}",
            f"sysctl -qw net.ipv6.conf.peer-{dev}.disable_ipv6=1",
            f"ip link set peer-{dev} up",
            f"ip link set {dev} arp off up",
        )
    )


def build_node6(*devs: str) -> None:
    """Create two interfaces with IPv6 addresses in this thread's namespace, and wait for the kernel's routes to them.

    Args:
        devs: the names of the interfaces; by default eth0 and ib0.
    """
    Path("/proc/sys/net/ipv6/conf/default/accept_dad").write_text("0", encoding="ascii")
    devs = devs or tuple(SUBNETS6)
    commands = ["link set lo up"]
    for dev, subnet in zip(devs, SUBNETS6.values(), strict=True):
        commands += [f"link add {dev} type veth peer name p{dev}", f"link set p{dev} up", f"link set {dev} up"]
        commands += [f"address add {subnet[2]}/64 dev {dev} nodad"]
    run_ip6(*commands)
    # A worker of the kernel adds an address's entry to table local, even without duplicate address detection.
    link_local = {(dev, "fe80") for name in devs for dev in (name, f"p{name}")}
    wanted = link_local | {(dev, "fd00") for dev in devs}
    end = time.monotonic() + PATIENCE_SECONDS
    while wanted - _own_addresses6():
        assert time.monotonic() < end
        time.sleep(0.01)


def _own_addresses6() -> set[tuple[str, str]]:
    """Return each interface and first part of an address for which table local has an entry."""
    shown = subprocess.run(["ip", "-6", "route", "show", "table", "local"], text=True, capture_output=True, check=True)
    return {(dev, part) for part, dev in re.findall(r"^local (\w+):\S* dev (\S+)", shown.stdout, re.MULTILINE)}


def run_ip6(*commands: str) -> None:
    subprocess.run(["ip", "-6", "-batch", "-"], input="\n".join(commands), text=True, check=True)


def shadowed_kernel() -> FakeKernel:
    """Return an in-memory kernel with a default route through eth0, on which ib0 shadows 172.16.0.0/16."""
    kernel = FakeKernel()
    add_nics(kernel, eth0=f"{OWN}/24", ib0="172.16.0.10/16")
    assert kernel.add([default_route(metric=0)]) == ()
    return kernel


def build_fabric(kernel: NamespaceKernel) -> None:
    """Create the routers at the other ends of both NICs' cables."""

    def there() -> None:
        kernel.add_address("eth0", f"{GATEWAY}/24")
        kernel.add_address("eth1", f"{SECOND_GATEWAY}/24")

    kernel.in_fabric(there)


@contextmanager
def listening(kernel: NamespaceKernel, *devs: str) -> Iterator[list[socket.socket]]:
    """Run the API server at the far ends of these interfaces only, and answer ARP requests for its address there."""

    def listen(dev: str) -> socket.socket:
        kernel.add_address(dev, f"{API_SERVER}/32")
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, dev.encode())
        server.bind((str(API_SERVER), PORT))
        return server

    servers = [kernel.in_fabric(lambda dev=dev: listen(dev)) for dev in devs]  # type: ignore[misc]
    try:
        yield servers
    finally:
        for server in servers:
            server.close()


def hears(servers: list[socket.socket], *, patience: float = PATIENCE_SECONDS) -> bool:
    """Return whether a datagram from this node to the API server arrives at one of these sockets."""
    import select

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"hello", (str(API_SERVER), PORT))
        ready, _, _ = select.select(servers, [], [], patience)
        return any(server.recv(16) == b"hello" for server in ready)
