"""Find the fix for a check's failures: routes, rules and interfaces to keep.

This module does no I/O.

``_routes`` searches for routes first. But no route helps where a policy rule decides before table
main. ``_rules`` then finds new rules with which main decides, and the search for routes runs again,
on a model of the host with the new rules. Some places may still fail. Then both searches are
repeated without rules for these places. Last, ``_keep`` adds or offers ``keep`` entries for
interfaces whose own traffic the routes would move to other interfaces.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence, Set

import attrs

from hostrouting.config.routing import Config, StaticRule
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import numbers
from hostrouting.overlap._advice import with_proven_advice
from hostrouting.overlap._cautions import Caution, cautions_about
from hostrouting.overlap._group import findings_and_notes
from hostrouting.overlap._keep import KeepSearch
from hostrouting.overlap._losses import losses
from hostrouting.overlap._modelled_host import ModelledHost, host_now
from hostrouting.overlap._places import Places
from hostrouting.overlap._questions import Questions
from hostrouting.overlap._read import Moment
from hostrouting.overlap._routes import FoundRoutes, RouteSearch
from hostrouting.overlap._rules import RuleSearch
from hostrouting.overlap.findings import Finding
from hostrouting.overlap.proposals import Fix, HostSettings, Obstacle

# Each round finds rules that decide before main. A host has few of them, so few rounds are needed.
_ROUNDS_MAX = 8

_NO_DEFAULT = "the uplinks have no default route"


def find_fix(
    findings: Sequence[Finding],
    moment: Moment,
    config: Config,
    why_no_default: str,
    settings: HostSettings,
) -> tuple[tuple[Finding, ...], Fix]:
    """Return the findings, each with the entries that fix all or a part of it, and the whole fix.

    Args:
        findings: the findings of the check.
        moment: the host, with judged places.
        config: the config, with the expected CIDRs and the entries that it already installs.
        why_no_default: why there is no default route; empty if there is one.
        settings: the host's settings that the cautions depend on.
    """
    found, rules, helped = _routes_and_rules(findings, moment, config, why_no_default)
    fix, cautions = _complete(found, rules, findings, moment, config, settings)

    def fix_again(
        findings: Sequence[Finding],
        moment: Moment,
        config: Config,
    ) -> tuple[Fix, Sequence[Caution]]:
        why_no_default = "" if moment.state.uplinks.default else _NO_DEFAULT
        found, rules, _ = _routes_and_rules(findings, moment, config, why_no_default)
        return _complete(found, rules, findings, moment, config, settings)

    diversions = found.route_search.diversions
    unfixable = Questions(moment, config, diversions, fix, cautions, fix_again).answered()
    hints = diversions.hints(findings, config.route_overlap.expected_cidrs)
    reasons = "\n".join(each.reason for each in unfixable)
    fix = attrs.evolve(
        fix,
        unfixable=unfixable,
        hints=tuple(hint for hint in hints if hint not in reasons),
    )
    with_routes = found.route_search.with_routes(findings, fix)
    return tuple(_with_own_rules(each, rules, moment.places, helped) for each in with_routes), fix


def _complete(
    found: FoundRoutes,
    rules: tuple[StaticRule, ...],
    findings: Iterable[Finding],
    moment: Moment,
    config: Config,
    settings: HostSettings,
) -> tuple[Fix, Sequence[Caution]]:
    """Return a fix with rules and interfaces to keep, and the cautions about this fix."""
    state = moment.state
    planned = _with_new_rules(config, rules)
    before = host_now(state, moment.places)
    host = _with_all_changes(before, found.host)
    is_infiniband = found.route_search.diversions.is_infiniband
    ranges = _ranges(findings)
    added = host.model.added
    search = KeepSearch(before, host, found.lost, ranges, planned, is_infiniband, added)
    keeping = search.find()
    cautions = [*cautions_about(state, settings, keeping.lost, host.model.fib, keeping)]
    fix = attrs.evolve(
        found.fix,
        rules=rules,
        keep=keeping.keep,
        unfixable=tuple(with_proven_advice(before, found.fix.unfixable)),
        consequences=tuple(map(str, cautions)),
    )
    return fix, cautions


def _routes_and_rules(
    findings: Sequence[Finding],
    moment: Moment,
    config: Config,
    why_no_default: str,
) -> tuple[FoundRoutes, tuple[StaticRule, ...], Collection[IpAddress]]:
    """Find the routes and rules of a fix, and the probes of the places that the rules help."""
    route_search = RouteSearch(moment, config.route_overlap, why_no_default)
    found = route_search.with_reasons(route_search.find(findings), findings, {})
    if not found.blocked:
        return found, (), ()
    return _SearchWithRules(found, findings, moment, config, why_no_default).find()


class _SearchWithRules:
    """The search for rules, and for routes on a host with these rules.

    Args:
        first: the result of the search for routes without new rules.
        findings: see ``find_fix``.
        moment: see ``find_fix``.
        config: see ``find_fix``.
        why_no_default: see ``find_fix``.
    """

    def __init__(
        self,
        first: FoundRoutes,
        findings: Sequence[Finding],
        moment: Moment,
        config: Config,
        why_no_default: str,
    ) -> None:
        self._first = first
        self._findings = findings
        self._overlap = config.route_overlap
        self._why_no_default = why_no_default
        self._rule_search = RuleSearch(moment, config)
        self._now = host_now(moment.state, moment.places)
        # For each place about which main must decide, by its probe: the preference of the rule that
        # decides now.
        self._wanted = dict(first.blocked)
        # For each place without a proposed rule, by its probe: the reason.
        self._unruled: dict[IpAddress, Obstacle] = {}

    def find(self) -> tuple[FoundRoutes, tuple[StaticRule, ...], Collection[IpAddress]]:
        """Find the routes and rules of a fix, and the probes of the places that the rules help.

        Each round tries new rules for the wanted places. If another rule decides about a place
        before main and the new rules, the next round wants that place, too. If the new rules don't
        help a place, the next round leaves the place out.
        """
        for _ in range(_ROUNDS_MAX):
            rules, unruled = self._rule_search.entries(self._wanted)
            self._leave_out(unruled)
            if not rules:
                break
            found = self._routes_with(rules)
            newly_wanted = _newly_wanted(found, self._wanted, self._unruled)
            useless = self._useless(rules, found, newly_wanted)
            if not newly_wanted and not useless:
                return found, rules, self._wanted.keys()
            self._wanted |= newly_wanted
            self._leave_out(useless)
        first = self._first
        found = first.route_search.with_reasons(first.proposed, self._findings, self._unruled)
        return found, (), ()

    def _leave_out(self, places: Mapping[IpAddress, Obstacle]) -> None:
        """Exclude places from the search for rules; each probe is mapped to the reason."""
        self._unruled |= places
        for probe in places:
            self._wanted.pop(probe, None)

    def _routes_with(self, rules: Sequence[StaticRule]) -> FoundRoutes:
        """Return the routes for the failures that remain after new rules are installed."""
        moment = self._rule_search.moment_after(rules)
        left, _ = findings_and_notes(self._overlap, moment.state, moment.places)
        without_rules = self._rule_search.now
        route_search = RouteSearch(moment, self._overlap, self._why_no_default, without_rules)
        found = route_search.with_reasons(route_search.find(left), left, self._unruled)
        after = _with_all_changes(self._now, found.host)
        return attrs.evolve(found, lost=losses(self._now, after, _ranges(self._findings)))

    def _useless(
        self,
        rules: Sequence[StaticRule],
        found: FoundRoutes,
        newly_wanted: Container[IpAddress],
    ) -> dict[IpAddress, Obstacle]:
        """Return the wanted places without a good rule: it doesn't help, is refused, or does harm.

        Args:
            rules: the new rules of this round.
            found: the result of the search for routes on the host with these rules.
            newly_wanted: the result of ``_newly_wanted``.
        """
        wanted = self._wanted.keys()
        return {
            **_still_failing(found, wanted, newly_wanted),
            **self._rule_search.refused(rules, found.host.model, wanted),
            **self._rule_search.harmful(rules, found.lost, wanted),
        }


def _newly_wanted(
    found: FoundRoutes,
    wanted: Mapping[IpAddress, int],
    unruled: Container[IpAddress],
) -> dict[IpAddress, int]:
    """Return places for the next round to want, each with the preference of the rule that decides.

    A rule decides about each of these places before main. The place isn't wanted yet, or is wanted
    because of another rule, with a higher preference.

    Args:
        found: the result of the search for routes on the host with the new rules.
        wanted: the places about which main must decide. Each has the preference of a rule that
            decided before this round.
        unruled: the places for which no rule is proposed.
    """
    return {
        probe: preference
        for probe, preference in found.blocked.items()
        if probe not in unruled and preference < wanted.get(probe, preference + 1)
    }


def _still_failing(
    found: FoundRoutes,
    wanted: Set[IpAddress],
    newly_wanted: Container[IpAddress],
) -> dict[IpAddress, Obstacle]:
    """Return the wanted places that still fail with new rules, each with the reason.

    Args:
        found: the result of the search for routes on the host with the new rules.
        wanted: the places about which main must decide.
        newly_wanted: the places that ``_newly_wanted`` returned. These places aren't given up yet.
    """
    blocked = {probe for probe in found.blocked if probe not in newly_wanted}
    still = wanted & {*found.stuck, *blocked}
    return {probe: _why_useless(found.stuck.get(probe)) for probe in still}


def _ranges(findings: Iterable[Finding]) -> list[IpNetwork]:
    return [part for finding in findings for part in finding.ranges]


def _with_all_changes(before: ModelledHost, after: ModelledHost) -> ModelledHost:
    """Return the host after a fix, with a model that knows every change that the fix makes."""
    if after.state is before.state:
        return after
    model = before.model.with_rules(after.state.rules).with_routes(after.model.added)
    known = attrs.evolve(model.known, sources=after.model.known.sources)
    return attrs.evolve(after, model=attrs.evolve(model, known=known))


def _why_useless(stuck: Obstacle | None) -> Obstacle:
    """Return why it wouldn't help to add a rule before the one that decides now."""
    if stuck is None:
        return Obstacle("table main has no route for it")
    if stuck.question is not None:
        devs = ", ".join(stuck.question.devs)
        reason = f"table main leads it through {devs}, which may be wanted"
        return Obstacle(reason, question=stuck.question)
    return Obstacle(f"a rule before it wouldn't help: {stuck.reason}")


def _with_new_rules(config: Config, rules: Iterable[StaticRule]) -> Config:
    """Return the config with a fix's rules. These replace the config's rules for the same CIDRs."""
    by_cidr = {rule.to: rule for rule in (*config.static_routes.rules, *rules)}
    static = attrs.evolve(config.static_routes, enabled=True, rules=tuple(by_cidr.values()))
    return attrs.evolve(config, static_routes=static)


def _with_own_rules(
    finding: Finding,
    rules: Iterable[StaticRule],
    places: Places,
    helped: Container[IpAddress],
) -> Finding:
    """Return a finding with the rules that help at least one of the finding's places."""

    def helps(rule: StaticRule) -> bool:
        """Return whether a rule helps a place that is in the finding's ranges."""
        shared = (
            max(part, rule.to, key=_length) for part in finding.ranges if part.overlaps(rule.to)
        )
        spans = (span for part in shared for span in places.overlapping(numbers(part)))
        return any(span.place.probe in helped for span in spans)

    own = tuple(filter(helps, rules))
    return attrs.evolve(finding, rules=own) if own else finding


def _length(network: IpNetwork) -> int:
    return network.prefixlen
