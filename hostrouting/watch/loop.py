"""Keep a host correct after boot: check, fix and report news whenever something changes, and once a minute.

The steps of a round are: repair (our routes) -> check (the CIDRs) -> write (markers, report, metrics) -> say
(differences from the last round). No step stops a running machine, and no error in a step ends the watcher.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs

from hostrouting.boot.files import remove_litter, write_if_changed
from hostrouting.boot.host import Host
from hostrouting.boot.layout import Layout
from hostrouting.boot.locks import locked
from hostrouting.boot.trial import is_overdue, put_back
from hostrouting.config.routing import Config
from hostrouting.kernel.managers import who_manages
from hostrouting.model.errors import FileError, HostRoutingError, RouteError
from hostrouting.overlap.check import check_overlap, load_all
from hostrouting.overlap.findings import OverlapReport, Verdict
from hostrouting.overlap.markers import write_markers
from hostrouting.overlap.metrics import gate_metrics
from hostrouting.watch._events import (
    HOW_TO_STOP,
    Event,
    EventKind,
    devs_of,
    of_failures,
    of_problems,
    of_routes,
    status,
)
from hostrouting.watch._repair import Reconciler, Repair
from hostrouting.watch.outputs import metrics_text
from phases import Cancelled, CancelScope, TimedOut

# Some losses of routes cause no event: a link that goes down, a nexthop object, or a daemon that removes an address.
# This is also the longest time between two messages to the unit's watchdog, a third of its WatchdogSec=.
LOOK_SECONDS = 60.0
# A burst is over after this long without a change. During an endless burst there are still checks, but at longer and
# longer intervals.
QUIET_SECONDS = 0.1
_BURST_SECONDS, _LONGEST_BURST_SECONDS = 1.0, 8.0
# This isn't zero because a scope that has ended isn't polled at all, and wouldn't report changes that have already
# happened.
_AT_ONCE_SECONDS = 0.001
# The longest time for which a change of a file is missed, because the kernel's events don't include files.
_FILES_SECONDS = 1.0
_PING = "WATCHDOG=1"


@attrs.frozen
class WatchHostRouting:
    """Keep the static routes and the verdict correct until the scope ends.

    Args:
        read: a function that returns the config; each round calls it, so that a new config takes effect at once.
        host: the host to watch.
        say: a function that receives each event, once.
        tell: a function that receives each message for systemd, sd_notify(3).
        files: the files whose changes are a reason to check, such as the manifest.
    """

    name = "watch"

    read: Callable[[], Config]
    host: Host
    say: Callable[[Event], None]
    tell: Callable[[str], None]
    files: tuple[Path, ...] = ()

    def do(self, scope: CancelScope) -> None:
        """Run the watcher; only the scope ends it.

        Raises:
            phases.Cancelled: the scope was cancelled.
            ConfigError, FileError: there is no readable config at the start, the lock can't be taken, or the markers
            belong to the host but the network namespace doesn't.
        """
        load_all()
        if _would_mark_another_network(self.host.layout):
            attempt = f"can't leave markers in {self.host.layout.run_dir}"
            raise FileError(
                f"{attempt}: it is the host's, and this is another network namespace",
                hint="to enter the host's: nsenter --target 1 --net",
            )
        seen = tuple(map(_state, self.files))
        watch = _Watch(self, scope, self.read(), seen=seen)
        watch.clear_up()
        # The first wait returns at once. From here on, no change is missed.
        watch.has_changed(QUIET_SECONDS)
        routes, cidrs = len(watch.config.static_routes.routes), len(watch.config.route_overlap.expected_cidrs)
        what = f"static routes to keep: {routes}; expected CIDRs to check: {cidrs}"
        self.say(Event(EventKind.STARTED, f"{what}; {HOW_TO_STOP}"))
        try:
            watch.look()
            self.tell("READY=1")
            while True:
                watch.await_reason()
                watch.look()
        except Cancelled as end:
            self.tell("STOPPING=1")
            self.say(Event(EventKind.STOPPED, f"stopped by {end.reason}; the routes stay as they are"))
            raise


@attrs.define
class _Watch:
    """A running watcher, with what it remembers between rounds.

    Args:
        task: the task, which says what to watch and where to report.
        scope: cancels the watcher.
        config: the last config that could be read.
        reconciler: the reconciler of our routes.
        report: the last check's report; if it couldn't judge anything, it has the failures that were known before.
        said: the problems of the last round.
        problems: the problems since the last round.
        counted: the number of rounds, and of repaired routes by their drift, for the metrics.
        seen: the state of the task's files when they were last checked.
        burst_seconds: how long a burst of changes may delay a round.
    """

    task: WatchHostRouting
    scope: CancelScope
    config: Config
    reconciler: Reconciler = attrs.field(factory=Reconciler)
    report: OverlapReport | None = None
    said: tuple[str, ...] = ()
    problems: list[str] = attrs.field(factory=list)
    counted: Counter[str] = attrs.field(factory=Counter)
    seen: tuple[tuple[int, ...] | None, ...] = ()
    burst_seconds: float = _BURST_SECONDS

    # --- a round ---------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Repair the routes, check, write the results, and report news."""
        host, tell = self.task.host, self.task.tell
        self._end_overdue_trial()
        done = self.reconciler.repair(self._reread, host, self.scope)
        tell(_PING)
        report = check_overlap(self.config, host.routes, self.scope)
        tell(_PING)
        self.counted.update({"looks": 1} | {str(drift): len(routes) for drift, routes in done.fixed.items()})
        for write in (self._write_markers, self._write_metrics):
            try:
                write(report, done)
            except FileError as error:
                self.problems.append(str(error))
        if report.verdict is Verdict.UNKNOWN and report.cidrs and self.report:
            report = attrs.evolve(report, findings=self.report.findings)
        problems = tuple(dict.fromkeys((*done.problems, *self.problems)))
        events = (
            *of_routes(done, self._managers(done)),
            *of_problems(self.said, problems),
            *of_failures(self.report, report, done.waiting),
        )
        for event in events:
            self.task.say(event)
        tell(f"STATUS={status(report, done, problems)}")
        self.report, self.said, self.problems = report, problems, []

    def _end_overdue_trial(self) -> None:
        try:
            if is_overdue(self.task.host.layout):
                put_back(self.task.host)
        except HostRoutingError as error:
            self.problems.append(f"can't end the trial of routes, which is over: {error}")

    def _reread(self) -> Config:
        try:
            self.config = self.task.read()
        except HostRoutingError as error:
            self.problems.append(f"uses the last config, because the new one can't be used: {error}")
        return self.config

    def _write_markers(self, report: OverlapReport, _: Repair) -> None:
        if report.cidrs:
            # Under the same lock, remove deletes the check and its markers, perhaps during this round.
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
        host, devs = self.task.host, {dev for routes in done.contested.values() for dev in devs_of(routes)}
        try:
            links = host.routes.links() if devs else ()
            root = host.layout.root
            return {link.name: who_manages(root, link.name, link.index) for link in links if link.name in devs}
        except HostRoutingError:  # then the manager stays unknown
            return {}

    def clear_up(self) -> None:
        """Remove the unfinished files that a killed watcher left behind."""
        layout = self.task.host.layout
        with locked(layout.lock, self.scope):
            for path in filter(None, (layout.marker_ok, layout.marker_detected, layout.report, self._textfile())):
                remove_litter(path)

    # --- when to check ---------------------------------------------------------------------------------------------

    def await_reason(self) -> None:
        """Wait for a change or the slow timer, and then for the end of a burst of changes."""
        self.task.tell(_PING)
        clock = self.scope.clock
        left = LOOK_SECONDS if self.reconciler.due is None else self.reconciler.due - clock.monotonic()
        is_changing = self.has_changed(max(QUIET_SECONDS, min(left, LOOK_SECONDS)))
        end = clock.monotonic() + self.burst_seconds
        while is_changing and clock.monotonic() < end:
            # Wait first, so that all changes during the wait count as one.
            self.scope.wait(QUIET_SECONDS)
            is_changing = self.has_changed(_AT_ONCE_SECONDS)
        self.burst_seconds = min(self.burst_seconds * 2, _LONGEST_BURST_SECONDS) if is_changing else _BURST_SECONDS

    def has_changed(self, seconds: float) -> bool:
        """Return whether anything changes within a time; if the kernel's events fail, only the files are watched."""
        clock = self.scope.clock
        end = clock.monotonic() + seconds
        while (left := end - clock.monotonic()) > 0:
            nap = self.scope.child(timeout=min(left, _FILES_SECONDS))
            try:
                self.task.host.routes.wait_for_change(nap)
            except TimedOut:
                self.scope.check()  # the end of the scope is an error, that of the short wait isn't
            except RouteError as error:
                self.problems.append(str(error))
                self.scope.wait(min(left, _FILES_SECONDS))
            else:
                return True
            seen, self.seen = self.seen, tuple(map(_state, self.task.files))
            if self.seen != seen:
                return True
        return False


def _state(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes when a file is replaced or written, or None if the file can't be read."""
    try:
        found = path.stat()
    except OSError:  # the value stays the same as long as the error lasts
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _would_mark_another_network(layout: Layout) -> bool:
    """Return whether PID 1 has the same files but another network namespace, or False if that can't be determined."""
    run = layout.run_dir.parent
    try:
        has_files = layout.root == Path("/") and Path(f"/proc/1/root{run}").samefile(run)
        return has_files and not Path("/proc/1/ns/net").samefile("/proc/thread-self/ns/net")
    except OSError:
        # This needs the permission to trace PID 1, which the unit doesn't have.
        return False
