"""Pure: which policy rules a packet of this host meets, and the entry that decides behind them."""

from __future__ import annotations

import errno as errnos
from typing import TYPE_CHECKING

from hostrouting.model import Route, RouteType, Rule, RuleAction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from ipaddress import IPv4Address

    from hostrouting.model import Lookup

__all__ = ["discarding_route", "is_about_other_packets"]

_ERRNO_OF_TYPE = {
    RouteType.BLACKHOLE: errnos.EINVAL,
    RouteType.UNREACHABLE: errnos.EHOSTUNREACH,
    RouteType.PROHIBIT: errnos.EACCES,
}


def is_about_other_packets(rule: Rule) -> bool:
    """Whether a rule selects by what the packet asked about leaves open.

    That packet has mark 0, tos 0, uid 0, no source or device chosen, and no transport protocol or ports. A rule
    that selects by any of those may treat other packets to the same address otherwise.
    """
    return (
        rule.mark is not None
        or rule.source is not None
        or rule.oif is not None
        or rule.iif not in (None, "lo")
        or rule.uid_range is not None
        or rule.tos != 0
        or rule.ip_protocol != 0
        or rule.has_ports
    )


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
        and rule.ip_protocol == 0
        and not rule.has_ports
    )
    return is_match != rule.is_inverted


def discarding_route(answer: Lookup, rules: Sequence[Rule], routes: Iterable[Route]) -> Route | None:
    """The entry that discards packets to an address, which the kernel's answer doesn't show.

    Args:
        answer: a failed look-up; its errno tells the type.
        rules: in the order in which the kernel asks them.
        routes: the entries of every table.

    Returns:
        The entry; None if a rule discards, or nothing matches.
    """
    covering = [route for route in routes if route.tos == 0 and answer.address in route.destination]
    for rule in rules:
        if rule.action is not RuleAction.TO_TABLE or not _matches(rule, answer.address):
            continue
        table = [route for route in covering if route.table == rule.table]
        best = max(table, key=lambda route: (route.destination.prefixlen, -route.metric), default=None)
        if best is not None and _ERRNO_OF_TYPE.get(best.type) == answer.errno:
            return best
    return None
