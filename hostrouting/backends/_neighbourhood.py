"""What is around a bridge, of both families: interfaces with the far ends of their pairs, neighbours, host routes.

Read and written by hand like IPv4's routes (netlink.py), since a list that changed while it was read has to be read
again: pyroute2 0.9 says nothing of NLM_F_DUMP_INTR.

Bodies of the messages (_messages.py)::

     16       17    20      24      26      27     28
    +--------+-----+-------+-------+-------+------+------------
    | family | pad | index | state | flags | type | attributes               struct ndmsg
    +--------+-----+-------+-------+-------+------+------------

Links and addresses are drawn in _link_messages.py, routes in wire.py.
"""

from __future__ import annotations

import errno as errnos
import socket
import struct
from contextlib import closing
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from itertools import chain
from typing import TYPE_CHECKING

from hostrouting.azure_vnet.model import HostRoute, Interface, Neighbour, NeighbourState
from hostrouting.backends import _rtnetlink as rtnl
from hostrouting.backends import wire
from hostrouting.backends._attempts import refuse_running_loop, told
from hostrouting.backends._messages import (
    CUT_OFF,
    HEADER,
    HEADER_BYTES,
    attribute,
    attributes,
    cut,
    decode_name,
    number,
    to_number,
)
from hostrouting.backends.netlink import NetlinkBackend
from hostrouting.errors import RouteError
from hostrouting.model import NextHop, Route, RouteType, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostrouting.backends._conversation import Conversation

    IpAddress = IPv4Address | IPv6Address

__all__ = ["Neighbourhood"]

_NEIGHBOUR = struct.Struct("=BxxxiHBB")
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")

# linux/if_link.h; IFLA_TARGET_NETNSID is its newer name
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_LINK, _IFLA_MASTER, _IFLA_LINKINFO = 1, 3, 5, 10, 18
_IFLA_EXT_MASK, _IFLA_LINK_NETNSID, _IFLA_IF_NETNSID = 29, 37, 46
_IFLA_INFO_KIND = 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2  # linux/if_addr.h
# linux/neighbour.h
_NDA_DST, _NDA_LLADDR, _NDA_IFINDEX, _NDA_FLAGS_EXT = 1, 2, 8, 15
_NTF_EXT_LEARNED, _NTF_EXT_MANAGED = 0x10, 0x1

_NO_NAMESPACE = struct.pack("=i", -1)  # NETNSA_NSID_NOT_ASSIGNED of linux/net_namespace.h

_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_IPV4_BITS, _IPV6_BITS = 32, 128
_SKIP_STATS = number(_IFLA_EXT_MASK, rtnl.RTEXT_FILTER_SKIP_STATS)


class Neighbourhood(NetlinkBackend):
    """The network namespace that the calling thread is in.

    Needs no privileges to read, but for the far ends that are in other namespaces (CAP_NET_ADMIN there). Raises
    ``RouteError`` like ``NetlinkBackend``.
    """

    # --- interfaces --------------------------------------------------------------------------------------------

    def interfaces(self) -> tuple[Interface, ...]:
        """All interfaces, by index; of each veth pair the MAC of its far end, if it can be read."""

        def read(talk: Conversation) -> tuple[Interface, ...]:
            body = _LINK.pack(0, 0, 0, 0, 0) + _SKIP_STATS
            links = dict(_decode_link(message) for message in _dumped(talk, rtnl.RTM_GETLINK, body))
            names = {index: decode_name(found[_IFLA_IFNAME]) for index, found in links.items()}
            far_macs = _far_macs(talk, links)
            return tuple(
                Interface(
                    index=index,
                    name=names[index],
                    mac=_decode_mac(found.get(_IFLA_ADDRESS)) or "",
                    master=names.get(to_number(found.get(_IFLA_MASTER, b""))),
                    far_mac=far_macs.get(index),
                )
                for index, found in sorted(links.items())
            )

        return self._read("list the interfaces", read)

    def host_addresses(self) -> tuple[IpAddress, ...]:
        """All addresses of this host, of both families, each once."""

        def read(talk: Conversation) -> tuple[IpAddress, ...]:
            messages = _dumped(talk, rtnl.RTM_GETADDR, _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0))
            found = (attributes(message, HEADER_BYTES + _ADDRESS.size) for message in messages)
            # IPv6 names none local unless the link is point-to-point.
            raw = (one.get(_IFA_LOCAL, one.get(_IFA_ADDRESS)) for one in found)
            return tuple(dict.fromkeys(ip_address(address) for address in raw if address is not None))

        return self._read("list the addresses", read)

    # --- neighbours --------------------------------------------------------------------------------------------

    def neighbours(self, dev: str) -> tuple[Neighbour, ...]:
        """The neighbours of an interface, of both families; none if there is no such interface.

        Without what ip-neighbour(8) doesn't show either: what the kernel works out for multicast, and proxies.
        """
        try:
            index = rtnl.Indexes()[dev]
        except rtnl.RefusedError:
            return ()

        def read(talk: Conversation) -> tuple[Neighbour, ...]:
            bodies = (_NEIGHBOUR.pack(family, 0, 0, 0, 0) + number(_NDA_IFINDEX, index) for family in _FAMILIES)
            messages = chain.from_iterable(_dumped(talk, rtnl.RTM_GETNEIGH, body) for body in bodies)
            found = [_decode_neighbour(message, dev) for message in messages]
            return tuple(entry for entry in found if entry.state != NeighbourState.NOARP)

        return self._read("list the neighbours", read)

    def delete_neighbour(self, neighbour: Neighbour) -> bool:
        """Delete a neighbour.

        The kernel asks for no more than its address, so it is looked at once more before.

        Returns:
            Whether it went; not if it wasn't there, or has another MAC or owner by now.

        Raises:
            RouteError: the kernel refused.
        """
        if not any(_is_still(there, neighbour) for there in self.neighbours(neighbour.dev)):
            return False
        address = neighbour.address

        def pack(index: int, sequence: int) -> bytes:
            body = _NEIGHBOUR.pack(_family(address), index, 0, 0, 0) + attribute(_NDA_DST, address.packed)
            return _request(rtnl.RTM_DELNEIGH, sequence, body)

        return self._delete(f"delete the neighbour {neighbour}", neighbour.dev, pack, gone=errnos.ENOENT)

    # --- routes ------------------------------------------------------------------------------------------------

    def host_routes(self) -> tuple[tuple[HostRoute, ...], tuple[IpAddress, ...]]:
        """The full-length unicast routes of table main, and the gateways of all routes, of both families."""
        gateways: dict[IpAddress, None] = {}
        found: list[HostRoute] = []
        for route in self.routes():
            gateways |= dict.fromkeys(hop.gateway for hop in route.hops if hop.gateway is not None)
            if (
                route.table == Table.MAIN
                and route.type is RouteType.UNICAST
                and route.destination.prefixlen == _IPV4_BITS
            ):
                found.append(_to_host_route(route))
        for host_route, via in self._ipv6_routes():
            gateways |= dict.fromkeys(via)
            if host_route is not None:
                found.append(host_route)
        return tuple(found), tuple(gateways)

    def delete_route(self, route: HostRoute) -> bool:
        """Delete exactly this route, one with one hop and no gateway.

        Returns:
            Whether it went; not if it wasn't there.

        Raises:
            RouteError: the kernel refused, or would take another route for it.
        """
        address = route.destination
        if isinstance(address, IPv4Address):
            failures = self.delete((_to_route(address, route),))
            if any(failure.errno not in (errnos.ESRCH, errnos.ENODEV) for failure in failures):
                raise RouteError(f"can't delete the route {route}: {failures[0].message}", errno=failures[0].errno)
            return not failures
        there = [one for one, _ in self._ipv6_routes() if one is not None and _is_alike(one, route)]
        if route not in there:
            return False
        if len(there) > 1:
            # ip6_route_del takes the first by these words, with or without a gateway.
            raise RouteError(f"can't delete the route {route}: the kernel can't tell it from another by these words")

        def pack(index: int, sequence: int) -> bytes:
            body = wire.BODY.pack(
                socket.AF_INET6, _IPV6_BITS, 0, route.tos, Table.MAIN, route.protocol, 0, RouteType.UNICAST, 0
            )
            body += attribute(wire.RTA_DST, address.packed) + number(wire.RTA_OIF, index)
            return _request(rtnl.RTM_DELROUTE, sequence, body + number(wire.RTA_PRIORITY, route.metric))

        return self._delete(f"delete the route {route}", route.dev, pack, gone=errnos.ESRCH)

    def _ipv6_routes(self) -> list[tuple[HostRoute | None, list[IpAddress]]]:
        """Of each route of IPv6 itself, if it is a full-length unicast one of table main, and its gateways."""

        def read(talk: Conversation) -> list[tuple[HostRoute | None, list[IpAddress]]]:
            names = rtnl.Names()
            body = wire.BODY.pack(socket.AF_INET6, 0, 0, 0, 0, 0, 0, 0, 0)
            return [_decode_ipv6_route(message, names) for message in _dumped(talk, rtnl.RTM_GETROUTE, body)]

        return self._read("list the routes", read)

    # --- the way to the kernel ---------------------------------------------------------------------------------

    def _delete(self, attempt: str, dev: str, pack: Callable[[int, int], bytes], *, gone: int) -> bool:
        """Ask for a deletion; whether it was made, and not refused because there was nothing to delete."""
        refuse_running_loop(attempt)
        with told(attempt):
            talk = self._connect()
        with closing(talk):
            refusals = talk.change(
                (dev,),
                lambda name, sequence: pack(rtnl.Indexes()[name], sequence),
                lambda _, refusal: refusal.errno == gone,
            )
        for refusal in refusals.values():
            if refusal.errno not in (gone, errnos.ENODEV):
                raise RouteError(f"can't {attempt}: {refusal.message}", errno=refusal.errno) from refusal
        return not refusals


def _dumped(talk: Conversation, kind: int, body: bytes) -> Iterator[bytes]:
    return chain.from_iterable(map(cut, talk.dump(kind, body)))


def _request(kind: int, sequence: int, body: bytes) -> bytes:
    return HEADER.pack(HEADER_BYTES + len(body), kind, rtnl.DELETE, sequence, 0) + body


def _family(address: IpAddress) -> int:
    return socket.AF_INET if address.version == 4 else socket.AF_INET6


# --- links -----------------------------------------------------------------------------------------------------------


def _decode_link(message: bytes) -> tuple[int, dict[int, bytes]]:
    index: int = _LINK.unpack_from(message, HEADER_BYTES)[2]
    return index, attributes(message, HEADER_BYTES + _LINK.size)


def _decode_mac(raw: bytes | None) -> str | None:
    return None if raw is None else raw.hex(":")


def _far_macs(talk: Conversation, links: dict[int, dict[int, bytes]]) -> dict[int, str]:
    """The MACs of the far ends of veth pairs, by the index of the near end; without those that can't be read."""
    asked = []
    for index, found in links.items():
        kind = attributes(found.get(_IFLA_LINKINFO, b"")).get(_IFLA_INFO_KIND, b"")
        namespace = found.get(_IFLA_LINK_NETNSID)
        # A namespace that is about to end has no number any more.
        if decode_name(kind) == "veth" and _IFLA_LINK in found and namespace != _NO_NAMESPACE:
            asked.append((index, to_number(found[_IFLA_LINK]), namespace))

    def pack(far_end: tuple[int, int, bytes | None], sequence: int) -> bytes:
        _, index, namespace = far_end
        # By its older name: IFLA_TARGET_NETNSID. Without it the far end is in this namespace.
        where = b"" if namespace is None else attribute(_IFLA_IF_NETNSID, namespace)
        body = _LINK.pack(0, 0, index, 0, 0) + _SKIP_STATS + where
        return HEADER.pack(HEADER_BYTES + len(body), rtnl.RTM_GETLINK, rtnl.GET, sequence, 0) + body

    macs: dict[int, str] = {}
    for part, answers in talk.ask(rtnl.RTM_GETLINK, asked, pack):
        for (index, _, _), answer in zip(part, answers, strict=True):
            if isinstance(answer, rtnl.RefusedError):
                continue
            _, found = _decode_link(answer)
            mac = _decode_mac(found.get(_IFLA_ADDRESS))
            # A pair's ends name each other.
            if mac is not None and to_number(found.get(_IFLA_LINK, b"")) == index:
                macs[index] = mac
    return macs


# --- neighbours ------------------------------------------------------------------------------------------------------


def _decode_neighbour(message: bytes, dev: str) -> Neighbour:
    _, _, state, flags, _ = _NEIGHBOUR.unpack_from(message, HEADER_BYTES)
    found = attributes(message, HEADER_BYTES + _NEIGHBOUR.size)
    if _NDA_DST not in found:
        raise rtnl.AgainError(CUT_OFF)
    is_managed = to_number(found.get(_NDA_FLAGS_EXT, b"")) & _NTF_EXT_MANAGED
    return Neighbour(
        dev=dev,
        address=ip_address(found[_NDA_DST]),
        mac=_decode_mac(found.get(_NDA_LLADDR)),
        state=state,
        is_foreign=bool(flags & _NTF_EXT_LEARNED or is_managed),
    )


def _is_still(there: Neighbour, planned: Neighbour) -> bool:
    """Whether an entry is still what was planned to go; an unresolved one may have gone from trying to giving up."""
    return (there.address, there.mac, there.is_foreign, there.is_permanent, there.is_unresolved) == (
        planned.address,
        planned.mac,
        planned.is_foreign,
        planned.is_permanent,
        planned.is_unresolved,
    )


# --- routes ----------------------------------------------------------------------------------------------------------


def _to_host_route(route: Route) -> HostRoute:
    return HostRoute(
        destination=route.destination.network_address,
        dev=",".join(route.devs),
        protocol=route.protocol,
        metric=route.metric,
        has_gateway=any(hop.gateway is not None for hop in route.hops),
        tos=route.tos,
        is_plain=len(route.hops) == 1 and route.nexthop_id is None,
    )


def _to_route(destination: IPv4Address, route: HostRoute) -> Route:
    return Route(
        IPv4Network(destination),
        (NextHop(route.dev),),
        protocol=route.protocol,
        metric=route.metric,
        tos=route.tos,
    )


def _is_alike(there: HostRoute, wanted: HostRoute) -> bool:
    """Whether the kernel can't tell a route from another as it deletes one."""
    return (there.destination, there.dev, there.metric, there.protocol) == (
        wanted.destination,
        wanted.dev,
        wanted.metric,
        wanted.protocol,
    )


def _decode_ipv6_route(message: bytes, names: rtnl.Names) -> tuple[HostRoute | None, list[IpAddress]]:
    _, length, _, tos, table, protocol, _, kind, flags = wire.BODY.unpack_from(message, HEADER_BYTES)
    found = attributes(message, HEADER_BYTES + wire.BODY.size)
    hops = list(_hops(found))
    gateways: list[IpAddress] = [IPv6Address(gateway) for _, gateway in hops if gateway is not None]
    is_main = (to_number(found.get(wire.RTA_TABLE, b"")) or table) == Table.MAIN
    if flags & rtnl.RTM_F_CLONED or not is_main or kind != RouteType.UNICAST or length != _IPV6_BITS:
        return None, gateways
    route = HostRoute(
        destination=IPv6Address(found[wire.RTA_DST]),
        dev=",".join(dict.fromkeys(names[oif] for oif, _ in hops if oif)),
        protocol=protocol,
        metric=to_number(found.get(wire.RTA_PRIORITY, b"")),
        has_gateway=bool(gateways),
        tos=tos,
        is_plain=len(hops) == 1 and wire.RTA_NH_ID not in found,
    )
    return route, gateways


def _hops(found: dict[int, bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Interface and gateway of each hop."""
    several = found.get(wire.RTA_MULTIPATH, b"")
    at = 0
    while at < len(several):
        length, _, _, oif = wire.HOP.unpack_from(several, at)
        if length < wire.HOP.size or at + length > len(several):
            raise rtnl.AgainError(CUT_OFF)
        yield oif, attributes(several[at : at + length], wire.HOP.size).get(wire.RTA_GATEWAY)
        at += (length + 3) & ~3
    if not several and (wire.RTA_OIF in found or wire.RTA_GATEWAY in found):
        yield to_number(found.get(wire.RTA_OIF, b"")), found.get(wire.RTA_GATEWAY)
