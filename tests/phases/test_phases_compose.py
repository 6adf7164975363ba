from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import attrs
import pytest
from nightly import by_day
from recording_tasks import Blocking, Raising, Returning, handling

from phases import (
    Cancelled,
    CancelScope,
    Parallel,
    Serial,
    Status,
    Task,
    TimedOut,
    Timeout,
    all_or_nothing,
    path_of,
    run,
    run_child,
    task,
)
from phases.testing import FakeClock, RecordingObserver

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup


@attrs.frozen(eq=False)
class After:
    """A task that waits for an event and then runs another task, even if its scope has been
    cancelled.
    """

    event: threading.Event
    task: Task[object]

    @property
    def name(self) -> str:
        return self.task.name

    def do(self, scope: CancelScope) -> object:
        assert self.event.wait(30)
        return self.task.do(scope)


def cancelling(name: str, cancel: Callable[[CancelScope], object]) -> Task[object]:
    return task(name)(cancel)


# Serial


def test_serial_stops_at_the_first_failure_and_raises_it() -> None:
    calls: list[str] = []
    error = ValueError("no")
    with pytest.raises(ValueError, match="no") as caught:
        run(
            Serial(
                Returning("a", 1, calls=calls), Raising("b", error), Returning("c", 3, calls=calls)
            )
        )
    assert (caught.value, error.__notes__, calls) == (error, ["in task serial/b"], ["serial/a"])


def test_a_late_cancel_ends_a_serial() -> None:
    """Although the task itself doesn't check its scope, the exception has that task's path."""
    scope = CancelScope()
    calls: list[str] = []
    with pytest.raises(Cancelled, match="enough") as caught:
        run(
            Serial(
                cancelling("a", lambda _: scope.cancel("enough")), Returning("b", 2, calls=calls)
            ),
            scope=scope,
        )
    with pytest.raises(Cancelled, match="enough"):
        run(Returning("c", 3, calls=calls), scope=scope)
    assert (path_of(caught.value), calls) == ("serial/a", [])


def test_results_come_in_the_order_of_the_tasks() -> None:
    assert run(Serial()) == run(Parallel()) == ()
    assert Serial(Returning("a", 1)).do(CancelScope()) == (1,)
    last = threading.Event()
    assert run(Parallel(After(last, Returning("a", 1)), cancelling("b", lambda _: last.set()))) == (
        1,
        None,
    )


# Parallel


def test_the_first_failure_cancels_the_others_without_failing_them() -> None:
    """This includes nested tasks."""
    blocking = [Blocking(f"b{number}") for number in range(3)]
    failing: Task[object] = Raising("fail", ValueError("no"))
    for each in blocking:
        failing = After(each.started, failing)
    with pytest.raises(ExceptionGroup) as caught:
        run(Parallel(blocking[0], Parallel(*blocking[1:]), failing, Returning("c", 3)))
    assert [str(error) for error in caught.value.exceptions] == ["no"]
    assert str(caught.value) == "1 of the parallel tasks failed (1 sub-exception)"


def test_every_failure_is_kept_in_task_order_with_its_path() -> None:
    failing = Blocking("fails-in-rollback", OSError("rollback failed"))
    with pytest.raises(ExceptionGroup) as caught:
        run(Parallel(failing, After(failing.started, Raising("z", KeyError("k"))), name="both"))
    rollback, key = caught.value.exceptions
    assert isinstance(rollback, OSError)
    assert isinstance(key, KeyError)
    assert rollback.__notes__ == ["in task both/fails-in-rollback"]
    assert key.__notes__ == ["in task both/z"]
    assert caught.value.__notes__ == ["in task both"]


class Unmounting:
    """A task whose rollback fails."""

    name = "mount"

    def __init__(self) -> None:
        self.started = threading.Event()

    def do(self, scope: CancelScope) -> None:
        def unmount() -> None:
            raise OSError("/mnt is busy")

        with all_or_nothing() as undo:
            undo.push(unmount)
            self.started.set()
            scope.wait(60)


@pytest.mark.parametrize("is_outer", [False, True], ids=["a failure", "a cancel"])
def test_a_failed_rollback_of_a_cancelled_task_becomes_a_note(is_outer: bool) -> None:
    scope, mount = CancelScope(), Unmounting()
    other: Task[object] = Raising("pull", ValueError("no registry"))
    if is_outer:
        other = cancelling("pull", lambda _: scope.cancel("SIGTERM"))
    with pytest.raises(Cancelled if is_outer else ExceptionGroup) as caught:
        run(Parallel(mount, After(mount.started, other)), scope=scope)
    notes = caught.value.__notes__
    told = [note for note in notes if "while putting things back: /mnt is busy" in note]
    assert [note.partition(": ")[0] for note in told] == ["besides"], notes
    assert "in task parallel/mount" in told[0]


def test_failures_during_an_outer_cancel_become_notes() -> None:
    scope, stumble = CancelScope(), Blocking("stumble", OSError("rollback failed"))
    with pytest.raises(Cancelled, match="SIGTERM") as caught:
        run(
            Parallel(
                stumble, After(stumble.started, cancelling("c", lambda _: scope.cancel("SIGTERM")))
            ),
            scope=scope,
        )
    # The cancelling task may return before its scope is cancelled, and then it is the one that was
    # cancelled.
    notes = caught.value.__notes__
    assert "besides: OSError: rollback failed (in task parallel/stumble)" in notes, notes
    assert {"in task parallel", "in task parallel/c"} & {*notes}, notes


@pytest.mark.parametrize("error", [KeyboardInterrupt("k"), SystemExit(3), Cancelled("of its own")])
def test_a_base_exception_cancels_the_others(error: BaseException) -> None:
    blocking = Blocking("blocking")
    with pytest.raises(type(error)) as caught:
        run(Parallel(blocking, After(blocking.started, Raising("raise", error))))
    assert caught.value is error
    assert error.__notes__ == ["in task parallel/raise"]


@pytest.mark.parametrize("_round", range(by_day(2, by_night=10)))
@pytest.mark.parametrize("at", ["start", "work"])
def test_a_raising_signal_handler_leaves_no_task_running(at: str, _round: int) -> None:
    begun: list[str] = []
    ended: list[str] = []
    other = threading.Event()

    def interrupt() -> None:
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

    with handling(signal.SIGUSR1, interrupt), pytest.raises(KeyboardInterrupt):
        run(Parallel(send, work))
    assert sorted(ended) == sorted(begun)
    assert at == "start" or len(ended) == 2


def test_a_late_cancel_ends_a_parallel() -> None:
    """``Parallel`` raises the exception even if every task has returned.

    Tasks can also cancel the shared scope.
    """
    scope = CancelScope()
    with pytest.raises(Cancelled, match="late"):
        run(
            Parallel(Returning("a", 1), cancelling("b", lambda _: scope.cancel("late"))),
            scope=scope,
        )
    with pytest.raises(Cancelled, match="gave up"):
        run(
            Parallel(cancelling("b", lambda shared: shared.cancel("gave up")), Blocking("blocking"))
        )


def test_a_sibling_that_returns_late_is_not_a_failure() -> None:
    """The observer sees that the late task was cancelled; only its sibling's failure is raised."""
    observer = RecordingObserver()

    @task("late")
    def late(scope: CancelScope) -> None:
        with pytest.raises(Cancelled):
            scope.wait(1000)

    with pytest.raises(ExceptionGroup) as caught:
        run(Parallel(late, Raising("fail", ValueError("no"))), observers=[observer])
    assert [type(error) for error in caught.value.exceptions] == [ValueError]
    assert ("finished", "parallel/late", Status.CANCELLED) in observer.events


def test_without_new_threads_the_running_ones_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    start, tasks = threading.Thread.start, [Blocking(f"t{number}") for number in range(4)]
    started: list[threading.Thread] = []

    def limited(thread: threading.Thread) -> None:
        if len(started) == 2:
            assert all(task.started.wait(30) for task in tasks[:2])
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    scope = CancelScope()
    with pytest.raises(ExceptionGroup) as caught:
        run(Parallel(*tasks), scope=scope)
    (error,) = caught.value.exceptions
    assert str(error) == "can't start new thread"
    assert not any(thread.is_alive() for thread in started)
    assert not scope.is_cancelled


# Timeout


def test_a_task_in_a_shield_succeeds() -> None:
    """Cancelling a scope ends the outer task, but not a shielded task such as a rollback."""
    scope, results = CancelScope(), []

    @task("outer")
    def outer(scope: CancelScope) -> None:
        scope.cancel("late")
        with scope.shield() as inner:
            results.append(run_child(Returning("put-back", 7), inner))

    observer = RecordingObserver()
    with pytest.raises(Cancelled, match="late"):
        run(outer, scope=scope, observers=[observer])
    assert results == [7]
    assert observer.events[-2:] == [
        ("finished", "outer/put-back", Status.OK),
        ("finished", "outer", Status.CANCELLED),
    ]


def test_of_nested_timeouts_the_earliest_wins() -> None:
    for outer, inner, seconds in ((3, 9, 3), (9, 3, 3), (3, 3, 3)):
        clock = FakeClock()
        with pytest.raises(TimedOut) as caught:
            run(
                Timeout(outer, Serial(Timeout(inner, Blocking("b")))),
                scope=CancelScope(clock=clock),
            )
        assert caught.value.seconds == seconds
        assert clock.monotonic() == seconds
        assert path_of(caught.value) == "timeout/serial/timeout/b"  # the task that was waiting
    assert run(Timeout(3, Serial(Returning("a", 1)))) == (1,)


def test_a_timeout_of_no_number_of_seconds_is_refused() -> None:
    with pytest.raises(ValueError, match="seconds"):
        Timeout(float("nan"), Returning("a", 1))


@pytest.mark.parametrize("seconds", [-1, 0])
def test_a_timeout_takes_the_seconds_of_a_scope(seconds: float) -> None:
    """A program may pass the time that is left until its own deadline, which may have passed."""
    with pytest.raises(TimedOut, match="0 s"):
        run(Timeout(seconds, Blocking("b")))
    with pytest.raises(TimedOut, match="0 s"):
        run(Blocking("b"), scope=CancelScope(timeout=seconds))


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
    assert repr(tree).split("\n") == [
        "bootstrap",
        "├── configure",
        "│   ├── install",
        "│   └── check",
        "└── finish (all at once)",
        "    ├── timeout (at most 2.5 s)",
        "    │   └── ping",
        "    └── report",
    ]
    assert install.calls == []


@pytest.mark.parametrize("others", [None, 3, ["download"], ("download",), {"a": 1}, lambda: ()])
def test_an_own_task_may_use_the_name_of_the_subtasks_otherwise(others: Any) -> None:
    assert repr(Serial(Configure(others), Returning("check", 2))).split("\n") == [
        "serial",
        "├── configure",
        "└── check",
    ]


def test_a_function_task_is_a_value() -> None:
    def function(scope: CancelScope) -> int:
        return 1

    made: Any = task("one")(function)
    assert made == task("one")(function) != task("two")(function)
    assert len({made, task("one")(function)}) == 1
    assert made != ("one", function)
    assert not isinstance(made, Iterable)
    assert repr(made) == "one"
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.name = "two"


def test_only_a_function_becomes_a_task() -> None:
    with pytest.raises(TypeError):
        task("one")(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r'@phases.task\("name"\)'):
        task(lambda scope: None)  # type: ignore[arg-type]


def test_a_function_that_takes_only_a_scope_becomes_a_task() -> None:
    """A method would fail when it is called."""
    with pytest.raises(TypeError, match=r"only a scope, not .*\.start at .*: 'scope'\); inst"):

        class Agent:
            @task("start")  # type: ignore[arg-type]
            def start(self, scope: CancelScope) -> None: ...

    with pytest.raises(TypeError, match="too many positional arguments"):
        task("one")(lambda: None)  # type: ignore[arg-type,misc]
    bound: Any = partial(lambda number, scope: number, 3)
    assert run(task("one")(bound)) == 3
    without_signature: Any = iter
    with pytest.raises(TypeError, match="not iterable"):
        run(task("one")(without_signature))


@pytest.mark.parametrize("name", ["", "Upper", "snake_case", "a--b", "a/b", "ä", "a\n"])
@pytest.mark.parametrize(
    "make",
    [
        lambda name: task(name),
        lambda name: Serial(name=name),
        lambda name: Parallel(name=name),
        lambda name: Timeout(1, Returning("a", 1), name=name),
    ],
)
def test_a_name_that_is_not_kebab_case_is_refused(make: Callable[[str], object], name: str) -> None:
    with pytest.raises(ValueError, match="a task's name is kebab-case") as caught:
        make(name)
    assert repr(name) in str(caught.value)


def test_swapped_arguments_of_a_timeout_are_told() -> None:
    swapped: Any = (Returning("task", 1), 5)
    with pytest.raises(TypeError, match=r"Timeout takes the seconds and then the task, .* not Ret"):
        Timeout(*swapped)
