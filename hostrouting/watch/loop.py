"""Keep a host correct after boot: repair, check and report at each change, and once a minute.

Each round has four steps. It repairs our routes, checks the CIDRs, writes the markers, the report
and the metrics, and reports what has changed since the last round. No step stops a running machine,
and an error in a step never terminates the watcher.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import attrs

from hostrouting.boot.files import remove_litter, write_if_changed
from hostrouting.boot.host import Host
from hostrouting.boot.locks import locked
from hostrouting.boot.trial_timer import end_trial, is_overdue
from hostrouting.config.routing import Config
from hostrouting.host_files.managers import who_manages
from hostrouting.kernel.port import ChangeListener
from hostrouting.model.changes import Replacement
from hostrouting.model.errors import FileError, HostRoutingError, RouteError
from hostrouting.model.family import Family
from hostrouting.model.values import frozen
from hostrouting.overlap.check import checked_host, load_all
from hostrouting.overlap.findings import OverlapReport, Verdict
from hostrouting.overlap.markers import write_markers
from hostrouting.overlap.unapplied import with_unapplied
from hostrouting.watch._events import (
    HOW_TO_STOP,
    Event,
    EventKind,
    of_failures,
    of_moves,
    of_problems,
    of_routes,
    of_rules,
    of_uplinks,
    status,
)
from hostrouting.watch._repair import Reconciler, Repair
from hostrouting.watch._snapshots import LastSnapshots
from hostrouting.watch.metrics import gate_metrics
from hostrouting.watch.outputs import metrics_text
from phases import Cancelled, CancelScope, TimedOut

# The longest time between two rounds. Routes can get lost without a netlink event. For example, a
# link goes down, or a program removes a nexthop object or an address. Each round pings systemd's
# watchdog, so the time is a third of the unit's WatchdogSec=.
LOOK_SECONDS = 60.0
# A burst of changes ends with a pause of this length.
QUIET_SECONDS = 0.1
# During a burst, a round waits at most this long. The time doubles with each round of the burst.
_BURST_SECONDS = 1.0
_LONGEST_BURST_SECONDS = 8.0
# A timeout with which has_changed only sees changes that have already happened. With 0 seconds,
# has_changed would return without looking.
_AT_ONCE_SECONDS = 0.001
# The interval at which files are polled. Netlink events don't cover files.
_FILES_SECONDS = 1.0
_PING = "WATCHDOG=1"


@frozen
class WatchHostRouting:
    """Keep the static routes and the verdict up to date until the scope ends.

    Args:
        read: a function that returns the config. Each round calls the function, so a new config
            takes effect immediately.
        host: the host to watch.
        say: a callback for events; each event is reported once.
        tell: a callback for messages to systemd (see sd_notify(3)).
        files: files that trigger a check when they change, such as the manifest.
    """

    name = "watch"

    read: Callable[[], Config]
    host: Host
    say: Callable[[Event], None]
    tell: Callable[[str], None]
    files: tuple[Path, ...] = ()

    def do(self, scope: CancelScope) -> None:
        """Run the watcher until the scope ends.

        Raises:
            phases.Cancelled: the scope was cancelled.
            ConfigError: the config is invalid at startup.
            FileError: the config can't be read at startup, the lock can't be acquired, or the
                watcher shares the host's files but not its network namespace.
        """
        load_all()
        self.host.refuse_another_network(f"can't leave markers in {self.host.layout.run_dir}")
        seen = tuple(map(_state, self.files))
        watch = _Watch(self, scope, self.read(), seen=seen)
        watch.clear_up()
        with watch.changes:
            self._do(watch)

    def _do(self, watch: _Watch) -> None:
        # The first wait subscribes to changes and returns immediately. From here on, the watcher
        # misses no change.
        watch.has_changed(QUIET_SECONDS)
        static = watch.config.static_routes
        routes = len(static.routes)
        cidrs = len(watch.config.route_overlap.expected_cidrs)
        what = f"static routes to keep: {routes}; expected CIDRs to check: {cidrs}"
        if static.rules or static.keep:
            kept = ", ".join(entry.dev for entry in static.keep) or "none"
            what += f"; rules: {len(static.rules)}; kept interfaces: {kept}"
        self.say(Event(EventKind.STARTED, f"{what}; {HOW_TO_STOP}"))
        try:
            watch.look()
            self.tell("READY=1")
            while True:
                watch.keep_snapshot()
                watch.await_reason()
                watch.look()
        except Cancelled as end:
            self.tell("STOPPING=1")
            message = f"stopped by {end.reason}; the routes stay as they are"
            self.say(Event(EventKind.STOPPED, message))
            raise


@attrs.define
class _Subscription:
    """A listener for changes of the host. It is replaced when the config's families change."""

    host: Host
    _family: Family | None = attrs.field(default=None, init=False)
    _stack: ExitStack = attrs.field(factory=ExitStack, init=False)
    _listener: ChangeListener | None = attrs.field(default=None, init=False)

    def wait(self, family: Family, scope: CancelScope) -> None:
        """Wait for a change that a family's backend reports; the first wait returns immediately."""
        if self._listener is not None and family is self._family:
            self._listener.wait(scope)
            return
        self._stack.close()
        self._listener = None
        self._listener = self._stack.enter_context(self.host.routes_of(family).changes())
        self._family = family

    def __enter__(self) -> None:
        self._stack.__enter__()

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@attrs.define
class _Watch:
    """A running watcher and its state.

    Args:
        task: the task to run.
        scope: cancels the watcher.
        config: the last valid config.
        reconciler: the reconciler that restores our routes.
        snapshots: the snapshots for ``diff``.
        report: the last check's report. If its verdict is unknown, it has the findings of the last
            report with a verdict.
        said: the problems reported in the last round.
        unmoved: the routes that didn't follow the default route in the last round.
        problems: problems collected since the last round.
        counted: counters for the metrics: rounds, and repaired routes by kind of drift.
        changes: the subscription to changes of the kernel.
        seen: the last known state of the task's files.
        burst_seconds: maximum delay of a round during a burst of changes.
    """

    task: WatchHostRouting
    scope: CancelScope
    config: Config
    reconciler: Reconciler = attrs.field(factory=Reconciler)
    snapshots: LastSnapshots = attrs.field(
        default=attrs.Factory(lambda self: LastSnapshots(self.task.host), takes_self=True)
    )
    changes: _Subscription = attrs.field(
        default=attrs.Factory(lambda self: _Subscription(self.task.host), takes_self=True)
    )
    report: OverlapReport | None = None
    said: tuple[str, ...] = ()
    unmoved: tuple[Replacement, ...] = ()
    problems: list[str] = attrs.field(factory=list)
    counted: Counter[str] = attrs.field(factory=Counter)
    seen: tuple[tuple[int, ...] | None, ...] = ()
    burst_seconds: float = _BURST_SECONDS

    # --- a round ----------------------------------------------------------------------------------

    def look(self) -> None:
        """Run one round: repair, check, write and report."""
        host = self.task.host
        tell = self.task.tell
        self._end_overdue_trial()
        done = self.reconciler.repair(self._reread_all, host, self.scope)
        tell(_PING)
        checked = checked_host(self.config, host, self.scope)
        tell(_PING)
        if done.waiting:  # the watcher itself restores waiting routes
            report = checked.with_fix()
        else:
            report = with_unapplied(checked, self.config, host, self.scope)
        tell(_PING)
        self._count(done)
        for write in (self._write_markers, self._write_metrics):
            try:
                write(report, done)
            except FileError as error:
                self.problems.append(error.clause)
        # Without a verdict, keep the last findings: the next round compares its own with them.
        if report.verdict is Verdict.UNKNOWN and report.cidrs and self.report:
            report = attrs.evolve(
                report,
                findings=self.report.findings,
                notes=(*report.notes, *self.report.notes),
            )
        of_snapshots = [self.snapshots.problem] if self.snapshots.problem else []
        problems = tuple(dict.fromkeys((*done.problems, *self.problems, *of_snapshots)))
        events = (
            *of_routes(done, self._managers(done)),
            *of_rules(done.policy),
            *of_moves(self.unmoved, done.unmoved),
            *of_uplinks(self.report, report),
            *of_problems(self.said, problems),
            *of_failures(self.report, report, done.waiting, is_on_trial=done.is_on_trial),
        )
        for event in events:
            self.task.say(event)
        tell(f"STATUS={status(report, done, problems)}")
        self.report = report
        self.said = problems
        self.unmoved = done.unmoved
        self.problems = []

    def _count(self, done: Repair) -> None:
        """Add a round and its repairs to the counters for the metrics."""
        self.counted["looks"] += 1
        for drift, routes in done.repaired.items():
            self.counted[str(drift)] += len(routes)
        if done.policy is not None:
            changes = done.policy.changes
            self.counted["rules"] += len(changes.rules) + len(changes.routes)

    def keep_snapshot(self) -> None:
        """Keep a snapshot for ``diff`` if one is due.

        The caller takes the snapshot after the round, so that no verdict has to wait for it.
        """
        if self.report is not None and self.report.cidrs:
            self.snapshots.keep(self.report.verdict, self.scope)
            self.task.tell(_PING)

    def _end_overdue_trial(self) -> None:
        try:
            if is_overdue(self.task.host.layout):
                end_trial(self.task.host)
        except HostRoutingError as error:
            self.problems.append(f"can't end the trial of routes, which is over: {error.clause}")

    def _reread(self) -> Config:
        try:
            self.config = self.task.read()
        except HostRoutingError as error:
            self.problems.append(
                f"uses the last config, because the new one can't be used: {error.clause}"
            )
        return self.config

    def _reread_all(self) -> Config:
        """Return the config with the verified uplinks.

        Raises:
            FileError: the record of the uplinks can't be read, so no route may be changed.
        """
        return self.task.host.with_verified(self._reread())

    def _write_markers(self, report: OverlapReport, _: Repair) -> None:
        if report.cidrs:
            # During this round, `hostrouting remove` may have deleted the check and its markers.
            # That command takes this lock, too. So read the config again: if it no longer expects
            # CIDRs, write no markers.
            with locked(self.task.host.layout.lock, self.scope):
                if self._reread().route_overlap.expected_cidrs:
                    write_markers(self.task.host.layout, report)

    def _write_metrics(self, report: OverlapReport, done: Repair) -> None:
        if (path := self._textfile()) is not None:
            gate = gate_metrics(self.task.host.layout, report.mode)
            write_if_changed(path, metrics_text(gate, report, done, self.counted, time.time()))

    def _textfile(self) -> Path | None:
        name = self.config.watch.textfile
        return None if name is None else self.task.host.layout.of(name)

    def _managers(self, done: Repair) -> dict[str, str]:
        if not done.lost_again:
            return {}
        try:
            links = self.task.host.routes.facts().links
            root = self.task.host.layout.root
            return {link.name: who_manages(root, link.name, link.index) for link in links}
        except HostRoutingError:  # the event then names no network manager
            return {}

    def clear_up(self) -> None:
        """Remove temporary files left behind by a killed watcher."""
        layout = self.task.host.layout
        with locked(layout.lock, self.scope):
            for path in filter(None, (*layout.markers, *layout.snapshots, self._textfile())):
                remove_litter(path)

    # --- when to check ----------------------------------------------------------------------------

    def await_reason(self) -> None:
        """Wait for a change or the next periodic check, then for the end of the burst."""
        self.task.tell(_PING)
        clock = self.scope.clock
        left = (
            LOOK_SECONDS if self.reconciler.due is None else self.reconciler.due - clock.monotonic()
        )
        is_changing = self.has_changed(max(QUIET_SECONDS, min(left, LOOK_SECONDS)))
        end = clock.monotonic() + self.burst_seconds
        while is_changing and clock.monotonic() < end:
            # Wait first, so that all changes until then cause only one round.
            self.scope.wait(QUIET_SECONDS)
            is_changing = self.has_changed(_AT_ONCE_SECONDS)
        self.burst_seconds = (
            min(self.burst_seconds * 2, _LONGEST_BURST_SECONDS) if is_changing else _BURST_SECONDS
        )

    @property
    def _family(self) -> Family:
        """Return the family to watch. The IPv6 backend also reports IPv4 changes."""
        families = (*self.config.static_routes.families, *self.config.route_overlap.families)
        return Family.IPV6 if Family.IPV6 in families else Family.IPV4

    def has_changed(self, seconds: float) -> bool:
        """Return whether anything changes before the timeout.

        If the netlink socket fails, only the files are watched.
        """
        clock = self.scope.clock
        end = clock.monotonic() + seconds
        while (left := end - clock.monotonic()) > 0:
            nap = self.scope.child(timeout=min(left, _FILES_SECONDS))
            try:
                self.changes.wait(self._family, nap)
            except TimedOut:
                # ``nap`` also times out when the watcher's own scope ends. Only then, ``check``
                # raises an error.
                self.scope.check()
            except RouteError as error:
                self.problems.append(error.clause)
                self.scope.wait(min(left, _FILES_SECONDS))
            else:
                return True
            seen, self.seen = self.seen, tuple(map(_state, self.task.files))
            if self.seen != seen:
                return True
        return False


def _state(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes whenever the file changes; None if stat(2) fails."""
    try:
        found = path.stat()
    except OSError:  # the value stays the same as long as the error lasts
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
