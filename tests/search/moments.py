"""One moment of an update after another: what a start is answered there, and what is left in the end."""

from __future__ import annotations

import random
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

import attrs

from search.pairs import task_for
from search.starts import LoadedSystemd, Start, start
from search.updates import Ended, Update
from search.world import (
    LAYOUT,
    State,
    accept_routes,
    forget_boot,
    read_state,
    refuse_route,
    require_short_waits,
    restore,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from hostrouting import Host
    from phases import Task
    from search.pairs import Pair


class Kind(str, Enum):
    """What happens at a moment, beside a start."""

    FREEZE = "freeze"
    """The update stands still while the start is made, and then goes on to its end."""

    KILL = "kill"
    """The update is killed; after the start it is made again, whole."""

    BOOT = "boot"
    """The update is killed by a power cut: the start is one of the next boot, and the update is made again."""

    REFUSE = "refuse"
    """After the start the kernel refuses a route of B, so that the update takes itself back."""

    TAKE_BACK = "take back"
    """The same, and the update is killed later on, in the midst of taking itself back or wherever it is then."""


@attrs.frozen
class Counterexample:
    """A moment at which a start is answered wrongly, or that leaves something else behind than it should.

    Args:
        pair: the update.
        kind: what happened at the moment.
        number: of the step before which it happened.
        step: that step.
        complaint: what is wrong.
        words: what the update and the gate said.
    """

    pair: str
    kind: str
    number: int
    step: str
    complaint: str
    words: str

    def __str__(self) -> str:
        said = "".join(f"\n    {line}" for line in self.words.splitlines())
        return f"{self.pair}: {self.kind} before step {self.number} ({self.step}): {self.complaint}{said}"


@attrs.frozen
class Search:
    """The search in one update.

    Args:
        pair: the update.
        before: the state under A.
        after: the state under B, after an update that nothing disturbed.
        steps: of that update.
        outcome: of that update.
        seed: decides which moments are examined, and where a second one is.
    """

    pair: Pair
    before: State
    after: State
    steps: tuple[str, ...]
    outcome: str
    seed: int

    @classmethod
    def prepare(cls, pair: Pair, nothing: State, seed: int) -> Search:
        """Install A, then B, and note what that changes.

        Args:
            pair: the update.
            nothing: the state of a world where nothing is installed.
            seed: decides about all chance.
        """
        restore(nothing)
        if pair.before is not None:
            _run(partial(task_for, pair.before))
            if LAYOUT.gate_script.exists():
                require_short_waits()
        before = read_state()
        ended = _run(pair.task)
        return cls(pair, before, read_state(), ended.steps, ended.outcome, seed)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Return what can happen in this update."""
        refused = (Kind.REFUSE, Kind.TAKE_BACK) if self.pair.refused_destination is not None else ()
        return (Kind.FREEZE, Kind.KILL, Kind.BOOT, *refused)

    def chance(self, *words: object) -> random.Random:
        """Return what decides by chance, alike whatever else is searched."""
        return random.Random(" ".join(map(str, (self.seed, self.pair.name, *words))))

    def moments(self, kinds: Collection[str], most: int | None, turn: int) -> list[tuple[Kind, int]]:
        """Return the moments to examine: what happens, and before which step.

        Args:
            kinds: what may happen.
            most: how many are drawn by chance, the kinds by turns; None: all.
            turn: whose turn it is first.
        """
        numbers = range(1, len(self.steps) + 1)
        possible = [kind for kind in self.kinds if kind.value in kinds]
        if most is None or not possible or not numbers:
            return [(kind, number) for kind in possible for number in numbers]
        chance = self.chance()
        return [(possible[(turn + count) % len(possible)], chance.choice(numbers)) for count in range(most)]

    def examine(self, kind: Kind, number: int) -> Counterexample | None:
        """Go to a moment, and return what is wrong there; None if nothing is.

        Args:
            kind: what happens there.
            number: of the step before which it does, from 1.
        """
        restore(self.before)
        moment = _Moment(self, kind, number)
        with Update(self.pair.task, number) as update:
            state = update.wait()
            if isinstance(state, Ended):
                moment.complaints.append(f"it had only {len(state.steps)} steps this time: {state.outcome}")
            else:
                _HAPPENINGS[kind](moment, update)
        if not moment.complaints:
            return None
        complaint, words = "; ".join(moment.complaints), "\n".join(moment.words)
        return Counterexample(self.pair.name, kind.value, number, self.steps[number - 1], complaint, words)


@attrs.define
class _Moment:
    search: Search
    kind: Kind
    number: int
    is_refusing: bool = False
    complaints: list[str] = attrs.field(factory=list)
    words: list[str] = attrs.field(factory=list)

    def freeze(self, update: Update) -> None:
        self._start_in(update, update.go)
        update.go()
        self._see_end(update)

    def kill(self, update: Update) -> None:
        update.kill()
        self._judge_between(self._start_all())
        self._do_again()

    def boot(self, update: Update) -> None:
        update.kill()
        forget_boot()
        LoadedSystemd().reload()
        self._judge_between(self._start_all())
        self._do_again()

    def refuse(self, update: Update) -> None:
        self._start_in(update, partial(self._go_on_refused, update, 0))
        self._go_on_refused(update, 0)
        self._see_end(update)

    def take_back(self, update: Update) -> None:
        later = self.number + self.search.chance(self.number).randint(1, 2 * len(self.search.steps))
        self._start_in(update, partial(self._go_on_refused, update, later))
        self._go_on_refused(update, later)
        state = update.wait()
        if isinstance(state, Ended):
            self._see_end(update)
            return
        self.words.append(f"killed before step {later} ({state.step})")
        update.kill()
        accept_routes()
        self._judge_between(self._start_all())
        self._do_again()

    def _go_on_refused(self, update: Update, stop: int) -> None:
        destination = self.search.pair.refused_destination
        if update.is_standing and destination is not None:
            refuse_route(destination)
            self.is_refusing = True
            update.go(stop)

    def _start_in(self, update: Update, when_waiting: Callable[[], None]) -> None:
        """Start all units while the update stands still, but where a start waits for its lock."""
        admitted: dict[str, bool] = {}
        for unit in self.search.pair.starts:
            result = start(unit, when_waiting)
            self._note(unit, result)
            if update.is_standing:
                admitted[unit] = result.is_admitted
            elif result.is_admitted or not self.is_refusing:
                # Where the kernel refuses B, B may hold the node.
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
        """Have the update end, as one does that nothing disturbs or as one that the kernel refuses."""
        ended = update.wait()
        assert isinstance(ended, Ended)
        self.words.append(f"the update: {ended.outcome} {ended.words}")
        is_refused = self.is_refusing and ended.outcome == "RouteError"
        if not is_refused:
            accept_routes()
            # Routes that are in already meet the refusal as a shadow, which a STRICT check raises.
            expected = {self.search.outcome, *(["RouteOverlapError"] if self.is_refusing else [])}
            if ended.outcome not in expected:
                self.complaints.append(f"the update ended with {ended.outcome}, undisturbed with {self.search.outcome}")
        self._see_left(is_updated=not is_refused)
        self.complaints += self.search.pair.complaints_after(self._start_all(), is_updated=not is_refused)

    def _do_again(self) -> None:
        """Make the whole update, after one that was killed."""
        ended = _run(self.search.pair.task)
        if ended.outcome != self.search.outcome:
            self.words.append(ended.words)
            self.complaints.append(f"made again it ended with {ended.outcome}, undisturbed with {self.search.outcome}")
        self._see_left(is_updated=True)
        self.complaints += self.search.pair.complaints_after(self._start_all(), is_updated=True)

    def _see_left(self, *, is_updated: bool) -> None:
        wanted = self.search.after if is_updated else self.search.before
        if differences := wanted.differences(read_state()):
            self.complaints.append(f"it left other files or routes than an undisturbed one: {', '.join(differences)}")


_HAPPENINGS: Mapping[Kind, Callable[[_Moment, Update], None]] = {
    Kind.FREEZE: _Moment.freeze,
    Kind.KILL: _Moment.kill,
    Kind.BOOT: _Moment.boot,
    Kind.REFUSE: _Moment.refuse,
    Kind.TAKE_BACK: _Moment.take_back,
}


def _run(make: Callable[[Host], Task[object]]) -> Ended:
    """Make a whole update."""
    with Update(make) as update:
        ended = update.wait()
    assert isinstance(ended, Ended)
    return ended
