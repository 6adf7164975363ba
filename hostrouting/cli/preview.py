"""The host as it will be: what a plan would change is judged before it is carried out."""

from __future__ import annotations

from typing import Any

import attrs

from hostrouting.config.overlap import OverlapMode
from hostrouting.config.routing import Config
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.port import RouteBackend
from hostrouting.kernel.recording import SnapshotBackend
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.errors import RouteError
from hostrouting.model.text import shortened
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import Verdict
from hostrouting.routes.plan import RoutePlan, plan_now
from phases import CancelScope

_NAMED_FINDINGS = 3


@attrs.frozen
class NextStart:
    """Whether the gate would let the consumer start.

    Args:
        consumer: the unit.
        is_admitted: whether it would.
        reason: why, in words.
    """

    consumer: str
    is_admitted: bool
    reason: str

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON."""
        return {"consumer": self.consumer, "admitted": self.is_admitted, "reason": self.reason}


def _as_planned(plan: RoutePlan, backend: RouteBackend) -> RouteBackend:
    """The kernel as it would be once a plan is carried out; it can be asked and not changed."""
    if not plan.changes:
        return backend
    rules = backend.rules()
    fib = Fib(rules, backend.routes()).with_changes(
        add=(*plan.add, *(item.new for item in plan.replace)),
        remove=(*plan.remove, *(item.old for item in plan.replace)),
    )
    return SnapshotBackend(Snapshot(backend.links(), backend.addresses(), rules, tuple(fib.routes)))


def will_start(config: Config, backend: RouteBackend, plan: RoutePlan, missing: str | None) -> NextStart:
    """Whether the gate would let the consumer start if the plan were carried out now.

    Args:
        config: what is wanted.
        backend: the kernel to ask.
        plan: of its routes.
        missing: what they wait for.

    Returns:
        The answer with its reason.
    """
    consumer = config.consumer
    if missing is not None:
        return NextStart(consumer, False, f"the static routes can't be installed without {missing}")
    result = check_overlap(config.route_overlap, _as_planned(plan, backend), CancelScope())
    if result.verdict is Verdict.UNKNOWN:
        reason = f"the check can't judge: {result.reason}"
    elif result.findings:
        reason = shortened([finding.message for finding in result.findings], "; ", _NAMED_FINDINGS)
    else:
        return NextStart(consumer, True, "every route is installed, and nothing that is expected is shadowed")
    is_held = config.route_overlap.mode is OverlapMode.STRICT
    return NextStart(consumer, not is_held, reason if is_held else f"the mode is WARN, although {reason}")


def as_installed(config: Config, backend: RouteBackend) -> RouteBackend:
    """The kernel as it would be with the routes of a config.

    Raises:
        RouteError: they can't be installed as it is.
    """
    plan, missing = plan_now(config, backend)
    if missing is not None:
        raise RouteError(f"can't propose routes beside those of the config without {missing}")
    return _as_planned(plan, backend)
