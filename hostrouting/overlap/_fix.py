"""Find the fewest static routes that fix the failures, and the failures that no route can fix.

This module does no I/O.

A route in table main fixes an address if no rule before main's matches, and if the route's prefix
is longer than that of the current best match. If that match has a higher metric, the same prefix
length is enough. Each failing interval needs such a route. A route may also cover other addresses
if it is shorter than their entry in main, because such a route doesn't affect them::

    172.16.0.0/16  dev ib0       fails, but a route of /17 or longer fixes it
    172.16.3.7     dev ib0       fails, and can't be fixed because no route is longer than /32
    172.16.3.10    local         not affected by routes, so it may be covered
    172.16.9.0/24  dev eth0      as expected; a route that covers it must be shorter than /24

Entries lead to the uplinks, or to one interface that an expected CIDR names. Each of these
interfaces gets separate entries, which cover no failure that needs a different interface.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter

import attrs

from hostrouting.config.routing import ExpectedCidr, RouteOverlap
from hostrouting.model.integer_prefixes import Prefix, PrefixIndex, PrefixSet, ends, numbers
from hostrouting.model.routes import Table
from hostrouting.overlap._cautions import cautions
from hostrouting.overlap._constraint import Constraints, unmodelled
from hostrouting.overlap._cut import Interval, intervals_in
from hostrouting.overlap._diversions import Owners
from hostrouting.overlap._entries import Entries
from hostrouting.overlap._fewest_prefixes import Segment, fewest_prefixes, networks_of, summary_of
from hostrouting.overlap._fixed import FixedHost, fixed_by
from hostrouting.overlap._judge import Classification, Classifications
from hostrouting.overlap._questions import Questions
from hostrouting.overlap._state import State
from hostrouting.overlap.findings import Finding
from hostrouting.overlap.proposals import Fix, HostSettings, Obstacle, Unfixable

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
        self._state, self._family, self._bits, self._settings = (
            state,
            state.family,
            state.family.bits,
            settings,
        )
        self._entries, self._owners = Entries(state, missing), Owners(state)
        self._intervals = state.intervals
        # ``_classifications`` maps each probe to the result of its first lookup, and
        # ``expected_at`` to that result's CIDR. If several CIDRs contain the probe, a failure takes
        # precedence. ``connections`` holds the failures of the probe's other lookups. ``around``
        # holds the CIDRs that contain the probe, or nothing if no CIDR names its interfaces.
        self._classifications: dict[int, Classification] = {}
        expected_at: dict[int, ExpectedCidr] = {}
        connections: dict[int, list[tuple[ExpectedCidr, Classification]]] = {}
        around: dict[int, list[ExpectedCidr]] = {}
        is_limited = any(expected.devs is not None for expected in classifications)
        for expected, found in classifications.items():
            for probed in {each.probed for each in state.inside[expected]}:
                classification, known = found[probed][0], self._classifications.get(probed)
                if known is None or classification.is_failure or not known.is_failure:
                    self._classifications[probed], expected_at[probed] = classification, expected
                failures = ((expected, each) for each in found[probed][1:] if each.is_failure)
                connections.setdefault(probed, []).extend(failures)
                if is_limited:
                    around.setdefault(probed, []).append(expected)
        # Maps a probe to the reason why the installation would refuse the probe's route.
        self._refused: dict[int, Obstacle] = {}
        # Static routes to any of these destinations would be refused.
        usual = state.family.usual_metric
        self._taken = {
            numbers(route.destination)
            for route in state.routes
            if route.table == Table.MAIN
            and ((route.tos == 0 and route.metric == usual) or route.is_connected)
        }
        sizes: Counter[int] = Counter()
        for interval in self._intervals:
            sizes[interval.probed] += interval.last - interval.first + 1
        self._limits = Constraints(state, self._entries, self._owners, around)
        self._constraints = {
            probed: self._limits.derive(
                expected_at[probed], classification, connections[probed], sizes[probed]
            )
            for probed, classification in self._classifications.items()
        }

    def report(
        self, overlap: RouteOverlap, findings: Iterable[Finding]
    ) -> tuple[tuple[Finding, ...], Fix]:
        """Return the findings, each with the entries that fully or partly fix it, and the fix for all of them.

        Args:
            overlap: the expected CIDRs.
            findings: the findings of the check.
        """
        fix, fixed, left = self._of_all()
        findings = tuple(self._with_entries(findings, fix))
        still: dict[tuple[tuple[str, ...], Obstacle], set[Interval]] = {}
        for expected, failure, interval in fixed.unfixed_connections(overlap):
            obstacle = self._limits.left_after(expected, failure, fixed.tables, self._refused)
            still.setdefault((failure.devs, obstacle), set()).add(interval)
        left_after: _Left = {key: sorted(intervals) for key, intervals in still.items()}
        asked = {
            dev
            for _, obstacle in (*left, *left_after)
            if obstacle.question
            for dev in obstacle.question.devs
        }
        questions = Questions(self._state, asked, self._found)
        unfixable = [
            *self._told(left, questions),
            *fix.unfixable,
            *self._told(left_after, questions),
        ]
        unfixable += self._unexplained(findings, unfixable)
        reasons = "\n".join(each.reason for each in unfixable)
        hints = tuple(
            hint for hint in self._owners.hints(findings, self._found) if hint not in reasons
        )
        return findings, attrs.evolve(fix, unfixable=tuple(unfixable), hints=hints)

    def _with_entries(self, findings: Iterable[Finding], fix: Fix) -> Iterator[Finding]:
        entries = {numbers(entry.destination): entry for entry in fix.routes}
        places = PrefixIndex(entries, self._bits)
        for finding in findings:
            around = (
                (place, prefix)
                for prefix in map(numbers, finding.ranges)
                for place in places.meeting(prefix)
            )
            fixing = {place for place, prefix in around if self._fixed_in(prefix, place)}
            yield attrs.evolve(finding, fix=tuple(entries[place] for place in sorted(fixing)))

    def _unexplained(
        self, findings: Iterable[Finding], unfixable: Iterable[Unfixable]
    ) -> list[Unfixable]:
        """Return the failures with neither an entry nor a reason: their lookups don't follow from the tables."""
        told = PrefixSet((numbers(part) for each in unfixable for part in each.ranges), self._bits)
        found = []
        for finding in findings:
            parts = [
                part
                for part in finding.ranges
                if not told.overlaps(*ends(numbers(part), self._bits))
            ]
            if parts and not finding.fix:
                obstacle = unmodelled(finding.probe, self._family, finding.source)
                found.append(Unfixable(tuple(parts), finding.devs, obstacle))
        return found

    def _of_all(self) -> tuple[Fix, FixedHost, _Left]:
        """Return the verified fix for all failures, the host after the fix, and the intervals that no entry fixes."""
        constraints = [
            (interval, self._constraints[interval.probed]) for interval in self._intervals
        ]
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
            places |= {
                numbers(each): dev for each in fewest_prefixes(segments, self._family, self._taken)
            }
        places = dict(sorted(places.items()))
        entries = tuple(
            self._entries.entry(self._family.network(place), dev) for place, dev in places.items()
        )
        fixed = {
            first: dev for place, dev in places.items() for first in self._fixed_in(place, place)
        }
        taken = Obstacle("an unused route has the same destination and metric: remove it")
        obstacles = [
            (interval, constraint.obstacle)
            for interval, constraint in constraints
            if constraint.obstacle is not None
        ]
        obstacles += [(interval, taken) for interval in targets if interval.first not in fixed]
        left: _Left = {}
        for interval, obstacle in obstacles:
            left.setdefault((self._classifications[interval.probed].devs, obstacle), []).append(
                interval
            )
        host = fixed_by(self._state, entries, fixed)
        if isinstance(host, FixedHost):
            if self._excludes(host):
                return self._of_all()
            consequences = cautions(self._state, self._settings, host.added, host.tables)
            return Fix(entries, consequences=tuple(consequences)), host, left
        unfixable = Unfixable(networks_of(targets, self._family), (), Obstacle(host))
        return Fix(unfixable=(unfixable,)), FixedHost(self._state, self._state.fib), left

    def _told(self, left: _Left, questions: Questions) -> list[Unfixable]:
        """Return the failures that no entry fixes, with complete questions to the user."""
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

    def _excludes(self, host: FixedHost) -> bool:
        """Exclude the entries that an installation would refuse, and return whether there are any."""
        fixed: set[int] = set()
        for place, why in host.refusals().items():
            inside = {
                interval.probed for interval in intervals_in(self._intervals, place, self._bits)
            }
            some = {each for each in inside if self._constraints[each].above is not None}
            self._refused |= dict.fromkeys(
                some, Obstacle(f"apply would refuse a route that fixes this: {why}")
            )
            fixed |= some
        for probed in fixed:
            obstacle = self._refused[probed] if self._classifications[probed].is_failure else None
            self._constraints[probed] = attrs.evolve(
                self._constraints[probed], above=None, obstacle=obstacle
            )
        return bool(fixed)

    def _fixed_in(self, prefix: Prefix, entry: Prefix) -> list[int]:
        """Return an address from each interval that an entry fixes in a prefix: the first that is in all three."""
        first, _ = inner = max(prefix, entry, key=itemgetter(1))
        fixed = []
        for interval in intervals_in(self._intervals, inner, self._bits):
            above = self._constraints[interval.probed].above
            if above is not None and above < entry[1]:
                fixed.append(max(first, interval.first))
        return fixed
