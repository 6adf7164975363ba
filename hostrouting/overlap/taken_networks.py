"""Find networks on other interfaces than the default route's, which a cluster shouldn't use."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network

from hostrouting.config.routing import RouteOverlap
from hostrouting.kernel.default_routes import default_route
from hostrouting.kernel.port import RouteBackend, read_default_routes
from hostrouting.kernel.selection import except_plain
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.integer_prefixes import numbers
from hostrouting.model.links import is_like
from hostrouting.model.parsing import is_inside
from hostrouting.model.routes import Route, RouteType, Table

# Cluster networks are in these private ranges (RFC 1918, RFC 6598).
_PRIVATE = tuple(
    map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"))
)

_CONTAINER_DEVS = RouteOverlap(()).container_devs

# Two addresses of Azure's platform. At the first address, Azure serves DNS, health probes and its
# agent. The second is the metadata service, also on other clouds.
_PLATFORM = (IPv4Address("168.63.129.16"), IPv4Address("169.254.169.254"))


def taken_networks(backend: RouteBackend) -> dict[IpNetwork, tuple[str, ...]]:
    """Return networks behind other interfaces than the default route's, with these interfaces.

    The networks are private networks in table main, without those that can't shadow a cluster: /32s
    and networks behind container interfaces. Azure's platform addresses are included if packets to
    them leave through another interface than the default route's.

    Args:
        backend: the kernel to query.

    Raises:
        RouteError: the kernel can't be queried.
    """
    default = default_route(read_default_routes(backend))
    devs = () if default is None else default.devs
    found: dict[IpNetwork, set[str]] = {}
    for route in backend.entries(except_plain(devs)):
        others = {*route.devs} - {*devs, "lo"}
        if _is_network(route) and not all(is_like(dev, _CONTAINER_DEVS) for dev in others):
            found.setdefault(route.destination, set()).update(others)
    if default is not None:
        for network, others in _platform(backend, {*devs, "lo"}):
            found.setdefault(network, set()).update(others)
    return {network: tuple(sorted(found[network])) for network in sorted(found, key=numbers)}


def _platform(backend: RouteBackend, usual: set[str]) -> Iterator[tuple[IpNetwork, set[str]]]:
    """Yield platform addresses, each with the interfaces other than ``usual`` that lead to it."""
    for lookup in backend.lookup(_PLATFORM):
        if lookup.route is None or lookup.route.type is not RouteType.UNICAST:
            continue
        others = {*lookup.route.devs} - usual
        if others:
            yield Family.IPV4.network((int(lookup.address), 32)), others


def _is_network(route: Route) -> bool:
    """Return whether a route leads from table main to a private network, not a single address."""
    network = route.destination
    if route.table != Table.MAIN or not 0 < network.prefixlen < 32:
        return False
    return any(is_inside(network, private) for private in _PRIVATE)
