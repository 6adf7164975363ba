"""Build hosts with commands, and change them continually."""

from __future__ import annotations

import socket
import struct
import subprocess
from contextlib import contextmanager
from itertools import cycle as cyclic
from itertools import groupby, takewhile
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# Without this pause, the checks would get too little processor time.
_PAUSE_SECONDS = 0.002

# linux/rtnetlink.h, linux/fib_rules.h
_RTM_NEWRULE, _REQUEST_CREATE, _FR_ACT_TO_TBL = 32, 0x605, 1
_FRA_PRIORITY, _FRA_TABLE, _FRA_DSCP, _FRA_DSCP_MASK = 6, 15, 25, 30


def make(steps: Sequence[str], settle: Callable[[], None]) -> None:
    """Run commands, and ignore those that the kernel refuses.

    Args:
        steps: the commands.
        settle: a function to call before commands other than ip. It waits until the routes reflect every carrier.
    """
    for program, some in groupby(steps, _program):
        if program == "ip":
            batch = "".join(map(_as_batch, some))
            subprocess.run(["ip", "-batch", "-", "-force"], input=batch, text=True, capture_output=True, check=False)
            continue
        settle()
        for step in some:
            if program == "sysctl":
                name, _, value = step.split()[-1].partition("=")
                Path("/proc/sys", name.replace(".", "/")).write_text(value)
            elif program == "dscp":
                _add_dscp_rule(*step.split()[4:9:2])
            else:
                subprocess.run(["sh", "-c", step], capture_output=True, check=True)


@contextmanager
def flapping(cycle: Sequence[str]) -> Iterator[None]:
    """Keep running commands of ip(8), a few hundred per second, until the context ends."""
    ip = subprocess.Popen(
        ["ip", "-batch", "-", "-force"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    is_over = Event()

    def feed() -> None:
        assert ip.stdin is not None
        with ip.stdin as words:
            for step in takewhile(lambda _: not is_over.wait(_PAUSE_SECONDS), cyclic(cycle)):
                words.write(_as_batch(step).encode())
                words.flush()

    feeder = Thread(target=feed, daemon=True)
    feeder.start()
    try:
        yield
    finally:
        is_over.set()
        feeder.join()
        ip.wait()


def _program(step: str) -> str:
    if " dscp " in step:
        return "dscp"
    return step.split()[0] if step.startswith(("ip ", "sysctl ")) else "sh"


def _as_batch(step: str) -> str:
    return f"{step.removeprefix('ip ')}\n"


def _add_dscp_rule(preference: str, dscp: str, table: str) -> None:
    """Add a rule with a DSCP, which ip(8) has supported since 6.13, or since 6.16 if it has a mask."""
    value, _, mask = dscp.partition("/")
    attributes = struct.pack("=HHIHHI", 8, _FRA_PRIORITY, int(preference), 8, _FRA_TABLE, int(table))
    attributes += struct.pack("=HHB3x", 5, _FRA_DSCP, int(value, 0))
    if mask:
        attributes += struct.pack("=HHB3x", 5, _FRA_DSCP_MASK, int(mask, 0))
    header = struct.pack("=8BI", socket.AF_INET, 0, 0, 0, 0, 0, 0, _FR_ACT_TO_TBL, 0)
    message = struct.pack("=IHHII", 16 + len(header) + len(attributes), _RTM_NEWRULE, _REQUEST_CREATE, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.bind((0, 0))
        kernel.send(message + header + attributes)
        kernel.recv(4096)
