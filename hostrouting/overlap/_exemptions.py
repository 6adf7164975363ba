"""Decide how far the exemptions for pods reach. This module does no I/O.

An interface's name or a route's protocol says who added a route, but not whether the cluster
expects it. In public incidents, pods' interfaces had a default route, or were in the node's own
subnet. In other incidents, a CNI's routes discarded packets to the API server. So each exemption
only covers routes that a CNI adds on a healthy node.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from ipaddress import IPv4Network
from typing import NamedTuple

import attrs

from hostrouting.kernel.default_routes import unicast_defaults
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, PrefixIndex, ends, numbers
from hostrouting.model.links import Address, is_like
from hostrouting.model.parsing import is_inside
from hostrouting.model.routes import Protocol, Route, RouteType, Table
from hostrouting.overlap.uplinks import Uplinks

# The blackhole route for Calico's own block has protocol 80; BIRD's has protocol 12.
CNI_PROTOCOLS = (Protocol.BIRD, 80)

# Interfaces to which kube-proxy and DNS caches add addresses of Services. No such interface is a
# pod's, even if its name matches containerDevs.
_SERVICE_DEVS = ("kube-ipvs0", "kube-dummy-if", "nodelocaldns", "localdns")

_LINK_LOCAL = IPv4Network("169.254.0.0/16")
_AZURE_PLATFORM = IPv4Network("168.63.129.16/32")
# The VPC CNI gives an IPv4 address of this network to each pod of an IPv6 cluster (egress-cni).
_EKS_PODS = IPv4Network("169.254.172.0/22")

OF_PLATFORMS = (numbers(_LINK_LOCAL), numbers(_AZURE_PLATFORM))
"""Networks in which clouds have addresses of their own, such as the metadata service's."""


def local_gateway(route: Route, addresses: Sequence[Address]) -> Address | None:
    """Return this host's address that is also a gateway of a route, or None if none is.

    The route leads through another interface than the one with the address. The kernel still sends
    to such a gateway, because it looks for the gateway on the route's interface. But the router
    isn't reached reliably: this host doesn't answer ARP requests that come from one of its own
    addresses. An IPv6 link-local address only counts if it is on the route's own interface.
    """
    if route.type is not RouteType.UNICAST:
        return None
    for hop in route.hops:
        if hop.gateway is None or hop.is_dead:
            continue
        for address in addresses:
            is_of_link = address.local.version == 6 and address.local.is_link_local
            if address.local == hop.gateway and (address.dev == hop.dev) == is_of_link:
                return address
    return None


def _why_of_platform(route: Route, address: IpAddress) -> str:
    """Return why an address belongs to a cloud instead of pods, or an empty string."""
    if address in _AZURE_PLATFORM:
        return f"{address} isn't a pod's: Azure's platform has it"
    is_pod = is_inside(route.destination, _EKS_PODS) and route.destination.prefixlen == 32
    if address in _LINK_LOCAL and not is_pod:
        return f"{_LINK_LOCAL} isn't for pods: clouds have their metadata service there"
    return ""


class _Widths(NamedTuple):
    """The limits on prefix lengths for an address family.

    Args:
        pods_min: the minimum prefix length of a network of pods.
        subnet_max: the maximum prefix length of an uplink's subnet that may contain a network of
            pods.
    """

    pods_min: int
    subnet_max: int


_WIDTHS = {Family.IPV4: _Widths(8, 11), Family.IPV6: _Widths(16, 64)}


class Bounds:
    """The bounds of the exemptions on one host.

    Args:
        container_devs: name patterns for pods' interfaces.
        family: the address family of the arguments below.
        uplinks: the host's uplinks.
        addresses: the host's addresses.
        routes: the entries in all tables.
    """

    def __init__(
        self,
        container_devs: tuple[str, ...],
        family: Family,
        uplinks: Uplinks,
        addresses: Sequence[Address],
        routes: Sequence[Route],
    ) -> None:
        self._container_devs = container_devs
        self._uplinks = uplinks
        self._addresses = addresses
        self._routes = routes
        self.bits = family.bits
        self._widths = _WIDTHS[family]
        self._locals = {address.local for address in addresses}
        self._reasons: dict[Prefix, str] = {}

    def why_beyond(self, route: Route, address: IpAddress) -> str:
        """Return why a route through a pod's interface can't lead to pods, or an empty string."""
        if reason := _why_of_platform(route, address):
            return reason
        prefix = numbers(route.destination)
        if prefix not in self._reasons:
            self._reasons[prefix] = self._why_beyond(route.destination)
        return self._reasons[prefix]

    def _why_beyond(self, network: IpNetwork) -> str:
        """Return why a network can't be one of pods, or an empty string."""
        if network.prefixlen < self._widths.pods_min:
            return f"{network} is wider than any network of pods"
        for what, address, dev in self._uplink_addresses:
            if address in network:
                return f"{network} holds {address}, {what} of {dev}"
        for subnet in self._subnets_around(network) if network.prefixlen < self.bits else ():
            if subnet.prefix_length > self._widths.subnet_max:
                return f"{network} lies in {subnet.network}, the subnet of {subnet.dev}"
        return ""

    def uplink_subnet_around(self, network: IpNetwork) -> str:
        """Return in words the uplink's subnet around a network of pods, or an empty string."""
        return next(
            (f"{each.network}, the subnet of {each.dev}" for each in self._subnets_around(network)),
            "",
        )

    def _subnets_around(self, network: IpNetwork) -> Iterator[Address]:
        return (each for each in self._addresses_on_uplinks if is_inside(network, each.network))

    def local_gateway(self, route: Route) -> Address | None:
        """Return the result of the function ``local_gateway``, usually without a search."""
        is_possible = any(hop.gateway in self._locals for hop in route.hops)
        return local_gateway(route, self._addresses) if is_possible else None

    def is_of_pods(self, dev: str) -> bool:
        """Return whether an interface may be a pod's, by its name."""
        is_uplink = dev in self._uplinks.devs
        return not is_uplink and dev not in _SERVICE_DEVS and is_like(dev, self._container_devs)

    def lost_router(self, address: IpAddress) -> tuple[Route, Address] | None:
        """Return the default route whose gateway is an address, and this host's ``Address`` for it.

        Such a default route leads through an uplink, although this host has the gateway's address,
        too. For all other addresses, the result is None.
        """
        return self._lost_routers.get(address)

    @cached_property
    def _lost_routers(self) -> dict[IpAddress, tuple[Route, Address]]:
        lost: dict[IpAddress, tuple[Route, Address]] = {}
        for route in unicast_defaults(self._routes):
            hops = [hop for hop in route.hops if hop.dev in self._uplinks.devs]
            for hop in hops:
                own = self.local_gateway(attrs.evolve(route, hops=(hop,)))
                if own is not None:
                    lost.setdefault(own.local, (route, own))
        return lost

    def is_block(self, discard: Route, cidr: IpNetwork) -> bool:
        """Return whether a discarding entry was added by a CNI for its own block of pod addresses.

        The entry must be a blackhole route with a longer prefix than the expected CIDR. A block
        with pods contains the destination of a pod's route in the same table, or an address of a
        pod's interface. If the block has no pods, the entry must have a CNI's protocol, and the
        CIDR must contain a route of the same protocol to another node.
        """
        if (
            discard.type is not RouteType.BLACKHOLE
            or discard.destination.prefixlen <= cidr.prefixlen
        ):
            return False
        block = numbers(discard.destination)
        if self._has_any(self._pods, discard.table, block) or self._has_any(
            self._pod_addresses,
            0,
            block,
        ):
            return True
        return discard.protocol in CNI_PROTOCOLS and any(
            route.protocol == discard.protocol and is_inside(route.destination, cidr)
            for route in self._routes
            if route.type is RouteType.UNICAST
        )

    def _has_any(self, pods: list[tuple[int, int, int]], table: int, block: Prefix) -> bool:
        """Return whether ``pods`` lists a prefix in a block, for a table."""
        last = ends(block, self.bits)[1]
        return bisect_left(pods, (table, *block)) < bisect_right(pods, (table, last, self.bits))

    def network_of_pods(self, address: IpAddress) -> tuple[IpNetwork, str] | None:
        """Return the innermost network of this host's pods around an address, and its interface.

        Table main has a route to that network, but packets may still match another route or rule.
        The result is None if the pods have no such network.
        """
        networks, index = self._networks_of_pods
        inner = next(index.around((int(address), self.bits)), None)
        return None if inner is None else networks[inner]

    def has_pods(self, network: IpNetwork) -> bool:
        """Return whether a network overlaps a network of this host's pods."""
        return bool(self._networks_of_pods[1].meeting(numbers(network)))

    @cached_property
    def _networks_of_pods(self) -> tuple[Mapping[Prefix, tuple[IpNetwork, str]], PrefixIndex]:
        networks: dict[Prefix, tuple[IpNetwork, str]] = {}
        for route in self._routes:
            network = route.destination
            if route.table != Table.MAIN or not self._is_to_own_pods(route):
                continue
            if not self.why_beyond(route, network.network_address):
                networks[numbers(network)] = network, route.devs[0]
        return networks, PrefixIndex(networks, self.bits)

    def _is_to_own_pods(self, route: Route) -> bool:
        """Return whether a route leads to pods of this host, not to those of another node."""
        # Cilium's route to the pods of this host has this host's own address as the gateway.
        gateways = {hop.gateway for hop in route.hops} - {None}
        is_near = gateways <= self._locals
        return is_near and bool(route.devs) and all(map(self.is_of_pods, route.devs))

    @cached_property
    def _addresses_on_uplinks(self) -> list[Address]:
        return [each for each in self._addresses if each.dev in self._uplinks.devs]

    @cached_property
    def _uplink_addresses(self) -> list[tuple[str, IpAddress, str]]:
        """Return a triple for each address and gateway of the uplinks: words, address and uplink.

        Only gateways of default routes are included.
        """
        mine = [("the address", each.local, each.dev) for each in self._addresses_on_uplinks]
        hops = (hop for route in unicast_defaults(self._routes) for hop in route.hops)
        theirs = (
            ("the gateway", hop.gateway, hop.dev) for hop in hops if hop.dev in self._uplinks.devs
        )
        return [
            (what, address, dev)
            for what, address, dev in (*mine, *theirs)
            if address is not None and dev
        ]

    @cached_property
    def _pods(self) -> list[tuple[int, int, int]]:
        """Return the table and destination of each route through a pod's interface, sorted."""
        return sorted(
            (route.table, *numbers(route.destination))
            for route in self._routes
            if any(map(self.is_of_pods, route.devs))
        )

    @cached_property
    def _pod_addresses(self) -> list[tuple[int, int, int]]:
        """Return the addresses of pods' interfaces, sorted, as ``_pods`` returns destinations."""
        found = (each for each in self._addresses if self.is_of_pods(each.dev))
        return sorted((0, int(each.local), self.bits) for each in found)
