r"""Parse the output of ebtables-save and azure-vnet's state file.

This module does no I/O. A pod's rule is one of these two lines, with the pod's address and MAC, and
the node's NIC. Any other rule belongs to another program::

    -A PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.1.0.32 \
        -j arpreply --arpreply-mac a2:06:00:20:0b:06
    -A PREROUTING -p IPv4 -i eth0 --ip-dst 10.1.0.32 \
        -j dnat --to-dst a2:06:00:20:0b:06 --dnat-target ACCEPT

The second line has an IPv6 variant with ``-p IPv6`` and ``--ip6-dst``.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from ipaddress import ip_address
from typing import Any

from hostrouting.azure.nodes import AzureVnetError
from hostrouting.model.family import IpAddress
from hostrouting.model.values import frozen

# The MAC of the virtual gateway of Azure's network. In tunnel mode, azure-vnet's ARP rules have
# this MAC for all pods.
TUNNEL_MAC = "12:34:56:78:9a:bc"

_MAC_BYTES = 6
_MAC = r"(?P<mac>[0-9a-f]{2}(?::[0-9a-f]{2}){5})"
_ADDRESS = r"(?P<address>[0-9a-f:.]+)"
_FRAMES = rf"(IPv4 -i (?P<uplink>\S+) --ip-dst|IPv6 -i (?P<uplink6>\S+) --ip6-dst) {_ADDRESS}"
_SHAPES = (
    re.compile(
        rf"-A PREROUTING -p ARP --arp-op Request --arp-ip-dst {_ADDRESS} "
        rf"-j arpreply --arpreply-mac {_MAC}"
    ),
    re.compile(rf"-A PREROUTING -p {_FRAMES} -j dnat --to-dst {_MAC} --dnat-target ACCEPT"),
)


@frozen
class PodRule:
    """A rule added by azure-vnet for a pod address.

    Args:
        address: the pod's address.
        mac: the MAC in ARP replies or, for a DNAT rule, the new destination MAC of the frames, as
            six lower-case hex pairs.
        uplink: the NIC that receives the frames, or None for an ARP rule.
    """

    address: IpAddress
    mac: str
    uplink: str | None = None

    @property
    def is_tunnel(self) -> bool:
        """Return whether the MAC is the one that all pods share, so that it identifies no pod."""
        return self.uplink is None and self.mac == TUNNEL_MAC

    def __str__(self) -> str:
        if self.uplink is None:
            return f"arpreply {self.mac}"
        return f"dnat {self.mac} from {self.uplink}"


def parse_pod_rule(line: str) -> PodRule | None:
    """Parse a line of ebtables-save output as a pod rule; return None for any other line."""
    match = next(filter(None, (shape.fullmatch(line) for shape in _SHAPES)), None)
    if match is None:
        return None
    given = match.groupdict()
    uplink = given.get("uplink") or given.get("uplink6")
    try:
        return PodRule(ip_address(given["address"]), given["mac"], uplink)
    except ValueError:
        return None


# --- azure-vnet's state ---------------------------------------------------------------------------


@frozen
class Endpoint:
    """A pod in azure-vnet's state file, which may also list pods that are gone.

    Args:
        interface: the host end of the pod's veth pair; empty if it isn't known.
        mac: the MAC of the pod end, as six lower-case hex pairs; None if it isn't known.
        addresses: the pod's addresses.
    """

    interface: str
    mac: str | None
    addresses: tuple[IpAddress, ...]


def parse_endpoints(text: str, source: str = "azure-vnet's state") -> tuple[Endpoint, ...]:
    """Parse azure-vnet's state file.

    Args:
        text: the file's content; empty if azure-vnet hasn't written the file yet.
        source: the file name for error messages.

    Returns:
        The endpoints of all networks, in file order.

    Raises:
        AzureVnetError: the text isn't JSON, or has an unexpected structure.
    """
    try:
        document = json.loads(text) if text.strip() else {}
        endpoints: list[Endpoint] = []
        for interface in _values(_child(document, "Network"), "ExternalInterfaces"):
            for network in _values(interface, "Networks"):
                endpoints += map(_endpoint, _values(network, "Endpoints"))
        return tuple(endpoints)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise AzureVnetError(
            f"can't tell which pods azure-vnet still serves: {source} can't be understood: {error}",
            hint="if azure-vnet isn't writing it just now, have azure-vnet write it again, or move "
            "it aside: without it the interfaces alone decide",
        ) from error


def _child(parent: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a nested object, treating ``null`` (Go's nil) as empty."""
    return {} if parent.get(key) is None else parent[key]


def _values(parent: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return [value for value in _child(parent, key).values() if value is not None]


def _endpoint(endpoint: dict[str, Any]) -> Endpoint:
    """Parse an endpoint in Go's JSON format, with bytes in base64 and addresses as strings."""
    interface = endpoint.get("HostIfName") or ""
    text = endpoint.get("MacAddress")
    mac = b64decode(text, validate=True) if text else None
    if not isinstance(interface, str):
        raise TypeError(f"HostIfName is {interface!r}, not a name")
    if mac is not None and len(mac) != _MAC_BYTES:
        raise ValueError(f"MacAddress is {text!r}, not six bytes in base64")
    addresses = [ip_address(item["IP"]) for item in endpoint.get("IPAddresses") or ()]
    return Endpoint(interface, None if mac is None else mac.hex(":"), tuple(addresses))
