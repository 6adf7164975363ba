"""Parse the output of ebtables-save into pods' rules, and azure-vnet's state into endpoints.

All functions are pure. A rule is for a pod if its whole line is one of these two, except for the address and the MAC.
If it has another match, option, chain or target, it belongs to another program::

    -A PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.1.0.32 -j arpreply --arpreply-mac a2:06:00:20:0b:06
    -A PREROUTING -p IPv4 -i eth0 --ip-dst 10.1.0.32 -j dnat --to-dst a2:06:00:20:0b:06 --dnat-target ACCEPT

The second one also exists for IPv6, with ``-p IPv6`` and ``--ip6-dst``.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from ipaddress import ip_address
from typing import Any

import attrs

from hostrouting.azure.nodes import AzureVnetError
from hostrouting.model.parsing import IpAddress

# The MAC in azure-vnet's ARP answers in tunnel mode. It belongs to the fabric's virtual gateway and stands for every
# pod.
TUNNEL_MAC = "12:34:56:78:9a:bc"

_MAC_BYTES = 6
_MAC = r"(?P<mac>[0-9a-f]{2}(?::[0-9a-f]{2}){5})"
_ADDRESS = r"(?P<address>[0-9a-f:.]+)"
_FRAMES = rf"(IPv4 -i (?P<uplink>\S+) --ip-dst|IPv6 -i (?P<uplink6>\S+) --ip6-dst) {_ADDRESS}"
_SHAPES = (
    re.compile(rf"-A PREROUTING -p ARP --arp-op Request --arp-ip-dst {_ADDRESS} -j arpreply --arpreply-mac {_MAC}"),
    re.compile(rf"-A PREROUTING -p {_FRAMES} -j dnat --to-dst {_MAC} --dnat-target ACCEPT"),
)


@attrs.frozen
class PodRule:
    """A rule that azure-vnet adds for one address of a pod.

    Args:
        address: the pod's address.
        mac: the MAC in the ARP answers, or the MAC to which frames are sent, as six pairs of lower-case digits.
        uplink: the NIC through which frames arrive, or None if the rule answers ARP.
    """

    address: IpAddress
    mac: str
    uplink: str | None = None

    @property
    def is_tunnel(self) -> bool:
        """Return whether the MAC stands for every pod, and so doesn't show which pod the rule is for."""
        return self.uplink is None and self.mac == TUNNEL_MAC

    def __str__(self) -> str:
        return f"arpreply {self.mac}" if self.uplink is None else f"dnat {self.mac} from {self.uplink}"


def parse_pod_rule(line: str) -> PodRule | None:
    """Parse a line as a rule that azure-vnet adds for a pod.

    Args:
        line: a line of the output of ebtables-save.

    Returns:
        The rule, or None if the line isn't exactly such a rule.
    """
    match = next(filter(None, (shape.fullmatch(line) for shape in _SHAPES)), None)
    if match is None:
        return None
    given = match.groupdict()
    try:
        return PodRule(ip_address(given["address"]), given["mac"], given.get("uplink") or given.get("uplink6"))
    except ValueError:
        return None


# --- azure-vnet's state ----------------------------------------------------------------------------------------------


@attrs.frozen
class Endpoint:
    """A pod in azure-vnet's state, which may or may not be alive.

    Args:
        interface: the host's end of the pod's veth pair, or an empty string if it is unknown.
        mac: the MAC of the pod's end as six pairs of lower-case digits, or None if it is unknown.
        addresses: the pod's addresses.
    """

    interface: str
    mac: str | None
    addresses: tuple[IpAddress, ...]


def parse_endpoints(text: str, source: str = "azure-vnet's state") -> tuple[Endpoint, ...]:
    """Parse the content of azure-vnet's state file.

    Args:
        text: the file's content, which is empty if azure-vnet hasn't written anything yet.
        source: the name of the file, for errors.

    Returns:
        All endpoints of all networks, in the order of the file.

    Raises:
        AzureVnetError: the text isn't JSON, or contains something that azure-vnet doesn't write.
    """
    try:
        document = json.loads(text) if text.strip() else {}
        return tuple(
            _endpoint(endpoint)
            for interface in _values(_child(document, "Network"), "ExternalInterfaces")
            for network in _values(interface, "Networks")
            for endpoint in _values(network, "Endpoints")
        )
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise AzureVnetError(
            f"can't tell which pods azure-vnet still serves: {source} can't be understood: {error}",
            hint="if azure-vnet isn't writing it just now, have azure-vnet write it again, or move it aside: without "
            "it the interfaces alone decide",
        ) from error


def _child(parent: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a nested object, which Go writes as ``null`` if it is missing."""
    return {} if parent.get(key) is None else parent[key]


def _values(parent: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return [value for value in _child(parent, key).values() if value is not None]


def _endpoint(endpoint: dict[str, Any]) -> Endpoint:
    """Parse an endpoint as Go writes it, with bytes in base64 and addresses as text."""
    interface, text = endpoint.get("HostIfName") or "", endpoint.get("MacAddress")
    mac = b64decode(text, validate=True) if text else None
    if not isinstance(interface, str):
        raise TypeError(f"HostIfName is {interface!r}, not a name")
    if mac is not None and len(mac) != _MAC_BYTES:
        raise ValueError(f"MacAddress is {text!r}, not six bytes in base64")
    addresses = [ip_address(item["IP"]) for item in endpoint.get("IPAddresses") or ()]
    return Endpoint(interface, None if mac is None else mac.hex(":"), tuple(addresses))
