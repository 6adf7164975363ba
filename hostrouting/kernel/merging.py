"""Find out whether IPv4's tables local and main share one trie, in which the longer prefix takes precedence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from hostrouting.kernel.port import Lookups
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.model.answers import Lookup
from hostrouting.model.links import Address
from hostrouting.model.routes import Route, RouteType, Table
from hostrouting.model.rules import Rule

# An address of this host, or a subnet, is among the first entries.
_TRIED_MAX = 256


def are_merged(
    addresses: Sequence[Address], rules: Sequence[Rule], routes: Sequence[Route], asked: Lookups
) -> bool | None:
    """Return whether the tables local and main are one.

    Args:
        addresses: the host's addresses.
        rules: the policy rules. Each rule that is added separates the tables for good (fib_unmerge). Before Linux 7.2,
            so does each one that is deleted.
        routes: the entries in the tables.
        asked: the kernel to query. While the tables are one and no rule was deleted, it reports main for a local
            address.

    Returns:
        The result, or None if the kernel finds no local address. Without a difference, the result is False.
    """
    if tuple(rules) == KERNEL_RULES:
        for found in asked.lookup([address.local for address in addresses[:1]]):
            if found.route is not None and found.route.type is RouteType.LOCAL:
                return found.route.table == Table.MAIN
        return None
    if not set(rules) < set(KERNEL_RULES):
        return False
    from hostrouting.kernel.fib import Fib

    one, two = (Fib(rules, routes, addresses, is_merged=is_merged) for is_merged in (True, False))
    tried = [route for table in (Table.LOCAL, Table.MAIN) for route in routes if route.table == table]
    for route in islice(tried, _TRIED_MAX):
        address = route.destination.network_address
        expected = _entry(one.lookup(address))
        if expected != _entry(two.lookup(address)):
            return [_entry(found) for found in asked.lookup([address])] == [expected]
    return False


def _entry(found: Lookup) -> object:
    return found.errno, found.route and (found.route.type, found.route.destination, found.route.devs)
