"""A model of the kernel's IPv4 route lookup, based on policy rules and FIB entries.

On a live host, checks query the kernel. The model shows in addition which entry discards a packet,
and what a new route would change. For snapshots and the in-memory kernel, the model does all
lookups. The model follows net/ipv4/fib_trie.c, net/core/fib_rules.c and net/ipv4/route.c. This
module does no I/O.

The steps of a lookup, each of which calls the next:

- ``lookup`` returns what inet_rtm_getroute would: it refuses some addresses, such as a source that
  isn't local, and calls ``decide``. In the result, the type is the packet's, for example
  ``multicast``. While tables local and main share one trie, the result shows table main for both.
- ``decide`` goes through the policy rules by ``evaluated_rules``, until one ends the lookup. A rule
  for a table ends the lookup only if an entry of the table matches, isn't ``throw``, and isn't
  suppressed by the rule (``is_final``). Otherwise, the kernel evaluates the next rule.
- ``find`` searches one table. Until the first custom rule, tables local and main share one trie
  (``is_merged``). The longer prefix wins there, regardless of its table.
- ``longest_match`` looks for the longest prefix, and then for the lowest metric. An entry whose
  hops are all dead is skipped. An entry with a tos is skipped, too: a check's packets have tos 0.

If a rule has an unknown selector, ``matches`` returns None, and the rule doesn't end the lookup.
``possible_decisions`` yields the results of the lookup if a rule with an unknown selector matches.

For speed, entries are in dicts by table, prefix length and first address, so a lookup tries each
length once. If there are many rules, ``rules_around`` selects the rules that may match an address.
"""

from __future__ import annotations

import errno as errnos
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from ipaddress import IPv4Address
from itertools import chain, product
from operator import attrgetter
from typing import ClassVar, NamedTuple

import attrs

from hostrouting.kernel.nexthops import Router
from hostrouting.kernel.rules import KERNEL_RULES, NO_SOURCE, TCP, UDP, Flow, loopback_of, matches
from hostrouting.kernel.sources import Sources
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, PrefixIndex, numbers
from hostrouting.model.links import Address, AddressLabel, Link
from hostrouting.model.lookups import ERRNO_OF_TYPE, Lookup
from hostrouting.model.routes import NextHop, Route, RouteType, Scope, Table
from hostrouting.model.rules import Rule, RuleAction

BROADCAST = IPv4Address("255.255.255.255")

# Up to this number of rules, evaluating all of them is as fast as selecting the relevant ones.
_FEW_RULES = 8

_ERRNO_OF_ACTION = {
    RuleAction.BLACKHOLE: errnos.EINVAL,
    RuleAction.UNREACHABLE: errnos.ENETUNREACH,
    RuleAction.PROHIBIT: errnos.EACCES,
}


class _RuleIndex(NamedTuple):
    """The positions of the policy rules, by destination prefix, source prefix and table.

    Args:
        destinations: the rules' destination prefixes; 0/0 for a rule without one.
        sources: the rules' source prefixes; 0/0 for a rule without one.
        positions: the rules' positions, by destination and source prefix, and then by table.
            Instead of a table, None means that the rules must be evaluated in any case: even if
            their table has no entry for the address.
    """

    destinations: PrefixIndex
    sources: PrefixIndex
    positions: dict[tuple[Prefix, Prefix], dict[int | None, list[int]]]


class Decision(NamedTuple):
    """The final result of a lookup.

    Args:
        rule: the rule that ended the lookup; None if no rule ended it.
        route: the matching entry, which may be a blackhole. None if no entry matches, or if the
            rule itself discards the packet (``from all blackhole``).
    """

    rule: Rule | None = None
    route: Route | None = None

    @property
    def errno(self) -> int:
        """Return the errno if the packet is discarded or has no route, or else 0."""
        if self.route is not None:
            return ERRNO_OF_TYPE.get(self.route.type, 0)
        return errnos.ENETUNREACH if self.rule is None else _ERRNO_OF_ACTION[self.rule.action]


@attrs.define(eq=False, repr=False, slots=False)
class Fib:
    """A host's policy rules and FIB entries.

    Args:
        rules: the policy rules, in evaluation order.
        routes: the entries in all tables, in the kernel's order.
        addresses: the host's addresses, in the kernel's order.
        links: the host's links. An interface that isn't among the links is assumed to be in group
            0. Without a loopback among them, ``lo`` is assumed to be the loopback interface.
        is_merged: whether tables local and main share one trie, as they do until the first custom
            rule is added (fib_unmerge). By default, True if the rules are the kernel's default
            rules.
        passes_discards: see ``release.passes_discards``.
        lacks_unknown: see ``matches``.
        silent_routers: the IPv6 routers whose neighbour entry is FAILED. The kernel avoids them if
            another route matches.
        labels: the labels of IPv6 addresses. None if they aren't known; then the kernel's default
            labels are assumed.
    """

    family: ClassVar[Family] = Family.IPV4

    rules: Sequence[Rule]
    routes: Sequence[Route]
    _addresses: Sequence[Address] = ()
    links: Sequence[Link] = attrs.field(default=(), kw_only=True)
    is_merged: bool = attrs.field(
        default=attrs.Factory(lambda fib: tuple(fib.rules) == KERNEL_RULES, takes_self=True),
        kw_only=True,
    )
    passes_discards: bool = attrs.field(default=False, kw_only=True)
    lacks_unknown: bool = attrs.field(default=False, kw_only=True)
    silent_routers: frozenset[Router] = attrs.field(default=frozenset(), kw_only=True)
    labels: Sequence[AddressLabel] | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._groups = {link.name: link.group for link in self.links if link.group}
        # Packets from this host have the loopback interface as iif. The loopback interface may have
        # been renamed.
        self.loopback = loopback_of(self.links)

    @cached_property
    def tables(self) -> dict[int, dict[int, dict[int, list[Route]]]]:
        """Return the entries by table, prefix length and network address, lowest metric first."""
        tables: dict[int, dict[int, dict[int, list[Route]]]] = {}
        for route in sorted(self.routes, key=attrgetter("metric")):
            networks = tables.setdefault(route.table, {}).setdefault(
                route.destination.prefixlen,
                {},
            )
            networks.setdefault(int(route.destination.network_address), []).append(route)
        return tables

    def addresses(self) -> Sequence[Address]:
        """Return the host's addresses, in the kernel's order."""
        return self._addresses

    @property
    def _has_only_kernel_rules(self) -> bool:
        """Return whether lookups skip the rules, because no rule was ever changed (fib_lookup)."""
        return self.is_merged and tuple(self.rules) == KERNEL_RULES

    # --- one table --------------------------------------------------------------------------------

    def longest_match(self, table: int, flow: Flow) -> Route | None:
        """Return the usable entry with the longest matching prefix, whatever its type."""
        number = int(flow.address)
        lengths = self.tables.get(table, {})
        for length in sorted(lengths, reverse=True):
            for route in lengths[length].get(number >> (32 - length) << (32 - length), ()):
                # Skip routes with a tos, routes with a wider scope (a smaller number) than
                # required, and routes without a usable hop.
                if (
                    not route.tos
                    and route.scope >= flow.scope
                    and (not route.hops or self.hop(route, flow))
                ):
                    return route
        return None

    def hop(self, route: Route, flow: Flow) -> NextHop | None:
        """Return the first usable hop of an entry, or None (fib_lookup_good_nhc)."""
        return next(
            (hop for hop in route.hops if not hop.is_dead and flow.oif in (None, hop.dev)),
            None,
        )

    def find(self, table: int, flow: Flow) -> Route | None:
        """Look up a flow in a single table.

        While tables local and main share one trie, a lookup in one of them searches both.
        """
        if not (self.is_merged and table in (Table.LOCAL, Table.MAIN)):
            return self.longest_match(table, flow)
        local = self.longest_match(Table.LOCAL, flow)
        main = self.longest_match(Table.MAIN, flow)
        if local is None or main is None:
            return local or main
        # If both prefixes have the same length, the entry in table local wins.
        return main if main.destination.prefixlen > local.destination.prefixlen else local

    # --- all rules --------------------------------------------------------------------------------

    def rules_around(self, flow: Flow) -> Sequence[int]:
        """Return the positions of the rules that may affect a flow.

        Rules for other destinations or sources are left out. So are rules for a table without an
        entry that covers the address, except for tables local and main. If the host has only a few
        rules, the positions of all are returned.
        """
        if len(self.rules) <= _FEW_RULES:
            return range(len(self.rules))
        entries, tables = self._tables_by_prefix
        single = (int(flow.address), self.family.bits)
        around = {None}.union(*(tables[prefix] for prefix in entries.around(single)))
        index = self._rule_index
        pairs = product(
            index.destinations.around(single),
            index.sources.around((int(flow.source), self.family.bits)),
        )
        groups = [index.positions[pair] for pair in pairs if pair in index.positions]
        return sorted(
            chain.from_iterable(group[table] for group in groups for table in group.keys() & around)
        )

    @cached_property
    def _rule_index(self) -> _RuleIndex:
        positions: dict[tuple[Prefix, Prefix], dict[int | None, list[int]]] = {}
        for position, rule in enumerate(self.rules):
            pair = (_prefix(rule, rule.destination), _prefix(rule, rule.source))
            is_of_other_table = rule.action is RuleAction.TO_TABLE and rule.table not in (
                Table.LOCAL,
                Table.MAIN,
            )
            group = positions.setdefault(pair, {})
            group.setdefault(rule.table if is_of_other_table else None, []).append(position)
        bits = self.family.bits
        destinations = PrefixIndex({destination for destination, _ in positions}, bits)
        sources = PrefixIndex({source for _, source in positions}, bits)
        return _RuleIndex(destinations, sources, positions)

    @cached_property
    def _tables_by_prefix(self) -> tuple[PrefixIndex, dict[Prefix, set[int]]]:
        tables: dict[Prefix, set[int]] = {}
        for route in self.routes:
            tables.setdefault(numbers(route.destination), set()).add(route.table)
        return PrefixIndex(tables, self.family.bits), tables

    def evaluated_rules(
        self,
        flow: Flow,
        positions: Sequence[int] | None = None,
        *,
        host_route_dev: str | None = None,
    ) -> Iterator[tuple[Rule, bool | None, Route | None]]:
        """Yield the rules that a lookup evaluates, up to and including the one that ends it.

        ``host_route_dev`` helps to judge a host route that table main may get for the address. A
        rule that ends the lookup with a shorter prefix in main would find that route instead. If
        the rule suppressed it, the lookup would go on. So the later rules are yielded, too.

        Args:
            flow: the key of the lookup.
            positions: the positions of the rules to evaluate; by default, ``rules_around`` selects
                them.
            host_route_dev: the interface of a host route that may be added to table main, or None.

        Yields:
            A rule; whether the rule matches, or None if that isn't known; and the longest match in
            the rule's table, or None if nothing matches. If it isn't known whether a rule matches,
            the next rule is yielded, too.
        """
        next_ = 0
        for position in self.rules_around(flow) if positions is None else positions:
            if position < next_:
                continue
            rule = self.rules[position]
            is_met = matches(rule, flow, self.loopback, lacks_unknown=self.lacks_unknown)
            found = None
            if is_met is not False and rule.action is RuleAction.TO_TABLE:
                found = self.find(rule.table, flow)
            yield rule, is_met, found
            if not is_met:
                continue
            if rule.action is RuleAction.GOTO:
                next_ = self._position_of(rule.goto)
            is_end = self._ends_with(rule, found)
            if is_end and not self._suppresses_host_route(rule, found, host_route_dev):
                return

    def _position_of(self, preference: int | None) -> int:
        """Return the position of the rule to which a goto jumps, or 0 if there is no such rule.

        The caller ignores a jump to 0 or backward. A backward goto must not cause an infinite loop.
        The kernel rejects a backward goto (fib_nl2rule), but a snapshot may contain one.
        """
        for position, rule in enumerate(self.rules):
            if rule.preference == preference:
                return position
        return 0

    def _suppresses_host_route(self, rule: Rule, found: Route | None, dev: str | None) -> bool:
        """Return whether a rule that finds an entry in main would suppress a host route there.

        Args:
            rule: a rule that looks up a table.
            found: the entry that the rule finds; None if it finds none.
            dev: the host route's interface; None if no host route is to be judged.
        """
        if dev is None or found is None or found.table != Table.MAIN:
            return False
        return self.suppresses(rule, self.family.bits, dev)

    def possible_decisions(self, flow: Flow) -> Iterator[tuple[Rule, Decision | None]]:
        """Yield each rule that may change the lookup, because it isn't known whether it matches.

        Each rule comes with the decision if the rule matches and ends the lookup. A goto doesn't
        end it, and comes with None.
        """
        for rule, is_met, found in self.evaluated_rules(flow):
            if is_met is None and rule.action is RuleAction.GOTO:
                yield rule, None
            elif is_met is None and self._ends_with(rule, found):
                yield rule, Decision(rule, found)

    def decide(self, flow: Flow) -> Decision:
        """Look up a flow, and return the final rule and entry."""
        for rule, is_met, route in self.evaluated_rules(flow):
            if is_met and self._ends_with(rule, route):
                return Decision(rule, route)
        return Decision()

    def _ends_with(self, rule: Rule, found: Route | None) -> bool:
        """Return whether a matching rule ends the lookup, given the longest match in its table."""
        if rule.action is RuleAction.TO_TABLE:
            return found is not None and self.is_final(rule, found)
        return rule.action not in (RuleAction.NOP, RuleAction.GOTO)

    # --- the kernel's answer ----------------------------------------------------------------------

    def lookup(
        self,
        address: IpAddress,
        source: IpAddress | None = None,
        *,
        is_tcp: bool = False,
    ) -> Lookup:
        """Return the best route, like ``RouteBackend.lookup`` (inet_rtm_getroute)."""
        flow = Flow(address, source or NO_SOURCE, TCP if is_tcp else UDP)
        if errno := self._refuse_ends(flow):
            return Lookup(address, None, errno)
        decision = self.decide(flow)
        route = decision.route
        if route is None or decision.errno:
            return Lookup(address, None, decision.errno)
        if self._leaves_from_loopback(route, flow):
            return Lookup(address, None, errnos.EINVAL)
        return Lookup(address, self._as_reported(route, address))

    def _as_reported(self, route: Route, address: IpAddress) -> Route:
        """Return an entry as the kernel reports it for a packet to an address.

        For a multicast or broadcast packet, the reported type is the packet's (__mkroute_output).
        While tables local and main share one trie, an entry in local is reported with table main.
        """
        kind = route.type
        number = int(address)  # ten times as fast to compare as addresses
        if number == 0xFFFFFFFF:
            kind = RouteType.BROADCAST
        elif number >> 28 == 0xE:
            kind = RouteType.MULTICAST
        table = Table.MAIN if self.is_merged and route.table == Table.LOCAL else route.table
        if (kind, table) == (route.type, route.table):
            return route
        return attrs.evolve(route, type=kind, table=table)

    def _refuse_ends(self, flow: Flow) -> int:
        """Return the errno if the kernel rejects a flow's addresses without a lookup, or else 0."""
        if int(flow.source):
            if flow.source.is_multicast or flow.source == BROADCAST:
                return errnos.EINVAL
            if not self.is_local(flow.source):
                return errnos.ENETUNREACH
            # The kernel sends multicast and broadcast packets through the source address's device
            # without a lookup, so there is no entry to report.
            if flow.address.is_multicast or flow.address == BROADCAST:
                return errnos.EHOSTUNREACH
        # 0.0.0.0 means this host, which doesn't require a lookup.
        return 0 if int(flow.address) else errnos.EHOSTUNREACH

    def is_local(self, source: IpAddress) -> bool:
        """Return whether table local has an address as local, or a device has it (ip_dev_find)."""
        found = self.find(Table.LOCAL, Flow(source, protocol=0))
        if found is not None and found.type is RouteType.LOCAL:
            return True
        return any(address.local == source for address in self.addresses())

    def _leaves_from_loopback(self, route: Route, flow: Flow) -> bool:
        """Return whether a packet would leave the host with a source in 127.0.0.0/8.

        Without the sysctl route_localnet, the kernel refuses to send this packet.
        """
        hop = None if route.type is RouteType.LOCAL else self.hop(route, flow)
        if hop is None or hop.dev == self.loopback:
            return False
        source = flow.source if int(flow.source) else route.source
        # Only for an entry with scope host does the kernel choose a source such as 127.0.0.1.
        if source is None and route.scope >= Scope.HOST:
            source = Sources(self.addresses()).by_hop(route, hop)
        return source is not None and source.is_loopback

    # --- what the kernel would do -----------------------------------------------------------------

    def finds_gateway(self, gateway: IpAddress, dev: str) -> bool:
        """Return whether the kernel would accept a gateway of a route in main (fib_check_nh_v4_gw).

        The kernel looks up the gateway by the policy rules, but considers only entries through the
        interface with scope link or narrower.

        Args:
            gateway: the gateway of a next hop without ``onlink``.
            dev: the hop's interface.

        Returns:
            True if the kernel finds a route to the gateway. VRFs aren't modelled, so on a host with
            a VRF, the result is always True.
        """
        if self._has_vrf:
            return True
        found = self.decide(Flow.to_gateway(gateway, dev)).route
        return found is not None and found.type in (RouteType.UNICAST, RouteType.LOCAL)

    @cached_property
    def _has_vrf(self) -> bool:
        """Return whether both a VRF and an l3mdev rule exist.

        An l3mdev rule without a VRF doesn't count: it stays when the last VRF is deleted.
        """
        return any(rule.is_l3mdev for rule in self.rules) and any(
            link.kind == "vrf" for link in self.links
        )

    def claims_gateway(self, gateway: IpAddress) -> Route | None:
        """Return the local entry that makes the kernel reject an onlink gateway.

        See fib_check_nh_v4_gw.

        Args:
            gateway: the gateway of an onlink next hop.

        Returns:
            The entry, or None if the kernel accepts the gateway. VRFs aren't modelled, so on a host
            with a VRF, the result is always None.
        """
        found = None if self._has_vrf else self.find(Table.LOCAL, Flow(gateway))
        # A discarding or throw entry doesn't make an address local.
        is_claimed = found is not None and found.type in (RouteType.LOCAL, RouteType.BROADCAST)
        return found if is_claimed else None

    def with_routes(self, routes: Iterable[Route]) -> Fib:
        """Return a copy with added routes, placed before existing entries with the same ``key``."""
        return attrs.evolve(self, routes=(*routes, *self.routes))

    def is_final(self, rule: Rule, route: Route) -> bool:
        """Return whether a rule accepts the entry that it finds, so that the lookup ends."""
        if route.type is RouteType.THROW:
            return False
        # Discarding entries are never suppressed (fib_rules_lookup suppresses only successful
        # results).
        if route.type.is_discard:
            is_passed = (
                self.passes_discards
                and rule.table != Table.DEFAULT
                and Table.DEFAULT in self.tables
            )
            return not (is_passed and self._has_only_kernel_rules)
        dev = route.hops[0].dev if route.hops else None
        return not self.suppresses(rule, route.destination.prefixlen, dev)

    def suppresses(self, rule: Rule, prefix_length: int, dev: str | None) -> bool:
        """Return whether a rule suppresses unicast routes with a prefix length and interface."""
        longest = rule.suppress_prefix_length
        group = rule.suppress_group
        is_short = longest is not None and prefix_length <= longest
        return is_short or (group is not None and dev is not None and group == self.group_of(dev))

    def group_of(self, dev: str) -> int:
        """Return an interface's group."""
        return self._groups.get(dev, 0)


def _prefix(rule: Rule, network: IpNetwork | None) -> Prefix:
    return (0, 0) if network is None or rule.is_inverted else numbers(network)
