"""What is asked of the kernel's IPv6 side: addresses, the entries of table main, and single routes of our own.

Bodies of the messages (_messages.py)::

     16       17        18        19    20      21         22      23     24      28
    +--------+---------+---------+-----+-------+----------+-------+------+-------+------------
    | family | dst_len | src_len | tos | table | protocol | scope | type | flags | attributes      struct rtmsg
    +--------+---------+---------+-----+-------+----------+-------+------+-------+------------

     0        2       3      4       8
    +--------+-------+------+-------+------------
    | length | flags | hops | index | attributes           struct rtnexthop, one for each hop of RTA_MULTIPATH
    +--------+-------+------+-------+------------
"""

from __future__ import annotations

import errno as errnos
import socket
import struct
from contextlib import closing
from ipaddress import IPv6Address, IPv6Network
from typing import TYPE_CHECKING

import attrs

from hostrouting.backends import _rtnetlink as rtnl
from hostrouting.backends._attempts import refuse_running_loop, told
from hostrouting.backends._messages import HEADER_BYTES, NO_SENSE, attributes, cut, number, to_number
from hostrouting.backends._pyroute2 import Channel, Request
from hostrouting.backends.netlink import NetlinkBackend
from hostrouting.errors import RouteError
from hostrouting.model import NextHop, RouteType, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.backends._conversation import Conversation
    from hostrouting.backends._pyroute2 import Message

__all__ = ["Ipv6Address", "Ipv6Backend", "Ipv6Route"]

_ADDRESS = struct.Struct("=BBBBI")
_ROUTE = struct.Struct("=BBBBBBBBI")
_HOP = struct.Struct("=HBBi")

# linux/if_addr.h, linux/rtnetlink.h
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_IFA_F_OPTIMISTIC, _IFA_F_DADFAILED, _IFA_F_TENTATIVE = 0x04, 0x08, 0x40
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_MULTIPATH, _RTA_TABLE = 1, 4, 5, 6, 9, 15

# What the look-up answers instead of an entry (rt6_lookup, fib6_rule_action).
_NO_WAY = (errnos.ENETUNREACH, errnos.EHOSTUNREACH, errnos.EACCES, errnos.EINVAL)

_DUMP_ADDRESSES = _ADDRESS.pack(socket.AF_INET6, 0, 0, 0, 0)
_DUMP_MAIN = _ROUTE.pack(socket.AF_INET6, 0, 0, 0, Table.MAIN, 0, 0, 0, 0) + number(_RTA_TABLE, Table.MAIN)


@attrs.frozen
class Ipv6Address:
    """An IPv6 address of this host.

    Args:
        dev: the interface that carries it.
        local: the address.
        scope: how far it is known, 0 for everywhere, unique local ones included (RFC 4193).
        is_usable: it isn't being tried out, and hasn't been found to be somebody else's (RFC 4862); an optimistic one
            (RFC 4429) may be used while it is tried out.
    """

    dev: str
    local: IPv6Address
    scope: int
    is_usable: bool


@attrs.frozen
class Ipv6Route:
    """An entry of table main.

    Args:
        destination: the prefix.
        hops: the next hops; those of a nexthop object where the kernel shows them.
        metric: the lowest wins; 1 at least (IP6_RT_PRIO_USER stands for 0).
        protocol: who installed it.
        type: what happens to a packet.
    """

    destination: IPv6Network
    hops: tuple[NextHop, ...]
    metric: int
    protocol: int
    type: RouteType = RouteType.UNICAST


class Ipv6Backend(NetlinkBackend):
    """The kernel of the network namespace that the calling thread is in: a ``RouteBackend``, with IPv6 besides.

    A kernel without IPv6 has no addresses and no routes of it. All calls raise ``RouteError``.
    """

    def ipv6_addresses(self) -> tuple[Ipv6Address, ...]:
        """All IPv6 addresses of this host."""

        def read(talk: Conversation) -> tuple[Ipv6Address, ...]:
            names = rtnl.Names()
            return tuple(_decode_address(message, names) for message in _dumped(talk, rtnl.RTM_GETADDR))

        return self._read("list the IPv6 addresses", read)

    def ipv6_routes(self) -> tuple[Ipv6Route, ...]:
        """The entries of table main, in the kernel's order."""

        def read(talk: Conversation) -> tuple[Ipv6Route, ...]:
            names = rtnl.Names()
            found = (_decode_route(message, names) for message in _dumped(talk, rtnl.RTM_GETROUTE))
            return tuple(route for route in found if route is not None)

        return self._read("list the IPv6 routes", read)

    def add_ipv6_route(self, route: Ipv6Route) -> None:
        """Add a route with one next hop to table main.

        Raises:
            RouteError: the kernel refused; EEXIST if there is one of that destination and metric.
        """
        self._change("add", rtnl.RTM_NEWROUTE, rtnl.ADD, route)

    def replace_ipv6_route(self, route: Ipv6Route) -> None:
        """Add a route with one next hop to table main, in the place of whatever has its destination and metric.

        Raises:
            RouteError: the kernel refused.
        """
        self._change("replace", rtnl.RTM_NEWROUTE, rtnl.REPLACE, route)

    def delete_ipv6_route(self, route: Ipv6Route) -> None:
        """Delete just this route, which has one next hop, from table main.

        Raises:
            RouteError: the kernel refused; ESRCH if it isn't there.
        """
        self._change("delete", rtnl.RTM_DELROUTE, rtnl.DELETE, route)

    def ipv6_next_hop(self, destination: IPv6Address) -> NextHop | None:
        """Where an unmarked packet of this host to an address goes; None: nowhere, whatever the reason."""
        attempt = f"look up {destination}"
        fields = {"family": socket.AF_INET6, "dst_len": 128}
        request = Request(rtnl.RTM_GETROUTE, rtnl.GET, fields, (("RTA_DST", str(destination)),))
        try:
            answers = self._ask(attempt, request)
        except RouteError as error:
            if error.errno in _NO_WAY:
                return None
            raise
        (answer,) = answers
        index, gateway = answer.get_attr("RTA_OIF"), answer.get_attr("RTA_GATEWAY")
        if answer["type"] != RouteType.UNICAST or not index:
            return None
        return NextHop(rtnl.Names()[index], None if gateway is None else IPv6Address(gateway))

    def _change(self, verb: str, kind: int, flags: int, route: Ipv6Route) -> None:
        (hop,) = route.hops
        attempt = f"{verb} the IPv6 route to {route.destination}"
        try:
            request = _request(kind, flags, route, hop)
        except rtnl.RefusedError as refused:
            raise RouteError(f"can't {attempt}: {refused.message}", errno=refused.errno) from refused
        self._ask(attempt, request)

    @staticmethod
    def _ask(attempt: str, request: Request) -> tuple[Message, ...]:
        refuse_running_loop(attempt)
        with told(attempt):
            channel = Channel()
        with closing(channel):
            try:
                return channel.ask(request)
            except rtnl.RefusedError as refused:
                raise RouteError(f"can't {attempt}: {refused.message}", errno=refused.errno) from refused


def _request(kind: int, flags: int, route: Ipv6Route, hop: NextHop) -> Request:
    fields = {
        "family": socket.AF_INET6,
        "dst_len": route.destination.prefixlen,
        "table": Table.MAIN,
        "proto": route.protocol,
        "type": route.type,
    }
    values: tuple[tuple[str, object], ...] = (
        ("RTA_DST", str(route.destination.network_address)),
        ("RTA_GATEWAY", None if hop.gateway is None else str(hop.gateway)),
        ("RTA_OIF", None if hop.dev is None else rtnl.Indexes()[hop.dev]),
        ("RTA_PRIORITY", route.metric),
    )
    return Request(kind, flags, fields, tuple((name, value) for name, value in values if value is not None))


def _dumped(talk: Conversation, kind: int) -> Iterator[bytes]:
    """The IPv6 messages of a dump; a kernel without IPv6 gives those of all families (rtnl_dump_all)."""
    body = _DUMP_ADDRESSES if kind == rtnl.RTM_GETADDR else _DUMP_MAIN
    for run in talk.dump(kind, body):
        yield from (message for message in cut(run) if message[HEADER_BYTES] == socket.AF_INET6)


def _decode_address(message: bytes, names: rtnl.Names) -> Ipv6Address:
    try:
        _, _, short_flags, scope, index = _ADDRESS.unpack_from(message, HEADER_BYTES)
        found = attributes(message, HEADER_BYTES + _ADDRESS.size)
        # Of a point-to-point address IFA_ADDRESS is the far end.
        local = IPv6Address(found[_IFA_LOCAL] if _IFA_LOCAL in found else found[_IFA_ADDRESS])
    except (struct.error, KeyError, ValueError) as error:
        raise rtnl.AgainError(NO_SENSE) from error
    flags = to_number(found.get(_IFA_FLAGS, b"")) or short_flags
    is_tried_out = bool(flags & _IFA_F_TENTATIVE) and not flags & _IFA_F_OPTIMISTIC
    return Ipv6Address(names[index], local, scope, is_usable=not is_tried_out and not flags & _IFA_F_DADFAILED)


def _decode_route(message: bytes, names: rtnl.Names) -> Ipv6Route | None:
    """An entry of table main; None for one of another table, or for some sources only, or of the kernel's cache."""
    try:
        _, length, source_length, _, short_table, protocol, _, kind, flags = _ROUTE.unpack_from(message, HEADER_BYTES)
        found = attributes(message, HEADER_BYTES + _ROUTE.size)
        table = to_number(found.get(_RTA_TABLE, b"")) or short_table
        if table != Table.MAIN or source_length or flags & rtnl.RTM_F_CLONED:
            return None
        hops = tuple(_decode_hops(found, flags, names))
        destination = IPv6Network((found.get(_RTA_DST, bytes(16)), length))
        return Ipv6Route(destination, hops, to_number(found.get(_RTA_PRIORITY, b"")), protocol, RouteType(kind))
    except (struct.error, ValueError) as error:
        raise rtnl.AgainError(NO_SENSE) from error


def _decode_hops(found: dict[int, bytes], flags: int, names: rtnl.Names) -> Iterator[NextHop]:
    several = found.get(_RTA_MULTIPATH)
    if several is None:
        # An entry that uses a nexthop object has neither where net.ipv4.nexthop_compat_mode is off.
        if _RTA_OIF in found or _RTA_GATEWAY in found:
            yield _hop(found, to_number(found.get(_RTA_OIF, b"")), flags, names)
        return
    start = 0
    while start + _HOP.size <= len(several):
        length, hop_flags, _, index = _HOP.unpack_from(several, start)
        if length < _HOP.size:
            raise rtnl.AgainError(NO_SENSE)
        yield _hop(attributes(several[start + _HOP.size : start + length]), index, hop_flags, names)
        start += (length + 3) & ~3


def _hop(found: dict[int, bytes], index: int, flags: int, names: rtnl.Names) -> NextHop:
    gateway = found.get(_RTA_GATEWAY)
    return NextHop(
        dev=names[index] if index else None,
        gateway=None if gateway is None else IPv6Address(gateway),
        is_dead=bool(flags & rtnl.RTNH_F_DEAD),
        is_linkdown=bool(flags & rtnl.RTNH_F_LINKDOWN),
    )
