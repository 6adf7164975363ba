"""The test nodes, one of each family, and helpers that check whether packets arrive."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Network
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

from hostrouting.kernel.namespace import NamespaceKernel, enter_namespace
from hostrouting.kernel.port import Kernel, Write
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route
from hostrouting.testing import FakeKernel

GATEWAY = IPv4Address("10.1.0.1")
SECOND_GATEWAY = IPv4Address("10.2.0.1")
OWN = IPv4Address("10.1.0.4")
API_SERVER = IPv4Address("172.16.1.9")
PORT = 6443

NICS = {"eth0": f"{OWN}/24", "eth1": "10.2.0.4/24", "ib0": "172.16.0.10/16"}
"""The node's interfaces: two NICs, and InfiniBand, whose subnet shadows 172.16.0.0/16."""

SUBNETS6 = {"eth0": IPv6Network("fd00:a::/64"), "ib0": IPv6Network("fd00:b::/64")}

PAIR = """
    link add eth0
    link add ib0
    addr add 10.1.0.4/24 dev eth0
    addr add 10.2.0.4/24 dev ib0
"""
"""A scenario: two NICs, and no routes but the kernel's."""

AnyKernel = TypeVar("AnyKernel", bound=Kernel)

PATIENCE_SECONDS = 30.0
LOST_AFTER_SECONDS = 0.1
_CHANGES_PER_SECOND = 300


def on_linux() -> NamespaceKernel:
    """Move this thread into a new network namespace that contains only ``lo``, and return its
    kernel.
    """
    enter_namespace()
    return NamespaceKernel()


def like_linux() -> FakeKernel:
    """Return an in-memory kernel that behaves like this machine's kernel."""
    return FakeKernel(os.uname().release)


def default_route(*hops: NextHop, **more: Any) -> Route:
    fields: dict[str, Any] = {"protocol": Protocol.DHCP, "metric": 100} | more
    return Route(DEFAULT_DESTINATION, hops or (NextHop("eth0", GATEWAY),), **fields)


def add_nics(kernel: Kernel, **addresses: str) -> None:
    """Add interfaces, each with an address and prefix length."""
    for dev, address in addresses.items():
        kernel.add_link(dev)
        kernel.add_address(dev, address)


def build_links(kernel: Kernel) -> None:
    add_nics(kernel, **NICS)


def build_node(kernel: AnyKernel, default: Route | None = None) -> AnyKernel:
    build_links(kernel)
    assert kernel.write(Write.ADD, [default or default_route()]) == ()
    return kernel


# --- with ip commands -----------------------------------------------------------------------------


def nics(*names: str, **addresses: str) -> str:
    """Return a line for each ip command that creates interfaces without ARP, each with a peer such
    as ``peer-eth0``.

    Args:
        names: interfaces without an address, each optionally followed by more words, such as ``eth0
            index 50``.
        addresses: interfaces, each with an address, or an empty string for none.
    """
    steps: list[str] = []
    for number, (name, address) in enumerate((dict.fromkeys(names, "") | addresses).items()):
        dev = name.split()[0]
        peer = f"peer-{dev}"[:15]
        steps += (
            f"ip link add {name} address 02:00:00:00:00:0{number} type veth peer name {peer}",
            f"ip link set {peer} addrgenmode none",
            f"ip link set {peer} arp off up",
            f"ip link set {dev} arp off up",
        )
        steps += [f"ip address add {address} dev {dev}"] if address else []
    return "\n".join(steps)


DEFAULT = f"ip route add default via {GATEWAY} dev eth0 proto dhcp"
UPLINK = f"ip address add {NICS['eth0']} dev eth0\n{DEFAULT}"

SHADOWED = f"""
ip link set lo up
{nics(eth0=NICS["eth0"], ib0=NICS["ib0"])}
{DEFAULT} metric 100
ip address add fd00:a::4/64 dev eth0
ip route add ::/0 via fd00:a::1 dev eth0
ip address add fd00:16::10/48 dev ib0
"""
"""The ip commands that build the node of ``shadowed_kernel``, with the same shadow in IPv6."""


def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so, or fail."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.002)


def lines(*texts: str) -> tuple[str, ...]:
    """Return the lines of texts without blank ones and indentation."""
    return tuple(filter(None, map(str.strip, "\n".join(texts).splitlines())))


def as_batch(steps: str) -> str:
    """Return commands as lines for ``ip -batch``, where the addresses imply the family."""
    return re.sub(r"^\s*(ip (-6 )?)?", "", steps, flags=re.MULTILINE)


def run_ip(*commands: str, program: str = "ip") -> None:
    """Run ip commands, with or without the name of the program.

    Each argument may have several lines.
    """
    tool(*program.split(), "-batch", "-", stdin=as_batch("\n".join(commands)))


def run_ip6(*commands: str) -> None:
    """Run commands, and wait up to 1 s for the entries in table local of added addresses.

    IPv6 adds these entries from a work queue, and none if the link is down.
    """
    run_ip(*commands, program="ip -6")
    added = re.findall(r"^addr(?:ess)? add ([^/ ]+).* nodad", as_batch("\n".join(commands)), re.M)
    for _ in range(100 if added else 0):
        listed = tool("ip", "-6", "route", "show", "table", "local")
        if all(f"local {address} " in listed for address in added):
            return
        time.sleep(0.01)


def tool(*argv: str, stdin: str = "") -> str:
    """Run a program in this thread's network namespace, which the tests have made, and return its
    output.
    """
    done = attempt(*argv, stdin=stdin)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}\n{stdin}"
    return done.stdout


def attempt(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program and ignore its exit status."""
    refuse_host()
    return subprocess.run(
        argv, input=stdin, text=True, capture_output=True, check=False, timeout=30
    )


def refuse_host() -> None:
    """Raise an error in the host's own network namespace."""
    is_host = network_namespace() == os.environ["HOSTROUTING_TEST_HOST_NAMESPACE"]
    assert not is_host, "a test was about to change the host's network"


def network_namespace() -> str:
    """Return the name of this thread's network namespace.

    Another one may get the same name once this one is gone.
    """
    return str(Path("/proc/thread-self/ns/net").readlink())


def build_node6(*devs: str) -> None:
    """Create two interfaces with IPv6 addresses in this thread's namespace, and wait for the
    kernel's routes to them.

    Args:
        devs: the names of the interfaces; by default eth0 and ib0.
    """
    Path("/proc/sys/net/ipv6/conf/default/accept_dad").write_text("0")
    devs = devs or tuple(SUBNETS6)
    run_ip(
        nics(
            **{dev: f"{subnet[2]}/64" for dev, subnet in zip(devs, SUBNETS6.values(), strict=True)}
        )
    )
    # Workers of the kernel add entries to table local: for addresses, and for multicast once there
    # is a carrier.
    wanted = {(dev, part) for dev in devs for part in ("fe80", "fd00")} | {
        (f"peer-{dev}", "ff00") for dev in devs
    }
    until(lambda: wanted <= _local_entries6())


def await_local6(*addresses: str) -> None:
    """Wait until a worker of the kernel has added entries for IPv6 addresses to table local."""
    entries = [f"local {address} " for address in addresses]

    def are_added() -> bool:
        shown = tool("ip", "-6", "route", "show", "table", "local")
        return all(entry in shown for entry in entries)

    until(are_added)


def _local_entries6() -> set[tuple[str, str]]:
    """Return the interface and the first part of the destination of each entry of table local."""
    shown = tool("ip", "-6", "route", "show", "table", "local")
    return {
        (dev, part) for part, dev in re.findall(r"^\w+ (\w+):\S* dev (\S+)", shown, re.MULTILINE)
    }


@contextmanager
def churning(steps: Sequence[str], *, may_fail: bool = False) -> Iterator[None]:
    """Run ip commands in a loop in this thread's network namespace until the context exits.

    Args:
        steps: the commands, with or without the name of the program.
        may_fail: whether commands may fail.
    """
    command = ["ip", "-batch", "-", *(["-force"] if may_fail else [])]
    ip = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    is_over = threading.Event()

    def feed() -> None:
        assert ip.stdin is not None
        for step in cycle(map(as_batch, steps)):
            if is_over.wait(1 / _CHANGES_PER_SECOND):
                return
            print(step, file=ip.stdin, flush=True)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield
    finally:
        is_over.set()
        feeder.join()
        _, said = ip.communicate()
    assert may_fail or (ip.returncode, said) == (0, "")


# --- in memory ------------------------------------------------------------------------------------


def shadowed_kernel() -> FakeKernel:
    """Return an in-memory kernel with a default route through eth0, on which ib0 shadows
    172.16.0.0/16.
    """
    kernel = FakeKernel()
    add_nics(kernel, eth0=NICS["eth0"], ib0=NICS["ib0"])
    assert kernel.write(Write.ADD, [default_route(metric=0)]) == ()
    return kernel


def build_fabric(kernel: NamespaceKernel) -> None:
    """Create the routers at the other ends of both NICs' cables."""

    def there() -> None:
        kernel.add_address("eth0", f"{GATEWAY}/24")
        kernel.add_address("eth1", f"{SECOND_GATEWAY}/24")

    kernel.in_fabric(there)


@contextmanager
def listening(kernel: NamespaceKernel, *devs: str) -> Iterator[list[socket.socket]]:
    """Run the API server at the far ends of these interfaces only, and answer ARP requests for its
    address there.
    """

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
    """Return whether a datagram from this node to the API server arrives at a socket."""
    import select

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"hello", (str(API_SERVER), PORT))
        ready, _, _ = select.select(servers, [], [], patience)
        return any(server.recv(16) == b"hello" for server in ready)
