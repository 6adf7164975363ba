"""What is around a bridge, of both families: interfaces with the far ends of their pairs, neighbours, host routes.

Bodies of the messages (messages.py)::

     16       17    20      24      26      27     28
    +--------+-----+-------+-------+-------+------+------------
    | family | pad | index | state | flags | type | attributes               struct ndmsg
    +--------+-----+-------+-------+-------+------+------------

Links and addresses are drawn in _linkmessages.py, routes in wire.py.
"""

from __future__ import annotations

import errno as errnos
import socket
import struct
from ipaddress import IPv4Network, IPv6Network, ip_address
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from hostrouting.azure.ipv6 import Ipv6Backend, Ipv6Route, pack_ipv6_route
from hostrouting.azure.vnet.model import HostRoute, Interface, Neighbour, NeighbourState
from hostrouting.kernel.rtnetlink import constants as rtnl
from hostrouting.kernel.rtnetlink.links import DUMP_LINKS, IFLA_IFNAME, IFLA_MASTER, LINK, SKIP_STATS, decode_kind
from hostrouting.kernel.rtnetlink.messages import (
    CUT_OFF,
    HEADER_BYTES,
    attribute,
    attributes,
    decode_name,
    number,
    request,
    to_number,
)
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import NextHop, Route, RouteType, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hostrouting.kernel.rtnetlink.conversation import Conversation
    from hostrouting.model.parsing import IpAddress

__all__ = ["Neighbourhood"]

T = TypeVar("T", Neighbour, HostRoute)

_NEIGHBOUR = struct.Struct("=BxxxiHBB")

# linux/if_link.h; IFLA_TARGET_NETNSID is its newer name
_IFLA_ADDRESS, _IFLA_LINK, _IFLA_LINK_NETNSID, _IFLA_IF_NETNSID = 1, 5, 37, 46
# linux/neighbour.h
_NDA_DST, _NDA_LLADDR, _NDA_IFINDEX, _NDA_FLAGS_EXT = 1, 2, 8, 15
_NTF_EXT_LEARNED, _NTF_EXT_MANAGED = 0x10, 0x1

_NO_NAMESPACE = struct.pack("=i", -1)  # NETNSA_NSID_NOT_ASSIGNED of linux/net_namespace.h

_GONE = (errnos.ESRCH, errnos.ENODEV)  # of a route

_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_IPV4 = 4


class Neighbourhood(Ipv6Backend):
    """The network namespace that the calling thread is in.

    Needs no privileges to read, but for the far ends that are in other namespaces (CAP_NET_ADMIN there). Raises
    ``RouteError`` like ``NetlinkBackend``.
    """

    # --- interfaces --------------------------------------------------------------------------------------------

    def interfaces(self) -> tuple[Interface, ...]:
        """All interfaces, by index; of each veth pair the MAC of its far end, if it can be read."""

        def read(talk: Conversation) -> tuple[Interface, ...]:
            links = dict(_decode_link(message) for message in talk.messages(rtnl.RTM_GETLINK, DUMP_LINKS))
            names = {index: decode_name(found[IFLA_IFNAME]) for index, found in links.items()}
            far_macs = _far_macs(talk, links)
            return tuple(
                Interface(
                    index=index,
                    name=names[index],
                    mac=_decode_mac(found.get(_IFLA_ADDRESS)) or "",
                    master=names.get(to_number(found.get(IFLA_MASTER, b""))),
                    far_mac=far_macs.get(index),
                )
                for index, found in sorted(links.items())
            )

        return self._read("list the interfaces", read)

    def host_addresses(self) -> tuple[IpAddress, ...]:
        """All addresses of this host, of both families, each once."""
        ipv4, ipv6 = self.addresses(), self.ipv6_addresses()
        return tuple(dict.fromkeys([*(own.local for own in ipv4), *(own.local for own in ipv6)]))

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
            messages = chain.from_iterable(talk.messages(rtnl.RTM_GETNEIGH, body) for body in bodies)
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

        def pack(neighbour: Neighbour, indexes: rtnl.Indexes) -> bytes:
            family = socket.AF_INET if neighbour.address.version == _IPV4 else socket.AF_INET6
            body = _NEIGHBOUR.pack(family, indexes[neighbour.dev], 0, 0, 0)
            return body + attribute(_NDA_DST, neighbour.address.packed)

        gone = self._delete("neighbour", still, rtnl.RTM_DELNEIGH, pack, errnos.ENOENT)
        went = set(still).difference(gone)
        return tuple(one for one in neighbours if one not in went)

    # --- routes ------------------------------------------------------------------------------------------------

    def host_routes(self) -> tuple[tuple[HostRoute, ...], tuple[IpAddress, ...]]:
        """The full-length unicast routes of table main, and the gateways of all routes, of both families."""
        routes: tuple[Route | Ipv6Route, ...] = (*self.routes(), *self.ipv6_routes())
        # With nexthop_compat_mode 0 routes of IPv6 don't show what they go by.
        objects = (one.hop for one in self.nexthops() if one.hop is not None)
        hops = chain((hop for route in routes for hop in route.hops), objects)
        gateways = dict.fromkeys(hop.gateway for hop in hops if hop.gateway is not None)
        return tuple(_host_routes(routes)), tuple(gateways)

    def delete_host_routes(self, routes: Sequence[HostRoute]) -> tuple[HostRoute, ...]:
        """Delete exactly these routes, each with one hop and no gateway.

        Returns:
            Those that weren't there.

        Raises:
            RouteError: the kernel refused one, or would take another route for it; the others are gone.
        """
        by_entry = {_to_route(one): one for one in routes if one.destination.version == _IPV4}
        if by_entry:
            _refuse_twins(routes, _host_routes(self.routes(Table.MAIN)))
        failures = self.delete([_to_route(one) for one in routes if one.destination.version == _IPV4])
        missing = [by_entry[failure.route] for failure in failures if failure.errno in _GONE]
        missing += self._delete_ipv6([one for one in routes if one.destination.version != _IPV4])
        for failure in failures:
            if failure.errno not in _GONE:
                raise RouteError(f"can't delete the route {failure.route}: {failure.message}", errno=failure.errno)
        return tuple(missing)

    def _delete_ipv6(self, routes: Sequence[HostRoute]) -> list[HostRoute]:
        if not routes:
            return []
        there = set(_host_routes(self.ipv6_routes()))
        still = [one for one in routes if one in there]
        _refuse_twins(still, there)

        def pack(route: HostRoute, indexes: rtnl.Indexes) -> bytes:
            return pack_ipv6_route(_to_ipv6_route(route), indexes)

        gone = self._delete("route", still, rtnl.RTM_DELROUTE, pack, errnos.ESRCH)
        went = set(still).difference(gone)
        return [one for one in routes if one not in went]

    # --- the way to the kernel ---------------------------------------------------------------------------------

    def _delete(
        self, what: str, subjects: Sequence[T], kind: int, pack: Callable[[T, rtnl.Indexes], bytes], gone: int
    ) -> list[T]:
        """Ask for deletions; give those that there was nothing to delete of."""

        def prepare() -> Callable[[T, int], bytes]:
            indexes = rtnl.Indexes()
            return lambda subject, sequence: request(kind, rtnl.DELETE, sequence, pack(subject, indexes))

        attempt = f"delete a {what}"
        refusals = self._ask_to_change(attempt, subjects, prepare, lambda _, refusal: refusal.errno == gone)
        missing = []
        for position, refusal in refusals.items():
            if refusal.errno not in (gone, errnos.ENODEV):
                refused = f"can't delete the {what} {subjects[position]}: {refusal.message}"
                raise RouteError(refused, errno=refusal.errno) from refusal
            missing.append(subjects[position])
        return missing


# --- links -----------------------------------------------------------------------------------------------------------


def _decode_link(message: bytes) -> tuple[int, dict[int, bytes]]:
    index: int = LINK.unpack_from(message, HEADER_BYTES)[2]
    return index, attributes(message, HEADER_BYTES + LINK.size)


def _decode_mac(raw: bytes | None) -> str | None:
    return None if raw is None else raw.hex(":")


def _far_macs(talk: Conversation, links: dict[int, dict[int, bytes]]) -> dict[int, str]:
    """The MACs of the far ends of veth pairs, by the index of the near end; without those that can't be read."""
    asked = []
    for index, found in links.items():
        namespace = found.get(_IFLA_LINK_NETNSID)
        # A namespace that is about to end has no number any more.
        if decode_kind(found) == "veth" and _IFLA_LINK in found and namespace != _NO_NAMESPACE:
            asked.append((index, to_number(found[_IFLA_LINK]), namespace))

    def pack(far_end: tuple[int, int, bytes | None], sequence: int) -> bytes:
        _, index, namespace = far_end
        # By its older name: IFLA_TARGET_NETNSID. Without it the far end is in this namespace.
        where = b"" if namespace is None else attribute(_IFLA_IF_NETNSID, namespace)
        body = LINK.pack(0, 0, index, 0, 0) + SKIP_STATS + where
        return request(rtnl.RTM_GETLINK, rtnl.GET, sequence, body)

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


def _host_routes(routes: Iterable[Route | Ipv6Route]) -> list[HostRoute]:
    return [_to_host_route(route) for route in routes if _is_host_route(route)]


def _is_host_route(route: Route | Ipv6Route) -> bool:
    if isinstance(route, Ipv6Route) and route.has_source:
        return False
    destination = route.destination
    is_full_length = destination.prefixlen == destination.max_prefixlen
    return route.table == Table.MAIN and route.type is RouteType.UNICAST and is_full_length


def _to_host_route(route: Route | Ipv6Route) -> HostRoute:
    return HostRoute(
        destination=route.destination.network_address,
        dev=",".join(dict.fromkeys(hop.dev for hop in route.hops if hop.dev is not None)),
        protocol=route.protocol,
        metric=route.metric,
        has_gateway=any(hop.gateway is not None for hop in route.hops),
        tos=route.tos if isinstance(route, Route) else 0,
        is_plain=len(route.hops) == 1 and route.nexthop_id is None,
    )


def _to_route(route: HostRoute) -> Route:
    destination = IPv4Network(int(route.destination))
    return Route(destination, (NextHop(route.dev),), protocol=route.protocol, metric=route.metric, tos=route.tos)


def _to_ipv6_route(route: HostRoute) -> Ipv6Route:
    return Ipv6Route(IPv6Network(int(route.destination)), (NextHop(route.dev),), route.metric, route.protocol)


def _refuse_twins(routes: Sequence[HostRoute], there: Iterable[HostRoute]) -> None:
    """Refuse to delete a route if asking for it may take another one that isn't to go."""
    asked = {words: route for route in routes for words in route.requests}
    for other in set(there).difference(routes):
        for words in other.requests & asked.keys():
            raise RouteError(f"can't delete the route {asked[words]}: the kernel doesn't tell it from another one")
