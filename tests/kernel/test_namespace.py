"""Test how the throw-away namespace protects the host, why it may be refused, and that it carries packets."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from scenario import play, skip_without_other_users

from hostrouting.kernel import _namespaces
from hostrouting.kernel._namespaces import in_thread, this_namespace
from hostrouting.kernel.namespace import NamespaceError, NamespaceKernel, enter_namespace
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.model.errors import HostRoutingError, RouteError
from hostrouting.model.routes import NextHop, Route
from hostrouting.model.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.kernel

HOST = "HOSTROUTING_TEST_HOST_NAMESPACE"  # set by conftest.py
ROOT = Path(__file__).parent.parent.parent


def python(program: str, *, wrapper: tuple[str, ...] = ()) -> str:
    """Return the output of a separate program, which starts in this test's namespace but didn't create it."""
    done = subprocess.run([*wrapper, sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


# --- the host is protected --------------------------------------------------------------------------------------


def test_it_refuses_the_namespace_where_the_process_started(kernel: NamespaceKernel) -> None:
    program = """
from hostrouting.kernel.namespace import NamespaceError, NamespaceKernel
try:
    NamespaceKernel()
except NamespaceError as error:
    print(error)
"""
    assert python(program).endswith("call enter_namespace() first")


def test_every_call_is_refused_in_a_thread_of_another_namespace(kernel: NamespaceKernel) -> None:
    kernel.add_link("eth0")
    route = Route(IPv4Network("172.16.0.0/16"), (NextHop("eth0"),))
    calls: list[Callable[[], object]] = [
        kernel.links,
        lambda: kernel.add([route]),
        lambda: kernel.add_link("eth1"),
        lambda: kernel.set_link("eth0", up=False),
        lambda: NamespaceKernel().links(),
    ]

    def elsewhere() -> None:
        _namespaces._call("unshare", _namespaces._CLONE_NEWNET)
        for call in calls:
            with pytest.raises(NamespaceError, match="refused"):
                call()

    in_thread(elsewhere)
    assert [link.name for link in kernel.links()] == ["lo", "eth0"]


def test_a_namespaces_cookie_is_never_reused(kernel: NamespaceKernel) -> None:
    """Inodes are reused, so another program's new namespace could be mistaken for an old one of ours."""
    numbers = {in_thread(a_namespace_that_is_gone_at_once) for _ in range(20)}
    assert len(numbers | {this_namespace()}) == 21


def a_namespace_that_is_gone_at_once() -> int:
    _namespaces._call("unshare", _namespaces._CLONE_NEWNET)
    return this_namespace()


def test_namespaces_are_separate(kernel: NamespaceKernel) -> None:
    kernel.add_link("eth0")
    enter_namespace()
    assert [link.name for link in NamespaceKernel().links()] == ["lo"]


def test_a_thread_started_later_is_inside_too(kernel: NamespaceKernel) -> None:
    kernel.add_link("eth0")
    assert [link.name for link in in_thread(kernel.links)] == ["lo", "eth0"]


def test_the_tests_guard_refuses_writes_in_the_hosts_namespace(
    kernel: NamespaceKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.add_link("eth0")
    route = Route(IPv4Network("172.16.0.0/16"), (NextHop("eth0"),))
    assert repr(this_namespace()) != os.environ[HOST]
    monkeypatch.setenv(HOST, repr(this_namespace()))
    backend = NetlinkBackend()
    for call in (backend.add, backend.replace):
        with pytest.raises(AssertionError, match="about to change the host"):
            call([route])
    assert route not in backend.routes()


# --- why it may be refused --------------------------------------------------------------------------------------

REFUSED = """
import ctypes, pathlib
from hostrouting.kernel.namespace import NamespaceError, enter_namespace
pathlib.Path("/proc/sys/user", {setting!r}).write_text("0")
if {is_stripped}:
    # capset(2), version 3: no capability is left, so that a user namespace is asked for.
    libc = ctypes.CDLL(None)
    libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
try:
    enter_namespace()
except NamespaceError as error:
    print(error.errno, error)
"""
# The limit is set in a user namespace, so it affects no other process.
AS_ROOT_OF_ITS_OWN = ("unshare", "--user", "--map-root-user")


@pytest.mark.parametrize(("setting", "is_stripped"), [("max_net_namespaces", False), ("max_user_namespaces", True)])
def test_a_refusal_names_the_setting(kernel: NamespaceKernel, setting: str, is_stripped: bool) -> None:
    if subprocess.run([*AS_ROOT_OF_ITS_OWN, "true"], capture_output=True).returncode:
        pytest.skip("user namespaces are refused here")
    said = python(REFUSED.format(setting=setting, is_stripped=is_stripped), wrapper=AS_ROOT_OF_ITS_OWN)
    assert said.startswith(
        f"{errno.ENOSPC} can't make a network namespace: No space left on device; user.{setting} is 0"
    )


def test_a_refusal_is_one_of_our_errors() -> None:
    assert issubclass(NamespaceError, HostRoutingError)
    refusal = _namespaces.refusal(errno.EPERM)
    assert refusal.is_not_permitted
    assert "Operation not permitted; " in str(refusal)


SECOND_THREAD = """
import ctypes, threading
from hostrouting.kernel.namespace import NamespaceError, enter_namespace
done = threading.Event()
threading.Thread(target=done.wait).start()
ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
try:
    enter_namespace()
except NamespaceError as error:
    print(error)
done.set()
"""


def test_without_root_a_second_thread_is_a_clear_error(kernel: NamespaceKernel) -> None:
    assert "before the process starts a second thread" in python(SECOND_THREAD)


ORDINARY_USER = """
import ctypes, os
from hostrouting.kernel.namespace import NamespaceKernel, enter_namespace
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink.conversation import read
from hostrouting.kernel.rtnetlink.requests import request
read("list the links", lambda talk: request(talk, rtnl.RTM_GETLINK, rtnl.DUMP, {}))  # loads what this user may not read
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
PR_SET_DUMPABLE = 4  # as after an exec; without it /proc/self belongs to root
ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)
enter_namespace()
enter_namespace()
kernel = NamespaceKernel()
kernel.add_link("eth0")
print(*(link.name for link in kernel.links()))
"""


def test_an_ordinary_user_can_make_one_if_allowed(kernel: NamespaceKernel) -> None:
    skip_without_other_users()
    assert python(ORDINARY_USER) == "lo eth0"


@pytest.mark.parametrize(("required", "outcome"), [("", "1 skipped"), ("boot, kernel", "1 error")])
def test_a_refusal_skips_or_fails_the_tests_as_configured(kernel: NamespaceKernel, required: str, outcome: str) -> None:
    if subprocess.run([*AS_ROOT_OF_ITS_OWN, "true"], capture_output=True).returncode:
        pytest.skip("user namespaces are refused here")
    test = f"{__file__}::test_a_refusal_is_one_of_our_errors"
    pytest_alone = f"{sys.executable} -m pytest -p pytest_timeout -p no:cacheprovider -q {test}"
    done = subprocess.run(
        [*AS_ROOT_OF_ITS_OWN, "sh", "-c", f"echo 0 >/proc/sys/user/max_net_namespaces; {pytest_alone}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "HOSTROUTING_REQUIRE": required, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert outcome in done.stdout
    assert "user.max_net_namespaces is 0" in done.stdout


# --- links, addresses, rules ------------------------------------------------------------------------------------


def test_only_one_end_of_a_cable_is_seen_here(kernel: NamespaceKernel) -> None:
    play(kernel, "link add eth0 \n link add ib0")
    assert [link.name for link in kernel.links()] == ["lo", "eth0", "ib0"]
    assert sorted(link.name for link in kernel.in_fabric(kernel.links)) == ["eth0", "ib0", "lo"]
    play(kernel, "link del ib0")
    assert sorted(link.name for link in kernel.in_fabric(kernel.links)) == ["eth0", "lo"]


def test_every_mistake_is_a_route_error_with_its_errno(kernel: NamespaceKernel) -> None:
    play(
        kernel,
        """
        link add eth0
        link add eth0 -> EEXIST
        link down eth7 -> ENODEV
        link del eth7 -> ENODEV
        cable out eth7 -> ENODEV
        addr add 10.1.0.4/24 dev eth7 -> ENODEV
        addr add 10.1.0.4/24 dev eth0
        addr add 10.1.0.4/24 dev eth0 -> EEXIST
        addr del 10.1.0.4/25 dev eth0 -> EADDRNOTAVAIL
        addr del 10.1.0.5/24 dev eth0 -> EADDRNOTAVAIL
        addr add 10.2.0.4/32 dev eth0 peer 10.3.0.1
        addr del 10.2.0.4/32 dev eth0
        rule add 100 lookup 100
        rule add 100 lookup 100 -> EEXIST
        rule del 101 lookup 100 -> ENOENT
        """,
    )
    with pytest.raises(RouteError, match="can't delete the rule 101: No such file or directory"):
        kernel.del_rule(Rule(101, table=100))


def test_links_come_and_go_without_a_trace(kernel: NamespaceKernel) -> None:
    for _ in range(20):
        play(
            kernel,
            "link add eth0 \n cable out eth0 \n cable in eth0 \n link down eth0 \n link up eth0 \n link del eth0",
        )
    assert [link.name for link in kernel.links()] == ["lo"]


# --- packets ----------------------------------------------------------------------------------------------------


def test_packets_take_the_route_that_the_lookup_returns(kernel: NamespaceKernel) -> None:
    play(
        kernel,
        """
        link add eth0
        link add ib0
        addr add 10.1.0.4/24 dev eth0
        addr add 10.2.0.4/24 dev ib0
        route add default via 10.1.0.1 dev eth0
        route add 172.16.0.0/16 via 10.2.0.1 dev ib0
        """,
    )

    def far_side() -> socket.socket:
        play(
            kernel,
            """
            addr add 10.1.0.1/24 dev eth0
            addr add 10.2.0.1/24 dev ib0
            addr add 172.16.5.5/32 dev lo
            addr add 8.8.8.8/32 dev lo
            """,
        )
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind(("", 7))
        server.settimeout(5)
        return server

    with kernel.in_fabric(far_side) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        for address, source in (("8.8.8.8", "10.1.0.4"), ("172.16.5.5", "10.2.0.4")):
            client.sendto(b"hello", (address, 7))
            data, (came_from, port) = server.recvfrom(100)
            assert came_from == source
            server.sendto(data, (came_from, port))
            assert client.recv(100) == b"hello"
    assert kernel.lookup([IPv4Address("172.16.5.5")])[0].route is not None


def test_a_failure_in_the_fabric_is_raised_here(kernel: NamespaceKernel) -> None:
    def fail() -> None:
        raise LookupError("over there")

    with pytest.raises(LookupError, match="over there"):
        kernel.in_fabric(fail)
