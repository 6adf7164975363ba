"""Pure: what a watcher says: the difference between two looks at a host, each thing once.

The IDs are for ``journalctl MESSAGE_ID=…`` and for catalogs; docs/watch.md lists them. They never change.
"""

from __future__ import annotations

import json
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

import attrs

from hostrouting.model.text import shortened
from hostrouting.overlap.findings import Verdict
from hostrouting.watch.backoff import Repair

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostrouting.config.routing import StaticRoute
    from hostrouting.model.routes import Route
    from hostrouting.overlap.findings import Finding, OverlapReport
    from hostrouting.watch.backoff import Losses

__all__ = ["HOW_TO_STOP", "Event", "EventKind", "Look", "Priority", "events_between", "status"]

HOW_TO_STOP = (
    "to stop us: systemctl stop hostrouting-watch (until the next boot), watch.enabled false in the config and "
    "hostrouting apply (for good), or hostrouting remove (takes the routes back too)"
)

_NAMED_MAX = 16


class Priority(IntEnum):
    """Of syslog(3)."""

    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6


class EventKind(Enum):
    """What happened; the value is its MESSAGE_ID, systemd.journal-fields(7)."""

    STARTED = "e2a306a572414048a3ac00778959a849"
    STOPPED = "60989b3ffcdf4e978baa60088daf2c71"
    ROUTES_RESTORED = "5740f8f446b541fea3da3363f1a23f78"
    ROUTES_FOLLOWED = "8fe29ddc8f394586a80ef55884b47709"
    ROUTES_REMOVED = "80b8ecdbb46d44aaabe749fe9f043eea"
    ROUTES_CONTESTED = "ce6bfcd20a6d4dfbaa8bda511dbd0fc0"
    TROUBLE = "5b572e3fcbc64c3d86bb706a1b9a9cb2"
    TROUBLE_OVER = "97ca8a7aed324d09a935f913def5e9ac"
    FAILURE = "ec20bc1a0b76424bb1cb7e6943227306"
    FAILURE_GONE = "c204cbaff63b4976aefcbcf618c3b87b"
    UNKNOWN = "f364f27ad5fa4d3681228bbf1bb472e0"
    ALL_WELL = "7ee4969741d14f46986de380c25d72c5"


@attrs.frozen
class Event:
    """Something to say.

    Args:
        kind: what happened.
        priority: how much it matters.
        message: one line for a person.
        cidr: the expected CIDR that it is about.
        routes: those that it is about, as ``ip route show`` prints them.
        devs: the interfaces that it is about.
        fix: ``staticRoutes`` entries that mend it.
    """

    kind: EventKind
    priority: Priority
    message: str
    cidr: str | None = None
    routes: tuple[str, ...] = ()
    devs: tuple[str, ...] = ()
    fix: tuple[StaticRoute, ...] = ()


@attrs.frozen
class Look:
    """What a watcher saw at one moment, and did.

    Args:
        report: of the check.
        repair: of our routes.
        managers: by the route, who manages its interface and which setting stops that one from taking the route.
        troubles: what else doesn't work, in words: a file that can't be written, a config that can't be read.
        failing: the failures; while nothing can be judged, those that were known before.
    """

    report: OverlapReport
    repair: Repair = attrs.field(factory=Repair)
    managers: dict[Route, str] = attrs.field(factory=dict)
    troubles: tuple[str, ...] = ()
    failing: tuple[Finding, ...] = attrs.field(
        default=attrs.Factory(lambda look: look.report.findings, takes_self=True), kw_only=True
    )

    def after(self, before: Look | None) -> Look:
        """This look, as the one that follows another."""
        if before is None or self.report.verdict is not Verdict.UNKNOWN:
            return self
        return attrs.evolve(self, failing=before.failing)

    @property
    def all_troubles(self) -> tuple[str, ...]:
        """With that of the routes."""
        return (*((self.repair.problem,) if self.repair.problem else ()), *self.troubles)


def events_between(before: Look | None, now: Look) -> tuple[Event, ...]:
    """What to say after a look.

    Args:
        before: the last one; None: this is the first, and all that is wrong is new.
        now: this one.

    Returns:
        The events: a failure, a trouble and an unknown verdict once as they come, and once as they go.
    """
    return (*_of_routes(now.repair, now.managers), *_of_troubles(before, now), *_of_failures(before, now))


def status(look: Look) -> str:
    """The verdict in one line, for ``systemctl status``."""
    report, repair = look.report, look.repair
    if report.verdict is Verdict.UNKNOWN:
        words = [f"couldn't judge: {report.reason}"]
    elif report.findings:
        words = [f"{report.verdict}: {report.findings[0].message}"]
        words += [f"and {len(report.findings) - 1} more"] if len(report.findings) > 1 else []
    elif report.cidrs:
        words = [f"ok: every expected CIDR leaves by {','.join(report.default_devs)}"]
    else:
        words = ["ok: no CIDRs are expected"]
    words.append(f"static routes in place: {len(repair.kept)}")
    words += [f"waiting, as somebody keeps removing them: {len(repair.waiting)}"] if repair.waiting else []
    words += map(_one_line, look.all_troubles[:1])
    return "; ".join(" ".join(word.split()) for word in words)


# --- routes --------------------------------------------------------------------------------------------------------


def _of_routes(repair: Repair, managers: dict[Route, str]) -> Iterator[Event]:
    contested = dict.fromkeys(repair.contested)
    if calm := [route for route in repair.restored if route not in contested]:
        yield _event(EventKind.ROUTES_RESTORED, Priority.WARNING, "put back, as it was lost", calm)
    if repair.followed:
        yield _event(EventKind.ROUTES_FOLLOWED, Priority.NOTICE, "changed with the default route", repair.followed)
    if repair.removed:
        yield _event(EventKind.ROUTES_REMOVED, Priority.NOTICE, "removed, as no config asks for it", repair.removed)
    # Who takes many at once takes them alike, and is told once.
    alike: dict[tuple[Losses, bool, str], list[Route]] = {}
    waiting = set(repair.waiting)
    for route in contested:
        losses = repair.backoff.of(route)
        assert losses is not None
        manager = managers.get(route, "who, the kernel does not tell")
        alike.setdefault((losses, route in waiting, manager), []).append(route)
    for (losses, is_waiting, manager), routes in alike.items():
        event = _event(EventKind.ROUTES_CONTESTED, Priority.ERROR, "", routes)
        those, them = ("this route", "it") if len(routes) == 1 else ("these routes", "them")
        yield attrs.evolve(
            event,
            message=(
                f"somebody keeps removing {_listed(routes)}: {losses.count} times lately; hostrouting keeps {those}, "
                "and "
                + (f"puts {them} back in {losses.wait_seconds:g} s" if is_waiting else f"has put {them} back again")
                + f"; {manager}; {HOW_TO_STOP}"
            ),
        )


def _event(kind: EventKind, priority: Priority, what: str, routes: Sequence[Route]) -> Event:
    devs = tuple(sorted({dev for route in routes for dev in route.devs}))
    return Event(kind, priority, f"{what}: {_listed(routes)}", routes=tuple(map(str, routes)), devs=devs)


def _listed(routes: Sequence[Route]) -> str:
    return shortened([str(route) for route in routes], ", ", _NAMED_MAX)


# --- troubles ------------------------------------------------------------------------------------------------------


def _of_troubles(before: Look | None, now: Look) -> Iterator[Event]:
    old = before.all_troubles if before else ()
    for trouble in now.all_troubles:
        if trouble not in old:
            yield Event(EventKind.TROUBLE, Priority.WARNING, _one_line(trouble))
    if old and not now.all_troubles:
        yield Event(EventKind.TROUBLE_OVER, Priority.NOTICE, f"no longer so: {_one_line(old[0])}")


def _one_line(trouble: str) -> str:
    """A trouble may have a line for each of thousands of routes."""
    return shortened(trouble.splitlines(), "; ", _NAMED_MAX)


# --- the check -----------------------------------------------------------------------------------------------------


def _of_failures(before: Look | None, now: Look) -> Iterator[Event]:
    report, last = now.report, before.report if before else None
    if report.verdict is Verdict.UNKNOWN:
        if last is None or last.reason != report.reason:
            yield Event(EventKind.UNKNOWN, Priority.WARNING, f"the check couldn't judge anything: {report.reason}")
        return
    old = {_identity(item): item for item in before.failing} if before else {}
    new = {_identity(item): item for item in now.failing}
    for key, finding in new.items():
        if key not in old or old[key].ranges != finding.ranges:
            yield _failure(finding, now.repair)
    for key, finding in old.items():
        if key not in new:
            message = f"no longer so: {finding.message}"
            yield Event(EventKind.FAILURE_GONE, Priority.NOTICE, message, cidr=str(finding.cidr), devs=finding.devs)
    if report.cidrs and not new and (last is None or last.verdict is not Verdict.OK):
        message = f"every expected CIDR leaves by {','.join(report.default_devs)}"
        yield Event(EventKind.ALL_WELL, Priority.INFO, message, devs=report.default_devs)


def _failure(finding: Finding, repair: Repair) -> Event:
    on_their_way = {route.destination for route in repair.waiting}
    fix = tuple(entry for entry in finding.fix if entry.destination not in on_their_way)
    entries = [json.dumps(entry.to_mapping()) for entry in fix]
    mend = "no route mends it; hostrouting fix says why"
    if finding.fix and not fix:
        mend = "over as soon as our route is back"
    if entries:
        mend = f"fix: add to hostRouting.staticRoutes.routes: {shortened(entries, ', ', _NAMED_MAX)}"
    return Event(
        EventKind.FAILURE,
        Priority.ERROR,
        f"{finding.message}; {mend}",
        cidr=str(finding.cidr),
        routes=() if finding.route is None else (str(finding.route),),
        devs=finding.devs,
        fix=fix,
    )


def _identity(finding: Finding) -> tuple[object, ...]:
    return (finding.kind, finding.cidr, finding.devs, finding.source)
