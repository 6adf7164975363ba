"""Name the static routes of a config that lead to no expected address. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterator

from hostrouting.config.routing import Config, StaticRoute
from hostrouting.model.integer_prefixes import PrefixSet, ends, numbers
from hostrouting.model.text import shortened

# The most routes that the note names.
_SHOWN_ROUTES = 4


def note_on_unexpected(config: Config) -> str:
    """Return a note on static routes outside of every expected CIDR, or an empty string.

    The owner may want these routes. Or they are left over from wider expected CIDRs. In a config
    without expected CIDRs, no route is unexpected.
    """
    routes = [*_unexpected(config)]
    if not routes:
        return ""
    listed = shortened([str(route.destination) for route in routes], ", ", _SHOWN_ROUTES)
    if len(routes) == 1:
        lead = f"the static route {listed} leads to no expected CIDR, and stays"
    else:
        lead = f"the static routes {listed} lead to no expected CIDR, and stay"
    return f"{lead} until removed from CONFIG"


def _unexpected(config: Config) -> Iterator[StaticRoute]:
    if not config.route_overlap.expected_cidrs:
        return
    for family in config.static_routes.families:
        expected = config.route_overlap.of(family).expected_cidrs
        addresses = PrefixSet([numbers(each.cidr) for each in expected], family.bits)
        for route in config.static_routes.of(family):
            if not addresses.overlaps(*ends(numbers(route.destination), family.bits)):
                yield route
