"""What is around a bridge, of both families: interfaces with the far ends of their pairs, neighbours, host routes."""

from __future__ import annotations

import errno as errnos
import os
import socket
from ipaddress import IPv4Network, IPv6Network, ip_address
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from hostrouting.azure.ipv6 import Ipv6Kernel, Ipv6Route, route_request
from hostrouting.azure.vnet.model import HostRoute, Interface, Neighbour, NeighbourState
from hostrouting.kernel.channel import Channel, Message, Request, channel, read, rtnl
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import NextHop, Route, RouteType, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hostrouting.model.parsing import IpAddress

__all__ = ["Neighbourhood"]

T = TypeVar("T", Neighbour, HostRoute)

# linux/neighbour.h
_NTF_EXT_LEARNED, _NTF_EXT_MANAGED = 0x10, 0x1

_NO_NAMESPACE = -1  # NETNSA_NSID_NOT_ASSIGNED of linux/net_namespace.h

_GONE = (errnos.ESRCH, errnos.ENODEV)  # of a route

_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_IPV4 = 4

_WITHOUT_STATISTICS = ("IFLA_EXT_MASK", rtnl.RTEXT_FILTER_SKIP_STATS)


class Neighbourhood:
    """The network namespace that the calling thread is in.

    Needs no privileges to read, but for the far ends that are in other namespaces (CAP_NET_ADMIN there). Raises
    ``RouteError`` like ``NetlinkBackend``.
    """

    def __init__(self) -> None:
        self._ipv4, self._ipv6 = NetlinkBackend(), Ipv6Kernel()

    # --- interfaces --------------------------------------------------------------------------------------------

    def interfaces(self) -> tuple[Interface, ...]:
        """All interfaces, by index; of each veth pair the MAC of its far end, if it can be read."""

        def ask(opened: Channel) -> tuple[Interface, ...]:
            links = {message["index"]: message for message in opened.dump(rtnl.RTM_GETLINK, {}, _WITHOUT_STATISTICS)}
            names = {index: _name(link.get_attr("IFLA_IFNAME")) for index, link in links.items()}
            return tuple(
                Interface(
                    index=index,
                    name=names[index],
                    mac=_mac(link) or "",
                    master=names.get(link.get_attr("IFLA_MASTER")),
                    far_mac=_far_mac(opened, index, link),
                )
                for index, link in sorted(links.items())
            )

        return read("list the interfaces", ask)

    def host_addresses(self) -> tuple[IpAddress, ...]:
        """All addresses of this host, of both families, each once."""
        ipv4, ipv6 = self._ipv4.addresses(), self._ipv6.addresses()
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

        def ask(opened: Channel) -> tuple[Neighbour, ...]:
            dumps = (opened.dump(rtnl.RTM_GETNEIGH, {"family": family}, ("NDA_IFINDEX", index)) for family in _FAMILIES)
            found = [_to_neighbour(message, dev) for message in chain.from_iterable(dumps)]
            return tuple(entry for entry in found if entry.state != NeighbourState.NOARP)

        return read("list the neighbours", ask)

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

        def request(neighbour: Neighbour) -> Request:
            family = socket.AF_INET if neighbour.address.version == _IPV4 else socket.AF_INET6
            fields = {"family": family, "ifindex": rtnl.Indexes()[neighbour.dev]}
            return Request(rtnl.RTM_DELNEIGH, rtnl.DELETE, fields, (("NDA_DST", str(neighbour.address)),))

        gone = _delete("neighbour", still, request, errnos.ENOENT)
        went = set(still).difference(gone)
        return tuple(one for one in neighbours if one not in went)

    # --- routes ------------------------------------------------------------------------------------------------

    def host_routes(self) -> tuple[tuple[HostRoute, ...], tuple[IpAddress, ...]]:
        """The full-length unicast routes of table main, and the gateways of all routes, of both families."""
        routes: tuple[Route | Ipv6Route, ...] = (*self._ipv4.routes(), *self._ipv6.routes())
        # With nexthop_compat_mode 0 routes of IPv6 don't show what they go by.
        objects = (one.hop for one in self._ipv4.nexthops() if one.hop is not None)
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
            _refuse_twins(routes, _host_routes(self._ipv4.routes(Table.MAIN)))
        failures = self._ipv4.delete([_to_route(one) for one in routes if one.destination.version == _IPV4])
        missing = [by_entry[failure.route] for failure in failures if failure.errno in _GONE]
        missing += self._delete_ipv6([one for one in routes if one.destination.version != _IPV4])
        for failure in failures:
            if failure.errno not in _GONE:
                raise RouteError(f"can't delete the route {failure.route}: {failure.message}", errno=failure.errno)
        return tuple(missing)

    def _delete_ipv6(self, routes: Sequence[HostRoute]) -> list[HostRoute]:
        if not routes:
            return []
        there = set(_host_routes(self._ipv6.routes()))
        still = [one for one in routes if one in there]
        _refuse_twins(still, there)
        gone = _delete(
            "route",
            still,
            lambda route: route_request(rtnl.RTM_DELROUTE, rtnl.DELETE, _to_ipv6_route(route)),
            errnos.ESRCH,
        )
        went = set(still).difference(gone)
        return [one for one in routes if one not in went]


def _delete(what: str, subjects: Sequence[T], request: Callable[[T], Request], gone: int) -> list[T]:
    """Ask for deletions; give those that there was nothing to delete of.

    Raises:
        RouteError: the kernel refused one; the others are gone.
    """
    missing: list[T] = []
    refused: list[RouteError] = []
    with channel(f"delete a {what}") as opened:
        for subject in subjects:
            try:
                opened.ask(request(subject))
            except rtnl.RefusedError as refusal:
                if refusal.errno in (gone, errnos.ENODEV):
                    missing.append(subject)
                else:
                    reason = f"can't delete the {what} {subject}: {refusal.message}"
                    refused.append(RouteError(reason, errno=refusal.errno))
    if refused:
        raise refused[0]
    return missing


# --- links -----------------------------------------------------------------------------------------------------------


def _name(name: str | bytes) -> str:
    """pyroute2 decodes the names that are UTF-8 and leaves others as they are."""
    return os.fsdecode(name)


def _mac(link: Message) -> str | None:
    raw: bytes | None = link.get_attr("IFLA_ADDRESS")
    return None if raw is None else raw.hex(":")


def _far_mac(opened: Channel, index: int, link: Message) -> str | None:
    """The MAC of the far end of a veth pair, whose near end has this index; None if it can't be read."""
    information, far_index = link.get_attr("IFLA_LINKINFO"), link.get_attr("IFLA_LINK")
    namespace = link.get_attr("IFLA_LINK_NETNSID")
    is_pair = information is not None and information.get_attr("IFLA_INFO_KIND") == "veth"
    # A namespace that is about to end has no number any more.
    if not is_pair or far_index is None or namespace == _NO_NAMESPACE:
        return None
    # By its older name: IFLA_TARGET_NETNSID. Without it the far end is in this namespace.
    where = () if namespace is None else (("IFLA_IF_NETNSID", namespace),)
    try:
        (far,) = opened.ask(Request(rtnl.RTM_GETLINK, rtnl.GET, {"index": far_index}, (_WITHOUT_STATISTICS, *where)))
    except rtnl.RefusedError:
        return None
    # A pair's ends name each other.
    return _mac(far) if far.get_attr("IFLA_LINK") == index else None


# --- neighbours ------------------------------------------------------------------------------------------------------


def _to_neighbour(message: Message, dev: str) -> Neighbour:
    is_managed = (message.get_attr("NDA_FLAGS_EXT") or 0) & _NTF_EXT_MANAGED
    mac: str | None = message.get_attr("NDA_LLADDR")
    return Neighbour(
        dev=dev,
        address=ip_address(message.get_attr("NDA_DST")),
        mac=mac,
        state=message["state"],
        is_foreign=bool(message["flags"] & _NTF_EXT_LEARNED or is_managed),
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
