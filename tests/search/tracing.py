"""Pause a program and its children before system calls with external effects, using ptrace(2).

A seccomp(2) filter selects the calls, because stopping at every call would make a start ten times slower.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from multiprocessing import Pipe
from pathlib import Path
from typing import IO, TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from types import TracebackType
    from typing import Any

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

# struct ptrace_syscall_info: op, three padding bytes, arch, two pointers, the syscall number and six arguments.
_INFO = struct.Struct("=B3xIQQQ6Q")

# System call numbers from asm/unistd.h, each with the index of its path argument.
_WITH_PATH = {
    "x86_64": {
        257: 1,
        59: 0,
        82: 0,
        264: 1,
        316: 1,
        87: 0,
        263: 1,
        262: 1,
        4: 0,
        332: 1,
        21: 0,
        269: 1,
        439: 1,
        83: 0,
        258: 1,
    },
    "aarch64": {56: 1, 221: 0, 38: 1, 276: 1, 35: 1, 79: 1, 291: 1, 48: 1, 439: 1, 34: 1},
}
_NAMED = {"x86_64": {73: "flock", 44: "send", 46: "send"}, "aarch64": {32: "flock", 206: "send", 211: "send"}}
_EXECVE = {"x86_64": 59, "aarch64": 221}

_PLACES = ("/etc/hostrouting", "/etc/aks-flex-node", "/run/aks-flex-node", "/etc/systemd/system", "/ns/net", "/fd/255")
_PROGRAMS = ("/ip", "/awk", "/flock", "/timeout")
_PATH_BYTES = 256
_PAGE_BYTES = 4096

MACHINE = platform.machine()


class TraceError(Exception):
    """The program can't be traced."""


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
    """A traced program, including its children.

    Args:
        argv: the program and its arguments.
        environment: the program's environment.
        said: the output file.
        stop: the number of the call to pause before, or 0 to never pause.
    """

    def __init__(self, argv: Sequence[str], environment: dict[str, str], said: IO[bytes], stop: int) -> None:
        self._connection, there = Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._connection.close()
            _be_the_tracer(argv, environment, said.fileno(), there)
        there.close()
        self._connection.send(stop)

    def __enter__(self) -> Traced:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.kill(self._pid, signal.SIGKILL)  # this also kills the processes that it traces
        os.waitpid(self._pid, 0)
        self._connection.close()

    def poll(self, seconds: float) -> Stopped | Exited | None:
        """Wait until the program is paused or has finished. Return None on timeout.

        Raises:
            TraceError: the program can't be traced.
        """
        if not self._connection.poll(seconds):
            return None
        state = self._connection.recv()
        if not isinstance(state, Stopped | Exited):
            raise TraceError(state)
        return state

    def go(self) -> None:
        """Resume the program until it finishes."""
        self._connection.send(0)

    @property
    def program(self) -> int:
        """Return the program's PID, or 0 if it has finished."""
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def end(self) -> None:
        """Kill the program without waiting for it to exit."""
        if program := self.program:
            os.killpg(program, signal.SIGKILL)


def _be_the_tracer(
    argv: Sequence[str], environment: dict[str, str], said: int, connection: Connection[Any, Any]
) -> None:
    """Trace the program in the forked child, and never return to the parent's code."""
    try:
        connection.send(_trace(argv, environment, said, connection))
        connection.recv()  # the parent kills this process here, or has ended
    except EOFError:
        pass
    except OSError as error:
        connection.send(f"{argv[0]} can't be traced: {error}")
    finally:
        os._exit(0)


def _trace(argv: Sequence[str], environment: dict[str, str], said: int, connection: Connection[Any, Any]) -> Exited:
    stop, calls, status = connection.recv(), list[str](), 127
    first = os.fork()
    if first == 0:
        _be_the_program(argv, environment, said)
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
        call = _call(pid) if state >> 16 == _SECCOMP_EVENT else None
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


def _be_the_program(argv: Sequence[str], environment: dict[str, str], said: int) -> None:
    try:
        os.setsid()
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        _ptrace(_TRACEME, 0, 0, 0)
        _have_calls_looked_into()
        os.kill(os.getpid(), signal.SIGSTOP)
        os.execve(argv[0], [*argv], environment)
    finally:
        os._exit(203)  # EXIT_EXEC of systemd


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class _Program(ctypes.Structure):
    """The C structure ``sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _have_calls_looked_into() -> None:
    """Install a seccomp filter that reports relevant calls of this process and its children to the tracer."""
    numbers = sorted({*_NAMED[MACHINE], *_WITH_PATH[MACHINE]})
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


def _call(pid: int) -> str | None:
    """Return the name of a process's pending call, or None if it has no external effect."""
    info = ctypes.create_string_buffer(_INFO.size)
    try:
        _ptrace(_GET_SYSCALL_INFO, pid, _INFO.size, ctypes.addressof(info))
    except ProcessLookupError:
        return None
    _, _, _, _, number, *arguments = _INFO.unpack(info.raw)
    if name := _NAMED[MACHINE].get(number):
        return name
    position = _WITH_PATH[MACHINE].get(number)
    if position is None:
        return None
    path = _path(pid, arguments[position])
    if number == _EXECVE[MACHINE]:
        return f"exec {path}" if path.endswith(_PROGRAMS) else None
    return f"{number} {path}" if any(place in path for place in _PLACES) else None


def _path(pid: int, address: int) -> str:
    room = min(_PATH_BYTES, _PAGE_BYTES - address % _PAGE_BYTES)
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.pread(memory, room, address).partition(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(memory)
