from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from nightly import by_day
from recording_tasks import handling, meanwhile

from phases import Cancelled, CancelScope, SystemClock, TimedOut, Undo, all_or_nothing
from phases.testing import FakeClock


@pytest.fixture
def scope() -> CancelScope:
    return CancelScope()


class Hotline:
    """A FIFO through which a program reports its PIDs before a callback is invoked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.numbers: list[int] = []
        os.mkfifo(path)

    def then(self, action: Callable[[], object]) -> AbstractContextManager[None]:
        def listen() -> None:
            self.numbers += map(int, self.path.read_text().split())
            action()

        return meanwhile(listen)


@pytest.fixture
def hotline(tmp_path: Path) -> Hotline:
    return Hotline(tmp_path / "fifo")


def is_gone(pid: int) -> bool:
    """Wait for a killed process to exit; on a busy machine this may take a while."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(fd):
        return bool(select.select([fd], [], [], 5)[0])


def children() -> set[int]:
    """Return the PIDs of all child processes, including zombies."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            number, _, rest = status.read_text().partition(" (")
            found |= (
                {int(number)} if rest.rpartition(") ")[2].split()[1] == str(os.getpid()) else set()
            )
    return found


def is_reaped(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def send_sigint() -> None:
    signal.raise_signal(signal.SIGINT)


class Interrupted:
    """A trace function that acts at a line of certain functions, the Nth after ``begun`` has an
    item.

    Args:
        moment: N.
        functions: the functions.
        act: what to do; by default, it sends SIGINT to this process.
        begun: any list that isn't empty by default.
    """

    def __init__(
        self,
        moment: int,
        *functions: Callable[..., object],
        act: Callable[[], object] = send_sigint,
        begun: Sequence[object] = (True,),
    ) -> None:
        self.codes = {function.__code__ for function in functions}
        self.moment, self.lines, self.act, self.begun = moment, 0, act, begun

    def __enter__(self) -> Interrupted:
        self._before = sys.gettrace()
        sys.settrace(lambda frame, *_: self._trace if frame.f_code in self.codes else None)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, _frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and self.begun:
            self.lines += 1
            if self.lines == self.moment:
                self.act()
        return self._trace


def test_run_returns_output_and_exit_code(scope: CancelScope) -> None:
    argv = ["sh", "-c", "echo out; echo err >&2; exit 3"]
    done = scope.run(argv, check=False)
    assert (done.args, done.returncode, done.stdout, done.stderr) == (argv, 3, "out\n", "err\n")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        scope.run(argv)
    assert (failed.value.returncode, failed.value.__notes__) == (3, ["it said: err"])
    assert scope.run(["sh", "-c", "kill -9 $$"], check=False).returncode == -signal.SIGKILL
    assert scope.run(["printf", r"a\377b"]).stdout == "a\ufffdb"
    assert scope.run(["/bin/sh", "-c", 'echo "$GREETING"'], env={"GREETING": "hi"}).stdout == "hi\n"
    assert scope.run(["true"], input="x" * 1_000_000).returncode == 0
    assert (scope.run(["cat"]).stdout, scope.run(["cat"], input="grüß\n").stdout) == ("", "grüß\n")
    assert scope.run(["readlink", "/proc/self/fd/0"]).stdout == "/dev/null\n"


def test_run_moves_large_input_and_output_at_once(scope: CancelScope) -> None:
    text = "0123456789abcdef" * 200_000
    done = scope.run(["sh", "-c", "tee /dev/stderr"], input=text)
    assert done.stdout == text
    assert done.stderr == text


@pytest.mark.parametrize("seconds", [-1.0, 0.0])
def test_no_output_is_lost_on_a_slow_machine(
    scope: CancelScope, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Polling the output may take longer than the timeout."""
    monkeypatch.setattr("phases._process.POLL_SECONDS", seconds)
    text = "x" * 60_000
    done = scope.run(["sh", "-c", f"printf {text}; printf {text} >&2; sleep 0.05; printf !"])
    assert (done.stdout, done.stderr) == (f"{text}!", text)


def test_run_starts_no_program_in_a_cancelled_scope(scope: CancelScope, tmp_path: Path) -> None:
    scope.cancel("stop")
    with pytest.raises(Cancelled):
        scope.run(["touch", str(tmp_path / "ran")])
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "script",
    [
        "sleep 1000 & (sleep 1000 & echo $$ $! > FIFO; wait)",
        "trap '' TERM; sleep 1000 & echo $$ $! > FIFO; wait",
        "echo $$ > FIFO; exec cat /dev/zero",
        "echo $$ > FIFO; kill -STOP $$",
    ],
    ids=["tree", "ignores SIGTERM", "writes without end", "is stopped"],
)
def test_a_cancel_ends_the_program_and_its_children(
    scope: CancelScope, hotline: Hotline, script: str
) -> None:
    with hotline.then(lambda: scope.cancel("stop")), pytest.raises(Cancelled, match="stop"):
        scope.run(["sh", "-c", script.replace("FIFO", str(hotline.path))])
    leader, *others = hotline.numbers
    assert is_reaped(leader)
    assert all(map(is_gone, others))


def test_a_program_gets_sigterm_and_time_to_clean_up(tmp_path: Path) -> None:
    # On a busy machine, the short grace period may expire before the program runs.
    for number in range(20):
        scope, hotline = CancelScope(), Hotline(tmp_path / f"fifo{number}")
        script = (
            f"trap 'echo tidy > {tmp_path}/done; exit' TERM; "
            f"echo $$ > {hotline.path}; sleep 1000 & wait"
        )
        with hotline.then(partial(scope.cancel, "stop")), pytest.raises(Cancelled):
            scope.run(["sh", "-c", script])
        if (tmp_path / "done").exists():
            break
    assert (tmp_path / "done").exists()


def test_a_daemon_with_open_pipes_delays_nothing(scope: CancelScope, hotline: Hotline) -> None:
    daemon = f"setsid sh -c 'echo $$ > {hotline.path}; exec sleep 1000' &"
    with hotline.then(lambda: None):
        done = scope.run(["sh", "-c", f"{daemon} echo started"])
    os.kill(hotline.numbers[0], signal.SIGKILL)
    assert (done.returncode, done.stdout) == (0, "started\n")

    with hotline.then(lambda: scope.cancel("stop")), pytest.raises(Cancelled):
        scope.run(["sh", "-c", f"{daemon} wait"])
    os.kill(hotline.numbers[1], signal.SIGKILL)


def test_a_deadline_ends_the_program(hotline: Hotline) -> None:
    clock = FakeClock()
    scope = CancelScope(clock=clock)
    script = f"echo $$ > {hotline.path}; sleep 1000"
    with hotline.then(lambda: clock.advance(2)), pytest.raises(TimedOut, match=r"2 s") as caught:
        scope.child(timeout=2).run(["sh", "-c", script])
    assert caught.value.__notes__ == [f"while it ran sh -c '{script}'"]
    assert is_reaped(hotline.numbers[0])
    scope.check()


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("_round", range(by_day(2, by_night=5)))
def test_a_signal_handler_ends_the_program(
    scope: CancelScope, hotline: Hotline, raises: bool, _round: int
) -> None:
    def handle() -> None:
        if raises:
            raise KeyboardInterrupt
        scope.cancel("SIGUSR1")

    with (
        handling(signal.SIGUSR1, handle),
        hotline.then(lambda: os.kill(os.getpid(), signal.SIGUSR1)),
        pytest.raises(KeyboardInterrupt if raises else Cancelled),
    ):
        scope.run(["sh", "-c", f"sleep 0.1; echo $$ > {hotline.path}; sleep 1000"])
    assert is_reaped(hotline.numbers[0])


@pytest.fixture
def pythons_own() -> Iterator[None]:
    """Handle SIGINT as Python does, and check that it still does so at the end."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


class Ticking(SystemClock):
    """A clock that ticks whenever it is read."""

    def __init__(self) -> None:
        super().__init__()
        self._ticks = count()

    def monotonic(self) -> float:
        return next(self._ticks)


@pytest.mark.usefixtures("pythons_own")
def test_an_interrupt_as_a_program_starts_ends_it() -> None:
    """SIGINT is delivered at each line of ``Popen`` until the process is registered."""
    moment, is_reached, known = 0, True, children()
    traced = (
        subprocess.Popen.__init__,
        subprocess.Popen._execute_child,  # type: ignore[attr-defined]
    )
    while is_reached:
        moment += by_day(23, by_night=7)
        with (
            Interrupted(moment, *traced) as interrupted,
            pytest.raises((KeyboardInterrupt, TimedOut)) as ended,
        ):
            # The deadline passes right after the start, which is the third time that the child
            # reads the clock.
            CancelScope(clock=Ticking()).child(timeout=2).run(["sleep", "1000"])
        is_reached = interrupted.lines >= moment
        assert isinstance(ended.value, KeyboardInterrupt) == is_reached
        assert not isinstance(ended.value.__context__, TimedOut), "it came late"
        assert children() <= known
    assert moment > 50


def test_no_file_stays_open_however_a_program_ends(scope: CancelScope, tmp_path: Path) -> None:
    scope.run(["true"])
    gc.collect()  # or a collection meanwhile closes what earlier tests left
    before = len(list(Path("/proc/self/fd").iterdir()))
    scope.run(["cat"], input="x")
    with pytest.raises(TimedOut):
        scope.child(timeout=0.05).run(["sleep", "1000"], input="x" * 1_000_000)
    with pytest.raises(FileNotFoundError) as caught:
        scope.run([str(tmp_path / "missing")])
    assert not hasattr(caught.value, "__notes__")
    with pytest.raises(UnicodeEncodeError):
        scope.run(["cat"], input="\ud800")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_no_process_is_left_when_files_run_out(scope: CancelScope) -> None:
    before, outcomes = children(), set[str]()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    free = [number for number in range(len(opened) + 16) if number not in opened]
    try:
        # The lowest limit comes last, because a failing Popen leaks file descriptors in Python
        # 3.10.
        for limit in reversed(free[:16]):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            try:
                scope.child().run(["true"])
                outcomes.add("ran")
            except OSError as error:
                outcomes.add(errno.errorcode[error.errno or 0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert outcomes == {"EMFILE", "ran"}
    assert children() <= before


# --- undo -----------------------------------------------------------------------------------------


def change(*steps: Callable[[], None], error: BaseException | None = None) -> None:
    """Push some steps, and then raise the error, if any."""
    with all_or_nothing() as undo:
        for step in steps:
            undo.push(step)
        if error is not None:
            raise error


def test_a_failed_undo_is_noted_and_the_others_run() -> None:
    taken: list[str] = []

    def fail() -> None:
        raise OSError("disk full")

    with pytest.raises(ValueError, match="no") as caught:
        change(lambda: taken.append("first"), fail, error=ValueError("no"))
    assert taken == ["first"]
    assert caught.value.__notes__ == ["while putting things back: disk full"]


def test_an_interrupted_step_runs_once_more() -> None:
    taken: list[str] = []

    def interrupted(name: str, times: int) -> None:
        taken.append(name)
        if taken.count(name) <= times:
            raise KeyboardInterrupt

    undo = Undo()
    undo.push(lambda: taken.append("first"))
    undo.push(lambda: interrupted("twice", 2))
    undo.push(lambda: interrupted("once", 1))
    assert undo.roll_back() == ["KeyboardInterrupt()"] * 3
    assert taken == ["once", "once", "twice", "twice", "first"]


class Interrupt(BaseException):
    """A substitute for KeyboardInterrupt, which would end pytest."""


def interrupt() -> None:
    raise Interrupt


def test_an_interrupt_between_steps_skips_none() -> None:
    """Every step runs, even if a signal handler raises an exception at any line after the first
    step has begun.
    """
    moment, is_reached = 0, True
    while is_reached:
        moment += 1
        taken: list[str] = []
        undo = Undo()
        for name in ("first", "second", "last"):
            undo.push(partial(taken.append, name))
        with Interrupted(
            moment, Undo.roll_back, Undo._take_last, act=interrupt, begun=taken
        ) as interrupted:
            problems = undo.roll_back()
        is_reached = interrupted.lines >= moment
        assert problems == ["Interrupt()"] * is_reached
        assert list(dict.fromkeys(taken)) == ["last", "second", "first"]
    assert moment > 6


# --- Python's own Ctrl-C --------------------------------------------------------------------------


BEHIND = (type(all_or_nothing()).__exit__, Undo.roll_back, Undo._take_last)


@pytest.mark.usefixtures("pythons_own")
@pytest.mark.parametrize("is_inner", [False, True])
def test_an_interrupt_waits_for_the_end_of_the_rollback(is_inner: bool) -> None:
    """The interrupt may occur at any line after the block has failed."""
    moment, is_reached = 0, True
    while is_reached:
        moment += 1
        taken: list[str] = []
        ended: BaseException | None = None
        with Interrupted(moment, *BEHIND) as interrupted:
            try:
                with all_or_nothing() if is_inner else nullcontext():
                    change(
                        partial(taken.append, "first"),
                        partial(taken.append, "last"),
                        error=ValueError("no"),
                    )
            except (KeyboardInterrupt, ValueError) as error:
                ended = error
        is_reached = interrupted.lines >= moment
        assert taken == ["last", "first"]
        assert isinstance(ended, KeyboardInterrupt if is_reached else ValueError)
    assert moment > 10


@pytest.mark.usefixtures("pythons_own")
def test_an_interrupt_ends_no_program_of_the_rollback() -> None:
    ran: list[str] = []

    def run() -> None:
        signal.raise_signal(signal.SIGINT)
        ran.append(CancelScope().run(["echo", "back"]).stdout)

    with pytest.raises(KeyboardInterrupt), all_or_nothing() as undo:  # noqa: PT012
        undo.push(run)
        signal.raise_signal(signal.SIGINT)
        ran.append("it went on")
    assert ran == ["back\n"]


@pytest.mark.usefixtures("pythons_own")
def test_an_interrupt_has_the_notes_of_the_rollback_for_which_it_waits() -> None:
    def fail() -> None:
        signal.raise_signal(signal.SIGINT)
        raise ValueError("no space left")

    with pytest.raises(KeyboardInterrupt) as caught:
        change(fail, error=KeyError("a bug"))
    assert caught.value.__notes__ == ["while putting things back: no space left"]


def test_the_programs_own_handler_stays() -> None:
    heard: list[str] = []
    with handling(signal.SIGINT, lambda: heard.append("SIGINT")), all_or_nothing():
        signal.raise_signal(signal.SIGINT)
    assert heard == ["SIGINT"]


@pytest.mark.usefixtures("pythons_own")
def test_a_handler_that_is_set_within_stays() -> None:
    with all_or_nothing():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is signal.SIG_IGN


@pytest.mark.usefixtures("pythons_own")
def test_only_the_main_thread_is_interrupted() -> None:
    """Another thread may change something, also while the interrupt waits for the main thread's
    rollback.
    """
    taken: list[str] = []

    def change_another_thing() -> None:
        change()
        taken.append("other")

    def put_back() -> None:
        signal.raise_signal(signal.SIGINT)
        with ThreadPoolExecutor(1) as another:
            another.submit(change_another_thing).result()

    with ThreadPoolExecutor(1) as another:
        another.submit(change_another_thing).result()
    with pytest.raises(KeyboardInterrupt):
        change(put_back, error=ValueError("no"))
    assert taken == ["other"] * 2


# --- wrong arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", ["echo hi", b"echo", None, 5])
def test_a_command_that_is_no_list_is_refused(argv: Any) -> None:
    with pytest.raises(
        TypeError, match="expected a list of the program and its arguments, such as"
    ):
        CancelScope().run(argv)


def test_an_empty_command_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a program and its arguments, not an empty list"):
        CancelScope().run([])


def test_a_command_may_have_paths() -> None:
    """They are in the note of a cancellation, too."""
    argv: Any = [Path("/bin/sleep"), b"3600"]
    with pytest.raises(TimedOut) as caught:
        CancelScope(timeout=0.05).run(argv)
    assert caught.value.__notes__ == ["while it ran /bin/sleep 3600"]


async def restore() -> None: ...


@pytest.mark.parametrize("step", [None, "x", restore, partial(restore)])
def test_a_step_that_is_no_function_is_refused(step: Any) -> None:
    undo = Undo()
    with pytest.raises(TypeError, match="a rollback step is a (plain )?function"):
        undo.push(step)
    assert undo.roll_back() == []


def test_a_step_that_returns_a_coroutine_fails() -> None:
    """It has restored nothing, and the other steps run."""
    undone: list[str] = []
    undo = Undo()
    undo.push(lambda: undone.append("first"))
    step: Any = lambda: restore()  # noqa: E731 - it isn't an async function itself
    undo.push(step)
    (problem,) = undo.roll_back()
    assert problem.startswith("a rollback step is a plain function; it runs in a thread")
    assert undone == ["first"]
