"""Entries are decoded from a dump, in whatever order the kernel lists them."""

import struct
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from hostrouting.kernel.nexthops import in_order
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink import wire
from hostrouting.kernel.rtnetlink.entries import RouteReader, Selection
from hostrouting.model.family import Family
from hostrouting.model.prefixes import Prefix, PrefixSet
from hostrouting.model.routes import RouteType, Scope, Table

# Few bytes differ, and those may be anywhere.
_addresses = st.lists(st.sampled_from((0, 0, 0, 0x20, 0xFD, 0xFF)), min_size=16, max_size=16).map(
    lambda numbers: int.from_bytes(bytes(numbers), "big")
)
_prefixes = st.builds(
    lambda address, length: (address >> (128 - length) << (128 - length), length), _addresses, st.integers(1, 128)
)


def dumped(prefixes: Sequence[Prefix]) -> rtnl.Run:
    """Return a run of messages as the kernel sends them, for entries that differ only in their destinations."""
    kind, size = rtnl.RTM_NEWROUTE, rtnl.HEADER_BYTES + wire.BODY.size + 36
    header = rtnl.HEADER.pack(size, kind, 0, 1, 1)
    found = [
        header
        + wire.BODY.pack(Family.IPV6.af, length, 0, 0, Table.MAIN, 217, Scope.UNIVERSE, RouteType.UNICAST, 0)
        + rtnl.number(wire.RTA_TABLE, Table.MAIN)
        + rtnl.attribute(wire.RTA_DST, first.to_bytes(16, "big"))
        + struct.pack("=HHI", 8, wire.RTA_PRIORITY, 1024)
        for first, length in prefixes
    ]
    return rtnl.Run(kind, 0, 1, 1, size, b"".join(found))


@given(st.lists(_prefixes, min_size=2, max_size=8), st.integers(0, 7))
def test_the_order_of_a_dump_does_not_matter(prefixes: list[Prefix], inside: int) -> None:
    some = prefixes[inside : inside + 1]
    reader = RouteReader(Family.IPV6, dict, tuple, in_order, Selection(lambda _: False, some))
    found = [prefix for _, chosen in reader.groups(dumped(prefixes)) for prefix in chosen]
    assert found == list(filter(PrefixSet(some, Family.IPV6.bits).covers, prefixes))
