"""Find private networks that leave through other interfaces than the default route, and may hide a cluster."""

from __future__ import annotations

from ipaddress import IPv4Network

from hostrouting.config.routing import RouteOverlap
from hostrouting.kernel.nexthops import default_route
from hostrouting.kernel.port import RouteBackend
from hostrouting.model.links import is_like
from hostrouting.model.routes import Table

# The networks of a cluster are in these ranges of RFC 1918 and RFC 6598.
_PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))


def taken_networks(backend: RouteBackend) -> dict[IPv4Network, tuple[str, ...]]:
    """Return the private networks that table main routes through other interfaces, sorted, each with its interfaces.

    Routes to single addresses and through container interfaces are left out, because they can't hide a cluster.

    Args:
        backend: the kernel to query.

    Raises:
        RouteError: the kernel can't be queried.
    """
    default = default_route(backend.default_routes())
    usual = {*(default.devs if default else ()), "lo"}
    found: dict[IPv4Network, set[str]] = {}
    for route in backend.routes_except(default.devs if default else ()):
        network, others = route.destination, {*route.devs} - usual
        is_pod = all(is_like(dev, RouteOverlap(()).container_devs) for dev in others)
        is_private = any(network.subnet_of(private) for private in _PRIVATE)
        if route.table == Table.MAIN and 0 < network.prefixlen < 32 and is_private and not is_pod:
            found.setdefault(network, set()).update(others)
    return {network: tuple(sorted(devs)) for network, devs in sorted(found.items())}
