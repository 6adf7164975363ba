"""Find networks that aren't routed through the default route's interfaces and may shadow a cluster."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from hostrouting.config.routing import RouteOverlap
from hostrouting.kernel.default_routes import default_route
from hostrouting.kernel.port import RouteBackend, read_default_routes
from hostrouting.kernel.selection import except_plain
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.integer_prefixes import numbers
from hostrouting.model.links import is_like
from hostrouting.model.parsing import is_inside
from hostrouting.model.routes import RouteType, Table

# Cluster networks are in these private ranges (RFC 1918, RFC 6598).
_PRIVATE = tuple(
    map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"))
)

# Addresses of Azure's platform: one for DNS, health probes and the agent, and that of the metadata
# service, which other clouds use too.
_PLATFORM = (IPv4Address("168.63.129.16"), IPv4Address("169.254.169.254"))


def taken_networks(backend: RouteBackend) -> dict[IpNetwork, tuple[str, ...]]:
    """Return networks that are routed through other interfaces, mapped to the interface names.

    These are private networks in table main, except /32s and networks behind container interfaces,
    which can't shadow a cluster. They also include Azure's platform addresses if these are routed
    through an interface other than the default route's.

    Args:
        backend: the kernel to query.

    Raises:
        RouteError: the kernel can't be queried.
    """
    default = default_route(read_default_routes(backend))
    usual = {*(default.devs if default else ()), "lo"}
    found: dict[IpNetwork, set[str]] = {}
    for route in backend.entries(except_plain(default.devs if default else ())):
        network, others = route.destination, {*route.devs} - usual
        is_pod = all(is_like(dev, RouteOverlap(()).container_devs) for dev in others)
        is_private = any(is_inside(network, private) for private in _PRIVATE)
        if route.table == Table.MAIN and 0 < network.prefixlen < 32 and is_private and not is_pod:
            found.setdefault(network, set()).update(others)
    for lookup in backend.lookup(_PLATFORM) if default is not None else ():
        answer = lookup.route
        if (
            answer is not None
            and answer.type is RouteType.UNICAST
            and (others := {*answer.devs} - usual)
        ):
            found.setdefault(Family.IPV4.network((int(lookup.address), 32)), set()).update(others)
    return {network: tuple(sorted(found[network])) for network in sorted(found, key=numbers)}
