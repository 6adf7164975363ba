"""Render the probe's nftables rules, the route for its replies, and its files for each boot.

This module does no I/O. The rules are in a template, which lacks only the device name.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address

from hostrouting.azure.config import HostNetworking, LoadBalancerProbe
from hostrouting.boot.layout import Layout
from hostrouting.boot.parts import BootFile, Part
from hostrouting.boot.render import fill
from hostrouting.model.parsing import parse_device

# The source address of probes, and the address that replaces it. A node can forward packets from
# the new address. AgentBaker's ipv6_nftables uses the same two addresses.
PROBE_SOURCE = IPv6Address("fe80::1234:5678:9abc")
REWRITTEN_SOURCE = IPv6Address("2603:1062:0:1:fe80:1234:5678:9abc")

# The name of the part to install, and the package that has its templates.
PROBE = "load-balancer-probe"
PACKAGE = "hostrouting.azure.probe"

TABLE = "azure_slb_probe"

# The command "delete" fails without a table, so make the table first. nft 1.0.6 and older lack the
# command "destroy".
REMOVAL = f"table ip6 {TABLE} {{\n}}\ndelete table ip6 {TABLE}\n"

_RULE = re.compile(r'\t\t([io]ifname) "([^"]+)" .* comment "([^"]+)"')


def render_ruleset(device: str) -> str:
    """Render the rules that rewrite probes and replies on an interface.

    Args:
        device: the interface name. The rules contain the name, because the interface's index may
            change.

    Returns:
        An nft script that replaces the table's rules in one transaction.

    Raises:
        ValueError: the device isn't a valid interface name.
    """
    return fill(f"{PROBE}.nft", package=PACKAGE, DEVICE=parse_device(device))


def has_rules(listing: str | None, device: str) -> bool:
    """Return whether a table contains exactly the two rules for an interface.

    Only the parts that all versions of nft print in the same way are compared.

    Args:
        listing: nft's listing of the table; None if the table doesn't exist.
        device: the interface name.
    """
    lines = (listing or "").splitlines()
    rules = [_RULE.findall(line) for line in lines if re.match(r"\t\t(?!type |#)", line)]
    wanted = [[("iifname", device, "probe in")], [("oifname", device, "answer out")]]
    return rules == wanted and "\tflags dormant" not in lines


def host_route(device: str) -> str:
    """Return the route to the rewritten source address in ip(8) syntax.

    With this route, the node's replies leave through the interface that receives the probes,
    whatever the default route is. The metric is the lowest possible: for IPv6, 0 means 1024.

    Raises:
        ValueError: the device isn't a valid interface name.
    """
    return f"{REWRITTEN_SOURCE} via {PROBE_SOURCE} dev {parse_device(device)} proto 218 metric 1"


# --- files for the next boot ----------------------------------------------------------------------

_HEADER = "# Written by hostrouting; to uninstall: hostrouting lb-probe remove\n"
# This command loads our rules. The command is added to other units that flush all rules. With "-",
# a failure of the command doesn't affect the unit. With "+", the command runs outside the unit's
# sandbox.
_GIVE_BACK = f"-+/usr/sbin/nft -f /etc/aks-flex-node/{PROBE}.nft"
FLUSH_DROP_INS = {
    # This service flushes the ruleset when it starts, reloads and stops.
    "nftables.service": (
        f"{_HEADER}[Service]\nExecStartPost={_GIVE_BACK}\nExecReload={_GIVE_BACK}\nExecStopPost={_GIVE_BACK}\n"
    ),
    # The condition skips nftables-flush.service if nft is missing. Otherwise this service would
    # fail. The Go package's machines require the service, so they would fail, too. Restart= doesn't
    # retry after such a failure (Result=dependency).
    "nftables-flush.service": (
        f"{_HEADER}[Unit]\nConditionFileIsExecutable=/usr/sbin/nft\n\n[Service]\nExecStartPost={_GIVE_BACK}\n"
    ),
}
# Each start of the consumer runs the probe unit again. The consumer starts even if loading the
# rules fails. The consumer is also ordered after the flush units, because a flush may start while
# the probe unit is running.
_CONSUMER = (
    f"{_HEADER}[Unit]\nWants={PROBE}.service\nAfter={PROBE}.service {' '.join(FLUSH_DROP_INS)}\n"
)


def probe_part(device: str, consumer: str, layout: Layout) -> Part:
    """Return the part that loads the rules at boot and after each ruleset flush.

    Args:
        device: the interface that receives probes and sends the replies.
        consumer: the unit to start after the rules are loaded.

    Raises:
        ValueError: the device isn't a valid interface name.
    """
    unit_text = fill(f"{PROBE}.service", package=PACKAGE, ROUTE=host_route(device))
    drop_ins = [
        BootFile(layout.units / f"{unit}.d/hostrouting-{PROBE}.conf", text)
        for unit, text in {consumer: _CONSUMER, **FLUSH_DROP_INS}.items()
    ]
    return Part(
        PROBE,
        is_gated=False,
        # ipv6_detection isn't included, because only the installation, not the boot, looks for
        # IPv6.
        config=HostNetworking(LoadBalancerProbe(True, (device,))).to_mapping(),
        files=(
            BootFile(layout.script(PROBE).with_suffix(".nft"), render_ruleset(device)),
            BootFile(layout.unit(PROBE), unit_text),
            *drop_ins,
        ),
    )
