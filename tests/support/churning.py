"""A host on which something changes hundreds of times a second."""

from __future__ import annotations

import subprocess
import threading
from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PER_SECOND = 300


@contextmanager
def churning(steps: Sequence[str], per_second: int = PER_SECOND) -> Iterator[None]:
    """Run ip commands in rotation, in this thread's network namespace, until the context ends.

    Args:
        steps: the commands for ``ip -batch``.
        per_second: the number of commands per second, if the machine is fast enough.
    """
    ip = subprocess.Popen(["ip", "-batch", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    is_over = threading.Event()

    def feed() -> None:
        assert ip.stdin is not None
        for step in cycle(steps):
            if is_over.wait(1 / per_second):
                return
            print(step, file=ip.stdin, flush=True)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield
    finally:
        is_over.set()
        feeder.join()
        _, said = ip.communicate()
    assert (ip.returncode, said) == (0, "")
