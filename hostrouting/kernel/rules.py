"""Pure: decide which policy rules match a packet from this host."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address
from typing import NamedTuple

from hostrouting.model.links import Hardware, Link
from hostrouting.model.routes import Protocol, Scope, Table
from hostrouting.model.rules import Rule

# The kernel compares rules with this address until a source is chosen.
NO_SOURCE = IPv4Address(0)

TCP, UDP = 6, 17

LOOPBACK = "lo"

# fib_default_rules_init in net/ipv4/fib_rules.c.
KERNEL_RULES = tuple(
    Rule(preference, table=table, protocol=Protocol.KERNEL)
    for preference, table in ((0, Table.LOCAL), (32766, Table.MAIN), (32767, Table.DEFAULT))
)


class Flow(NamedTuple):
    """The key of a lookup (struct flowi4), for a packet from this host with mark 0, tos 0 and uid 0, or for a gateway.

    Args:
        address: the destination.
        source: the source of the packet, if it has one.
        protocol: UDP or TCP, or 0 for a gateway, which can be found through an interface without a carrier.
        oif: the interface that the packet must leave through.
        scope: the lowest scope that an entry may have.
    """

    address: IPv4Address
    source: IPv4Address = NO_SOURCE
    protocol: int = UDP
    oif: str | None = None
    scope: int = Scope.UNIVERSE

    @classmethod
    def to_gateway(cls, gateway: IPv4Address, oif: str | None, scope: int = Scope.UNIVERSE) -> Flow:
        """Return the lookup that the kernel makes for the gateway of a route with some scope (fib_check_nh_v4_gw)."""
        return cls(gateway, NO_SOURCE, 0, oif, max(scope + 1, Scope.LINK))


def loopback_of(links: Iterable[Link]) -> str:
    """Return the name of the loopback interface, or ``lo`` if it isn't among the links."""
    return next((link.name for link in links if link.hardware == Hardware.LOOPBACK), LOOPBACK)


def is_about_other_packets(rule: Rule, loopback: str = LOOPBACK) -> bool:
    """Return whether a rule can't match our packets but may match other packets to the same address.

    Our packets are UDP or TCP with mark 0, tos 0, uid 0, no chosen device and unknown ports.
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
        flow: the packet, or the kernel's lookup for a gateway.
        loopback: the name of the loopback interface, which packets from this host come from.
        lacks_unknown: whether to assume that the packet doesn't match any selector that is unknown here, so that it
            matches an inverted rule.

    Returns:
        Whether the kernel takes the action of the rule, or None if that depends on an unknown selector. The rule of a
        VRF is assumed not to match.
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
    """Return why a rule doesn't match a packet, as a phrase about the first selector that differs."""
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
