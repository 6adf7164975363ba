"""Test that the real backend reports what rtnetlink does silently, and wakes up on every kind of
change.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest
from audit.making import add_dscp_rule
from needs import needs_linux
from node import GATEWAY, NICS, PAIR, add_nics, attempt, like_linux, run_ip, tool
from scenario import play, route, skip_without_other_users

from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.port import (
    ChangeListener,
    RouteBackend,
    Write,
    read_default_routes,
    read_routes,
)
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink.conversation import Conversation, Listener, everywhere
from hostrouting.kernel.rtnetlink.link_messages import ADDRESSES
from hostrouting.kernel.rtnetlink.messages import HEADER
from hostrouting.kernel.selection import except_plain
from hostrouting.kernel.unshare import in_thread
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family
from hostrouting.model.routes import NextHop, Route, RouteType
from hostrouting.model.rules import Rule, RuleAction
from phases import Cancelled, CancelScope, TimedOut

T = TypeVar("T")

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parent.parent.parent
BY_ETH0 = (NextHop("eth0", GATEWAY),)


@pytest.fixture
def node(kernel: NamespaceKernel) -> NamespaceKernel:
    play(kernel, PAIR)
    return kernel


def many(count: int, hops: tuple[NextHop, ...] = BY_ETH0) -> list[Route]:
    return [Route(IPv4Network((0x14000000 + number * 256, 24)), hops) for number in range(count)]


def ours(backend: RouteBackend) -> list[str]:
    return [str(there) for there in read_routes(backend) if there.protocol == 217]


# --- reads ----------------------------------------------------------------------------------------

RICH = """
    route add 172.16.0.0/16 via 192.0.2.1 dev eth0 onlink mtu 1400 metric 5 src 10.1.0.4
    route add 172.17.0.0/16 nexthop via 192.0.2.1 dev eth0 onlink weight 4 nexthop via fe80::1 dev ib0 weight 256
    route add 172.18.0.0/16 via fe80::1 dev ib0 table 100000 tos 0x10
    route add 172.19.0.0/16 via fe80::1 dev ib0 onlink
    route add 172.20.0.0/16 via 10.1.0.1
    route add 172.21.0.0/16 dev ib0 table 255
    route add default via 10.1.0.1 dev eth0 metric 4294967295
    route add default dev ib0 table 4294967295
    route add unreachable 1.0.0.0/8 metric 4000000000
    route add prohibit 1.0.0.0/9 table default
    route add blackhole 1.0.0.0/10 mtu 1280
    route add throw 1.2.3.4/32 table 100 proto static
    route add local 1.2.3.5/32 dev lo table local
    route add broadcast 1.2.3.6/32 dev eth0 proto bird
"""  # noqa: E501


def test_written_routes_read_as_iproute2_prints_them(node: NamespaceKernel) -> None:
    written = [route(line.strip().removeprefix("route add ")) for line in RICH.strip().splitlines()]
    play(node, RICH)
    there = {entry.key: entry for entry in read_routes(node)}
    for wanted in written:
        hops = tuple(attrs.evolve(hop, dev=hop.dev or "eth0") for hop in wanted.hops)
        assert there[wanted.key] == attrs.evolve(wanted, hops=hops)
    play(node, "link set ib0 carrier off")
    # Each route's next hops are on lines of their own.
    printed = tool("ip", "-4", "route", "show", "table", "all").replace("\n\t", " ").splitlines()
    assert [str(each).replace("hostrouting", "217") for each in read_routes(node)] == [
        " ".join(line.split()) for line in printed
    ]


def test_a_rule_with_an_unknown_action_drops_packets(kernel: NamespaceKernel) -> None:
    with_preference = rtnl.number_attribute(6, 100)  # FRA_PRIORITY
    body = bytes([socket.AF_INET, 0, 0, 0, 0, 0, 0, 77, 0, 0, 0, 0]) + with_preference
    kernel._change("add a rule", rtnl.RTM_NEWRULE, rtnl.ADD, body)
    assert kernel.facts().rules[1].action is RuleAction.BLACKHOLE
    assert kernel.lookup([GATEWAY])[0].discarded_by is RouteType.BLACKHOLE


def test_a_rule_for_a_dscp_is_read_with_it(kernel: NamespaceKernel) -> None:
    needs_linux(6, 13, "rules for a DSCP")
    assert add_dscp_rule("100", "4", "254") == 0
    rule = kernel.facts().rules[1]
    assert (rule.tos, rule.has_unknown) == (0x10, False)


@pytest.mark.parametrize("kind", ["xresolve", "nat"])
def test_a_route_of_an_unknown_type_drops_packets(node: NamespaceKernel, kind: str) -> None:
    run_ip(f"route add {kind} 198.51.101.0/24 scope nowhere")
    (there,) = (one for one in read_routes(node) if str(one.destination) == "198.51.101.0/24")
    assert (there.type, there.hops) == (RouteType.BLACKHOLE, ())
    (answer,) = node.lookup([IPv4Address("198.51.101.1")])
    assert (answer.route, answer.errno, answer.discarded_by) == (
        None,
        errno.EINVAL,
        RouteType.BLACKHOLE,
    )
    assert [failure.errno for failure in node.write(Write.DELETE, [there])] == [errno.ESRCH]


@pytest.mark.parametrize(
    "ask", [lambda: rtnl.name_of(1), lambda: rtnl.index_of("lo")], ids=["name", "index"]
)
def test_without_file_descriptors_no_interface_is_called_missing(ask: Callable[[], object]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        with pytest.raises(OSError, match="Too many open files"):
            ask()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("name", ["ib\udcff", "ibé"], ids=["latin-1", "utf-8"])
def test_an_interface_name_is_the_same_string_everywhere(node: NamespaceKernel, name: str) -> None:
    node.add_link(name)
    node.add_address(name, "10.3.0.4/24")
    policies = Rule(100, iif=name, table=100), Rule(101, oif=name, table=100)
    for policy in policies:
        node.add_rule(policy)
    (wanted,) = many(1, (NextHop(name, IPv4Address("10.3.0.1")),))
    assert node.write(Write.ADD, [wanted]) == ()
    assert name in {link.name for link in node.facts().links}
    assert name in {address.dev for address in node.facts().addresses}
    assert node.facts().rules[1:3] == policies
    assert wanted in read_routes(node)
    assert node.lookup([wanted.destination[1]])[0].route == wanted
    assert node.write(Write.DELETE, [wanted]) == ()
    if attempt("ip", "link", "add", "name", "br0", "type", "bridge").returncode == 0:
        tool("ip", "link", "set", "br0", "name", f"{name}br")
        tool("ip", "link", "set", "eth0", "master", f"{name}br")
        links = {link.name: link for link in node.facts().links}
        assert links["eth0"].master == f"{name}br"
        assert (links[f"{name}br"].kind, links[f"{name}br"].master) == ("bridge", None)


# --- nexthop objects ------------------------------------------------------------------------------


@pytest.mark.parametrize("compat_mode", ["0", "1"])
def test_routes_have_their_nexthop_objects_hidden_hops(
    node: NamespaceKernel, compat_mode: str
) -> None:
    """tests/kernel/test_snapshots_agree.py compares what is read, for objects of all kinds, with
    what ip prints.
    """
    Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text(compat_mode)
    run_ip(
        "nexthop add id 7 via 10.1.0.1 dev eth0",
        "nexthop add id 8 dev ib0",
        "nexthop add id 9 group 7,3/8",
    )
    play(
        node,
        """
        route add default nhid 9 scope global
        route add 172.16.0.0/16 nhid 7
        route add 172.17.0.0/16 nhid 8 scope link
        get 172.17.1.1 -> 172.17.0.0/16 nhid 8 dev ib0 proto hostrouting scope link
        get 9.9.9.9 -> default nhid 9 proto hostrouting nexthop via 10.1.0.1 dev eth0 weight 3 nexthop dev ib0 weight 1
        """,  # noqa: E501
    )
    assert [(hop.dev, hop.weight) for hop in read_default_routes(node)[0].hops] == [
        ("eth0", 3),
        ("ib0", 1),
    ]
    by_ib0 = [route for route in read_routes(node) if "ib0" in route.devs]
    assert [
        route for route in tuple(node.entries(except_plain(["eth0"]))) if "ib0" in route.devs
    ] == by_ib0
    assert not any(route.nexthop_id == 7 for route in tuple(node.entries(except_plain(["eth0"]))))
    _, single, _ = there = [route for route in read_routes(node) if route.protocol == 217]
    assert (
        len(
            node.write(
                Write.DELETE,
                [attrs.evolve(single, nexthop_id=8), attrs.evolve(single, nexthop_id=None)],
            )
        )
        == 2
    )
    assert node.write(Write.DELETE, there) == ()


def test_a_route_with_a_blackhole_nexthop_object_is_deleted(node: NamespaceKernel) -> None:
    run_ip("nexthop add id 7 blackhole", "route add 172.18.0.0/16 nhid 7 proto 217")
    (discarded,) = [route for route in read_routes(node) if route.nexthop_id == 7]
    assert discarded.type is RouteType.BLACKHOLE
    assert node.write(Write.DELETE, [discarded]) == ()
    assert discarded not in read_routes(node)


def test_a_replaced_nexthop_object_has_its_new_hops(node: NamespaceKernel) -> None:
    Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text("0")
    run_ip("nexthop add id 7 via 10.1.0.1 dev eth0")
    play(node, "route add 172.16.0.0/16 nhid 7")
    play(node, "get 172.16.1.1 -> 172.16.0.0/16 nhid 7 via 10.1.0.1 dev eth0 proto hostrouting")
    run_ip("nexthop replace id 7 dev ib0")
    play(node, "get 172.16.1.1 -> 172.16.0.0/16 nhid 7 dev ib0 proto hostrouting")
    assert [route.devs for route in read_routes(node) if route.nexthop_id == 7] == [("ib0",)]


# --- lookups --------------------------------------------------------------------------------------


def test_each_hop_has_its_source_however_few_the_addresses_are(kernel: NamespaceKernel) -> None:
    """By default, the kernel hashes addresses only, so a single destination always has the same
    hop.
    """
    devs = [f"eth{number}" for number in range(8)]
    hops = tuple(NextHop(dev, IPv4Address(f"10.{part}.0.1")) for part, dev in enumerate(devs, 1))
    route, found = Route(IPv4Network("172.16.0.7/32"), hops), list[object]()
    for each in (kernel, like_linux()):
        for part, dev in enumerate(devs, 1):
            each.add_link(dev)
            each.add_address(dev, f"10.{part}.0.4/24")
        assert each.write(Write.ADD, [route]) == ()
        found.append(each.sources([(route, [IPv4Address("172.16.0.7")] * 2)]))
    assert found == [(tuple(IPv4Address(f"10.{part}.0.4") for part in range(1, 9)),)] * 2


def as_uid(uid: int, function: Callable[[], T]) -> T:
    """Call a function in a thread with a different user ID.

    The raw system call affects only that thread.
    """

    def call() -> T:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
        assert syscall(SETRESUID, uid, uid, uid) == 0, os.strerror(ctypes.get_errno())
        return function()

    return in_thread(call)


SETRESUID = {"x86_64": 117, "aarch64": 147}[os.uname().machine]


def test_every_user_gets_roots_answer(node: NamespaceKernel) -> None:
    skip_without_other_users()
    play(
        node,
        """
        route add default via 10.1.0.1 dev eth0
        route add default via 10.2.0.1 dev ib0 table 100
        rule add pref 100 uidrange 1000-65534 lookup 100
        """,
    )
    address = IPv4Address("8.8.8.8")
    (answer,) = as_uid(65534, lambda: node.lookup([address]))
    assert str(answer.route) == "default via 10.1.0.1 dev eth0 proto hostrouting"
    assert as_uid(65534, lambda: read_routes(node)) == read_routes(node)


# --- writes ---------------------------------------------------------------------------------------


def test_a_device_is_looked_up_again_for_each_batch(node: NamespaceKernel) -> None:
    (wanted,) = many(1, (NextHop("ib0"),))
    assert node.write(Write.ADD, [wanted]) == ()
    before = socket.if_nametoindex("ib0")
    play(node, "link del ib0 \n link add spare \n link add ib0")
    assert socket.if_nametoindex("ib0") != before
    assert node.write(Write.ADD, [wanted]) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"table": 0},
        {"table": 2**32},
        {"metric": -1},
        {"metric": 2**32},
        {"tos": 256},
        {"protocol": 256},
        {"nexthop_id": 2**32},
        {"hops": (NextHop("eth0", GATEWAY, weight=0), NextHop("ib0"))},
        {"hops": (NextHop("eth0", GATEWAY, weight=257), NextHop("ib0"))},
    ],
    ids=str,
)
def test_a_number_too_large_for_a_message_fails_its_route(
    node: NamespaceKernel, change: dict[str, Any]
) -> None:
    good, bad = many(2)
    bad = attrs.evolve(bad, **change)
    # A deletion ignores weights.
    for kind in (Write.ADD, Write.REPLACE, *(() if "hops" in change else (Write.DELETE,))):
        failures = node.write(kind, [bad, good])
        assert (failures[0].route, failures[0].errno) == (bad, errno.EINVAL)
        assert len(failures) == 1


def test_the_zone_of_an_ipv6_gateway_is_dropped(node: NamespaceKernel) -> None:
    (wanted,) = many(1, (NextHop("eth0", IPv6Address("fe80::1%eth0")),))
    assert node.write(Write.ADD, [wanted]) == ()
    assert ours(node) == ["20.0.0.0/24 via inet6 fe80::1 dev eth0 proto hostrouting"]
    assert node.write(Write.DELETE, many(1, (NextHop("eth0", IPv6Address("fe80::1")),))) == ()


def test_a_delete_ignores_scope_source_mtu_and_later_hops(node: NamespaceKernel) -> None:
    hops = (NextHop("eth0", GATEWAY), NextHop("ib0", IPv4Address("10.2.0.1")))
    there = [
        attrs.evolve(many(1, hops)[0], mtu=1400, source=IPv4Address("10.1.0.4")),
        *many(2, (NextHop("ib0"),))[1:],
    ]
    assert node.write(Write.ADD, there) == ()
    asked = [attrs.evolve(many(1)[0], scope=253, mtu=9000), attrs.evolve(there[1], scope=0)]
    assert node.write(Write.DELETE, asked) == ()
    assert ours(node) == []


def test_nothing_to_do_opens_no_socket() -> None:
    class Unconnected(NetlinkBackend):
        def _connect(self) -> Conversation:
            raise AssertionError

    backend = Unconnected()
    assert (
        backend.write(Write.ADD, []),
        backend.write(Write.REPLACE, []),
        backend.write(Write.DELETE, []),
        backend.lookup([]),
    ) == (
        (),
        (),
        (),
        (),
    )


# --- sockets, threads, loops, files ---------------------------------------------------------------


def forge(port: int) -> list[type[OSError]]:
    """Send a forged NLMSG_DONE for each of the socket's first sequence numbers, as root in the
    namespace can do.
    """
    refusals = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as forger:
        forger.bind((0, 0))
        for sequence in range(1, 5):
            end = HEADER.pack(20, rtnl.NLMSG_DONE, 2, sequence, port) + bytes(4)
            try:
                forger.sendto(end, (port, 0))
            except OSError as error:
                refusals.append(type(error))
    return refusals


def test_only_the_kernel_answers(node: NamespaceKernel) -> None:
    with closing(Conversation()) as talk, closing(Listener(everywhere(Family.IPV4))) as listener:
        for asked in (talk, listener):
            assert forge(asked.getsockname()[0]) == [ConnectionRefusedError] * 4
        _, _, body, _ = ADDRESSES[Family.IPV4]
        assert list(talk.dump(rtnl.RTM_GETADDR, body))
        assert not listener.happened()


@pytest.mark.parametrize("length", [0, 4, 15])
def test_a_message_shorter_than_its_header_is_an_error(node: NamespaceKernel, length: int) -> None:
    class Short(Conversation):
        def recv(self, size: int, flags: int = 0) -> bytes:
            return struct.pack("=I", length) + super().recv(size, flags)[4:]

    class Backend(NetlinkBackend):
        def _connect(self) -> Conversation:
            return Short()

    backend = Backend()
    for read in (backend.facts, backend.entries):
        with pytest.raises(RouteError, match="cut short"):
            read()


def test_threads_share_one_backend(node: NamespaceKernel) -> None:
    def work(number: int) -> None:
        routes = [attrs.evolve(there, table=1000 + number) for there in many(60)]
        assert node.write(Write.ADD, routes) == ()
        assert list(read_routes(node, 1000 + number)) == routes
        assert node.write(Write.DELETE, routes) == ()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


@contextmanager
def no_file_left() -> Iterator[None]:
    gc.collect()
    before = set(Path("/proc/self/fd").iterdir())
    yield
    gc.collect()
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_every_file_is_closed(node: NamespaceKernel) -> None:
    bad = many(1, (NextHop("eth0", IPv4Address("10.9.0.1")),))
    with no_file_left():
        for _ in range(3):
            node.facts()
            read_routes(node)
            read_routes(node, 77)
            node.lookup([GATEWAY, IPv4Address("8.8.8.8")])
            node.write(Write.ADD, many(3) + bad)
            node.write(Write.REPLACE, many(3))
            node.write(Write.DELETE, many(3) + bad)
            with pytest.raises(RouteError):
                node.del_link("nope")


def test_a_failed_name_lookup_is_an_error(
    kernel: NamespaceKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_nics(kernel, eth0=NICS["eth0"])

    def refuse(_index: int) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "if_indextoname", refuse)
    with pytest.raises(RouteError) as caught:
        read_routes(kernel)
    assert caught.value.errno == errno.EMFILE


# --- changes --------------------------------------------------------------------------------------

MORE = """
    link add spare
    route add 172.16.0.0/16 via 10.1.0.1 dev eth0
    rule add pref 100 lookup 100
"""


@pytest.fixture
def busy(node: NamespaceKernel) -> NamespaceKernel:
    play(node, MORE)
    return node


def returns(changes: ChangeListener, within: float = 10) -> bool:
    """Return whether a wait for a change returns within the timeout.

    The default is generous for busy machines.
    """
    try:
        changes.wait(CancelScope(timeout=within))
    except TimedOut:
        return False
    return True


def is_quiet(changes: ChangeListener) -> bool:
    """Return whether no change is pending, tolerating one spurious wakeup."""
    return not returns(changes, 0.02) or not returns(changes, 0.02)


CHANGES = {
    "a route is added": "route add 172.17.0.0/16 via 10.1.0.1 dev eth0",
    "a route is deleted": "route del 172.16.0.0/16 via 10.1.0.1 dev eth0",
    "a route in another table": "route add unreachable 172.17.0.0/16 table 1000",
    "a link is added": "link add ib1",
    "a link goes down": "link set spare down",
    "a link is deleted": "link del spare",
    "a lost carrier": "link set spare carrier off",
    "an address is added": "addr add 10.5.0.4/32 dev spare noprefixroute",
    "an address is deleted": "addr del 10.1.0.4/24 dev eth0",
    "a rule is added": "rule add pref 200 lookup 100",
    "a rule is deleted": "rule del pref 100 lookup 100",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_wait_returns_on(busy: NamespaceKernel, change: str) -> None:
    with busy.changes() as changes:
        assert is_quiet(changes)
        play(busy, change)
        assert returns(changes)
        assert is_quiet(changes)


def test_a_wait_returns_on_a_sysctl_that_makes_hops_dead(busy: NamespaceKernel) -> None:
    """The dumps tell nothing of it: only this notification shows that lookups may differ."""
    with busy.changes() as changes:
        assert is_quiet(changes)
        Path("/proc/sys/net/ipv4/conf/spare/ignore_routes_with_linkdown").write_text("1")
        assert returns(changes)


def test_a_wait_returns_on_routes_removed_with_a_nexthop_object(busy: NamespaceKernel) -> None:
    run_ip("nexthop add id 7 via 10.1.0.1 dev eth0")
    play(busy, "route add 172.17.0.0/16 nhid 7")
    with busy.changes() as changes:
        assert is_quiet(changes)
        run_ip("nexthop del id 7")
        assert returns(changes)
    play(busy, "lacks 172.17.0.0/16")


def test_a_cancel_or_a_timeout_ends_a_wait(busy: NamespaceKernel) -> None:
    cancelled = CancelScope()
    cancelled.cancel("enough")
    with busy.changes() as changes:
        assert is_quiet(changes)
        with pytest.raises(Cancelled, match="enough"):
            changes.wait(cancelled)
        with pytest.raises(TimedOut):
            changes.wait(CancelScope(timeout=0.01))


def test_each_thread_sees_each_change(busy: NamespaceKernel) -> None:
    ready = threading.Barrier(4)

    def wait() -> None:
        with busy.changes() as changes:
            ready.wait()
            changes.wait(CancelScope())

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(wait) for _ in range(3)]
        ready.wait()
        busy.add_rule(Rule(300))
        for wait_of_one in waiting:
            wait_of_one.result(timeout=10)


def test_a_look_does_not_hide_a_change_from_the_next_wait(busy: NamespaceKernel) -> None:
    with busy.changes() as changes:
        assert not changes.happened()
        busy.add_rule(Rule(300))
        assert changes.happened()
        assert returns(changes)
        assert is_quiet(changes)
        assert changes.happened()


def test_an_overrun_of_the_socket_counts_as_a_change(busy: NamespaceKernel) -> None:
    routes = many(200)
    with busy.changes() as changes:
        assert isinstance(changes, Listener)
        changes.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        assert is_quiet(changes)
        busy.write(Write.ADD, routes)
        busy.write(Write.DELETE, routes)
        assert is_overrun(changes)
        busy.write(Write.ADD, routes)
        assert returns(changes)
        assert is_quiet(changes)
        busy.add_rule(Rule(300))
        assert returns(changes)


def is_overrun(changes: Listener) -> bool:
    try:
        while changes.recv(1):
            pass
    except BlockingIOError:
        return False
    except OSError as error:
        return error.errno == errno.ENOBUFS
    return False


def test_a_waits_socket_ends_with_the_block(busy: NamespaceKernel) -> None:
    with no_file_left(), busy.changes() as changes:
        returns(changes, 0.01)


def test_a_wait_listens_only_to_what_the_backend_reads(busy: NamespaceKernel) -> None:
    with Listener(everywhere(Family.IPV4)) as changes:
        run_ip(
            "address add fd00::1/64 dev eth0 nodad",
            "neighbour add 10.1.0.9 lladdr 02:00:00:00:00:01 dev eth0",
        )
        assert select.select([changes], [], [], 0.05)[0] == []


# --- reading while others write -------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss", ["link set spare down", "addr del 10.9.0.1/32 dev spare", "link del spare"]
)
def test_a_reader_notices_silently_removed_routes(busy: NamespaceKernel, loss: str) -> None:
    play(busy, "addr add 10.9.0.1/32 dev spare\nroute add 172.17.0.0/16 dev spare")
    lost = IPv4Network("172.17.0.0/16")
    with closing(Listener(everywhere(Family.IPV4))) as listener:
        assert lost in [route.destination for route in read_routes(busy, 254)]
        assert not listener.happened()
        play(busy, loss)
        assert lost not in [route.destination for route in read_routes(busy, 254)]
        assert listener.happened()


# --- a check as a process -------------------------------------------------------------------------

CHECK = """
import sys
import attrs
before = set(sys.modules)
from hostrouting.cli import main
assert main(["check", "--cidr", "10.9.0.0/16"]) == 0
unused = {"pyroute2", "asyncio", "datetime", "logging", "pathlib", "shutil", "subprocess"}
unused |= {"tempfile", "rich", "urllib.parse", "xml", "phases._process"}
ours = ("kernel.fib", "boot.files", "boot.layout", "overlap._fix", "tasks.configure")
unused |= {f"hostrouting.{name}" for name in ours}
unused |= {f"hostrouting.routes.{name}" for name in ("plan", "resolve", "verify")}
loaded = unused & set(sys.modules) - before
assert not loaded, loaded
"""


def test_a_check_loads_only_what_it_uses(node: NamespaceKernel) -> None:
    play(node, "route add default via 10.1.0.1 dev eth0")
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
