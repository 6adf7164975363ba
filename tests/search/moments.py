"""Check the gate's decision during an update, and the final state."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from enum import Enum
from functools import cached_property, partial

import attrs
from host_states import HostState

from hostrouting.boot.layout import ROUTES
from search.pairs import Make, Pair, task_for
from search.programs import (
    CRASHED,
    LOCKS,
    Ended,
    LoadedSystemd,
    Start,
    Update,
    Watched,
    is_waited_for,
    run_oneshot,
    start,
)
from search.tracing import Stopped
from search.world import LAYOUT, accept_routes, forget_boot, read_state, refuse_route, restore


class Kind(str, Enum):
    """The kind of disturbance injected during an update."""

    FREEZE = "freeze"
    """The update is paused during the start, and then continues to its end."""

    KILL = "kill"
    """The update is killed. After the start, the whole update is made again."""

    BOOT = "boot"
    """A power cut ends the update. The start is in the next boot, and the update is repeated."""

    REFUSE = "refuse"
    """After the start, the kernel refuses a route of B, so that the update rolls back."""

    TAKE_BACK = "take back"
    """The kernel refuses a route, and the update is killed later, such as during its rollback."""

    STOP = "stop"
    """A signal stops the update, which rolls back or completes."""

    UNDO = "undo"
    """A signal stops the update at a random step, and it is killed some steps later."""

    GATE = "gate"
    """The gate is paused before one of its calls during the whole update."""

    ONESHOT = "oneshot"
    """The oneshot that installs the routes is paused before one of its calls. There is no start."""

    BOTH = "both"
    """The update and the gate pause at random steps. Then the update continues or is killed."""


# How many random pairs of steps to try for ``Kind.BOTH``.
_BOTH_COUNT = 20
# They are sent to all processes of the update, as by a terminal or by systemd.
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# Timeout for an update during a start, because the update may block on the start's lock.
_PATIENCE_SECONDS = 1.0
_POLL_SECONDS = 0.01


@attrs.frozen(slots=False)  # for the cached properties
class Search:
    """Search for counterexamples in a single update.

    Args:
        pair: the update.
        before: the initial state, with config A.
        after: the final state of an undisturbed update, with config B.
        steps: the steps of an undisturbed update.
        outcome: the outcome of an undisturbed update. For a passing update, the outcome of the run
            that reverts it.
    """

    pair: Pair
    before: HostState
    after: HostState
    steps: tuple[str, ...]
    outcome: str

    @classmethod
    def prepare(cls, pair: Pair, nothing: HostState) -> Search:
        """Install A and then B, and return a search with the observed steps.

        Args:
            pair: the update.
            nothing: the state before anything is installed.
        """
        restore(nothing)
        outcome = "done"
        if pair.before is not None:
            outcome = _run(partial(task_for, pair.before)).outcome
        after = read_state()
        if pair.first is not None:
            _run(pair.first)
        before = read_state()
        ended = _run(pair.task)
        if pair.passing is None:
            after, outcome = read_state(), ended.outcome
        return cls(pair, before, after, ended.steps, outcome)

    @cached_property
    def calls(self) -> tuple[str, ...]:
        """Return the gate's system calls during a start with config A."""
        restore(self.before)
        watched = Watched()
        start(next(iter(self.pair.starts)), watched)
        return tuple(watched.calls)

    @cached_property
    def oneshot_calls(self) -> tuple[str, ...]:
        """Return the oneshot's system calls while it installs A's routes."""
        restore(self.before)
        watched = Watched()
        run_oneshot(LAYOUT.script(ROUTES), watched)
        return tuple(watched.calls)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of disturbance that apply to this update."""
        before = self.pair.before
        is_possible = dict.fromkeys(
            (Kind.REFUSE, Kind.TAKE_BACK), self.pair.refused_destination is not None
        )
        is_possible |= dict.fromkeys((Kind.GATE, Kind.BOTH), before is not None)
        is_possible[Kind.ONESHOT] = before is not None and bool(before.static_routes.routes)
        if self.pair.script:
            # proc_locks(5) doesn't show a lock whose flock(1) has ended, so no paused script is
            # resumed for a start.
            is_possible |= dict.fromkeys(
                (Kind.FREEZE, Kind.REFUSE, Kind.TAKE_BACK, Kind.BOTH), False
            )
        return tuple(kind for kind in Kind if is_possible.get(kind, True))

    def numbers(self, kind: Kind) -> range:
        """Return the step or call numbers at which the disturbance can be injected."""
        counts = {
            Kind.GATE: lambda: len(self.calls),
            Kind.ONESHOT: lambda: len(self.oneshot_calls),
            Kind.BOTH: lambda: _BOTH_COUNT,
        }
        return range(1, counts.get(kind, lambda: len(self.steps))() + 1)

    def chance(self, *words: object) -> random.Random:
        """Return a random number generator seeded for this search."""
        return random.Random(" ".join(map(str, (self.pair.name, *words))))

    def moments(
        self, kinds: Collection[str], most: int | None, turn: int, at: str
    ) -> list[tuple[Kind, int]]:
        """Return the disturbances to inject, each with the number of the step that it precedes.

        Args:
            kinds: the allowed disturbances.
            most: how many to choose at random, alternating between kinds, or None for all.
            turn: the index of the first kind.
            at: if all are asked for, a part of the steps that they precede.
        """
        possible = [kind for kind in self.kinds if kind.value in kinds and self.steps]
        if most is None or not possible:
            every = [(kind, number) for kind in possible for number in self.numbers(kind)]
            return [(kind, number) for kind, number in every if at in self._step(kind, number)]
        chance = self.chance()
        drawn = (possible[(turn + count) % len(possible)] for count in range(most))
        return [(kind, chance.choice(self.numbers(kind))) for kind in drawn]

    def examine(self, kind: Kind, number: int) -> str:
        """Inject a disturbance, and return what was wrong about the gate's decision or the final
        state, if anything.

        Args:
            kind: the disturbance.
            number: the number of the step that it precedes, starting at 1.
        """
        restore(self.before)
        moment = _Moment(self, kind, number)
        moment.pass_by()
        if not moment.complaints:
            return ""
        said = "".join(f"\n    {line}" for words in moment.words for line in words.splitlines())
        place = f"{kind.value} before step {number} ({self._step(kind, number)})"
        return f"{self.pair.name}: {place}: {'; '.join(moment.complaints)}{said}"

    def _step(self, kind: Kind, number: int) -> str:
        names = {Kind.GATE: self.calls, Kind.ONESHOT: self.oneshot_calls, Kind.BOTH: ()}.get(
            kind, self.steps
        )
        return names[number - 1] if names else "drawn by chance"


@attrs.define
class _Moment:
    search: Search
    kind: Kind
    number: int
    is_refusing: bool = False
    complaints: list[str] = attrs.field(factory=list)
    words: list[str] = attrs.field(factory=list)

    def pass_by(self) -> None:
        """Inject the disturbance, and judge the starts within it and after the update's end."""
        if self.kind in (Kind.GATE, Kind.ONESHOT):
            self._update_amidst()
            return
        chance, is_both = self.search.chance(self.kind.value, self.number), self.kind is Kind.BOTH
        is_random = self.kind in (Kind.BOTH, Kind.UNDO)
        step = chance.randint(1, len(self.search.steps)) if is_random else self.number
        with Update(self.search.pair.task, step) as update:
            if isinstance(state := update.wait(), Ended) and not is_both:
                # A step drawn by chance may come after the end of an update that finds something
                # done already.
                if not is_random:
                    self.complaints.append(
                        f"it had only {len(state.steps)} steps this time: {state.outcome}"
                    )
            elif is_both:
                self._meet(update, chance)
            elif self.kind in (Kind.KILL, Kind.BOOT):
                update.kill()
            elif self.kind in (Kind.STOP, Kind.UNDO):
                self._stop(update, step)
            else:
                taken_back = self.number + chance.randint(1, 2 * len(self.search.steps))
                stop = taken_back if self.kind is Kind.TAKE_BACK else 0
                go = (
                    update.go
                    if self.kind is Kind.FREEZE
                    else partial(self._go_on_refused, update, stop)
                )
                self._start_in(update, go)
                go()
                self._kill_if_paused(update, stop)
            if update.is_killed:
                self._see_killed()
            elif self.kind in (Kind.STOP, Kind.UNDO):
                self._see_stopped(update)
            else:
                update.go()
                self._see_end(update)

    def _stop(self, update: Update, step: int) -> None:
        """Send a signal to a paused update, and kill the update later if asked for."""
        # SIGQUIT kills Python, but bash ignores it.
        numbers = _STOPPING if self.search.pair.script else _STOPPING[:-1]
        sent = numbers[self.number % len(numbers)]
        self.words.append(f"{sent.name} before step {step}")
        update.send(sent)
        stop = step + self.number if self.kind is Kind.UNDO else 0
        update.go(stop)
        self._kill_if_paused(update, stop)

    def _kill_if_paused(self, update: Update, stop: int) -> None:
        if isinstance(state := update.wait(), Stopped):
            self.words.append(f"killed before step {stop} ({state.call})")
            update.kill()
            accept_routes()

    def _see_stopped(self, update: Update) -> None:
        """See that a stopped update has left config A, or B and what it would have removed."""
        ended = update.wait()
        assert isinstance(ended, Ended)
        self.words.append(f"the update: {ended.outcome} {ended.words}")
        if ended.outcome == CRASHED:
            self.complaints.append("the update ended with what no program expects")
        if self.search.pair.passing is not None:
            self._judge_between(self._start_all())
            self._do_again()
            return
        left = read_state()
        old, new = (state.differences(left) for state in (self.search.before, self.search.after))
        if not old or not new:
            self.complaints += self.search.pair.complaints_after(
                self._start_all(), is_updated=not new
            )
            return
        # Removals come last, and aren't undone. Until they are complete, the manifest names what is
        # left.
        lacking = [
            each for each in new if not each.startswith("/") or each in self.search.after.files
        ]
        if self.search.pair.after is not None and lacking not in ([], [str(LAYOUT.manifest)]):
            self.complaints.append(
                f"it left neither the old state ({', '.join(old)}) "
                f"nor the new one ({', '.join(new)})"
            )
        self._judge_between(self._start_all())
        self._do_again()

    def _see_killed(self) -> None:
        if self.kind is Kind.BOOT:
            forget_boot()
            LoadedSystemd().reload()
        if self.kind is not Kind.BOTH:
            self._judge_between(self._start_all())
        self._do_again()

    def _update_amidst(self) -> None:
        """Pause the gate or the oneshot, and make the update meanwhile."""
        with ExitStack() as stack:
            updates: list[Update] = []

            def update_now() -> None:
                """Start the update, and return once it has finished or is blocked on a lock."""
                updates.append(stack.enter_context(Update(self.search.pair.task)))
                end = time.monotonic() + _PATIENCE_SECONDS
                while updates[0].poll(_POLL_SECONDS) is None and time.monotonic() < end:
                    if is_waited_for(*LOCKS):
                        return

            watched = Watched(stop=self.number, when_stopped=update_now)
            if self.kind is Kind.GATE:
                self._start_first(watched)
            else:
                self.words.append(f"the oneshot: {run_oneshot(LAYOUT.script(ROUTES), watched)}")
            if not updates:
                update_now()
            self._see_end(updates[0])

    def _meet(self, update: Update, chance: random.Random) -> None:
        """Pause the gate, too, and then kill the update or let it continue."""
        call, is_killing = chance.randint(1, len(self.search.calls)), chance.random() < 0.5

        def meet() -> None:
            if is_killing and update.is_standing:
                update.kill()
            else:
                update.go()
                update.poll(_PATIENCE_SECONDS)

        self.words.append(f"the gate before call {call}{', update killed' if is_killing else ''}")
        self._start_first(Watched(update.go, call, meet))

    def _start_first(self, watched: Watched) -> None:
        unit = next(iter(self.search.pair.starts))
        result = start(unit, watched)
        self._note(unit, result)
        self._judge_between({unit: result.is_admitted})

    def _go_on_refused(self, update: Update, stop: int) -> None:
        destination = self.search.pair.refused_destination
        if update.is_standing and destination is not None:
            refuse_route(destination)
            self.is_refusing = True
            update.go(stop)

    def _start_in(self, update: Update, when_waiting: Callable[[], None]) -> None:
        """Start all units while the update is paused, resuming the update if a start blocks on its
        lock.
        """
        admitted: dict[str, bool] = {}
        for unit in self.search.pair.starts:
            result = start(unit, Watched(when_waiting))
            self._note(unit, result)
            if update.is_standing:
                admitted[unit] = result.is_admitted
            elif result.is_admitted or not self.is_refusing:
                # If the kernel rejects a route of B, a start under B may fail.
                self._judge_between({unit: result.is_admitted})
        self._judge_between(admitted)

    def _start_all(self) -> Mapping[str, bool]:
        results = {unit: start(unit) for unit in self.search.pair.starts}
        for unit, result in results.items():
            self._note(unit, result)
        return {unit: result.is_admitted for unit, result in results.items()}

    def _note(self, unit: str, result: Start) -> None:
        said = result.words.replace("\n", "\n  ")
        self.words.append(f"{unit}: {'admitted' if result.is_admitted else 'held'}\n  {said}")

    def _judge_between(self, admitted: Mapping[str, bool]) -> None:
        self.complaints += self.search.pair.complaints_between(admitted)

    def _see_end(self, update: Update) -> None:
        """Wait for the update to finish, and check its outcome and the final state."""
        ended = update.wait()
        assert isinstance(ended, Ended)
        self.words.append(f"the update: {ended.outcome} {ended.words}")
        if ended.outcome == CRASHED:
            self.complaints.append("the update ended with what no program expects")
        if self.search.pair.passing is not None:
            self._do_again()
            return
        is_refused = self.is_refusing and ended.outcome == "RouteError"
        if not is_refused:
            accept_routes()
            # If the route had already been added, ``refuse_route`` shadows it, and a STRICT check
            # raises an error.
            expected = {self.search.outcome, *(["RouteOverlapError"] if self.is_refusing else [])}
            if ended.outcome not in expected:
                self.complaints.append(
                    f"the update ended with {ended.outcome}, undisturbed with {self.search.outcome}"
                )
        self._see_left(is_updated=not is_refused)
        self.complaints += self.search.pair.complaints_after(
            self._start_all(), is_updated=not is_refused
        )

    def _do_again(self) -> None:
        """Repeat the whole update after a kill, or revert a passing update."""
        ended = _run(self.search.pair.again)
        if ended.outcome != self.search.outcome:
            self.words.append(ended.words)
            self.complaints.append(
                f"made again it ended with {ended.outcome}, undisturbed with {self.search.outcome}"
            )
        self._see_left(is_updated=True)
        self.complaints += self.search.pair.complaints_after(self._start_all(), is_updated=True)

    def _see_left(self, *, is_updated: bool) -> None:
        wanted = self.search.after if is_updated else self.search.before
        if differences := wanted.differences(read_state()):
            self.complaints.append(
                f"it left other files or routes than an undisturbed one: {', '.join(differences)}"
            )


def _run(make: Make) -> Ended:
    """Run an update to completion."""
    with Update(make) as update:
        ended = update.wait()
    assert isinstance(ended, Ended)
    return ended
