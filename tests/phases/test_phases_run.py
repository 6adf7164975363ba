from __future__ import annotations

import asyncio
import inspect
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from recording_tasks import Blocking, Raising, Returning

import phases
from phases import (
    Cancelled,
    CancelScope,
    Parallel,
    Serial,
    Status,
    Task,
    TimedOut,
    all_or_nothing,
    call_async,
    path_of,
    run,
    run_async,
    run_child,
    task,
)
from phases.testing import FakeClock, RecordingObserver

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="phases")
    return caplog


def data(record: logging.LogRecord) -> dict[str, Any]:
    return {
        key: vars(record)[key]
        for key in ("task", "path", "status", "duration", "error")
        if key in vars(record)
    }


def test_each_task_logs_one_record_at_start_and_end(logged: pytest.LogCaptureFixture) -> None:
    @task("install-routes")
    def routes(scope: CancelScope) -> None:
        scope.wait(2)

    run(Serial(routes, name="configure"), scope=CancelScope(clock=FakeClock()))
    outer, inner = (
        {"task": "configure", "path": "configure"},
        {"task": "install-routes", "path": "configure/install-routes"},
    )
    ended = {"status": "ok", "duration": 2, "error": None}
    assert [(record.getMessage(), data(record)) for record in logged.records] == [
        ("started configure", outer),
        ("started configure/install-routes", inner),
        ("completed configure/install-routes", inner | ended),
        ("completed configure", outer | ended),
    ]
    assert {(record.name, record.levelno) for record in logged.records} == {
        ("phases", logging.INFO)
    }


@pytest.mark.parametrize(
    ("error", "status", "text", "level"),
    [
        (ValueError("no"), "failed", "ValueError: no", logging.ERROR),
        (ValueError(), "failed", "ValueError", logging.ERROR),
        (Cancelled("stop"), "cancelled", "Cancelled: stop", logging.WARNING),
        (TimedOut(3), "timed out", "TimedOut: not done within 3 s", logging.ERROR),
        (TimeoutError("a socket's"), "failed", "TimeoutError: a socket's", logging.ERROR),
        (KeyboardInterrupt(), "failed", "KeyboardInterrupt", logging.ERROR),
    ],
)
def test_a_record_has_the_end_of_its_task(
    logged: pytest.LogCaptureFixture, error: BaseException, status: str, text: str, level: int
) -> None:
    with pytest.raises(type(error)):
        run(Raising("task", error))
    record = logged.records[-1]
    assert (data(record)["status"], data(record)["error"]) == (status, text)
    assert record.levelno == level
    assert type(data(record)["status"]) is str


def test_the_traceback_is_logged_once_by_the_failing_task(logged: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="no"):
        run(Serial(Serial(Raising("task", ValueError("no")))))
    paths = [data(record)["path"] for record in logged.records if record.exc_info]
    assert paths == ["serial/serial/task"]


def test_a_parallel_failure_has_one_traceback(logged: pytest.LogCaptureFixture) -> None:
    """The records of the tasks around the one that raised only have the error."""
    inner = Parallel(Raising("task", ValueError("no")), Returning("other", 1), name="inner")
    with pytest.raises(Exception, match="parallel tasks failed"):
        run(Serial(Parallel(inner, Returning("last", 1))))
    failed = [record for record in logged.records if data(record).get("status") == "failed"]
    told = {data(record)["path"]: bool(record.exc_info) for record in failed}
    around = dict.fromkeys(("serial/parallel/inner", "serial/parallel", "serial"), False)
    assert told == {"serial/parallel/inner/task": True, **around}
    assert all(data(record)["error"] for record in failed)


def test_a_group_of_its_own_has_a_traceback(logged: pytest.LogCaptureFixture) -> None:
    error = ExceptionGroup("both", [ValueError("no"), KeyError("nor")])
    with pytest.raises(type(error)):
        run(Serial(Raising("task", error)))
    assert [data(each)["path"] for each in logged.records if each.exc_info] == ["serial/task"]


class HintedError(Exception):
    hint = "add a route"

    def __str__(self) -> str:
        return "no route\ndo this: add a route"


def test_only_the_failing_task_logs_the_whole_error(logged: pytest.LogCaptureFixture) -> None:
    """The records of the tasks around it have only the first line, and each record the hint."""
    tree = Serial(Parallel(Raising("task", HintedError())))
    with pytest.raises(ExceptionGroup):
        run(tree)
    with pytest.raises(HintedError):
        run(Serial(Raising("alone", HintedError()), name="around"))
    failed = {data(each)["path"]: each for each in logged.records if each.msg == "failed %s"}
    whole = "HintedError: no route\ndo this: add a route"
    group = "ExceptionGroup: 1 of the parallel tasks failed (1 sub-exception)"
    assert {path: data(record)["error"] for path, record in failed.items()} == {
        "serial/parallel/task": whole,
        "serial/parallel": group,
        "serial": group,
        "around/alone": whole,
        "around": "HintedError: no route",
    }
    hints = {
        path: vars(record)["hint"] for path, record in failed.items() if "hint" in vars(record)
    }
    assert hints == dict.fromkeys(("serial/parallel/task", "around/alone", "around"), "add a route")


def test_a_hint_that_a_task_adds_to_a_subtasks_error_is_logged(
    logged: pytest.LogCaptureFixture,
) -> None:
    """The subtask's record is older than this hint, so only the outer task's record can have it."""

    @task("outer")
    def outer(scope: CancelScope) -> None:
        error = ValueError("no")
        try:
            run_child(Raising("inner", error), scope)
        finally:
            vars(error)["hint"] = "run the same again"

    with pytest.raises(ValueError, match="no"):
        run(outer)
    failed = {data(each)["path"]: vars(each) for each in logged.records if each.msg == "failed %s"}
    assert "hint" not in failed["outer/inner"]
    assert failed["outer"]["hint"] == "run the same again"


@pytest.mark.parametrize("hint", ["", None, 3])
def test_an_error_without_a_hint_logs_none(logged: pytest.LogCaptureFixture, hint: object) -> None:
    error = ValueError("no")
    vars(error)["hint"] = hint
    with pytest.raises(ValueError, match="no"):
        run(Raising("task", error))
    assert "hint" not in vars(logged.records[-1])


def test_an_error_that_takes_no_notes_is_logged_whole(logged: pytest.LogCaptureFixture) -> None:
    with pytest.raises(NotelessError):
        run(Serial(Raising("task", NotelessError("one\ntwo"))))
    errors = [data(each)["error"] for each in logged.records if each.msg == "failed %s"]
    assert errors == ["NotelessError: one\ntwo"] * 2


def test_an_error_without_text_is_logged(logged: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OddStrError):
        run(Raising("task", OddStrError()))
    assert data(logged.records[-1])["error"] == "OddStrError: <exception str() failed>"


def test_records_go_to_the_given_logger(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("mine")
    with caplog.at_level(logging.INFO, logger="mine"):
        run(Returning("task", 1), logger=logger)
    assert {record.name for record in caplog.records} == {"mine"}


def test_a_run_in_a_cancelled_scope_starts_no_task() -> None:
    scope = CancelScope()
    scope.cancel("stop")
    observer = RecordingObserver()
    with pytest.raises(Cancelled, match="stop"):
        run(Returning("task", 1), scope=scope, observers=[observer])
    assert observer.events == [("started", "task"), ("finished", "task", Status.CANCELLED)]


@pytest.mark.parametrize(
    ("late", "status"),
    [(Cancelled, "cancelled"), (TimedOut, "timed out")],
    ids=["cancel", "deadline"],
)
def test_a_late_end_is_reported_as_late(
    logged: pytest.LogCaptureFixture, late: type[BaseException], status: str
) -> None:
    """If a task returns after its scope has ended, the caller, the log and the observer see a
    failure.
    """
    clock, observer = FakeClock(), RecordingObserver()
    scope = CancelScope(clock=clock, timeout=5)

    @task("late")
    def work(_scope: CancelScope) -> str:
        clock.advance(6) if late is TimedOut else scope.cancel("stop")
        return "done"

    with pytest.raises(late):
        run(work, scope=scope, observers=[observer])
    assert observer.events[-1] == ("finished", "late", Status(status))
    assert type(observer.errors["late"]) is late
    assert observer.results["late"] == "done"
    assert data(logged.records[-1])["status"] == status


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
    run(Serial(wait, name="configure"), observers=[observer])
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
    run(Parallel(*[chat] * 8), observers=[observer])
    assert len(calls) == 8 * 102 + 2


def test_all_observers_see_the_run() -> None:
    """An observer's failure keeps no event from the others."""
    broken, last = Broken(), RecordingObserver()
    with pytest.raises(BrokenPipeError):
        run(Returning("task", 1), observers=(broken, last))
    assert broken.events == last.events == [("started", "task"), ("finished", "task", Status.OK)]


class Asynchronous(phases.Observer):
    async def finished(self, *_: object) -> None:  # type: ignore[override]
        raise AssertionError


@pytest.mark.parametrize(
    ("observers", "message"),
    [
        (RecordingObserver(), "takes a list of observers, not RecordingObserver"),
        ([RecordingObserver], "has started, progress, finished, not <class"),
        ([print], "has started, progress, finished, not <built-in"),
        ([Asynchronous()], "an observer's finished is a plain function; .* can't be async"),
    ],
)
def test_what_is_no_observer_is_refused(observers: Any, message: str) -> None:
    work = Returning("task", 1)
    with pytest.raises(TypeError, match=message):
        run(work, observers=observers)
    assert work.calls == []


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"scope": 5}, "expected a CancelScope as scope, not 5"),
        ({"scope": CancelScope}, "expected a CancelScope as scope, not <class"),
        ({"logger": "x"}, "expected a logger of logging, .* not 'x'"),
    ],
)
def test_a_wrong_argument_is_refused(argument: Any, message: str) -> None:
    work = Returning("task", 1)
    with pytest.raises(TypeError, match=message):
        run(work, **argument)
    with pytest.raises(TypeError, match=message):
        asyncio.run(run_async(work, **argument))
    assert work.calls == []


def test_a_wrong_logger_is_refused_without_logging() -> None:
    """A program that hasn't imported logging is told as well."""
    code = """
import sys, phases
assert "logging" not in sys.modules
try:
    phases.run(phases.task("x")(print), logger="x")
except TypeError as error:
    print(error)
"""
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said.startswith("expected a logger of logging")


# --- a task is a plain function -------------------------------------------------------------------


async def coroutine(_scope: object = None) -> None: ...


def generator(_scope: object = None) -> Iterator[int]:
    yield 1


async def async_generator(_scope: object = None) -> AsyncIterator[int]:
    yield 1


LAZY: Any = [coroutine, generator, async_generator]
PLAIN = "a task is a plain function; it runs in a thread"


def having(name: str, do: Any) -> Any:
    return SimpleNamespace(name=name, do=do)


@pytest.mark.parametrize("function", [*LAZY, partial(coroutine)])
def test_an_async_task_is_refused(function: Any) -> None:
    with pytest.raises(TypeError, match=PLAIN):
        task("x")(function)
    own = having("x", function)
    for use in (Serial, Parallel, partial(phases.Timeout, 1), run):
        with pytest.raises(TypeError, match=PLAIN):
            use(own)
    with pytest.raises(TypeError, match=PLAIN):
        run_child(own, CancelScope())
    with pytest.raises(TypeError, match=PLAIN):
        asyncio.run(run_async(own))


@pytest.mark.parametrize("function", LAZY)
def test_a_task_that_returns_a_coroutine_fails(function: Any) -> None:
    """It is closed, so Python doesn't warn that it was never awaited."""
    made = []

    @task("x")
    def lazy(_scope: CancelScope) -> object:
        made.append(function())
        return made[0]

    observer = RecordingObserver()
    with pytest.raises(TypeError, match=PLAIN) as caught:
        run(Serial(lazy), observers=[observer])
    assert path_of(caught.value) == "serial/x"
    assert observer.events[-1] == ("finished", "serial", Status.FAILED)
    if function is coroutine:
        assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED
    if function is generator:
        assert inspect.getgeneratorstate(made[0]) == inspect.GEN_CLOSED


@pytest.mark.parametrize("name", ["Bad Name", "", "a/b"])
def test_a_task_with_a_bad_name_is_refused(name: str) -> None:
    own = having(name, print)
    for use in (Serial, Parallel, partial(phases.Timeout, 1), run):
        with pytest.raises(ValueError, match="kebab-case"):
            use(own)


class Broken(RecordingObserver):
    def started(self, path: str) -> None:
        super().started(path)
        raise BrokenPipeError("no reader")


def test_an_observer_that_blocks_delays_no_other_task() -> None:
    """A task can be cancelled and finish while an observer call blocks.

    The observer is notified afterwards.
    """
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
    run(Parallel(talk, wait), observers=[observer])
    assert ("finished", "parallel/wait/inner", Status.CANCELLED) in observer.events
    assert observer.events[-1] == ("finished", "parallel", Status.OK)


def test_an_observers_error_disturbs_no_task_and_is_raised_last() -> None:
    task = Returning("task", 1)
    with pytest.raises(BrokenPipeError) as caught:
        run(Serial(task, task), observers=[Broken()])
    assert len(task.calls) == 2
    assert caught.value.__notes__ == [
        "raised by an observer or log handler; the tasks of the run succeeded"
    ]


def test_of_an_observers_errors_the_first_is_raised() -> None:
    class Failing(RecordingObserver):
        def started(self, *_: object) -> None:
            raise ValueError("first")

        def finished(self, *_: object) -> None:
            raise ValueError("last")

    with pytest.raises(ValueError, match="first"):
        run(Returning("task", 1), observers=[Failing()])


def test_an_observers_error_is_noted_on_the_runs_failure() -> None:
    with pytest.raises(ValueError, match="no") as caught:
        run(Raising("task", ValueError("no")), observers=[Broken()])
    assert caught.value.__notes__ == [
        "in task task",
        "also, an observer or log handler of the run failed: BrokenPipeError: no reader",
    ]


@pytest.mark.parametrize(
    ("error", "words", "is_exception"),
    [(Cancelled("why"), "why", False), (TimedOut(2.5), "not done within 2.5 s", True)],
)
def test_errors_have_a_text_and_survive_pickling(
    error: Any, words: str, is_exception: bool
) -> None:
    assert isinstance(error, Exception) is is_exception
    assert not isinstance(error, OSError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error) == words
    assert vars(again) == vars(error)


def test_tracebacks_and_help_name_the_public_module() -> None:
    assert {getattr(phases, name).__module__ for name in phases.__all__} == {"phases"}


def failure_of(failing: Task[object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the caller looks at it
        run(failing)
    return caught.value


def test_path_of_returns_the_innermost_task() -> None:
    """An error that is raised again has a note of each run, and they are pickled with it."""
    error = ValueError("no")
    assert path_of(error) is None
    tree = Serial(Serial(Raising("copy", error), name="files"), name="install")
    assert path_of(failure_of(tree)) == "install/files/copy"
    again = pickle.loads(pickle.dumps(failure_of(Raising("second", error))))
    assert path_of(again) == "install/files/copy"
    assert again.__notes__ == ["in task install/files/copy", "in task second"]


def test_a_run_without_the_scope_keeps_its_path() -> None:
    """A nested run that doesn't use its parent's scope starts a new path."""

    @task("outer")
    def outer(_scope: CancelScope) -> object:
        return run(Serial(Raising("inner", ValueError("no"))))

    assert path_of(failure_of(outer)) == "serial/inner"


def test_a_foreign_note_is_not_a_path() -> None:
    error = ValueError("no")
    vars(error)["__notes__"] = ["in task force 7"]
    assert path_of(error) is None
    assert path_of(failure_of(Raising("copy", error))) == "copy"


@attrs.frozen
class FrozenError(Exception):
    code: int

    def add_note(self, note: str, /) -> None:
        raise attrs.exceptions.FrozenInstanceError


class NotelessError(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        return []


class OddStrError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize("error", [FrozenError(3), OddStrError("x")])
def test_an_odd_exception_arrives_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        run(Serial(Returning("before", None), Raising("odd", error)))
    assert caught.value is error
    with pytest.raises(ExceptionGroup) as group:
        run(Parallel(Returning("beside", None), Raising("odd", error)))
    assert group.value.exceptions == (error,)


# --- async ----------------------------------------------------------------------------------------


async def ending(run: Awaitable[object]) -> BaseException:
    try:
        await run
    except BaseException as error:  # noqa: BLE001 - the test looks at it
        return error
    raise AssertionError("it succeeded")


def cancelled(
    work: Task[object],
    started: threading.Event,
    cancel: Callable[[asyncio.Task[BaseException]], object] = asyncio.Task.cancel,
    scope: CancelScope | None = None,
) -> BaseException:
    """Run a task, cancel its asyncio task once it has started, or do something else, and return the
    exception.
    """

    async def main() -> BaseException:
        running = asyncio.create_task(ending(run_async(work, scope=scope)))
        await asyncio.to_thread(started.wait)
        cancel(running)
        return await running

    return asyncio.run(main())


def test_tasks_run_in_a_thread_with_the_context() -> None:
    node: ContextVar[str] = ContextVar("node")

    @task("read")
    def read(scope: CancelScope) -> tuple[str, bool]:
        return node.get(), threading.current_thread() is threading.main_thread()

    async def main() -> object:
        node.set("kube1")
        return await run_async(Serial(Parallel(read, read), Returning("b", "two")))

    assert asyncio.run(main()) == ((("kube1", False), ("kube1", False)), "two")
    assert isinstance(asyncio.run(ending(run_async("no task"))), TypeError)  # type: ignore[arg-type]


def test_a_failure_arrives_unchanged() -> None:
    error = ValueError("no")
    observer = RecordingObserver()
    caught = asyncio.run(ending(run_async(Serial(Raising("a", error)), observers=[observer])))
    assert caught is error
    assert path_of(error) == "serial/a"
    assert observer.errors["serial/a"] is error


def test_a_function_with_a_scope_can_be_called() -> None:
    node: ContextVar[str] = ContextVar("node")

    def look(cidr: str, *, mode: str = "WARN", scope: CancelScope | None = None) -> object:
        assert scope is not None
        is_main = threading.current_thread() is threading.main_thread()
        return cidr, mode, node.get(), scope.is_cancelled, is_main

    async def main() -> object:
        node.set("kube1")
        return await call_async(look, "10.0.0.0/8", mode="STRICT")

    assert asyncio.run(main()) == ("10.0.0.0/8", "STRICT", "kube1", False, False)
    assert isinstance(asyncio.run(ending(call_async(abs, -1))), TypeError)


def mirror(value: object) -> object:
    return value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5,), r"call_async takes a function and its arguments, .*, not 5"),
        ((Returning("task", 1),), r"call_async takes a function .*run_async"),
        ((mirror, 5), r"^mirror takes no scope, .*asyncio\.to_thread"),
        ((coroutine, 5), r"call_async takes a plain function; it runs in a thread"),
        ((partial(mirror, 5),), r"takes no scope"),
    ],
)
def test_what_cannot_be_called_is_told(arguments: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        asyncio.run(call_async(*arguments))


def test_a_called_function_must_not_return_a_coroutine() -> None:
    def lazy(*, scope: CancelScope | None = None) -> object:
        return coroutine(scope)

    with pytest.raises(TypeError, match="plain function"):
        asyncio.run(call_async(lazy))


def test_a_wrong_scope_of_a_call_is_refused() -> None:
    def look(**keywords: object) -> object:
        return keywords

    with pytest.raises(TypeError, match="expected a CancelScope as scope, not 5"):
        asyncio.run(call_async(look, scope=5))


def test_a_function_may_take_any_keyword() -> None:
    def look(**keywords: object) -> object:
        return list(keywords)

    assert asyncio.run(call_async(look, scope=None)) == ["scope"]


def test_runs_use_no_thread_of_the_pool() -> None:
    """Waiting runs don't keep others from the pool, and no thread stays behind."""
    runs = [Blocking(f"wait-{number}") for number in range(3)]

    def wait(scope: CancelScope | None = None) -> None:
        assert scope is not None
        scope.wait(3600)

    async def main() -> list[BaseException]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        waiting = [asyncio.create_task(ending(run_async(each))) for each in runs]
        calls = [asyncio.create_task(ending(call_async(wait))) for _ in range(3)]
        while not all(each.started.is_set() for each in runs):
            await asyncio.sleep(0.001)
        assert await asyncio.to_thread(abs, -1) == 1
        for each in (*waiting, *calls):
            each.cancel()
        ended = [await each for each in (*waiting, *calls)]
        left = [each.name for each in threading.enumerate() if each not in before]
        assert len(left) == 1, left  # that of the pool
        return ended

    before = set(threading.enumerate())
    assert {type(error) for error in asyncio.run(main())} == {asyncio.CancelledError}


def test_a_run_outlives_its_loop() -> None:
    """The run's end doesn't fail in its thread if the loop has been closed."""
    started, go = threading.Event(), threading.Event()
    failures: list[object] = []

    @task("work")
    def work(_scope: CancelScope) -> None:
        started.set()
        assert go.wait(30)

    before = set(threading.enumerate())
    loop = asyncio.new_event_loop()
    running = loop.create_task(run_async(work))
    loop.run_until_complete(asyncio.sleep(0))
    assert started.wait(30)
    loop.close()
    hook, threading.excepthook = threading.excepthook, failures.append
    try:
        go.set()
        for thread in set(threading.enumerate()) - before:
            thread.join()
    finally:
        threading.excepthook = hook
    running._log_destroy_pending = False  # type: ignore[attr-defined]
    assert failures == []


@pytest.mark.parametrize("by_scope", [True, False])
def test_a_called_function_is_cancelled(by_scope: bool) -> None:
    started, own = threading.Event(), CancelScope()

    def wait(seconds: float, *, scope: CancelScope) -> None:
        started.set()
        scope.wait(seconds)

    async def main() -> object:
        running = asyncio.create_task(ending(call_async(wait, 3600, scope=own)))
        await asyncio.to_thread(started.wait)
        own.cancel("the loop says so") if by_scope else running.cancel()
        return await running

    caught = asyncio.run(main())
    assert isinstance(caught, Cancelled if by_scope else asyncio.CancelledError)
    assert own.is_cancelled is by_scope


def test_stop_iteration_ends_the_run() -> None:
    """Coroutines and asyncio futures can't raise StopIteration."""
    error = StopIteration(3)
    caught = asyncio.run(ending(run_async(Raising("a", error))))
    assert isinstance(caught, RuntimeError)
    assert caught.__cause__ is error


def test_a_cancelled_scope_cancels_the_run() -> None:
    blocking, scope = Blocking("blocking"), CancelScope()
    caught = cancelled(
        Parallel(blocking), blocking.started, lambda _: scope.cancel("the loop says so"), scope
    )
    assert isinstance(caught, Cancelled)
    assert caught.reason == "the loop says so"


def test_a_cancelled_coroutine_rolls_back_first() -> None:
    """A cancelled coroutine rolls back first, also if it is cancelled again meanwhile."""
    started, putting, go = threading.Event(), threading.Event(), threading.Event()
    put_back: list[str] = []

    def slowly() -> None:
        putting.set()
        assert go.wait(30)
        put_back.append("changed")

    @task("change")
    def change(scope: CancelScope) -> None:
        with all_or_nothing() as undo:
            undo.push(slowly)
            started.set()
            scope.wait(1000)

    async def main() -> BaseException:
        running = asyncio.create_task(ending(run_async(change)))
        await asyncio.to_thread(started.wait)
        running.cancel("once")
        await asyncio.to_thread(putting.wait)
        running.cancel("twice")
        await asyncio.wait([running], timeout=0)
        assert not running.done()
        go.set()
        return await running

    caught = asyncio.run(main())
    assert isinstance(caught, asyncio.CancelledError)
    assert (caught.args, put_back) == (("once",), ["changed"])
    assert isinstance(caught.__cause__, Cancelled)
    assert path_of(caught.__cause__) == "change"


def test_a_cancel_before_the_first_wait_is_not_lost() -> None:
    async def main() -> BaseException:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        return await ending(run_async(Blocking("blocking")))

    assert isinstance(asyncio.run(main()), asyncio.CancelledError)


def test_a_failure_after_the_cancel_is_the_cause() -> None:
    stumble = Blocking("stumble", OSError("disk full"))
    caught = cancelled(stumble, stumble.started)
    assert isinstance(caught, asyncio.CancelledError)
    assert caught.__cause__ is stumble.error
