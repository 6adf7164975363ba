"""Pure: the addresses of Azure's balancer, the rules that rewrite its probes, and the route of the answers.

The asset is the whole text without the device, so that it can be read, and tried with ``nft -c``, as it is.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address

from hostrouting.boot.render import fill
from hostrouting.model.parsing import parse_device

# AgentBaker's ipv6_nftables: where probes come from, and what a node can forward instead.
PROBE_SOURCE = IPv6Address("fe80::1234:5678:9abc")
REWRITTEN_SOURCE = IPv6Address("2603:1062:0:1:fe80:1234:5678:9abc")

# The part of the installation, and the package that has its assets.
PROBE = "load-balancer-probe"
ROOM = "hostrouting.azure.probe"

TABLE = "azure_slb_probe"

# Fine also where there is no such table: nft's own "destroy" came after 1.0.6.
REMOVAL = f"table ip6 {TABLE} {{\n}}\ndelete table ip6 {TABLE}\n"

_RULE = re.compile(r'\t\t([io]ifname) "([^"]+)" .* comment "([^"]+)"')


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


def has_rules(listing: str | None, device: str) -> bool:
    """Tell whether a table has the two rules for a device, and no others.

    Versions of nft print the same rule in different words, so only the words that all of them share are compared.

    Args:
        listing: what nft prints of the table; None if there is none.
        device: the name of the interface.
    """
    lines = (listing or "").splitlines()
    rules = [_RULE.findall(line) for line in lines if re.match(r"\t\t(?!type |#)", line)]
    wanted = [[("iifname", device, "probe in")], [("oifname", device, "answer out")]]
    return rules == wanted and "\tflags dormant" not in lines


def host_route(device: str) -> str:
    """Return the route to the rewritten source, as ip(8) takes and prints it.

    Its metric is the lowest of IPv6 (0 means 1024): answers of the node itself go back by the device that probes come
    in by, whatever becomes of the default route.

    Raises:
        ValueError: the device isn't the name of an interface.
    """
    return f"{REWRITTEN_SOURCE} via {PROBE_SOURCE} dev {parse_device(device)} proto 217 metric 1"
