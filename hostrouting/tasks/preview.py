"""Plan the changes that ``Configure`` would make, and predict the gate's decision afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import attrs

from hostrouting.boot.break_glass import why_open
from hostrouting.boot.host import Host
from hostrouting.boot.installation import require_systemd
from hostrouting.boot.parts import Wanted
from hostrouting.boot.plan import BootPlan, plan_next_boot
from hostrouting.config.routing import Config, OverlapMode
from hostrouting.kernel.known_host import UnknownFactError
from hostrouting.model.changes import Changes
from hostrouting.model.errors import RouteError, UnitError
from hostrouting.model.jsonable import fields_in_json
from hostrouting.model.text import shortened
from hostrouting.model.values import frozen
from hostrouting.overlap.check import check_families
from hostrouting.overlap.findings import NoteKind, OverlapReport, UnknownReason, Verdict
from hostrouting.overlap.lasting import advice_on_printed, as_sentence, file_of_config
from hostrouting.overlap.rehearsal import Rehearsal, rehearse
from hostrouting.overlap.summary import brief
from hostrouting.overlap.uplinks import awaited_devs
from hostrouting.routes.plan import RoutePlan, RoutesReport
from hostrouting.tasks.arguments import to_config, to_host, to_scope
from hostrouting.tasks.configure import change_to_record, warnings_of
from hostrouting.tasks.install_routes import why_no_default6
from phases import CancelScope

_NAMED_FINDINGS = 3
_NOT_INSTALLED = "apply can't install this here"


@frozen
class _Refused:
    """Why the routes can't be installed.

    Args:
        reason: the reason, as a clause.
        refusals: a line for each route or rule, if there are several.
    """

    reason: str
    refusals: tuple[str, ...] = ()

    def __str__(self) -> str:
        return _with_refusals(self.reason, self.refusals)


# The check's report with the planned routes in the kernel. Or the reason why the routes can't be
# installed. Or the error about an unknown fact on which that depends.
_Outcome: TypeAlias = OverlapReport | UnknownFactError | _Refused


@frozen
class NextStart:
    """The gate's predicted decision about the consumer's next start.

    Args:
        consumer: the unit to be started.
        is_admitted: whether the gate would let the consumer start. None if that isn't known: an
            image has no kernel to query, ``Configure`` can't install the plan here, or a fact of
            the host isn't known.
        reason: the reason for the decision, as a clause.
        refusals: if ``Configure`` would fail for several routes or rules, a line for each, and
            then the hints.
    """

    consumer: str
    is_admitted: bool | None
    reason: str
    refusals: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the decision as JSON, whose reason has the refusals, too."""
        reason = _with_refusals(self.reason, self.refusals)
        return {"consumer": self.consumer, "admitted": self.is_admitted, "reason": reason}


@frozen
class Plan:
    """Everything that ``Configure`` would change on a host.

    A plan without changes is falsy, unless ``Configure`` would fail.

    Args:
        host: the host's name.
        routes: the plan for the kernel's routes and rules.
        missing: what the routes are waiting for, as a phrase, or None. If the routes are waiting,
            ``routes`` is empty.
        boot: changes to files and units. None for a snapshot, which has neither.
        next_start: the gate's decision about the consumer's next start after the changes.
        warnings: why ``Configure`` would fail on this host, why the installation can't work yet, or
            why the uplink may be the wrong one. Each is a sentence, or has a line for each of
            several reasons.
        pending: InfiniBand and kept interfaces for whose addresses a run would wait.
        would_fail: whether ``Configure`` can't install this on the host as it is. Then one of
            ``warnings`` says why. None if that isn't known.
    """

    host: str
    routes: RoutePlan
    missing: str | None
    boot: Changes | None
    next_start: NextStart
    warnings: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    would_fail: bool | None = False

    @property
    def changes(self) -> Changes:
        """Return all known changes to routes, rules, files and units."""
        return self.routes.changes | (self.boot or Changes())

    def __bool__(self) -> bool:
        return bool(self.would_fail or self.changes)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON, in the format of ``hostrouting plan --output json``."""
        unknown = {"files": None, "units": None} if self.boot is None else {}
        names = ("would_fail", "missing", "pending", "next_start", "warnings")
        more = fields_in_json(self, *names)
        return (
            {"schema": 1, "host": self.host}
            | RoutesReport(self.routes, self.changes).to_json()
            | more
            | unknown
        )


def plan(config: Config, *, host: Host | None = None, scope: CancelScope | None = None) -> Plan:
    """Plan the changes of ``Configure``, and predict the next start.

    Change nothing, and don't wait for the network.

    Returns:
        The plan.

    Raises:
        RouteError: the kernel can't be queried. If a route can't be installed on this host as
            configured, the plan has ``would_fail``.
        FileError: a file can't be read.
        UnitError: systemd can't be queried.
    """
    host = to_host(host)
    config = host.with_verified(to_config(config))
    with to_scope(scope) as scope:
        return _plan(config, host, scope)


def _plan(config: Config, host: Host, scope: CancelScope) -> Plan:
    outcome: _Outcome | None = None
    if host.is_image:
        next_start = NextStart(config.consumer, None, "an image is checked at its first boot")
        planned = Plan(host.name, RoutePlan(), None, None, next_start)
    else:
        rehearsal = rehearse(config, host, scope)
        outcome = _outcome(config, host, rehearsal, scope)
        planned = Plan(
            host.name,
            rehearsal.plan,
            rehearsal.missing,
            None,
            _next_start(config, host, outcome),
            (
                *_decisions(config, outcome),
                *_about_printed(config, host, outcome, scope),
                *_effects(config, outcome, rehearsal, scope),
            ),
            _pending(config, host, rehearsal.plan),
            None if isinstance(outcome, UnknownFactError) else isinstance(outcome, _Refused),
        )
    if host.snapshot is not None:
        return planned
    host = host.within(scope)
    wanted = Wanted.of(config, host.layout)
    boot = plan_next_boot(host, wanted)
    obstacles = _why_apply_fails(boot, host)
    if obstacles:
        next_start = NextStart(config.consumer, None, _NOT_INSTALLED)
        planned = attrs.evolve(planned, next_start=next_start, would_fail=True)
    warnings = [
        *planned.warnings,
        *obstacles,
        *warnings_of(config, wanted, host),
        *boot.files.access_errors,
    ]
    if planned.missing is not None:
        warnings += why_no_default6(config, host)
    changes = boot.changes | _changes_to_record(config, host, outcome)
    return attrs.evolve(planned, boot=changes, warnings=tuple(warnings))


def _pending(config: Config, host: Host, planned: RoutePlan) -> tuple[str, ...]:
    """Return the interfaces for whose addresses a run would wait."""
    if not config.route_overlap.address_seconds:
        return ()
    kept = (phrase.partition(" ")[0] for phrase in planned.awaited)
    return tuple(dict.fromkeys((*awaited_devs(config, host.routes), *kept)))


def predict_start(
    config: Config,
    host: Host,
    rehearsal: Rehearsal,
    scope: CancelScope,
) -> NextStart:
    """Predict the gate's decision about the next start with an installed config.

    Args:
        config: the installed config.
        host: the host as it is.
        rehearsal: the rehearsal of the config's routes on this host.
        scope: cancels the check.
    """
    config = host.with_verified(config)
    return _next_start(config, host, _outcome(config, host, rehearsal, scope))


def _decisions(config: Config, outcome: _Outcome) -> Iterator[str]:
    """Yield each note that asks which interface is the uplink.

    If the config names uplinks, only notes on verified uplinks that have moved are left.
    """
    if not isinstance(outcome, OverlapReport):
        return
    for note in outcome.decisions:
        if config.uplinks is None or note.kind is NoteKind.MOVED:
            yield f"{note.kind}: {'; '.join(brief(note.message))}"


def _about_printed(
    config: Config,
    host: Host,
    outcome: _Outcome,
    scope: CancelScope,
) -> Iterator[str]:
    """Yield a sentence if anything is left of what ``fix --format ip`` printed."""
    if not isinstance(outcome, OverlapReport) or outcome.verdict is Verdict.UNKNOWN:
        return
    file = file_of_config(host, config)
    if told := as_sentence(advice_on_printed(config, host, file, outcome, scope)):
        yield told


def _effects(
    config: Config,
    outcome: _Outcome,
    rehearsal: Rehearsal,
    scope: CancelScope,
) -> Iterator[str]:
    """Yield why ``Configure`` would fail, or which traffic its changes would divert."""
    if isinstance(outcome, _Refused):
        yield f"apply would fail: {outcome}"
    elif isinstance(outcome, OverlapReport):
        yield from rehearsal.planned.effects(config, scope)


def _changes_to_record(config: Config, host: Host, outcome: _Outcome | None) -> Changes:
    if not isinstance(outcome, OverlapReport):
        return Changes()
    change = change_to_record(config, outcome, host)
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
    rehearsal: Rehearsal,
    scope: CancelScope,
) -> _Outcome:
    """Return the report of a check of the planned host, or why there is none (``_Outcome``)."""
    if isinstance(rehearsal.error, UnknownFactError):
        return rehearsal.error
    if rehearsal.missing is not None:
        return _Refused(rehearsal.reason)
    if rehearsal.error is not None:
        return _why_refused(rehearsal.error)
    return check_families(config, rehearsal.planned.backend, scope, host=host)


def _why_refused(error: RouteError) -> _Refused:
    reason = "the static routes can't be installed"
    if len(error.clause.splitlines()) == 1:
        return _Refused(f"{reason}: {error.clause}")
    return _Refused(reason, tuple(str(error).splitlines()))


def _next_start(config: Config, host: Host, outcome: _Outcome) -> NextStart:
    """Predict whether the gate would let the consumer start after the plan has been applied."""
    consumer = config.consumer
    if host.snapshot is None and (why := why_open(host.layout)):
        return NextStart(consumer, True, f"{why}, so nothing is checked")
    if isinstance(outcome, _Refused):
        return NextStart(consumer, False, outcome.reason, outcome.refusals)
    if isinstance(outcome, UnknownFactError):
        return NextStart(consumer, None, outcome.clause)
    if not config.route_overlap.expected_cidrs:
        reason = "no CIDR is expected, so nothing is checked"
        return NextStart(consumer, True, reason)
    failure = _failure_of(outcome)
    if failure is None:
        reason = "with every route installed, nothing that is expected is shadowed"
        return NextStart(consumer, True, reason)
    if config.route_overlap.mode is OverlapMode.STRICT:
        is_known = outcome.findings or outcome.reason_kind is not UnknownReason.CHECK_FAILED
        return NextStart(consumer, False if is_known else None, failure)
    return NextStart(consumer, True, f"the mode is WARN, although {failure}")


def _with_refusals(reason: str, refusals: tuple[str, ...]) -> str:
    """Return a reason, and the lines that follow it, if any."""
    return "\n".join((f"{reason}:", *refusals)) if refusals else reason


def _failure_of(report: OverlapReport) -> str | None:
    """Return why a check doesn't pass, as a clause; None if it passes."""
    if report.verdict is Verdict.UNKNOWN:
        return f"the check can't judge: {report.reason}"
    if report.findings:
        messages = [finding.message for finding in report.findings]
        return shortened(messages, "; ", _NAMED_FINDINGS)
    return None
