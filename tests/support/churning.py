"""A host that changes hundreds of times a second."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle

from node import as_batch

_PER_SECOND = 300


@contextmanager
def churning(steps: Sequence[str], *, may_fail: bool = False) -> Iterator[None]:
    """Run ip commands in a loop in this thread's network namespace until the context exits.

    Args:
        steps: the commands, with or without the name of the program.
        may_fail: whether commands may fail.
    """
    command = ["ip", "-batch", "-", *(["-force"] if may_fail else [])]
    ip = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    is_over = threading.Event()

    def feed() -> None:
        assert ip.stdin is not None
        for step in cycle(map(as_batch, steps)):
            if is_over.wait(1 / _PER_SECOND):
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
    assert may_fail or (ip.returncode, said) == (0, "")
