"""Read entries of the FIB from the bytes that wire.py describes, hundreds at a time if they are alike.

Most entries of a large table differ only in their destinations. If those bytes are replaced with zeros, all messages of
a datagram are the same, which one comparison shows. The message is then decoded once, and the routes share the result.
Entries that look different are read one by one. Both ways use ``_decode``, so they give the same result.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import NamedTuple

import attrs

from hostrouting.kernel.nexthops import with_hops, with_shares
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink import wire
from hostrouting.kernel.rtnetlink.messages import HEADER_BYTES, Run, attributes, to_number
from hostrouting.model.prefixes import Prefix, PrefixSet, numbers
from hostrouting.model.routes import BY_DEVICE, NextHop, NexthopObject, Route, RouteType

# The position of the destination in an entry: the prefix length, the header of wire.RTA_DST, and the address.
_LENGTH_AT, _DST_HEADER, _ADDRESS = 17, slice(36, 40), slice(40, 44)
_OWN_COLUMNS = (_LENGTH_AT, *range(_ADDRESS.start, _ADDRESS.stop))
_HAS_DST = struct.pack("=HH", 8, wire.RTA_DST)

_ANY = bytes(4)

_KEPT_MAX = 4096  # in case each entry differs


class Attributes(NamedTuple):
    """The common part of entries, given as an entry whose destination doesn't count."""

    entry: Route
    is_wanted: bool


# The common part of entries, given as an entry whose destination doesn't count, and all of their destinations.
Group = tuple[Route, Sequence[Prefix]]


@attrs.define(eq=False, repr=False)
class RouteReader:
    """A reader of entries, which doesn't create values for unwanted entries and so saves memory.

    Args:
        names: the names of the interfaces.
        nexthops: a function that returns all nexthop objects. It is called for an entry that is shown without its hops.
        is_wanted: a function that returns whether all entries with the attributes of a given entry are wanted. The
            destination of that entry is 0.0.0.0/0 and doesn't count.
        inside: the prefixes in which all entries are wanted, whatever their attributes.
    """

    _names: rtnl.Names
    _nexthops: Callable[[], Mapping[int, NexthopObject]]
    _is_wanted: Callable[[Route], bool]
    _inside: PrefixSet
    _known: dict[bytes, Attributes] = attrs.field(factory=dict, init=False)

    def entry(self, message: bytes) -> Route:
        """Read an entry, whether it is wanted or not.

        Raises:
            DumpInterrupted: the interface of the entry is gone.
        """
        common, prefix = self._single(message)
        return attrs.evolve(common.entry, destination=IPv4Network(prefix))

    def groups(self, run: Run) -> list[Group]:
        """Read the wanted entries from a part of a dump, in order.

        Raises:
            DumpInterrupted: the interface of an entry is gone.
        """
        block, length, step = run.messages, run.length, (run.length + 3) & ~3
        if step == length < len(block) and block[_DST_HEADER] == _HAS_DST:
            blanked = bytearray(block)
            zeros = bytes(len(block) // length)
            for column in _OWN_COLUMNS:
                blanked[column::length] = zeros
            first = bytes(blanked[:length])
            if blanked == first * len(zeros):
                return self._alike(block, length, self._attributes(first[HEADER_BYTES:]))
        singles = (self._single(block[at : at + length]) for at in range(0, len(block), step))
        return [group for common, prefix in singles for group in self._chosen(common, [prefix])]

    def _alike(self, block: bytes, length: int, common: Attributes) -> list[Group]:
        """Return the wanted entries of a block in which only the destinations differ."""
        layout = _prefixes(length)
        if not common.is_wanted:
            # The kernel walks a table in address order (leaf_walk_rcu), and resumes at an address.
            (_, first), (_, last) = layout.unpack_from(block), layout.unpack_from(block, len(block) - length)
            if not self._inside.overlaps(first, last):
                return []
        return self._chosen(common, [(first, bits) for bits, first in layout.iter_unpack(block)])

    def _single(self, message: bytes) -> tuple[Attributes, Prefix]:
        if message[_DST_HEADER] == _HAS_DST:
            common = self._attributes(message[HEADER_BYTES : _ADDRESS.start] + _ANY + message[_ADDRESS.stop :])
            return common, (int.from_bytes(message[_ADDRESS], "big"), message[_LENGTH_AT])
        common = self._attributes(message[HEADER_BYTES:])
        return common, numbers(common.entry.destination)

    def _chosen(self, common: Attributes, prefixes: list[Prefix]) -> list[Group]:
        if not common.is_wanted:
            prefixes = [prefix for prefix in prefixes if self._inside.covers(prefix)]
        return [(common.entry, prefixes)] if prefixes else []

    def _attributes(self, body: bytes) -> Attributes:
        """Read the body of an entry, which may have a blank destination."""
        common = self._known.get(body)
        if common is not None:
            return common
        route = with_shares(with_hops(_decode(body, self._names), self._nexthops), rtnl.lacks_carrier)
        if len(self._known) >= _KEPT_MAX:
            self._known.clear()
        common = self._known[body] = Attributes(route, self._is_wanted(route))
        return common


def routes_of(groups: Iterable[Group]) -> tuple[Route, ...]:
    """Return the entries of the groups."""
    return tuple(
        attrs.evolve(entry, destination=IPv4Network(prefix)) for entry, prefixes in groups for prefix in prefixes
    )


@functools.cache
def _prefixes(length: int) -> struct.Struct:
    """Return the layout of the prefix length and address in an entry."""
    return struct.Struct(f">{_LENGTH_AT}xB{_ADDRESS.start - _LENGTH_AT - 1}xI{length - _ADDRESS.stop}x")


def _decode(body: bytes, names: rtnl.Names) -> Route:
    """Decode one entry of the FIB, from a dump or from a lookup with RTM_F_FIB_MATCH.

    The kernel sends cached exceptions to an entry only on request (ip_valid_fib_dump_req in net/ipv4/fib_frontend.c).
    """
    _, length, _, tos, table, protocol, scope, kind, flags = wire.BODY.unpack_from(body)
    found = attributes(body, wire.BODY.size)
    metrics = attributes(found.get(wire.RTA_METRICS, b""))
    source = found.get(wire.RTA_PREFSRC)
    return Route(
        destination=IPv4Network((found.get(wire.RTA_DST, _ANY), length)),
        # A blackhole route with a nexthop object shows lo, but no packet uses it.
        hops=() if kind >= RouteType.BLACKHOLE else _decode_hops(flags, found, names),
        type=RouteType(kind),
        table=to_number(found.get(wire.RTA_TABLE, b"")) or table,
        protocol=protocol,
        scope=scope,
        metric=to_number(found.get(wire.RTA_PRIORITY, b"")),
        tos=tos,
        source=IPv4Address(source) if source is not None else None,
        mtu=to_number(metrics[wire.RTAX_MTU]) if wire.RTAX_MTU in metrics else None,
        nexthop_id=to_number(found[wire.RTA_NH_ID]) if wire.RTA_NH_ID in found else None,
    )


def _decode_hops(flags: int, found: dict[int, bytes], names: rtnl.Names) -> tuple[NextHop, ...]:
    """Return the hops of an entry from its rtm_flags and attributes."""
    several = found.get(wire.RTA_MULTIPATH)
    if several is not None:
        return tuple(_decode_several(several, names))
    gateway, oif, encap = _decode_gateway(found), found.get(wire.RTA_OIF), found.get(wire.RTA_ENCAP_TYPE)
    if oif is None and gateway is None:
        return ()
    return (decode_hop(flags, 1, to_number(oif or b""), gateway, encap, names),)


def _decode_several(hops: bytes, names: rtnl.Names) -> Iterator[NextHop]:
    at = 0
    while at < len(hops):
        length, flags, extra_weight, oif = wire.HOP.unpack_from(hops, at)
        found = attributes(hops[at : at + length], wire.HOP.size)
        encap = found.get(wire.RTA_ENCAP_TYPE)
        yield decode_hop(flags, extra_weight + 1, oif, _decode_gateway(found), encap, names)
        at += (length + 3) & ~3


def decode_hop(
    flags: int,
    weight: int,
    oif: int,
    gateway: IPv4Address | IPv6Address | None,
    encap: bytes | None,
    names: rtnl.Names,
) -> NextHop:
    """Return a hop, given its flags, weight, interface, gateway and type of encapsulation."""
    word = "" if encap is None else wire.ENCAP_WORDS.get(to_number(encap), "unknown")
    return NextHop(
        dev=names[oif] if oif else None,
        gateway=gateway,
        onlink=bool(flags & rtnl.RTNH_F_ONLINK),
        weight=weight,
        is_dead=bool(flags & rtnl.RTNH_F_DEAD),
        is_linkdown=bool(flags & rtnl.RTNH_F_LINKDOWN),
        encap="" if word in BY_DEVICE else word,
    )


def _decode_gateway(found: dict[int, bytes]) -> IPv4Address | IPv6Address | None:
    # The kernel uses one attribute for gateways of the same family as the route, and another one for other families
    # (fib_nexthop_info).
    if wire.RTA_GATEWAY in found:
        return IPv4Address(found[wire.RTA_GATEWAY])
    via = found.get(wire.RTA_VIA)
    return None if via is None else IPv6Address(via[wire.VIA_FAMILY.size :])
