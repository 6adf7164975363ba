"""Time and processor time of a function or a program, alternately with those of another."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Span", "adopt_orphans", "alternate", "run", "timed"]

T = TypeVar("T")

_PR_SET_CHILD_SUBREAPER = 36


@attrs.frozen
class Span:
    """How long something took.

    Args:
        wall: in seconds.
        cpu: the processor time of this process and all that it started, user and system, in seconds.
    """

    wall: float
    cpu: float

    def __add__(self, other: Span) -> Span:
        return Span(self.wall + other.wall, self.cpu + other.cpu)


def timed(function: Callable[[], T]) -> tuple[Span, T]:
    """Call a function.

    Args:
        function: takes nothing.

    Returns:
        How long it took, and its result.
    """
    gc.collect()
    cpu, start = _cpu(), time.perf_counter()
    result = function()
    wall = time.perf_counter() - start
    _reap()
    return Span(wall, _cpu() - cpu), result


def alternate(rounds: int, *contenders: Callable[[], Span]) -> tuple[list[Span], ...]:
    """Run contenders in turns, every other time in the opposite order.

    Args:
        rounds: how often each.
        contenders: each prepares its world, measures, and verifies what became of it.

    Returns:
        For each of them its spans.
    """
    spans: tuple[list[Span], ...] = tuple([] for _ in contenders)
    for number in range(rounds):
        turns = list(zip(contenders, spans, strict=True))
        for contender, found in turns[::-1] if number % 2 else turns:
            found.append(contender())
    return spans


def run(*words: str | Path, stdin: Path | None = None, stdout: Path | None = None) -> None:
    """Run a program in this thread's network namespace; files are its ends, so that nobody has to feed it.

    Raises:
        subprocess.CalledProcessError: it failed; what it said is on standard error.
    """
    with open(stdin or os.devnull, "rb") as taken, open(stdout or os.devnull, "wb") as given:
        subprocess.run(words, stdin=taken, stdout=given, check=True)


def adopt_orphans() -> None:
    """Let the processor time of what a script starts and doesn't wait for be counted: it becomes this process's child.

    bash never waits for process substitutions, in which the boot scripts run ip.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _reap() -> None:
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _cpu() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
