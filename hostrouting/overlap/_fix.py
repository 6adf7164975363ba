"""Pure: find the fewest static routes that fix the failures, and the failures that no route can fix.

A route in table main fixes an address if no rule decides before main and if the route is longer than the one that wins
now. If the winning route has a metric, a route of the same length is enough. Each failing interval needs such a route.
Addresses that must not change may be covered by routes that are shorter than their entry in main, because those routes
don't affect them::

    172.16.0.0/16  dev ib0       fails, but a route of /17 or longer fixes it
    172.16.3.7     dev ib0       fails and stays, because no route is longer than /32
    172.16.3.10    local         no route changes it, so it may be covered
    172.16.9.0/24  dev eth0      fine: a route that covers it must be shorter than /24
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from operator import itemgetter
from shlex import quote

import attrs

from hostrouting.config.routing import ONLINK, ExpectedCidr, StaticRoute
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.nexthops import in_turn, unicast_defaults
from hostrouting.kernel.rules import Flow
from hostrouting.model.errors import RouteError
from hostrouting.model.links import is_like
from hostrouting.model.parsing import parse_device
from hostrouting.model.prefixes import Prefix, PrefixIndex, ends, numbers
from hostrouting.model.routes import NextHop, Route, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.model.text import shortened
from hostrouting.overlap._classify import Classification, Classifications
from hostrouting.overlap._cover import AdjacentIntervals, Segment, fewest_prefixes
from hostrouting.overlap._coverage import Interval, intervals_in, networks_of
from hostrouting.overlap._state import State, local_subnets, usable_devs
from hostrouting.overlap.findings import Finding, Fix, Obstacle, Unfixable
from hostrouting.overlap.wording import decided_by
from hostrouting.routes.plan import plan_routes
from hostrouting.routes.resolve import resolve

# Networks that other programs own. A static route there would be removed, or would break the network.
_OWNERS = (
    (("docker*", "br-*"), "Docker: move its address pools (bip, default-address-pools in daemon.json)"),
    (("podman*",), "Podman: move its subnets (default_subnet, default_subnet_pools in containers.conf)"),
    (("virbr*",), "libvirt: move its network (virsh net-edit)"),
    (
        ("tailscale*", "wg*", "tun*", "tap*", "ppp*", "zt*", "nebula*"),
        "a VPN: have it take fewer routes, or name it in routeOverlap.allowedDevs if it may carry this traffic",
    ),
)


# If a rule ignores short routes, a large CIDR would need more routes than a node should have.
_ROUTES_MAX = 4096


def _is_named_in_config(route: Route) -> bool:
    """Return whether a static route in the config can name the next hop of a route."""
    is_plain = len(route.hops) == 1 and not isinstance(route.hops[0].gateway, IPv6Address)
    return is_plain and _is_nameable(route.hops[0].dev or "")


def _is_nameable(dev: str) -> bool:
    """Return whether a config accepts the name of an interface."""
    try:
        parse_device(dev)
    except ValueError:  # the kernel allows a name such as $(reboot)
        return False
    return True


@attrs.frozen
class _Constraint:
    """A constraint on the routes that may cover the addresses with a certain answer.

    Args:
        above: the length that a route must exceed to fix the failure (-1 if any route fixes it), or None if there is no
            failure or no route can fix it.
        obstacle: the reason why no route can fix the failure, or None if there is no failure or a route can fix it.
        most: the length of the longest route that may cover the addresses, or -1 if none may.
        holder: the entry of table main that covers the addresses, which replaces ``most``. Shorter routes don't affect
            them.
    """

    above: int | None = None
    obstacle: Obstacle | None = None
    most: int = -1
    holder: Route | None = None

    def segment(self, interval: Interval) -> Segment:
        """Return the constraint for one interval."""
        if self.above is not None:
            return Segment(interval.first, interval.last, is_target=True, above=self.above)
        most = self.most
        if self.holder is not None:
            # An interval may span several entries, because it isn't split at each entry of a large table.
            destination = self.holder.destination
            first, last = ends(numbers(destination))
            most = destination.prefixlen - 1 if first <= interval.first and interval.last <= last else -1
        return Segment(interval.first, interval.last, is_target=False, most=most)


def _length_to_exceed(found: Route) -> int:
    """Return the length that a new entry of table main must exceed to win over an existing one.

    Our entries have no metric, so they win over an entry of the same length that has one. Connected routes are an
    exception, because the kernel refuses a second one.
    """
    is_outdone = found.table == Table.MAIN and found.metric > 0 and not found.is_connected
    return found.destination.prefixlen - is_outdone


class Fixes:
    """The fixes for the failures of a check.

    Args:
        state: the state of the host.
        default: the default route of the state, from which the new entries inherit.
        classifications: the classifications of each expected CIDR, from ``classify_probes``.
        nameservers: the DNS servers in resolv.conf.
    """

    def __init__(
        self,
        state: State,
        default: Route,
        classifications: Mapping[ExpectedCidr, Classifications],
        nameservers: Iterable[IPv4Address] = (),
    ) -> None:
        self._state, self._default, self._nameservers = state, default, tuple(nameservers)
        intervals, devs = state.intervals, state.uplinks
        # If two uplinks share a subnet, it belongs to the one that the default route uses. An uplink that can't have
        # routes has no subnet.
        usable = usable_devs(state.links, devs)
        self._local_subnets = local_subnets(state.addresses, usable) | local_subnets(state.addresses, default.devs)
        self._nested_subnets = PrefixIndex(self._local_subnets)
        # For each probe, the classification of its first lookup. A failure takes precedence if several CIDRs contain
        # the probe. ``_elsewhere`` has the probes whose CIDR doesn't expect the interfaces that an entry would use.
        self._classifications: dict[int, Classification] = {}
        self._elsewhere: dict[int, tuple[ExpectedCidr, Sequence[str]]] = {}
        for expected, found in classifications.items():
            for probed in dict.fromkeys(
                interval.probed for interval in intervals_in(intervals, numbers(expected.cidr))
            ):
                classification, known = found[probed][0], self._classifications.get(probed)
                if known is None or classification.is_failure or not known.is_failure:
                    self._classifications[probed] = classification
                subnet = self._subnet_of((probed, 32))
                by = default.devs if subnet is None else (self._local_subnets[subnet],)
                if not expected.allows_all(by):
                    self._elsewhere[probed] = expected, by
        self._fib, self._intervals = state.fib, intervals
        self._look_up = in_turn(lambda addresses: map(self._fib.lookup, addresses), state.routes)
        # The config doesn't say whether these interfaces lead to the cluster instead.
        rivals = {hop.dev or "" for route in unicast_defaults(state.routes) for hop in route.hops} - {*devs}
        self._rivals = local_subnets(state.addresses, () if state.named is not None else tuple(rivals))
        self._nested_rivals = PrefixIndex(self._rivals)
        # The gateways behind interfaces that aren't uplinks, each with a route through it.
        self._gateways = {
            (hop.gateway, hop.dev): route for route in state.routes for hop in route.hops if hop.dev not in devs
        }
        # The destinations for which a static route would be refused.
        self._taken = {
            numbers(route.destination)
            for route in state.routes
            if route.table == Table.MAIN and ((route.tos == 0 and route.metric == 0) or route.is_connected)
        }
        sizes: Counter[int] = Counter()
        for interval in self._intervals:
            sizes[interval.probed] += interval.last - interval.first + 1
        self._constraints = {
            probed: self._constraint(classification, sizes[probed])
            for probed, classification in self._classifications.items()
        }

    def with_fixes(self, findings: Iterable[Finding], fix: Fix) -> Iterator[Finding]:
        """Yield each failure with the entries that fix a part of it."""
        entries = {numbers(entry.destination): entry for entry in fix.routes}
        places = PrefixIndex(entries)
        for finding in findings:
            ranges = finding.ranges if finding.source is None else ()
            fixing = {place for network in ranges for place in self._fixing(places, network)}
            yield attrs.evolve(finding, fix=tuple(entries[place] for place in sorted(fixing)))

    def of_all(self) -> tuple[Fix, Fib]:
        """Return the common fix, verified on the resulting tables, and those tables."""
        constraints = [(interval, self._constraints[interval.probed]) for interval in self._intervals]
        targets = [interval for interval, constraint in constraints if constraint.above is not None]
        found = fewest_prefixes([constraint.segment(interval) for interval, constraint in constraints], self._taken)
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
        own = AdjacentIntervals(
            interval for interval in self._intervals if self._classifications[interval.probed].is_local
        )
        unfixable = [
            Unfixable(networks_of(group), devs, obstacle, tuple(own.around(group)))
            for (devs, obstacle), group in left.items()
        ]
        tables = self._tables_with(entries, map(IPv4Address, fixed))
        if isinstance(tables, Fib):
            return Fix(entries, tuple(unfixable), tuple(self._consequences(PrefixIndex(places)))), tables
        return Fix((), (*unfixable, Unfixable(networks_of(targets), (), Obstacle(tables)))), self._fib

    # --- one answer --------------------------------------------------------------------------------------------

    def _constraint(self, classification: Classification, size: int) -> _Constraint:
        address = classification.probe.lookup.address
        if classification.is_local:
            # A longer route would change it only if main is looked up first and the lookup continues (suppressed,
            # throw).
            beaten = self._beaten(address)
            return _Constraint(most=beaten if isinstance(beaten, int) else 32)
        route = classification.route
        entry = route if route is not None and route.table == Table.MAIN else None
        if not classification.is_failure:
            # If a rule decides before main, the verification shows that an entry doesn't win.
            return _Constraint(holder=entry)
        if reason := self._not_ours_to_fix(address, classification):
            return _Constraint(obstacle=Obstacle(reason))
        holder = entry or self._fib.longest_match(Table.MAIN, address)
        if owner := self._owner(classification.devs):
            return _Constraint(obstacle=Obstacle(owner), holder=holder)
        above = self._above(address, classification.devs)
        if isinstance(above, int) and (needed := size >> (31 - above)) > _ROUTES_MAX:
            reason = f"that takes {needed} routes longer than /{above}: change the rule that passes over shorter ones"
            above = Obstacle(reason)
        return (
            _Constraint(above, holder=holder) if isinstance(above, int) else _Constraint(obstacle=above, holder=holder)
        )

    def _not_ours_to_fix(self, address: IPv4Address, classification: Classification) -> str:
        if (found := self._elsewhere.get(int(address))) is not None:
            expected, by = found
            return f"{expected} is expected, and a route would lead it by {','.join(by)}"
        if (subnet := next(self._nested_rivals.around((int(address), 32)), None)) is not None:
            dev = self._rivals[subnet]
            return (
                f"it is in the subnet of {dev}, which has a default route too: name the uplinks (hostRouting.uplinks)"
            )
        if classification.probe.lookup not in self._look_up([address]):
            return f"the kernel's answer doesn't follow from its tables and rules; see: ip route get fibmatch {address}"
        return ""

    def _owner(self, devs: Iterable[str]) -> str:
        foreign = [dev for dev in devs if dev not in self._state.uplinks]
        owned = (
            f"{dev} belongs to {advice}" for dev in foreign for patterns, advice in _OWNERS if is_like(dev, patterns)
        )
        return next(owned, "")

    def _above(self, address: IPv4Address, devs: Iterable[str]) -> int | Obstacle:
        """Return the length that a route must exceed to fix an address, or the reason why no route can."""
        beaten = self._beaten(address)
        if isinstance(beaten, Obstacle):
            return beaten
        if beaten == 32:
            entry = self._fib.find(Table.MAIN, Flow(address))
            return Obstacle(f"{entry} is for this address alone, and no route is longer: remove it")
        for dev in devs:
            if (route := self._gateways.get((address, dev))) is not None:
                return Obstacle(f"it is the gateway of {route}: move that gateway, or remove the route")
        subnet = self._subnet_of((int(address), 32))
        if subnet is None:
            return Obstacle(self._lost_gateway) if self._lost_gateway else beaten
        dev = self._local_subnets[subnet]
        if (self._names_devs or self._has_lost_source) and not _is_nameable(dev):
            return Obstacle(f"it is on the link of {dev}, a name that no config accepts: rename it")
        return max(beaten, subnet[1] - 1)

    def _beaten(self, address: IPv4Address) -> int | Obstacle:
        """Return the length that a new entry of table main must exceed, or the reason why main isn't looked up."""
        last: Rule | None = None
        bounds: list[int] = []
        dev = self._default.devs[0]
        for rule, found in self._fib.asked(Flow(address), own=dev):
            last = rule
            # While local and main share one trie, a lookup in local also searches main.
            is_main = rule.table == Table.MAIN or (rule.table == Table.LOCAL and self._fib.is_merged)
            shortest = -1 if rule.suppress_prefix_length is None else rule.suppress_prefix_length
            if rule.action is RuleAction.TO_TABLE and is_main and not self._fib.suppresses(rule, 32, dev):
                # A route that is too short for this rule may be long enough for the next rule that looks up main.
                bounds.append(max(-1 if found is None else _length_to_exceed(found), shortest))
        if bounds:
            return min(bounds)
        decision = self._fib.decide(address)
        if last is None or decision.rule is None:
            return Obstacle("no policy rule leads to table main: add one: ip rule add preference 32766 lookup main")
        if decision.route is not None and decision.route.table == Table.LOCAL:
            return Obstacle(f"{decision.route} decides before table main is asked: remove it")
        return Obstacle.of_rule(f"{decided_by(last)} before table main is asked", last, self._default.hops)

    @cached_property
    def _has_lost_source(self) -> bool:
        """Return whether the default route has a src that isn't an address of this host.

        The kernel refuses new routes with such a src.
        """
        source = self._default.source
        return source is not None and not self._fib.is_local(source)

    @cached_property
    def _lost_gateway(self) -> str:
        """Return why the kernel would refuse entries via the default route's gateways, or "" if it wouldn't."""
        default = self._default
        if self._has_lost_source and not _is_named_in_config(default):
            return f"the kernel would refuse entries with the src of {default}: it isn't an address of this host"
        for hop in default.hops:
            gateway, dev = hop.gateway, hop.dev
            if hop.is_dead or dev is None or not isinstance(gateway, IPv4Address):
                continue
            if hop.onlink and (claim := self._fib.claims_gateway(gateway)) is not None:
                return f"the kernel would refuse entries via {gateway}, because it is in {claim}: remove that"
            if hop.onlink or self._fib.finds_gateway(gateway, dev):
                continue
            reason = f"the kernel would refuse entries via {gateway}: by its rules it finds no route to it on {dev}"
            own = Route(IPv4Network(gateway), (NextHop(dev),))
            if not self._fib.with_changes(add=[own]).finds_gateway(gateway, dev):
                return f"{reason}; change them"
            named = f', "dev": {json.dumps(dev)}' if len(default.devs) > 1 else ""
            entry = f'{{"destination": "{gateway}/32", "gateway": "onlink"{named}}}'
            return f"{reason}; change them, or first add an entry to it alone: {entry}"
        return ""

    def _subnet_of(self, prefix: Prefix) -> Prefix | None:
        """Return the innermost subnet of an uplink that contains a prefix, or None if there is none."""
        return next(self._nested_subnets.around(prefix), None)

    # --- the entries -------------------------------------------------------------------------------------------

    def _entry(self, network: IPv4Network) -> StaticRoute:
        subnet, default = self._subnet_of(numbers(network)), self._default
        if self._has_lost_source:
            # An entry with a gateway and a device inherits nothing, not even the src.
            if subnet is not None:
                return StaticRoute(network, ONLINK, self._local_subnets[subnet])
            (hop,) = default.hops
            return StaticRoute(network, hop.gateway if isinstance(hop.gateway, IPv4Address) else ONLINK, hop.dev)
        if subnet is not None:
            return StaticRoute(network, ONLINK, self._local_subnets[subnet] if self._names_devs else None)
        # Another default route may win, so the entry names the interface.
        is_one = self._state.named is not None and len(default.devs) == 1 and _is_nameable(default.devs[0])
        return StaticRoute(network, dev=default.devs[0] if is_one else None)

    @property
    def _names_devs(self) -> bool:
        """Return whether an entry for a subnet of an uplink has to name the uplink."""
        return self._state.named is not None or len(self._default.devs) > 1

    def _tables_with(self, entries: Sequence[StaticRoute], fixed: Iterable[IPv4Address]) -> Fib | str:
        """Return the tables as the planner would leave them, or the reason why the entries don't work."""
        state = self._state
        main = [route for route in state.routes if route.table == Table.MAIN]
        try:
            routes, missing = resolve(entries, state.links, state.addresses, main, state.named)
            # Our existing entries stay, and the new ones are added to them.
            plan = plan_routes(routes, [route for route in main if not route.is_ours])
        except RouteError as error:
            return str(error)
        if missing:
            return missing
        fib = self._fib.with_changes(add=plan.add)
        for address in fixed:
            probe = fib.lookup(address).route
            if probe is None or not set(probe.devs) <= set(state.uplinks):
                return f"{address} would still not leave by {','.join(state.uplinks)}"
        return fib

    def _fixed_in(self, prefix: Prefix, entry: Prefix) -> list[int]:
        """Return the first address of each interval that an entry fixes inside its overlap with a prefix."""
        first, _ = inner = max(prefix, entry, key=itemgetter(1))
        fixed = []
        for interval in intervals_in(self._intervals, inner):
            above = self._constraints[interval.probed].above
            if above is not None and above < entry[1]:
                fixed.append(max(first, interval.first))
        return fixed

    def _fixing(self, entries: PrefixIndex, network: IPv4Network) -> list[Prefix]:
        """Return the entries that fix a failure in a network."""
        prefix = numbers(network)
        return sorted(entry for entry in entries.meeting(prefix) if self._fixed_in(prefix, entry))

    def _consequences(self, entries: PrefixIndex) -> Iterator[str]:
        """Yield a line for each kind of other traffic that a fix moves to another interface."""
        state = self._state
        by = ",".join(self._default.devs)
        neighbours: dict[IPv4Network, list[str]] = {}
        for address in state.addresses:
            if address.dev not in state.uplinks and address.prefix_length < 32:
                neighbours.setdefault(address.network, []).append(address.dev)
        for subnet, devs in neighbours.items():
            if parts := [str(IPv4Network(entry)) for entry in self._fixing(entries, subnet)]:
                yield (
                    f"the node then reaches neighbours of {', '.join(dict.fromkeys(devs))} in {subnet} by {by} "
                    f"({shortened(parts, ' ', 8)}); if an interface must still answer them itself, give it a table: "
                    f"ip route add {subnet} dev {quote(devs[0])} table 100; ip rule add from ITS-ADDRESS lookup 100"
                )
        for server in self._nameservers:
            now = self._fib.lookup(server).route
            if now is not None and self._fixing(entries, IPv4Network(server)):
                yield f"the node then reaches the DNS server {server} of resolv.conf by {by}, not {','.join(now.devs)}"
