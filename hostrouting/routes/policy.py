"""Policy routing: the rules and side tables that a config's ``rules`` and ``keep`` need.

An entry of ``rules`` names a CIDR about which table main decides before other programs' policy
rules. The entry becomes two rules of the kernel. The first rule looks up table local, so that
packets to the host's own addresses stay. The first rule is needed if another program has moved
table local's default rule behind ours. The second rule looks up table main.

An entry of ``keep`` names an interface on which packets from its own addresses stay. A kept
interface has a side table, with routes to its connected networks and to its gateway. For an
interface without a gateway, there is one rule for each address, which looks up the side table. For
an interface with a gateway, there are three rules for each address. The first rule looks up the
side table without its default route. The second rule looks up table main without its default route,
because main has the routes to this host's pods. The third rule looks up all of the side table.

``resolve_policy`` returns the wanted rules and routes, and ``PolicyPlan`` compares them with the
host's rules and routes.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

import attrs

from hostrouting.config.routing import KEEP_PRIORITIES, ONLINK, Config, Keep, StaticRule
from hostrouting.kernel.default_routes import default_route
from hostrouting.kernel.port import Facts
from hostrouting.kernel.rules import LOOPBACK, loopback_of
from hostrouting.model.changes import Change, Changes, Replacement
from hostrouting.model.errors import Refusal, RouteError
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.links import Address, Link, is_like
from hostrouting.model.routes import (
    DEFAULT_DESTINATION,
    SIDE_TABLES,
    NextHop,
    Protocol,
    Route,
    Scope,
    Table,
    how_to_delete,
)
from hostrouting.model.rules import HIDES_SELECTORS, Rule, rule_words
from hostrouting.model.text import shortened, with_runs
from hostrouting.model.values import frozen
from hostrouting.model.verified_uplinks import find_verified

# The preferences of the three rules for packets from a kept address. Without a gateway, there is
# only the first rule.
_KEEP, _KEEP_LONGER, _KEEP_GATEWAY = KEEP_PRIORITIES

_ZERO_NETWORK = IPv4Network("0.0.0.0/8")

# A rule with one of these preferences looks up the side table.
_NAMING = (_KEEP, _KEEP_GATEWAY)

_NAMED_MAX = 8


class LeftOut(NamedTuple):
    """An interface or address that ``keep`` names, but that isn't kept.

    Args:
        name: the interface, the address and its interface, or a pattern that matches no interface.
        reason: why the interface or address isn't kept.
        is_there: whether the interface exists.
        is_known: whether the reason is a fact. A snapshot may hide that the interface is kept.
    """

    name: str
    reason: str
    is_there: bool = True
    is_known: bool = True

    def __str__(self) -> str:
        if self.is_known:
            return f"{self.name} isn't kept: {self.reason}"
        return _doubt([self.name], self.reason)


def _doubt(names: Sequence[str], reason: str) -> str:
    verb = "is" if len(names) == 1 else "are"
    return f"whether {', '.join(with_runs(names))} {verb} kept isn't known: {reason}"


@frozen
class PolicyRouting:
    """Rules of the kernel and routes in side tables: those that a config needs, or those of a host.

    Args:
        rules: the rules, in the order in which they are added.
        routes: the routes in side tables, in the order in which they are added.
        left_out: what ``keep`` names but can't keep: interfaces, and addresses on kept interfaces.
        pending: a phrase for each interface in ``keep`` that is down or has no address yet.
        awaited: those phrases of ``pending`` that are about interfaces that are up. A run waits for
            their addresses.
    """

    rules: tuple[Rule, ...] = ()
    routes: tuple[Route, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    pending: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a sentence for each item in ``left_out``, and one sentence about ``pending``.

        Items that a snapshot leaves in doubt for the same reason share a sentence.
        """
        doubtful: dict[str, list[str]] = {}
        for item in self.left_out:
            if not item.is_known:
                doubtful.setdefault(item.reason, []).append(item.name)
        notes = [str(item) for item in self.left_out if item.is_known]
        notes += [_doubt(names, reason) for reason, names in doubtful.items()]
        if self.pending:
            listed = shortened(self.pending, ", ", _NAMED_MAX)
            notes.append(f"not kept yet: {listed}; the watcher or the next run does it")
        return tuple(notes)


# --- resolve --------------------------------------------------------------------------------------


def resolve_policy(
    config: Config,
    family: Family,
    facts: Facts,
    defaults: Sequence[Route],
    foreign_in: Callable[[int], Route | None],
) -> PolicyRouting:
    """Return the rules and side tables that a config needs on a host.

    Args:
        config: the config with ``rules`` and ``keep``.
        family: the address family. Only IPv4 has kept interfaces.
        facts: the host's interfaces, addresses and rules.
        defaults: entries that include the default routes of table main, in the kernel's order.
        foreign_in: a function that returns another program's route in a table, or None.

    Raises:
        RouteError: a rule of the config would take packets off a kept interface, or another program
            has a route in a side table of ours. The error lists all of these rules and routes.
    """
    static_rules = config.static_routes.rules_of(family)
    rules = [rule for static in static_rules for rule in _pair(static)]
    if family is not Family.IPV4 or not config.static_routes.keep:
        return PolicyRouting(tuple(rules))
    found = find_kept(config, facts, defaults)
    refusals = [*_refuse_early(static_rules, found.interfaces)]
    routes: list[Route] = []
    tables = _SideTables(facts.rules, foreign_in)
    for interface in found.interfaces:
        try:
            table = tables.take(interface)
        except RouteError as error:
            refusals.append(Refusal(error.message, error.hint))
            continue
        rules += interface.rules(table)
        routes += interface.routes(table)
    if refusals:
        raise RouteError.of(refusals)
    return PolicyRouting(
        tuple(rules),
        tuple(routes),
        found.left_out,
        found.pending,
        found.awaited,
    )


def _pair(static: StaticRule) -> list[Rule]:
    """Return the kernel's two rules for a rule of the config."""
    return [
        Rule(
            static.priority,
            table=table,
            destination=static.to,
            protocol=Protocol.HOSTROUTING,
        )
        for table in (Table.LOCAL, Table.MAIN)
    ]


def _refuse_early(
    rules: Iterable[StaticRule],
    kept: Iterable[KeptInterface],
) -> Iterator[Refusal]:
    """Yield refusals for rules that come so early that they take packets off a kept interface."""
    early = [rule for rule in rules if rule.priority < _KEEP]
    for rule in early:
        for interface in kept:
            network = next((each for each in interface.networks if rule.to.overlaps(each)), None)
            if network is not None:
                yield Refusal(
                    f"can't install the rule {rule}: it would take packets off {interface.dev}, "
                    f"which is kept, as it comes before {_KEEP} and meets its network {network}",
                    f"give it a priority above {_KEEP_GATEWAY}, or leave {interface.dev} out of "
                    "keep",
                )


def _is_early_local(rule: Rule) -> bool:
    """Return whether a rule that isn't ours looks up local for all packets before keep's rules."""
    usual = Rule(rule.preference, table=Table.LOCAL, iif=rule.iif, protocol=rule.protocol)
    is_for_own = rule.iif in (None, LOOPBACK)
    return rule == usual and is_for_own and rule.preference < _KEEP and not rule.is_ours


@frozen
class KeptInterface:
    """An interface on which packets from its own addresses stay.

    Args:
        dev: the interface's name.
        sources: the interface's addresses.
        networks: its connected networks, each with the interface's first address in the network.
        gateway: the next hop of the side table's default route; None if it has no default route.
    """

    dev: str
    sources: tuple[IPv4Address, ...]
    networks: Mapping[IpNetwork, IpAddress]
    gateway: NextHop | None

    def rules(self, table: int) -> Iterator[Rule]:
        """Yield the rules for packets from the interface's addresses (see the module docstring)."""
        for address in self.sources:
            rule = Rule(
                _KEEP,
                table=table,
                source=IPv4Network(address),
                protocol=Protocol.HOSTROUTING,
            )
            if self.gateway is None:
                yield rule
                continue
            longer = attrs.evolve(rule, suppress_prefix_length=0)
            yield longer
            yield attrs.evolve(longer, preference=_KEEP_LONGER, table=Table.MAIN)
            yield attrs.evolve(rule, preference=_KEEP_GATEWAY)

    def routes(self, table: int) -> Iterator[Route]:
        """Yield the side table's routes: first to connected networks, then the default route."""
        for network, source in self.networks.items():
            yield Route(
                network,
                (NextHop(self.dev),),
                table=table,
                scope=Scope.LINK,
                source=source,
            )
        if self.gateway is not None:
            yield Route(DEFAULT_DESTINATION, (self.gateway,), table=table)


@frozen(eq=False, repr=False)
class KeptInterfaces:
    """The interfaces that a config keeps on a host, and what it names but can't keep.

    Args:
        interfaces: the kept interfaces, in the order of their indexes.
        left_out: what ``keep`` names but can't keep: interfaces, and addresses on kept interfaces.
        pending: a phrase for each interface in ``keep`` that is down or has no address yet.
        awaited: those phrases of ``pending`` that are about interfaces that are up.
    """

    interfaces: tuple[KeptInterface, ...]
    left_out: tuple[LeftOut, ...]
    pending: tuple[str, ...]
    awaited: tuple[str, ...]


_NEVER_KEPT = f"{LOOPBACK} never is, and there is no other such interface"


def find_kept(config: Config, facts: Facts, defaults: Sequence[Route]) -> KeptInterfaces:
    """Find the interfaces that a config keeps. The arguments are those of ``resolve_policy``."""
    finder = _Finder(config, facts, defaults)
    loopback = loopback_of(facts.links)
    links = [link for link in facts.links if link.name != loopback]
    entries = config.static_routes.keep
    finder.left_out += _without_interface(entries, links)
    for link in links:
        first = next((each for each in entries if is_like(link.name, (each.dev,))), None)
        if first is not None:
            finder.sort(link, first)
    return KeptInterfaces(
        tuple(finder.kept),
        tuple(finder.left_out),
        tuple(finder.pending),
        tuple(finder.awaited),
    )


def _without_interface(entries: Iterable[Keep], links: Sequence[Link]) -> Iterator[LeftOut]:
    """Yield the entries of ``keep`` that match no interface, or only lo."""
    for entry in entries:
        if not any(is_like(link.name, (entry.dev,)) for link in links):
            is_loopback = is_like(LOOPBACK, (entry.dev,))
            why = _NEVER_KEPT if is_loopback else "there is no such interface"
            yield LeftOut(entry.dev, why, is_there=False)


@attrs.define(eq=False, repr=False)
class _Finder:
    """The interfaces in ``keep``, divided into kept, left out and pending interfaces."""

    config: Config
    facts: Facts
    defaults: Sequence[Route]
    kept: list[KeptInterface] = attrs.field(factory=list[KeptInterface])
    left_out: list[LeftOut] = attrs.field(factory=list[LeftOut])
    pending: list[str] = attrs.field(factory=list[str])
    awaited: list[str] = attrs.field(factory=list[str])

    def sort(self, link: Link, entry: Keep) -> None:
        """Add an interface to the list of kept, pending or left-out interfaces."""
        if (reason := self._why_unkept(link)) is not None:
            self.left_out.append(LeftOut(link.name, reason))
            return
        addresses = [
            each
            for each in self.facts.addresses
            if each.dev == link.name and each.scope == Scope.UNIVERSE
        ]
        if not link.is_up:
            self.pending.append(f"{link.name} (it is down)")
        elif not addresses:
            phrase = f"{link.name} (it has no address)"
            self.pending.append(phrase)
            self.awaited.append(phrase)
        elif own := self._without_shared(addresses):
            self._sort_by_networks(link.name, entry, own)

    def _sort_by_networks(self, dev: str, entry: Keep, own: Sequence[Address]) -> None:
        """Add an interface to ``kept`` or ``left_out``, given its own, unshared addresses."""
        networks = _networks(own)
        gateway = self._gateway(dev, entry, networks)
        if not (networks or gateway):
            reason = "it has neither a connected network nor a gateway"
            self.left_out.append(LeftOut(dev, reason))
        elif not any(map(_is_early_local, self.facts.rules)):
            # If table local's rule comes later, as on hosts with VRFs (vrf.rst in the kernel),
            # packets between this host's own addresses would leave the host.
            self.left_out.append(self._without_early_local(dev))
        else:
            sources = dict.fromkeys(IPv4Address(address.local) for address in own)
            self.kept.append(KeptInterface(dev, tuple(sources), networks, gateway))

    def _without_early_local(self, dev: str) -> LeftOut:
        """Return an interface that isn't kept because no rule is known to look up local first."""
        for rule in self.facts.rules:
            whole = attrs.evolve(rule, has_unknown=False)
            if rule.hides_selectors and _is_early_local(whole):
                reason = f"the snapshot doesn't show whether the rule {rule_words(rule)} matches"
                return LeftOut(dev, f"{reason} all packets; {HIDES_SELECTORS}", is_known=False)
        return LeftOut(dev, f"no rule before {_KEEP} looks up table local")

    def _why_unkept(self, link: Link) -> str | None:
        if self._is_uplink(link):
            return "it is an uplink"
        if link.master is not None and not self._is_vrf(link.master):
            return f"it is a port of {link.master}"
        return None

    def _without_shared(self, addresses: Iterable[Address]) -> list[Address]:
        """Return the addresses that no other interface has; add shared ones to ``left_out``."""
        own: list[Address] = []
        for address in addresses:
            other = self._other_owner(address.local, address.dev)
            if other is None:
                own.append(address)
            else:
                reason = f"{other} has this address, too"
                name = f"{address.local} of {address.dev}"
                self.left_out.append(LeftOut(name, reason))
        return own

    def _is_uplink(self, link: Link) -> bool:
        if self.config.uplinks is not None:
            return is_like(link.name, self.config.uplinks)
        if verified := find_verified(self.config.verified, self.facts.links):
            return link.name in verified
        default = default_route(self.defaults)
        return default is not None and link.name in default.devs

    def _is_vrf(self, name: str) -> bool:
        return any(link.name == name and link.kind == "vrf" for link in self.facts.links)

    def _other_owner(self, address: IpAddress, dev: str) -> str | None:
        others = (each.dev for each in self.facts.addresses if each.local == address)
        return next((other for other in others if other != dev), None)

    def _gateway(self, dev: str, entry: Keep, networks: Iterable[IpNetwork]) -> NextHop | None:
        """Return the next hop of an interface's default route, or None without a default route."""
        if entry.gateway == ONLINK:
            return NextHop(dev)
        if entry.gateway is not None:
            is_near = any(entry.gateway in network for network in networks)
            return NextHop(dev, entry.gateway, onlink=not is_near)
        default = default_route(route for route in self.defaults if dev in route.devs)
        if default is None:
            return None
        hop = next(hop for hop in default.hops if hop.dev == dev and not hop.is_dead)
        return NextHop(dev, hop.gateway, onlink=hop.onlink)


def _networks(addresses: Iterable[Address]) -> dict[IpNetwork, IpAddress]:
    """Return the connected networks of addresses, each with the first address in the network."""
    networks: dict[IpNetwork, IpAddress] = {}
    for address in addresses:
        network = address.network
        is_single = network.prefixlen == 32 and address.peer is None
        # The kernel adds no connected route for a /32 without a peer, or for an address in
        # 0.0.0.0/8 (fib_add_ifaddr).
        if not is_single and network.network_address not in _ZERO_NETWORK:
            networks.setdefault(network, address.local)
    return networks


@attrs.define(eq=False, repr=False, slots=False)
class _SideTables:
    """The side tables of a host, each of which ``take`` assigns to at most one interface.

    Args:
        rules: all policy rules, in evaluation order.
        foreign_in: see ``resolve_policy``.
    """

    rules: Sequence[Rule]
    foreign_in: Callable[[int], Route | None]
    _taken: set[int] = attrs.field(factory=set[int], init=False)
    _untried: Iterator[int] = attrs.field(factory=lambda: iter(SIDE_TABLES), init=False)

    def take(self, interface: KeptInterface) -> int:
        """Return the table that our existing rules look up for an interface, or else a free table.

        Raises:
            RouteError: another program has a route in the interface's table, or no table is free.
        """
        table = self._named(interface)
        if table is None:
            table = self._free()
        elif (foreign := self.foreign_in(table)) is not None:
            raise RouteError(
                f"can't keep {interface.dev}: another program has a route in its table {table} "
                f"({foreign})",
                hint=_how_to_remove(foreign, table),
            )
        self._taken.add(table)
        return table

    def _named(self, interface: KeptInterface) -> int | None:
        sources = {IPv4Network(address) for address in interface.sources}
        named = [rule for rule in self.rules if rule.is_ours and rule.preference in _NAMING]
        tables = (rule.table for rule in named if rule.source in sources)
        return next((each for each in tables if each in SIDE_TABLES and self._may_take(each)), None)

    @cached_property
    def _looked_up(self) -> set[int]:
        return {rule.table for rule in self.rules if rule.has_table}

    def _free(self) -> int:
        for table in self._untried:
            if table in self._looked_up or not self._may_take(table):
                continue
            if self.foreign_in(table) is None:
                return table
        raise RouteError(f"there is no free table from {SIDE_TABLES[0]} to {SIDE_TABLES[-1]}")

    def _may_take(self, table: int) -> bool:
        return table not in self._taken


def _how_to_remove(foreign: Route, table: int) -> str:
    command = how_to_delete(foreign)
    if command:
        return f"delete it, or have its owner do so: {command}"
    return f"have its owner remove it; look at: ip route show table {table}"


# --- plan -----------------------------------------------------------------------------------------


class RuleSteps(NamedTuple):
    """The changes to policy rules, in the order in which they are made.

    Args:
        remove_first: the rules to remove before the additions, because a later request to remove
            one of them could remove an added rule instead.
        add: the rules to add.
        remove: the rules to remove last.
    """

    remove_first: tuple[Rule, ...]
    add: tuple[Rule, ...]
    remove: tuple[Rule, ...]


@frozen
class PolicyPlan:
    """The changes to our rules and side tables.

    Args:
        family: the address family.
        wanted: the wanted rules and routes.
        there: our existing rules and routes, in the kernel's order.
    """

    family: Family
    wanted: PolicyRouting = PolicyRouting()
    there: PolicyRouting = PolicyRouting()

    @cached_property
    def add(self) -> tuple[Route, ...]:
        """Return the routes that are added to side tables."""
        keys = {route.key for route in self.there.routes}
        return tuple(route for route in self.wanted.routes if route.key not in keys)

    @cached_property
    def replace(self) -> tuple[Replacement, ...]:
        """Return the side-table routes that must change, each with the wanted route of its key."""
        wanted = {route.key: route for route in self.wanted.routes}
        pairs = [Replacement(old, wanted[old.key]) for old in self._with_wanted_keys]
        return tuple(pair for pair in pairs if not pair.old.has_same_effect(pair.new))

    @cached_property
    def unchanged(self) -> tuple[Route, ...]:
        """Return the routes in side tables that have the same effect as the wanted ones."""
        replaced = {pair.old for pair in self.replace}
        return tuple(route for route in self._with_wanted_keys if route not in replaced)

    @cached_property
    def remove(self) -> tuple[Route, ...]:
        """Return the unwanted routes in side tables, with routes to connected networks last."""
        left = [*self.there.routes]
        for route in self._with_wanted_keys:
            left.remove(route)
        return tuple(sorted(left, key=lambda route: route.is_near))

    @cached_property
    def _with_wanted_keys(self) -> tuple[Route, ...]:
        """Return the existing routes with the key of a wanted route.

        Of several routes with one key, only the first is returned, because the kernel uses no
        other.
        """
        wanted = {route.key for route in self.wanted.routes}
        first: dict[tuple[object, ...], Route] = {}
        for route in self.there.routes:
            if route.key in wanted:
                first.setdefault(route.key, route)
        return tuple(first.values())

    @cached_property
    def rule_steps(self) -> RuleSteps:
        """Return the changes to rules, in order.

        The order matters only among rules with the same preference and selectors, such as our rules
        for tables local and main. The kernel adds a new rule behind existing rules with its
        preference. So if a wanted rule is missing or in a wrong position, it is removed and added
        again, and so are the wanted rules behind it.
        """
        # If the host has several copies of a rule, the kernel deletes the first copies, and the
        # last copy stays. So in this dict, a later copy's position replaces an earlier copy's.
        last_positions = {rule: position for position, rule in enumerate(self.there.rules)}
        staying: set[int] = set()
        add: list[Rule] = []
        for alike in _by_selectors(self.wanted.rules):
            in_order = _in_order(alike, last_positions)
            staying.update(in_order)
            add += alike[len(in_order) :]
        gone = [rule for position, rule in enumerate(self.there.rules) if position not in staying]
        # A request to delete a rule in ``first`` also matches an added rule, so the deletion must
        # precede the addition. A rule in a wrong position is in ``first``: it is added again.
        first = [rule for rule in gone if any(_may_be_mistaken(rule, new) for new in add)]
        later = [rule for rule in gone if rule not in first]
        return RuleSteps(tuple(first), tuple(add), tuple(later))

    @property
    def unchanged_rules(self) -> tuple[Rule, ...]:
        """Return our existing rules that stay, in the kernel's order."""
        staying = {*self.wanted.rules}.difference(self.rule_steps.add)
        return tuple(rule for rule in dict.fromkeys(self.there.rules) if rule in staying)

    def without_removals(self) -> PolicyPlan:
        """Return the plan with only those removals that must precede an addition.

        The rules and routes of the other removals count as wanted.
        """
        wanted = attrs.evolve(
            self.wanted,
            rules=(*self.wanted.rules, *self.rule_steps.remove),
            routes=(*self.wanted.routes, *self.remove),
        )
        return attrs.evolve(self, wanted=wanted)

    def rules_after(self, rules: Iterable[Rule]) -> tuple[Rule, ...]:
        """Return all rules that the host has after the changes, in evaluation order.

        Args:
            rules: all rules that the host has now, in evaluation order.
        """
        steps = self.rule_steps
        after = [*rules]
        for rule in (*steps.remove_first, *steps.remove):
            after.remove(rule)
        for rule in steps.add:
            # Like the kernel, add the rule behind existing rules with its preference.
            position = sum(each.preference <= rule.preference for each in after)
            after.insert(position, rule)
        return tuple(after)

    @property
    def changes(self) -> Changes:
        """Return the plan's changes."""
        steps = self.rule_steps
        return Changes(
            routes=(
                *(Change(route, "added") for route in self.add),
                *(Change(pair.new, "replaced", pair.old) for pair in self.replace),
                *(Change(route, "removed") for route in self.remove),
            ),
            rules=(
                *(Change(rule_words(rule), "added") for rule in steps.add),
                *(Change(rule_words(rule), "removed") for rule in steps.remove_first),
                *(Change(rule_words(rule), "removed") for rule in steps.remove),
            ),
        )


def _by_selectors(rules: Iterable[Rule]) -> Iterable[list[Rule]]:
    groups: dict[tuple[object, ...], list[Rule]] = {}
    for rule in rules:
        key = (rule.preference, rule.source, rule.destination)
        groups.setdefault(key, []).append(rule)
    return groups.values()


def _in_order(wanted: Iterable[Rule], positions: Mapping[Rule, int]) -> list[int]:
    """Return the positions of the first wanted rules, up to one that is missing or out of order.

    Args:
        wanted: the rules, in the order in which the kernel must evaluate them.
        positions: the position of each existing rule.
    """
    in_order: list[int] = []
    for rule in wanted:
        position = positions.get(rule)
        if position is None or (in_order and position <= in_order[-1]):
            break
        in_order.append(position)
    return in_order


def _may_be_mistaken(rule: Rule, other: Rule) -> bool:
    """Return whether a request to add or delete one of our rules may match another of ours.

    A request without a source or destination matches rules with any source or destination
    (rule_exists and rule_find in net/core/fib_rules.c). A deletion without
    ``suppress_prefixlength`` matches rules with any ``suppress_prefixlength``.
    """
    is_alike = (rule.preference, rule.action, rule.table) == (
        other.preference,
        other.action,
        other.table,
    )
    pairs = ((rule.source, other.source), (rule.destination, other.destination))
    return is_alike and all(a == b or a is None or b is None for a, b in pairs)
