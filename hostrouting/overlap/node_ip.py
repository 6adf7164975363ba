"""Read the node and DNS addresses that a document has next to ``hostRouting``. They are only used for notes.

These keys belong to other components, and there are secrets next to them. So no other key is read, values of an
unexpected type are ignored, and the values never end up in a config, a mapping, a file or a script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address
from typing import NamedTuple

from hostrouting.config.routing import RouteOverlap
from hostrouting.kernel.nexthops import unicast_defaults
from hostrouting.model.parsing import parse_unicast_address
from hostrouting.overlap._state import State
from hostrouting.overlap.findings import Note, NoteKind


class NodeAddresses(NamedTuple):
    """Addresses that the document configures for other components.

    Args:
        node_ip: the kubelet's address (``node.kubelet.nodeIP``), or None if missing or invalid.
        dns_service_ip: the cluster DNS address (``networking.dnsServiceIP``), or None if missing or invalid.
    """

    node_ip: IPv4Address | None = None
    dns_service_ip: IPv4Address | None = None

    @classmethod
    def of(cls, document: object) -> NodeAddresses:
        """Read the addresses from a document, ignoring invalid values."""
        return cls(_address(document, "node", "kubelet", "nodeIP"), _address(document, "networking", "dnsServiceIP"))


# The default if there is no document, or if it has neither key.
NONE_GIVEN = NodeAddresses()


def _address(document: object, *keys: str) -> IPv4Address | None:
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    # A dual-stack node has two addresses separated by a comma.
    for word in document.split(",") if isinstance(document, str) else ():
        try:
            return parse_unicast_address(word.strip())
        except ValueError:
            continue
    return None


def notes_on(given: NodeAddresses, overlap: RouteOverlap, state: State) -> Iterator[Note]:
    """Yield a note for each address that is inconsistent with the host or the expected CIDRs."""
    addresses, uplinks = state.addresses, state.uplinks
    devs = tuple(sorted({each.dev for each in addresses if each.local == given.node_ip}))
    if given.node_ip is not None and not set(devs) & set(uplinks):
        own = next((f"{each.local}, which {each.dev} has" for each in addresses if each.dev in uplinks), "an uplink's")
        where = f"is an address of {','.join(devs)} and of no uplink" if devs else "is an address of no interface"
        hint = f"set it to {own}"
        # An interface with a default route may be the intended uplink.
        if meant := [dev for dev in devs if any(dev in route.devs for route in unicast_defaults(state.routes))]:
            hint = f"if the cluster is reached through {','.join(meant)}, name that in hostRouting.uplinks; else {hint}"
        message = f"{given.node_ip} {where}, and the cluster expects the kubelet there; {hint}"
        yield Note(NoteKind.NODE_IP, f"node.kubelet.nodeIP: {message}", devs=devs)
    dns = given.dns_service_ip
    if dns is not None and not any(dns in expected.cidr for expected in overlap.expected_cidrs):
        message = f"{dns} lies in no expected CIDR, so no check covers it"
        hint = "name the Services' CIDR in routeOverlap.expectedCidrs"
        yield Note(NoteKind.NODE_IP, f"networking.dnsServiceIP: {message}; {hint}")
