"""Run a command in this checkout on another kernel, which is a process of this machine.

The command sees this machine's files, but what it changes stays in that kernel's memory: it has its
own processes, mounts and networks. The kernel is Linux's own code for routes, rules, namespaces and
devices; it has one CPU.
"""

from __future__ import annotations

import os
import platform
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from kernels.packages import NoKernelError, UserModeLinux

__all__ = ["CONFINED", "command_of", "run_on"]

_HERE = Path(__file__).parent
_CHECKOUT = _HERE.parents[1]
_MEMORY, _IN_MEMORY = "4G", "/dev/shm"
_POLL_SECONDS, _STOP_SECONDS = 0.1, 20.0
# From this release on, UML asks the CPU for the size of its registers.
_FIXED = (6, 13)


def run_on(kernel: UserModeLinux, argv: Sequence[str], shared: Path, env: dict[str, str]) -> int:
    """Run a command on a kernel with this process's standard output, and return its exit code.

    Args:
        kernel: the kernel.
        argv: the program and its arguments. It starts in this checkout, as root.
        shared: a directory that the command can write to: there, it is /run/shared.
        env: the environment variables to set.

    Raises:
        NoKernelError: the kernel doesn't run here, or ended before the command did.
    """
    if platform.machine() != "x86_64":
        raise NoKernelError(f"User-Mode Linux doesn't run on {platform.machine()}, only on x86_64")
    settings = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    (shared / "command").write_text(f"{settings}exec {shlex.join(argv)}\n")
    code = shared / "code"
    code.touch()
    with _running(kernel, shared) as process, suppress(subprocess.TimeoutExpired):
        while process.poll() is None and not code.read_text():
            time.sleep(_POLL_SECONDS)
        # Linux 6.1 sometimes hangs while it stops.
        process.wait(_STOP_SECONDS)
    if not code.read_text():
        raise NoKernelError(
            f"Linux {kernel.release} ended before the command: {_last_words(shared)}"
        )
    return int(code.read_text())


# A process namespace's processes end with its first one, also those that the kernel traces.
CONFINED = (
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)


def command_of(kernel: UserModeLinux, folder: Path, *words: str, **arguments: object) -> list[str]:
    """Return the command that runs a kernel, whose console is its standard output.

    Args:
        kernel: the kernel.
        folder: a directory for its control socket.
        words: arguments of the kernel without a value.
        arguments: its other arguments.
    """
    # Its memory is a file. In a container, programs can't be mapped from /dev/shm.
    is_mappable = not os.statvfs(_IN_MEMORY).f_flag & os.ST_NOEXEC
    env = {
        "LD_LIBRARY_PATH": str(kernel.library),
        "TMPDIR": _IN_MEMORY if is_mappable else tempfile.gettempdir(),
    }
    if tuple(map(int, kernel.release.split(".")[:2])) < _FIXED:
        env["LD_PRELOAD"] = str(kernel.preload)
    # Linux 6.16 and later can do without ptrace.
    arguments |= {
        "seccomp": "auto",
        "con": "null",
        "con0": "null,fd:1",
        "uml_dir": folder,
        "umid": "guest",
    }
    return [
        *("env", *(f"{name}={value}" for name, value in env.items())),
        *(
            str(kernel.program),
            "quiet",
            *words,
            *(f"{name}={value}" for name, value in arguments.items()),
        ),
    ]


@contextmanager
def _running(kernel: UserModeLinux, shared: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the kernel's process, and kill it with its children at the end."""
    arguments = {
        "mem": _MEMORY,
        "root": "/dev/root",
        "rootfstype": "hostfs",
        "rootflags": "/",
        "init": _HERE / "init.sh",
        "MODULES": kernel.modules,
        "SHARED": shared,
        "CHECKOUT": _CHECKOUT,
    }
    argv = [*CONFINED, *command_of(kernel, shared, "ro", **arguments)]
    with (shared / "errors").open("wb") as errors:
        process = subprocess.Popen(
            argv,
            cwd=kernel.library,
            stdin=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _last_words(shared: Path) -> str:
    return (
        "\n".join((shared / "errors").read_text(errors="replace").strip().splitlines()[-5:])
        or "it said nothing"
    )
