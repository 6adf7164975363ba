"""Find the fix for a check's failures: routes, rules and interfaces to keep.

This module does no I/O.

``_routes`` searches for routes first. Where a policy rule decides before table main, no route
helps. Then ``_rules`` finds rules after which main decides. The search for routes runs again, on
the host as it would be with these rules. A rule doesn't help the places that still fail, so the
search is repeated without rules for them. At last, ``_keep`` finds the interfaces from whose
addresses the routes divert packets.
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
from hostrouting.overlap._routes import Found, RouteSearch
from hostrouting.overlap._rules import RuleSearch
from hostrouting.overlap.findings import Finding
from hostrouting.overlap.proposals import Fix, HostSettings, Obstacle

# A host has few rules that decide, so few rounds are needed: each adds or excludes a place.
_ROUNDS_MAX = 8

_NO_DEFAULT = "the uplinks have no default route"


def find_fix(
    findings: Sequence[Finding],
    moment: Moment,
    config: Config,
    why_no_default: str,
    settings: HostSettings,
) -> tuple[tuple[Finding, ...], Fix]:
    """Return the findings, each with the entries that (partly) fix it, and the fix for all.

    Args:
        findings: the findings of the check.
        moment: the host, with judged places.
        config: the config, with the expected CIDRs and the entries that it already installs.
        why_no_default: why there is no default route, or an empty string if there is one.
        settings: the host's settings that the cautions depend on.
    """
    found, rules, helped = _search(findings, moment, config, why_no_default)
    fix, cautions = _complete(found, rules, findings, moment, config, settings)

    def fix_again(
        findings: Sequence[Finding],
        moment: Moment,
        config: Config,
    ) -> tuple[Fix, Sequence[Caution]]:
        why_no_default = "" if moment.state.uplinks.default else _NO_DEFAULT
        found, rules, _ = _search(findings, moment, config, why_no_default)
        return _complete(found, rules, findings, moment, config, settings)

    diversions = found.search.diversions
    unfixable = Questions(moment, config, diversions, fix, cautions, fix_again).answered()
    hints = diversions.hints(findings, config.route_overlap.expected_cidrs)
    reasons = "\n".join(each.reason for each in unfixable)
    fix = attrs.evolve(
        fix,
        unfixable=unfixable,
        hints=tuple(hint for hint in hints if hint not in reasons),
    )
    with_routes = found.search.with_routes(findings, fix)
    return tuple(_with_own_rules(each, rules, moment.places, helped) for each in with_routes), fix


def _complete(
    found: Found,
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
    is_infiniband = found.search.diversions.is_infiniband
    keeping = KeepSearch(before, host, found.lost, _ranges(findings), planned, is_infiniband).find()
    cautions = [*cautions_about(state, settings, keeping.lost, host.model.fib, keeping)]
    fix = attrs.evolve(
        found.fix,
        rules=rules,
        keep=keeping.keep,
        unfixable=tuple(with_proven_advice(before, found.fix.unfixable)),
        consequences=tuple(map(str, cautions)),
    )
    return fix, cautions


def _search(
    findings: Sequence[Finding],
    moment: Moment,
    config: Config,
    why_no_default: str,
) -> tuple[Found, tuple[StaticRule, ...], Collection[IpAddress]]:
    """Return the routes, the rules, and the places for which the rules help."""
    search = RouteSearch(moment, config.route_overlap, why_no_default)
    found = search.explained(search.find(findings), findings, {})
    if not found.blocked:
        return found, (), ()
    rules, helped, found = _with_rules(found, findings, moment, config, why_no_default)
    return found, rules, helped


def _with_rules(
    first: Found,
    findings: Sequence[Finding],
    moment: Moment,
    config: Config,
    why_no_default: str,
) -> tuple[tuple[StaticRule, ...], Collection[IpAddress], Found]:
    """Return the rules that help, the places that they help, and the routes that go with them.

    Each round proposes rules for the wanted places, about which main must decide, and searches for
    routes on the host with these rules. Places that the rules don't help are left out of the next
    round, and places that an earlier rule decides are added.
    """
    search = RuleSearch(moment, config)
    wanted = dict(first.blocked)
    now = host_now(moment.state, moment.places)
    intended = _ranges(findings)
    unruled: dict[IpAddress, Obstacle] = {}
    for _ in range(_ROUNDS_MAX):
        rules, refused = search.entries(wanted)
        unruled |= refused
        if not rules:
            break
        wanted = {probe: each for probe, each in wanted.items() if probe not in refused}
        with_rules = search.moment_with(rules)
        left = findings_and_notes(config.route_overlap, with_rules.state, with_rules.places)[0]
        routes = RouteSearch(with_rules, config.route_overlap, why_no_default, search.now)
        found = routes.explained(routes.find(left), left, unruled)
        earlier = _decided_earlier(found, wanted, unruled)
        lost = losses(now, _with_all_changes(now, found.host), intended)
        useless = _useless(found, wanted.keys(), earlier)
        useless |= search.refused(rules, found.host.model, wanted)
        useless |= search.harmful(rules, lost, wanted)
        if not earlier and not useless:
            return rules, wanted.keys(), attrs.evolve(found, lost=lost)
        unruled |= useless
        wanted = {probe: each for probe, each in (wanted | earlier).items() if probe not in useless}
    return (), (), first.search.explained(first.proposed, findings, unruled)


def _decided_earlier(
    found: Found,
    wanted: Mapping[IpAddress, int],
    unruled: Container[IpAddress],
) -> dict[IpAddress, int]:
    """Return the places about which a rule before the wanted ones decides, with its preference.

    Args:
        found: the routes beside the rules.
        wanted: the places about which main must decide, each with the preference of the rule that
            decides now.
        unruled: the places for which no rule is proposed.
    """
    return {
        probe: preference
        for probe, preference in found.blocked.items()
        if probe not in unruled and preference < wanted.get(probe, preference + 1)
    }


def _useless(
    found: Found,
    wanted: Set[IpAddress],
    earlier: Container[IpAddress],
) -> dict[IpAddress, Obstacle]:
    """Return the wanted places that still fail with the rules, each with the reason.

    Args:
        found: the routes beside the rules.
        wanted: the places about which main must decide.
        earlier: the places that an earlier rule will help in the next round.
    """
    blocked = {probe for probe in found.blocked if probe not in earlier}
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
    """Return why a rule of ours wouldn't help before the rule that decides now."""
    if stuck is None:
        return Obstacle("table main has no route for it")
    if stuck.question is not None:
        devs = ", ".join(stuck.question.devs)
        reason = f"table main leads it through {devs}, which may be wanted"
        return Obstacle(reason, question=stuck.question)
    return Obstacle(f"a rule before it wouldn't help: {stuck.reason}")


def _with_new_rules(config: Config, rules: Iterable[StaticRule]) -> Config:
    by_cidr = {rule.to: rule for rule in (*config.static_routes.rules, *rules)}
    static = attrs.evolve(config.static_routes, enabled=True, rules=tuple(by_cidr.values()))
    return attrs.evolve(config, static_routes=static)


def _with_own_rules(
    finding: Finding,
    rules: Iterable[StaticRule],
    places: Places,
    helped: Container[IpAddress],
) -> Finding:
    """Return a finding with those of the rules that help a place of the finding."""

    def takes(rule: StaticRule) -> bool:
        shared = (
            max(part, rule.to, key=_length) for part in finding.ranges if part.overlaps(rule.to)
        )
        spans = (span for part in shared for span in places.inside(numbers(part)))
        return any(span.place.probe in helped for span in spans)

    own = tuple(filter(takes, rules))
    return attrs.evolve(finding, rules=own) if own else finding


def _length(network: IpNetwork) -> int:
    return network.prefixlen
