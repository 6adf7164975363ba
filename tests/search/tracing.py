"""Pause a program and its children before system calls with external effects, using ptrace(2).

A seccomp(2) filter selects the calls, because stopping at every call would make a start ten times
slower.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import attrs
from typing_extensions import Self

from hostrouting.kernel.rtnetlink.messages import RTM_GETLINK

# Message types come in groups of four, like RTM_GETLINK and RTM_GETROUTE.
_GET = RTM_GETLINK % 4
# From sys/ptrace.h.
_TRACEME, _CONT, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 7, 0x4200, 0x420E
_FORK, _VFORK, _CLONE, _SECCOMP, _EXITKILL = 0x2, 0x4, 0x8, 0x80, 0x100000
_SECCOMP_EVENT = 7
_WALL = 0x40000000

# From sys/prctl.h, linux/seccomp.h and linux/filter.h.
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD_NUMBER, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_TRACE, _ALLOW = 0x7FF00000, 0x7FFF0000
_INSTRUCTION = struct.Struct("=HBBI")

# struct ptrace_syscall_info: op, three padding bytes, arch, two pointers, the syscall number and
# six arguments.
_INFO = struct.Struct("=B3xIQQQ6Q")
# The length and the type of a netlink message.
_NETLINK = struct.Struct("=IH")

MACHINE = platform.machine()

# From asm/unistd.h: each call, the index of its path argument, and its number on x86_64 and on
# aarch64.
_NUMBERS = (
    ("openat", 1, 257, 56),
    ("execve", 0, 59, 221),
    ("rename", 0, 82, None),
    ("renameat", 1, 264, 38),
    ("renameat2", 1, 316, 276),
    ("unlink", 0, 87, None),
    ("unlinkat", 1, 263, 35),
    ("rmdir", 0, 84, None),
    ("mkdir", 0, 83, None),
    ("mkdirat", 1, 258, 34),
    ("symlink", 1, 88, None),
    ("symlinkat", 2, 266, 36),
    ("link", 1, 86, None),
    ("linkat", 3, 265, 37),
    ("chmod", 0, 90, None),
    ("fchmodat", 1, 268, 53),
    ("stat", 0, 4, None),
    ("newfstatat", 1, 262, 79),
    ("statx", 1, 332, 291),
    ("access", 0, 21, None),
    ("faccessat", 1, 269, 48),
    ("faccessat2", 1, 439, 439),
    ("flock", None, 73, 32),
    ("sendto", None, 44, 206),
    ("sendmsg", None, 46, 211),
)
_CALLS = {
    number: (name, place)
    for name, place, *both in _NUMBERS
    if (number := both[MACHINE == "aarch64"]) is not None
}
_READING = {"stat", "newfstatat", "statx", "access", "faccessat", "faccessat2"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_PLACES = (
    *(
        "/etc/hostrouting",
        "/etc/aks-flex-node",
        "/run/aks-flex-node",
        "/etc/systemd/system",
        "/ns/net",
        "/fd/255",
    ),
    "/run/search/loaded",
)
_PROGRAMS = ("/ip", "/awk", "/flock", "/timeout")
_PATH_BYTES = 256


@attrs.frozen
class Stopped:
    """The program is paused just before this call."""

    call: str


@attrs.frozen
class Exited:
    """The exit status and all recorded calls of a finished program."""

    status: int
    calls: tuple[str, ...]


class Traced:
    """A function that runs in a traced process, with the processes that it starts.

    Args:
        run: the function; the process ends with it.
        said: the file for its output.
        stop: the number of the call to pause before, or 0 to never pause.
        is_reading: whether calls that only read count, too.
    """

    def __init__(
        self, run: Callable[[], object], said: IO[bytes], stop: int = 0, *, is_reading: bool = False
    ) -> None:
        self._connection, there = Pipe()
        self._state: Stopped | Exited | None = None  # None while it runs
        self._pid = os.fork()
        if self._pid == 0:
            self._connection.close()
            _be_the_tracer(run, said.fileno(), there, is_reading)
        there.close()
        self._connection.send(stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._connection.close()

    def poll(self, seconds: float) -> Stopped | Exited | None:
        """Wait until the program is paused or has finished. Return None on timeout."""
        if self._state is None and self._connection.poll(seconds):
            state = self._connection.recv()
            assert isinstance(state, Stopped | Exited), state
            self._state = state
        return self._state

    def go(self, stop: int = 0) -> None:
        """Resume a paused program until a given call or until it finishes."""
        if self.is_standing:
            self._state = None
            self._connection.send(stop)

    def kill(self) -> None:
        """Kill the program and the processes that it has started."""
        if not self.is_killed:
            os.kill(self._pid, signal.SIGKILL)  # this also kills the processes that it traces
            os.waitpid(self._pid, 0)
            self._pid = 0

    @property
    def is_standing(self) -> bool:
        """Return whether the program is paused."""
        return isinstance(self._state, Stopped)

    @property
    def is_killed(self) -> bool:
        """Return whether the program was killed."""
        return self._pid == 0

    @property
    def program(self) -> int:
        """Return the program's PID, or 0 if it has finished."""
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the program and the processes that it has started."""
        if program := self.program:
            os.killpg(program, number)


def _be_the_tracer(
    run: Callable[[], object], said: int, connection: Connection[Any, Any], is_reading: bool
) -> None:
    """Trace the program in the forked child, and never return to the parent's code."""
    try:
        connection.send(_trace(run, said, connection, is_reading))
        connection.recv()  # the parent kills this process here, or has ended
    except EOFError:
        pass
    except OSError as error:
        connection.send(f"it can't be traced: {error}")
    finally:
        os._exit(0)


def _trace(
    run: Callable[[], object], said: int, connection: Connection[Any, Any], is_reading: bool
) -> Exited:
    stop, calls, status = connection.recv(), list[str](), 127
    first = os.fork()
    if first == 0:
        _be_the_program(run, said)
    os.waitpid(first, _WALL)
    _ptrace(_SETOPTIONS, first, 0, _FORK | _VFORK | _CLONE | _SECCOMP | _EXITKILL)
    _ptrace(_CONT, first, 0, 0)
    while True:
        try:
            pid, state = os.waitpid(-1, _WALL)
        except ChildProcessError:
            return Exited(status, tuple(calls))
        if not os.WIFSTOPPED(state):
            status = os.waitstatus_to_exitcode(state) if pid == first else status
            continue
        caught = os.WSTOPSIG(state)
        call = _call(pid, is_reading) if state >> 16 == _SECCOMP_EVENT else None
        if call is not None:
            calls.append(call)
            if len(calls) == stop:
                connection.send(Stopped(call))
                stop = connection.recv()
        # A new child starts with SIGSTOP. SIGTRAP indicates a system call, fork or exec.
        is_ours = caught in (signal.SIGSTOP, signal.SIGTRAP)
        try:
            _ptrace(_CONT, pid, 0, 0 if is_ours else caught)
        except ProcessLookupError:
            continue  # another process has killed it


def _be_the_program(run: Callable[[], object], said: int) -> None:
    status = 203  # EXIT_EXEC of systemd
    try:
        os.setsid()
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        _ptrace(_TRACEME, 0, 0, 0)
        _have_calls_looked_into()
        os.kill(os.getpid(), signal.SIGSTOP)
        run()
        status = 0
    finally:
        os._exit(status)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class _Program(ctypes.Structure):
    """The C structure ``sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _have_calls_looked_into() -> None:
    """Install a seccomp filter that reports relevant calls of this process and its children to the
    tracer.
    """
    numbers = sorted(_CALLS)
    # On a match, jump over the remaining comparisons and the ALLOW return.
    rows = [(_IF_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    rows = [(_LOAD_NUMBER, 0, 0, 0), *rows, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _TRACE)]
    program = _Program(len(rows), b"".join(_INSTRUCTION.pack(*row) for row in rows))
    _prctl(_SET_NO_NEW_PRIVS, 1, 0)
    _prctl(_SET_SECCOMP, _FILTER, ctypes.addressof(program))


def _prctl(option: int, value: int, pointer: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_void_p(pointer), None, None) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _ptrace(request: int, pid: int, address: int, data: Any) -> None:
    if _libc.ptrace(request, pid, address, data) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _call(pid: int, is_reading: bool) -> str | None:
    """Return a process's pending call, or None if it doesn't count."""
    info = ctypes.create_string_buffer(_INFO.size)
    try:
        _ptrace(_GET_SYSCALL_INFO, pid, _INFO.size, ctypes.addressof(info))
    except ProcessLookupError:
        return None
    _, _, _, _, number, *arguments = _INFO.unpack(info.raw)
    name, place = _CALLS[number]
    if place is None:
        is_dump = (
            name == "sendto"
            and _NETLINK.unpack(_memory(pid, arguments[1], _NETLINK.size))[1] % 4 == _GET
        )
        return name if is_reading or not is_dump else None
    path = _memory(pid, arguments[place], _PATH_BYTES).partition(b"\0")[0].decode(errors="replace")
    if name == "execve":
        return f"{name} {path}" if path.endswith(_PROGRAMS) else None
    is_write = bool(arguments[2] & _WRITES) if name == "openat" else name not in _READING
    return (
        f"{name} {path}"
        if (is_reading or is_write) and any(each in path for each in _PLACES)
        else None
    )


def _memory(pid: int, address: int, size: int) -> bytes:
    """Return this many bytes of a process's memory, with zeros for what can't be read.

    A path may continue on the next page, and none may follow.
    """
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:
        return bytes(size)
    try:
        return os.pread(memory, size, address).ljust(size, b"\0")
    except OSError:
        return bytes(size)
    finally:
        os.close(memory)
