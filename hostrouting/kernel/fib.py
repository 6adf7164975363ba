"""Pure: what recorded tables and rules say about an address, where the kernel can't be asked or doesn't tell.

The kernel answers every check. This model of it is for what no look-up shows: the entry that discards, what a longer
route in table main would change, and a host that was recorded elsewhere. net/ipv4/fib_trie.c, net/core/fib_rules.c.
"""

from __future__ import annotations

import errno as errnos
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

from hostrouting.kernel.rules import NO_SOURCE, matches
from hostrouting.model.routes import Lookup, Protocol, Route, RouteType, Scope, Table
from hostrouting.model.rules import Rule, RuleAction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from ipaddress import IPv4Address

__all__ = ["Decision", "Fib"]

_ERRNO_OF_TYPE = {
    RouteType.BLACKHOLE: errnos.EINVAL,
    RouteType.UNREACHABLE: errnos.EHOSTUNREACH,
    RouteType.PROHIBIT: errnos.EACCES,
}
_ERRNO_OF_ACTION = {
    RuleAction.BLACKHOLE: errnos.EINVAL,
    RuleAction.UNREACHABLE: errnos.ENETUNREACH,
    RuleAction.PROHIBIT: errnos.EACCES,
}


_KERNEL_RULES = ((0, Table.LOCAL), (32766, Table.MAIN), (32767, Table.DEFAULT))


@attrs.frozen
class Decision:
    """What ends a look-up.

    Args:
        rule: that decided; None: all rules were asked in vain.
        route: the entry, be it one that discards; None if the rule itself discards, or nothing matches.
    """

    rule: Rule | None = None
    route: Route | None = None


class Fib:
    """The rules and entries of a host at one moment.

    Args:
        rules: in the order in which the kernel asks them.
        routes: of every table, in the kernel's order.
        gateway_dev: see ``matches``.
    """

    def __init__(self, rules: Sequence[Rule], routes: Sequence[Route], gateway_dev: str | None = None) -> None:
        self.rules = tuple(rules)
        self.routes = tuple(routes)
        self._gateway_dev = gateway_dev

    @cached_property
    def _tables(self) -> dict[int, dict[int, dict[int, Route]]]:
        """For each table and prefix length the entry that counts: of several metrics the lowest, else the first."""
        tables: dict[int, dict[int, dict[int, Route]]] = {}
        for route in self.routes:
            # A route for a tos isn't asked, one whose hops are all dead is passed over.
            if route.tos or (route.hops and not route.devs):
                continue
            networks = tables.setdefault(route.table, {}).setdefault(route.destination.prefixlen, {})
            there = networks.setdefault(int(route.destination.network_address), route)
            if route.metric < there.metric:
                networks[int(route.destination.network_address)] = route
        return tables

    @cached_property
    def _positions(self) -> dict[int, int]:
        positions: dict[int, int] = {}
        for position, rule in enumerate(self.rules):
            positions.setdefault(rule.preference, position)
        return positions

    @cached_property
    def _is_merged(self) -> bool:
        """Tables local and main are one trie until the first custom rule (fib_unmerge)."""
        there = [(rule.preference, rule.table, rule.protocol) for rule in self.rules]
        return there == [(preference, table, Protocol.KERNEL) for preference, table in _KERNEL_RULES]

    def longest_match(self, table: int, address: IPv4Address) -> Route | None:
        """The entry of a table with the longest prefix around an address, be it one that discards or ``throw``."""
        number = int(address)
        lengths = self._tables.get(table, {})
        for length in sorted(lengths, reverse=True):
            if (found := lengths[length].get(number >> (32 - length) << (32 - length))) is not None:
                return found
        return None

    def asked(
        self,
        address: IPv4Address,
        source: IPv4Address = NO_SOURCE,
        *,
        is_tcp: bool = False,
        has_own: bool = False,
    ) -> Iterator[tuple[Rule, Route | None]]:
        """The rules that a packet of this host to an address meets, up to the one that decides.

        Args:
            address: the packet's destination.
            source: its source, if one is chosen.
            is_tcp: whether it is TCP's, else UDP's.
            has_own: go on behind what table main discards, where a rule would pass over a unicast route in its
                place, whatever its length: as if main had one to this address alone.

        Yields:
            A rule and the longest match in its table, if it names one that has any; the last pair decides.
        """
        position = 0
        while position < len(self.rules):
            rule = self.rules[position]
            position += 1
            is_match = matches(rule, address, source, is_tcp=is_tcp, gateway_dev=self._gateway_dev)
            if rule.action is RuleAction.NOP or not is_match:
                continue
            if rule.action is RuleAction.GOTO:
                # The target may be gone; then the rule does nothing. The kernel refuses one that lies behind
                # (fib_nl2rule); a recording may have one all the same, and must not lead in circles.
                position = max(position, self._positions.get(rule.goto or 0, 0))
                continue
            found = self._find(rule.table, address) if rule.action is RuleAction.TO_TABLE else None
            yield rule, found
            if rule.action is not RuleAction.TO_TABLE:
                return
            if found is None or not _is_final(rule, found):
                continue
            if not (has_own and found.table == Table.MAIN and _passes_over_all(rule)):
                return

    def _find(self, table: int, address: IPv4Address) -> Route | None:
        if not (self._is_merged and table in (Table.LOCAL, Table.MAIN)):
            return self.longest_match(table, address)
        local, main = (self.longest_match(each, address) for each in (Table.LOCAL, Table.MAIN))
        if local is None or main is None:
            return local or main
        # Of equals the one of table local comes first.
        return main if main.destination.prefixlen > local.destination.prefixlen else local

    def decide(self, address: IPv4Address, source: IPv4Address = NO_SOURCE, *, is_tcp: bool = False) -> Decision:
        """The rule and the entry that a packet of this host to an address is left to."""
        rule, route = None, None
        for rule, route in self.asked(address, source, is_tcp=is_tcp):  # noqa: B007 the last one counts
            pass
        if rule is None or (rule.action is RuleAction.TO_TABLE and (route is None or not _is_final(rule, route))):
            return Decision()
        return Decision(rule, route)

    def lookup(self, address: IPv4Address, source: IPv4Address | None = None, *, is_tcp: bool = False) -> Lookup:
        """The answer that the kernel would give, as ``RouteBackend.lookup`` has it."""
        source = source or NO_SOURCE
        if source != NO_SOURCE and not self._is_own(source):
            return Lookup(address, None, errnos.ENETUNREACH)
        decision = self.decide(address, source, is_tcp=is_tcp)
        if decision.route is not None:
            errno = _ERRNO_OF_TYPE.get(decision.route.type)
            route = decision.route
            if self._is_merged and route.table == Table.LOCAL:
                # A look-up names the table that was asked, and that is main then.
                route = attrs.evolve(route, table=Table.MAIN)
            return Lookup(address, None if errno else route, errno)
        errno = errnos.ENETUNREACH if decision.rule is None else _ERRNO_OF_ACTION[decision.rule.action]
        return Lookup(address, None, errno)

    def _is_own(self, address: IPv4Address) -> bool:
        found = self.longest_match(Table.LOCAL, address)
        return found is not None and found.type is RouteType.LOCAL

    def finds_gateway(self, gateway: IPv4Address, dev: str) -> bool:
        """Whether the kernel would take a gateway of a route of table main (fib_check_nh_v4_gw).

        It looks the gateway up by all rules, on that interface and among what is on a link only.

        Args:
            gateway: of a next hop that isn't onlink.
            dev: its interface.

        Returns:
            Whether it finds a route. What VRFs change isn't known here: where there are any, it is thought to.
        """
        if any(rule.is_l3mdev for rule in self.rules):
            return True
        near = [route for route in self.routes if route.scope >= Scope.LINK and (dev in route.devs or not route.hops)]
        found = Fib(self.rules, near, dev).decide(gateway).route
        return found is not None and found.type in (RouteType.UNICAST, RouteType.LOCAL)

    def claims_gateway(self, gateway: IPv4Address) -> Route | None:
        """The entry of table local because of which the kernel would refuse an onlink gateway (fib_check_nh_v4_gw).

        Args:
            gateway: of a next hop that is onlink.

        Returns:
            None if the kernel takes it. VRFs are thought to have it taken, as above.
        """
        found = None if any(rule.is_l3mdev for rule in self.rules) else self._find(Table.LOCAL, gateway)
        # What discards or throws is no address of this host.
        is_claimed = found is not None and found.type in (RouteType.LOCAL, RouteType.BROADCAST)
        return found if is_claimed else None

    def with_changes(self, *, add: Iterable[Route] = (), remove: Iterable[Route] = ()) -> Fib:
        """As it would be with some routes more, each before what has its key, and some less."""
        gone = set(remove)
        return Fib(self.rules, (*add, *(route for route in self.routes if route not in gone)))


def _passes_over_all(rule: Rule) -> bool:
    """Whether no unicast route is long enough for a rule."""
    # Every device is in group 0 unless somebody has moved it.
    return rule.suppress_group == 0 or (rule.suppress_prefix_length or 0) >= 32


def _is_final(rule: Rule, route: Route) -> bool:
    if route.type is RouteType.THROW:
        return False
    # What discards is never suppressed (fib_rules_lookup asks only where there is a result).
    if route.type.is_discard:
        return True
    shortest = rule.suppress_prefix_length
    return rule.suppress_group != 0 and (shortest is None or route.destination.prefixlen > shortest)
