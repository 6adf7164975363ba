"""The host as it will be: what a plan would change is judged before it is carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.azure.probe.part import installed_config
from hostrouting.azure.probe.tasks import plan_probe
from hostrouting.boot.gate import PROBE
from hostrouting.boot.host import Host
from hostrouting.boot.parts import Manifest
from hostrouting.config.routing import Coverage, OverlapMode
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.recording import SnapshotBackend
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.errors import LoadBalancerProbeError, RouteError
from hostrouting.model.values import Table
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import Verdict
from hostrouting.overlap.judge import shortened
from hostrouting.routes.plan import NextStart
from hostrouting.routes.resolve import describe_missing, resolve
from hostrouting.tasks.configure import plan_now
from phases import CancelScope

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ipaddress import IPv4Address

    from hostrouting.config.routing import Config, StaticRoute
    from hostrouting.model.values import Route
    from hostrouting.overlap.findings import OverlapReport
    from hostrouting.routes.plan import RoutePlan

__all__ = ["as_planned", "propose", "resolve_now", "will_start"]

_NAMED_FINDINGS = 3


def as_planned(plan: RoutePlan, host: Host) -> Host:
    """The host as it would be once a plan is carried out; it can be asked and not changed."""
    if plan.is_empty:
        return host
    backend = host.routes
    rules = backend.rules()
    fib = Fib(rules, backend.routes()).with_changes(
        add=(*plan.add, *(item.new for item in plan.replace)),
        remove=(*plan.remove, *(item.old for item in plan.replace)),
    )
    recorded = Snapshot(backend.links(), backend.addresses(), rules, fib.routes)
    return Host(SnapshotBackend(recorded), host.units, host.layout)


def will_start(
    config: Config, host: Host, plan: RoutePlan, missing: str | None, *, is_recorded: bool = False
) -> NextStart:
    """Whether the gate would let the consumer start if the plan were carried out now.

    Args:
        config: what is wanted.
        host: whose kernel to ask.
        plan: of its routes.
        missing: what they wait for.
        is_recorded: whether nothing is known of the host but its routes.

    Returns:
        The answer with its reason.
    """
    start = _will_start_by_routes(config, host, plan, missing)
    if not start.is_admitted or is_recorded:
        return start
    try:
        reason = _why_probes_hold(host)
    except LoadBalancerProbeError as error:
        if error.is_not_permitted:
            unseen = "whether the rules for the load balancer's probes, which are required, can be had only root sees"
            return attrs.evolve(start, reason=f"{start.reason}; {unseen}")
        reason = str(error)
    return start if reason is None else NextStart(start.consumer, False, reason)


def _why_probes_hold(host: Host) -> str | None:
    """Why the installed script of the probes would hold the consumer back; None: it would not."""
    manifest = Manifest.load(host.layout)
    if not manifest.parts.get(PROBE, False):
        return None
    installed = installed_config(host.layout, manifest)
    if installed is None:
        return (
            f"{host.layout.relative(host.layout.script(PROBE))} isn't as hostrouting writes it: see hostrouting doctor"
        )
    missing = plan_probe(installed, host, CancelScope()).missing
    return None if missing is None else f"the load balancer's probes need {missing}"


def _will_start_by_routes(config: Config, host: Host, plan: RoutePlan, missing: str | None) -> NextStart:
    consumer = config.consumer
    if missing is not None:
        return NextStart(consumer, False, f"the static routes can't be installed without {missing}")
    result = check_overlap(config.without_waits(), as_planned(plan, host), CancelScope())
    if result.verdict is Verdict.UNKNOWN:
        reason = f"the check can't judge: {result.reason}"
    elif result.findings:
        reason = shortened([finding.message for finding in result.findings], "; ", _NAMED_FINDINGS)
    elif not result.cidrs:
        return NextStart(consumer, True, "every route is installed; no CIDRs are expected, so nothing is checked")
    else:
        return NextStart(consumer, True, "every route is installed, and nothing that is expected is shadowed")
    is_held = config.route_overlap.mode is OverlapMode.STRICT
    return NextStart(consumer, not is_held, reason if is_held else f"the mode is WARN, although {reason}")


def propose(
    config: Config,
    host: Host,
    scope: CancelScope,
    *,
    keeps_routes: bool = False,
    nameservers: Sequence[IPv4Address] = (),
) -> OverlapReport:
    """Check the host as it would be with the routes of a config, whole CIDRs whatever its coverage.

    Args:
        config: the expected CIDRs, and the routes that the proposal is to join.
        host: whose kernel to ask.
        scope: ends the wait for a default route.
        keeps_routes: whether our routes that are there stay; else those that the config doesn't name are gone.
        nameservers: that the host asks.

    Returns:
        The report; its ``remedy`` is the proposal.

    Raises:
        RouteError: the routes of the config can't be installed as it is.
    """
    config = attrs.evolve(config, route_overlap=attrs.evolve(config.route_overlap, coverage=Coverage.EXACT))
    if not keeps_routes:
        plan, missing = plan_now(config, host.routes)
        if missing is not None:
            raise RouteError(f"can't propose routes beside those of the config: still missing is {missing}")
        host = as_planned(plan, host)
    return check_overlap(config, host, scope, nameservers=nameservers)


def resolve_now(entries: Sequence[StaticRoute], host: Host) -> tuple[Route, ...]:
    """Static routes as the kernel would get them at this moment.

    Raises:
        RouteError: something is missing, or one can't ever be installed.
    """
    backend = host.routes
    resolution = resolve(entries, backend.links(), backend.addresses(), backend.routes(Table.MAIN))
    if resolution.missing:
        raise RouteError(f"can't fill in the routes: still missing is {describe_missing(resolution.missing)}")
    return resolution.routes
