"""Test how the temporary namespace protects the host, when creating it fails, and that it carries
packets.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Network, IPv6Address
from pathlib import Path

import pytest
from node import network_namespace
from scenario import play

from hostrouting.kernel import namespace, unshare
from hostrouting.kernel.namespace import NamespaceError, NamespaceKernel
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import Write, read_routes
from hostrouting.kernel.selection import Entries
from hostrouting.kernel.unshare import in_thread
from hostrouting.model.errors import HostRoutingError, RouteError
from hostrouting.model.links import Address6
from hostrouting.model.routes import NextHop, Route, RouteType
from phases import Parallel, TimedOut, call_async, run_async, task

pytestmark = pytest.mark.kernel

HOST = "HOSTROUTING_TEST_HOST_NAMESPACE"  # set by conftest.py
ROOT = Path(__file__).parent.parent.parent


# --- the host is protected ------------------------------------------------------------------------


def test_an_asyncio_run_is_in_its_loops_namespace(kernel: NamespaceKernel) -> None:
    """asyncio's own thread, made before, is still in the namespace of the host.

    The loop has one such thread: more would be made, in this namespace, while the first is busy.
    """
    del kernel

    def where(*_: object, scope: object = None) -> str:
        del scope
        return str(Path("/proc/thread-self/ns/net").readlink())

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
        before = await asyncio.to_thread(where)
        namespace.enter_namespace()
        here = where()
        look = task("look")(where)
        assert await asyncio.to_thread(where) == before != here
        assert await run_async(Parallel(look, look)) == (here, here)
        assert await call_async(where) == here

    in_thread(lambda: asyncio.run(main()))


def test_every_call_is_refused_in_a_thread_of_another_namespace(kernel: NamespaceKernel) -> None:
    kernel.add_link("eth0")
    route = Route(IPv4Network("172.16.0.0/16"), (NextHop("eth0"),))
    calls: list[Callable[[], object]] = [
        kernel.facts,
        lambda: kernel.write(Write.ADD, [route]),
        lambda: kernel.add_link("eth1"),
        lambda: kernel.set_link("eth0", up=False),
        lambda: NamespaceKernel().facts().links,
    ]

    def elsewhere() -> None:
        unshare._call("unshare", unshare._CLONE_NEWNET)
        for call in calls:
            with pytest.raises(NamespaceError, match="refused") as caught:
                call()
            assert caught.value.hint == "call enter_namespace() first"

    in_thread(elsewhere)
    assert [link.name for link in kernel.facts().links] == ["lo", "eth0"]


def test_the_tests_guard_refuses_writes_in_the_hosts_namespace(
    kernel: NamespaceKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.add_link("eth0")
    route = Route(IPv4Network("172.16.0.0/16"), (NextHop("eth0"),))
    assert network_namespace() != os.environ[HOST]
    monkeypatch.setenv(HOST, network_namespace())
    backend = NetlinkBackend()
    for change in (Write.ADD, Write.REPLACE):
        with pytest.raises(AssertionError, match="about to change the host"):
            backend.write(change, [route])
    assert route not in read_routes(backend)


# --- why it may be refused ------------------------------------------------------------------------

# The limit is set in a user namespace, so it affects no other processes.
AS_ROOT_OF_ITS_OWN = ("unshare", "--user", "--map-root-user")


def test_a_refusal_is_one_of_our_errors() -> None:
    refusal = unshare.refusal(errno.EPERM)
    assert isinstance(refusal, HostRoutingError)
    assert refusal.is_not_permitted
    assert "Operation not permitted\nhint: " in str(refusal)


def test_a_refusal_fails_the_tests_that_require_a_namespace(kernel: NamespaceKernel) -> None:
    if subprocess.run([*AS_ROOT_OF_ITS_OWN, "true"], capture_output=True).returncode:
        pytest.skip("user namespaces are refused here")
    test = f"{__file__}::test_a_refusal_is_one_of_our_errors"
    pytest_alone = f"{sys.executable} -m pytest -p pytest_timeout -p no:cacheprovider -q {test}"
    done = subprocess.run(
        [
            *AS_ROOT_OF_ITS_OWN,
            "sh",
            "-c",
            f"echo 0 >/proc/sys/user/max_net_namespaces; {pytest_alone}",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "HOSTROUTING_REQUIRE": "boot, kernel",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
    )
    assert "1 error" in done.stdout
    assert "can't make a network namespace: No space left on device" in done.stdout


# --- links, addresses, rules ----------------------------------------------------------------------


def test_only_one_end_of_a_cable_is_seen_here(kernel: NamespaceKernel) -> None:
    play(kernel, "link add eth0 \n link add ib0")
    assert [link.name for link in kernel.facts().links] == ["lo", "eth0", "ib0"]
    assert sorted(link.name for link in kernel.in_fabric(kernel.facts).links) == [
        "eth0",
        "ib0",
        "lo",
    ]
    play(kernel, "link del ib0")
    assert sorted(link.name for link in kernel.in_fabric(kernel.facts).links) == ["eth0", "lo"]


def test_links_outlive_the_object_that_made_them(kernel: NamespaceKernel) -> None:
    """A fabric that ended would take them along."""
    NamespaceKernel().ip("link add eth0")
    gc.collect()
    NamespaceKernel().ip("link set eth0 carrier off")
    assert [link.name for link in kernel.facts().links if not link.has_carrier] == ["eth0"]


def test_an_ipv6_address_can_be_used_at_once(kernel: NamespaceKernel) -> None:
    kernel.add_link("eth0")
    kernel.add_address("eth0", "fd00:1::4/64")
    (own,) = (
        each
        for each in NetlinkBackend6().facts().addresses
        if each.local == IPv6Address("fd00:1::4")
    )
    assert isinstance(own, Address6)
    assert (own.dev, own.prefix_length, own.is_tentative) == ("eth0", 64, False)
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sent:
        sent.bind((str(own.local), 0))
    (found,) = NetlinkBackend6().lookup([own.local])
    assert found.route is not None
    assert found.route.type is RouteType.LOCAL


def test_an_ipv6_address_that_cannot_be_used_is_refused(
    kernel: NamespaceKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.add_link("eth0")
    monkeypatch.setattr(namespace, "_WORK_SECONDS", 0.01)
    monkeypatch.setattr(NetlinkBackend6, "entries", lambda *_: Entries())
    with pytest.raises(RouteError, match="can't use the address fd00:1::4") as caught:
        kernel.add_address("eth0", "fd00:1::4/64")
    assert isinstance(caught.value.__cause__, TimedOut)


# --- packets --------------------------------------------------------------------------------------


def test_a_failure_in_the_fabric_is_raised_here(kernel: NamespaceKernel) -> None:
    def fail() -> None:
        raise LookupError("over there")

    with pytest.raises(LookupError, match="over there"):
        kernel.in_fabric(fail)
