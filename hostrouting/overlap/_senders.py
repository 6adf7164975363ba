"""Group this host's own addresses that rules and routes treat in the same way.

This module does no I/O.

Packets from two addresses leave in the same way, unless a rule or an IPv6 route matches only one of
the two as the source. A host may have a rule and a table for each of its many addresses. A rule
only matters for a destination if the rule's table has an entry for the destination. So the rules
that matter are found for each destination.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, groupby

import attrs

from hostrouting.kernel.rules import NO_SOURCE
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, PrefixIndex, numbers
from hostrouting.model.links import Address
from hostrouting.model.routes import Route, Route6, Table
from hostrouting.model.rules import Rule

# A selector is a run of consecutive rules that differ only by their sources, or it is the source
# prefix of an IPv6 route. A run is a pair: -1 and its position in the rules before the change, or
# -2 and its position in those after it. A source prefix is the pair of its address and its length.
_Selector = tuple[int, int]
# The selectors that match an address as the source.
_Kind = frozenset[_Selector]


class Senders:
    """Own addresses that rules and routes treat in the same way for some destinations.

    Args:
        source: one of these addresses, or ``NO_SOURCE``.
        own: all own addresses of the host, or None with ``NO_SOURCE``.
        kinds: the kinds of the addresses; empty with ``NO_SOURCE``.
        are_others: whether the senders are all own addresses except those of ``kinds``.
    """

    def __init__(
        self,
        source: IpAddress,
        own: OwnAddresses | None = None,
        kinds: Collection[_Kind] = (),
        *,
        are_others: bool = False,
    ) -> None:
        self.source = source
        self._own = own
        self._kinds = kinds
        self._are_others = are_others

    @property
    def addresses(self) -> Sequence[Address | None]:
        """Return one address of each kind and interface, or only None for no source."""
        return (None,) if self._own is None else self._of_kind(self._own.each())

    def near(self, devs: Iterable[str], network: IpNetwork | None) -> Sequence[Address | None]:
        """Return one address of each kind for each given interface, and for a connected network.

        For senders without a source, return (None,) if there is a network.
        """
        if self._own is None:
            return () if network is None else (None,)
        return self._of_kind(self._own.near(devs, network))

    def _of_kind(self, addresses: Iterable[Address]) -> list[Address]:
        assert self._own is not None
        kinds = self._own.kinds
        return [each for each in addresses if (kinds[each] in self._kinds) is not self._are_others]


class OwnAddresses:
    """This host's own addresses.

    Args:
        addresses: this host's own addresses.
        rules: the policy rules before a change, and those after it.
        routes: the entries in all tables, before and after a change.
        bits: the number of bits of an address.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        rules: Sequence[Sequence[Rule]],
        routes: Iterable[Route],
        bits: int,
    ) -> None:
        self.addresses = addresses
        self._bits = bits
        found = _Selectors(rules, routes)
        self._destinations = PrefixIndex(found.by_destination, bits)
        sources = PrefixIndex(found.by_source, bits)
        self.kinds: dict[Address, _Kind] = {}
        self._kinds_with: dict[_Selector, dict[_Kind, None]] = {}
        # The first address of each kind: of all addresses, by interface, and by connected network.
        self._first_of: dict[_Kind, Address] = {}
        self._by_dev: dict[str, dict[_Kind, Address]] = {}
        self._by_network: dict[Prefix, dict[tuple[str, _Kind], Address]] = {}
        for address in addresses:
            around = sources.around((int(address.local), bits))
            kind = frozenset(selector for each in around for selector in found.by_source[each])
            self.kinds[address] = kind
            self._first_of.setdefault(kind, address)
            self._by_dev.setdefault(address.dev, {}).setdefault(kind, address)
            near = self._by_network.setdefault(address.prefix, {})
            near.setdefault((address.dev, kind), address)
            for selector in kind:
                self._kinds_with.setdefault(selector, {})[kind] = None
        self._by_destination = {
            prefix: selectors & self._kinds_with.keys()
            for prefix, selectors in found.by_destination.items()
        }
        self._of_kind = {
            kind: Senders(each.local, self, (kind,)) for kind, each in self._first_of.items()
        }
        self._known: dict[frozenset[_Kind], list[Senders]] = {}
        self._no_source = Senders(NO_SOURCE)

    def near(self, devs: Iterable[str], network: IpNetwork | None) -> Iterable[Address]:
        """Return one address of each kind for each given interface, and for a connected network."""
        near: dict[Address, None] = {}
        for dev in devs:
            near |= dict.fromkeys(self._by_dev.get(dev, {}).values())
        if network is not None:
            near |= dict.fromkeys(self._by_network.get(numbers(network), {}).values())
        return near

    def each(self) -> Iterable[Address]:
        """Return an address of each interface, or several if rules or routes distinguish them."""
        return chain.from_iterable(found.values() for found in self._by_dev.values())

    def depend_on_source(self, destination: int) -> bool:
        """Return whether a rule or route may distinguish sources of packets to a destination."""
        return any(self._destinations.around((destination, self._bits)))

    def senders_to(self, destination: int) -> Sequence[Senders]:
        """Return a sender without a source, and the senders that rules or routes distinguish."""
        kinds = set[_Kind]()
        for prefix in self._destinations.around((destination, self._bits)):
            for selector in self._by_destination[prefix]:
                kinds.update(self._kinds_with[selector])
        key = frozenset(kinds)
        if key not in self._known:
            self._known[key] = [self._no_source, *self._told_apart(key)]
        return self._known[key]

    def _told_apart(self, kinds: frozenset[_Kind]) -> Iterator[Senders]:
        for kind, senders in self._of_kind.items():
            if kind in kinds:
                yield senders
        others = (each for kind, each in self._first_of.items() if kind not in kinds)
        first = next(others, None)
        if first is not None:
            yield Senders(first.local, self, kinds, are_others=True)


class _Selectors:
    """The selectors: each run of rules with sources, and each route's source prefix.

    ``by_source`` tells which selectors match packets from a source prefix.

    ``by_destination`` tells which selectors may match packets to a destination prefix. A route's
    source prefix is listed at the destination of the route. A run of rules for a table is listed at
    the destination of each entry in that table. A run of rules for table local or main, or without
    a table, is listed at 0/0, so it counts for all destinations.

    Args:
        rules: the policy rules before a change, and those after it.
        routes: the entries in all tables.
    """

    def __init__(self, rules: Sequence[Sequence[Rule]], routes: Iterable[Route]) -> None:
        self.by_source: dict[Prefix, set[_Selector]] = {}
        self.by_destination: dict[Prefix, set[_Selector]] = {}
        self._by_table: dict[int, set[_Selector]] = {}
        for number, some in enumerate(rules):
            for position, run in enumerate(groupby(some, _without_source)):
                self._add_rules((~number, position), *run)
        for route in routes:
            self._add_route(route)

    def _add_rules(self, selector: _Selector, common: Rule, run: Iterable[Rule]) -> None:
        sources = [numbers(rule.source) for rule in run if rule.source is not None]
        if not sources:
            return
        for source in sources:
            self.by_source.setdefault(source, set()).add(selector)
        if common.has_table and common.table not in (Table.LOCAL, Table.MAIN):
            self._by_table.setdefault(common.table, set()).add(selector)
        else:
            self.by_destination.setdefault((0, 0), set()).add(selector)

    def _add_route(self, route: Route) -> None:
        selectors = self._by_table.get(route.table, set[_Selector]())
        if isinstance(route, Route6) and route.source_prefix is not None:
            source = numbers(route.source_prefix)
            selectors = selectors | {source}
            self.by_source.setdefault(source, set()).add(source)
        if selectors:
            self.by_destination.setdefault(numbers(route.destination), set()).update(selectors)


def _without_source(rule: Rule) -> Rule:
    return attrs.evolve(rule, source=None)
