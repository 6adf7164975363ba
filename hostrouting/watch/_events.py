"""Watcher events: the differences between two consecutive checks, each reported once.

This module does no I/O. The IDs are for ``journalctl MESSAGE_ID=…`` and message catalogs. The IDs
are stable, and documented in docs/reference/watch.md.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from syslog import LOG_ERR, LOG_INFO, LOG_NOTICE, LOG_WARNING

import attrs

from hostrouting.boot.trial_timer import TRIAL_HINT
from hostrouting.model.changes import Changes, Replacement
from hostrouting.model.family import IpNetwork
from hostrouting.model.routes import Route
from hostrouting.model.text import shortened
from hostrouting.model.values import frozen
from hostrouting.overlap.findings import Finding, Note, NoteKind, OverlapReport, Verdict
from hostrouting.overlap.summary import PASTE, summary, unapplied
from hostrouting.watch._policy import PolicyRepair
from hostrouting.watch._repair import Drift, Repair

HOW_TO_STOP = (
    "to stop hostrouting: systemctl stop hostrouting-watch (until the next boot), watch.enabled "
    "false in the config and hostrouting apply (for good), "
    "or hostrouting remove (removes the routes too)"
)

_NAMED_MAX = 16
# If a datagram with the status is larger than PIPE_BUF, systemd drops it and keeps the old status
# (manager_dispatch_notify_fd).
_STATUS_CHARACTERS = 1000


class EventKind(Enum):
    """Event kinds, with a MESSAGE_ID (systemd.journal-fields(7)) and a priority (syslog(3))."""

    STARTED = "e2a306a572414048a3ac00778959a849", LOG_INFO
    STOPPED = "60989b3ffcdf4e978baa60088daf2c71", LOG_INFO
    ROUTES_RESTORED = "5740f8f446b541fea3da3363f1a23f78", LOG_WARNING
    ROUTES_FOLLOWED = "8fe29ddc8f394586a80ef55884b47709", LOG_NOTICE
    ROUTES_NOT_MOVED = "32f9f98af6fc494f85ab43d916c95cfb", LOG_ERR
    UPLINK_MOVED = "ed13d2014673434cbc2df144f1bbffaf", LOG_ERR
    ROUTES_REMOVED = "80b8ecdbb46d44aaabe749fe9f043eea", LOG_NOTICE
    RULES_RESTORED = "711c203eeb89434b9c96a30c67ed1a31", LOG_WARNING
    RULES_REMOVED = "8266002707c14e1e9aadc2c12af62065", LOG_NOTICE
    ROUTES_CONTESTED = "ce6bfcd20a6d4dfbaa8bda511dbd0fc0", LOG_ERR
    PROBLEM = "5b572e3fcbc64c3d86bb706a1b9a9cb2", LOG_WARNING
    PROBLEM_OVER = "97ca8a7aed324d09a935f913def5e9ac", LOG_NOTICE
    FAILURE = "ec20bc1a0b76424bb1cb7e6943227306", LOG_ERR
    FAILURE_GONE = "c204cbaff63b4976aefcbcf618c3b87b", LOG_NOTICE
    UNKNOWN = "f364f27ad5fa4d3681228bbf1bb472e0", LOG_WARNING
    ALL_WELL = "7ee4969741d14f46986de380c25d72c5", LOG_INFO

    def __init__(self, message_id: str, priority: int) -> None:
        self.message_id = message_id
        self.priority = priority


@frozen
class Event:
    """An event reported by the watcher.

    Args:
        kind: what has happened, with a message ID and a priority.
        message: a single line of text.
        fields: additional journal fields: ``CIDR``, ``ROUTE`` (in ``ip route show`` format),
            ``RULE`` (in ``ip rule show`` format), ``DEV``, and ``FIX`` for the suggested
            ``staticRoutes`` entries as JSON.
    """

    kind: EventKind
    message: str
    fields: Mapping[str, Sequence[str]] = attrs.field(factory=dict)


def status(report: OverlapReport, repair: Repair, problems: Sequence[str]) -> str:
    """Return a one-line summary for ``systemctl status``.

    Args:
        report: the check's report.
        repair: the result of the last repair.
        problems: descriptions of the current problems.
    """
    found = "no CIDRs are expected"
    if report.cidrs:
        found = shortened(summary(report).splitlines(), "; ", 1)
    words = [f"{report.verdict}: {found}", f"static routes in place: {repair.in_place}"]
    if repair.policy is not None:
        words.append(f"rules in place: {repair.policy.in_place}")
    if repair.waiting:
        words.append(f"waiting, because another program keeps removing them: {len(repair.waiting)}")
    if repair.unmoved:
        words.append(unmoved(repair.unmoved))
    words += problems[:1]
    return textwrap.shorten("; ".join(words), _STATUS_CHARACTERS, placeholder=" …")


# --- routes ---------------------------------------------------------------------------------------


_REPAIRED = {
    Drift.LOST: (EventKind.ROUTES_RESTORED, "restored, because it was missing or changed"),
    Drift.DEFAULT_CHANGED: (EventKind.ROUTES_FOLLOWED, "changed with the default route"),
    Drift.UNWANTED: (EventKind.ROUTES_REMOVED, "removed, because no config asks for it"),
}


def of_routes(repair: Repair, managers: Mapping[str, str]) -> Iterator[Event]:
    """Yield events for repaired routes, and for routes that another program keeps removing.

    Args:
        repair: the result of the repair.
        managers: for each interface, a clause that names its network manager and says how to make
            the manager keep routes.
    """
    for drift, (kind, what) in _REPAIRED.items():
        if routes := repair.repaired.get(drift):
            yield _event(kind, f"{what}: {_listed(routes)}", routes)
    # Routes that were lost together several times have equal counters, so they share an event.
    for failures, removed in repair.lost_again.items():
        those, them = ("this route", "it") if len(removed) == 1 else ("these routes", "them")
        unknown = "the kernel doesn't say which one"
        who = "; ".join(managers.get(dev, unknown) for dev in devs_of(removed))
        message = (
            f"another program keeps removing {_listed(removed)}: {failures.count} times lately; "
            f"hostrouting keeps {those}, and restores {them} in {failures.wait_seconds:g} s; "
            f"{who}; {HOW_TO_STOP}"
        )
        yield _event(EventKind.ROUTES_CONTESTED, message, removed)


def devs_of(routes: Sequence[Route]) -> tuple[str, ...]:
    """Return the routes' interfaces, sorted and deduplicated."""
    return tuple(sorted({dev for route in routes for dev in route.devs}))


def _event(kind: EventKind, message: str, routes: Sequence[Route]) -> Event:
    about = {"ROUTE": [str(route) for route in routes], "DEV": devs_of(routes)}
    return Event(kind, message, about)


def _listed(routes: Sequence[Route]) -> str:
    return shortened([str(route) for route in routes], ", ", _NAMED_MAX)


def of_moves(before: Sequence[Replacement], now: Sequence[Replacement]) -> Iterator[Event]:
    """Yield an event if the default route has moved to another interface without our routes.

    Args:
        before: the routes that didn't follow the default route in the previous round.
        now: the routes that don't follow the default route now.
    """
    if now and now != before:
        yield _event(EventKind.ROUTES_NOT_MOVED, unmoved(now), [move.old for move in now])
    if before and not now:
        yield Event(EventKind.PROBLEM_OVER, f"no longer so: {unmoved(before)}")


def of_uplinks(before: OverlapReport | None, now: OverlapReport) -> Iterator[Event]:
    """Yield an event if a default route of another interface wins over the verified uplink's.

    Args:
        before: the previous report, or None on the first check.
        now: the current report.
    """
    if now.verdict is Verdict.UNKNOWN and now.cidrs:
        return
    was = () if before is None else _moves(before)
    for note in _moves(now):
        if note not in was:
            yield Event(EventKind.UPLINK_MOVED, note.message, {"DEV": note.devs})
    if was and not _moves(now):
        yield Event(EventKind.PROBLEM_OVER, f"no longer so: {was[0].message}")


def _moves(report: OverlapReport) -> list[Note]:
    return [note for note in report.notes if note.kind is NoteKind.MOVED]


def unmoved(moves: Sequence[Replacement]) -> str:
    """Return a sentence on routes that stay although the default route has moved."""
    there = devs_of([move.new for move in moves])
    listed = _listed([move.old for move in moves])
    names = ", ".join(f'"{dev}"' for dev in there)
    return (
        f"the default route has moved to {','.join(there)}, and these static routes don't follow: "
        f'{listed}; if the move is wanted, set hostRouting\'s "uplinks": [{names}] and run '
        "hostrouting apply; if it isn't, remove that default route or give it a higher metric"
    )


# --- rules and side tables ------------------------------------------------------------------------


_CHANGED = {
    EventKind.RULES_RESTORED: (
        ("added", "replaced"),
        "restored, because it was missing or changed",
    ),
    EventKind.RULES_REMOVED: (("removed",), "removed, because nothing needs it any more"),
}


def of_rules(policy: PolicyRepair | None) -> Iterator[Event]:
    """Yield events for restored and removed rules, and for such routes in side tables."""
    changes = Changes() if policy is None else policy.changes
    for kind, (actions, what) in _CHANGED.items():
        rules = [str(change.what) for change in changes.rules if change.action in actions]
        routes = [str(change.what) for change in changes.routes if change.action in actions]
        if rules or routes:
            words = [*(f"rule {rule}" for rule in rules), *routes]
            message = f"{what}: {shortened(words, ', ', _NAMED_MAX)}"
            yield Event(kind, message, {"RULE": rules, "ROUTE": routes})


# --- problems -------------------------------------------------------------------------------------


def of_problems(before: Sequence[str], now: Sequence[str]) -> Iterator[Event]:
    """Yield an event for each new problem, and one event when the last problem is gone."""
    for problem in now:
        if problem not in before:
            yield Event(EventKind.PROBLEM, _one_line(problem))
    if before and not now:
        yield Event(EventKind.PROBLEM_OVER, f"no longer so: {_one_line(before[0])}")


def _one_line(problem: str) -> str:
    """Shorten a problem to one line. A problem may have thousands of lines, one for each route."""
    return shortened(problem.splitlines(), "; ", _NAMED_MAX)


# --- the check ------------------------------------------------------------------------------------


def of_failures(
    before: OverlapReport | None,
    now: OverlapReport,
    waiting: Iterable[Route],
    *,
    is_on_trial: bool = False,
) -> Iterator[Event]:
    """Yield events for new and resolved failures, and for checks that can't reach a verdict.

    Args:
        before: the previous report; None on the first check. If the previous verdict is unknown,
            the report has the findings of the last check with a verdict.
        now: the current report.
        waiting: the lost routes that the watcher will restore once they are due.
        is_on_trial: whether a trial of routes is in progress, so that no hint is an ``apply``.
    """
    if now.verdict is Verdict.UNKNOWN and now.cidrs:
        yield from _of_unknown(before, now)
        return
    former = () if before is None else before.findings
    instead = TRIAL_HINT if is_on_trial else ""
    yield from _of_findings(former, now, waiting, instead)
    was_well = before is not None and before.verdict is Verdict.OK
    if now.cidrs and not now.findings and not was_well:
        yield Event(EventKind.ALL_WELL, summary(now), {"DEV": now.default_devs})


def _of_unknown(before: OverlapReport | None, now: OverlapReport) -> Iterator[Event]:
    if before is None or before.reason != now.reason:
        yield Event(EventKind.UNKNOWN, summary(now))


def _of_findings(
    before: Iterable[Finding],
    now: OverlapReport,
    waiting: Iterable[Route],
    instead: str,
) -> Iterator[Event]:
    old = {_identity(finding): finding for finding in before}
    new = {_identity(finding): finding for finding in now.findings}
    to_apply = unapplied(now.fix)
    on_their_way = {route.destination for route in waiting}
    for key, finding in new.items():
        if key not in old or old[key].ranges != finding.ranges:
            yield _failure(finding, on_their_way, to_apply, instead)
    for key, finding in old.items():
        if key not in new:
            yield _failure_gone(finding)


def _failure(
    finding: Finding,
    on_their_way: Container[IpNetwork],
    to_apply: Sequence[str],
    instead: str,
) -> Event:
    fix = [
        json.dumps(entry.to_mapping())
        for entry in finding.fix
        if entry.destination not in on_their_way
    ]
    rules = [json.dumps(rule.to_mapping()) for rule in finding.rules]
    hint = "no route is proposed; hostrouting fix says why"
    if instead:
        hint = instead
    elif fix or rules or to_apply:
        hint = "; ".join([*to_apply, *_pastes(fix, rules)])
    elif finding.fix:
        hint = "over as soon as our route is back"
    route = [] if finding.route is None else [str(finding.route)]
    about = {
        "CIDR": [str(finding.cidr)],
        "ROUTE": route,
        "DEV": finding.devs,
        "FIX": [*fix, *rules],
    }
    return Event(EventKind.FAILURE, f"{finding.message}; {hint}", about)


def _pastes(routes: Sequence[str], rules: Sequence[str]) -> Iterator[str]:
    """Yield the entries to paste into each list of the config."""
    for key, entries in (("routes", routes), ("rules", rules)):
        if entries:
            yield f"{PASTE.format(key)} {shortened(entries, ', ', _NAMED_MAX)}"


def _failure_gone(finding: Finding) -> Event:
    about = {"CIDR": [str(finding.cidr)], "DEV": finding.devs}
    return Event(EventKind.FAILURE_GONE, f"no longer so: {finding.message}", about)


def _identity(finding: Finding) -> tuple[object, ...]:
    return (finding.kind, finding.cidr, finding.devs, finding.source)
