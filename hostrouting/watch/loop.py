"""After boot: whenever something changes, and now and then without a sign, look, mend, and say what is new.

The way of a look: repair (our routes) -> check (the CIDRs) -> write (markers, report, metrics) -> say (what differs
from the last look). Nothing in it stops a running machine, and nothing that goes wrong in it ends the watch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Never

import attrs

from hostrouting.boot.files import locked, remove_litter, write_if_changed
from hostrouting.model.errors import FileError, HostRoutingError, RouteError
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.markers import write_markers
from hostrouting.watch.backoff import Losses
from hostrouting.watch.events import HOW_TO_STOP, Event, EventKind, Look, Priority, events_between, status
from hostrouting.watch.managers import managers_of
from hostrouting.watch.metrics import Counters, metrics_text
from hostrouting.watch.repair import repair
from phases import Cancelled, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hostrouting.boot.host import Host
    from hostrouting.config.routing import Config
    from hostrouting.model.routes import Route
    from hostrouting.overlap.findings import OverlapReport
    from hostrouting.watch.backoff import Repair
    from hostrouting.watch.notify import Supervisor
    from phases import CancelScope

__all__ = ["WatchHostRouting"]

# Some losses of routes send no event: a link that goes down, a nexthop object, a daemon that removes an address.
LOOK_SECONDS = 60.0
# A burst is over when nothing has happened for so long; one that never ends is looked into now and then, ever rarer.
QUIET_SECONDS = 0.1
_BURST_SECONDS, _LONGEST_BURST_SECONDS = 1.0, 8.0


@attrs.frozen
class _State:
    """What a watcher knows from one look to the next."""

    config: Config
    look: Look | None = None
    counters: Counters = attrs.field(factory=Counters)
    writes: Losses | None = None
    """Looks one after the other that have changed routes: we may be answering ourselves."""
    troubles: tuple[str, ...] = ()


@attrs.define
class _LastGood:
    """A config as of the last time when it could be read."""

    read: Callable[[], Config]
    last: Config
    troubles: tuple[str, ...] = ()

    def reread(self) -> Config:
        try:
            self.last, self.troubles = self.read(), ()
        except HostRoutingError as error:
            self.troubles = (f"goes on with the last config, as the new one can't be used: {error}",)
        return self.last


@attrs.frozen
class WatchHostRouting:
    """Keep the static routes and the verdict true until the scope ends.

    Args:
        read: gives the config; asked at each look, so that a new one counts as soon as it is there.
        host: what to watch.
        say: gets each event, once.
        supervisor: hears that it has started, how things are, and that it is alive.
        now: the time of day, in seconds since the epoch.
    """

    name = "watch"

    read: Callable[[], Config]
    host: Host
    say: Callable[[Event], None]
    supervisor: Supervisor
    now: Callable[[], float] = attrs.field(default=time.time, kw_only=True, repr=False)

    def do(self, scope: CancelScope) -> None:
        """Do it; only the scope ends it.

        Raises:
            phases.Cancelled: it was ended.
            ConfigError, FileError: at the start there is no readable config, or the lock can't be taken.
        """
        state = _State(self.read())
        self._clear_up(state.config, scope)
        # The first wait returns at once: whatever changes from here on is seen.
        state = self._listen_first(state, scope)
        self.say(_started(state.config))
        try:
            self._go_on(state, scope)
        except Cancelled as end:
            self.supervisor.stopping()
            self.say(Event(EventKind.STOPPED, Priority.INFO, f"stopped by {end.reason}; the routes stay as they are"))
            raise

    def _go_on(self, state: _State, scope: CancelScope) -> Never:
        longest = _BURST_SECONDS
        while True:
            is_first = state.look is None
            state = self._look(state, scope)
            if is_first:
                self.supervisor.ready()
            if state.writes is not None:
                scope.wait(min(state.writes.wait_seconds, LOOK_SECONDS))
            state, longest = self._await_reason(state, longest, scope)

    # --- a look ----------------------------------------------------------------------------------------------------

    def _look(self, state: _State, scope: CancelScope) -> _State:
        before, config = state.look, _LastGood(self.read, state.config)
        repaired = repair(config.reread, self.host, scope, before.repair if before else None)
        self.supervisor.ping()
        report = check_overlap(config.last.without_waits(), self.host.routes, scope, now=self.now)
        self.supervisor.ping()
        counters = state.counters.after(repaired)
        troubles = [*state.troubles, *config.troubles, *self._write(config, report, repaired, counters, scope)]
        look = Look(report, repaired, self._managers(repaired), tuple(troubles)).after(before)
        for event in events_between(before, look):
            self.say(event)
        self.supervisor.status(status(look))
        writes = None
        if repaired.restored or repaired.followed or repaired.removed:
            writes = Losses(state.writes.count + 1 if state.writes else 1, scope.clock.monotonic())
        return _State(config.last, look, counters, writes)

    def _write(
        self, config: _LastGood, report: OverlapReport, repaired: Repair, counters: Counters, scope: CancelScope
    ) -> list[str]:
        troubles = []
        try:
            if report.cidrs:
                # Under the lock in which the check is taken back, with its markers, while we look.
                with locked(self.host.layout.lock, scope):
                    if config.reread().route_overlap.expected_cidrs:
                        write_markers(self.host.layout, report)
        except FileError as error:
            troubles.append(str(error))
        try:
            if (path := self._textfile(config.last)) is not None:
                write_if_changed(path, metrics_text(report, repaired, counters, self.now()))
        except FileError as error:
            troubles.append(str(error))
        return troubles

    def _textfile(self, config: Config) -> Path | None:
        name = config.watch.textfile
        return None if name is None else self.host.layout.root / name.lstrip("/")

    def _managers(self, repaired: Repair) -> dict[Route, str]:
        routes = repaired.contested
        if not routes:
            return {}
        try:
            return managers_of(routes, self.host.routes.links(), self.host.layout)
        except RouteError:
            return {}

    def _clear_up(self, config: Config, scope: CancelScope) -> None:
        """Remove what a watcher that was killed has left half-written."""
        layout = self.host.layout
        paths = [layout.marker_ok, layout.marker_detected, layout.report, self._textfile(config)]
        with locked(layout.lock, scope):
            for path in paths:
                if path is not None:
                    remove_litter(path)

    # --- when to look ----------------------------------------------------------------------------------------------

    def _listen_first(self, state: _State, scope: CancelScope) -> _State:
        try:
            self._has_changed(scope, QUIET_SECONDS)
        except RouteError as error:
            return attrs.evolve(state, troubles=(str(error),))
        return state

    def _await_reason(self, state: _State, longest: float, scope: CancelScope) -> tuple[_State, float]:
        """Wait for a change or the slow timer, and for the end of a burst of changes.

        Args:
            state: after the last look.
            longest: how long a burst keeps us from looking.
            scope: ends it.

        Returns:
            The state, and how long the next burst may do so.
        """
        assert state.look is not None
        clock = scope.clock
        due = state.look.repair.next_due(clock.monotonic())
        end = clock.monotonic() + (LOOK_SECONDS if due is None else max(QUIET_SECONDS, min(due, LOOK_SECONDS)))
        try:
            while (left := end - clock.monotonic()) > 0:
                self.supervisor.ping()
                if self._has_changed(scope, min(left, self.supervisor.ping_seconds)):
                    return state, self._await_quiet(longest, scope)
        except RouteError as error:
            # Deaf, but not blind: the slow timer goes on.
            scope.wait(min(LOOK_SECONDS, self.supervisor.ping_seconds))
            return attrs.evolve(state, troubles=(str(error),)), longest
        return state, _BURST_SECONDS

    def _await_quiet(self, longest: float, scope: CancelScope) -> float:
        end = scope.clock.monotonic() + longest
        while scope.clock.monotonic() < end:
            # A nap first, so that what comes meanwhile is one change.
            scope.wait(QUIET_SECONDS)
            if not self._has_changed(scope, _AT_ONCE_SECONDS):
                return _BURST_SECONDS
        return min(longest * 2, _LONGEST_BURST_SECONDS)

    def _has_changed(self, scope: CancelScope, seconds: float) -> bool:
        """Whether anything changes within a time."""
        nap = scope.child(timeout=seconds)
        try:
            self.host.routes.wait_for_change(nap)
        except TimedOut:
            scope.check()  # the nap's end is no news; the scope's own is
            return False
        return True


# A scope that has ended isn't looked into: no time at all wouldn't tell of what is there already.
_AT_ONCE_SECONDS = 0.001


def _started(config: Config) -> Event:
    routes, cidrs = len(config.static_routes.routes), len(config.route_overlap.expected_cidrs)
    message = f"static routes to keep: {routes}; expected CIDRs to check: {cidrs}; {HOW_TO_STOP}"
    return Event(EventKind.STARTED, Priority.INFO, message)
