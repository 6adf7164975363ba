"""What is asked of the kernel's IPv6 side: addresses, routes of every table, and single routes of our own.

Links and addresses are drawn in _linkmessages.py, routes in wire.py.
"""

from __future__ import annotations

import errno as errnos
import socket
import struct
from ipaddress import IPv6Address, IPv6Network
from typing import TYPE_CHECKING

import attrs

from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.rtnetlink import constants as rtnl
from hostrouting.kernel.rtnetlink import wire
from hostrouting.kernel.rtnetlink.entries import decode_hops
from hostrouting.kernel.rtnetlink.links import ADDRESS, IFA_ADDRESS, IFA_FLAGS, IFA_LOCAL
from hostrouting.kernel.rtnetlink.messages import (
    HEADER_BYTES,
    NO_SENSE,
    attribute,
    attributes,
    number,
    request,
    to_number,
)
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import NextHop, RouteType, Table
from hostrouting.model.uncollected import uncollected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostrouting.kernel.rtnetlink.conversation import Conversation
    from hostrouting.kernel.rtnetlink.nexthops import HiddenHops

__all__ = ["Ipv6Address", "Ipv6Backend", "Ipv6Route", "pack_ipv6_route"]

# linux/if_addr.h
_IFA_F_OPTIMISTIC, _IFA_F_DADFAILED, _IFA_F_TENTATIVE = 0x04, 0x08, 0x40

_BITS = 128

# What the look-up answers instead of an entry (rt6_lookup, fib6_rule_action).
_NO_WAY = (errnos.ENETUNREACH, errnos.EHOSTUNREACH, errnos.EACCES, errnos.EINVAL)


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
    """An entry of a table.

    Args:
        destination: the prefix.
        hops: the next hops, be they those of a nexthop object.
        metric: the lowest wins; 1 at least (IP6_RT_PRIO_USER stands for 0).
        protocol: who installed it.
        type: what happens to a packet.
        table: its number.
        nexthop_id: of the nexthop object that it uses.
        has_source: whether it is for packets of some sources only.
    """

    destination: IPv6Network
    hops: tuple[NextHop, ...]
    metric: int
    protocol: int
    type: RouteType = RouteType.UNICAST
    table: int = Table.MAIN
    nexthop_id: int | None = None
    has_source: bool = False


class Ipv6Backend(NetlinkBackend):
    """The kernel of the network namespace that the calling thread is in: a ``RouteBackend``, with IPv6 besides.

    A kernel without IPv6 has no addresses and no routes of it. All calls raise ``RouteError``.
    """

    def ipv6_addresses(self) -> tuple[Ipv6Address, ...]:
        """All IPv6 addresses of this host."""
        body = ADDRESS.pack(socket.AF_INET6, 0, 0, 0, 0)

        def read(talk: Conversation) -> tuple[Ipv6Address, ...]:
            names = rtnl.Names()
            return tuple(_decode_address(message, names) for message in _dumped(talk, rtnl.RTM_GETADDR, body))

        return self._read("list the IPv6 addresses", read)

    def ipv6_routes(self, table: int | None = None) -> tuple[Ipv6Route, ...]:
        """The entries of a table, in the kernel's order; of every table, if none is named."""
        body = wire.BODY.pack(socket.AF_INET6, 0, 0, 0, 0, 0, 0, 0, 0)
        body += b"" if table is None else number(wire.RTA_TABLE, table)

        def read(talk: Conversation) -> tuple[Ipv6Route, ...]:
            names, hidden_hops = rtnl.Names(), self._hidden_hops()
            messages = _dumped(talk, rtnl.RTM_GETROUTE, body)
            found = (_decode_route(message, names, hidden_hops) for message in messages)
            with uncollected():
                return tuple(route for route in found if table in (None, route.table))

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

        def read(talk: Conversation) -> NextHop | None:
            ((_, (answer,)),) = talk.ask(rtnl.RTM_GETROUTE, (destination,), _look_up)
            if isinstance(answer, rtnl.RefusedError):
                if answer.errno in _NO_WAY:
                    return None
                raise answer
            route = _decode_route(answer, rtnl.Names(), self._hidden_hops())
            return next(iter(route.hops), None) if route.type is RouteType.UNICAST else None

        return self._read(f"look up {destination}", read)

    def _change(self, verb: str, kind: int, flags: int, route: Ipv6Route) -> None:
        attempt = f"{verb} the IPv6 route to {route.destination}"

        def prepare() -> Callable[[Ipv6Route, int], bytes]:
            indexes = rtnl.Indexes()
            return lambda wanted, sequence: request(kind, flags, sequence, pack_ipv6_route(wanted, indexes))

        refusals = self._ask_to_change(attempt, (route,), prepare, lambda *_: False)
        for refused in refusals.values():
            raise RouteError(f"can't {attempt}: {refused.message}", errno=refused.errno) from refused


def pack_ipv6_route(route: Ipv6Route, indexes: rtnl.Indexes) -> bytes:
    """The body that names a route of table main with one next hop, and its attributes.

    Raises:
        RefusedError: its interface doesn't exist.
    """
    (hop,) = route.hops
    length, protocol = route.destination.prefixlen, route.protocol
    body = wire.BODY.pack(socket.AF_INET6, length, 0, 0, Table.MAIN, protocol, 0, route.type, 0)
    body += attribute(wire.RTA_DST, route.destination.network_address.packed)
    body += b"" if hop.gateway is None else attribute(wire.RTA_GATEWAY, hop.gateway.packed)
    body += b"" if hop.dev is None else number(wire.RTA_OIF, indexes[hop.dev])
    return body + number(wire.RTA_PRIORITY, route.metric)


def _look_up(destination: IPv6Address, sequence: int) -> bytes:
    body = wire.BODY.pack(socket.AF_INET6, _BITS, 0, 0, 0, 0, 0, 0, 0) + attribute(wire.RTA_DST, destination.packed)
    return request(rtnl.RTM_GETROUTE, rtnl.GET, sequence, body)


def _dumped(talk: Conversation, kind: int, body: bytes) -> Iterator[bytes]:
    """The IPv6 messages of a dump; a kernel without IPv6 gives those of all families (rtnl_dump_all)."""
    return (message for message in talk.messages(kind, body) if message[HEADER_BYTES] == socket.AF_INET6)


def _decode_address(message: bytes, names: rtnl.Names) -> Ipv6Address:
    try:
        _, _, short_flags, scope, index = ADDRESS.unpack_from(message, HEADER_BYTES)
        found = attributes(message, HEADER_BYTES + ADDRESS.size)
        # Of a point-to-point address IFA_ADDRESS is the far end.
        local = IPv6Address(found[IFA_LOCAL] if IFA_LOCAL in found else found[IFA_ADDRESS])
    except (struct.error, KeyError, ValueError) as error:
        raise rtnl.AgainError(NO_SENSE) from error
    flags = to_number(found.get(IFA_FLAGS, b"")) or short_flags
    is_tried_out = bool(flags & _IFA_F_TENTATIVE) and not flags & _IFA_F_OPTIMISTIC
    return Ipv6Address(names[index], local, scope, is_usable=not is_tried_out and not flags & _IFA_F_DADFAILED)


def _decode_route(message: bytes, names: rtnl.Names, hidden_hops: HiddenHops) -> Ipv6Route:
    try:
        _, length, source_length, _, table, protocol, _, kind, flags = wire.BODY.unpack_from(message, HEADER_BYTES)
        found = attributes(message, HEADER_BYTES + wire.BODY.size)
        hops = decode_hops(flags, found, names)
        nexthop_id = to_number(found[wire.RTA_NH_ID]) if wire.RTA_NH_ID in found else None
        if not hops and nexthop_id is not None and kind == RouteType.UNICAST:
            hops = hidden_hops[nexthop_id]
        return Ipv6Route(
            destination=IPv6Network((found.get(wire.RTA_DST, bytes(16)), length)),
            hops=hops,
            metric=to_number(found.get(wire.RTA_PRIORITY, b"")),
            protocol=protocol,
            type=RouteType(kind),
            table=to_number(found.get(wire.RTA_TABLE, b"")) or table,
            nexthop_id=nexthop_id,
            has_source=bool(source_length),
        )
    except (struct.error, ValueError) as error:
        raise rtnl.AgainError(NO_SENSE) from error
