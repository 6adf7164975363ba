"""The node on which the promises are tested, and a proof that packets arrive."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

from hostrouting.kernel.namespace import NamespaceKernel, enter_namespace
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.kernel.port import Kernel

GATEWAY = IPv4Address("10.1.0.1")
SECOND_GATEWAY = IPv4Address("10.2.0.1")
OWN = IPv4Address("10.1.0.4")
API_SERVER = IPv4Address("172.16.1.9")
PORT = 6443

PAIR = """
    link add eth0
    link add ib0
    addr add 10.1.0.4/24 dev eth0
    addr add 10.2.0.4/24 dev ib0
"""
"""A scenario: two NICs, and no routes but the kernel's."""

PATIENCE_SECONDS = 5.0
LOST_AFTER_SECONDS = 0.2


def on_linux() -> NamespaceKernel:
    """Move this thread into a fresh network namespace that contains only ``lo``, and return its kernel."""
    enter_namespace()
    return NamespaceKernel()


def default_route(*hops: NextHop, **more: Any) -> Route:
    fields: dict[str, Any] = {"protocol": Protocol.DHCP, "metric": 100} | more
    return Route(DEFAULT_DESTINATION, hops or (NextHop("eth0", GATEWAY),), **fields)


def add_nics(kernel: Kernel, **addresses: str) -> None:
    """Add interfaces, each with an address and its prefix length."""
    for dev, address in addresses.items():
        kernel.add_link(dev)
        kernel.add_address(dev, address)


def build_links(kernel: Kernel) -> None:
    """Add two NICs, and an InfiniBand interface whose connected route shadows 172.16.0.0/16."""
    add_nics(kernel, eth0=f"{OWN}/24", eth1="10.2.0.4/24", ib0="172.16.0.10/16")


def build_node(kernel: Kernel, default: Route | None = None) -> None:
    build_links(kernel)
    assert kernel.add([default or default_route()]) == ()


def build_fabric(kernel: NamespaceKernel) -> None:
    """Create the routers at the far ends of both NICs' cables."""

    def there() -> None:
        kernel.add_address("eth0", f"{GATEWAY}/24")
        kernel.add_address("eth1", f"{SECOND_GATEWAY}/24")

    kernel.in_fabric(there)


@contextmanager
def listening(kernel: NamespaceKernel, *devs: str) -> Iterator[list[socket.socket]]:
    """Run the API server at the far ends of these interfaces only, and answer ARP for its address there."""

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
