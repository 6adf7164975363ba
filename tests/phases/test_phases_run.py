from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from recording_tasks import Blocking, Raising, Returning

from phases import Cancelled, CancelScope, Parallel, Serial, Status, TimedOut, Timeout, run, run_child, task
from phases.testing import FakeClock, RecordingObserver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOGGER = logging.getLogger("phases")


class Records(logging.Handler):
    """A log handler that keeps its records."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(record)


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    handler = Records()
    level = LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    yield handler.kept
    LOGGER.setLevel(level)
    LOGGER.removeHandler(handler)


def data(record: logging.LogRecord) -> dict[str, Any]:
    return {key: vars(record)[key] for key in ("task", "path", "status", "duration", "error") if key in vars(record)}


def test_each_task_logs_one_record_at_start_and_end(records: list[logging.LogRecord]) -> None:
    @task("install-routes")
    def routes(scope: CancelScope) -> None:
        scope.wait(2)

    run(Serial(routes, name="configure"), scope=CancelScope(clock=FakeClock()))
    outer, inner = (
        {"task": "configure", "path": "configure"},
        {"task": "install-routes", "path": "configure/install-routes"},
    )
    ended = {"status": "ok", "duration": 2, "error": None}
    assert [(record.msg, data(record)) for record in records] == [
        *(("started", outer), ("started", inner), ("completed", inner | ended), ("completed", outer | ended)),
    ]
    assert {(record.name, record.levelno) for record in records} == {("phases", logging.INFO)}


@pytest.mark.parametrize(
    ("error", "status", "text", "level"),
    [
        (ValueError("no"), "failed", "ValueError: no", logging.ERROR),
        (ValueError(), "failed", "ValueError", logging.ERROR),
        (Cancelled("stop"), "cancelled", "phases.Cancelled: stop", logging.WARNING),
        (TimedOut(3), "timed out", "phases.TimedOut: not done within 3 s", logging.ERROR),
        (TimeoutError("a socket's"), "failed", "TimeoutError: a socket's", logging.ERROR),
        (KeyboardInterrupt(), "failed", "KeyboardInterrupt", logging.ERROR),
    ],
)
def test_a_record_has_the_end_of_its_task(
    records: list[logging.LogRecord], error: BaseException, status: str, text: str, level: int
) -> None:
    with pytest.raises(type(error)):
        run(Raising("task", error))
    record = records[-1]
    assert (data(record)["status"], data(record)["error"]) == (status, text)
    assert record.levelno == level
    assert type(data(record)["status"]) is str


def test_the_traceback_is_logged_once_by_the_failing_task(records: list[logging.LogRecord]) -> None:
    with pytest.raises(ValueError, match="no"):
        run(Serial(Serial(Raising("task", ValueError("no")))))
    paths = [data(record)["path"] for record in records if record.exc_info]
    assert paths == ["serial/serial/task"]


def test_records_go_to_the_given_logger(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("mine")
    with caplog.at_level(logging.INFO, logger="mine"):
        run(Returning("task", 1), logger=logger)
    assert {record.name for record in caplog.records} == {"mine"}


def test_the_library_configures_only_its_null_handler() -> None:
    run(Returning("task", 1))
    assert [type(handler) for handler in LOGGER.handlers] == [logging.NullHandler]
    assert LOGGER.level == logging.NOTSET
    assert LOGGER.propagate


def test_a_run_in_a_cancelled_scope_starts_no_task() -> None:
    scope = CancelScope()
    scope.cancel("stop")
    observer = RecordingObserver()
    with pytest.raises(Cancelled, match="stop"):
        run(Returning("task", 1), scope=scope, observer=observer)
    assert observer.events == [("started", "task"), ("finished", "task", Status.CANCELLED)]


@pytest.mark.parametrize(
    ("late", "status"), [(Cancelled, "cancelled"), (TimedOut, "timed out")], ids=["cancel", "deadline"]
)
def test_a_late_end_is_reported_as_late(
    records: list[logging.LogRecord], late: type[BaseException], status: str
) -> None:
    """A task that returns after the end of its scope has failed for the caller, the log and the observer."""
    clock, observer = FakeClock(), RecordingObserver()
    scope = CancelScope(clock=clock, timeout=5)

    @task("late")
    def work(_scope: CancelScope) -> None:
        clock.advance(6) if late is TimedOut else scope.cancel("stop")

    with pytest.raises(late):
        run(work, scope=scope, observer=observer)
    assert observer.events[-1] == ("finished", "late", Status(status))
    assert type(observer.errors["late"]) is late
    assert data(records[-1])["status"] == status


def test_a_cancel_after_the_end_changes_nothing() -> None:
    scope = CancelScope()

    class Late(RecordingObserver):
        def finished(self, path: str, status: Status, error: BaseException | None, seconds: float) -> None:
            scope.cancel("after the end")

    assert run(Returning("task", 1), scope=scope, observer=Late()) == 1


def test_a_child_raises_the_runs_own_timed_out() -> None:
    @task("wait-in-a-child")
    def wait(scope: CancelScope) -> None:
        scope.child(timeout=60).wait(100)

    with pytest.raises(TimedOut, match="5 s"):
        run(Serial(wait), scope=CancelScope(timeout=5, clock=FakeClock()))


def test_a_run_within_a_task_continues_its_path() -> None:
    inner = Returning("inner", 1)

    @task("outer")
    def outer(scope: CancelScope) -> int:
        return run(inner, scope=scope)

    assert run(outer) == 1
    assert inner.calls == ["outer/inner"]


def test_an_observer_sees_every_task_and_its_progress() -> None:
    @task("wait-for-route")
    def wait(scope: CancelScope) -> None:
        scope.progress("waiting for the default route")
        with scope.shield() as inner:
            inner.progress("half of it", 0.5)
        scope.child().progress("done", 1)

    observer = RecordingObserver()
    run(Serial(wait, name="configure"), observer=observer)
    path = "configure/wait-for-route"
    assert observer.events == [
        ("started", "configure"),
        ("started", path),
        ("progress", path, "waiting for the default route", None),
        ("progress", path, "half of it", 0.5),
        ("progress", path, "done", 1),
        ("finished", path, Status.OK),
        ("finished", "configure", Status.OK),
    ]
    assert observer.errors == {}


def test_an_observer_sees_each_tasks_end_and_error() -> None:
    observer = RecordingObserver()
    clock = FakeClock()
    with pytest.raises(TimedOut):
        run(Timeout(3, Serial(Blocking("b"))), scope=CancelScope(clock=clock), observer=observer)
    assert observer.events[-3:] == [
        ("finished", "timeout/serial/b", Status.TIMED_OUT),
        ("finished", "timeout/serial", Status.TIMED_OUT),
        ("finished", "timeout", Status.TIMED_OUT),
    ]
    assert set(observer.durations.values()) == {3}
    assert set(map(type, observer.errors.values())) == {TimedOut}


def test_an_observer_is_called_by_one_thread_at_a_time() -> None:
    lock, calls = threading.Lock(), []

    class Exclusive:
        def __getattr__(self, name: str) -> Callable[..., None]:
            def enter(*_: object) -> None:
                assert lock.acquire(blocking=False)
                calls.append(name)
                lock.release()

            return enter

    @task("chat")
    def chat(scope: CancelScope) -> None:
        for number in range(100):
            scope.progress("talking", number / 100)

    observer: Any = Exclusive()
    run(Parallel(*[chat] * 8), observer=observer)
    assert len(calls) == 8 * 102 + 2


class Broken(RecordingObserver):
    def started(self, path: str) -> None:
        super().started(path)
        raise BrokenPipeError("no reader")


def test_an_observer_that_blocks_delays_no_other_task() -> None:
    """A task can be cancelled and end while a call of the observer blocks. The observer sees the end later."""
    is_blocking, has_ended = threading.Event(), threading.Event()

    class Slow(RecordingObserver):
        def progress(self, path: str, message: str, fraction: float | None) -> None:
            is_blocking.set()
            assert has_ended.wait(60)

    @task("talk")
    def talk(scope: CancelScope) -> None:
        scope.progress("talking")

    @task("wait")
    def wait(scope: CancelScope) -> None:
        scope.wait(is_blocking)
        inner = scope.child()
        inner.cancel("enough")
        with pytest.raises(Cancelled):
            run_child(Blocking("inner"), inner)
        has_ended.set()

    observer = Slow()
    run(Parallel(talk, wait), observer=observer)
    assert ("finished", "parallel/wait/inner", Status.CANCELLED) in observer.events
    assert observer.events[-1] == ("finished", "parallel", Status.OK)


def test_an_observers_error_disturbs_no_task_and_is_raised_last() -> None:
    task = Returning("task", 1)
    with pytest.raises(BrokenPipeError) as caught:
        run(Serial(task, task), observer=Broken())
    assert len(task.calls) == 2
    assert caught.value.__notes__ == ["raised by an observer or log handler; the tasks of the run succeeded"]


def test_an_observers_error_is_noted_on_the_runs_failure() -> None:
    with pytest.raises(ValueError, match="no") as caught:
        run(Raising("task", ValueError("no")), observer=Broken())
    assert caught.value.__notes__ == [
        "in task task",
        "also, an observer or log handler of the run failed: BrokenPipeError: no reader",
    ]


def test_a_log_handlers_error_does_not_affect_the_observer() -> None:
    class BrokenHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("disk full")

    logger = logging.getLogger("broken")
    logger.setLevel(logging.INFO)
    logger.addHandler(BrokenHandler())
    observer = RecordingObserver()
    with pytest.raises(OSError, match="disk full"):
        run(Returning("task", 1), logger=logger, observer=observer)
    assert observer.events == [("started", "task"), ("finished", "task", Status.OK)]
