"""Derive the constraints on a fix from the lookup results of a single probe.

This module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import attrs

from hostrouting.config.routing import ExpectedCidr
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.rules import Flow
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import ends, numbers
from hostrouting.model.routes import NextHop, Route, Route6, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.overlap._ask import Probe, is_modelled, modelled_lookups
from hostrouting.overlap._cut import Interval
from hostrouting.overlap._diversions import Owners
from hostrouting.overlap._entries import Entries, Lead
from hostrouting.overlap._fewest_prefixes import Segment
from hostrouting.overlap._judge import Classification
from hostrouting.overlap._state import State
from hostrouting.overlap.proposals import Obstacle
from hostrouting.overlap.summary import decided_by

# Upper limit on routes. If a rule suppresses short prefixes, a large CIDR would need more routes
# than a node should have.
_ROUTES_MAX = 4096


@attrs.frozen
class Constraint:
    """A constraint on the routes that may cover addresses with a given lookup result.

    Args:
        above: prefix length that a route must exceed to fix the failure (-1 if any route will do),
            or None if there is no failure or no route can fix it.
        obstacle: the reason why no route can fix the failure, or None if there is no failure or a
            route can fix it.
        most: maximum prefix length of a route that may cover the addresses, or -1 if none may.
        holder: the entry in table main that covers the addresses, or None. Routes with a shorter
            prefix than this entry may cover the addresses, whatever ``most`` says.
        dev: the interface to which a route must lead to fix the failure, or None for the uplinks.
    """

    above: int | None = None
    obstacle: Obstacle | None = None
    most: int = -1
    holder: Route | None = None
    dev: str | None = None

    def segment(self, interval: Interval, bits: int) -> Segment:
        """Return the constraint for one interval."""
        most = self.most if self.above is None else bits
        if self.above is None and self.holder is not None:
            # An interval may span several entries, because intervals aren't split at every entry of
            # a large table.
            destination = self.holder.destination
            first, last = ends(numbers(destination), bits)
            most = (
                destination.prefixlen - 1
                if first <= interval.first and interval.last <= last
                else -1
            )
        return Segment(interval.first, interval.last, self.above, most)


class Constraints:
    """The constraints on the routes of a fix for one host.

    Args:
        state: the host's state.
        entries: the entries that a fix may propose.
        owners: the owners of the host's interfaces.
        around: maps each probe to the expected CIDRs that contain it. Empty if none of the CIDRs
            names its interfaces.
    """

    def __init__(
        self,
        state: State,
        entries: Entries,
        owners: Owners,
        around: Mapping[int, Sequence[ExpectedCidr]],
    ) -> None:
        self._family, self._bits, self._uplinks = (
            state.family,
            state.family.bits,
            state.uplinks.devs,
        )
        self._entries, self._owners, self._around = entries, owners, around
        self._fib, self._look_up = state.fib, modelled_lookups(state.fib)
        # Gateways on interfaces other than the uplinks, mapped to a route that uses them.
        self._gateways = {
            (hop.gateway, hop.dev): route
            for route in state.routes
            for hop in route.hops
            if hop.dev not in state.uplinks.devs and hop.gateway not in owners.routers
        }

    def derive(
        self,
        expected: ExpectedCidr,
        classification: Classification,
        connections: Sequence[tuple[ExpectedCidr, Classification]],
        size: int,
    ) -> Constraint:
        """Return the constraint for a probe.

        Args:
            expected: an expected CIDR that contains the probe. If the first lookup fails for any
                CIDR, it fails for this one.
            classification: the result of the probe's first lookup.
            connections: the failures of the probe's other lookups, each with the CIDR for which the
                lookup fails.
            size: how many addresses share the probe's results.
        """
        if classification.is_local:
            # A longer route in main would affect this local address only if main is looked up
            # first, and this lookup has fallen through so far (suppressed, throw).
            beaten = self._beaten(
                classification.probe, self._entries.next_hops(expected, classification.address)
            )
            return Constraint(most=beaten if isinstance(beaten, int) else self._bits)
        if classification.is_failure:
            found = self._of_failure(expected, classification)
            if (
                found.above is not None
                and (needed := size >> (self._bits - 1 - found.above)) > _ROUTES_MAX
            ):
                longer = f"that takes {needed} routes longer than /{found.above}"
                obstacle = Obstacle(f"{longer}: change the rule that skips shorter ones")
                return attrs.evolve(found, above=None, obstacle=obstacle)
            return found
        # If a rule before main matches, the verification will reject the entry.
        above, dev = None, None
        for found in (self._of_failure(*failure) for failure in connections):
            if found.above is not None and (above is None or found.above > above):
                above, dev = found.above, found.dev
        return Constraint(above, holder=_in_main(classification.route), dev=dev)

    def _of_failure(self, expected: ExpectedCidr, failure: Classification) -> Constraint:
        """Return the constraint for a lookup that fails for an expected CIDR."""
        probe, address = failure.probe, failure.address
        lead = _beyond_bound(failure) or self._entries.lead(expected, address)
        if isinstance(lead, Obstacle):
            return Constraint(obstacle=lead)
        if (forbidden := self._why_forbidden(failure, lead)) is not None:
            return Constraint(obstacle=forbidden)
        holder = _in_main(failure.route) or self._fib.longest_match(Table.MAIN, Flow(address))
        beaten = self._owners.why_wanted(
            failure,
            lead.subnet,
            is_limited=expected.devs is not None,
            is_settled=self._is_settled(failure),
        ) or self._beaten(probe, lead.next_hops)
        if beaten == self._bits:
            entry = self._fib.find(Table.MAIN, Flow(address))
            beaten = Obstacle(
                f"{entry} is for this address alone, and no route is longer: remove it"
            )
        if isinstance(beaten, Obstacle):
            return Constraint(obstacle=beaten, holder=holder)
        for by in failure.devs:
            if (route := self._gateways.get((address, by))) is not None:
                move = "move that gateway, or remove the route"
                return Constraint(
                    obstacle=Obstacle(f"it is the gateway of {route}: {move}"), holder=holder
                )
        if lead.refused:
            return Constraint(obstacle=Obstacle(lead.refused), holder=holder)
        return Constraint(max(beaten, lead.length_min - 1), holder=holder, dev=lead.dev)

    def _why_forbidden(self, failure: Classification, lead: Lead) -> Obstacle | None:
        """Return why no route may cover an address, whatever the prefix length, or None if one may."""
        if (own := failure.gateway) is not None:
            return Obstacle(
                f"{own.local} is the gateway of {failure.route}: remove that address from {own.dev}"
            )
        for other in self._around.get(int(failure.address), ()):
            if not all(other.is_expected(each, self._uplinks) for each in lead.devs):
                return Obstacle(
                    f"{other} is expected, but a route would send it through {','.join(lead.devs)}"
                )
        is_told = is_modelled(failure.probe, self._look_up)
        return None if is_told else unmodelled(failure.address, self._family)

    def _is_settled(self, failure: Classification) -> bool:
        """Return whether the config already says that a failing address must leave through other interfaces.

        It does if an expected CIDR around the address names its devs, unless packets already leave
        through these only.
        """
        around, devs = self._around.get(int(failure.address), ()), failure.devs
        return any(
            each.devs is not None and not (devs and each.allows_all(devs)) for each in around
        )

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
            is_main = rule.table == Table.MAIN or (
                rule.table == Table.LOCAL and self._fib.is_merged
            )
            shortest = -1 if rule.suppress_prefix_length is None else rule.suppress_prefix_length
            if (
                rule.action is RuleAction.TO_TABLE
                and is_main
                and not self._fib.suppresses(rule, self._bits, dev)
            ):
                # A later rule that looks up main may accept a shorter prefix than this rule does,
                # so go on.
                bounds.append(max(-1 if found is None else length_to_exceed(found), shortest))
        if bounds:
            return min(bounds)
        decision = self._fib.decide(probe.flow)
        if last is None or decision.rule is None:
            return Obstacle(f"no policy rule leads to table main: {self._add_main}")
        if decision.route is not None and decision.route.table == Table.LOCAL:
            return Obstacle(f"{decision.route} decides before table main is asked: remove it")
        return Obstacle(f"{decided_by(last)} before table main is asked", last, hops, self._family)

    @property
    def _add_main(self) -> str:
        return f"add one: {self._family.ip} rule add preference 32766 lookup main"

    def left_after(
        self,
        expected: ExpectedCidr,
        failure: Classification,
        tables: Fib,
        refused: Mapping[int, Obstacle],
    ) -> Obstacle:
        """Return why a lookup still fails in the tables after the fix.

        Args:
            expected: the expected CIDR for which the lookup fails.
            failure: the lookup's result in these tables.
            tables: a model of the tables after the fix.
            refused: maps a probe to the reason why the installation would refuse the probe's route.
        """
        probe, address = failure.probe, failure.address
        if probe.source is not None and not tables.is_local(probe.source):
            return Obstacle(
                f"{probe.source}, the src of its route, isn't an address of this host: add it, or change the route"
            )
        if (beyond := _beyond_bound(failure)) is not None:
            return beyond
        subnet, hops = (
            self._entries.subnet_around(address),
            self._entries.next_hops(expected, address),
        )
        wanted = self._owners.why_wanted(
            failure,
            subnet,
            is_limited=expected.devs is not None,
            is_settled=self._is_settled(failure),
        )
        if wanted is not None:
            return wanted
        rule = tables.decide(probe.flow).rule
        whose = "TCP"
        if probe.source is not None:
            whose = f"{'replies' if probe.is_reply else 'connections'} from {probe.source}"
        if rule is None:
            return Obstacle(f"no policy rule leads {whose} to a route: {self._add_main}")
        if (entry := _in_main(probe.lookup.route)) is not None:  # such as an IPv6 route with "from"
            return refused.get(
                int(address), Obstacle(f"{entry} decides for {whose}: change that route")
            )
        return Obstacle(f"{decided_by(rule)} for {whose}", rule, hops, self._family)


def unmodelled(address: IpAddress, family: Family, source: IpAddress | None = None) -> Obstacle:
    """Return the obstacle for an address whose lookup doesn't follow from the tables and rules."""
    passed = " (the kernel skips routers that don't answer)" if family is Family.IPV6 else ""
    see = f"see: {family.ip} route get fibmatch {address}{f' from {source}' if source else ''}"
    return Obstacle(f"the kernel's answer doesn't follow from its tables and rules{passed}; {see}")


def length_to_exceed(found: Route) -> int:
    """Return the prefix length that a new entry in table main must exceed to take precedence over an existing one.

    Our entries have the lowest metric in common use, so they take precedence over an entry with the
    same prefix length and a higher metric. Connected routes are an exception, because the kernel
    refuses a second one.
    """
    is_outdone = (
        found.table == Table.MAIN
        and found.metric > found.family.usual_metric
        and not found.is_connected
    )
    # These precede plain entries.
    is_outdone = is_outdone and not (isinstance(found, Route6) and found.source_prefix)
    return found.destination.prefixlen - is_outdone


def _in_main(route: Route | None) -> Route | None:
    return route if route is not None and route.table == Table.MAIN else None


def _beyond_bound(failure: Classification) -> Obstacle | None:
    """Return the obstacle if a failure would be exempt without the bounds on exemptions, or None for other failures."""
    if not failure.bound:
        return None
    allow = f'"allowedDevs": {json.dumps(list(failure.devs))}'
    reason = f"{failure.bound}: move that network, or, if it is meant to carry this, set {allow}"
    return Obstacle(reason, is_policy=True)
