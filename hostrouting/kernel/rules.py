"""Pure: decide which policy rules match a packet of this host."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address
from typing import NamedTuple

from hostrouting.model.links import Hardware, Link
from hostrouting.model.routes import Protocol, Scope, Table
from hostrouting.model.rules import Rule

# The kernel compares with this address as long as no source is chosen.
NO_SOURCE = IPv4Address(0)

TCP, UDP = 6, 17

LOOPBACK = "lo"

# fib_default_rules_init in net/ipv4/fib_rules.c.
KERNEL_RULES = tuple(
    Rule(preference, table=table, protocol=Protocol.KERNEL)
    for preference, table in ((0, Table.LOCAL), (32766, Table.MAIN), (32767, Table.DEFAULT))
)


class Flow(NamedTuple):
    """The key of a lookup (struct flowi4): a packet of this host with mark 0, tos 0 and uid 0, or a gateway.

    Args:
        address: the destination.
        source: the packet's source, if one is chosen.
        protocol: UDP or TCP; 0 for a gateway, which can be found through an interface without carrier.
        oif: the interface that the packet must leave through.
        scope: the least scope of the entries that count.
    """

    address: IPv4Address
    source: IPv4Address = NO_SOURCE
    protocol: int = UDP
    oif: str | None = None
    scope: int = Scope.UNIVERSE

    @classmethod
    def to_gateway(cls, gateway: IPv4Address, oif: str | None, scope: int = Scope.UNIVERSE) -> Flow:
        """Return the kernel's own lookup for the gateway of a route of some scope (fib_check_nh_v4_gw)."""
        return cls(gateway, NO_SOURCE, 0, oif, max(scope + 1, Scope.LINK))


def loopback_of(links: Iterable[Link]) -> str:
    """Return the name of the interface that this host's packets come from; ``lo`` if it isn't among the links."""
    return next((link.name for link in links if link.hardware == Hardware.LOOPBACK), LOOPBACK)


def is_about_other_packets(rule: Rule, loopback: str = LOOPBACK) -> bool:
    """Return whether a rule can't match our packets, but may match others to the same address.

    Our packets have mark 0, tos 0, uid 0, no chosen device, and are UDP or TCP with unknown ports.
    """
    selects = (
        rule.mark is not None
        or rule.oif is not None
        or rule.iif not in (None, loopback)
        or rule.uid_range is not None
        or rule.tos != 0
        or rule.tun_id != 0
        or rule.ip_protocol not in (0, TCP, UDP)
    )
    if rule.has_ports or rule.has_unknown:
        return True
    anywhere = rule.destination.network_address if rule.destination is not None else IPv4Address(0)
    source = rule.source.network_address if rule.source is not None else NO_SOURCE
    flows = (Flow(anywhere, source, protocol) for protocol in (UDP, TCP))
    return selects and not any(matches(rule, flow, loopback) for flow in flows)


def matches(rule: Rule, flow: Flow, loopback: str = LOOPBACK, *, lacks_unknown: bool = False) -> bool | None:
    """Return whether a rule matches a packet (fib_rule_match in net/core/fib_rules.c, fib4_rule_match).

    Args:
        rule: a policy rule.
        flow: the packet, or the kernel's own lookup for a gateway.
        loopback: the name of the interface that this host's packets come from.
        lacks_unknown: whether the packet has none of the selectors that are unknown here: then it matches an inverted
            rule for them.

    Returns:
        Whether the rule's action is taken; None: that depends on something unknown. A VRF's rule is assumed not to
        match.
    """
    is_match = (
        (rule.destination is None or flow.address in rule.destination)
        and (rule.mark is None or rule.mark & rule.mark_mask == 0)
        and (rule.source is None or flow.source in rule.source)
        and rule.oif in (None, flow.oif)
        and rule.iif in (None, loopback)
        and (rule.uid_range is None or rule.uid_range[0] == 0)
        and rule.tos == 0
        and rule.tun_id == 0
        and rule.ip_protocol in (0, flow.protocol)
        and not rule.has_ports
        and not rule.is_l3mdev
    )
    if is_match and rule.has_unknown:
        return rule.is_inverted if lacks_unknown else None
    return is_match != rule.is_inverted


def why_unmet(rule: Rule, flow: Flow, loopback: str = LOOPBACK) -> str:
    """Return why a rule doesn't match a packet: the first selector that differs, in words."""
    if rule.has_unknown:
        return "it has a selector that isn't known here"
    if rule.is_inverted:
        return "it applies to all packets except these"
    ends = [str(end).removesuffix("/32") for end in (rule.destination, rule.source)]
    unchosen = " and no source is chosen yet" if flow.source == NO_SOURCE else ""
    protocol = {TCP: "TCP", UDP: "UDP"}.get(rule.ip_protocol, f"protocol {rule.ip_protocol}")
    is_about = (
        (rule.is_l3mdev, "packets of VRFs"),
        (rule.destination is not None and flow.address not in rule.destination, f"packets to {ends[0]}"),
        (rule.source is not None and flow.source not in rule.source, f"packets from {ends[1]}{unchosen}"),
        (rule.mark is not None and rule.mark & rule.mark_mask != 0, "packets with a mark"),
        (rule.oif is not None, f"sockets bound to {rule.oif}"),
        (rule.iif not in (None, loopback), f"packets that come in through {rule.iif}"),
        (rule.uid_range is not None and rule.uid_range[0] > 0, "other users' packets"),
        (rule.tos != 0, "packets with a tos"),
        (rule.tun_id != 0, "packets out of a tunnel"),
        (rule.ip_protocol not in (0, flow.protocol), f"{protocol} alone"),
        (rule.has_ports, "certain ports, which aren't known here"),
    )
    return f"it applies to {next(words for is_so, words in is_about if is_so)}"
