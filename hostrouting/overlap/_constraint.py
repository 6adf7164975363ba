"""Derive the constraint that each place puts on the routes of a fix.

This module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Container, Sequence

from hostrouting.config.routing import ExpectedCidr
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.rules import Flow
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import ends, numbers
from hostrouting.model.links import Link
from hostrouting.model.routes import NextHop, Route, Route6, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.overlap._ask import is_modelled, modelled_lookups
from hostrouting.overlap._diversions import Diversions
from hostrouting.overlap._fewest_prefixes import Segment
from hostrouting.overlap._places import (
    Constraint,
    Judgement,
    NeedsRoute,
    NoRouteFixes,
    Place,
    SocketLookup,
    Span,
    Unchanged,
)
from hostrouting.overlap._state import State
from hostrouting.overlap._static_routes import EntryMaker, Path
from hostrouting.overlap.proposals import Obstacle, OwnersChange
from hostrouting.overlap.summary import decided_by

# Upper limit on routes. If a rule suppresses short prefixes, a large CIDR would need more routes
# than a node should have.
_ROUTES_MAX = 4096


class Constraints:
    """The constraints on the routes of a fix for one host.

    Args:
        state: the host's state.
        entries: the entries that a fix may propose.
        diversions: the routes that may divert packets on purpose.
    """

    def __init__(self, state: State, entries: EntryMaker, diversions: Diversions) -> None:
        self._family = state.family
        self._bits = state.family.bits
        self._uplinks = state.uplinks.devs
        self._entries = entries
        self._diversions = diversions
        self._ports = state.ports
        self._fib = state.fib
        self._look_up = modelled_lookups(state.fib)
        self._gateways = _routes_by_gateway(state, diversions.routers)

    def derive(self, place: Place) -> Constraint:
        """Return the constraint on routes that cover a place."""
        expected = place.deciding_cidr
        judgement = place.unconnected
        if judgement.is_local:
            return self._for_local_address(expected, judgement)
        if judgement.is_to_own_gateway and (lost := _own_gateway_obstacle(judgement)) is not None:
            return NoRouteFixes(lost, self._for_local_address(expected, judgement))
        if judgement.is_failure:
            return self._within_reason(place, self._for_failure(place, expected, judgement))
        return self._for_other_failures(place, judgement)

    def _for_local_address(self, expected: ExpectedCidr, judgement: Judgement) -> Unchanged:
        """Return the constraint for a local address, which no route may take away.

        A route in main takes a local address away only if a rule looks up main before table local.
        On the host as it is, that rule accepts no entry: it suppresses main's entry, or the entry
        has the type ``throw``. A new route in main may cover the address only if the rule
        suppresses it, too.
        """
        next_hops = self._entries.next_hops(expected, judgement.address)
        length = self._longest_without_effect(judgement.lookup, next_hops)
        return Unchanged(length_max=self._bits if isinstance(length, Obstacle) else length)

    def _within_reason(
        self,
        place: Place,
        constraint: NeedsRoute | NoRouteFixes,
    ) -> NeedsRoute | NoRouteFixes:
        """Return the constraint; if it takes more routes than a node should have, an obstacle."""
        if isinstance(constraint, NoRouteFixes):
            return constraint
        needed = place.size >> (self._bits - 1 - constraint.longer_than)
        if needed <= _ROUTES_MAX:
            return constraint
        longer = f"that takes {needed} routes longer than /{constraint.longer_than}"
        advice = "change the rule that skips shorter ones"
        obstacle = Obstacle(f"{longer}: {advice}", is_withheld=True)
        return NoRouteFixes(obstacle, Unchanged(constraint.entry))

    def _for_other_failures(self, place: Place, judgement: Judgement) -> Constraint:
        """Return the constraint for a place whose unconnected datagrams leave as expected.

        A failure that no route fixes puts no constraint on routes: ``left_after`` reports it.
        """
        entry = _in_main(judgement.route)
        longest: NeedsRoute | None = None
        for expected, failure in place.other_failures:
            found = self._for_failure(place, expected, failure)
            if isinstance(found, NoRouteFixes):
                continue
            if longest is None or found.longer_than > longest.longer_than:
                longest = found._replace(entry=entry)
        return longest or Unchanged(entry)

    def _for_failure(
        self,
        place: Place,
        expected: ExpectedCidr,
        failure: Judgement,
    ) -> NeedsRoute | NoRouteFixes:
        """Return the constraint for a lookup that fails for an expected CIDR."""
        address = failure.address
        if (of_bound := _bound_obstacle(failure, self._entries.why_no_default)) is not None:
            return NoRouteFixes(of_bound)
        if failure.port is not None:
            return NoRouteFixes(_port_obstacle(failure.port))
        if (of_pods := self._diversions.why_of_pods(failure)) is not None:
            return NoRouteFixes(of_pods)
        path = self._entries.path(expected, address)
        if isinstance(path, Obstacle):
            return NoRouteFixes(path)
        if (forbidden := self._why_forbidden(place, failure, path)) is not None:
            return NoRouteFixes(forbidden)
        bridge = self._diversions.bridge_around(failure)
        if bridge is not None and bridge not in path.devs:
            return NoRouteFixes(_bridge_obstacle(bridge), Unchanged(_in_main(failure.route)))
        entry = _in_main(failure.route) or self._fib.longest_match(Table.MAIN, Flow(address))
        if (question := self._question_about(place, failure)) is not None:
            return NoRouteFixes(question, Unchanged(entry))
        found = self._length_to_exceed(expected, failure, path)
        if isinstance(found, Obstacle):
            return NoRouteFixes(found, Unchanged(entry))
        return NeedsRoute(max(found, path.length_min - 1), path.dev, entry)

    def _length_to_exceed(
        self,
        expected: ExpectedCidr,
        failure: Judgement,
        path: Path,
    ) -> int | Obstacle:
        """Return the prefix length that a route must exceed, or why no route helps.

        Args:
            expected: the expected CIDR that the lookup fails for.
            failure: the judgement of a lookup that fails for this CIDR. No question is asked about
                the failure.
            path: the path of a route for the address.
        """
        is_limited = expected.devs is not None
        guarded = self._diversions.why_not_diverted(failure, is_limited=is_limited)
        if guarded is not None:
            return guarded
        length = self._longest_without_effect(failure.lookup, path.next_hops)
        if isinstance(length, Obstacle):
            return length
        if taken := self._diversions.taken_from_pods(failure):
            return Obstacle(f"{taken}: change that route", is_withheld=True)
        if (inevitable := self._why_inevitable(failure, length)) is not None:
            return inevitable
        return path.obstacle or length

    def _why_forbidden(self, place: Place, failure: Judgement, path: Path) -> Obstacle | None:
        """Return why no route may cover a place, whatever its length, or None if a route may."""
        ports = [port for dev in path.devs if (port := self._ports.get(dev)) is not None]
        if ports:
            return _port_obstacle(ports[0])
        if (lost := _own_gateway_obstacle(failure)) is not None:
            return lost
        for expected in place.judgements:
            if not all(expected.is_expected(dev, self._uplinks) for dev in path.devs):
                through = ",".join(path.devs)
                return Obstacle(
                    f"{expected} is expected, but a route would send it through {through}"
                )
        if is_modelled(failure.lookup, self._look_up):
            return None
        return unmodelled(failure.address, self._family)

    def _question_about(self, place: Place, failure: Judgement) -> Obstacle | None:
        if _is_settled(place, failure):
            return None
        return self._diversions.asked(failure, self._entries.subnet_around(failure.address))

    def _why_inevitable(self, failure: Judgement, length: int) -> Obstacle | None:
        """Return why even a longer prefix can't fix a failing address, or None if it can.

        There are two reasons. The address already has a host route, and no route is longer. Or the
        address is the gateway of another route, and packets to a gateway must not be diverted.

        Args:
            failure: the judgement of the lookup that fails for the address.
            length: the maximum prefix length at which a new entry in main doesn't change the
                lookup.
        """
        address = failure.address
        entry = self._fib.find(Table.MAIN, Flow(address)) if length == self._bits else None
        for dev in failure.devs:
            if routes := self._gateways.get((address, dev)):
                return _gateway_obstacle(routes, entry)
        if length == self._bits:
            alone = f"{entry} is for this address alone, and no route is longer"
            return Obstacle(alone, change=None if entry is None else _removal("remove it", entry))
        return None

    def _longest_without_effect(
        self,
        lookup: SocketLookup,
        next_hops: tuple[NextHop, ...],
    ) -> int | Obstacle:
        """Return the maximum prefix length at which a new entry in main doesn't change a lookup.

        If no entry in main changes the lookup, return the reason.

        Args:
            lookup: the lookup that must not change.
            next_hops: the new entry's next hops; empty if they aren't known.
        """
        last: Rule | None = None
        lengths: list[int] = []
        dev = next_hops[0].dev if next_hops else None
        for rule, is_met, found in self._fib.evaluated_rules(lookup.flow, host_route_dev=dev):
            if not is_met or rule.action in (RuleAction.NOP, RuleAction.GOTO):
                continue
            last = rule
            # The loop goes on after the first rule that looks up main, because a later rule may
            # suppress fewer prefixes.
            if self._looks_up_main(rule, dev):
                lengths.append(_longest_ignored(rule, found))
        if lengths:
            # With a longer prefix, at least one of these rules finds the new entry.
            return min(lengths)
        return self._why_main_is_not_asked(lookup, last)

    def _looks_up_main(self, rule: Rule, dev: str | None) -> bool:
        """Return whether a rule looks up main, and accepts a host route that it finds there."""
        # While local and main share one trie, a lookup in local also searches main.
        is_merged = rule.table == Table.LOCAL and self._fib.is_merged
        if rule.action is not RuleAction.TO_TABLE or not (rule.table == Table.MAIN or is_merged):
            return False
        return not self._fib.suppresses(rule, self._bits, dev)

    def _why_main_is_not_asked(
        self,
        lookup: SocketLookup,
        last: Rule | None,
    ) -> Obstacle:
        """Return why no entry in main changes a lookup.

        Args:
            lookup: the lookup that an entry should change.
            last: the last matching rule that the lookup evaluates, or None if no rule matches.
        """
        decision = self._fib.decide(lookup.flow)
        if last is None or decision.rule is None:
            return Obstacle("no policy rule leads to table main", change=self._add_main)
        if decision.route is not None and decision.route.table == Table.LOCAL:
            removal = _removal("remove it", decision.route)
            reason = f"{decision.route} decides before table main is asked"
            return Obstacle(reason, change=removal)
        return Obstacle(f"{decided_by(last)} before table main is asked", last)

    @property
    def _add_main(self) -> OwnersChange:
        rule = Rule(32766)
        words = f"add one: {self._family.ip} rule add preference {rule.preference} lookup main"
        return OwnersChange(words, rule=rule)

    def left_after(
        self,
        place: Place,
        expected: ExpectedCidr,
        failure: Judgement,
        tables: Fib,
    ) -> Obstacle:
        """Return why a lookup still fails in the tables after the fix.

        Args:
            place: the place with the lookup.
            expected: the expected CIDR that the lookup fails for.
            failure: the judgement of the lookup in ``tables``.
            tables: a model of the tables after the fix.
        """
        lookup = failure.lookup
        if failure.port is not None:
            return _port_obstacle(failure.port)
        if lookup.source is not None and not tables.is_local(lookup.source):
            lost = f"{lookup.source}, the src of its route, isn't an address of this host"
            return Obstacle(f"{lost}: add it, or change the route")
        if (of_bound := _bound_obstacle(failure, self._entries.why_no_default)) is not None:
            return of_bound
        if (of_pods := self._diversions.why_of_pods(failure)) is not None:
            return of_pods
        if (question := self._question_about(place, failure)) is not None:
            return question
        is_limited = expected.devs is not None
        guarded = self._diversions.why_not_diverted(failure, is_limited=is_limited)
        if guarded is not None:
            return guarded
        if not is_modelled(lookup, modelled_lookups(tables)):
            return unmodelled(failure.address, self._family, lookup.source)
        rule = tables.decide(lookup.flow).rule
        whose = _whose(lookup)
        if rule is None:
            reason = f"no policy rule leads {whose} to a route"
            return Obstacle(reason, change=self._add_main)
        if (entry := _in_main(lookup.route)) is not None:  # such as an IPv6 route with "from"
            if place.refused is not None:
                return place.refused
            return Obstacle(f"{entry} decides for {whose}: change that route")
        return Obstacle(f"{decided_by(rule)} for {whose}", rule)


def segment_of(span: Span, dev: str | None, bits: int) -> Segment:
    """Return a segment with the span's addresses and the prefix lengths that may cover them.

    Args:
        span: the span, whose place has a constraint.
        dev: the interface that the prefixes' routes lead through, or None for the uplinks.
        bits: the number of bits of an address.
    """
    constraint = span.place.constraint
    if isinstance(constraint, NeedsRoute):
        if constraint.dev != dev:
            return Segment(span.first, span.last, length_max=-1)
        return Segment(span.first, span.last, constraint.longer_than, bits)
    cover = constraint.cover if isinstance(constraint, NoRouteFixes) else constraint
    return Segment(span.first, span.last, length_max=_longest_cover(span, cover, bits))


def _longest_cover(span: Span, cover: Unchanged, bits: int) -> int:
    """Return the maximum length of a route that may cover a span."""
    if cover.entry is None:
        return cover.length_max
    # The entry may be smaller than the span, because spans aren't cut at every plain entry
    # (``_cut``).
    destination = cover.entry.destination
    first, last = ends(numbers(destination), bits)
    is_covered = first <= span.first and span.last <= last
    return destination.prefixlen - 1 if is_covered else -1


def _is_settled(place: Place, failure: Judgement) -> bool:
    """Return whether the config already says that packets must not leave as they do now.

    An expected CIDR with its own ``devs`` excludes all other interfaces. If packets leave through
    no interface, any CIDR with ``devs`` settles the question.
    """
    for expected in place.judgements:
        is_allowed = bool(failure.devs) and expected.allows_all(failure.devs)
        if expected.devs is not None and not is_allowed:
            return True
    return False


def _whose(lookup: SocketLookup) -> str:
    if lookup.source is None:
        return "TCP"
    return f"{'replies' if lookup.is_reply else 'connections'} from {lookup.source}"


def unmodelled(address: IpAddress, family: Family, source: IpAddress | None = None) -> Obstacle:
    """Return the obstacle for an address for which the model and the kernel disagree."""
    passed = " (the kernel skips routers that don't answer)" if family is Family.IPV6 else ""
    see = f"see: {family.ip} route get fibmatch {address}{f' from {source}' if source else ''}"
    return Obstacle(f"the kernel's answer doesn't follow from its tables and rules{passed}; {see}")


def _longest_ignored(rule: Rule, found: Route | None) -> int:
    """Return the maximum prefix length at which a rule doesn't find a new entry in main.

    Return -1 if the rule finds a new entry with any prefix around the address.

    Args:
        rule: a rule that looks up main.
        found: the entry that the rule finds now, or None.
    """
    length = -1 if found is None else longest_behind(found)
    # The rule ignores an entry of this length or a shorter one (suppress_prefixlength).
    suppressed = rule.suppress_prefix_length
    return length if suppressed is None else max(length, suppressed)


def longest_behind(found: Route) -> int:
    """Return the maximum length of a new entry in main that the found entry still precedes.

    With the same prefix length, a new entry precedes a found entry with a higher metric. There are
    two exceptions. The kernel accepts no second route next to a connected one, and an IPv6 entry
    with a source prefix precedes entries without one.
    """
    length = found.destination.prefixlen
    has_source = isinstance(found, Route6) and bool(found.source_prefix)
    if found.table != Table.MAIN or found.is_connected or has_source:
        return length
    return length - 1 if found.metric > found.family.usual_metric else length


def _gateway_obstacle(routes: Sequence[Route], entry: Route | None) -> Obstacle:
    """Return the obstacle for an address that is the gateway of routes."""
    of_keep = next((route for route in routes if route.is_in_side_table), None)
    if of_keep is not None:
        reason = f"it is the gateway of {of_keep}, by which keep sends"
        return Obstacle(f"{reason}: expect the CIDR without it")
    more = f" and {len(routes) - 1} more" if len(routes) > 1 else ""
    which = "these routes" if more else "the route"
    removed = [*routes]
    if entry is not None:
        which += f" and {entry}"
        removed.append(entry)
    change = _removal(f"no longer expect it, move that gateway, or remove {which}", *removed)
    return Obstacle(f"it is the gateway of {routes[0]}{more}", change=change)


def _bridge_obstacle(bridge: str) -> Obstacle:
    whose = f"it lies in the network of {bridge}, a bridge of this host"
    return Obstacle(f"{whose}: bring that up, or move its network", is_withheld=True)


def _own_gateway_obstacle(failure: Judgement) -> Obstacle | None:
    """Return the obstacle if a failure's gateway is an address of this host, or None."""
    own = failure.gateway
    if own is None:
        return None
    whose = f"{own.local} is the gateway of {failure.route}"
    return Obstacle(whose, change=OwnersChange(f"remove that address from {own.dev}", address=own))


def _removal(words: str, *routes: Route) -> OwnersChange:
    return OwnersChange(words, routes)


def _routes_by_gateway(
    state: State,
    routers: Container[IpAddress | None],
) -> dict[tuple[IpAddress | None, str | None], list[Route]]:
    """Return the routes via gateways on other interfaces than uplinks, by gateway and interface.

    Args:
        state: the host's state.
        routers: gateways to leave out.
    """
    found: dict[tuple[IpAddress | None, str | None], list[Route]] = {}
    for route in state.routes:
        for hop in route.hops:
            if hop.dev not in state.uplinks.devs and hop.gateway not in routers:
                found.setdefault((hop.gateway, hop.dev), []).append(route)
    return found


def _in_main(route: Route | None) -> Route | None:
    return route if route is not None and route.table == Table.MAIN else None


def _port_obstacle(port: Link) -> Obstacle:
    move = f"move its address and routes to {port.master}"
    return Obstacle(f"{port.name} is a port of {port.master}: {move}", is_withheld=True)


def _bound_obstacle(failure: Judgement, why_no_default: str) -> Obstacle | None:
    """Return the obstacle for packets outside of an exemption's bound, or None for other failures.

    Args:
        failure: the judgement of a failing lookup.
        why_no_default: why there is no default route to inherit from, or an empty string.
    """
    if not failure.bound:
        return None
    route = failure.route
    allow = f'"allowedDevs": {json.dumps(list(failure.devs))}'
    otherwise = f", or, if it is meant to carry this, set {allow}"
    if route is None or route.destination.prefixlen:
        return Obstacle(f"{failure.bound}: move that network{otherwise}", is_withheld=True)
    what = f"{route} may be a container's default route"
    if why_no_default:
        return Obstacle(f"{what}, and {why_no_default}{otherwise}", is_withheld=True)
    removal = _removal("remove it", route)._replace(otherwise=otherwise)
    return Obstacle(what, is_withheld=True, change=removal)
