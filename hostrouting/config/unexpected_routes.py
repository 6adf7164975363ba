"""Name the static routes and rules of a config for no expected address. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hostrouting.config.routing import Config
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.integer_prefixes import PrefixSet, ends, numbers
from hostrouting.model.text import shortened

# The most routes or rules that a note names.
_SHOWN = 4


def notes_on_unexpected(config: Config) -> Iterator[str]:
    """Yield a note on static routes outside of every expected CIDR, and one on such rules.

    The owner may want them. Or they are left over from wider expected CIDRs. In a config without
    expected CIDRs, nothing is unexpected.
    """
    static = config.static_routes
    routes = _unexpected((route.destination for route in static.routes), config)
    rules = _unexpected((rule.to for rule in static.rules), config)
    if routes:
        yield _note(routes, "the static route", "leads to", "the static routes", "lead to")
    if rules:
        yield _note(rules, "the rule for", "concerns", "the rules for", "concern")


def _note(found: list[IpNetwork], one: str, does: str, several: str, several_do: str) -> str:
    listed = shortened([*map(str, found)], ", ", _SHOWN)
    if len(found) == 1:
        lead = f"{one} {listed} {does} no expected CIDR, and stays"
    else:
        lead = f"{several} {listed} {several_do} no expected CIDR, and stay"
    return f"{lead} until removed from CONFIG"


def _unexpected(networks: Iterable[IpNetwork], config: Config) -> list[IpNetwork]:
    if not config.route_overlap.expected_cidrs:
        return []
    expected = {
        family: PrefixSet(
            (numbers(each.cidr) for each in config.route_overlap.of(family).expected_cidrs),
            family.bits,
        )
        for family in Family
    }
    return [
        network
        for network in networks
        if not expected[Family.of(network)].overlaps(
            *ends(numbers(network), Family.of(network).bits)
        )
    ]
