"""Network namespaces (struct net), and the operations of net/ipv4/fib_trie.c and fib_rules.c."""

from __future__ import annotations

import errno as errnos
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import chain, count

import attrs

from hostrouting.kernel.fib import Fib
from hostrouting.kernel.refusals import NetlinkError, rule_deleted_for
from hostrouting.kernel.release import (
    has_network_broadcasts,
    passes_discards,
    separates_on_deletion,
)
from hostrouting.kernel.rules import KERNEL_RULES, Flow
from hostrouting.model.links import Address, Hardware, Link
from hostrouting.model.routes import Route, Scope
from hostrouting.model.rules import Rule


def _is_taken_for(rule: Rule, other: Rule) -> bool:
    """Return whether the kernel treats a new rule as equal to another (fib4_rule_compare)."""
    compared = attrs.evolve(
        rule,
        source=rule.source or other.source,
        destination=rule.destination or other.destination,
        tos=rule.tos or other.tos,
        goto=other.goto,
        is_inverted=other.is_inverted,
    )
    return compared == other


def refuse_ecn_bits(tos: int) -> None:
    """Refuse the TOS of a rule or route if it has ECN bits (inet_validate_dscp).

    Raises:
        NetlinkError: EINVAL.
    """
    if tos & 0x03:
        raise NetlinkError(errnos.EINVAL, "Invalid dsfield (tos): ECN bits must be 0")


def _refuse_invalid(rule: Rule) -> None:
    """Refuse a request with an invalid rule (fib_nl2rule).

    Raises:
        NetlinkError: EINVAL if the target of goto isn't after the rule, or the TOS has ECN bits.
    """
    refuse_ecn_bits(rule.tos)
    if rule.goto is not None and rule.goto <= rule.preference:
        raise NetlinkError(errnos.EINVAL, "Backward goto not supported")


class WriteMode(Enum):
    """The modes of an insertion (NLM_F_EXCL, NLM_F_REPLACE, NLM_F_APPEND)."""

    ADD = "add"
    REPLACE = "replace"
    APPEND = "append"


# Kinds of links whose drivers set IFF_POINTOPOINT.
_POINT_TO_POINT = ("ppp", "tun", "wireguard")


@attrs.define(eq=False)
class Device:
    """An interface (struct net_device with its in_device).

    ``is_plugged`` is true if the other end of the cable is up.
    """

    index: int
    name: str
    kind: str | None = None
    hardware: int = Hardware.ETHER
    master: str | None = None
    is_up: bool = False
    is_plugged: bool = True
    mac: str | None = None
    group: int = 0
    addresses: list[Address] = attrs.field(factory=list)

    @property
    def has_carrier(self) -> bool:
        """Return whether IFF_LOWER_UP is set.

        A device that is down never has a carrier (veth_close).
        """
        return self.is_up and self.is_plugged

    def show(self) -> Link:
        """Convert the device to a link, as shown in dumps."""
        mtu = 65536 if self.hardware == Hardware.LOOPBACK else 1500
        link = Link(
            self.index,
            self.name,
            self.is_up,
            self.has_carrier,
            self.kind,
            self.hardware,
            self.master,
            self.group,
            mtu=mtu,
            mac=self.mac,
        )
        return attrs.evolve(link, is_point_to_point=self.kind in _POINT_TO_POINT)


class Net(Fib):
    """A network namespace in memory, which inherits lookups from ``Fib``.

    ``changes`` is the number of changes so far.

    Args:
        release: the modelled Linux release, such as ``6.1.176``; None means 6.18.
    """

    def __init__(self, release: str | None = None) -> None:
        super().__init__(KERNEL_RULES, (), passes_discards=bool(passes_discards(release)))
        self.has_network_broadcasts = has_network_broadcasts(release)
        self.separates_on_deletion = separates_on_deletion(release) is not False
        self.rules: list[Rule] = [*KERNEL_RULES]
        self.devices: dict[str, Device] = {}
        self.changes = 0
        self.indexes = count(1)  # for devices; an index is never reused

    def group_of(self, dev: str) -> int:
        """Return an interface's group."""
        return self.device(dev).group

    def device(self, name: str) -> Device:
        """Return a device by name.

        Raises:
            NetlinkError: ENODEV.
        """
        if name not in self.devices:
            raise NetlinkError(errnos.ENODEV, f"no interface is named {name!r}")
        return self.devices[name]

    def addresses(self) -> tuple[Address, ...]:
        """Return all addresses, ordered by device index."""
        return tuple(ifa for dev in self.devices.values() for ifa in dev.addresses)

    def rules_around(self, _: Flow) -> Sequence[int]:
        """Return the positions of all rules. An index would be outdated after a change of rules."""
        return range(len(self.rules))

    def add_rule(self, rule: Rule) -> None:
        """Add a policy rule after existing rules with the same preference (fib_newrule).

        Raises:
            NetlinkError: EEXIST, or EINVAL (``_refuse_invalid``).
        """
        _refuse_invalid(rule)
        if any(_is_taken_for(rule, each) for each in self.rules):
            raise NetlinkError(errnos.EEXIST)
        self.is_merged = False
        position = sum(each.preference <= rule.preference for each in self.rules)
        self.rules.insert(position, rule)
        self.changes += 1

    def del_rule(self, rule: Rule) -> None:
        """Delete the first policy rule that has all selectors of the given one (fib_delrule).

        Raises:
            NetlinkError: ENOENT, or EINVAL (``_refuse_invalid``).
        """
        _refuse_invalid(rule)
        first = rule_deleted_for(rule, self.rules)
        if first is None:
            raise NetlinkError(errnos.ENOENT)
        if self.separates_on_deletion:
            self.is_merged = False
        self.rules.remove(first)
        self.changes += 1

    def there(self, route: Route) -> list[Route]:
        """Return the mutable list of entries for a route's destination.

        If the table doesn't exist, the list is empty, and not part of the namespace.
        """
        networks = self.tables.get(route.table, {}).setdefault(route.destination.prefixlen, {})
        return networks.setdefault(int(route.destination.network_address), [])

    def change_entries(self, changed: Callable[[Route], Route | None]) -> None:
        """Replace each entry with ``changed(entry)``, or delete it if the result is None."""
        for routes in self.lists():
            routes[:] = [now for route in routes if (now := changed(route)) is not None]

    def lists(self) -> Iterator[list[Route]]:
        """Return the entry lists of all tables, one per destination."""
        networks = chain.from_iterable(lengths.values() for lengths in self.tables.values())
        return chain.from_iterable(each.values() for each in networks)


# --- entries --------------------------------------------------------------------------------------


def info_of(route: Route) -> tuple[object, ...]:
    """Return the attributes that routes to different destinations share (struct fib_info)."""
    paths = tuple(hop.path for hop in route.hops)
    return (
        route.type,
        route.table,
        route.protocol,
        route.scope,
        route.metric,
        route.source,
        route.mtu,
        paths,
    )


def _rank(route: Route) -> tuple[int, int]:
    """Return a key that sorts the entries for one destination."""
    return -route.tos, route.metric


def fib_table_insert(net: Net, route: Route, how: WriteMode) -> None:
    """Insert a route into its table, whose entries are sorted by descending tos, then by metric.

    Args:
        net: the network namespace with the table.
        route: the route as a dump shows it.
        how: what to do if the key already exists.

    Raises:
        NetlinkError: EEXIST.
    """
    there = net.there(route)
    first = bisect_left(there, _rank(route), key=_rank)
    same = there[first : bisect_right(there, _rank(route), key=_rank)]
    infos = [info_of(each) for each in same]
    position = infos.index(info_of(route)) if info_of(route) in infos else None
    # NLM_F_REPLACE replaces the first route with this key. If the two are equal, nothing changes.
    if same and how is WriteMode.REPLACE and not position:
        if position is None:
            there[first] = route
            net.changes += 1
        return
    if position is not None or (same and how is not WriteMode.APPEND):
        raise NetlinkError(errnos.EEXIST)
    there.insert(first + len(same), route)
    net.changes += 1


def fib_table_delete(net: Net, cfg: Route) -> None:
    """Delete the first route that matches ``cfg``.

    In ``cfg``, metric 0, scope NOWHERE, no source and no hops match any value.

    Raises:
        NetlinkError: ESRCH.
    """
    there = net.there(cfg)
    for route in there:
        if (
            (route.tos, route.type, route.protocol) == (cfg.tos, cfg.type, cfg.protocol)
            and cfg.scope in (Scope.NOWHERE, route.scope)
            and cfg.source in (None, route.source)
            and cfg.metric in (0, route.metric)
            and _fib_nh_match(cfg, route)
        ):
            there.remove(route)
            net.changes += 1
            return
    raise NetlinkError(errnos.ESRCH)


def _fib_nh_match(cfg: Route, route: Route) -> bool:
    """Return whether the first hop has the device and gateway of the hop in ``cfg``, if any."""
    if not cfg.hops or not route.hops:
        return not cfg.hops
    meant = cfg.hops[0]
    first = route.hops[0]
    return meant.dev in (None, first.dev) and meant.gateway in (None, first.gateway)


def fib_tables_dump(net: Net, number: int | None) -> tuple[Route, ...]:
    """Return the entries in one or all tables in the kernel's order (inet_dump_fib).

    Tables are sorted by the low byte of their numbers; of tables with the same low byte, the newest
    comes first (fib_table_hash). Entries are sorted by first address; of entries with the same
    first address, the longest prefix comes first.
    """
    newest_first = reversed([table for table in net.tables if number in (None, table)])
    return tuple(
        route
        for table in sorted(newest_first, key=lambda table: table & 0xFF)
        for _, _, routes in sorted(
            (first, -length, routes)
            for length, networks in net.tables[table].items()
            for first, routes in networks.items()
        )
        for route in routes
    )
