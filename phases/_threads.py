"""Threads that are waited for, whatever a signal handler does to the one that waits."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


POLL_SECONDS = 0.025
_LONGEST_WAIT_SECONDS = 3600.0


def longest_wait() -> float:
    """Give the seconds for which this thread may block at a stretch, if it is to see signals in time.

    Signal handlers run in the main thread only, and a signal that comes between its last line and the
    blocking system call doesn't interrupt that (https://docs.python.org/3/library/signal.html).
    """
    is_main = threading.current_thread() is threading.main_thread()
    return POLL_SECONDS if is_main else _LONGEST_WAIT_SECONDS


def run_threads(
    works: Sequence[tuple[str, Callable[[], None]]], *, on_interrupt: Callable[[BaseException], None]
) -> BaseException | None:
    """Do each work in a thread of its own, at the same time, and return once all those threads have ended.

    Args:
        works: each a name for the thread and what it does, which must not raise.
        on_interrupt: is called with what a signal handler has raised in the calling thread, or with the
            error if no more threads can be started; what hasn't begun by then is not done.

    Returns:
        The first such exception, for the caller to raise.
    """
    claims: dict[int, bool] = {}
    done: set[int] = set()
    # Waited on instead of the threads: Thread.join can't bear to be interrupted (_wait_for_tstate_lock in 3.11).
    news: queue.SimpleQueue[int] = queue.SimpleQueue()

    def do(index: int) -> None:
        try:
            if claims.setdefault(index, True):
                works[index][1]()
        finally:
            done.add(index)
            news.put(index)

    threads = [
        threading.Thread(target=copy_context().run, args=(do, index), name=name)
        for index, (name, _) in enumerate(works)
    ]
    starting, ending = threads, set(range(len(threads)))
    first: BaseException | None = None
    while True:
        try:
            for thread in starting:
                thread.start()
            while not done.issuperset(ending):
                with suppress(queue.Empty):
                    news.get(timeout=longest_wait())
        except BaseException as error:  # noqa: BLE001 - given back
            first = error if first is None else first
            on_interrupt(error)
            # Nobody knows whether a thread whose start was interrupted runs or ever will: so whoever claims
            # its work first, we or the thread, decides whether it is done and has to be waited for.
            starting = []
            ending = {index for index in ending if claims.setdefault(index, False)}
        else:
            break
    if first is None:
        for thread in threads:
            thread.join()
    return first
