"""Find the own addresses whose packets a change of routes or rules may affect.

This module does no I/O.

A host may have many addresses, and for each address a table with a default route, and a rule that
looks up this table. A change in another table doesn't affect packets from such an address, so these
packets needn't be compared. If it isn't certain that an address is unaffected, it counts as
affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs

from hostrouting.kernel.fib import Fib
from hostrouting.model.integer_prefixes import PrefixIndex, numbers
from hostrouting.model.links import Address
from hostrouting.model.routes import Protocol, Route, Route6, RouteType, Table
from hostrouting.model.rules import Rule, RuleAction

_LOCAL_AND_MAIN = {Table.LOCAL, Table.MAIN}


def affected(addresses: Iterable[Address], before: Fib, after: Fib) -> list[Address]:
    """Return the addresses of this host whose packets may take another route after a change.

    Args:
        addresses: the addresses of this host to select from.
        before: the tables and rules before the change.
        after: the tables and rules after the change.
    """
    tables = _changed_tables(before, after)
    rules = {*before.rules} ^ {*after.rules}
    common = [[rule for rule in fib.rules if rule not in rules] for fib in (before, after)]
    if common[0] != common[1]:  # the order of these rules has changed
        return [*addresses]
    lists = [_RuleList(fib, tables, rules) for fib in (before, after)]
    return [each for each in addresses if any(rules.may_affect(each) for rules in lists)]


def _changed_tables(before: Fib, after: Fib) -> set[int]:
    tables = {route.table for route in _changed_routes(before.routes, after.routes)}
    are_merged = before.is_merged or after.is_merged
    if before.is_merged != after.is_merged or (are_merged and tables & _LOCAL_AND_MAIN):
        tables |= _LOCAL_AND_MAIN
    return tables


def _changed_routes(before: Sequence[Route], after: Sequence[Route]) -> Iterable[Route]:
    # In the model of a fix, the new routes precede the present ones. If only routes were added in
    # this way, comparing the two sequences is faster than hashing all routes.
    added = after[: len(after) - len(before)]
    if len(after) >= len(before) and after[len(added) :] == before:
        return added
    return {*before} ^ {*after}


class _RuleList:
    """The policy rules of a host before a change, or after it.

    Args:
        fib: the tables and rules.
        tables: the tables in which the change adds or removes routes.
        rules: the rules that the change adds or removes.
    """

    def __init__(self, fib: Fib, tables: set[int], rules: set[Rule]) -> None:
        self._bits = fib.family.bits
        self._total = _total_tables(fib)
        self._is_changed = [_may_look_up(rule, tables) or rule in rules for rule in fib.rules]
        self._rules = fib.rules
        self._of_all: list[int] = []
        self._by_source: dict[tuple[int, int], list[int]] = {}
        for position, rule in enumerate(fib.rules):
            if rule.source is None or rule.is_inverted:
                self._of_all.append(position)
            else:
                self._by_source.setdefault(numbers(rule.source), []).append(position)
        self._sources = PrefixIndex(self._by_source, self._bits)

    def may_affect(self, address: Address) -> bool:
        """Return whether packets from an address may reach a rule or a table that has changed."""
        for position in self._positions(address):
            if self._is_changed[position]:
                return True
            if self._ends_for_source(self._rules[position]):
                return False
        return False

    def _positions(self, address: Address) -> Sequence[int]:
        found = [*self._of_all]
        for prefix in self._sources.around((int(address.local), self._bits)):
            found += self._by_source[prefix]
        return sorted(found)

    def _ends_for_source(self, rule: Rule) -> bool:
        """Return whether no packet from a rule's source reaches the rules behind this rule."""
        if not _selects_source_alone(rule):
            return False
        if rule.action is RuleAction.TO_TABLE:
            return rule.table in self._total
        return rule.action is not RuleAction.NOP


def _may_look_up(rule: Rule, tables: set[int]) -> bool:
    if rule.action is RuleAction.GOTO or rule.is_l3mdev:
        return True
    return rule.action is RuleAction.TO_TABLE and rule.table in tables


def _selects_source_alone(rule: Rule) -> bool:
    """Return whether a rule selects packets by their source alone, and suppresses no route."""
    return attrs.evolve(
        rule,
        preference=0,
        action=RuleAction.TO_TABLE,
        table=Table.MAIN,
        source=None,
        protocol=Protocol.BOOT,
    ) == Rule(0)


def _total_tables(fib: Fib) -> set[int]:
    """Return the tables in which every lookup finds a route, so that no later rule is evaluated."""
    return {*_tables(fib.routes, _is_usable_default)} - {
        *_tables(fib.routes, lambda route: route.type >= RouteType.BLACKHOLE),
        *_LOCAL_AND_MAIN,
    }


def _tables(routes: Iterable[Route], is_meant: Callable[[Route], bool]) -> Iterator[int]:
    return (route.table for route in routes if is_meant(route))


def _is_usable_default(route: Route) -> bool:
    if route.destination.prefixlen or route.tos or route.type is not RouteType.UNICAST:
        return False
    if isinstance(route, Route6) and route.source_prefix is not None:
        return False
    return any(not hop.is_dead for hop in route.hops)
