"""Find the changes between two snapshots of a host, and undo some of them in the later one.

This module does no I/O.

Two snapshots are compared key by key. The keys are: a link's name, an address's interface, a rule's
preference, a label's prefix, an entry's ``Route.key`` (table, destination, metric and so on), and a
silent router itself. Another order of the values with one key is a change, too. To undo a change,
the old values of the key are restored in the later snapshot. An old entry is left out if the later
snapshot lacks its interface or source address: no kernel would accept the entry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any

import attrs

from hostrouting.kernel.fib6 import LABELS
from hostrouting.kernel.known_host import KnownHost
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.sources import SourceKey
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix, PrefixIndex, numbers
from hostrouting.model.jsonable import JsonObject, StrEnum
from hostrouting.model.links import Address, AddressLabel, Link
from hostrouting.model.routes import Route, RouteType
from hostrouting.model.rules import Rule
from hostrouting.model.values import frozen


class HostChangeKind(StrEnum):
    """The kinds of changes.

    Sometimes each of two changes explains why a packet leaves differently. The report then names
    the change whose kind comes later in this list.
    """

    LINK = "link"
    ADDRESS = "address"
    ROUTE = "route"
    NEXTHOP = "nexthop"
    NEIGHBOUR = "neighbour"
    LABEL = "label"
    RULE = "rule"


# A kind, and the key of a value of this kind: for example, LINK and the name of a link, or RULE and
# a preference.
ChangeKey = tuple[HostChangeKind, Any]

# The positions of the earlier and the later snapshot in the pairs and lists of ``HostChanges``.
_EARLIER = 0
_LATER = 1


@frozen(cache_hash=True)
class HostChange(JsonObject):
    """A change between two snapshots of a host.

    Args:
        kind: the kind of change.
        before: a line for each removed value, or for all values in their old order if only their
            order has changed.
        after: a line for each added value, or for all values in their new order.
        keys: the keys whose values have changed. For a nexthop object, these are the keys of the
            entries that use it.
        is_ours: whether all of these are routes or rules of hostrouting. Not included in the JSON.
    """

    json_names = ("kind", "before", "after")

    kind: HostChangeKind
    before: tuple[str, ...]
    after: tuple[str, ...]
    keys: tuple[ChangeKey, ...] = attrs.field(default=(), repr=False)
    is_ours: bool = attrs.field(default=False, repr=False)

    @property
    def count(self) -> int:
        """Return the number of values that have changed, such as all rules of a preference."""
        return max(len(self.before), len(self.after))


@frozen
class RenamedNic(JsonObject):
    """A NIC that has another name in a later snapshot.

    Args:
        before: the name in the earlier snapshot.
        after: the name in the later snapshot.
    """

    before: str
    after: str


def renamed_nics(before: Iterable[Link], after: Iterable[Link]) -> tuple[RenamedNic, ...]:
    """Return the NICs that have another name in a later snapshot, sorted by the earlier name.

    A NIC is recognized by its MAC address, if no other NIC has the same.
    """
    earlier, later = _nics_by_mac(before), _nics_by_mac(after)
    pairs = sorted((name, later[mac]) for mac, name in earlier.items() if mac in later)
    return tuple(RenamedNic(*pair) for pair in pairs if pair[0] != pair[1])


def _nics_by_mac(links: Iterable[Link]) -> dict[str, str]:
    """Return the names of the NICs that are ports of nothing, by MAC address."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for link in links:
        if link.mac is not None and link.kind is None and link.master is None:
            names[link.mac].append(link.name)
    return {mac: found[0] for mac, found in names.items() if len(found) == 1}


class HostChanges:
    """The changes between two snapshots of a host, in one family.

    Args:
        before: the earlier snapshot.
        after: the later snapshot.
        family: the family, which both snapshots must include.
    """

    def __init__(self, before: Snapshot, after: Snapshot, family: Family) -> None:
        self._bits = family.bits
        self._known = before.known(family), after.known(family)
        # The links, addresses and so on of each snapshot, by key.
        self._snapshots = [_values(known) for known in self._known]
        self._ignoring = [snapshot.ignoring_linkdown or () for snapshot in (before, after)]
        self.all = tuple(self._changes())
        self.owners = {key: change for change in self.all for key in change.keys}
        self._locals = [
            {each.local for each in _each(values, HostChangeKind.ADDRESS)}
            for values in self._snapshots
        ]

    @property
    def everywhere(self) -> list[HostChange]:
        """Return the changes that may affect any address, such as changes of rules."""
        return [change for change in self.all if change.keys[0][0] is not HostChangeKind.ROUTE]

    @property
    def reach(self) -> list[Prefix]:
        """Return the prefixes in which lookups may differ."""
        routes: list[Route] = []
        for values in self._snapshots:
            changed = {key: values.get(key, ()) for key in self.owners}
            routes += _each(changed, HostChangeKind.ROUTE)
        if self.everywhere or any(route.type is RouteType.LOCAL for route in routes):
            return [(0, 0)]
        return [numbers(route.destination) for route in routes]

    def _changes(self) -> Iterator[HostChange]:
        objects: dict[tuple[str, ...], list[ChangeKey]] = {}
        for key in dict.fromkeys(chain(*self._snapshots)):
            before, after = (values.get(key, ()) for values in self._snapshots)
            if before == after:
                continue
            if (by_object := _nexthop_lines(before, after)) is not None:
                objects.setdefault(by_object, []).append(key)
                continue
            yield _change_of(key, before, after)
        for lines, keys in objects.items():
            yield HostChange(HostChangeKind.NEXTHOP, lines[:1], lines[1:], tuple(keys))

    @cached_property
    def _routes(self) -> dict[Prefix, list[ChangeKey]]:
        """Return the keys of both snapshots' entries, by destination."""
        keys: defaultdict[Prefix, list[ChangeKey]] = defaultdict(list)
        for key in dict.fromkeys(chain(*self._snapshots)):
            if key[0] is HostChangeKind.ROUTE:
                keys[numbers(key[1][1])].append(key)
        return keys

    @cached_property
    def _others(self) -> list[ChangeKey]:
        """Return the keys of all values except entries, sorted by preference or link index."""
        keys = dict.fromkeys(
            key
            for values in self._snapshots
            for key in values
            if key[0] is not HostChangeKind.ROUTE
        )
        index = {link.name: link.index for known in self._known for link in known.links}
        return sorted(
            keys,
            key=lambda key: key[1] if key[0] is HostChangeKind.RULE else index.get(key[1], 0),
        )

    @property
    def entries(self) -> list[ChangeKey]:
        """Return the keys of both snapshots' entries."""
        return [*chain.from_iterable(self._routes.values())]

    @cached_property
    def _index(self) -> PrefixIndex:
        return PrefixIndex(self._routes, self._bits)

    def keys_around(self, address: IpAddress) -> frozenset[ChangeKey]:
        """Return the keys of the entries that cover an address, or the ``src`` of such an entry."""
        keys = set(self._keys_around(int(address)))
        named = {
            int(route.source)
            for key in keys
            for values in self._snapshots
            for route in values.get(key, ())
            if route.source is not None
        }
        for source in named:
            keys.update(self._keys_around(source))
        return frozenset(keys)

    def _keys_around(self, number: int) -> Iterator[ChangeKey]:
        for prefix in self._index.around((number, self._bits)):
            yield from self._routes[prefix]

    def without(self, back: Iterable[HostChange], entries: Iterable[ChangeKey]) -> KnownHost:
        """Return the later host without some of the changes.

        Args:
            back: the changes to undo.
            entries: the keys of the entries to include. All links, addresses and rules are
                included.
        """
        undone = {key for change in back for key in change.keys}
        keys = [*self._others, *entries]
        mixed = {key: self._snapshots[_origin(key, undone)].get(key, ()) for key in keys}
        links = tuple(_each(mixed, HostChangeKind.LINK))
        addresses = tuple(_each(mixed, HostChangeKind.ADDRESS))
        rules = tuple(_each(mixed, HostChangeKind.RULE))
        earlier, later = self._known
        return KnownHost(
            later.family,
            links,
            self._in_known_order(addresses),
            rules,
            tuple(self._possible_entries(mixed, undone, addresses)),
            self._labels(mixed),
            frozenset(_each(mixed, HostChangeKind.NEIGHBOUR)),
            # Adding the first rule separates tables local and main. So take ``is_merged`` from the
            # snapshot whose rules are ``rules``.
            is_merged=(earlier if rules == earlier.rules else later).is_merged,
            sources=self._reported_sources(links, addresses),
            kernel=later.kernel,
            is_torn=later.is_torn,
            has_odd_sources=earlier.has_odd_sources,
            uses_deleted=(earlier if rules == earlier.rules else later).uses_deleted,
            is_recorded=earlier.is_recorded and later.is_recorded,
            is_ordered=earlier.is_ordered and self._known_order(addresses) is not None,
        )

    def _possible_entries(
        self,
        mixed: Mapping[ChangeKey, tuple[Any, ...]],
        undone: Container[ChangeKey],
        addresses: Iterable[Address],
    ) -> Iterator[Route]:
        """Yield the entries whose interfaces and source are as usable as in the entry's snapshot.

        Args:
            mixed: the values of the later host without the undone changes, by key.
            undone: the keys whose values come from the earlier snapshot.
            addresses: the addresses in ``mixed``.
        """
        local = {address.local for address in addresses}

        def is_possible(route: Route, snapshot: int) -> bool:
            if route.source in self._locals[snapshot] - local:
                return False
            for hop in route.hops:
                link = HostChangeKind.LINK, hop.dev
                if self._use(link, _origin(link, undone)) < self._use(link, snapshot):
                    return False
            return True

        for key, routes in mixed.items():
            if key[0] is not HostChangeKind.ROUTE:
                continue
            for route in routes:
                is_in_both = key not in self.owners
                if is_in_both or is_possible(route, _origin(key, undone)):
                    yield route

    def _known_order(self, addresses: tuple[Address, ...]) -> tuple[Address, ...] | None:
        """Return the addresses in the order of a snapshot with the same addresses, or None."""
        earlier, later = self._known
        for known in (later, earlier):
            if {*known.addresses} == {*addresses}:
                return known.addresses
        return None

    def _in_known_order(self, addresses: tuple[Address, ...]) -> tuple[Address, ...]:
        if self._bits == Family.IPV4.bits:
            return addresses
        return self._known_order(addresses) or addresses

    def _labels(
        self, mixed: Mapping[ChangeKey, tuple[Any, ...]]
    ) -> tuple[AddressLabel, ...] | None:
        if any(known.labels is None for known in self._known):
            return None
        labels: Iterator[AddressLabel] = _each(mixed, HostChangeKind.LABEL)
        return tuple(sorted(labels, key=lambda label: -label.prefix.prefixlen))

    def _reported_sources(
        self,
        links: tuple[Link, ...],
        addresses: tuple[Address, ...],
    ) -> dict[SourceKey, tuple[IpAddress, ...]]:
        """Return the sources that the kernel reported while the host had these links and addresses.

        Links and addresses determine the sources. So if a compared snapshot has these links and
        addresses, its sources also apply to the other snapshot's entries.
        """
        sources: dict[SourceKey, tuple[IpAddress, ...]] = {}
        earlier, later = self._known
        for known in (later, earlier):
            if (links, addresses) == (known.links, known.addresses):
                sources.update(known.sources)
        return sources

    def _use(self, key: ChangeKey, snapshot: int) -> int:
        """Rate a link in a snapshot: 0 if missing, 1 if down or without used routes, or 2."""
        link = next(iter(self._snapshots[snapshot].get(key, ())), None)
        if link is None:
            return 0
        is_ignored = link.name in self._ignoring[snapshot] and not link.has_carrier
        return 2 if link.is_up and not is_ignored else 1


def _origin(key: ChangeKey, undone: Container[ChangeKey]) -> int:
    """Return which snapshot has a key's values: the earlier one for the keys of undone changes."""
    return _EARLIER if key in undone else _LATER


def _change_of(key: ChangeKey, before: tuple[Any, ...], after: tuple[Any, ...]) -> HostChange:
    gone = [each for each in before if each not in after]
    came = [each for each in after if each not in before]
    if not gone and not came:  # only the order has changed
        gone = [*before]
        came = [*after]
    is_ours = all(map(_is_ours, (*gone, *came)))
    return HostChange(key[0], tuple(map(_line, gone)), tuple(map(_line, came)), (key,), is_ours)


def _is_ours(value: Any) -> bool:
    if isinstance(value, Route):
        return value.is_ours or value.is_in_side_table
    return isinstance(value, Rule) and value.is_ours


def _each(values: Mapping[ChangeKey, tuple[Any, ...]], kind: HostChangeKind) -> Iterator[Any]:
    """Yield all values of one kind, such as the links or the rules."""
    return chain.from_iterable(found for key, found in values.items() if key[0] is kind)


def _values(known: KnownHost) -> dict[ChangeKey, tuple[Any, ...]]:
    """Return a host's links, addresses, rules, entries, silent routers and labels, by key."""
    labels = LABELS if known.labels is None else known.labels
    if known.family is Family.IPV4:
        labels = ()
    listed: tuple[tuple[HostChangeKind, Iterable[Any], Callable[[Any], Any]], ...] = (
        (HostChangeKind.LINK, known.links, attrgetter("name")),
        (HostChangeKind.ADDRESS, known.addresses, attrgetter("dev")),
        (HostChangeKind.RULE, known.rules, attrgetter("preference")),
        (HostChangeKind.ROUTE, known.routes, attrgetter("key")),
        (HostChangeKind.NEIGHBOUR, known.silent_routers, tuple),
        (HostChangeKind.LABEL, labels, attrgetter("prefix")),
    )
    values: defaultdict[ChangeKey, tuple[Any, ...]] = defaultdict(tuple)
    for kind, found, key_of in listed:
        for each in found:
            values[kind, key_of(each)] += (each,)
    return values


def _nexthop_lines(before: tuple[Any, ...], after: tuple[Any, ...]) -> tuple[str, ...] | None:
    """Return an entry's old and new next hops if only its nexthop object changed, or else None."""
    if not (
        len(before) == len(after) == 1
        and isinstance(before[0], Route)
        and before[0].nexthop_id is not None
    ):
        return None
    (old,), (new,) = before, after
    differs_elsewhere = attrs.evolve(old, hops=new.hops, type=new.type) != new
    if old.nexthop_id != new.nexthop_id or differs_elsewhere:
        return None
    hops = (
        " ".join(hop.words(each.family) for hop in each.hops) or each.type.name.lower()
        for each in (old, new)
    )
    return tuple(f"id {old.nexthop_id} {words}" for words in hops)


def _line(value: Any) -> str:
    if isinstance(value, (Route, Rule)):
        return f"{value.preference}: {value}" if isinstance(value, Rule) else str(value)
    if isinstance(value, Address):
        return f"{value.local}/{value.prefix_length} dev {value.dev}"
    if isinstance(value, Link):
        state = "down" if not value.is_up else "up" if value.has_carrier else "without carrier"
        return f"{value.name} {state} mtu {value.mtu} group {value.group}"
    if isinstance(value, AddressLabel):
        return " ".join(
            (str(value.prefix), *(("dev", value.dev) if value.dev else ()), f"label {value.label}")
        )
    dev, gateway = value
    return f"{gateway} dev {dev} doesn't respond"
