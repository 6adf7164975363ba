"""Find the fewest static routes that fix the failures, and the failures that no route can fix.

This module does no I/O.

A route in table main fixes an address if no rule before main's matches, and if the route wins in
main: its prefix is longer than that of the address's present entry, or as long with a lower metric.
Each failing place needs a route that fixes it. A route may also cover other addresses if their
entry in main is longer, because the route then has no effect on them::

    172.16.0.0/16  dev ib0       fails, but a route of /17 or longer fixes it
    172.16.3.7     dev ib0       fails, and can't be fixed because no route is longer than /32
    172.16.3.10    local         not affected by routes, so it may be covered
    172.16.9.0/24  dev eth0      as expected; a route that covers it must be shorter than /24

Entries go through the uplinks, or through one interface that an expected CIDR names. Each such
interface gets its own entries. An entry covers no failure that needs another interface.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

import attrs

from hostrouting.config.routing import RouteOverlap
from hostrouting.kernel.model import Model
from hostrouting.model.family import IpAddress
from hostrouting.model.integer_prefixes import Prefix, PrefixIndex, PrefixSet, ends, numbers
from hostrouting.model.routes import Route, Table
from hostrouting.model.values import frozen
from hostrouting.overlap._constraint import Constraints, segment_of, unmodelled
from hostrouting.overlap._diversions import Diversions
from hostrouting.overlap._fewest_prefixes import fewest_prefixes, networks_of, summary_of
from hostrouting.overlap._losses import Loss, losses, taken_away
from hostrouting.overlap._modelled_host import (
    ModelledHost,
    Rejudged,
    host_after,
    host_now,
    why_ineffective,
)
from hostrouting.overlap._places import (
    NeedsRoute,
    NoRouteFixes,
    Place,
    Span,
    Unchanged,
    distinct,
)
from hostrouting.overlap._read import Moment
from hostrouting.overlap._static_routes import EntryMaker
from hostrouting.overlap.findings import Finding
from hostrouting.overlap.proposals import Fix, Obstacle, Unfixable

# Failing spans, by their outgoing interfaces and the reason why no route fixes them.
_Unfixed = Mapping[tuple[tuple[str, ...], Obstacle], Sequence[Span]]
# By probe: why no rule is proposed for the place, although a policy rule decides before main.
_Unruled = Mapping[IpAddress, Obstacle]


@frozen
class _Proposal:
    """Entries that are to fix failures, or the failures if the entries don't work.

    Args:
        fix: a fix with the entries. If they don't work, the fix has no entries, but all failures
            that need a route. Failures that no route can fix are never included.
        host: the host after the fix.
        fixable: for each span that the constraints let an entry fix, an address in the span.
        fixed: the addresses of ``fixable``; empty if the entries don't work.
    """

    fix: Fix
    host: ModelledHost
    fixable: Container[int]
    fixed: Container[int] = ()


@frozen
class JudgedProposal:
    """A proposal, with judgements of the host that has its entries.

    Args:
        proposal: the proposed entries.
        judged: the judgements on the host after the proposal.
        lost: the packets that the proposal takes away.
    """

    proposal: _Proposal
    judged: Sequence[Rejudged]
    lost: tuple[Loss, ...]


@frozen
class FoundRoutes:
    """The routes that a search has found.

    Args:
        route_search: the search that found them.
        proposed: the result of ``RouteSearch.find``, from which ``fix`` was made.
        fix: the routes, and the failures that remain.
        host: the host after the fix.
        lost: the packets that the fix diverts or drops.
        blocked: the places that fail because a policy rule decides before table main. Each probe
            maps to the lowest preference of these rules.
        stuck: the reasons why other places still fail, by the places' probes.
    """

    route_search: RouteSearch
    proposed: JudgedProposal
    fix: Fix
    host: ModelledHost
    lost: tuple[Loss, ...]
    blocked: Mapping[IpAddress, int]
    stuck: Mapping[IpAddress, Obstacle]


class RouteSearch:
    """The search for routes that fix the failures found by a check.

    Args:
        moment: the host, with judged places.
        overlap: the expected CIDRs.
        why_no_default: why there is no default route; empty if there is one.
        model_without_rules: the model of the host with everything but the rules of the fix. An
            installation adds routes before rules, so the kernel must accept the routes there, too.
            None if the fix has no rules.
    """

    def __init__(
        self,
        moment: Moment,
        overlap: RouteOverlap,
        why_no_default: str,
        model_without_rules: Model | None = None,
    ) -> None:
        self._state = moment.state
        self._places = moment.places
        self._overlap = overlap
        self._model_without_rules = model_without_rules
        self._family = self._state.family
        self._bits = self._state.family.bits
        self.diversions = Diversions(self._state, overlap.container_devs)
        self._entries = EntryMaker(self._state, why_no_default)
        self._constraints = Constraints(self._state, self._entries, self.diversions)
        # The destinations for which an existing route prevents a static route.
        self._taken = {numbers(r.destination) for r in self._state.routes if self._is_in_the_way(r)}

    def _is_in_the_way(self, route: Route) -> bool:
        """Return whether an existing route prevents a static route with its destination."""
        if route.table != Table.MAIN:
            return False
        has_our_key = route.tos == 0 and route.metric == self._family.usual_metric
        return has_our_key or route.is_connected

    def find(self, findings: Iterable[Finding]) -> JudgedProposal:
        """Find the routes for the findings of this host."""
        for place in self._places:
            place.constraint = self._constraints.derive(place)
        proposal = self._propose()
        while refused := self._refused_places(self._refusals(proposal.host)):
            self._exclude(refused)
            proposal = self._propose()
        judged = proposal.host.judged(self._overlap)
        lost = self._lost(proposal, findings)
        if why := why_ineffective(judged, proposal.fixed) or _forbidden_loss(lost):
            lost = ()
            proposal = self._without_entries(why, proposal.fixable)
            judged = proposal.host.judged(self._overlap)
        return JudgedProposal(proposal, judged, lost)

    def with_reasons(
        self,
        proposed: JudgedProposal,
        findings: Collection[Finding],
        unruled: _Unruled,
    ) -> FoundRoutes:
        """Return the proposed routes, with the reason for each failure that they don't fix.

        Args:
            proposed: the result of ``find``.
            findings: the findings that were passed to ``find``.
            unruled: why no rule is proposed for places about which a policy rule decides before
                table main, by their probes.
        """
        proposal = proposed.proposal
        unproposed = proposal.fix.unfixable
        unfixed = self._unfixable_spans(proposal.fixable, unruled)
        still_failing = self._still_failing(proposed, unruled)
        unfixable = [
            *self._unfixable(unfixed),
            *unproposed,
            *self._unfixable(still_failing),
        ]
        unfixable += [*self._unexplained(self.with_routes(findings, proposal.fix), unfixable)]
        fix = attrs.evolve(proposal.fix, unfixable=tuple(unfixable))
        blocked: dict[IpAddress, int] = {}
        stuck: dict[IpAddress, Obstacle] = {}
        for spans, obstacle in self._reasons(unfixed, still_failing, unproposed):
            probes = [place.probe for place in distinct(spans)]
            if obstacle.rule is None:
                stuck |= dict.fromkeys(probes, obstacle)
                continue
            preference = obstacle.rule.preference
            for probe in probes:
                blocked[probe] = min(preference, blocked.get(probe, preference))
        return FoundRoutes(self, proposed, fix, proposal.host, proposed.lost, blocked, stuck)

    def _reasons(
        self,
        unfixed: _Unfixed,
        still_failing: _Unfixed,
        unproposed: Iterable[Unfixable],
    ) -> Iterator[tuple[Iterable[Span], Obstacle]]:
        """Yield the spans that the fix leaves failing, with each reason."""
        for (_, obstacle), spans in (*unfixed.items(), *still_failing.items()):
            yield spans, obstacle
        for each in unproposed:
            for part in each.ranges:
                yield self._places.overlapping(numbers(part)), each.obstacle

    # --- the proposal ---------------------------------------------------------------------------

    def _propose(self) -> _Proposal:
        """Propose the fewest entries that satisfy the constraints, verified on a model."""
        prefixes = self._prefixes()
        network = self._family.network
        entries = tuple(self._entries.entry(network(each), dev) for each, dev in prefixes.items())
        targets: dict[int, str | None] = {}
        for prefix, dev in prefixes.items():
            targets |= dict.fromkeys(self._fixed_addresses(prefix, prefix), dev)
        host = host_after(self._state, self._places, entries, targets)
        if isinstance(host, str):
            return self._without_entries(host, fixable=targets)
        return _Proposal(Fix(entries), host, fixable=targets, fixed=targets)

    def _without_entries(self, why: str, fixable: Container[int]) -> _Proposal:
        """Return a proposal without entries, for a search whose entries don't work."""
        failing = [span for span in self._places.spans if _needs_route(span)]
        obstacle = Obstacle(why, is_withheld=True)
        unfixable = Unfixable(networks_of(failing, self._family), (), obstacle)
        host = host_now(self._state, self._places)
        return _Proposal(Fix(unfixable=(unfixable,)), host, fixable)

    def _lost(self, proposal: _Proposal, findings: Iterable[Finding]) -> tuple[Loss, ...]:
        before = host_now(self._state, self._places)
        intended = (part for finding in findings for part in finding.ranges)
        return losses(before, proposal.host, intended)

    def _prefixes(self) -> dict[Prefix, str | None]:
        """Return the fewest prefixes that fix all places, each with the interface of its route.

        None instead of an interface stands for the uplinks.
        """
        spans = self._places.spans
        constraints = (span.place.constraint for span in spans)
        devs = {each.dev for each in constraints if isinstance(each, NeedsRoute)}
        prefixes: dict[Prefix, str | None] = {}
        for dev in sorted(devs, key=lambda dev: dev or ""):
            segments = [segment_of(span, dev, self._bits) for span in spans]
            networks = fewest_prefixes(segments, self._family, self._taken)
            prefixes |= dict.fromkeys(map(numbers, networks), dev)
        return dict(sorted(prefixes.items()))

    def _refusals(self, host: ModelledHost) -> dict[Prefix, str]:
        reasons = host.refusals()
        if self._model_without_rules is not None:
            for failure in self._model_without_rules.with_routes(host.model.added).refused():
                reasons[numbers(failure.route.destination)] = failure.message
        return reasons

    def _refused_places(self, refusals: Mapping[Prefix, str]) -> dict[Place, str]:
        """Return the places whose route an installation would refuse, each with the reason."""
        refused: dict[Place, str] = {}
        for prefix, why in refusals.items():
            for place in distinct(self._places.overlapping(prefix)):
                # A place inside the prefix may be fixed by another entry, with a longer prefix.
                if _is_fixed_by(prefix, place):
                    refused[place] = why
        return refused

    def _exclude(self, refused: Mapping[Place, str]) -> None:
        """Change the constraints of refused places, so that the search leaves these places out."""
        for place, why in refused.items():
            place.refused = Obstacle(f"apply would refuse a route that fixes this: {why}")
            needed = place.constraint
            assert isinstance(needed, NeedsRoute)
            cover = Unchanged(needed.entry)
            is_failure = place.unconnected.is_failure
            place.constraint = NoRouteFixes(place.refused, cover) if is_failure else cover

    def _fixed_addresses(self, prefix: Prefix, entry: Prefix) -> list[int]:
        """Return the first address of each span in a prefix that an entry fixes.

        Only addresses that are in the span, in the entry and in the prefix count.
        """
        first, _ = inner = max(prefix, entry, key=itemgetter(1))
        fixed = [
            span for span in self._places.overlapping(inner) if _is_fixed_by(entry, span.place)
        ]
        return [max(first, span.first) for span in fixed]

    def with_routes(self, findings: Iterable[Finding], fix: Fix) -> Iterator[Finding]:
        """Yield findings, each with the routes that (partly) fix it."""
        entries = {numbers(entry.destination): entry for entry in fix.routes}
        index = PrefixIndex(entries, self._bits)
        for finding in findings:
            fixing = {
                entry
                for prefix in map(numbers, finding.ranges)
                for entry in index.meeting(prefix)
                if self._fixed_addresses(prefix, entry)
            }
            yield attrs.evolve(finding, fix=tuple(entries[entry] for entry in sorted(fixing)))

    # --- what it leaves -------------------------------------------------------------------------

    def _unfixable_spans(self, fixable: Container[int], unruled: _Unruled) -> _Unfixed:
        """Return the failing spans that no entry fixes.

        Args:
            fixable: for each entry, the first address of each part of a span that it fixes.
            unruled: see ``with_reasons``.
        """
        in_the_way = Obstacle("an unused route has the same destination and metric: remove it")
        by_constraint: dict[tuple[tuple[str, ...], Obstacle], list[Span]] = {}
        by_destination: dict[tuple[tuple[str, ...], Obstacle], list[Span]] = {}
        for span in self._places.spans:
            devs = span.place.unconnected.devs
            constraint = span.place.constraint
            if isinstance(constraint, NoRouteFixes):
                why = unruled.get(span.place.probe)
                obstacle = _with_why_unruled(constraint.obstacle, why)
                by_constraint.setdefault((devs, obstacle), []).append(span)
            # Spans are cut at the destinations of existing routes. So an entry fixes all of a span
            # or none of it, and it is enough to look for the span's first address. If no entry
            # fixes the span, the needed destination already has a route. Places that would need too
            # many routes have the constraint ``NoRouteFixes``.
            elif _needs_route(span) and span.first not in fixable:
                by_destination.setdefault((devs, in_the_way), []).append(span)
        return by_constraint | by_destination

    def _still_failing(self, proposed: JudgedProposal, unruled: _Unruled) -> _Unfixed:
        """Return the spans with connections, replies or TCP lookups that fail after the fix."""
        left: dict[tuple[tuple[str, ...], Obstacle], set[Span]] = {}
        fib = proposed.proposal.host.model.fib
        for again in proposed.judged:
            for failure in again.other_failures:
                obstacle = self._constraints.left_after(again.place, again.expected, failure, fib)
                obstacle = _with_why_unruled(obstacle, unruled.get(again.place.probe))
                left.setdefault((failure.devs, obstacle), set()).update(again.place.spans)
        return {key: sorted(spans, key=itemgetter(0)) for key, spans in left.items()}

    def _unfixable(self, left: _Unfixed) -> list[Unfixable]:
        """Return the failures that no entry fixes, with questions that have no answers yet."""
        if not left:
            return []
        local = {span for span in self._places.spans if span.place.unconnected.is_local}
        return [
            Unfixable(
                networks_of(spans, self._family),
                devs,
                obstacle,
                tuple(summary_of(spans, self._places.spans, local, self._family)),
            )
            for (devs, obstacle), spans in left.items()
        ]

    def _unexplained(
        self,
        findings: Iterable[Finding],
        unfixable: Iterable[Unfixable],
    ) -> Iterator[Unfixable]:
        """Yield an ``Unfixable`` for each finding that has neither an entry nor a reason.

        The lookups of such a finding don't follow from the tables.
        """
        explained = PrefixSet(
            (numbers(part) for each in unfixable for part in each.ranges),
            self._bits,
        )
        for finding in findings:
            parts = [
                part
                for part in finding.ranges
                if not explained.overlaps(*ends(numbers(part), self._bits))
            ]
            if parts and not finding.fix:
                obstacle = unmodelled(finding.probe, self._family, finding.source)
                yield Unfixable(tuple(parts), finding.devs, obstacle)


def _with_why_unruled(obstacle: Obstacle, why: Obstacle | None) -> Obstacle:
    """Return the obstacle, with the reason why no new rule precedes the obstacle's rule."""
    if obstacle.rule is None or why is None:
        return obstacle
    reason = f"{obstacle.reason}, and {why.reason}"
    return obstacle._replace(reason=reason, question=why.question, change=None)


def _forbidden_loss(lost: Iterable[Loss]) -> str:
    """Return a clause on the losses that no fix may cause, or an empty string."""
    return next(iter(taken_away(loss for loss in lost if loss.is_forbidden)), "")


def _needs_route(span: Span) -> bool:
    return isinstance(span.place.constraint, NeedsRoute)


def _is_fixed_by(prefix: Prefix, place: Place) -> bool:
    """Return whether a route for a prefix around a place is long enough to fix the place."""
    constraint = place.constraint
    return isinstance(constraint, NeedsRoute) and constraint.longer_than < prefix[1]
