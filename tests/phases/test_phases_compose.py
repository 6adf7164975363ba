from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING

import attrs
import pytest
from nightly import by_day
from recording_tasks import Blocking, Raising, Returning

from phases import (
    Cancelled,
    CancelScope,
    Parallel,
    Serial,
    Status,
    Task,
    TimedOut,
    Timeout,
    path_of,
    run,
    run_child,
    task,
)
from phases.testing import FakeClock, RecordingObserver

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup

if TYPE_CHECKING:
    from collections.abc import Callable


@attrs.frozen(eq=False)
class After:
    """A task that waits for an event and then runs another task, even if its scope has ended."""

    event: threading.Event
    task: Task[object]

    @property
    def name(self) -> str:
        return self.task.name

    def do(self, scope: CancelScope) -> object:
        assert self.event.wait(30)
        return self.task.do(scope)


def cancelling(name: str, cancel: Callable[[], object]) -> Task[None]:
    @task(name)
    def do(scope: CancelScope) -> None:
        cancel()

    return do


# Serial


def test_serial_stops_at_the_first_failure_and_raises_it() -> None:
    calls: list[str] = []
    error = ValueError("no")
    with pytest.raises(ValueError, match="no") as caught:
        run(Serial(Returning("a", 1, calls=calls), Raising("b", error), Returning("c", 3, calls=calls)))
    assert caught.value is error
    assert error.__notes__ == ["in task serial/b"]
    assert calls == ["serial/a"]


def test_serial_looks_at_the_scope_between_tasks() -> None:
    scope = CancelScope()
    calls: list[str] = []
    with pytest.raises(Cancelled, match="enough"):
        run(
            Serial(cancelling("a", lambda: scope.cancel("enough")), Returning("b", 2, calls=calls)),
            scope=scope,
        )
    assert calls == []


def test_a_late_cancel_ends_a_serial() -> None:
    """The last task doesn't check its scope, but ``Serial`` raises the exception with the path of that task."""
    scope = CancelScope()
    with pytest.raises(Cancelled, match="late") as caught:
        run(Serial(cancelling("a", lambda: scope.cancel("late"))), scope=scope)
    assert path_of(caught.value) == "serial/a"


def test_results_come_in_the_order_of_the_tasks() -> None:
    assert run(Serial()) == run(Parallel()) == ()
    assert Serial(Returning("a", 1)).do(CancelScope()) == (1,)
    first, second = threading.Event(), threading.Event()
    tasks = (After(first, Returning("a", 1)), After(second, cancelling("b", first.set)), cancelling("c", second.set))
    assert run(Parallel(*tasks)) == (1, None, None)


def test_a_task_may_occur_twice_in_a_tree() -> None:
    again = Returning("again", 7)
    own = Configure((again, again))
    tree = Serial(again, Parallel(again, Serial(again), Timeout(60, again)), own, name="tree")
    assert run(tree) == (7, (7, (7,), 7), (7, 7))
    assert sorted(again.calls) == [
        *("tree/again", "tree/configure/again", "tree/configure/again", "tree/parallel/again"),
        *("tree/parallel/serial/again", "tree/parallel/timeout/again"),
    ]


def test_a_deep_tree_runs_and_is_described() -> None:
    tree: Task[object] = Returning("leaf", "deep")
    for _ in range(100):
        tree = Timeout(60, Serial(tree))
    result = run(tree)
    for _ in range(100):
        assert isinstance(result, tuple)
        (result,) = result
    assert result == "deep"
    assert len(repr(tree).splitlines()) == 201


# Parallel


def test_parallel_runs_all_tasks_at_once() -> None:
    barrier = threading.Barrier(5)

    @task("meet")
    def meet(scope: CancelScope) -> None:
        barrier.wait(30)

    run(Parallel(*[meet] * 5))


def test_the_first_failure_cancels_the_others_without_failing_them() -> None:
    """Tasks that are nested in the others don't fail either."""
    blocking = [Blocking(f"b{number}") for number in range(3)]
    failing: Task[object] = Raising("fail", ValueError("no"))
    for each in blocking:
        failing = After(each.started, failing)
    with pytest.raises(ExceptionGroup) as caught:
        run(Parallel(blocking[0], Parallel(*blocking[1:]), failing, Returning("c", 3)))
    assert [str(error) for error in caught.value.exceptions] == ["no"]
    assert str(caught.value) == "1 of the parallel tasks failed (1 sub-exception)"


def test_every_failure_is_kept_in_task_order_with_its_path() -> None:
    first = threading.Event()

    @task("fails-in-rollback")
    def fails_in_rollback(scope: CancelScope) -> None:
        first.set()
        try:
            scope.wait(1000)
        finally:
            raise OSError("rollback failed")

    with pytest.raises(ExceptionGroup) as caught:
        run(Parallel(fails_in_rollback, After(first, Raising("z", KeyError("k"))), name="both"))
    rollback, key = caught.value.exceptions
    assert isinstance(rollback, OSError)
    assert isinstance(key, KeyError)
    assert rollback.__notes__ == ["in task both/fails-in-rollback"]
    assert key.__notes__ == ["in task both/z"]
    assert caught.value.__notes__ == ["in task both"]


def test_failures_during_an_outer_cancel_become_notes() -> None:
    scope = CancelScope()
    started = threading.Event()

    @task("stumble")
    def stumble(scope: CancelScope) -> None:
        started.set()
        try:
            scope.wait(1000)
        except Cancelled:
            raise OSError("rollback failed") from None

    with pytest.raises(Cancelled, match="SIGTERM") as caught:
        run(Parallel(stumble, After(started, cancelling("c", lambda: scope.cancel("SIGTERM")))), scope=scope)
    # If the cancelling task has already returned when the other task is cancelled, there is an additional note.
    notes = caught.value.__notes__
    assert "besides: OSError: rollback failed (in task parallel/stumble)" in notes, notes
    assert "in task parallel" in notes, notes


@pytest.mark.parametrize("error", [KeyboardInterrupt("k"), SystemExit(3), Cancelled("of its own")])
def test_a_base_exception_cancels_the_others(error: BaseException) -> None:
    blocking = Blocking("blocking")
    with pytest.raises(type(error)) as caught:
        run(Parallel(blocking, After(blocking.started, Raising("raise", error))))
    assert caught.value is error
    assert error.__notes__ == ["in task parallel/raise"]


def test_failures_during_an_interrupt_are_its_notes() -> None:
    started = threading.Event()

    @task("fail")
    def fail(scope: CancelScope) -> None:
        started.set()
        try:
            scope.wait(1000)
        finally:
            raise ValueError("no")

    with pytest.raises(SystemExit) as caught:
        run(Parallel(fail, After(started, Raising("leave", SystemExit(3)))))
    assert "besides: ValueError: no (in task parallel/fail)" in caught.value.__notes__


@pytest.mark.parametrize("_round", range(by_day(2, by_night=10)))
@pytest.mark.parametrize("at", ["start", "work"])
def test_a_raising_signal_handler_leaves_no_task_running(at: str, _round: int) -> None:
    begun: list[str] = []
    ended: list[str] = []
    other = threading.Event()

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    @task("send")
    def send(scope: CancelScope) -> None:
        begun.append("send")
        if at == "work":
            assert other.wait(30)
        os.kill(os.getpid(), signal.SIGUSR1)
        ended.append("send")

    @task("work")
    def work(scope: CancelScope) -> None:
        begun.append("work")
        other.set()
        try:
            scope.wait(1000)
        finally:
            with scope.shield() as inner:
                inner.wait(0.05)
            ended.append("work")

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(Parallel(send, work))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sorted(ended) == sorted(begun)
    assert at == "start" or len(ended) == 2


def test_a_late_cancel_ends_a_parallel() -> None:
    """``Parallel`` raises the exception although every task has returned. A task can also cancel the shared scope."""
    scope = CancelScope()
    with pytest.raises(Cancelled, match="late"):
        run(Parallel(Returning("a", 1), cancelling("b", lambda: scope.cancel("late"))), scope=scope)

    @task("give-up")
    def give_up(scope: CancelScope) -> None:
        scope.cancel("gave up")

    with pytest.raises(Cancelled, match="gave up"):
        run(Parallel(give_up, Blocking("blocking")))


def test_a_sibling_that_returns_late_is_not_a_failure() -> None:
    """The observer sees that the late task was cancelled, and only the failure of its sibling is raised."""
    observer = RecordingObserver()

    @task("late")
    def late(scope: CancelScope) -> None:
        with pytest.raises(Cancelled):
            scope.wait(1000)

    with pytest.raises(ExceptionGroup) as caught:
        run(Parallel(late, Raising("fail", ValueError("no"))), observer=observer)
    assert [type(error) for error in caught.value.exceptions] == [ValueError]
    assert ("finished", "parallel/late", Status.CANCELLED) in observer.events


def test_threads_end_with_their_tasks() -> None:
    run(Parallel(*(Returning(f"t{number}", number) for number in range(20)), name="many"))
    with pytest.raises(ExceptionGroup):
        run(Parallel(Blocking("b"), Raising("r", ValueError("no")), name="many"))
    end = time.monotonic() + 5
    while (left := [each for each in threading.enumerate() if each.name.startswith("many")]) and time.monotonic() < end:
        time.sleep(0.001)
    assert left == []


def test_tasks_see_the_context_variables_of_the_caller() -> None:
    node: ContextVar[str] = ContextVar("node")
    node.set("kube1")

    @task("read")
    def read(scope: CancelScope) -> str:
        return node.get()

    assert run(Parallel(read, read)) == ("kube1", "kube1")


# Timeout


def test_a_task_past_its_deadline_raises_timed_out() -> None:
    clock = FakeClock()
    with pytest.raises(TimedOut, match="30 s"):
        run(Timeout(30, Blocking("b")), scope=CancelScope(clock=clock))
    assert clock.monotonic() == 30


def advancing(seconds: float, clock: FakeClock) -> Task[None]:
    return cancelling("work", lambda: clock.advance(seconds))


def test_a_task_that_returns_too_late_raises_timed_out() -> None:
    """The deadline also applies to a task that never checks its scope. The task itself counts as cancelled."""
    clock, observer = FakeClock(), RecordingObserver()
    with pytest.raises(TimedOut) as caught:
        run(Timeout(3, Serial(advancing(4, clock))), scope=CancelScope(clock=clock), observer=observer)
    assert caught.value.seconds == 3
    assert path_of(caught.value) == "timeout/serial/work"
    assert run(Timeout(5, advancing(4, clock)), scope=CancelScope(clock=clock)) is None


def test_a_late_timeout_is_a_failure_of_its_parallel() -> None:
    clock = FakeClock()
    with pytest.raises(ExceptionGroup) as caught:
        run(Parallel(Timeout(3, advancing(4, clock))), scope=CancelScope(clock=clock))
    assert [type(error) for error in caught.value.exceptions] == [TimedOut]


def test_a_task_in_a_shield_succeeds() -> None:
    """Cancelling a scope ends the outer task, but not a task in a shield, such as a rollback."""
    scope, results = CancelScope(), []

    @task("outer")
    def outer(scope: CancelScope) -> None:
        scope.cancel("late")
        with scope.shield() as inner:
            results.append(run_child(Returning("put-back", 7), inner))

    observer = RecordingObserver()
    with pytest.raises(Cancelled, match="late"):
        run(outer, scope=scope, observer=observer)
    assert results == [7]
    assert observer.events[-2:] == [
        ("finished", "outer/put-back", Status.OK),
        ("finished", "outer", Status.CANCELLED),
    ]


def test_of_nested_timeouts_the_earliest_wins() -> None:
    for outer, inner, seconds in ((3, 9, 3), (9, 3, 3), (3, 3, 3)):
        clock = FakeClock()
        with pytest.raises(TimedOut) as caught:
            run(Timeout(outer, Serial(Timeout(inner, Blocking("b")))), scope=CancelScope(clock=clock))
        assert caught.value.seconds == seconds
        assert clock.monotonic() == seconds


def test_a_timeout_within_a_parallel_is_a_failure() -> None:
    with pytest.raises(TimedOut):
        run(Timeout(0.05, Parallel(Blocking("a"), Blocking("b"))))
    with pytest.raises(ExceptionGroup) as caught:
        run(Parallel(Timeout(0.05, Blocking("a")), Blocking("b")))
    assert [type(error) for error in caught.value.exceptions] == [TimedOut]


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_a_timeout_that_is_not_a_time_span_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds"):
        Timeout(seconds, Returning("a", 1))


# describe, and other composites


@attrs.frozen
class Configure:
    tasks: tuple[Task[int], Task[int]]
    name: str = "configure"

    def do(self, scope: CancelScope) -> tuple[int, int]:
        first, second = self.tasks
        return run_child(first, scope), run_child(second, scope)


def test_describe_draws_the_tree_without_running_it() -> None:
    install = Returning("install", 1)
    tree = Serial(
        Configure((install, Returning("check", 2))),
        Parallel(Timeout(2.5, Returning("ping", 3)), Returning("report", 4), name="finish"),
        name="bootstrap",
    )
    assert repr(tree) == "\n".join(
        [
            "bootstrap",
            "├── configure",
            "│   ├── install",
            "│   └── check",
            "└── finish (all at once)",
            "    ├── timeout (at most 2.5 s)",
            "    │   └── ping",
            "    └── report",
        ]
    )
    assert install.calls == []
