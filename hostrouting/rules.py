"""Pure: which policy rules a packet of this host meets, and the entry that decides behind them."""

from __future__ import annotations

import errno as errnos
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import attrs

from hostrouting.model import Route, RouteType, Rule, RuleAction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.model import Lookup

__all__ = ["RouteIndex", "discarding_route", "is_about_other_packets"]

# A look-up that names no transport protocol counts as one of a UDP packet (inet_rtm_getroute in net/ipv4/route.c).
_UDP = 17

_ERRNO_OF_TYPE = {
    RouteType.BLACKHOLE: errnos.EINVAL,
    RouteType.UNREACHABLE: errnos.EHOSTUNREACH,
    RouteType.PROHIBIT: errnos.EACCES,
}


def is_about_other_packets(rule: Rule) -> bool:
    """Whether a rule doesn't decide about the packet asked about, but may about another one to the same address.

    That packet has mark 0, tos 0, uid 0, no source or device chosen, and counts as UDP without ports.
    """
    selects = (
        rule.mark is not None
        or rule.source is not None
        or rule.oif is not None
        or rule.iif not in (None, "lo")
        or rule.uid_range is not None
        or rule.tos != 0
        or rule.ip_protocol != 0
        or rule.has_ports
    )
    if rule.ip_protocol != 0:
        return True  # it treats TCP and UDP differently, whichever of them it names
    anywhere = rule.destination.network_address if rule.destination is not None else IPv4Address(0)
    return selects and not _matches(rule, anywhere)


def _matches(rule: Rule, address: IPv4Address) -> bool:
    """fib_rule_match in net/core/fib_rules.c and fib4_rule_match, for that packet."""
    is_match = (
        (rule.destination is None or address in rule.destination)
        and (rule.mark is None or rule.mark & rule.mark_mask == 0)
        and (rule.source is None or rule.source.prefixlen == 0)
        and rule.oif is None
        and rule.iif in (None, "lo")
        and (rule.uid_range is None or rule.uid_range[0] == 0)
        and rule.tos == 0
        and rule.ip_protocol in (0, _UDP)
        and not rule.has_ports
    )
    return is_match != rule.is_inverted


@attrs.frozen
class RouteIndex:
    """The entries of all tables, to find by longest-prefix match: a dictionary for each table and prefix length.

    Args:
        routes: in the kernel's order; those for a tos don't count.
    """

    _by_length: dict[int, dict[int, dict[int, Route]]] = attrs.field(init=False, factory=dict)

    @classmethod
    def of(cls, routes: Iterable[Route]) -> RouteIndex:
        """The index of some entries; of several with the same key the first counts, of several metrics the lowest."""
        index = cls()
        for route in routes:
            if route.tos == 0:
                networks = index._by_length.setdefault(route.table, {}).setdefault(route.destination.prefixlen, {})
                there = networks.setdefault(int(route.destination.network_address), route)
                if route.metric < there.metric:
                    networks[int(route.destination.network_address)] = route
        return index

    def longest_match(self, table: int, address: IPv4Address) -> Route | None:
        """The entry of a table with the longest prefix around an address."""
        number = int(address)
        lengths = self._by_length.get(table, {})
        for length in sorted(lengths, reverse=True):
            if (found := lengths[length].get(number >> (32 - length) << (32 - length))) is not None:
                return found
        return None


def discarding_route(answer: Lookup, rules: Sequence[Rule], index: RouteIndex) -> Route | None:
    """The entry that discards packets to an address, which the kernel's answer doesn't show.

    Args:
        answer: a failed look-up; its errno tells the type.
        rules: in the order in which the kernel asks them.
        index: of the entries of every table.

    Returns:
        The entry; None if a rule discards, or nothing matches.
    """
    for rule in rules:
        if rule.action is not RuleAction.TO_TABLE or not _matches(rule, answer.address):
            continue
        best = index.longest_match(rule.table, answer.address)
        if best is not None and _ERRNO_OF_TYPE.get(best.type) == answer.errno:
            return best
    return None
