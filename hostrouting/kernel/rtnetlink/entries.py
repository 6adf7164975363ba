"""Decode FIB entries (see route_messages.py for the format), hundreds at a time if they are alike.

Most entries in a large table differ only in their destinations. So ``groups`` copies the messages,
sets the destinations in the copies to zero, and compares the copies. Of each run of equal copies,
only one is decoded, and its attributes are used for all entries of the run.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from ipaddress import IPv6Network, ip_address, ip_network
from itertools import pairwise
from typing import Any

import attrs

from hostrouting.kernel.nexthops import with_hops, with_shares
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink import route_messages as rtm
from hostrouting.kernel.rtnetlink.messages import HEADER_BYTES, Stretch, attributes, to_number
from hostrouting.kernel.selection import Group, Selection, copier
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, numbers
from hostrouting.model.routes import (
    BY_DEVICE,
    NextHop,
    NexthopObject,
    Preference,
    Route,
    Route6,
    RouteType,
)
from hostrouting.model.values import frozen

# Offsets within an entry's message: the prefix length, the RTA_DST header and the address.
_LENGTH_AT = 17
_DST_HEADER_AT = slice(36, 40)
_ADDRESS_AT = 40
_EXPIRES = struct.Struct("=8xi")  # in struct rta_cacheinfo, in clock ticks
_TICKS = os.sysconf("SC_CLK_TCK")  # per second

_KEPT_MAX = 4096  # limits the cache if each entry has other attributes


@frozen
class Attributes:
    """The attributes of entries that differ only in their destinations.

    Args:
        entry: a template: an entry with these attributes, and any destination.
        copy: a function that copies the template with another destination.
        is_wanted: whether the selection wants these entries, whatever their destinations are.
    """

    entry: Route
    copy: Callable[[IpNetwork], Route] = attrs.field(eq=False)
    is_wanted: bool = attrs.field(eq=False)


@attrs.define(eq=False, repr=False)
class RouteReader:
    """A decoder for entries. To save memory, it doesn't create objects for unwanted entries.

    Args:
        family: the address family of the entries.
        nexthops: a function that returns all nexthop objects by ID. The function is called for an
            entry that the kernel sends without hops.
        devs_with_shares: a function that returns the interfaces without a carrier whose hops may
            still get packets.
        arrange: a function that returns the next hops of an IPv6 entry in the wanted order.
        selection: the entries to decode.
        is_for_lookups: whether the entries come from lookups, not from dumps.
    """

    _family: Family
    _nexthops: Callable[[], Mapping[int, NexthopObject]]
    _devs_with_shares: Callable[[], Container[str]]
    _arrange: Callable[[Iterable[NextHop]], tuple[NextHop, ...]]
    _selection: Selection
    _is_for_lookups: bool = False
    _names: rtnl.Names = attrs.field(factory=lambda: functools.cache(rtnl.name_of), init=False)
    _known: dict[bytes, Attributes] = attrs.field(factory=dict, init=False)
    _inside: PrefixSet = attrs.field(init=False)
    _any: bytes = attrs.field(init=False)
    _address: slice = attrs.field(init=False)
    _dst_header: bytes = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._inside = PrefixSet(self._selection.inside, self._family.bits)
        self._any = bytes(self._family.bits // 8)
        self._address = slice(_ADDRESS_AT, _ADDRESS_AT + len(self._any))
        self._dst_header = struct.pack("=HH", 4 + len(self._any), rtm.RTA_DST)

    def single(self, message: bytes) -> tuple[Attributes, Prefix]:
        """Decode an entry, even an unwanted one, and return its attributes and destination.

        Raises:
            DumpInterrupted: the entry's interface is gone.
        """
        if message[_DST_HEADER_AT] != self._dst_header:
            common = self._attributes(message[HEADER_BYTES:])
            return common, numbers(common.entry.destination)
        address = self._address
        common = self._attributes(
            message[HEADER_BYTES : address.start] + self._any + message[address.stop :]
        )
        return common, (int.from_bytes(message[address], "big"), message[_LENGTH_AT])

    def first_of_last_destination(self, stretch: Stretch) -> int:
        """Return the destination's first address in the last message of a stretch."""
        _, (first, _) = self.single(stretch.messages[-stretch.step :])
        return first

    def groups(self, stretch: Stretch) -> list[Group]:
        """Decode the wanted entries in a stretch of messages, in order.

        Raises:
            DumpInterrupted: an entry's interface is gone.
        """
        block = stretch.messages
        length = stretch.length
        # A message without a destination may even end before the place of one.
        has_several = stretch.step == length < len(block)
        if not has_several or length < self._address.stop:
            return [*self._one_by_one(block, stretch)]
        groups: list[Group] = []
        for blank, run in self._runs(block, length):
            if len(run) > length and blank[_DST_HEADER_AT] == self._dst_header:
                groups += self._alike(run, length, self._attributes(blank[HEADER_BYTES:]))
            else:
                groups += self._one_by_one(run, stretch)
        return groups

    def _one_by_one(self, block: bytes, stretch: Stretch) -> Iterator[Group]:
        """Yield the wanted entries among a stretch's messages in a block."""
        for at in range(0, len(block), stretch.step):
            common, prefix = self.single(block[at : at + stretch.length])
            yield from self._wanted(common, [prefix])

    def _runs(self, block: bytes, length: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the runs of a block's messages that differ only in the destination.

        Before each run, its first message is yielded with a zeroed destination.
        """
        # Zero one byte position in all messages at a time.
        blanked = bytearray(block)
        zeros = bytes(len(block) // length)
        for column in (_LENGTH_AT, *range(self._address.start, self._address.stop)):
            blanked[column::length] = zeros
        first = bytes(blanked[:length])
        if blanked == first * len(zeros):
            yield first, block
            return
        starts = [
            at
            for at in range(0, len(block), length)
            if blanked[at : at + length] != blanked[at - length : at]
        ]
        for start, end in pairwise((*starts, len(block))):
            yield bytes(blanked[start : start + length]), block[start:end]

    def _alike(self, block: bytes, length: int, common: Attributes) -> list[Group]:
        """Return the wanted entries of a block of messages that differ only in the destination."""
        layout = _layout(self._family, length)
        if not common.is_wanted and not self._inside.overlaps(*self._bounds(block, length)):
            return []
        if self._family is Family.IPV4:
            return self._wanted(
                common,
                [(first, bits) for bits, first in layout.iter_unpack(block)],
            )
        return self._wanted(
            common,
            [(high << 64 | low, bits) for bits, high, low in layout.iter_unpack(block)],
        )

    def _bounds(self, block: bytes, length: int) -> tuple[int, int]:
        """Return a lower and an upper bound for the first addresses of a block's entries."""
        # The addresses may be in any order. Each bound begins with the leading bytes that all
        # addresses share, and goes on with the smallest or largest next byte. If the addresses are
        # equal, their last byte is the next byte.
        address = self._address
        at = address.start
        while at < address.stop - 1 and _are_equal(block[at::length]):
            at += 1
        shared = block[address.start : at]
        next_bytes = {*block[at::length]}
        size = len(self._any)
        low = (shared + bytes([min(next_bytes)])).ljust(size, b"\0")
        high = (shared + bytes([max(next_bytes)])).ljust(size, b"\xff")
        return int.from_bytes(low, "big"), int.from_bytes(high, "big")

    def _wanted(self, common: Attributes, prefixes: list[Prefix]) -> list[Group]:
        """Return a group with the wanted entries, or no group if none is wanted.

        Args:
            common: the attributes of the entries.
            prefixes: the destinations of the entries.
        """
        if not common.is_wanted:
            # Default routes, and entries inside the selection's prefixes, are always wanted.
            prefixes = [
                prefix for prefix in prefixes if not prefix[1] or self._inside.covers(prefix)
            ]
        return [(common.entry, prefixes)] if prefixes else []

    def _attributes(self, body: bytes) -> Attributes:
        """Decode the body of an entry, whose destination may be zeroed."""
        common = self._known.get(body)
        if common is not None:
            return common
        route = with_shares(
            with_hops(self._decode(body), self._nexthops),
            lambda dev: dev in self._devs_with_shares(),
        )
        if len(self._known) >= _KEPT_MAX:
            self._known.clear()
        common = self._known[body] = Attributes(
            route,
            copier(route),
            not self._selection.is_omitted(route),
        )
        return common

    def _decode(self, body: bytes) -> Route:
        """Decode an entry from a dump or from a lookup with RTM_F_FIB_MATCH.

        The message isn't a cached exception, such as a redirect, because the kernel dumps those
        only on request (ip_valid_fib_dump_req).
        """
        _, length, source_length, tos, table, protocol, scope, kind, flags = rtm.BODY.unpack_from(
            body
        )
        found = attributes(body, rtm.BODY.size)
        metrics = attributes(found.get(rtm.RTA_METRICS, b""))
        # For a discarding entry, the kernel may show lo as the device, but sends no packet through
        # lo.
        hops = () if kind >= RouteType.BLACKHOLE else decode_hops(flags, found, self._names)
        fields: dict[str, Any] = {
            "destination": ip_network((found.get(rtm.RTA_DST, self._any), length)),
            "type": RouteType(kind),
            "table": to_number(found.get(rtm.RTA_TABLE, b"")) or table,
            "protocol": protocol,
            "metric": to_number(found.get(rtm.RTA_PRIORITY, b"")),
            "source": ip_address(found[rtm.RTA_PREFSRC]) if rtm.RTA_PREFSRC in found else None,
            "mtu": to_number(metrics[rtm.RTAX_MTU]) if rtm.RTAX_MTU in metrics else None,
            "nexthop_id": to_number(found[rtm.RTA_NH_ID]) if rtm.RTA_NH_ID in found else None,
        }
        if self._family is Family.IPV4:
            return Route(
                hops=hops,
                scope=scope,
                tos=tos,
                **fields,
            )
        return self._decode6(found, hops, source_length, fields)

    def _decode6(
        self,
        found: dict[int, bytes],
        hops: tuple[NextHop, ...],
        source_length: int,
        fields: dict[str, Any],
    ) -> Route6:
        # The kernel ignores an expired entry, and removes it later (fib6_check_expired, fib6_age).
        # The exception is an expired hop of a route with another hop that hasn't expired: the
        # kernel still uses it (fib6_select_path), so a lookup may return it.
        expires = _decode_lifetime(found.get(rtm.RTA_CACHEINFO))
        is_expired = expires is not None and expires <= 0
        if is_expired and self._is_for_lookups:
            expires = None
            is_expired = False
        if is_expired:
            hops = tuple(attrs.evolve(hop, is_dead=True) for hop in hops)
        source_prefix = None
        if source_length:
            source_prefix = IPv6Network((found[rtm.RTA_SRC], source_length))
        # Each next hop of a multipath route has its own preference, but the message shows only one
        # hop's (rt6_fill_node). So ignore the preference.
        preference = 0
        if rtm.RTA_MULTIPATH not in found:
            preference = to_number(found.get(rtm.RTA_PREF, b""))
        return Route6(
            hops=self._arrange(hops),
            source_prefix=source_prefix,
            preference=Preference(preference),
            expires=expires,
            **fields,
        )


def _are_equal(column: bytes) -> bool:
    return column.count(column[0]) == len(column)


def _decode_lifetime(found: bytes | None) -> int | None:
    """Return the seconds until an entry expires, rounded up; None if it doesn't expire."""
    ticks = 0 if found is None else _EXPIRES.unpack_from(found)[0]
    return -(-ticks // _TICKS) if ticks else None


@functools.cache
def _layout(family: Family, length: int) -> struct.Struct:
    """Return a struct that unpacks a prefix length and an address (for IPv6, two 64-bit words)."""
    words = "I" if family is Family.IPV4 else "QQ"
    between = _ADDRESS_AT - _LENGTH_AT - 1
    rest = length - _ADDRESS_AT - family.bits // 8
    return struct.Struct(f">{_LENGTH_AT}xB{between}x{words}{rest}x")


def decode_hops(flags: int, found: dict[int, bytes], names: rtnl.Names) -> tuple[NextHop, ...]:
    """Decode an entry's hops from its rtm_flags and attributes."""
    if rtm.RTA_MULTIPATH in found:
        return tuple(_decode_several(found[rtm.RTA_MULTIPATH], names))
    hop = _decode_hop(flags, 1, to_number(found.get(rtm.RTA_OIF, b"")), found, names)
    return () if hop.dev is None and hop.gateway is None else (hop,)


def _decode_several(hops: bytes, names: rtnl.Names) -> Iterator[NextHop]:
    at = 0
    while at < len(hops):
        length, flags, extra_weight, oif = rtm.HOP.unpack_from(hops, at)
        yield _decode_hop(
            flags,
            extra_weight + 1,
            oif,
            attributes(hops[at : at + length], rtm.HOP.size),
            names,
        )
        at += (length + 3) & ~3


def _decode_hop(
    flags: int,
    weight: int,
    oif: int,
    found: dict[int, bytes],
    names: rtnl.Names,
) -> NextHop:
    # The kernel uses RTA_GATEWAY for gateways in the route's own address family, and RTA_VIA for
    # others (fib_nexthop_info).
    gateway = found.get(rtm.RTA_GATEWAY, found.get(rtm.RTA_VIA, b"")[rtm.VIA_FAMILY.size :])
    encap = found.get(rtm.RTA_ENCAP_TYPE)
    word = "" if encap is None else rtm.ENCAP_WORDS.get(to_number(encap), "unknown")
    return NextHop(
        dev=names(oif) if oif else None,
        gateway=ip_address(gateway) if gateway else None,
        onlink=bool(flags & rtnl.RTNH_F_ONLINK),
        weight=weight,
        is_dead=bool(flags & rtnl.RTNH_F_DEAD),
        is_linkdown=bool(flags & rtnl.RTNH_F_LINKDOWN),
        encap="" if word in BY_DEVICE else word,
    )
