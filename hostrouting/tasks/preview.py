"""Plan the changes that ``Configure`` would make, and predict what the gate would decide afterwards."""

from __future__ import annotations

from typing import Any

import attrs

from hostrouting.boot.break_glass import why_open
from hostrouting.boot.host import Host
from hostrouting.boot.parts import Wanted
from hostrouting.boot.plan import plan_next_boot
from hostrouting.config.routing import Config, OverlapMode, RouteOverlap
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.port import RouteBackend, at_one_moment
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.snapshot_backend import SnapshotBackend
from hostrouting.model.changes import Changes
from hostrouting.model.errors import RouteError
from hostrouting.model.text import shortened
from hostrouting.overlap.check import awaited_devs, check_overlap
from hostrouting.overlap.findings import Verdict
from hostrouting.routes.plan import RoutePlan, RoutesReport, plan_now
from hostrouting.tasks.arguments import to_config, to_host
from hostrouting.tasks.configure import warnings_of
from phases import CancelScope

_NAMED_FINDINGS = 3


@attrs.frozen
class NextStart:
    """What the gate would decide about the consumer's next start.

    Args:
        consumer: the unit that starts.
        is_admitted: whether the gate would admit it, or None for an image, which has no kernel to query.
        reason: the reason, as a clause.
    """

    consumer: str
    is_admitted: bool | None
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the decision as JSON."""
        return {"consumer": self.consumer, "admitted": self.is_admitted, "reason": self.reason}


@attrs.frozen
class Plan:
    """Everything that ``Configure`` would change on a host; a plan without changes is false.

    Args:
        host: the host's name.
        routes: the plan for the kernel's table.
        missing: a phrase for what the routes would wait for, in which case ``routes`` is empty; or None if it is
            nothing.
        boot: the changes of files and units, or None for a snapshot, which doesn't contain them.
        next_start: whether the gate would let the consumer start after the changes.
        warnings: the reasons why the installation can't work yet, one sentence each.
        pending: the InfiniBand interfaces whose addresses the check would wait for.
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
        """Every route, file and unit that would be changed, as far as they are known."""
        return self.routes.changes | (self.boot or Changes())

    def __bool__(self) -> bool:
        return self.missing is not None or bool(self.changes)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON, in the form that ``hostrouting plan --output json`` prints."""
        unknown = {"files": None, "units": None} if self.boot is None else {}
        more = {"missing": self.missing, "pending": [*self.pending], "nextStart": self.next_start.to_json()}
        more |= {"warnings": [*self.warnings]}
        return {"schema": 1, "host": self.host} | RoutesReport(self.routes, self.changes).to_json() | more | unknown


def plan(config: Config, *, host: Host | None = None, scope: CancelScope | None = None) -> Plan:
    """Plan what ``Configure`` would change, and judge the next start, without changing or waiting for anything.

    Args:
        config: the wanted config.
        host: the host to plan for; by default this host.
        scope: cancels the check, and the wait for systemd.

    Returns:
        The plan.

    Raises:
        RouteError: a route can never be installed as given, or the kernel can't be queried.
        FileError: a file can't be read.
        UnitError: systemd can't be queried.
    """
    config, host = to_config(config), to_host(host)
    scope = scope or CancelScope()
    if host.is_image:
        judged_later = NextStart(config.consumer, None, "an image is judged at its first boot")
        return _of_boot(config, host.within(scope), Plan(host.name, RoutePlan(), None, None, judged_later))
    routes, missing = plan_now(config, host.routes)
    next_start = _next_start(config, host.routes, routes, missing, scope)
    pending = awaited_devs(config, host.routes)
    if host.snapshot is not None:
        return Plan(host.name, routes, missing, None, next_start, pending=pending)
    if why := why_open(host.layout):
        next_start = NextStart(config.consumer, True, f"{why}, so nothing is checked")
    return _of_boot(config, host.within(scope), Plan(host.name, routes, missing, None, next_start, pending=pending))


def _of_boot(config: Config, host: Host, routes: Plan) -> Plan:
    """Add the plan for files and units to a plan of routes."""
    wanted = Wanted.of(config, host.layout)
    boot = plan_next_boot(host, wanted)
    return attrs.evolve(routes, boot=boot.changes, warnings=(*warnings_of(config, wanted, host), *boot.unseen))


def _as_planned(overlap: RouteOverlap, plan: RoutePlan, backend: RouteBackend, scope: CancelScope) -> RouteBackend:
    """Return the kernel as it would be after a plan, as a backend that can be queried but not changed."""
    if not plan.changes:
        return backend

    def read() -> Snapshot:
        rules = backend.rules()
        fib = Fib(rules, backend.routes()).with_changes(
            add=(*plan.add, *(item.new for item in plan.replace)),
            remove=(*plan.remove, *(item.old for item in plan.replace)),
        )
        return Snapshot(backend.links(), backend.addresses(), rules, tuple(fib.routes))

    snapshot, why_torn = at_one_moment(backend, overlap.judged, scope, read)
    return SnapshotBackend(attrs.evolve(snapshot, is_torn=why_torn is not None))


def _next_start(
    config: Config, backend: RouteBackend, plan: RoutePlan, missing: str | None, scope: CancelScope
) -> NextStart:
    """Judge whether the gate would let the consumer start if the plan were carried out now."""
    consumer = config.consumer
    if missing is not None:
        return NextStart(consumer, False, f"the static routes can't be installed without {missing}")
    if not config.route_overlap.expected_cidrs:
        return NextStart(consumer, True, "every route is installed; no CIDR is expected, so nothing is checked")
    result = check_overlap(config, _as_planned(config.route_overlap, plan, backend, scope), scope)
    if result.verdict is Verdict.UNKNOWN:
        reason = f"the check can't judge: {result.reason}"
    elif result.findings:
        reason = shortened([finding.message for finding in result.findings], "; ", _NAMED_FINDINGS)
    else:
        return NextStart(consumer, True, "every route is installed, and nothing that is expected is shadowed")
    is_held = config.route_overlap.mode is OverlapMode.STRICT
    return NextStart(consumer, not is_held, reason if is_held else f"the mode is WARN, although {reason}")


def as_installed(config: Config, backend: RouteBackend) -> RouteBackend:
    """Return the kernel as it would be with the routes of a config.

    Raises:
        RouteError: the routes can't be installed in the kernel's current state.
    """
    plan, missing = plan_now(config, backend)
    if missing is not None:
        raise RouteError(f"can't propose routes beside those of the config without {missing}")
    return _as_planned(config.route_overlap, plan, backend, CancelScope())
