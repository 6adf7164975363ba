"""Measurements of the time and processor time that functions and programs take, side by side."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

_PR_SET_CHILD_SUBREAPER = 36


class Span(NamedTuple):
    """A single measurement.

    Args:
        value: the time in seconds, or the memory in bytes.
        cpu: the processor time of this process and its children in seconds, or 0 if it doesn't
            matter.
    """

    value: float
    cpu: float = 0.0


Contender = Callable[[], Span]
"""A function that prepares a world, measures one side of a comparison, and verifies the result."""


def timed(function: Callable[[], T]) -> tuple[Span, T]:
    """Call a function, and return how long it took and its result."""
    gc.collect()
    cpu, start = _cpu(), time.perf_counter()
    result = function()
    wall = time.perf_counter() - start
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    return Span(round(wall, 6), round(_cpu() - cpu, 6)), result


def side_by_side(rounds: int, *contenders: Contender) -> list[tuple[Span, ...]]:
    """Run the contenders in turns, every other round in reverse order, and return the rounds."""
    steps = [1, -1] * rounds
    return [
        tuple([contender() for contender in contenders[::step]][::step]) for step in steps[:rounds]
    ]


def run(*words: str | Path, stdin: Path | None = None, stdout: Path | None = None) -> None:
    """Run a program in the network namespace of this thread, with files as its input and output.

    Raises:
        subprocess.CalledProcessError: the program failed. Its messages are on standard error.
    """
    with open(stdin or os.devnull, "rb") as taken, open(stdout or os.devnull, "wb") as given:
        subprocess.run(words, stdin=taken, stdout=given, check=True)


def adopt_orphans() -> None:
    """Become the parent of orphaned processes, so that their processor time counts.

    The boot scripts run ip in process substitutions, and bash never waits for these.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _cpu() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
