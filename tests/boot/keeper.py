"""A machine's environment: its own namespaces, a Debian tree as the root, and no view of the host.

``keeper.sh`` creates the namespaces and documents their contents. PID 1 inside is a ``cat`` that
reads from our pipe. When we close the pipe or die, ``cat`` exits, the kernel kills every other
process inside, and the mounts and networks disappear.
"""

from __future__ import annotations

import os
import secrets
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

__all__ = ["LIMIT_SECONDS", "Keeper", "MachineError", "finish", "obstacle"]

_SCRIPT = Path(__file__).with_name("keeper.sh")
_NAMESPACES = {
    "mnt": "mount",
    "uts": "uts",
    "ipc": "ipc",
    "net": "net",
    "pid": "pid",
    "cgroup": "cgroup",
}
# Any start, wait or end may take this long, which is far beyond what it takes: the processors may
# be busy.
LIMIT_SECONDS = 180.0
_STOPPED_CHECK_SECONDS = 0.05

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "SYSTEMD_COLORS": "0",
    "SYSTEMD_PAGER": "",
}


class MachineError(Exception):
    """Raised when an operation on a machine fails. The message contains the last output."""


def obstacle() -> str | None:
    """Return the reason why machines can't be booted here, or None if no reason is known."""
    if os.geteuid() != 0 or Path("/proc/self/uid_map").read_text().split()[2] != "4294967295":
        return "booting a machine takes root, and not that of a user namespace"
    if missing := [
        tool for tool in ("unshare", "nsenter", "pivot_root") if shutil.which(tool) is None
    ]:
        return f"booting a machine takes util-linux's {', '.join(missing)}"
    trial = (
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "--pid",
        "--net",
        "--uts",
        "--ipc",
        "--fork",
    )
    mounts = "mount -t cgroup2 cgroup2 /sys/fs/cgroup && test -w /sys/fs/cgroup/cgroup.procs"
    tried = subprocess.run(
        [*trial, "sh", "-c", mounts],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return (
        f"booting a machine takes leave to mount: {tried.stderr.strip()}"
        if tried.returncode != 0
        else None
    )


class Keeper:
    """Namespaces in which to boot a machine from a Debian tree that is never modified.

    Inside, ``/`` is the tree, mounted read-only, and ``/mnt/root`` is an overlay on top of it. The
    overlay holds the machine's files and lives as long as the keeper.

    Args:
        tree: the Debian tree.
        shown: host directories that the machine can read, mapped to their paths in the machine.
    """

    def __init__(self, tree: Path, shown: Mapping[Path, str]) -> None:
        name = f"hostrouting-boot-{os.getpid()}-{secrets.token_hex(4)}"
        pairs = [word for source, target in shown.items() for word in (str(source), target)]
        self._fds: dict[str, int] = {}
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - close() does
        unshare = ("unshare", "--mount", "--propagation", "private")
        self._process = subprocess.Popen(
            [*unshare, "sh", _SCRIPT, "outside", _SCRIPT, tree, name, *pairs],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            start_new_session=True,
            env=os.environ | {"LC_ALL": "C"},
        )
        try:
            said = self._listen()
            self.fabric = said["fabric"]
            self._hold(said["keeper"])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def popen(
        self,
        *argv: str,
        output: IO[bytes],
        errors: IO[bytes],
        source: IO[bytes] | int = subprocess.DEVNULL,
        env: Mapping[str, str] = ENVIRONMENT,
    ) -> subprocess.Popen[bytes]:
        """Start a program inside as root, by default with empty standard input."""
        return subprocess.Popen(
            [*self.way_in("self"), *argv],
            stdin=source,
            stdout=output,
            stderr=errors,
            env=dict(env),
            pass_fds=list(self._fds.values()),
            start_new_session=True,
        )

    def run(
        self,
        *argv: str,
        input: str | None = None,  # noqa: A002 - as subprocess.run
        env: Mapping[str, str] = ENVIRONMENT,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside as root, and return its result, whatever its exit code.

        Raises:
            MachineError: the program takes longer than ``LIMIT_SECONDS``, or was killed.
        """
        with (
            tempfile.TemporaryFile() as words,
            tempfile.TemporaryFile() as output,
            tempfile.TemporaryFile() as errors,
        ):
            words.write((input or "").encode())
            words.seek(0)
            process = self.popen(*argv, source=words, output=output, errors=errors, env=env)
            is_done = finish(process)
            texts = [_text_of(file) for file in (output, errors)]
        if not is_done:
            raise MachineError(
                f"{' '.join(argv)}: not done in {LIMIT_SECONDS:g} s; so far:\n{''.join(texts)}"
            )
        return subprocess.CompletedProcess(list(argv), process.returncode, *texts)

    def way_in(self, holder: str) -> list[str]:
        """Return the command prefix with which another process can start programs inside.

        Args:
            holder: the process that holds the namespace file descriptors, as a name in /proc:
                ``self`` or our PID.
        """
        # File descriptors are safer than a PID, which may have been reused, possibly by a process
        # outside.
        into = [
            f"--{flag}=/proc/{holder}/fd/{self._fds[name]}" for name, flag in _NAMESPACES.items()
        ]
        return ["nsenter", *into, "--"]

    def take_link(self, dev: str) -> None:
        """Move an interface from this process's network namespace into the keeper's."""
        net = self._fds["net"]
        subprocess.run(
            ["ip", "link", "set", dev, "netns", f"/proc/self/fd/{net}"], check=True, pass_fds=[net]
        )

    def path(self, name: str) -> str:
        """Return the path of a file inside, as seen by this process.

        Absolute symlinks in it resolve on the host.
        """
        return f"/proc/self/fd/{self._fds['root']}{name}"

    def close(self) -> None:
        """Kill every process inside and wait until all of them are gone."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        if self._process.stdin and self._process.stdout:
            self._process.stdin.close()
            self._process.stdout.close()
        try:
            if self._process.wait(LIMIT_SECONDS) != 0:
                raise MachineError(f"the machine's keeper failed: {self._last_words()}")
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)  # the process has a session of its own
            self._process.wait()
            raise MachineError(f"the machine's keeper didn't end: {self._last_words()}") from None
        finally:
            self._words.close()

    def _listen(self) -> dict[str, str]:
        assert self._process.stdout is not None
        end = time.monotonic() + LIMIT_SECONDS
        said = b""
        while said.count(b"\n") < 2:
            if not select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))[
                0
            ]:
                raise MachineError(
                    f"the machine's keeper isn't up in {LIMIT_SECONDS:g} s: {self._last_words()}"
                )
            chunk = os.read(self._process.stdout.fileno(), 4096)
            if not chunk:
                raise MachineError(f"the machine's keeper failed: {self._last_words()}")
            said += chunk
        return dict(line.split() for line in said.decode().splitlines())

    def _hold(self, pid: str) -> None:
        for name in _NAMESPACES:
            self._fds[name] = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        self._fds["root"] = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        own = {name: Path(f"/proc/self/ns/{name}").stat().st_ino for name in _NAMESPACES}
        if self._process.poll() is not None or any(
            os.fstat(self._fds[name]).st_ino == own[name] for name in own
        ):
            raise MachineError(
                f"the machine's keeper isn't in namespaces of its own: {self._last_words()}"
            )

    def _last_words(self) -> str:
        return _text_of(self._words).strip()


def finish(process: subprocess.Popen[bytes]) -> bool:
    """Wait for a process that was started through ``nsenter`` to exit, and kill it after a timeout.

    At shutdown, systemd sends SIGSTOP to all processes (``broadcast_signal``), including those
    started through ``nsenter``. nsenter then stops itself and waits for a SIGCONT, which only this
    function sends.

    Returns:
        Whether the process exited without being killed.
    """
    if process.poll() is not None:
        return True
    end = time.monotonic() + LIMIT_SECONDS
    pidfd = os.pidfd_open(process.pid)
    try:
        while process.poll() is None:
            left = end - time.monotonic()
            if left <= 0:
                process.kill()
                process.wait()
                return False
            if not select.select([pidfd], [], [], min(left, _STOPPED_CHECK_SECONDS))[0]:
                _continue_if_stopped(process)
    finally:
        os.close(pidfd)
    return True


def _continue_if_stopped(process: subprocess.Popen[bytes]) -> None:
    """Send SIGCONT to a child process that is stopped."""
    with suppress(ChildProcessError):  # the process has just ended
        if (
            process.poll() is None
            and os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG) is not None
        ):
            process.send_signal(signal.SIGCONT)


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
