from __future__ import annotations

import signal
import sys
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from phases import Cancelled, CancelScope, Undo, all_or_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


def change(*steps: Callable[[], None], error: BaseException | None = None) -> None:
    """Push some steps, and then raise the error, if any."""
    with all_or_nothing() as undo:
        for step in steps:
            undo.push(step)
        if error is not None:
            raise error


def test_a_success_is_not_undone() -> None:
    taken: list[str] = []
    change(lambda: taken.append("undone"))
    assert taken == []


@pytest.mark.parametrize("error", [ValueError("no"), Cancelled("stop")])
def test_a_failure_or_cancel_undoes_the_last_step_first(error: BaseException) -> None:
    taken: list[str] = []
    with pytest.raises(type(error)) as caught:
        change(lambda: taken.append("first"), lambda: taken.append("last"), error=error)
    assert taken == ["last", "first"]
    assert not hasattr(caught.value, "__notes__")


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


def roll_back_interrupted(undo: Undo, begun: list[str], moment: int) -> bool:
    """Roll back, with an interrupt at a line of Undo after the first step has begun; return whether it was reached."""
    lines = 0
    codes = {Undo.roll_back.__code__, Undo._take_last.__code__}

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        if event == "line" and begun:
            lines += 1
            if lines == moment:
                raise Interrupt
        return trace

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: trace if frame.f_code in codes else None)
    try:
        undo.roll_back()
    finally:
        sys.settrace(before)
    return lines >= moment


def test_an_interrupt_between_steps_skips_none() -> None:
    """Every step runs, even if a signal handler raises an exception at any line after the first step has begun."""
    moment, is_reached = 0, True
    while is_reached:
        moment += 1
        taken: list[str] = []
        undo = Undo()
        for name in ("first", "second", "last"):
            undo.push(partial(taken.append, name))
        is_reached = roll_back_interrupted(undo, taken, moment)
        assert list(dict.fromkeys(taken)) == ["last", "second", "first"]
    assert moment > 6


# --- Python's own Ctrl-C --------------------------------------------------------------------------------------------


class Interrupted:
    """A trace function that sends SIGINT to this process at a given line of certain functions."""

    def __init__(self, moment: int, *functions: Callable[..., object]) -> None:
        self.codes = {function.__code__ for function in functions}
        self.moment, self.lines = moment, 0

    def __enter__(self) -> Interrupted:
        self._before = sys.gettrace()
        sys.settrace(lambda frame, *_: self._trace if frame.f_code in self.codes else None)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, _frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self.moment:
                signal.raise_signal(signal.SIGINT)
        return self._trace


@pytest.fixture
def pythons_own() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


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
                    change(partial(taken.append, "first"), partial(taken.append, "last"), error=ValueError("no"))
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
        raise AssertionError("it went on")
    assert ran == ["back\n"]


def test_the_programs_own_handler_stays() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with all_or_nothing():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]
