"""Match policy rules against packets from this host. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address
from typing import NamedTuple

from hostrouting.model.family import Family, IpAddress
from hostrouting.model.links import Hardware, Link
from hostrouting.model.routes import Protocol, Scope, Table
from hostrouting.model.rules import Rule, end_words

# The source of an IPv4 or IPv6 packet whose source isn't chosen yet. No IPv6 prefix contains this
# IPv4 address, so no rule with a source prefix matches an IPv6 packet without a source
# (fib6_rule_match).
NO_SOURCE = IPv4Address(0)

TCP = 6
UDP = 17

LOOPBACK = "lo"

# fib_default_rules_init in net/ipv4/fib_rules.c.
KERNEL_RULES = tuple(
    Rule(preference, table=table, protocol=Protocol.KERNEL)
    for preference, table in ((0, Table.LOCAL), (32766, Table.MAIN), (32767, Table.DEFAULT))
)


def kernel_rules(family: Family) -> tuple[Rule, ...]:
    """Return the rules in a new network namespace.

    IPv6 has no rule for table default (fib6_rules_net_init).
    """
    return KERNEL_RULES if family is Family.IPV4 else KERNEL_RULES[:2]


class Flow(NamedTuple):
    """A lookup key (struct flowi4, flowi6) for a gateway, or for a packet without mark and tos.

    Args:
        address: the destination: of the packet, or the gateway.
        source: the source address, or ``NO_SOURCE``.
        protocol: UDP, TCP, or 0 for a gateway lookup, which ignores missing carriers.
        oif: the required output interface, or None.
        scope: the smallest scope of an entry that matches, as a number (universe is 0, link is
            253).
        iif: the interface through which the packet comes in; None for a packet from this host.
    """

    address: IpAddress
    source: IpAddress = NO_SOURCE
    protocol: int = UDP
    oif: str | None = None
    scope: int = Scope.UNIVERSE
    iif: str | None = None

    @classmethod
    def to_gateway(cls, gateway: IpAddress, oif: str | None, scope: int = Scope.UNIVERSE) -> Flow:
        """Return the lookup key for the gateway of a route with a scope (fib_check_nh_v4_gw)."""
        return cls(gateway, NO_SOURCE, 0, oif, max(scope + 1, Scope.LINK))


def loopback_of(links: Iterable[Link]) -> str:
    """Return the name of the loopback interface; ``lo`` if no link is one."""
    return next((link.name for link in links if link.hardware == Hardware.LOOPBACK), LOOPBACK)


def is_about_other_packets(rule: Rule, loopback: str = LOOPBACK) -> bool:
    """Return whether a rule can't match a packet of a check, whatever the packet's addresses are.

    The packets of a check are UDP or TCP with mark 0, tos 0, uid 0, no bound device and unknown
    ports.
    """
    if rule.has_ports or rule.has_unknown:
        return True
    selected = (
        rule.mark is not None,
        rule.oif is not None,
        rule.iif not in (None, loopback),
        rule.uid_range is not None,
        rule.tos != 0,
        rule.tun_id != 0,
        rule.ip_protocol not in (0, TCP, UDP),
    )
    if not any(selected):
        return False
    anywhere = rule.destination.network_address if rule.destination is not None else IPv4Address(0)
    source = rule.source.network_address if rule.source is not None else NO_SOURCE
    flows = [Flow(anywhere, source, protocol) for protocol in (UDP, TCP)]
    return not any(matches(rule, flow, loopback) for flow in flows)


def matches(
    rule: Rule,
    flow: Flow,
    loopback: str = LOOPBACK,
    *,
    lacks_unknown: bool = False,
) -> bool | None:
    """Return whether a rule matches a packet (fib_rule_match, fib4_rule_match).

    Args:
        rule: the rule to match.
        flow: the key for a packet or a gateway lookup.
        loopback: the loopback interface, which is the iif of packets from this host.
        lacks_unknown: whether to assume that unsupported selectors don't match. An inverted rule
            (``not``) with an unsupported selector then matches.

    Returns:
        True or False; None if that depends on an unsupported selector. An l3mdev selector is
        assumed not to match.
    """
    is_match = _mismatch(rule, flow, loopback) is None
    if is_match and rule.has_unknown:
        return rule.is_inverted if lacks_unknown else None
    return is_match != rule.is_inverted


def why_unmet(rule: Rule, flow: Flow, loopback: str = LOOPBACK) -> str:
    """Return why a rule doesn't match: a phrase about the first selector that the packet lacks."""
    if rule.has_unknown:
        return "it has a selector that isn't known here"
    if rule.is_inverted:
        return "it applies to all packets except these"
    words = _mismatch(rule, flow, loopback) or "other packets"
    unchosen = " and no source is chosen yet" if flow.source == NO_SOURCE else ""
    protocol = {TCP: "TCP", UDP: "UDP"}.get(rule.ip_protocol, f"protocol {rule.ip_protocol}")
    ends = {
        "destination": end_words(rule.destination),
        "source": f"{end_words(rule.source)}{unchosen}",
    }
    return f"it applies to {words.format(rule=rule, protocol=protocol, **ends)}"


def _mismatch(rule: Rule, flow: Flow, loopback: str) -> str | None:
    """Return a template of words for the packets that the first unmet selector selects, or None."""
    is_about = (
        (rule.is_l3mdev, "packets of VRFs"),
        (
            rule.destination is not None and flow.address not in rule.destination,
            "packets to {destination}",
        ),
        (rule.source is not None and flow.source not in rule.source, "packets from {source}"),
        (rule.mark is not None and rule.mark & rule.mark_mask != 0, "packets with a mark"),
        (rule.oif not in (None, flow.oif), "sockets bound to {rule.oif}"),
        (rule.iif not in (None, flow.iif or loopback), "packets that come in through {rule.iif}"),
        (rule.uid_range is not None and rule.uid_range[0] > 0, "other users' packets"),
        (rule.tos != 0, "packets with a tos"),
        (rule.tun_id != 0, "packets out of a tunnel"),
        (rule.ip_protocol not in (0, flow.protocol), "{protocol} alone"),
        (rule.has_ports, "certain ports, which aren't known here"),
    )
    return next((words for is_so, words in is_about if is_so), None)
