"""The addresses of Azure's balancer, the rules that rewrite its probes, and the route for the answers.

All functions are pure. The asset is the complete text except for the device, so it can be read as it is, and tested
with ``nft -c``.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address

from hostrouting.boot.render import fill
from hostrouting.model.parsing import parse_device

# As in AgentBaker's ipv6_nftables: the source of probes, and a source that a node can forward.
PROBE_SOURCE = IPv6Address("fe80::1234:5678:9abc")
REWRITTEN_SOURCE = IPv6Address("2603:1062:0:1:fe80:1234:5678:9abc")

# The name of the part of the installation, and the package that has its assets.
PROBE = "load-balancer-probe"
ROOM = "hostrouting.azure.probe"

TABLE = "azure_slb_probe"

# This also works if there is no such table. nft has its own "destroy" only since after 1.0.6.
REMOVAL = f"table ip6 {TABLE} {{\n}}\ndelete table ip6 {TABLE}\n"

_RULE = re.compile(r'\t\t([io]ifname) "([^"]+)" .* comment "([^"]+)"')


def render_ruleset(device: str) -> str:
    """Render the rules that rewrite the probes that arrive through a device, and their answers.

    Args:
        device: the name of an interface. A number wouldn't do, because the interface may appear later, or again.

    Returns:
        A text for ``nft -f``, which replaces the table's rules in one transaction.

    Raises:
        ValueError: the device isn't the name of an interface.
    """
    return fill(f"{PROBE}.nft", room=ROOM, DEVICE=parse_device(device))


def has_rules(listing: str | None, device: str) -> bool:
    """Return whether a table has exactly the two rules for a device.

    Versions of nft print the same rule differently, so only the words that all versions print are compared.

    Args:
        listing: what nft prints for the table, or None if there is no such table.
        device: the name of the interface.
    """
    lines = (listing or "").splitlines()
    rules = [_RULE.findall(line) for line in lines if re.match(r"\t\t(?!type |#)", line)]
    wanted = [[("iifname", device, "probe in")], [("oifname", device, "answer out")]]
    return rules == wanted and "\tflags dormant" not in lines


def host_route(device: str) -> str:
    """Return the route to the rewritten source, in the syntax of ip(8).

    It has the lowest metric of IPv6 (0 means 1024), so the node's own answers leave through the device at which probes
    arrive, whatever happens to the default route.

    Raises:
        ValueError: the device isn't the name of an interface.
    """
    return f"{REWRITTEN_SOURCE} via {PROBE_SOURCE} dev {parse_device(device)} proto 217 metric 1"
