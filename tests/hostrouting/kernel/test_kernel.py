"""Tests for waiting, for decoding a dump, and for the in-memory kernel beyond
tests/kernel/test_facts.py.
"""

from __future__ import annotations

import errno
import struct
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from backends import Altered, listening
from hypothesis import given
from hypothesis import strategies as st
from node import add_nics
from scenario import play
from scenario import route as parsed

import phases
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.nexthops import in_order
from hostrouting.kernel.port import Write, read_routes
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink import route_messages as rtm
from hostrouting.kernel.rtnetlink.entries import RouteReader
from hostrouting.kernel.selection import inside_only
from hostrouting.kernel.waiting import look_until
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family
from hostrouting.model.integer_prefixes import Prefix, PrefixSet
from hostrouting.model.links import Hardware
from hostrouting.model.routes import Protocol, RouteType, Scope, Table
from hostrouting.model.rules import Rule
from phases import CancelScope
from phases.testing import FakeClock

VIA = "172.16.0.0/16 via 10.0.0.254"


@pytest.fixture
def kernel() -> FakeKernel:
    made = FakeKernel()
    add_nics(made, v0="10.0.0.1/24", v1="10.0.1.1/24")
    return made


@pytest.mark.parametrize("tos", [0x01, 0x02, 0x03, 0x1F])
def test_the_tos_of_a_route_has_no_ecn_bits(kernel: FakeKernel, tos: int) -> None:
    play(kernel, f"route add {VIA} dev v0 tos {tos} -> EINVAL")
    play(kernel, f"route add {VIA} dev v0 tos {tos & ~3 or 4}")
    play(kernel, f"route del {VIA} dev v0 tos {tos} -> EINVAL")


@pytest.mark.parametrize("left", ["10.0.0.2/24", "127.0.0.2/8", "127.0.0.1/8", "127.0.0.1/16"])
def test_lo_gets_its_address_when_it_comes_up(left: str) -> None:
    """A random run found this. Older kernels add the address only if lo has no addresses at all."""
    kernel = FakeKernel()
    kernel.del_address("lo", "127.0.0.1/8")
    kernel.add_address("lo", left)
    kernel.set_link("lo", up=False)
    kernel.set_link("lo", up=True)
    addresses = [f"{address.local}/{address.prefix_length}" for address in kernel.facts().addresses]
    blocked = left.endswith("/8")  # EEXIST or EINVAL, because the automatic address has scope host
    assert addresses == ([left] if blocked else ["127.0.0.1/8", left])


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda kernel: kernel.add_link("v0"), errno.EEXIST),
        (lambda kernel: kernel.add_link("v2", master="br0"), errno.ENODEV),
        (lambda kernel: kernel.del_link("lo"), errno.EOPNOTSUPP),
        (lambda kernel: kernel.add_address("v0", "10.0.0.1/24"), errno.EEXIST),
        (lambda kernel: kernel.add_address("lo", "127.0.0.2/8"), errno.EINVAL),
        (lambda kernel: kernel.add_rule(kernel.facts().rules[0]), errno.EEXIST),
        (lambda kernel: kernel.add_rule(Rule(5, table=254, tos=0x11)), errno.EINVAL),
        (lambda kernel: kernel.del_rule(Rule(7)), errno.ENOENT),
    ],
)
def test_a_refused_change_names_the_attempt(kernel: FakeKernel, act: object, expected: int) -> None:
    with pytest.raises(RouteError, match=r"can't (add|set|delete) the ") as caught:
        act(kernel)  # type: ignore[operator]
    assert caught.value.errno == expected


def test_a_link_keeps_its_properties(kernel: FakeKernel) -> None:
    kernel.add_link("br0", kind="bridge")
    kernel.add_link("ib0", kind=None, hardware=Hardware.INFINIBAND, master="br0", up=False)
    link = kernel.facts().links[-1]
    assert (link.kind, link.hardware, link.master, link.is_up, link.has_carrier) == (
        None,
        32,
        "br0",
        False,
        False,
    )
    kernel.del_link("br0")
    assert kernel.facts().links[-1].master is None


def test_a_wait_returns_on_a_change_since_the_last_wait(kernel: FakeKernel) -> None:
    scope = phases.CancelScope(timeout=30)
    with kernel.changes() as changes:
        with pytest.raises(phases.TimedOut):
            changes.wait(scope.child(timeout=0.01))
        changer = threading.Timer(0.01, kernel.set_link, ["v0"], {"carrier": False})
        changer.start()
        changes.wait(scope)
        changer.join()
        kernel.add_address("v0", "10.0.7.1/24")
        changes.wait(scope)
        assert changes.happened()


def test_a_write_without_a_change_wakes_no_thread(kernel: FakeKernel) -> None:
    route = parsed(VIA)
    assert kernel.write(Write.ADD, [route]) == ()
    with kernel.changes() as changes:
        assert kernel.write(Write.REPLACE, [route]) == ()
        kernel.set_link("v0", up=True)
        assert [failure.errno for failure in kernel.write(Write.ADD, [route])] == [errno.EEXIST]
        with pytest.raises(phases.TimedOut):
            changes.wait(phases.CancelScope(timeout=0.01))


def test_threads_may_share_it(kernel: FakeKernel) -> None:
    def write(third: int) -> None:
        play(
            kernel,
            "\n".join(f"route add 172.16.{third}.{fourth} via 10.0.0.254" for fourth in range(32)),
        )

    threads = [threading.Thread(target=write, args=[third]) for third in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([route for route in read_routes(kernel) if route.protocol == 217]) == 8 * 32


LOOK_TAKES_SECONDS, WAIT_SECONDS = 0.1, 10.0


def test_a_flood_gets_at_most_half_the_time() -> None:
    clock, looks = FakeClock(), 0

    def find_missing() -> str:
        nonlocal looks
        looks += 1
        clock.advance(LOOK_TAKES_SECONDS)
        return "the default route"

    restless: Any = Altered(FakeKernel(), changes=listening(CancelScope.check))
    assert (
        look_until(
            restless, CancelScope(clock=clock), clock.monotonic(), WAIT_SECONDS, find_missing
        )
        is not None
    )
    assert 0 < looks <= WAIT_SECONDS / LOOK_TAKES_SECONDS / 2 + 1


# --- entries of a dump ----------------------------------------------------------------------------


# Few bytes differ, and those may be anywhere.
_addresses = st.lists(st.sampled_from((0, 0, 0, 0x20, 0xFD, 0xFF)), min_size=16, max_size=16).map(
    lambda numbers: int.from_bytes(bytes(numbers), "big")
)
_prefixes = st.builds(
    lambda address, length: (address >> (128 - length) << (128 - length), length),
    _addresses,
    st.integers(1, 128),
)


def dumped(prefixes: Sequence[Prefix]) -> rtnl.Stretch:
    """Return a run of messages as the kernel sends them, for entries that differ only in their
    destinations.
    """
    kind, size = rtnl.RTM_NEWROUTE, rtnl.HEADER_BYTES + rtm.BODY.size + 36
    header = rtnl.HEADER.pack(size, kind, 0, 1, 1)
    found = [
        header
        + rtm.BODY.pack(
            Family.IPV6.af, length, 0, 0, Table.MAIN, 217, Scope.UNIVERSE, RouteType.UNICAST, 0
        )
        + rtnl.number_attribute(rtm.RTA_TABLE, Table.MAIN)
        + rtnl.attribute(rtm.RTA_DST, first.to_bytes(16, "big"))
        + struct.pack("=HHI", 8, rtm.RTA_PRIORITY, 1024)
        for first, length in prefixes
    ]
    return rtnl.Stretch(kind, 0, 1, 1, size, b"".join(found))


@given(st.lists(_prefixes, min_size=2, max_size=8), st.integers(0, 7))
def test_the_order_of_a_dump_does_not_matter(prefixes: list[Prefix], inside: int) -> None:
    some = prefixes[inside : inside + 1]
    wanted = inside_only(some, Table.MAIN, Protocol.HOSTROUTING)
    reader = RouteReader(Family.IPV6, dict, tuple, in_order, wanted)
    found = [prefix for _, chosen in reader.groups(dumped(prefixes)) for prefix in chosen]
    assert found == list(filter(PrefixSet(some, Family.IPV6.bits).covers, prefixes))
