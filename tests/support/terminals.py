"""Terminals that block output because they are stopped by Ctrl-S or full."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
from node import until

PATIENCE_SECONDS = 30.0
CTRL_S = b"\x13"


@attrs.frozen
class Terminal:
    """A pseudo-terminal.

    Args:
        controller: file descriptor of the pty's controlling end.
        path: the program's terminal device.
    """

    controller: int
    path: str

    def read_until(self, words: bytes) -> bytes:
        """Read until the terminal shows the given text, and return all output up to it."""
        shown = b""
        while words not in shown:
            assert select.select([self.controller], [], [], PATIENCE_SECONDS)[0], shown
            shown += os.read(self.controller, 4096)
        return shown

    def stall(self, how: str) -> None:
        """Make the terminal block output, by pressing ``Ctrl-S`` or because it is ``full``."""
        if how == "Ctrl-S":
            os.write(self.controller, CTRL_S)
        terminal = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            poll = select.poll()
            poll.register(terminal, select.POLLOUT)
            # The kernel forwards the output asynchronously, which frees some space.
            while poll.poll(100):
                with suppress(BlockingIOError):
                    os.write(terminal, b"." * 256)
        finally:
            os.close(terminal)


@contextmanager
def opened() -> Iterator[Terminal]:
    """Open a pseudo-terminal."""
    controller, terminal = pty.openpty()
    try:
        yield Terminal(controller, os.ttyname(terminal))
    finally:
        os.close(terminal)
        os.close(controller)


def await_looks(pid: int, count: int = 24) -> None:
    """Wait for this many voluntary context switches, after which the process has at least tried to
    draw.
    """
    status = Path(f"/proc/{pid}/status")

    def waits() -> int:
        return int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    end, seen = time.monotonic() + PATIENCE_SECONDS, waits()
    while waits() < seen + count and time.monotonic() < end:
        time.sleep(0.01)


def await_file(path: Path, process: subprocess.Popen[bytes]) -> None:
    until(lambda: path.exists() or process.poll() is not None)
    assert path.exists()
