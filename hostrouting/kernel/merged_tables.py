"""Find out whether IPv4's tables local and main share one trie, in which the longer prefix wins."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice

from hostrouting.kernel.port import Lookups
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.model.links import Address
from hostrouting.model.lookups import Lookup
from hostrouting.model.routes import Route, RouteType, Table
from hostrouting.model.rules import Rule

# The maximum number of entries to try. The entries in table local are tried first, because their
# lookups are the likeliest to show a difference.
_TRIED_MAX = 256


def are_merged(
    addresses: Sequence[Address],
    rules: Sequence[Rule],
    routes: Sequence[Route],
    asked: Lookups,
) -> bool | None:
    """Return whether tables local and main share one trie.

    Adding any rule separates the tables for good (fib_unmerge). Up to Linux 6.18, deleting a rule
    separates them, too; in Linux 7.2, it doesn't.

    Args:
        addresses: the host's addresses.
        rules: the policy rules, in evaluation order.
        routes: entries from any tables, in the kernel's order. Destinations of those in local and
            main are looked up.
        asked: the kernel to query.

    Returns:
        True or False. It is also False if no tried lookup tells the two cases apart. None if there
        is no address to try, or if the kernel doesn't treat the first address as local.
    """
    if tuple(rules) == KERNEL_RULES:
        return _reports_main(addresses, asked)
    if not set(rules) < set(KERNEL_RULES):
        return False
    from hostrouting.kernel.fib import Fib

    merged = Fib(rules, routes, addresses, is_merged=True)
    separate = Fib(rules, routes, addresses, is_merged=False)
    by_table = {Table.LOCAL: list[Route](), Table.MAIN: list[Route]()}
    for route in routes:
        if route.table in (Table.LOCAL, Table.MAIN):
            by_table[Table(route.table)].append(route)
    for route in islice(chain(*by_table.values()), _TRIED_MAX):
        address = route.destination.network_address
        expected = _entry(merged.lookup(address))
        if expected != _entry(separate.lookup(address)):
            return [_entry(found) for found in asked.lookup([address])] == [expected]
    return False


def _reports_main(addresses: Sequence[Address], asked: Lookups) -> bool | None:
    """Return whether the kernel reports table main for the host's first address.

    With the default rules, the kernel reports main if tables local and main share one trie. The
    result is None if the host has no address, or if the kernel doesn't treat the address as local.
    """
    for found in asked.lookup([address.local for address in addresses[:1]]):
        if found.route is not None and found.route.type is RouteType.LOCAL:
            return found.route.table == Table.MAIN
    return None


def _entry(found: Lookup) -> object:
    return found.errno, found.route and (
        found.route.type,
        found.route.destination,
        found.route.devs,
    )
