"""Test that wait_for_change returns on every kind of change and on a buffer overrun, and leaks nothing."""

from __future__ import annotations

import errno
import gc
import select
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from node import NICS, add_nics
from scenario import play

from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.rtnetlink.conversation import Listener, everywhere
from hostrouting.model.family import Family
from hostrouting.model.routes import NextHop, Route
from hostrouting.model.rules import Rule
from phases import Cancelled, CancelScope, TimedOut

pytestmark = pytest.mark.kernel

MORE = """
    link add spare
    route add 172.16.0.0/16 via 10.1.0.1 dev eth0
    rule add 100 lookup 100
"""


@pytest.fixture
def node(kernel: NamespaceKernel) -> NamespaceKernel:
    add_nics(kernel, eth0=NICS["eth0"])
    play(kernel, MORE)
    return kernel


def returns(backend: NetlinkBackend, within: float = 10) -> bool:
    """Return whether wait_for_change returns within the timeout. The default is generous for busy machines."""
    try:
        backend.wait_for_change(CancelScope(timeout=within))
    except TimedOut:
        return False
    return True


def is_quiet(backend: NetlinkBackend) -> bool:
    """Return whether no change is pending, tolerating one spurious wakeup."""
    return not returns(backend, 0.02) or not returns(backend, 0.02)


CHANGES = {
    "a route is added": "route add 172.17.0.0/16 via 10.1.0.1 dev eth0",
    "a route is deleted": "route del 172.16.0.0/16 via 10.1.0.1 dev eth0",
    "a route in another table": "route add unreachable 172.17.0.0/16 table 1000",
    "a link is added": "link add ib0",
    "a link goes down": "link down spare",
    "a link is deleted": "link del spare",
    "a lost carrier": "cable out spare",
    "an address is added": "addr add 10.5.0.4/32 dev spare noprefixroute",
    "an address is deleted": "addr del 10.1.0.4/24 dev eth0",
    "a rule is added": "rule add 200 lookup 100",
    "a rule is deleted": "rule del 100 lookup 100",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_it_returns_on(node: NamespaceKernel, change: str) -> None:
    node.wait_for_change(CancelScope())
    assert is_quiet(node)
    play(node, change)
    assert returns(node)
    assert is_quiet(node)


def test_it_returns_on_routes_removed_with_a_nexthop_object(node: NamespaceKernel) -> None:
    subprocess.run(["ip", "nexthop", "add", "id", "7", "via", "10.1.0.1", "dev", "eth0"], check=True)
    play(node, "route add 172.17.0.0/16 nhid 7")
    node.wait_for_change(CancelScope())
    assert is_quiet(node)
    subprocess.run(["ip", "nexthop", "del", "id", "7"], check=True)
    assert returns(node)
    play(node, "lacks 172.17.0.0/16")


def test_a_cancel_or_a_timeout_ends_it(node: NamespaceKernel) -> None:
    node.wait_for_change(CancelScope())
    assert is_quiet(node)
    cancelled = CancelScope()
    cancelled.cancel("enough")
    with pytest.raises(Cancelled, match="enough"):
        node.wait_for_change(cancelled)
    with pytest.raises(TimedOut):
        node.wait_for_change(CancelScope(timeout=0.01))


def test_each_thread_sees_each_change(node: NamespaceKernel) -> None:
    ready = threading.Barrier(4)

    def wait() -> None:
        node.wait_for_change(CancelScope())
        ready.wait()
        node.wait_for_change(CancelScope())

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(wait) for _ in range(3)]
        ready.wait()
        node.add_rule(Rule(300))
        for wait_of_one in waiting:
            wait_of_one.result(timeout=10)


def changes_of(backend: NetlinkBackend) -> Listener:
    changes = backend._local.changes
    assert isinstance(changes, Listener)
    return changes


def test_an_overrun_of_the_socket_counts_as_a_change(node: NamespaceKernel) -> None:
    node.wait_for_change(CancelScope())
    changes_of(node).setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    assert is_quiet(node)
    routes = [Route(destination, (NextHop("eth0"),)) for destination in subnets(200)]
    node.add(routes)
    node.delete(routes)
    assert is_overrun(changes_of(node))
    node.add(routes)
    assert returns(node)
    assert is_quiet(node)
    node.add_rule(Rule(300))
    assert returns(node)


def is_overrun(changes: Listener) -> bool:
    try:
        while changes.recv(1):
            pass
    except BlockingIOError:
        return False
    except OSError as error:
        return error.errno == errno.ENOBUFS
    return False


def subnets(count: int) -> list[IPv4Network]:
    return [IPv4Network((int(IPv4Address("20.0.0.0")) + number * 256, 24)) for number in range(count)]


def test_a_flood_is_one_change(node: NamespaceKernel) -> None:
    node.wait_for_change(CancelScope())
    node.add([Route(destination, (NextHop("eth0"),)) for destination in subnets(300)])
    assert returns(node)
    assert is_quiet(node)


@contextmanager
def no_file_left() -> Iterator[None]:
    gc.collect()
    before = set(Path("/proc/self/fd").iterdir())
    yield
    gc.collect()
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_its_socket_ends_with_the_backend(node: NamespaceKernel) -> None:
    with no_file_left():
        backend = NetlinkBackend()
        backend.wait_for_change(CancelScope())
        del backend


def test_its_socket_ends_with_the_thread(node: NamespaceKernel) -> None:
    def work() -> None:
        node.wait_for_change(CancelScope())

    with no_file_left():
        for _ in range(3):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()


def test_it_listens_only_to_what_the_port_reads(node: NamespaceKernel) -> None:
    with Listener(everywhere(Family.IPV4)) as changes:
        subprocess.run(["ip", "-6", "address", "add", "fd00::1/64", "dev", "eth0", "nodad"], check=True)
        subprocess.run(["ip", "neighbour", "add", "10.1.0.9", "lladdr", "02:00:00:00:00:01", "dev", "eth0"], check=True)
        assert select.select([changes], [], [], 0.05)[0] == []


# --- reading while others write --------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["link down spare", "addr del 10.9.0.1/32 dev spare", "link del spare"])
def test_a_reader_notices_silently_removed_routes(node: NamespaceKernel, loss: str) -> None:
    play(node, "addr add 10.9.0.1/32 dev spare\nroute add 172.17.0.0/16 dev spare")
    lost = IPv4Network("172.17.0.0/16")
    with closing(Listener(everywhere(Family.IPV4))) as listener:
        assert lost in [route.destination for route in node.routes(254)]
        assert not listener.saw_a_change()
        play(node, loss)
        assert lost not in [route.destination for route in node.routes(254)]
        assert listener.saw_a_change()
