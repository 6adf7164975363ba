"""Test that packed messages are read back as written, and no transport fault is misread."""

from __future__ import annotations

import errno
import gc
import random
import socket
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import attrs
import pytest
from nightly import by_day
from node import GATEWAY, PAIR, run_ip
from scenario import play
from test_netlink import BY_ETH0, many

from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.port import Write, read_default_routes, read_routes
from hostrouting.kernel.rtnetlink import conversation
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink.conversation import Conversation
from hostrouting.kernel.rtnetlink.messages import HEADER, Stretch, attribute, number_attribute
from hostrouting.kernel.selection import Selection, except_plain
from hostrouting.kernel.unshare import in_thread
from hostrouting.model.errors import RouteError
from hostrouting.model.integer_prefixes import numbers
from hostrouting.model.parsing import is_inside
from hostrouting.model.routes import NextHop, Route, RouteType, Scope, Table

pytestmark = pytest.mark.kernel

BY_NOBODY = (NextHop("eth0", IPv4Address("10.9.0.1")),)  # refused, as there is no such neighbour


@pytest.fixture
def node(kernel: NamespaceKernel) -> NamespaceKernel:
    play(kernel, f"{PAIR}\nroute add default via 10.1.0.1 dev eth0")
    return kernel


# --- reading what was written ---------------------------------------------------------------------


def mixed(count: int) -> list[Route]:
    """Return routes of many shapes, ordered so that every pair of shapes is adjacent within a
    datagram.
    """
    pick = random.Random(7)
    hops = [
        BY_ETH0,
        (NextHop("ib0", IPv4Address("10.2.0.1")),),
        (NextHop("ib0"),),
        (NextHop("eth0", IPv4Address("192.0.2.1"), onlink=True),),
        (NextHop("eth0", GATEWAY), NextHop("ib0", IPv4Address("10.2.0.1"), weight=3)),
    ]
    found: dict[Any, Route] = {}
    while len(found) < count:
        length = pick.choice((8, 16, 24, 24, 24, 30, 31, 32))
        address = pick.randrange(0x14000000, 0x20000000) >> (32 - length) << (32 - length)
        discards = pick.random() < 0.1
        route = Route(
            IPv4Network((address, length)),
            () if discards else pick.choice(hops[:1] * 8 + hops),
            RouteType.UNREACHABLE if discards else RouteType.UNICAST,
            table=pick.choice((254, 254, 254, 100, 1000)),
            metric=pick.choice((0, 0, 0, 5, pick.randrange(2**32))),
            tos=pick.choice((0, 0, 0, 0, 16)),
            mtu=pick.choice((None, None, None, 1400)),
            source=pick.choice((None, None, IPv4Address("10.1.0.4"))),
        )
        found[route.key] = route
    return list(found.values())


def test_many_entries_are_read_as_they_were_written(node: NamespaceKernel) -> None:
    written = many(300) + mixed(150)
    assert node.write(Write.ADD, written) == ()
    there = read_routes(node)
    assert {*written} <= {*there}
    for table in (100, 254, 255):
        assert read_routes(node, table) == tuple(route for route in there if route.table == table)


def test_entries_that_end_before_a_destination_are_read(node: NamespaceKernel) -> None:
    written = [
        Route(IPv4Network("0.0.0.0/0"), type=RouteType.UNREACHABLE, table=table)
        for table in range(100, 105)
    ]
    assert node.write(Write.ADD, written) == ()
    assert {*written} <= {*read_routes(node)}


# --- unwanted entries are skipped -----------------------------------------------------------------


def is_plain_by_eth0(route: Route) -> bool:
    is_near = route.scope >= Scope.LINK
    is_bare = route.tos == 0 and route.source is None and route.destination.prefixlen > 0
    return route.type is RouteType.UNICAST and is_bare and route.devs == ("eth0",) and not is_near


def test_selective_reads_find_the_same_routes(node: NamespaceKernel) -> None:
    node.write(Write.ADD, many(1000) + mixed(400))
    everything = read_routes(node)
    assert tuple(node.entries(except_plain([]))) == everything
    assert tuple(node.entries(except_plain(["eth0"]))) == tuple(
        route for route in everything if not is_plain_by_eth0(route)
    )
    own = [address.local for address in node.facts().addresses]
    assert tuple(node.entries(except_plain(["eth0", "ib0", "lo"], sources=own))) == tuple(
        route
        for route in everything
        if route.type is not RouteType.UNICAST
        or route.tos
        or route.scope >= Scope.LINK
        or not route.destination.prefixlen
    )
    networks = [
        IPv4Network(text)
        for text in ("20.0.4.0/22", "20.0.5.0/24", "20.4.0.0/24", "24.0.0.0/7", "31.1.2.3")
    ]
    assert tuple(node.entries(except_plain(["eth0"], inside=[*map(numbers, networks)]))) == tuple(
        route
        for route in everything
        if not is_plain_by_eth0(route)
        or any(is_inside(route.destination, network) for network in networks)
    )
    assert tuple(node.entries(except_plain(["eth0"], inside=[(0, 0)]))) == everything
    main = node.entries(Selection(Table.MAIN))
    assert len(main.groups) < 600
    assert tuple(main) == tuple(route for route in everything if route.table == Table.MAIN)


def test_a_selective_read_finds_each_of_many_like_entries(node: NamespaceKernel) -> None:
    """Also those at the ends of the last network, which the run of messages has to reach."""
    networks = [
        part
        for network in ("20.0.1.0/24", "20.0.2.0/24", "20.0.3.0/24")
        for part in IPv4Network(network).subnets(new_prefix=26)
    ]
    assert node.write(Write.ADD, [Route(network, BY_ETH0) for network in networks]) == ()
    everything = read_routes(node)
    for network in networks:
        selection = except_plain(["eth0"], inside=[numbers(network)])
        assert tuple(node.entries(selection)) == tuple(selection.filter(everything))


def test_an_entry_of_the_same_size_leaves_the_others_in_their_groups(
    node: NamespaceKernel,
) -> None:
    # Like our routes with a gateway, these entries with a source take 60 bytes.
    play(
        node,
        """
        route add 19.0.0.0/24 dev eth0 src 10.1.0.4
        route add 31.0.0.0/24 dev eth0 src 10.1.0.4
        """,
    )
    node.write(Write.ADD, many(1000))
    main = node.entries(Selection(Table.MAIN))
    assert tuple(main) == tuple(route for route in read_routes(node) if route.table == Table.MAIN)
    assert len(main) > 1000
    assert len(main.groups) < 12


def test_default_routes_are_found_at_the_head_of_any_table(node: NamespaceKernel) -> None:
    play(
        node,
        """
        route add default via 10.2.0.1 dev ib0 metric 7
        route add unreachable default metric 4000000000
        route add default via 10.2.0.1 dev ib0 tos 0x10
        route add default dev ib0 table 100
        route add 0.0.0.0/8 via 10.1.0.1 dev eth0
        route add 0.0.0.0/1 via 10.1.0.1 dev eth0
        """,
    )
    expected = tuple(
        route for route in read_routes(node, Table.MAIN) if route.destination.prefixlen == 0
    )
    assert len(expected) == 4
    for _ in range(2):
        assert read_default_routes(node) == expected
        node.write(Write.ADD, many(1200))
    read = Counter[str]()

    class Counting(NetlinkBackend):
        def _connect(self) -> Conversation:
            talk = super()._connect()
            receive = talk._receive

            def counted(size: int) -> bytes:
                read["datagrams"] += 1
                return receive(size)

            talk._receive = counted  # type: ignore[method-assign]
            return talk

    assert read_default_routes(Counting()) == expected
    assert read["datagrams"] <= 2
    many_defaults = [
        Route(IPv4Network("0.0.0.0/0"), BY_ETH0, metric=metric) for metric in range(100, 800)
    ]
    node.write(Write.ADD, many_defaults)
    assert len(read_default_routes(node)) == len(expected) + len(many_defaults)


def test_memory_depends_on_the_wanted_routes_alone(node: NamespaceKernel) -> None:
    def peak() -> int:
        gc.collect()  # a tuple from a free list isn't counted
        tracemalloc.start()
        try:
            assert len(tuple(node.entries(except_plain(["eth0"])))) < 20
            assert (
                len(
                    tuple(
                        node.entries(
                            except_plain(["eth0"], inside=[numbers(IPv4Network("20.0.0.0/20"))])
                        )
                    )
                )
                < 50
            )
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    node.write(Write.ADD, many(1000))
    peak()
    before = peak()
    node.write(Write.ADD, many(4000)[1000:])
    assert peak() < 1.2 * before


# --- refusals -------------------------------------------------------------------------------------


def test_each_refusal_among_thousands_names_its_route(node: NamespaceKernel) -> None:
    routes = many(2000)
    for index in range(0, 2000, 7):
        routes[index] = attrs.evolve(routes[index], hops=BY_NOBODY)
    routes[1000:1000] = [
        attrs.evolve(routes[1], mtu=1400),
        attrs.evolve(routes[2], hops=(NextHop("nope"),)),
    ]
    too_long = NextHop("a name that is far too long")
    routes[1002:1002] = [attrs.evolve(routes[3], hops=(*BY_ETH0, too_long))]
    failures = node.write(Write.ADD, routes)
    expected = [
        (route, errno.ENETUNREACH, "Nexthop has invalid gateway")
        for route in routes
        if route.hops is BY_NOBODY
    ]
    odd = [failure for failure in failures if failure.route.hops is not BY_NOBODY]
    assert [
        (failure.route, failure.errno, failure.message)
        for failure in failures
        if failure not in odd
    ] == expected
    assert [(failure.route, failure.errno) for failure in odd] == [
        (routes[1000], errno.EEXIST),
        (routes[1001], errno.ENODEV),
        (routes[1002], errno.ENODEV),
    ]
    position = {id(route): index for index, route in enumerate(routes)}
    order = [position[id(failure.route)] for failure in failures]
    assert order == sorted(order)
    assert len(read_routes(node, Table.MAIN)) == 3 + len(routes) - len(failures)


def test_a_route_with_too_many_hops_is_refused_alone(node: NamespaceKernel) -> None:
    good, bad, better = many(3)
    bad = attrs.evolve(bad, hops=BY_ETH0 * 6000)
    (failure,) = node.write(Write.ADD, [good, bad, better])
    assert (failure.route, failure.errno) == (bad, errno.EINVAL)
    assert {good, better} < set(read_routes(node))


def test_requests_are_sent_in_parts_that_fit_the_socket(node: NamespaceKernel) -> None:
    routes = [attrs.evolve(route, hops=BY_ETH0 * 200) for route in many(60)]
    assert node.write(Write.ADD, routes) == ()
    assert set(routes) < set(read_routes(node))
    assert node.write(Write.DELETE, routes) == ()


# --- transport faults -----------------------------------------------------------------------------


class Faulty(Conversation):
    """A conversation in which one receive, or every receive from then on, is faulty.

    Args:
        fault: the function that alters a datagram.
        at: index of the first faulty datagram.
        for_ever: whether all later datagrams are faulty too.
    """

    def __init__(
        self, fault: Callable[[Faulty, bytes], bytes], at: int, *, for_ever: bool = False
    ) -> None:
        super().__init__()
        self._fault, self._at, self._for_ever = fault, at, for_ever
        self.received = 0
        self.queue: list[bytes] = []

    def recv(self, size: int, flags: int = 0) -> bytes:
        if self.queue:
            return self.queue.pop(0)[:size]
        datagram = super().recv(0x10000, flags)
        count, self.received = self.received, self.received + 1
        is_hit = count >= self._at if self._for_ever else count == self._at
        return (self._fault(self, datagram) if is_hit else datagram)[:size]


def overrun(faulty: Faulty, datagram: bytes) -> bytes:
    """Drop the datagram and report the loss as the kernel does."""
    raise OSError(errno.ENOBUFS, "No buffer space available")


def late_overrun(faulty: Faulty, datagram: bytes) -> bytes:
    faulty.queue.append(datagram)
    raise OSError(errno.ENOBUFS, "No buffer space available")


def broken(faulty: Faulty, datagram: bytes) -> bytes:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def foreign(faulty: Faulty, datagram: bytes) -> bytes:
    """Insert a notification about another program's change, and messages that resemble ours but
    aren't.
    """
    sequence, port = HEADER.unpack_from(datagram)[3:]
    body = (
        struct.pack("=8BI", 2, 32, 0, 0, 254, 3, 0, 6, 0)
        + number_attribute(15, 254)
        + attribute(1, b"\x14\0\0\1")
    )
    refusal = struct.pack("=i", -errno.EPERM) + datagram[:16]
    faulty.queue += [
        HEADER.pack(16 + len(body), rtnl.RTM_NEWROUTE, 0, sequence, port + 1) + body,
        HEADER.pack(16 + len(body), rtnl.RTM_NEWROUTE, 0, 0, 0) + body,
        HEADER.pack(36, rtnl.NLMSG_ERROR, 0, sequence, port + 1) + refusal,
        HEADER.pack(36, rtnl.NLMSG_DONE, 2, sequence + 70_000, port) + refusal,
        datagram,
    ]
    return HEADER.pack(16 + len(body), rtnl.RTM_DELROUTE, 0, 0, port) + body


FAULTS = (overrun, late_overrun, broken, foreign)


class FaultyBackend(NetlinkBackend):
    """A backend in which one conversation is faulty."""

    def __init__(
        self, fault: Callable[[Faulty, bytes], bytes], at: int, *, for_ever: bool = False
    ) -> None:
        super().__init__()
        self._fault: Callable[[], Faulty] | None = lambda: Faulty(fault, at, for_ever=for_ever)
        self._for_ever = for_ever
        self.was_hit = False

    def _connect(self) -> Conversation:
        fault = self._fault
        if fault is None:
            return Conversation()
        if not self._for_ever:
            self._fault = None
        self.faulty = fault()
        return self.faulty


def table(kernel: NetlinkBackend) -> Counter[Route]:
    return Counter(read_routes(kernel))


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit batches to ten messages so that a few messages are enough for several batches."""
    monkeypatch.setattr(conversation, "_BATCH_MAX", 10)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_while_reading_changes_no_result(
    node: NamespaceKernel, fault: Callable[[Faulty, bytes], bytes]
) -> None:
    node.write(Write.ADD, many(900))
    addresses = [route.destination[1] for route in many(12)] + [
        IPv4Address("10.1.0.4"),
        IPv4Address("10.2.0.9"),
    ]
    reads: tuple[Callable[[NetlinkBackend], object], ...] = (
        lambda backend: read_routes(backend),
        lambda backend: tuple(backend.entries(except_plain(["eth0"]))),
        lambda backend: backend.lookup(addresses),
        lambda backend: backend.facts(),
    )
    for read in reads:
        expected = read(node)
        for at in (0, 1, 2, 3, 5, 9, 10)[:: by_day(3, by_night=1)]:
            assert read(FaultyBackend(fault, at)) == expected


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("change", Write)
def test_a_fault_while_writing_names_routes_of_unknown_state(
    node: NamespaceKernel, fault: Callable[[Faulty, bytes], bytes], change: Write
) -> None:
    wanted = many(23)
    for index in (0, 5, 9, 15, 22):
        wanted[index] = attrs.evolve(wanted[index], hops=BY_NOBODY)
    wanted[4:4] = many(5, (NextHop("ib0"),))[4:]  # another route will have its key
    before = many(23)[10:12] if change is Write.ADD else many(22)
    node.write(Write.ADD, before)
    all_failures = node.write(change, wanted)
    expected_table = table(node)
    node.write(Write.DELETE, many(23) + wanted)
    for at in range(0, 9, by_day(3, by_night=1)):
        expected_failures = all_failures
        node.write(Write.ADD, before)
        backend = FaultyBackend(fault, at)
        failures = backend.write(change, wanted)
        assert table(node) == expected_table
        told = {id(failure.route): failure.errno for failure in failures}
        assert len(told) == len(failures)
        for failure in expected_failures:
            assert id(failure.route) in told, f"the state of {failure.route} isn't told as unknown"
            assert told.pop(id(failure.route)) in (failure.errno, errno.ENOBUFS)
        # If a batch is faulty, it is unknown whether the kernel rejected these routes.
        assert set(told.values()) <= {errno.ENOBUFS}
        assert len(told) <= 10
        node.write(Write.DELETE, many(23) + wanted)


def refused(faulty: Faulty, datagram: bytes) -> bytes:
    """Return the end of a dump that the kernel refuses: nothing but NLMSG_DONE with an errno."""
    sequence, port = HEADER.unpack_from(datagram)[3:]
    header = HEADER.pack(20, rtnl.NLMSG_DONE, 2, sequence, port)
    return header + struct.pack("=i", -errno.EACCES)


@pytest.mark.parametrize("read", [read_routes, NetlinkBackend.facts])
def test_a_refused_dump_is_no_empty_table(
    node: NamespaceKernel, read: Callable[[NetlinkBackend], object]
) -> None:
    del node
    with pytest.raises(RouteError, match="Permission denied"):
        read(FaultyBackend(refused, 0, for_ever=True))


def test_a_permanent_fault_is_an_error(node: NamespaceKernel) -> None:
    for fault, reason in ((overrun, "was lost"), (broken, "Cannot allocate memory")):
        backend = FaultyBackend(fault, 1, for_ever=True)
        with pytest.raises(
            RouteError,
            match=f"can't list the routes: .*{reason}.* times over\nhint: try again later",
        ):
            read_routes(backend)
        with pytest.raises(RouteError, match=f"can't look up routes: .*{reason}"):
            backend.lookup([GATEWAY, IPv4Address("10.1.0.2")])
        failures = FaultyBackend(fault, 0, for_ever=True).write(Write.ADD, many(3, BY_NOBODY))
        assert [(failure.route.destination, failure.errno) for failure in failures] == [
            (route.destination, errno.ENOBUFS) for route in many(3)
        ]
        assert "whether the change was made is unknown" in failures[0].message


def test_refusals_beyond_the_sockets_buffer_are_named_or_unknown(node: NamespaceKernel) -> None:
    """The kernel itself drops replies, because the socket's receive buffer is smaller than the
    conversation assumes.
    """

    class Cramped(NetlinkBackend):
        def _connect(self) -> Conversation:
            talk = super()._connect()
            talk.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            return talk

    wanted = many(300, BY_NOBODY)
    wanted[7::10] = many(300)[7::10]
    told = {id(failure.route): failure.errno for failure in Cramped().write(Write.ADD, wanted)}
    refused = [told.pop(id(route)) for route in wanted if route.hops is BY_NOBODY]
    assert set(refused) == {errno.ENETUNREACH, errno.ENOBUFS}
    assert set(told.values()) == {errno.ENOBUFS}
    assert len(read_routes(node, Table.MAIN)) == 3 + 30
    assert read_routes(Cramped()) == read_routes(node)


# --- a table that changes during a dump -----------------------------------------------------------


class Changing(NetlinkBackend):
    """A kernel that runs an action in each of the first ``times`` dumps, after the first part."""

    def __init__(self, times: int, change: Callable[[], object]) -> None:
        super().__init__()
        self.left = times
        self.dumps = 0
        self._change = change

    def _connect(self) -> Conversation:
        talk = super()._connect()
        whole = talk.dump

        def dump(kind: int, body: bytes) -> Iterator[Stretch]:
            self.dumps += 1
            for run in whole(kind, body):
                yield run
                if self.left:
                    self.left -= 1
                    self._change()

        talk.dump = dump  # type: ignore[method-assign]
        return talk


def test_a_changing_table_is_read_again(node: NamespaceKernel) -> None:
    node.write(Write.ADD, many(1000))
    late = IPv4Network("250.0.0.0/24")
    changes: tuple[Callable[[], object], ...] = (
        lambda: node.write(Write.ADD, [Route(late, (NextHop("ib0"),))]),
        lambda: node.write(Write.DELETE, [Route(late, (NextHop("ib0"),))]),
        lambda: node.set_link("ib0", up=False),
    )
    for change in changes:
        backend = Changing(1, change)
        assert read_routes(backend) == read_routes(node)
        assert backend.dumps == 2
    for change in changes[:2]:
        backend = Changing(1, change)
        node.set_link("ib0", up=True)
        assert tuple(backend.entries(except_plain(["eth0"]))) == tuple(
            node.entries(except_plain(["eth0"]))
        )
        assert backend.dumps == 2


def test_an_ever_changing_table_is_still_read(node: NamespaceKernel) -> None:
    node.write(Write.ADD, many(1000))
    one, other = many(1, (NextHop("ib0"),))[0], many(1)[0]

    def change() -> None:
        node.write(Write.REPLACE, [one])
        node.write(Write.REPLACE, [other])

    backend = Changing(10_000, change)
    assert read_routes(backend) == read_routes(node)
    assert backend.dumps == 4
    backend = Changing(10_000, change)
    assert tuple(backend.entries(except_plain(["eth0"]))) == tuple(
        node.entries(except_plain(["eth0"]))
    )
    assert backend.dumps == 4


def interrupt() -> None:
    raise rtnl.DumpInterrupted


def test_an_interrupted_dump_is_read_again_a_few_times(node: NamespaceKernel) -> None:
    assert Changing(5, interrupt).facts() == node.facts()
    assert read_routes(Changing(5, interrupt)) == read_routes(node)
    with pytest.raises(RouteError, match=r"can't list the addresses: they changed .* 32 times"):
        Changing(1000, interrupt)._addresses()


def test_the_kernels_mark_on_an_interrupted_dump_is_obeyed(node: NamespaceKernel) -> None:
    first = IPv4Address("10.6.0.0")
    run_ip(*(f"address add {first + number}/32 dev eth0" for number in range(900)))
    backend = Changing(1, lambda: in_thread(lambda: node.add_address("ib0", "10.5.0.1/32")))
    assert len({address.local for address in backend._addresses()}) == 904
    assert backend.dumps == 2


def test_a_delete_reads_any_number_of_routes_once(node: NamespaceKernel) -> None:
    routes = many(300)
    node.write(Write.ADD, routes)
    counted = Changing(0, interrupt)
    assert counted.write(Write.DELETE, routes) == ()
    assert counted.dumps == 1
