"""A node with azure-vnet's leftovers, one live pod and one dead pod."""

from __future__ import annotations

import base64
import json
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from hostrouting.azure.config import HostNetworking, StaleAzureVnet
from hostrouting.azure.vnet.bridge import Interface, Neighbour, NodeState

NIC_MAC, GONE_MAC, LIVE_MAC, TUNNEL_MAC = (
    "00:0d:3a:01:02:03",
    "a2:06:00:20:0b:06",
    "a2:06:00:20:0b:07",
    "12:34:56:78:9a:bc",
)
GONE, LIVE, OWN, GATEWAY = map(IPv4Address, ("10.1.0.32", "10.1.0.33", "10.1.0.4", "10.1.0.1"))
GONE6 = IPv6Address("fd00::32")
CIDRS = ("10.1.0.0/24", "fd00::/64")

SNAT = (
    f"-A POSTROUTING -s Unicast -o eth0 -j snat --to-src {NIC_MAC} --snat-arp --snat-target ACCEPT"
)
ARP_REPLIES = (
    "-A PREROUTING -p ARP -i eth0 --arp-op Reply "
    "-j dnat --to-dst ff:ff:ff:ff:ff:ff --dnat-target ACCEPT"
)


def dnat(address: object, mac: str = GONE_MAC, uplink: str = "eth0") -> str:
    family, option = (
        ("IPv4", "--ip-dst") if ip_address(str(address)).version == 4 else ("IPv6", "--ip6-dst")
    )
    return (
        f"-A PREROUTING -p {family} -i {uplink} {option} {address} "
        f"-j dnat --to-dst {mac} --dnat-target ACCEPT"
    )


def arp_reply(address: object, mac: str = GONE_MAC) -> str:
    return (
        f"-A PREROUTING -p ARP --arp-op Request --arp-ip-dst {address} "
        f"-j arpreply --arpreply-mac {mac}"
    )


def neighbour(address: object, mac: str = GONE_MAC) -> Neighbour:
    return Neighbour("azure0", ip_address(str(address)), mac)


INTERFACES = (
    Interface("lo", "00:00:00:00:00:00"),
    Interface("eth0", NIC_MAC, master="azure0"),
    Interface("azure0", NIC_MAC),
    Interface("azvlive", "aa:aa:aa:aa:aa:01", master="azure0", far_mac=LIVE_MAC),
)
NODE_RULES = (SNAT, ARP_REPLIES, arp_reply(OWN, NIC_MAC))
LIVE_RULES = (arp_reply(LIVE, LIVE_MAC), dnat(LIVE, LIVE_MAC))
GONE_RULES = (arp_reply(GONE), dnat(GONE), dnat(GONE6))


def node_state(**fields: Any) -> NodeState:
    """Return the node's state with some fields replaced."""
    given: dict[str, Any] = {
        "rules": (*NODE_RULES, *LIVE_RULES, *GONE_RULES),
        "interfaces": INTERFACES,
        "gateways": (GATEWAY,),
        "neighbours": (neighbour(LIVE, LIVE_MAC), neighbour(GONE)),
    }
    return NodeState(**(given | fields))


def state(*endpoints: tuple[str, str | None, str], **more: Any) -> str:
    """Return azure-vnet's state file for endpoints given as (host interface, MAC, address)."""
    listed = {
        f"{number}-eth0": {
            "HostIfName": interface,
            "IfName": "eth0",
            "MacAddress": None
            if mac is None
            else base64.b64encode(bytes.fromhex(mac.replace(":", ""))).decode(),
            "IPAddresses": [{"IP": address, "Mask": "//8AAA=="}],
            "InfraVnetIP": {"IP": "", "Mask": None},
        }
        for number, (interface, mac, address) in enumerate(endpoints)
    }
    networks = {"azure": {"Id": "azure", "Mode": "bridge", "Endpoints": listed} | more}
    return json.dumps(
        {
            "Network": {
                "Version": "v1.1.0",
                "ExternalInterfaces": {"eth0": {"Name": "eth0", "Networks": networks}},
            }
        }
    )


def config(**fields: Any) -> StaleAzureVnet:
    return StaleAzureVnet(**({"cidrs": CIDRS} | fields))


def networking(**fields: Any) -> HostNetworking:
    return HostNetworking(stale_azure_vnet=config(**fields))
