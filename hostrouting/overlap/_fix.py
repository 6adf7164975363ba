"""Find the fewest static routes that fix the failures, and the failures that no route can fix. This module does no I/O.

A route in table main fixes an address if no earlier rule matches and if its prefix is longer than the current best
match. If that match has a higher metric, a route with the same prefix length is enough. Each failing interval needs
such a route. Other addresses may be covered by routes with a shorter prefix than their entry in main, because these
don't affect them::

    172.16.0.0/16  dev ib0       fails, but a route of /17 or longer fixes it
    172.16.3.7     dev ib0       fails, and can't be fixed because no route is longer than /32
    172.16.3.10    local         not affected by routes, so it may be covered
    172.16.9.0/24  dev eth0      as expected; a route that covers it must be shorter than /24
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address
from operator import attrgetter, itemgetter
from shlex import quote

import attrs

from hostrouting.config.routing import ONLINK, ExpectedCidr, StaticRoute
from hostrouting.kernel.default_routes import unicast_defaults
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.rules import Flow
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.links import Link
from hostrouting.model.parsing import is_device
from hostrouting.model.prefixes import Prefix, PrefixIndex, PrefixSet, ends, numbers
from hostrouting.model.routes import Route, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.model.text import shortened
from hostrouting.overlap._bounds import own_gateway
from hostrouting.overlap._classify import Classification, Classifications
from hostrouting.overlap._constraint import Constraint, length_to_exceed, owner_of
from hostrouting.overlap._cover import fewest_prefixes, summary_of
from hostrouting.overlap._coverage import Interval, intervals_in, networks_of
from hostrouting.overlap._probes import Probe, is_modelled, modelled_lookups
from hostrouting.overlap._state import State
from hostrouting.overlap._uplinks import local_subnets
from hostrouting.overlap.findings import Finding
from hostrouting.overlap.proposals import Fix, Obstacle, Unfixable
from hostrouting.overlap.wording import decided_by
from hostrouting.routes.plan import plan_routes
from hostrouting.routes.resolve import resolve

# Upper limit on routes. If a rule suppresses short prefixes, a large CIDR would need more routes than a node should
# have.
_ROUTES_MAX = 4096


class Fixes:
    """Fixes for the failures found by a check.

    Args:
        state: the host's state.
        default: the default route in the state. New entries inherit from it.
        classifications: the result of ``classify_probes``.
        nameservers: DNS servers listed in resolv.conf.
    """

    def __init__(
        self,
        state: State,
        default: Route,
        classifications: Mapping[ExpectedCidr, Classifications],
        nameservers: Iterable[IpAddress] = (),
    ) -> None:
        self._state, self._default, self._family = state, default, state.family
        self._bits, bits = state.family.bits, state.family.bits
        self._nameservers = tuple(each for each in nameservers if Family.of(each) is state.family)
        intervals, devs = state.intervals, state.uplinks.devs
        # If two uplinks share a subnet, it is assigned to the one used by the default route. Uplinks that can't have
        # routes are skipped.
        usable = _usable_devs(state.links, devs)
        self._local_subnets = local_subnets(state.addresses, usable) | local_subnets(state.addresses, default.devs)
        self._nested_subnets = PrefixIndex(self._local_subnets, bits)
        # Maps each probe to the classification of its first lookup. If several CIDRs contain the probe, a failure takes
        # precedence. ``_connections`` holds the failures of its other lookups. ``_elsewhere`` holds probes in CIDRs
        # that don't allow the interfaces that an entry would use.
        self._classifications: dict[int, Classification] = {}
        self._connections: dict[int, list[Classification]] = {}
        self._elsewhere: dict[int, tuple[ExpectedCidr, Sequence[str]]] = {}
        for expected, found in classifications.items():
            for probed in {each.probed for each in intervals_in(intervals, numbers(expected.cidr), bits)}:
                classification, known = found[probed][0], self._classifications.get(probed)
                if known is None or classification.is_failure or not known.is_failure:
                    self._classifications[probed] = classification
                self._connections.setdefault(probed, []).extend(filter(attrgetter("is_failure"), found[probed][1:]))
                subnet = self._subnet_of((probed, bits))
                by = default.devs if subnet is None else (self._local_subnets[subnet],)
                if not expected.allows_all(by):
                    self._elsewhere[probed] = expected, by
        self._fib, self._intervals = state.fib, intervals
        self._look_up = modelled_lookups(self._fib)
        # The config doesn't rule out that the cluster is behind one of these interfaces instead.
        rivals = {hop.dev or "" for route in unicast_defaults(state.routes) for hop in route.hops} - {*devs}
        self._rivals = local_subnets(state.addresses, () if state.uplinks.named is not None else tuple(rivals))
        self._nested_rivals = PrefixIndex(self._rivals, bits)
        # Gateways on interfaces other than the uplinks, mapped to a route that uses them.
        self._gateways = {
            (hop.gateway, hop.dev): route for route in state.routes for hop in route.hops if hop.dev not in devs
        }
        # Static routes to any of these destinations would be refused.
        usual = state.family.usual_metric
        self._taken = {
            numbers(route.destination)
            for route in state.routes
            if route.table == Table.MAIN and ((route.tos == 0 and route.metric == usual) or route.is_connected)
        }
        sizes: Counter[int] = Counter()
        for interval in self._intervals:
            sizes[interval.probed] += interval.last - interval.first + 1
        self._constraints = {
            probed: self._constraint(classification, sizes[probed])
            for probed, classification in self._classifications.items()
        }

    def with_fixes(self, findings: Iterable[Finding], fix: Fix) -> Iterator[Finding]:
        """Yield each finding together with the entries that fully or partly fix it."""
        entries = {numbers(entry.destination): entry for entry in fix.routes}
        places = PrefixIndex(entries, self._bits)
        for finding in findings:
            around = ((place, prefix) for prefix in map(numbers, finding.ranges) for place in places.meeting(prefix))
            fixing = {place for place, prefix in around if self._fixed_in(prefix, place)}
            yield attrs.evolve(finding, fix=tuple(entries[place] for place in sorted(fixing)))

    def unexplained(self, findings: Iterable[Finding], unfixable: Iterable[Unfixable]) -> Iterator[Unfixable]:
        """Yield the failures without an entry or a reason, because they don't follow from the tables."""
        told = PrefixSet((numbers(part) for each in unfixable for part in each.ranges), self._bits)
        for finding in findings:
            parts = [part for part in finding.ranges if not told.overlaps(*ends(numbers(part), self._bits))]
            if parts and not finding.fix:
                yield Unfixable(tuple(parts), finding.devs, Obstacle(self._unmodelled(finding.probe, finding.source)))

    def of_all(self) -> tuple[Fix, Fib]:
        """Return the fix for all failures and the resulting tables, against which it has been verified."""
        intervals, family = self._intervals, self._family
        constraints = [(interval, self._constraints[interval.probed]) for interval in intervals]
        targets = [interval for interval, constraint in constraints if constraint.above is not None]
        segments = [constraint.segment(interval, self._bits) for interval, constraint in constraints]
        found = fewest_prefixes(segments, family, self._taken)
        entries = tuple(map(self._entry, found))
        places = [numbers(entry.destination) for entry in entries]
        fixed = dict.fromkeys(first for place in places for first in self._fixed_in(place, place))
        taken = Obstacle("an unused route has the same destination and metric: remove it")
        obstacles = [
            (interval, constraint.obstacle) for interval, constraint in constraints if constraint.obstacle is not None
        ]
        obstacles += [(interval, taken) for interval in targets if interval.first not in fixed]
        left: dict[tuple[tuple[str, ...], Obstacle], list[Interval]] = {}
        for interval, obstacle in obstacles:
            left.setdefault((self._classifications[interval.probed].devs, obstacle), []).append(interval)
        local = {each for each in intervals if self._classifications[each.probed].is_local}
        unfixable = [
            Unfixable(networks_of(group, family), devs, obstacle, tuple(summary_of(group, intervals, local, family)))
            for (devs, obstacle), group in left.items()
        ]
        tables = self._tables_with(entries, map(family.address, fixed))
        if isinstance(tables, Fib):
            return Fix(entries, tuple(unfixable), tuple(self._consequences(places, tables))), tables
        return Fix((), (*unfixable, Unfixable(networks_of(targets, family), (), Obstacle(tables)))), self._fib

    # --- one answer --------------------------------------------------------------------------------------------

    def _constraint(self, classification: Classification, size: int) -> Constraint:
        address = classification.probe.lookup.address
        if classification.is_local:
            # A longer route would affect it only if main is looked up first and the lookup falls through (suppressed,
            # throw).
            beaten = self._beaten(classification.probe)
            return Constraint(most=beaten if isinstance(beaten, int) else self._bits)
        route = classification.route
        entry = route if route is not None and route.table == Table.MAIN else None
        if not classification.is_failure:
            # If a rule before main matches, the verification will reject the entry.
            return Constraint(self._above_of_connections(int(address)), holder=entry)
        if classification.bound:
            allow = f'"allowedDevs": {json.dumps(list(classification.devs))}'
            reason = f"{classification.bound}: move that network, or, if it is meant to carry this, set {allow}"
            return Constraint(obstacle=Obstacle(reason, is_policy=True))
        if reason := self._not_ours_to_fix(classification):
            return Constraint(obstacle=Obstacle(reason))
        holder = entry or self._fib.longest_match(Table.MAIN, Flow(address))
        above = self._above(classification)
        if isinstance(above, int) and (needed := size >> (self._bits - 1 - above)) > _ROUTES_MAX:
            reason = f"that takes {needed} routes longer than /{above}: change the rule that skips shorter ones"
            above = Obstacle(reason)
        return Constraint(above, holder=holder) if isinstance(above, int) else Constraint(obstacle=above, holder=holder)

    def _above_of_connections(self, probed: int) -> int | None:
        """Return the prefix length that a route must exceed to fix lookups after the first one, or None if none can."""
        failures = (each for each in self._connections[probed] if not self._not_ours_to_fix(each))
        return max((above for above in map(self._above, failures) if isinstance(above, int)), default=None)

    def _not_ours_to_fix(self, classification: Classification) -> str:
        address = classification.probe.lookup.address
        if (own := classification.gateway) is not None:
            return f"{own.local} is the gateway of {classification.route}: remove that address from {own.dev}"
        if (found := self._elsewhere.get(int(address))) is not None:
            expected, by = found
            return f"{expected} is expected, but a route would send it through {','.join(by)}"
        if (subnet := next(self._nested_rivals.around((int(address), self._bits)), None)) is not None:
            dev = self._rivals[subnet]
            return (
                f"it is in the subnet of {dev}, which has a default route too: name the uplinks (hostRouting.uplinks)"
            )
        return "" if is_modelled(classification.probe, self._look_up) else self._unmodelled(address)

    def _unmodelled(self, address: IpAddress, source: IpAddress | None = None) -> str:
        passed = " (the kernel skips routers that don't answer)" if self._family is Family.IPV6 else ""
        see = f"see: {self._family.ip} route get fibmatch {address}{f' from {source}' if source else ''}"
        return f"the kernel's answer doesn't follow from its tables and rules{passed}; {see}"

    def _above(self, classification: Classification) -> int | Obstacle:
        """Return the prefix length that a route must exceed to fix a lookup, or the reason why no route can."""
        if owner := owner_of(dev for dev in classification.devs if dev not in self._state.uplinks.devs):
            return Obstacle(owner)
        address = classification.probe.lookup.address
        beaten = self._beaten(classification.probe)
        if isinstance(beaten, Obstacle):
            return beaten
        if beaten == self._bits:
            entry = self._fib.find(Table.MAIN, Flow(address))
            return Obstacle(f"{entry} is for this address alone, and no route is longer: remove it")
        for dev in classification.devs:
            if (route := self._gateways.get((address, dev))) is not None:
                return Obstacle(f"it is the gateway of {route}: move that gateway, or remove the route")
        subnet = self._subnet_of((int(address), self._bits))
        if subnet is None:
            return Obstacle(self._lost_gateway) if self._lost_gateway else beaten
        dev = self._local_subnets[subnet]
        if self._names_devs and not is_device(dev):
            return Obstacle(f"it is on the link of {dev}, a name that no config accepts: rename it")
        return max(beaten, subnet[1] - 1)

    def _beaten(self, probe: Probe) -> int | Obstacle:
        """Return the prefix length that a new entry in main must exceed, or the reason why main isn't looked up."""
        last: Rule | None = None
        bounds: list[int] = []
        dev = self._default.devs[0]
        for rule, is_met, found in self._fib.evaluated_rules(probe.flow, through=dev):
            if not is_met or rule.action in (RuleAction.NOP, RuleAction.GOTO):
                continue
            last = rule
            # While local and main share one trie, a lookup in local also searches main.
            is_main = rule.table == Table.MAIN or (rule.table == Table.LOCAL and self._fib.is_merged)
            shortest = -1 if rule.suppress_prefix_length is None else rule.suppress_prefix_length
            if rule.action is RuleAction.TO_TABLE and is_main and not self._fib.suppresses(rule, self._bits, dev):
                # A prefix that this rule suppresses may be long enough for a later rule that looks up main.
                bounds.append(max(-1 if found is None else length_to_exceed(found), shortest))
        if bounds:
            return min(bounds)
        decision = self._fib.decide(probe.flow)
        if last is None or decision.rule is None:
            return Obstacle(
                f"no policy rule leads to table main: add one: {self._family.ip} rule add preference 32766 lookup main"
            )
        if decision.route is not None and decision.route.table == Table.LOCAL:
            return Obstacle(f"{decision.route} decides before table main is asked: remove it")
        return Obstacle(f"{decided_by(last)} before table main is asked", last, self._default.hops, self._family)

    @cached_property
    def _has_lost_source(self) -> bool:
        """Return whether the default route has a src that isn't one of this host's addresses.

        The kernel refuses new routes with such a src.
        """
        source = self._default.source
        return source is not None and not self._fib.is_local(source)

    @cached_property
    def _lost_gateway(self) -> str:
        """Return why the kernel would refuse entries via the default route's gateways, or "" if it wouldn't."""
        default = self._default
        if (own := own_gateway(default, self._state.addresses)) is not None:
            return f"{own.local}, the gateway of {default}, is also an address of {own.dev}: remove it from there"
        hop, *others = default.hops
        is_nameable = not others and not isinstance(hop.gateway, IPv6Address) and is_device(hop.dev)
        if self._has_lost_source and not is_nameable:
            return f"the kernel would refuse entries with the src of {default}: it isn't an address of this host"
        for hop in default.hops:
            if not isinstance(gateway := hop.gateway, IPv4Address):
                continue
            if hop.onlink:
                if (claim := self._fib.claims_gateway(gateway)) is not None:
                    return f"the kernel would refuse entries via {gateway}, because it is in {claim}: remove that"
            elif not self._fib.finds_gateway(gateway, hop.dev or ""):
                reason = f"under the policy rules, it isn't reachable on {hop.dev}; change the rules"
                return f"the kernel would refuse entries via {gateway}: {reason}"
        return ""

    def _subnet_of(self, prefix: Prefix) -> Prefix | None:
        """Return the innermost uplink subnet that contains a prefix, if any."""
        return next(self._nested_subnets.around(prefix), None)

    # --- the entries -------------------------------------------------------------------------------------------

    def _entry(self, network: IpNetwork) -> StaticRoute:
        subnet, default = self._subnet_of(numbers(network)), self._default
        if subnet is not None:
            return StaticRoute(network, ONLINK, self._local_subnets[subnet] if self._names_devs else None)
        if self._has_lost_source:
            (hop,) = default.hops
            return StaticRoute(network, hop.gateway if isinstance(hop.gateway, IPv4Address) else ONLINK, hop.dev)
        # Another default route may take precedence, so name the interface in the entry.
        is_one = self._state.uplinks.named is not None and len(default.devs) == 1 and is_device(default.devs[0])
        return StaticRoute(network, dev=default.devs[0] if is_one else None)

    @property
    def _names_devs(self) -> bool:
        """Return whether entries in an uplink's subnet must name the uplink.

        An entry with a gateway and a device inherits nothing, not even the src.
        """
        return self._state.uplinks.named is not None or len(self._default.devs) > 1 or self._has_lost_source

    def _tables_with(self, entries: Sequence[StaticRoute], fixed: Iterable[IpAddress]) -> Fib | str:
        """Return the tables after the planner has applied the entries, or the reason why the entries don't work."""
        state = self._state
        main = [route for route in state.routes if route.table == Table.MAIN]
        try:
            routes, missing = resolve(entries, state.links, state.addresses, main, state.uplinks.named)
            # Keep our existing entries and add the new ones.
            plan = plan_routes(routes, [route for route in main if not route.is_ours])
        except RouteError as error:
            return str(error)
        if missing:
            return missing
        fib = self._fib.with_routes(plan.add)
        for address in fixed:
            probe = fib.lookup(address).route
            if probe is None or not set(probe.devs) <= set(state.uplinks.devs):
                silent = [
                    f"{gateway} on {dev} doesn't answer" for dev, gateway in sorted(state.silent_routers, key=str)
                ]
                return "; ".join([f"{address} would still not leave through {','.join(state.uplinks.devs)}", *silent])
        return fib

    def _fixed_in(self, prefix: Prefix, entry: Prefix) -> list[int]:
        """Return the first fixed address of each interval in the intersection of a prefix and an entry."""
        first, _ = inner = max(prefix, entry, key=itemgetter(1))
        fixed = []
        for interval in intervals_in(self._intervals, inner, self._bits):
            above = self._constraints[interval.probed].above
            if above is not None and above < entry[1]:
                fixed.append(max(first, interval.first))
        return fixed

    def _consequences(self, entries: Iterable[Prefix], tables: Fib) -> Iterator[str]:
        """Yield a line for each type of unrelated traffic that the fix moves to another interface."""
        state, places, by = self._state, PrefixIndex(entries, self._bits), ",".join(self._default.devs)
        neighbours: dict[IpNetwork, list[str]] = {}
        for address in state.addresses:
            if address.dev not in state.uplinks.devs and address.prefix_length < self._bits:
                neighbours.setdefault(address.network, []).append(address.dev)
        for subnet, devs in neighbours.items():
            nested = (place for place in places.meeting(numbers(subnet)) if place[1] > subnet.prefixlen)
            if parts := [str(self._family.network(place)) for place in nested]:
                yield (
                    f"the node then reaches neighbours of {', '.join(dict.fromkeys(devs))} in {subnet} through "
                    f"{by} ({shortened(parts, ' ', 8)}); if an interface must still answer them itself, give it a "
                    f"table: {self._family.ip} route add {subnet} dev {quote(devs[0])} table 100; "
                    f"{self._family.ip} rule add from ITS-ADDRESS lookup 100"
                )
        for server in self._nameservers:
            now, then = self._fib.lookup(server).route, tables.lookup(server).route
            if now is not None and then is not None and now.devs != then.devs:
                not_by = ",".join(now.devs)
                yield f"the node then reaches the DNS server {server} of resolv.conf through {by}, not {not_by}"


def _usable_devs(links: Sequence[Link], devs: Sequence[str]) -> list[str]:
    """Return the subset of interfaces on which the kernel accepts and uses routes."""
    vrfs = {link.name for link in links if link.kind == "vrf"}
    return [
        link.name
        for link in links
        if link.name in devs and link.is_up and link.has_carrier and (link.master is None or link.master in vrfs)
    ]
