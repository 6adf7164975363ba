"""Reports of a check on hosts that lack entries of their config, or have others of ours.

The fix of such a report has what is needed after ``apply`` (``planned_host``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import attrs

from hostrouting.boot.host import Host
from hostrouting.config.routing import Config, OverlapMode, StaticRoute, StaticRoutes, StaticRule
from hostrouting.kernel.known_host import UnknownFactError
from hostrouting.model.errors import Refusal, RouteError
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.integer_prefixes import PrefixSet, numbers
from hostrouting.model.routes import Route
from hostrouting.model.text import counted, shortened
from hostrouting.overlap._diverted import Diverted
from hostrouting.overlap.check import Checked, check_families
from hostrouting.overlap.findings import Finding, OverlapReport, Verdict
from hostrouting.overlap.planned_host import (
    PlannedHost,
    as_installed,
    failure_key,
    finding_key,
    plan_to_install,
    planned_host,
    route_key,
    unknown_effects,
    with_more,
)
from hostrouting.overlap.proposals import Fix, Obstacle, Unfixable
from hostrouting.overlap.summary import pasted_entries
from hostrouting.routes.plan import RoutePlan, SwappedNamesError
from hostrouting.routes.policy import PolicyPlan, PolicyRouting
from phases import CancelScope

# A clause names at most this many routes.
_SHOWN_ROUTES = 4

_WITH_KEEP = "with keep, they stay on their interfaces"


def with_effects(
    report: OverlapReport,
    config: Config,
    host: Host,
    scope: CancelScope,
) -> tuple[OverlapReport, PlannedHost | None]:
    """Plan a config after a check that passes, and caution about what ``apply`` would change.

    Args:
        report: the report on the host as it is.
        config: the config that was checked.
        host: the host as it is.
        scope: cancels the reads.

    Returns:
        The report, with cautions on what ``apply`` would change, or on why it would fail. And the
        planned host, or None if there can't be one.
    """
    config = host.with_verified(config)
    try:
        plan = plan_to_install(config, host)
    except RouteError as error:
        return with_failure(report, error), None
    if not plan.changes:
        planned = PlannedHost(host, plan)
        return with_keep(report, planned, config, scope), planned
    try:
        planned = planned_host(config, host, plan, scope)
        planned.refuse()
        planned.refuse_unkept()
        losing = planned.losing
    except RouteError as error:
        return with_failure(report, error), None
    if losing:
        return _that_would_fail(report, losing[0]), planned
    lines = [f"after hostrouting apply, {line}" for line in planned.effects(config, scope)]
    report = attrs.evolve(report, fix=attrs.evolve(report.fix, consequences=tuple(lines)))
    # New entries can only make a CIDR fail if they divert packets.
    failure = planned.failure(config, scope) if planned.takes_any or lines else ""
    return _with_later_failure(report, failure), planned


def _with_later_failure(report: OverlapReport, failure: str) -> OverlapReport:
    """Return the report of a check that passes, with a caution on its failure after ``apply``."""
    if not failure:
        return report
    is_strict = report.mode is OverlapMode.STRICT
    told = "after hostrouting apply, the check would fail"
    if is_strict:
        told = "in STRICT mode, hostrouting apply would fail, and the next start be held"
    lines = (f"{told}: {failure}", *report.fix.consequences)
    fix = attrs.evolve(report.fix, consequences=lines, would_fail=is_strict)
    return attrs.evolve(report, fix=fix)


def with_keep(
    report: OverlapReport,
    planned: PlannedHost,
    config: Config,
    scope: CancelScope,
) -> OverlapReport:
    """Return the report of a check that passes; its fix keeps what our routes took away.

    Args:
        report: the report on the host with the plan.
        planned: the host with the plan.
        config: the planned config.
        scope: cancels the reads.
    """
    found = planned.taken_by_ours(config, scope)
    fix = report.fix
    lines = (*fix.consequences, *(f"{clause}; {_WITH_KEEP}" for clause in found.kept))
    return attrs.evolve(report, fix=attrs.evolve(fix, keep=found.keep, consequences=lines))


def with_failure(report: OverlapReport, error: RouteError) -> OverlapReport:
    """Return the report of a check that passes, with a caution on an error of planning."""
    if not isinstance(error, UnknownFactError):
        return _that_would_fail(report, "; ".join(error.clause.splitlines()))
    line = f"whether hostrouting apply would fail isn't known: {error.message}"
    lines = (line, *report.fix.consequences)
    return attrs.evolve(report, fix=attrs.evolve(report.fix, consequences=lines, would_fail=None))


def _that_would_fail(report: OverlapReport, why: str) -> OverlapReport:
    """Return the report of a check that passes, with a caution on why ``apply`` would fail."""
    line = f"hostrouting apply would fail: {why}"
    fix = attrs.evolve(report.fix, consequences=(line,), would_fail=True)
    return attrs.evolve(report, fix=fix)


def with_next_start(report: OverlapReport, planned: PlannedHost, config: Config) -> OverlapReport:
    """Return the report of a check that passes, with cautions on what the next start meets.

    That start and ``apply`` would fail if a route or rule loses that is installed. Otherwise, the
    cautions are on what ``overdue`` finds. If ``apply`` would fail anyway, return the report
    unchanged.

    Args:
        report: the report of ``with_effects``.
        planned: the planned host of ``with_effects``.
        config: the planned config.
    """
    if report.fix.would_fail:
        return report
    try:
        planned.rehearse()
    except RouteError as error:
        return with_failure(report, error)
    return _with_cautions_first(report, planned.overdue(config))


def _with_cautions_first(report: OverlapReport, clauses: Iterable[str]) -> OverlapReport:
    """Return the report, with cautions that call for ``apply`` before its other cautions."""
    lines = (f"{clause}: hostrouting apply" for clause in clauses)
    fix = attrs.evolve(report.fix, consequences=(*lines, *report.fix.consequences))
    return attrs.evolve(report, fix=fix)


def with_removals(
    report: OverlapReport,
    planned: PlannedHost,
    config: Config,
    scope: CancelScope,
    name: str,
    *,
    is_of_fleet: bool = False,
) -> OverlapReport:
    """Return a report with a caution on the routes that ``apply`` would remove.

    Args:
        report: the report on the host as it is.
        planned: the host with the config's routes.
        config: the config.
        scope: cancels the check of the model.
        name: the config's name in commands; empty for the installed one.
        is_of_fleet: whether the caution has no number and no routes, because hosts with other
            routes are to get the same.

    Raises:
        RouteError: what the removal takes away can't be found.
    """
    removed = (str(route) for route in planned.plan.remove)
    gone = [route for route in removed if route not in report.unlisted]
    if not gone:
        return report
    loses = planned.loses(report, planned.host.with_verified(config), scope)
    apply = f"hostrouting apply {name}".rstrip()
    ours = counted(len(gone), "installed route")
    listed = shortened(gone, ", ", _SHOWN_ROUTES)
    see = f": {f'hostrouting plan {name}'.rstrip()} says what that takes away" if loses else ""
    line = f"{apply} removes {ours}, not listed in CONFIG{see}; {listed}"
    if is_of_fleet:
        line = f"{apply} removes installed routes that CONFIG doesn't list{see}"
    fix = attrs.evolve(report.fix, consequences=(*report.fix.consequences, line))
    return attrs.evolve(report, fix=fix)


def with_unapplied(
    checked: Checked,
    config: Config,
    host: Host,
    scope: CancelScope,
) -> OverlapReport:
    """Return a check's report whose fix has only what is needed after ``apply``.

    Some entries of the config may fix a failure, although the kernel lacks them. These are the
    fix's ``unapplied``. Some routes and rules of ours may cause a failure, although the config
    doesn't list them. These are its ``unlisted``. Both are proven by a check of a model: the host
    after ``apply``.

    Args:
        checked: the result of the check of the host as it is.
        config: the config that was checked.
        host: the host as it is.
        scope: cancels the check of the model.
    """
    if not checked.report.findings or config.is_as_installed:
        return checked.with_fix()
    try:
        planned = as_installed(config, host, scope)
        planned.refuse_unkept()
    except SwappedNamesError:  # the report names the swapped interfaces
        report = checked.with_fix()
        return attrs.evolve(report, fix=attrs.evolve(report.fix, would_fail=True))
    except RouteError as error:
        later = fix_without_keep(config, host, scope)
        return with_nothing_proposed(checked.with_fix(), error, later)
    if not planned.plan.changes:
        return naming_wrong(checked.with_fix(), planned, config, scope)
    config = host.with_verified(config)
    after = check_families(config, planned.backend, scope, host=host)
    after = naming_wrong(after, planned, config, scope)
    report = on_top(checked, after, planned, config, scope)
    return _with_cautions_first(report, planned.outdated(config))


def naming_wrong(
    report: OverlapReport,
    planned: PlannedHost,
    config: Config,
    scope: CancelScope,
) -> OverlapReport:
    """Return a report whose fix names the config's own routes that cause failures.

    They are only named if their removal fixes these failures, and makes no others.

    Args:
        report: the report on the host with all of the config's entries.
        planned: the host with all of the config's entries.
        config: the config.
        scope: cancels the check of the model without these routes.
    """
    wrong = planned.leading(report.findings)
    listed = config
    config = _without_routes(config, chain.from_iterable(wrong.values()))
    if config == listed:
        return report
    try:
        without = as_installed(config, planned.host, scope)
    except RouteError:
        return report
    config = planned.host.with_verified(config)
    after = check_families(config, without.backend, scope, host=planned.host)
    others = {failure_key(finding) for finding in report.findings if finding not in wrong}
    if after.verdict is Verdict.UNKNOWN or not others.issuperset(map(failure_key, after.findings)):
        return report
    effects = without.effects(config, scope)
    loss = f", after which {'; '.join(effects)}" if effects else ""
    return _with_wrong(report, after, wrong, loss)


def additions(report: OverlapReport, config: Config, host: Host) -> RoutePlan:
    """Return what a host lacks of a config and of its fix, without the routes to remove from it.

    Args:
        report: the report with the fix.
        config: the config without the fix, with the verified uplinks.
        host: the host as it is.

    Raises:
        RouteError: the routes can't currently be installed.
    """
    wrong = [each for each in report.fix.unfixable if each.obstacle.question is None]
    routes = (
        route
        for route in plan_to_install(config, host).wanted
        if any(_leads_to(each, route) for each in wrong)
    )
    config = _without_routes(config, routes)
    static = with_more(config.static_routes, report.fix.entries)
    plan = plan_to_install(attrs.evolve(config, static_routes=static), host)
    policies = (
        PolicyPlan(each.family, PolicyRouting(each.rule_steps.add, each.add))
        for each in plan.policies
    )
    return RoutePlan(plan.add, policies=tuple(policies))


def _leads_to(unfixable: Unfixable, route: Route) -> bool:
    """Return whether a route leads to failing addresses through their interfaces."""
    is_through = {*route.devs} == {*unfixable.devs}
    return is_through and any(map(route.destination.overlaps, unfixable.ranges))


def _without_routes(config: Config, routes: Iterable[Route]) -> Config:
    """Return a config that doesn't list some planned routes."""
    keys = {(route.destination, route.metric) for route in routes}
    static = config.static_routes
    left = [entry for entry in static.routes if route_key(entry) not in keys]
    return attrs.evolve(config, static_routes=attrs.evolve(static, routes=left))


def refuse_needless(
    report: OverlapReport,
    planned: PlannedHost,
    config: Config,
    scope: CancelScope,
) -> None:
    """Raise a RouteError if one of the config's routes loses, and no fix of the report helps.

    The hint says to remove routes that lose to a policy rule, if nothing more fails without them.

    Args:
        report: the report on the host with all of the config's entries.
        planned: the host with all of the config's entries.
        config: the config.
        scope: cancels the check of the model without these routes.
    """
    try:
        planned.refuse_losing(report.fix, config)
    except RouteError as error:
        raise _error_with_removals(report, planned, config, scope) or error from None
    if report.verdict is Verdict.OK:
        needless = _error_with_removals(report, planned, config, scope)
        if needless is not None:
            raise needless


def _error_with_removals(
    report: OverlapReport,
    planned: PlannedHost,
    config: Config,
    scope: CancelScope,
) -> RouteError | None:
    """Return an error that names the config's losing routes, and those to remove; or None."""
    try:
        losing = planned.losing_of_config
        failing = [part for finding in report.findings for part in finding.ranges]
        beaten = [
            route
            for route, refusal in losing
            if refusal.asks_fix and not any(map(route.destination.overlaps, failing))
        ]
        is_needless = _are_needless(beaten, report, planned, config, scope)
    except UnknownFactError:
        return None
    refusals: list[Refusal] = []
    for route, refusal in losing:
        is_removed = is_needless and route in beaten
        removal = f"{_removal(route, planned)}; " if is_removed else ""
        refusals.append(Refusal(refusal.message, f"{removal}{refusal.hint}"))
    return RouteError.of(refusals) if refusals else None


def _are_needless(
    routes: Sequence[Route],
    report: OverlapReport,
    planned: PlannedHost,
    config: Config,
    scope: CancelScope,
) -> bool:
    """Return whether no more CIDR fails if the config doesn't list these routes."""
    if not routes:
        return False
    config = _without_routes(config, routes)
    without = as_installed(config, planned.host, scope)
    config = planned.host.with_verified(config)
    after = check_families(config, without.backend, scope, host=planned.host)
    failing = {*map(failure_key, report.findings)}
    return after.verdict is not Verdict.UNKNOWN and failing.issuperset(
        map(failure_key, after.findings)
    )


def _removal(route: Route, planned: PlannedHost) -> str:
    """Return how to remove a route whose packets may leave through another interface."""
    (answer,) = planned.backend(route.family).lookup([route.destination.network_address])
    devs = () if answer.route is None else answer.route.devs
    why = f" (its CIDR may now go through {', '.join(devs)})" if devs else ""
    return f"remove {route.destination} from hostRouting.staticRoutes.routes{why}"


def _with_wrong(
    report: OverlapReport,
    after: OverlapReport,
    wrong: Mapping[Finding, Sequence[Route]],
    loss: str,
) -> OverlapReport:
    """Return a report whose fix names wrong routes, with what else is needed after their removal.

    Args:
        report: the report on the host with all of the config's entries.
        after: the report on the host without the wrong routes.
        wrong: the failures that the wrong routes cause, each with its routes.
        loss: a clause on what the removal takes away, or an empty string.
    """
    named = (
        Unfixable(each.ranges, each.devs, Obstacle(_why_wrong(routes, loss), is_withheld=True))
        for each, routes in wrong.items()
    )
    fix = attrs.evolve(after.fix, unfixable=(*named, *after.fix.unfixable))
    left = {failure_key(finding): finding for finding in after.findings}
    findings = tuple(_with_entries(each, left.get(failure_key(each))) for each in report.findings)
    return attrs.evolve(report, findings=findings, fix=fix)


def _why_wrong(routes: Sequence[Route], loss: str) -> str:
    words = (str(route).replace(" proto hostrouting", "") for route in routes)
    lead = "leads" if len(routes) == 1 else "lead"
    return (
        f"CONFIG's own {shortened([*words], ', ', _SHOWN_ROUTES)} {lead} it there:"
        f" remove that from CONFIG{loss}; then: hostrouting apply"
    )


def on_top(
    checked: Checked,
    after: OverlapReport,
    planned: PlannedHost,
    config: Config,
    scope: CancelScope,
) -> OverlapReport:
    """Return a report whose fix has only what is needed after ``apply``.

    Args:
        checked: the result of the check of the host as it is.
        after: the report on the host with all of the config's entries, and no others of ours.
        planned: the host with all of the config's entries, and no others of ours.
        config: the config with these entries.
        scope: cancels the reads of the model.
    """
    if after.verdict is Verdict.UNKNOWN:
        hint = f"with CONFIG's entries, the verdict would be unknown: {after.reason}"
        return _without_listed(checked.with_fix(), config, hint)
    report = checked.report
    fix = after.fix
    fixed = [finding for finding in report.findings if _is_fixed_in_part(finding, after)]
    losing = planned.losing
    try:
        planned.refuse_losing(fix, config)
    except RouteError as error:
        return with_nothing_proposed(checked.with_fix(), error)
    if planned.moves(config.static_routes) and config.uplinks is None:
        # The installed static routes would move to a new uplink. Keep the questions in the report's
        # fix, which ask whether the new uplink is wanted.
        asked = checked.with_fix().fix.unfixable
        more = [each for each in fix.unfixable if each not in asked]
        fix = attrs.evolve(fix, unfixable=(*asked, *more))
    elif fixed and not losing:
        lacking = planned.lacking(config.static_routes)
        unlisted = planned.unlisted(fixed, is_alone=not lacking.is_wanted)
        helps = _may_help(lacking, fixed) if unlisted else lacking.is_wanted
        fix = attrs.evolve(fix, unapplied=lacking if helps else None, unlisted=unlisted)
        fix = _with_losses(fix, planned, config, scope)
    left = {finding_key(finding): finding for finding in after.findings}
    findings = tuple(
        _with_entries(finding, left.get(finding_key(finding))) for finding in report.findings
    )
    return attrs.evolve(report, findings=findings, fix=_with_losing(fix, losing))


def _is_fixed_in_part(finding: Finding, after: OverlapReport) -> bool:
    """Return whether a failure is gone for some of its addresses in a later report."""
    key = finding_key(finding)
    still = [part for each in after.findings if finding_key(each) == key for part in each.ranges]
    family = Family.of(finding.cidr)
    covers = PrefixSet(map(numbers, still), family.bits).covers
    return not all(map(covers, map(numbers, finding.ranges)))


def _with_losing(fix: Fix, losing: Sequence[str]) -> Fix:
    """Return a fix with a hint that ``apply`` would fail without it, if any route or rule loses."""
    if not losing:
        return fix
    hint = f"without this fix, apply would fail: {losing[0]}"
    return attrs.evolve(fix, hints=(*fix.hints, hint), would_fail=True)


def compared_with_now(
    report: OverlapReport,
    config: Config,
    host: Host,
    scope: CancelScope,
) -> OverlapReport:
    """Return a report with cautions on what changes on a host that passes its check.

    Args:
        report: the report on the host without our routes that the config doesn't list. The cautions
            of its fix are about that host, although some of its entries may be installed.
        config: the config without the fix.
        host: the host as it is.
        scope: cancels the reads of the model.
    """
    fixed = attrs.evolve(config, static_routes=with_more(config.static_routes, report.fix.entries))
    try:
        lines = as_installed(fixed, host, scope).effects(fixed, scope)
    except RouteError:
        return report
    return attrs.evolve(report, fix=attrs.evolve(report.fix, consequences=lines))


def _with_losses(fix: Fix, planned: PlannedHost, config: Config, scope: CancelScope) -> Fix:
    """Return a fix with a line on each kind of packets that the config's own routes divert.

    If the config's routes divert packets of InfiniBand's addresses, the fix gets ``keep``, too.
    """
    keep = [*fix.keep]
    lines = [*fix.consequences]
    try:
        found = planned.diverted(config, scope)
        lines += _further_lines(fix, found, planned, config, scope)
    except RouteError as error:
        return attrs.evolve(fix, consequences=(*lines, unknown_effects(error)))
    for each in found:
        keep += [entry for entry in each.keep if entry not in keep]
        lines += [f"{clause}; {_WITH_KEEP}" for clause in each.kept]
    return attrs.evolve(fix, keep=tuple(keep), consequences=tuple(lines))


def _further_lines(
    fix: Fix,
    found: Iterable[Diverted],
    planned: PlannedHost,
    config: Config,
    scope: CancelScope,
) -> list[str]:
    """Return the lines on diverted packets whose facts no line of the fix tells.

    Raises:
        RouteError: what the fix diverts in addition can't be found.
    """
    others = [line for each in found for line in each.others]
    if others and (fix.routes or fix.rules):
        others = _others_with(fix, planned, config, scope)
    facts = {_fact(line) for line in fix.consequences}
    return [line for line in others if _fact(line) not in facts]


def _others_with(
    fix: Fix,
    planned: PlannedHost,
    config: Config,
    scope: CancelScope,
) -> list[str]:
    """Return a line on each kind of packets that a config and its fix divert together.

    The fix may lead packets elsewhere that the config's own routes divert.
    """
    static = with_more(config.static_routes, fix.entries)
    fixed = as_installed(attrs.evolve(config, static_routes=static), planned.host, scope)
    return [line for each in fixed.diverted(config, scope) for line in each.others]


def _fact(line: str) -> str:
    """Return a caution without its details."""
    return line.partition("; ")[0]


def _may_help(static: StaticRoutes, findings: Iterable[Finding]) -> bool:
    """Return whether an entry leads to failing addresses."""
    destinations = [route.destination for route in static.routes]
    destinations += (rule.to for rule in static.rules)
    ranges = [part for finding in findings for part in finding.ranges]
    return any(each.overlaps(part) for each in destinations for part in ranges)


def _with_entries(finding: Finding, left: Finding | None) -> Finding:
    """Return a finding that has only the fix entries it needs beyond the config's entries.

    Args:
        finding: a finding on the host as it is.
        left: the same finding on the host with all of the config's entries. None if it is gone
            there, because these entries fix it.
    """
    if left is None:
        return attrs.evolve(finding, fix=(), rules=())
    return attrs.evolve(finding, fix=left.fix, rules=left.rules)


def fix_without_keep(config: Config, host: Host, scope: CancelScope) -> Fix:
    """Return the fix that a config without ``keep`` needs.

    The fix is empty if ``apply`` would fail for other reasons than ``keep``.

    Args:
        config: the config, whose ``keep`` can't be installed.
        host: the host as it is.
        scope: cancels the check of the model.
    """
    static = attrs.evolve(config.static_routes, keep=())
    if static == config.static_routes:
        return Fix()
    unkept = attrs.evolve(config, static_routes=static)
    try:
        planned = as_installed(unkept, host, scope)
        after = check_families(host.with_verified(unkept), planned.backend, scope, host=host)
        planned.refuse_losing(after.fix, unkept)
    except RouteError:
        return Fix()
    kept = config.static_routes.keep
    more = tuple(each for each in after.fix.keep if each not in kept)
    return attrs.evolve(after.fix, keep=more)


def with_nothing_proposed(
    report: OverlapReport,
    error: RouteError,
    later: Fix = Fix(),  # noqa: B008 - frozen
) -> OverlapReport:
    """Return a report whose fix proposes nothing, with a hint on why ``apply`` would fail.

    Until the config can be installed, ``apply`` installs no entry of a fix either.

    Args:
        report: the report on the host as it is.
        error: why the config can't be installed.
        later: what the config needs in addition, even without the reason.
    """
    is_known = not isinstance(error, UnknownFactError)
    told = "apply would fail" if is_known else "whether apply would fail isn't known"
    first = "first fix why " if is_known else ""
    hint = f"{first}{told}: {'; '.join(error.clause.splitlines())}"
    fix = Fix(
        unfixable=report.fix.unfixable,
        hints=(*report.fix.hints, hint),
        would_fail=True if is_known else None,
    )
    findings = tuple(attrs.evolve(finding, fix=(), rules=()) for finding in report.findings)
    why = Obstacle(f"{told}, as the hint says", is_withheld=True, to_add=(*_to_add(later),))
    return _with_each_reason(attrs.evolve(report, findings=findings, fix=fix), why)


def _to_add(later: Fix) -> Iterator[str]:
    """Yield a clause for each key of the config with entries to add."""
    for heading, (entries, rest) in pasted_entries(later):
        yield f"also {heading.removeprefix('fix: ')} {', '.join(entries)}{rest}"


def _with_each_reason(report: OverlapReport, why: Obstacle) -> OverlapReport:
    """Return a report in which a reason is given for the failures that no entry fixes."""
    left = [*_unexplained(report)]
    if not left:
        return report
    ranges = tuple(dict.fromkeys(part for part, _ in left))
    devs = tuple(sorted({dev for _, finding in left for dev in finding.devs}))
    unfixable = Unfixable(ranges, devs, why)
    fix = attrs.evolve(report.fix, unfixable=(*report.fix.unfixable, unfixable))
    return attrs.evolve(report, fix=fix)


def _unexplained(report: OverlapReport) -> Iterator[tuple[IpNetwork, Finding]]:
    """Yield the failing ranges for which a report has neither an entry nor a reason."""
    told = [part for each in report.fix.unfixable for part in each.ranges]
    for finding in report.findings:
        if not (finding.fix or finding.rules):
            for part in finding.ranges:
                if not any(map(part.overlaps, told)):
                    yield part, finding


def _without_listed(report: OverlapReport, config: Config, hint: str) -> OverlapReport:
    """Return a report whose fix leaves out the config's entries, with one more hint."""
    static = config.static_routes
    listed = {route.destination for route in static.routes}
    ruled = {rule.to for rule in static.rules}
    fix = report.fix
    fix = attrs.evolve(
        fix,
        routes=_routes_beyond(listed, fix.routes),
        rules=_rules_beyond(ruled, fix.rules),
        keep=tuple(each for each in fix.keep if each not in static.keep),
        hints=(*fix.hints, hint),
    )
    findings = tuple(
        attrs.evolve(
            finding,
            fix=_routes_beyond(listed, finding.fix),
            rules=_rules_beyond(ruled, finding.rules),
        )
        for finding in report.findings
    )
    report = attrs.evolve(report, findings=findings, fix=fix)
    why = Obstacle(f"CONFIG lists what would fix it, but {hint}", is_withheld=True)
    return _with_each_reason(report, why)


def _routes_beyond(
    destinations: Container[IpNetwork],
    routes: Iterable[StaticRoute],
) -> tuple[StaticRoute, ...]:
    return tuple(route for route in routes if route.destination not in destinations)


def _rules_beyond(
    destinations: Container[IpNetwork],
    rules: Iterable[StaticRule],
) -> tuple[StaticRule, ...]:
    return tuple(rule for rule in rules if rule.to not in destinations)
