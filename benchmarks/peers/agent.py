"""Run a command on a machine, and follow the kernel's routes until the machine is idle.

Reads a JSON object from its input, and prints one. It runs outside of the machine's cgroup, so its
own work doesn't count. It imports no module of the project.
"""

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
_SO_RCVBUFFORCE, _RTMGRP_IPV4_ROUTE = 33, 0x40
_RTM_NEWROUTE, _RTM_DELROUTE, _RTA_DST = 24, 25, 1
_IDLE_SECONDS, _IDLE_CPU = 1.0, 0.02
_AT_ONCE = 50


def destinations() -> set[str]:
    """Return the destinations of the measured routes, which are those in 11.0.0.0/8."""
    shown = subprocess.run(
        ["ip", "-4", "route", "show", "table", "main"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {line.split()[0] for line in shown.stdout.splitlines() if line.startswith("11.")}


def cpu() -> float:
    """Return the CPU time of the machine in seconds."""
    return int((CGROUP / "cpu.stat").read_text().split()[1]) / 1e6


def events(data: bytes) -> Iterator[tuple[int, str]]:
    """Parse netlink messages, and return the kind and destination of each measured route."""
    at = 0
    while at < len(data):
        size, kind = struct.unpack_from("=IH", data, at)
        field, end = at + 28, at + size
        while field < end:
            length, attribute = struct.unpack_from("=HH", data, field)
            if (
                attribute == _RTA_DST
                and data[field + 4] == 11
                and kind in (_RTM_NEWROUTE, _RTM_DELROUTE)
            ):
                yield kind, f"{socket.inet_ntoa(data[field + 4 : field + 8])}/{data[at + 17]}"
            field += (length + 3) & ~3
        at += (size + 3) & ~3


def received(source: socket.socket) -> Iterator[tuple[int, str]]:
    """Read the next messages, but not all of many, so that the caller can act in their midst."""
    for _ in range(_AT_ONCE):
        try:
            yield from events(source.recv(1 << 20))
        except BlockingIOError:
            break


def memory(unit: str) -> int:
    """Return the resident memory of a unit's processes in bytes."""
    folder = CGROUP / "system.slice" / unit
    pids = (
        [pid for path in folder.rglob("cgroup.procs") for pid in path.read_text().split()]
        if unit
        else []
    )
    return sum(
        int(Path("/proc", pid, "statm").read_text().split()[1]) for pid in pids
    ) * os.sysconf("SC_PAGESIZE")


def enter() -> None:
    """Move this process into the machine's cgroup."""
    (CGROUP / "measured" / "cgroup.procs").write_text("0")


def follow(
    wanted: set[str], argv: list[str], unit: str, limit: float, kill_after: int, patience: float
) -> dict[str, object]:
    """Run the command, and return the observations.

    Args:
        wanted: the destinations of the routes that the command should leave.
        argv: the command.
        unit: the daemon's unit, or an empty string.
        limit: after how many seconds to stop, even if the machine isn't idle.
        kill_after: after how many writes to kill the command and the daemon, or 0.
        patience: for how many seconds to wait for a repair after that.
    """
    (CGROUP / "measured").mkdir(exist_ok=True)
    there, writes, left = destinations(), 0, None
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as source:
        source.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 28)
        source.bind((0, _RTMGRP_IPV4_ROUTE))
        source.setblocking(False)
        cpu_before, start = cpu(), time.monotonic()
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=enter,
            start_new_session=True,
        )
        ended = complete = None
        busy, used = start, cpu_before
        while (now := time.monotonic()) < start + limit and (
            now < busy + _IDLE_SECONDS or ended is None
        ):
            select.select([source], [], [], 0.02)
            for kind, destination in received(source):
                writes += 1
                (there.add if kind == _RTM_NEWROUTE else there.discard)(destination)
                busy = time.monotonic()
                complete = busy - start if there == wanted else None
            if kill_after and writes >= kill_after and left is None:
                kill(process.pid, unit)
                left, start, limit = len(destinations()), time.monotonic(), patience
            if ended is None and process.poll() is not None:
                ended = time.monotonic() - start
            if cpu() > used + _IDLE_CPU:
                busy, used = time.monotonic(), cpu()
            if kill_after and there != wanted:
                busy = time.monotonic()  # it may still repair the table
        spent = cpu() - cpu_before
    if there == wanted and not writes:
        complete = ended
    if ended is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return {
        "exit": process.returncode,
        "returned": ended,
        "complete": complete,
        "cpu": round(spent, 4),
        "writes": writes,
        "there": len(destinations() & wanted),
        "other": len(destinations() - wanted),
        "memory": memory(unit),
        "left": left,
    }


def kill(pid: int, unit: str) -> None:
    """Kill the command with its children, and every process of a unit."""
    with suppress(ProcessLookupError):  # it has handed the work to the daemon, and ended
        os.killpg(pid, signal.SIGKILL)
    if unit:
        (CGROUP / "system.slice" / unit / "cgroup.kill").write_text("1")


if __name__ == "__main__":
    task = json.load(sys.stdin)
    sys.stdout.write(json.dumps(follow(set(task.pop("wanted")), **task)))
