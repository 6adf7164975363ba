"""Pure: the addresses of Azure's balancer, and the rules that rewrite its probes as nft(8) reads them.

The asset is the whole text but for the device, so that it can be read, and tried with ``nft -c``, as it is.
"""

from __future__ import annotations

from ipaddress import IPv6Address

from hostrouting.boot.render import fill
from hostrouting.model.parsing import parse_device

# AgentBaker's ipv6_nftables: where probes come from, and what a node can forward instead.
PROBE_SOURCE = IPv6Address("fe80::1234:5678:9abc")
REWRITTEN_SOURCE = IPv6Address("2603:1062:0:1:fe80:1234:5678:9abc")

# The part of the installation, and this room, which has its assets.
PROBE = "load-balancer-probe"
ROOM = "hostrouting.azure.probe"

TABLE = "azure_slb_probe"

# Fine also where there is no such table: nft's own "destroy" came after 1.0.6.
REMOVAL = f"table ip6 {TABLE} {{\n}}\ndelete table ip6 {TABLE}\n"


def render_ruleset(device: str) -> str:
    """Render the rules that rewrite probes that come in by a device, and what answers them.

    Args:
        device: the name of an interface; no number: it may come later, or again.

    Returns:
        A text for ``nft -f``: one transaction that replaces what is there of the table.

    Raises:
        ValueError: it isn't the name of an interface.
    """
    return fill(f"{PROBE}.nft", room=ROOM, DEVICE=parse_device(device))
