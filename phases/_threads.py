"""Threads that are waited for, whatever a signal handler does to the one that waits."""

from __future__ import annotations

import _thread
import queue
import threading
import time
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING

from phases._clock import POLL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LAST_STEPS_SECONDS = 0.0002


def run_aside(work: Callable[[], None], *, on_interrupt: Callable[[BaseException], None]) -> None:
    """Do a work where no signal handler can raise in its midst: in a thread that is not the main one.

    Args:
        work: what to do; must not raise.
        on_interrupt: is called with what a signal handler raises here meanwhile, or with the error if no
            more threads can be started; what hasn't begun by then is not done.
    """
    aside = _Aside(work)
    while True:
        try:
            aside.begin()
            aside.wait()
        except BaseException as error:  # noqa: BLE001 - given to the caller
            aside.is_interrupted = True
            on_interrupt(error)
        else:
            return


def run_threads(
    works: Sequence[tuple[str, Callable[[], None]]], *, on_interrupt: Callable[[BaseException], None]
) -> None:
    """Do each work in a thread of its own, at the same time, and return once all those threads have ended.

    Args:
        works: each a name for the thread and what it does, which must not raise.
        on_interrupt: is called with what a signal handler raises here meanwhile, or with the error if no
            more threads can be started, so that it can tell the works to end.
    """
    done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def do(work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            done.put(None)

    threads = [threading.Thread(target=copy_context().run, args=(do, work), name=name) for name, work in works]

    def launch() -> None:
        started = []
        try:
            for thread in threads:
                thread.start()
                started.append(thread)
        except RuntimeError as error:
            on_interrupt(error)
        for _ in started:
            done.get()
        # Not join: that would leave a threading._DummyThread for this thread.
        while any(thread.is_alive() for thread in started):
            time.sleep(_LAST_STEPS_SECONDS)

    # Thread.start and join don't bear it when a signal handler raises in their midst: locks stay taken, live
    # threads count as ended.
    run_aside(launch, on_interrupt=on_interrupt)


class _Aside:
    """A thread that is started by a single call.

    If that is interrupted nobody knows whether it ever runs: so whoever claims the work first, it or the one
    who waits, decides whether there is anything to wait for.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.is_interrupted = False
        self._work = work
        self._claims: dict[str, bool] = {}
        self._has_begun = False
        self._is_over = False
        self._over: queue.SimpleQueue[None] = queue.SimpleQueue()

    def begin(self) -> None:
        """Start it, once."""
        if not self._has_begun:
            self._has_begun = True
            _thread.start_new_thread(self._do, ())

    def wait(self) -> None:
        """Wait until the work is done; after an interrupt only if it has begun."""
        while not self._is_over and not (self.is_interrupted and not self._claims.setdefault("begun", False)):
            with suppress(queue.Empty):
                self._over.get(timeout=POLL_SECONDS)

    def _do(self) -> None:
        if self._claims.setdefault("begun", True):
            try:
                self._work()
            finally:
                self._is_over = True
                self._over.put(None)
