"""Plan the changes that ``Configure`` would make, and predict the gate's decision afterwards."""

from __future__ import annotations

import errno as errnos
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from hostrouting.boot.break_glass import why_open
from hostrouting.boot.go_package import routes_to_adopt
from hostrouting.boot.host import Host
from hostrouting.boot.installation import require_systemd
from hostrouting.boot.next_boot import BootPlan, plan_next_boot
from hostrouting.boot.parts import Wanted
from hostrouting.config.routing import Config, OverlapMode
from hostrouting.host_files.proc_sys import devs_without_ipv6
from hostrouting.kernel.model import Model, model_of
from hostrouting.kernel.port import RouteBackend
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.changes import Changes
from hostrouting.model.errors import RouteError, UnitError
from hostrouting.model.family import Family
from hostrouting.model.jsonable import fields_in_json
from hostrouting.model.lookups import RouteFailure
from hostrouting.model.routes import Route
from hostrouting.model.text import shortened
from hostrouting.overlap.check import check_families
from hostrouting.overlap.findings import OverlapReport, Verdict
from hostrouting.overlap.uplinks import awaited_devs
from hostrouting.routes.install import refuse
from hostrouting.routes.plan import RoutePlan, RoutesReport, plan_now, plan_or_raise
from hostrouting.routes.policy import PolicyPlan
from hostrouting.routes.verify import verify_routes
from hostrouting.tasks.arguments import to_config, to_host
from hostrouting.tasks.configure import change_to_record, warnings_of
from hostrouting.tasks.install_routes import (
    planned_backends,
    verify_policies,
    why_no_default6,
)
from phases import CancelScope

_NAMED_FINDINGS = 3
_NOT_INSTALLED = "apply can't install this here"


@attrs.frozen
class NextStart:
    """The gate's predicted decision about the consumer's next start.

    Args:
        consumer: the unit to be started.
        is_admitted: whether the gate would let it start, or None for an image, which has no kernel
            to query, and if ``Configure`` can't install the plan here.
        reason: the reason for the decision, as a clause.
    """

    consumer: str
    is_admitted: bool | None
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the decision as JSON."""
        return {"consumer": self.consumer, "admitted": self.is_admitted, "reason": self.reason}


@attrs.frozen
class Plan:
    """Everything that ``Configure`` would change on a host. A plan without changes is falsy.

    Args:
        host: the host's name.
        routes: the plan for the kernel's routes and rules.
        missing: what the routes are waiting for, as a phrase, or None. If the routes are waiting,
            ``routes`` is empty.
        boot: changes to files and units, or None for a snapshot, which doesn't include them.
        next_start: the gate's decision about the consumer's next start after the changes.
        warnings: why ``Configure`` would fail on this host, or why the installation can't work yet.
            Each is a sentence.
        pending: InfiniBand interfaces without an address that the check would wait for.
            Kept interfaces that a run would wait for are in ``routes.awaited``.
    """

    host: str
    routes: RoutePlan
    missing: str | None
    boot: Changes | None
    next_start: NextStart
    warnings: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()

    @property
    def changes(self) -> Changes:
        """All known changes to routes, rules, files and units."""
        return self.routes.changes | (self.boot or Changes())

    def __bool__(self) -> bool:
        return self.missing is not None or bool(self.changes)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON, in the format of ``hostrouting plan --output json``."""
        unknown = {"files": None, "units": None} if self.boot is None else {}
        more = fields_in_json(self, "missing", "pending", "next_start", "warnings")
        return (
            {"schema": 1, "host": self.host}
            | RoutesReport(self.routes, self.changes).to_json()
            | more
            | unknown
        )


def plan(config: Config, *, host: Host | None = None, scope: CancelScope | None = None) -> Plan:
    """Plan what ``Configure`` would change, and predict the next start.

    Change nothing, and don't wait for the network.

    Returns:
        The plan.

    Raises:
        RouteError: a route can't be installed on this host as configured, or the kernel can't be
            queried.
        FileError: a file can't be read.
        UnitError: systemd can't be queried.
    """
    host = to_host(host)
    config = host.with_verified(to_config(config))
    scope = scope or CancelScope()
    outcome: OverlapReport | str = ""
    if host.is_image:
        next_start = NextStart(config.consumer, None, "an image is checked at its first boot")
        planned = Plan(host.name, RoutePlan(), None, None, next_start)
    else:
        adopted = routes_to_adopt(host, replaces_script=config.static_routes.is_wanted)
        routes, missing = plan_now(config, *planned_backends(config, host), adopted=adopted)
        outcome = _outcome(config, host, routes, missing, scope)
        next_start = _next_start(config, host, outcome)
        pending = awaited_devs(config, host.routes)
        planned = Plan(host.name, routes, missing, None, next_start, pending=pending)
    if host.snapshot is not None:
        return planned
    host = host.within(scope)
    wanted = Wanted.of(config, host.layout)
    boot = plan_next_boot(host, wanted)
    obstacles = _why_apply_fails(boot, host)
    if obstacles:
        next_start = NextStart(config.consumer, None, _NOT_INSTALLED)
        planned = attrs.evolve(planned, next_start=next_start)
    warnings = [
        *obstacles,
        *warnings_of(config, wanted, host),
        *boot.files.access_errors,
    ]
    if planned.missing is not None:
        warnings += why_no_default6(config, host)
    changes = boot.changes | _changes_to_record(config, host, outcome)
    return attrs.evolve(planned, boot=changes, warnings=tuple(warnings))


def _changes_to_record(config: Config, host: Host, outcome: OverlapReport | str) -> Changes:
    change = None if isinstance(outcome, str) else change_to_record(config, outcome, host)
    return Changes() if change is None else Changes(files=(change,))


def _why_apply_fails(boot: BootPlan, host: Host) -> tuple[str, ...]:
    try:
        require_systemd(boot, host)
    except UnitError as error:
        return (f"{_NOT_INSTALLED}: {error.message}",)
    return ()


def _outcome(
    config: Config,
    host: Host,
    plan: RoutePlan,
    missing: str | None,
    scope: CancelScope,
) -> OverlapReport | str:
    """Return the result of the check after the plan, or why the routes can't be installed."""
    if missing is not None:
        return f"the static routes can't be installed without {missing}"
    scope.check()
    planned = _planned(config, host, plan, scope)
    try:
        _rehearse(plan, host, planned)
    except RouteError as error:
        words = error.message.replace("\n", "; ")
        return f"the static routes can't be installed: {words}"
    return check_families(config, planned.backend, scope, host=host)


def _next_start(config: Config, host: Host, outcome: OverlapReport | str) -> NextStart:
    """Predict whether the gate would let the consumer start after the plan has been applied."""
    consumer = config.consumer
    if host.snapshot is None and (why := why_open(host.layout)):
        return NextStart(consumer, True, f"{why}, so nothing is checked")
    if isinstance(outcome, str):
        return NextStart(consumer, False, outcome)
    if not config.route_overlap.expected_cidrs:
        reason = "every route is installed; no CIDR is expected, so nothing is checked"
        return NextStart(consumer, True, reason)
    failure = _failure_of(outcome)
    if failure is None:
        reason = "every route is installed, and nothing that is expected is shadowed"
        return NextStart(consumer, True, reason)
    if config.route_overlap.mode is OverlapMode.STRICT:
        return NextStart(consumer, False, failure)
    return NextStart(consumer, True, f"the mode is WARN, although {failure}")


def _failure_of(report: OverlapReport) -> str | None:
    """Return why a check doesn't pass, as a clause, or None if it passes."""
    if report.verdict is Verdict.UNKNOWN:
        return f"the check can't judge: {report.reason}"
    if report.findings:
        messages = [finding.message for finding in report.findings]
        return shortened(messages, "; ", _NAMED_FINDINGS)
    return None


@attrs.frozen
class _Planned:
    """A host as it would be after a plan has been applied.

    Args:
        host: the host.
        models: the models of the families whose routes the plan changes.
    """

    host: Host
    models: Mapping[Family, Model] = attrs.field(factory=dict[Family, Model])

    def backend(self, family: Family) -> RouteBackend:
        return self.models.get(family) or self.host.routes_of(family)


def _planned(
    config: Config,
    host: Host,
    plan: RoutePlan,
    scope: CancelScope,
) -> _Planned:
    changed = [family for family in Family if plan.of(family).changes]
    if not changed:
        return _Planned(host)
    backend6 = host.routes6 if Family.IPV6 in changed else None
    inside = config.route_overlap.of(Family.IPV4).judged
    now = host.snapshot or take_snapshot(host.routes, backend6, inside=inside, scope=scope)
    models: dict[Family, Model] = {}
    for family in changed:
        beneath = None if host.snapshot is not None else host.routes_of(family)
        of_family = plan.of(family)
        gone = [*of_family.remove, *(item.old for item in of_family.replace)]
        model = model_of(now.known(family), beneath)
        model = model.without(gone).with_routes(_new_routes(of_family))
        for policy in of_family.policies:
            model = _with_policy(model, policy)
        models[family] = model
    return _Planned(host, models)


def _with_policy(model: Model, policy: PolicyPlan) -> Model:
    replaced = policy.replace
    gone = [*policy.remove, *(pair.old for pair in replaced)]
    changed = model.without(gone).with_routes([*policy.add, *(pair.new for pair in replaced)])
    rules = model.facts().rules
    after = policy.rules_after(rules)
    return changed if after == rules else changed.with_rules(after)


def _new_routes(plan: RoutePlan) -> list[Route]:
    return [*plan.add, *(item.new for item in plan.replace)]


def _rehearse(plan: RoutePlan, host: Host, planned: _Planned) -> None:
    """Raise an error if installing the routes would raise one.

    Raises:
        RouteError: the error that would be raised.
    """
    _refuse(plan, host, planned)
    for family in plan.families:
        of_family = plan.of(family)
        verify_routes(of_family.wanted, planned.backend(family))
        verify_policies(of_family, planned.backend(family))


def _refuse(plan: RoutePlan, host: Host, planned: _Planned) -> None:
    """Raise a RouteError if the kernel would refuse new routes."""
    for family, model in planned.models.items():
        new = _new_routes(plan.of(family))
        refuse("add", [*_without_ipv6(new, host), *model.refused()])


def _without_ipv6(routes: Sequence[Route], host: Host) -> list[RouteFailure]:
    """Return a failure for each IPv6 route through an interface on which a sysctl disables IPv6."""
    routes6 = [route for route in routes if route.family is Family.IPV6]
    if not routes6 or host.snapshot is not None:
        return []
    lacking = {*devs_without_ipv6(host.layout, host.routes.facts().links)}
    message = "IPv6 is disabled on nexthop device"
    return [
        RouteFailure(route, errnos.EACCES, message)
        for route in routes6
        if not lacking.isdisjoint(route.devs)
    ]


def as_installed(config: Config, host: Host) -> Callable[[Family], RouteBackend]:
    """Return a function that gives the backend of a family as it would be with a config's routes.

    Routes and rules that don't win count as installed, too, because a fix may have a rule that
    makes them win.

    Raises:
        RouteError: the routes can't currently be installed.
    """
    config = host.with_verified(config)
    backends = planned_backends(config, host)
    adopted = routes_to_adopt(host, replaces_script=config.static_routes.is_wanted)
    attempt = "propose routes beside those of the config"
    plan = plan_or_raise(config, attempt, *backends, adopted=adopted)
    planned = _planned(config, host, plan, CancelScope())
    _refuse(plan, host, planned)
    return planned.backend
