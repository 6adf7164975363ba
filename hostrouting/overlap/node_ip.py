"""The addresses of node and DNS that a document holds beside ``hostRouting``, for a note about them and nothing else.

Other components read these keys, and tokens stand beside them. So no other key is read, one of another shape is passed
over, and nothing of them reaches a config, a mapping, a file or a script.
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
    """Addresses that other components are given.

    Args:
        node_ip: the kubelet's, ``node.kubelet.nodeIP``; None: there is none that can be read.
        dns_service_ip: of the cluster's DNS, ``networking.dnsServiceIP``; likewise.
    """

    node_ip: IPv4Address | None = None
    dns_service_ip: IPv4Address | None = None

    @classmethod
    def of(cls, document: object) -> NodeAddresses:
        """Read the addresses from a document, whatever its shape."""
        return cls(_address(document, "node", "kubelet", "nodeIP"), _address(document, "networking", "dnsServiceIP"))


# Of no document, or of one without these keys.
NONE_GIVEN = NodeAddresses()


def _address(document: object, *keys: str) -> IPv4Address | None:
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    # Of a node with both families there are two, with a comma.
    for word in document.split(",") if isinstance(document, str) else ():
        try:
            return parse_unicast_address(word.strip())
        except ValueError:
            continue
    return None


class Misfit(NamedTuple):
    """An address that doesn't fit the host, or what is expected.

    Args:
        key: where the document has it.
        message: what is wrong and what follows from it.
        hint: what to do.
        devs: the interfaces that have it.
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
    """Yield each address that doesn't fit.

    Args:
        given: by the document.
        overlap: the expected CIDRs.
        addresses: of the host.
        uplinks: their names.
        defaults: the default routes; an interface that has one may be the uplink that is meant.
    """
    devs = tuple(sorted({each.dev for each in addresses if each.local == given.node_ip}))
    if given.node_ip is not None and not set(devs) & set(uplinks):
        own = next((f"{each.local}, which {each.dev} has" for each in addresses if each.dev in uplinks), "an uplink's")
        where = f"is an address of {','.join(devs)} and of no uplink" if devs else "is an address of no interface"
        message = f"{given.node_ip} {where}, and the cluster is told to reach the kubelet there"
        hint = f"set it to {own}"
        if meant := [dev for dev in devs if any(dev in route.devs for route in unicast_defaults(defaults))]:
            hint = f"if the cluster is reached by {','.join(meant)}, name that in hostRouting.uplinks; else {hint}"
        yield Misfit("node.kubelet.nodeIP", message, hint, devs)
    dns = given.dns_service_ip
    if dns is not None and not any(dns in expected.cidr for expected in overlap.expected_cidrs):
        message = f"{dns} lies in no expected CIDR, so no check looks where it leads"
        yield Misfit("networking.dnsServiceIP", message, "name the Services' CIDR in routeOverlap.expectedCidrs")
