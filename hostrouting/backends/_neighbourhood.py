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
from collections import Counter
from contextlib import closing
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

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
    from collections.abc import Callable, Iterator, Sequence

    from hostrouting.backends._conversation import Conversation

    IpAddress = IPv4Address | IPv6Address

__all__ = ["Neighbourhood"]

T = TypeVar("T", Neighbour, HostRoute)

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
_IPV4 = 4
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

    def delete_neighbours(self, neighbours: Sequence[Neighbour]) -> tuple[Neighbour, ...]:
        """Delete neighbours.

        The kernel asks for no more than an address, so they are looked at once more before.

        Returns:
            Those that didn't go: they weren't there, or have another MAC or owner by now.

        Raises:
            RouteError: the kernel refused one; the others are gone.
        """
        there = {_substance(one) for dev in {one.dev for one in neighbours} for one in self.neighbours(dev)}
        still = [one for one in neighbours if _substance(one) in there]

        def pack(neighbour: Neighbour, index: int) -> bytes:
            family = socket.AF_INET if neighbour.address.version == _IPV4 else socket.AF_INET6
            return _NEIGHBOUR.pack(family, index, 0, 0, 0) + attribute(_NDA_DST, neighbour.address.packed)

        gone = self._delete("neighbour", still, rtnl.RTM_DELNEIGH, pack, errnos.ENOENT)
        return tuple(one for one in neighbours if one not in still or one in gone)

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

    def delete_host_routes(self, routes: Sequence[HostRoute]) -> tuple[HostRoute, ...]:
        """Delete exactly these routes, each with one hop and no gateway.

        Returns:
            Those that weren't there.

        Raises:
            RouteError: the kernel refused one, or would take another route for it; the others are gone.
        """
        by_entry = {_to_route(one): one for one in routes if one.destination.version == _IPV4}
        failures = self.delete(tuple(by_entry))
        missing = [by_entry[failure.route] for failure in failures if failure.errno in (errnos.ESRCH, errnos.ENODEV)]
        missing += self._delete_ipv6([one for one in routes if one.destination.version != _IPV4])
        for failure in failures:
            if by_entry[failure.route] not in missing:
                raise RouteError(f"can't delete the route {failure.route}: {failure.message}", errno=failure.errno)
        return tuple(missing)

    def _delete_ipv6(self, routes: Sequence[HostRoute]) -> list[HostRoute]:
        if not routes:
            return []
        there = [one for one, _ in self._ipv6_routes() if one is not None]
        words = Counter(map(_ipv6_words, there))
        still = [one for one in routes if one in there]
        for route in still:
            if words[_ipv6_words(route)] > 1:
                raise RouteError(f"can't delete the route {route}: the kernel doesn't tell it from another one")

        def pack(route: HostRoute, index: int) -> bytes:
            body = wire.BODY.pack(
                socket.AF_INET6, _IPV6_BITS, 0, route.tos, Table.MAIN, route.protocol, 0, RouteType.UNICAST, 0
            )
            return (
                body
                + attribute(wire.RTA_DST, route.destination.packed)
                + number(wire.RTA_OIF, index)
                + number(wire.RTA_PRIORITY, route.metric)
            )

        gone = self._delete("route", still, rtnl.RTM_DELROUTE, pack, errnos.ESRCH)
        return [one for one in routes if one not in still or one in gone]

    def _ipv6_routes(self) -> list[tuple[HostRoute | None, list[IpAddress]]]:
        """Of each route of IPv6 itself, if it is a full-length unicast one of table main, and its gateways."""

        def read(talk: Conversation) -> list[tuple[HostRoute | None, list[IpAddress]]]:
            names = rtnl.Names()
            body = wire.BODY.pack(socket.AF_INET6, 0, 0, 0, 0, 0, 0, 0, 0)
            return [_decode_ipv6_route(message, names) for message in _dumped(talk, rtnl.RTM_GETROUTE, body)]

        return self._read("list the routes", read)

    # --- the way to the kernel ---------------------------------------------------------------------------------

    def _delete(
        self, what: str, subjects: Sequence[T], kind: int, pack: Callable[[T, int], bytes], gone: int
    ) -> list[T]:
        """Ask for deletions; give those that there was nothing to delete of."""
        attempt = f"delete a {what}"
        refuse_running_loop(attempt)
        indexes = rtnl.Indexes()

        def request(subject: T, sequence: int) -> bytes:
            body = pack(subject, indexes[subject.dev])
            return HEADER.pack(HEADER_BYTES + len(body), kind, rtnl.DELETE, sequence, 0) + body

        with told(attempt):
            talk = self._connect()
        with closing(talk):
            refusals = talk.change(subjects, request, lambda _, refusal: refusal.errno == gone)
        missing = []
        for position, refusal in refusals.items():
            if refusal.errno not in (gone, errnos.ENODEV):
                refused = f"can't delete the {what} {subjects[position]}: {refusal.message}"
                raise RouteError(refused, errno=refusal.errno) from refusal
            missing.append(subjects[position])
        return missing


def _dumped(talk: Conversation, kind: int, body: bytes) -> Iterator[bytes]:
    return chain.from_iterable(map(cut, talk.dump(kind, body)))


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


def _substance(neighbour: Neighbour) -> tuple[object, ...]:
    """What has to be as planned; an unresolved one may have gone from trying to giving up."""
    words = (neighbour.mac, neighbour.is_foreign, neighbour.is_permanent, neighbour.is_unresolved)
    return (neighbour.dev, neighbour.address, *words)


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


def _to_route(route: HostRoute) -> Route:
    destination = IPv4Network(int(route.destination))
    return Route(destination, (NextHop(route.dev),), protocol=route.protocol, metric=route.metric, tos=route.tos)


def _ipv6_words(route: HostRoute) -> tuple[object, ...]:
    """What a deletion asks for; the first such entry goes, with or without a gateway (ip6_route_del)."""
    return (route.destination, route.dev, route.metric, route.protocol)


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
