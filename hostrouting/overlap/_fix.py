"""Find the fewest static routes that fix the failures, and the failures that no route can fix. This module does no I/O.

A route in table main fixes an address if no earlier rule matches and if its prefix is longer than the current best
match. If that match has a higher metric, a route with the same prefix length is enough. Each failing interval needs
such a route. Other addresses may be covered by routes with a shorter prefix than their entry in main, because these
don't affect them::

    172.16.0.0/16  dev ib0       fails, but a route of /17 or longer fixes it
    172.16.3.7     dev ib0       fails, and can't be fixed because no route is longer than /32
    172.16.3.10    local         not affected by routes, so it may be covered
    172.16.9.0/24  dev eth0      as expected; a route that covers it must be shorter than /24

Entries lead to the uplinks, or to the one interface that an expected CIDR allows. Each of these interfaces has entries
of its own, which cover no failure that needs another one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter

import attrs

from hostrouting.config.routing import ExpectedCidr, RouteOverlap
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.rules import Flow
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.prefixes import Prefix, PrefixIndex, PrefixSet, ends, numbers
from hostrouting.model.routes import NextHop, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.overlap._cautions import cautions
from hostrouting.overlap._classify import Classification, Classifications
from hostrouting.overlap._constraint import Constraint, length_to_exceed
from hostrouting.overlap._cover import Segment, fewest_prefixes, summary_of
from hostrouting.overlap._coverage import Interval, intervals_in, networks_of
from hostrouting.overlap._entries import Entries, Lead
from hostrouting.overlap._fixed import FixedHost, fixed_by
from hostrouting.overlap._owners import Owners
from hostrouting.overlap._probes import Probe, is_modelled, modelled_lookups
from hostrouting.overlap._questions import Questions
from hostrouting.overlap._state import State
from hostrouting.overlap.findings import Finding
from hostrouting.overlap.proposals import Fix, HostSettings, Obstacle, Unfixable
from hostrouting.overlap.wording import decided_by

# Upper limit on routes. If a rule suppresses short prefixes, a large CIDR would need more routes than a node should
# have.
_ROUTES_MAX = 4096

# Failing intervals, by their outgoing interfaces and the reason why no route fixes them.
_Left = dict[tuple[tuple[str, ...], Obstacle], list[Interval]]


class Fixes:
    """Fixes for the failures found by a check.

    Args:
        state: the host's state.
        classifications: the result of ``classify_probes``.
        missing: why there is no default route, or an empty string if there is one.
        settings: the host's settings that the cautions depend on.
    """

    def __init__(
        self,
        state: State,
        classifications: Mapping[ExpectedCidr, Classifications],
        missing: str,
        settings: HostSettings,
    ) -> None:
        self._found = classifications
        self._state, self._family, self._bits, self._settings = state, state.family, state.family.bits, settings
        self._entries, self._owners, self._fib = Entries(state, missing), Owners(state), state.fib
        self._intervals, self._look_up = state.intervals, modelled_lookups(self._fib)
        # Maps each probe to the classification of its first lookup, and to the CIDR that it fails for. If several CIDRs
        # contain the probe, a failure takes precedence. ``_connections`` holds the failures of its other lookups, and
        # ``_around`` the CIDRs that contain it, if any of them names its interfaces.
        self._classifications: dict[int, Classification] = {}
        self._expected: dict[int, ExpectedCidr] = {}
        self._connections: dict[int, list[tuple[ExpectedCidr, Classification]]] = {}
        self._around: dict[int, list[ExpectedCidr]] = {}
        is_limited = any(expected.devs is not None for expected in classifications)
        for expected, found in classifications.items():
            inside = intervals_in(self._intervals, numbers(expected.cidr), self._bits)
            for probed in {each.probed for each in inside}:
                classification, known = found[probed][0], self._classifications.get(probed)
                if known is None or classification.is_failure or not known.is_failure:
                    self._classifications[probed], self._expected[probed] = classification, expected
                failures = ((expected, each) for each in found[probed][1:] if each.is_failure)
                self._connections.setdefault(probed, []).extend(failures)
                if is_limited:
                    self._around.setdefault(probed, []).append(expected)
        # Gateways on interfaces other than the uplinks, mapped to a route that uses them.
        self._gateways = {
            (hop.gateway, hop.dev): route
            for route in state.routes
            for hop in route.hops
            if hop.dev not in state.uplinks.devs
        }
        # Why the installation would refuse what fixes a probe.
        self._refused: dict[int, Obstacle] = {}
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

    def report(self, overlap: RouteOverlap, findings: Iterable[Finding]) -> tuple[tuple[Finding, ...], Fix]:
        """Return the findings, each with the entries that fully or partly fix it, and the fix for all of them.

        Args:
            overlap: the expected CIDRs.
            findings: the findings of the check.
        """
        fix, fixed, left = self._of_all()
        findings = tuple(self._with_entries(findings, fix))
        left_after = fixed.unfixed_connections(overlap, self._obstacle_after)
        asked = {dev for _, obstacle in (*left, *left_after) if obstacle.question for dev in obstacle.question.devs}
        questions = Questions(self._state, asked, self._found)
        unfixable = [*self._told(left, questions), *fix.unfixable, *self._told(left_after, questions)]
        unfixable += self._unexplained(findings, unfixable)
        reasons = "\n".join(each.reason for each in unfixable)
        hints = tuple(hint for hint in self._owners.hints(findings, self._found) if hint not in reasons)
        return findings, attrs.evolve(fix, unfixable=tuple(unfixable), hints=hints)

    def _with_entries(self, findings: Iterable[Finding], fix: Fix) -> Iterator[Finding]:
        entries = {numbers(entry.destination): entry for entry in fix.routes}
        places = PrefixIndex(entries, self._bits)
        for finding in findings:
            around = ((place, prefix) for prefix in map(numbers, finding.ranges) for place in places.meeting(prefix))
            fixing = {place for place, prefix in around if self._fixed_in(prefix, place)}
            yield attrs.evolve(finding, fix=tuple(entries[place] for place in sorted(fixing)))

    def _unexplained(self, findings: Iterable[Finding], unfixable: Iterable[Unfixable]) -> list[Unfixable]:
        """Return the failures without an entry or a reason, because they don't follow from the tables."""
        told = PrefixSet((numbers(part) for each in unfixable for part in each.ranges), self._bits)
        found = []
        for finding in findings:
            parts = [part for part in finding.ranges if not told.overlaps(*ends(numbers(part), self._bits))]
            if parts and not finding.fix:
                obstacle = Obstacle(self._unmodelled(finding.probe, finding.source))
                found.append(Unfixable(tuple(parts), finding.devs, obstacle))
        return found

    def _of_all(self) -> tuple[Fix, FixedHost, _Left]:
        """Return the fix for all failures, the resulting host, against which it has been verified, and the rest."""
        constraints = [(interval, self._constraints[interval.probed]) for interval in self._intervals]
        targets = [interval for interval, constraint in constraints if constraint.above is not None]
        leads = {self._constraints[interval.probed].dev for interval in targets}
        places: dict[Prefix, str | None] = {}
        for dev in sorted(leads, key=lambda each: each or ""):
            segments = [
                constraint.segment(interval, self._bits)
                if constraint.above is None or constraint.dev == dev
                else Segment(interval.first, interval.last, most=-1)
                for interval, constraint in constraints
            ]
            places |= {numbers(each): dev for each in fewest_prefixes(segments, self._family, self._taken)}
        places = dict(sorted(places.items()))
        entries = tuple(self._entries.entry(self._family.network(place), dev) for place, dev in places.items())
        fixed = {first: dev for place, dev in places.items() for first in self._fixed_in(place, place)}
        taken = Obstacle("an unused route has the same destination and metric: remove it")
        obstacles = [
            (interval, constraint.obstacle) for interval, constraint in constraints if constraint.obstacle is not None
        ]
        obstacles += [(interval, taken) for interval in targets if interval.first not in fixed]
        left: _Left = {}
        for interval, obstacle in obstacles:
            left.setdefault((self._classifications[interval.probed].devs, obstacle), []).append(interval)
        host = fixed_by(self._state, entries, fixed)
        if isinstance(host, FixedHost):
            if self._excludes(host):
                return self._of_all()
            by = {place: self._entries.devs(place, dev) for place, dev in places.items()}
            return Fix(entries, consequences=tuple(cautions(self._state, self._settings, by, host.tables))), host, left
        unfixable = Unfixable(networks_of(targets, self._family), (), Obstacle(host))
        return Fix(unfixable=(unfixable,)), FixedHost(self._state, self._fib), left

    def _told(self, left: _Left, questions: Questions) -> list[Unfixable]:
        """Return what no entry fixes, with the questions to the user complete."""
        if not left:
            return []
        local = {each for each in self._intervals if self._classifications[each.probed].is_local}
        return [
            Unfixable(
                networks_of(group, self._family),
                devs,
                questions.completed(obstacle, group),
                tuple(summary_of(group, self._intervals, local, self._family)),
            )
            for (devs, obstacle), group in left.items()
        ]

    # --- one answer --------------------------------------------------------------------------------------------

    def _constraint(self, classification: Classification, size: int) -> Constraint:
        address = classification.probe.lookup.address
        expected = self._expected[int(address)]
        if classification.is_local:
            # A longer route would affect it only if main is looked up first and the lookup falls through (suppressed,
            # throw).
            beaten = self._beaten(classification.probe, self._next_hops(expected, classification.probe))
            return Constraint(most=beaten if isinstance(beaten, int) else self._bits)
        route = classification.route
        entry = route if route is not None and route.table == Table.MAIN else None
        if not classification.is_failure:
            # If a rule before main matches, the verification will reject the entry.
            longest, by = self._above_of_connections(int(address))
            return Constraint(longest, holder=entry, dev=by)
        lead = _bound_of(classification) or self._entries.lead(expected, (int(address), self._bits))
        if isinstance(lead, Obstacle):
            return Constraint(obstacle=lead)
        if (refused := self._refusal(classification, lead)) is not None:
            return Constraint(obstacle=refused)
        holder = entry or self._fib.longest_match(Table.MAIN, Flow(address))
        above = self._above(expected, classification, lead)
        if isinstance(above, int) and (needed := size >> (self._bits - 1 - above)) > _ROUTES_MAX:
            above = Obstacle(
                f"that takes {needed} routes longer than /{above}: change the rule that skips shorter ones"
            )
        if isinstance(above, Obstacle):
            return Constraint(obstacle=above, holder=holder)
        return Constraint(above, holder=holder, dev=lead.dev)

    def _above_of_connections(self, probed: int) -> tuple[int | None, str | None]:
        """Return the prefix length that a route must exceed to fix lookups after the first one, or None if none can.

        The second value is the interface to which it leads; see ``Constraint``.
        """
        found: tuple[int | None, str | None] = (None, None)
        for expected, failure in self._connections[probed]:
            lead = _bound_of(failure) or self._entries.lead(expected, (probed, self._bits))
            if isinstance(lead, Obstacle) or self._refusal(failure, lead) is not None:
                continue
            above = self._above(expected, failure, lead)
            if isinstance(above, int) and above > (-2 if found[0] is None else found[0]):
                found = (above, lead.dev)
        return found

    def _refusal(self, classification: Classification, lead: Lead) -> Obstacle | None:
        """Return why no route may cover an address, whatever its length, or None if one may."""
        probe, uplinks = classification.probe, self._state.uplinks.devs
        address = probe.lookup.address
        if (own := classification.gateway) is not None:
            return Obstacle(f"{own.local} is the gateway of {classification.route}: remove that address from {own.dev}")
        for other in self._around.get(int(address), ()):
            if not all(other.is_expected(each, uplinks) for each in lead.devs):
                return Obstacle(f"{other} is expected, but a route would send it through {','.join(lead.devs)}")
        if not self._is_settled(classification) and (rival := self._owners.rival_at(address)):
            asked = self._owners.asked_about(classification, lead.subnet)
            reason = f"it is in the network of {rival}, which has a default route too"
            return self._owners.question(tuple(sorted({rival, *asked})), reason)
        return None if is_modelled(probe, self._look_up) else Obstacle(self._unmodelled(address))

    def _unmodelled(self, address: IpAddress, source: IpAddress | None = None) -> str:
        passed = " (the kernel skips routers that don't answer)" if self._family is Family.IPV6 else ""
        see = f"see: {self._family.ip} route get fibmatch {address}{f' from {source}' if source else ''}"
        return f"the kernel's answer doesn't follow from its tables and rules{passed}; {see}"

    def _above(self, expected: ExpectedCidr, classification: Classification, lead: Lead) -> int | Obstacle:
        """Return the prefix length that a route must exceed to fix a lookup, or the reason why none is proposed."""
        address = classification.probe.lookup.address
        if (unasked := self._intent(expected, classification, lead.subnet)) is not None:
            return unasked
        beaten = self._beaten(classification.probe, lead.next_hops)
        if isinstance(beaten, Obstacle):
            return beaten
        if beaten == self._bits:
            entry = self._fib.find(Table.MAIN, Flow(address))
            return Obstacle(f"{entry} is for this address alone, and no route is longer: remove it")
        for by in () if self._owners.is_uplinks_router(address) else classification.devs:
            if (route := self._gateways.get((address, by))) is not None:
                return Obstacle(f"it is the gateway of {route}: move that gateway, or remove the route")
        if lead.refused:
            return Obstacle(lead.refused)
        return max(beaten, lead.length_min - 1)

    def _intent(self, expected: ExpectedCidr, classification: Classification, subnet: Prefix | None) -> Obstacle | None:
        """Return why packets may leave through another interface on purpose, or None if they can't.

        Args:
            expected: the expected CIDR.
            classification: the result of a lookup that fails for it.
            subnet: the uplink's subnet that contains the address, if any.
        """
        if self._owners.is_network_of_bridge(classification):
            advice = self._owners.advice(classification.devs, is_limited=expected.devs is not None)
            return Obstacle("; ".join(advice), is_policy=True)
        devs = () if self._is_settled(classification) else self._owners.asked_about(classification, subnet)
        return self._owners.question(devs, "") if devs else None

    def _is_settled(self, classification: Classification) -> bool:
        """Return whether the devs of any expected CIDR around an address leave out an interface that carries it."""
        around, devs = self._around.get(int(classification.probe.lookup.address), ()), classification.devs
        return any(each.devs is not None and not (devs and each.allows_all(devs)) for each in around)

    def _obstacle_after(self, expected: ExpectedCidr, classification: Classification, tables: Fib) -> Obstacle:
        """Return why a lookup still fails in the tables after the fix."""
        probe = classification.probe
        if probe.source is not None and not tables.is_local(probe.source):
            return Obstacle(
                f"{probe.source}, the src of its route, isn't an address of this host: add it, or change the route"
            )
        subnet = self._entries.subnet_of((int(probe.lookup.address), self._bits))
        if (unasked := _bound_of(classification) or self._intent(expected, classification, subnet)) is not None:
            return unasked
        rule = tables.decide(probe.flow).rule
        whose = "TCP"
        if probe.source is not None:
            whose = f"{'replies' if probe.is_reply else 'connections'} from {probe.source}"
        if rule is None:
            add = f"{self._family.ip} rule add preference 32766 lookup main"
            return Obstacle(f"no policy rule leads {whose} to a route: add one: {add}")
        entry = probe.lookup.route
        if entry is not None and entry.table == Table.MAIN:  # such as an IPv6 route with "from"; main is asked already
            decides = Obstacle(f"{entry} decides for {whose}: change that route")
            return self._refused.get(int(probe.lookup.address), decides)
        return Obstacle(f"{decided_by(rule)} for {whose}", rule, self._next_hops(expected, probe), self._family)

    def _next_hops(self, expected: ExpectedCidr, probe: Probe) -> tuple[NextHop, ...]:
        """Return the next hops of a route that leads a probe's address to its expected interface."""
        lead = self._entries.lead(expected, (int(probe.lookup.address), self._bits))
        return () if isinstance(lead, Obstacle) else lead.next_hops

    def _beaten(self, probe: Probe, hops: tuple[NextHop, ...]) -> int | Obstacle:
        """Return the prefix length that a new entry in main must exceed, or the reason why main isn't looked up.

        Args:
            probe: the lookup that the entry is to change.
            hops: the entry's next hops, or an empty tuple if none is known.
        """
        last: Rule | None = None
        bounds: list[int] = []
        dev = hops[0].dev if hops else None
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
        return Obstacle(f"{decided_by(last)} before table main is asked", last, hops, self._family)

    # --- the result --------------------------------------------------------------------------------------------

    def _excludes(self, host: FixedHost) -> bool:
        """Exclude the entries that an installation would refuse, and return whether there are any."""
        fixed: set[int] = set()
        for place, why in host.refusals().items():
            inside = {interval.probed for interval in intervals_in(self._intervals, place, self._bits)}
            some = {each for each in inside if self._constraints[each].above is not None}
            self._refused |= dict.fromkeys(some, Obstacle(f"apply would refuse a route that fixes this: {why}"))
            fixed |= some
        for probed in fixed:
            obstacle = self._refused[probed] if self._classifications[probed].is_failure else None
            self._constraints[probed] = attrs.evolve(self._constraints[probed], above=None, obstacle=obstacle)
        return bool(fixed)

    def _fixed_in(self, prefix: Prefix, entry: Prefix) -> list[int]:
        """Return the first fixed address of each interval in the intersection of a prefix and an entry."""
        first, _ = inner = max(prefix, entry, key=itemgetter(1))
        fixed = []
        for interval in intervals_in(self._intervals, inner, self._bits):
            above = self._constraints[interval.probed].above
            if above is not None and above < entry[1]:
                fixed.append(max(first, interval.first))
        return fixed


def _bound_of(classification: Classification) -> Obstacle | None:
    """Return the obstacle for a failure that only a bound of an exemption makes one, or None for another failure."""
    if not classification.bound:
        return None
    allow = f'"allowedDevs": {json.dumps(list(classification.devs))}'
    reason = f"{classification.bound}: move that network, or, if it is meant to carry this, set {allow}"
    return Obstacle(reason, is_policy=True)
