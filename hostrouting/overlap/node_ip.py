"""Read the node and DNS addresses that a document has next to ``hostRouting``, which are only used for notes.

Other components use these keys, and secrets are stored next to them. Therefore no other key is read, a key with an
unexpected type is ignored, and the values never reach a config, a mapping, a file or a script.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address
from typing import NamedTuple

from hostrouting.config.routing import RouteOverlap
from hostrouting.kernel.nexthops import unicast_defaults
from hostrouting.model.links import Address
from hostrouting.model.parsing import parse_unicast_address
from hostrouting.model.routes import Route


class NodeAddresses(NamedTuple):
    """Addresses that the document gives to other components.

    Args:
        node_ip: the kubelet's address, ``node.kubelet.nodeIP``; or None if the document has no valid one.
        dns_service_ip: the address of the cluster's DNS, ``networking.dnsServiceIP``, or None if there is no valid one.
    """

    node_ip: IPv4Address | None = None
    dns_service_ip: IPv4Address | None = None

    @classmethod
    def of(cls, document: object) -> NodeAddresses:
        """Read the addresses from a document of any shape."""
        return cls(_address(document, "node", "kubelet", "nodeIP"), _address(document, "networking", "dnsServiceIP"))


# The value if there is no document, or if it has none of these keys.
NONE_GIVEN = NodeAddresses()


def _address(document: object, *keys: str) -> IPv4Address | None:
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    # A dual-stack node has two addresses, separated by a comma.
    for word in document.split(",") if isinstance(document, str) else ():
        try:
            return parse_unicast_address(word.strip())
        except ValueError:
            continue
    return None


class Misfit(NamedTuple):
    """An address that doesn't fit the host or the expected CIDRs.

    Args:
        key: the address's key in the document.
        message: the problem and its consequence.
        hint: how to fix it.
        devs: the interfaces that have the address.
    """

    key: str
    message: str
    hint: str
    devs: tuple[str, ...] = ()


def misfits(
    given: NodeAddresses,
    overlap: RouteOverlap,
    addresses: Sequence[Address],
    uplinks: Sequence[str],
    defaults: Iterable[Route],
) -> Iterator[Misfit]:
    """Yield a misfit for each address that doesn't fit.

    Args:
        given: the addresses in the document.
        overlap: the expected CIDRs.
        addresses: the host's addresses.
        uplinks: the names of the uplinks.
        defaults: the default routes. An interface that has one may be the intended uplink.
    """
    devs = tuple(sorted({each.dev for each in addresses if each.local == given.node_ip}))
    if given.node_ip is not None and not set(devs) & set(uplinks):
        own = next((f"{each.local}, which {each.dev} has" for each in addresses if each.dev in uplinks), "an uplink's")
        where = f"is an address of {','.join(devs)} and of no uplink" if devs else "is an address of no interface"
        message = f"{given.node_ip} {where}, and the cluster expects the kubelet there"
        hint = f"set it to {own}"
        if meant := [dev for dev in devs if any(dev in route.devs for route in unicast_defaults(defaults))]:
            hint = f"if the cluster is reached through {','.join(meant)}, name that in hostRouting.uplinks; else {hint}"
        yield Misfit("node.kubelet.nodeIP", message, hint, devs)
    dns = given.dns_service_ip
    if dns is not None and not any(dns in expected.cidr for expected in overlap.expected_cidrs):
        message = f"{dns} lies in no expected CIDR, so no check covers it"
        yield Misfit("networking.dnsServiceIP", message, "name the Services' CIDR in routeOverlap.expectedCidrs")
