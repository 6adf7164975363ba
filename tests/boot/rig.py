"""Machines that boot a Debian tree with the tree's own systemd-nspawn, and with its systemd as PID
1.

::

    with Machine(find_or_build("bookworm")) as machine:
        machine.add_nic("eth0", "10.1.0.4/24", gateway="10.1.0.1")
        unit = "[Service]\nType=oneshot\nExecStart=echo hello\n"
        machine.write("/etc/systemd/system/hello.service", unit)
        machine.boot()
        machine.systemctl("start", "hello.service")
        assert "hello" in machine.journal("hello.service")
        machine.reboot()                        # a new boot with the same files

A machine leaves nothing behind on the host: its files are on a tmpfs that no other process can see.
Its processes, mounts, cgroups and networks disappear at the end of ``with`` or when the test
process exits.
"""

from __future__ import annotations

import importlib.util
import os
import re
import select
import shlex
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from boot.keeper import ENVIRONMENT, LIMIT_SECONDS, Keeper, MachineError, finish

__all__ = ["FOUND", "FOUND_TEXT", "Machine", "MachineError", "compile_python", "python_packages"]

ROOT = "/mnt/root"
PAYLOADS = "/var/lib/payload"

_POLL_SECONDS = 0.03
_CHECKOUT = Path(__file__).parents[2]
_PYTHON = "/opt/python"
_COMPILED = "/var/cache/python"
_PACKAGES = ("attr", "attrs", "pyroute2", "rich")
# Debian's Python searches this directory even with -I, although hostrouting is installed elsewhere.
FOUND = "/usr/lib/python3/dist-packages/checkout.pth"
FOUND_TEXT = f"import sys; sys.pycache_prefix = {_COMPILED!r}\n{_PYTHON}\n"
_LOAD_ALL = """
import hostrouting, importlib, phases, pkgutil
unwanted = ("hostrouting.testing", "hostrouting.__main__", "hostrouting.cli.fleet_")
for package in (hostrouting, phases):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.startswith(unwanted):
            importlib.import_module(module.name)
"""


class Machine:
    """A machine whose files and network exist from the start, but which is off until ``boot()``.

    Args:
        tree: the Debian tree to boot, from ``trees.find_or_build``; it is never modified.
        compiled: a directory filled by ``compile_python`` for this tree, or None if the machine has
            to compile its Python itself.
    """

    def __init__(self, tree: Path, compiled: Path | None = None) -> None:
        shown = python_packages() | ({compiled: _COMPILED} if compiled is not None else {})
        self._keeper = Keeper(tree, shown)
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._console: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - close() does
        self._leader = ""
        self._boots = 0
        self._boot_id = ""
        self.write(FOUND, FOUND_TEXT)

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut the machine's power, and wait until nothing is left of it."""
        try:
            self._keeper.close()
            if self._nspawn is not None:
                finish(self._nspawn)
        finally:
            self._console.close()

    # --- on and off -------------------------------------------------------------------------------

    @property
    def is_on(self) -> bool:
        """Return whether the machine has been started and is still running."""
        return self._nspawn is not None and self._nspawn.poll() is None

    @property
    def systemd_version(self) -> int:
        """Return the machine's systemd major version, for example 252."""
        answer = self._in_tree("systemctl", "--version")
        return int(answer.stdout.split()[1])

    def boot(self, *, wait: bool = True) -> None:
        """Boot the machine.

        Args:
            wait: whether to wait until systemd has finished booting and the job queue is empty,
                even if units have failed. Otherwise, wait only until systemctl responds.

        Raises:
            MachineError: the boot timed out, or the machine stopped.
        """
        if self.is_on:
            raise MachineError("it's on already")
        self._boots += 1
        self._boot_id = ""
        self._empty_payload_logs()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notes:
            name = f"/run/notify-{self._boots}"
            notes.bind(self._keeper.path(name))
            self._nspawn = self._keeper.popen(
                *(
                    "sh",
                    "-c",
                    'echo 0 >/sys/fs/cgroup/cgroup.procs && exec "$@"',
                    "sh",
                    "systemd-nspawn",
                    "--quiet",
                ),
                *(
                    "--boot",
                    "--register=no",
                    "--keep-unit",
                    "--notify-ready=yes",
                    "--console=pipe",
                    "--settings=no",
                ),
                *(
                    f"--directory={ROOT}",
                    "--machine=node",
                    "--link-journal=no",
                    "--resolv-conf=off",
                    "--timezone=off",
                ),
                # A network namespace passed by path comes without CAP_NET_ADMIN.
                *("--network-namespace-path=/proc/1/ns/net", "--capability=CAP_NET_ADMIN"),
                # systemd 257 processes at most five mount events per second by default.
                "--setenv=SYSTEMD_DEFAULT_MOUNT_RATE_LIMIT_BURST=100000",
                output=self._console,
                errors=self._console,
                env=ENVIRONMENT | {"NOTIFY_SOCKET": name},
            )
            self._await_boot(notes, wait=wait)
        self._boot_id = self.read("/proc/sys/kernel/random/boot_id").strip().replace("-", "")

    def power_off(self) -> None:
        """Shut the machine down cleanly, as its power button would, and wait until it is off.

        Its files stay.

        Raises:
            MachineError: the shutdown timed out or failed.
        """
        self._inside()  # raises an error if the machine is off
        assert self._nspawn is not None
        # systemd(1): like systemctl start poweroff.target.
        self._keeper.run("kill", "-s", "RTMIN+4", self._leader)
        if not finish(self._nspawn):
            raise MachineError(
                f"not off in {LIMIT_SECONDS:g} s; its last words:\n{self.journal()[-4000:]}"
            )
        if self._nspawn.returncode != 0:
            raise MachineError(
                f"systemd-nspawn ended with {self._nspawn.returncode}: {self._console_text()}"
            )

    def reboot(self) -> None:
        """Power off and boot again with the same files."""
        self.power_off()
        self.boot()

    def _empty_payload_logs(self) -> None:
        emptied = f"mkdir -p {PAYLOADS}; find {PAYLOADS} -type f -exec truncate --size=0 {{}} +"
        _checked(self._in_tree("sh", "-euc", emptied))

    def _await_boot(self, notes: socket.socket, *, wait: bool) -> None:
        """Wait for systemd-nspawn's sd_notify(3) messages: its child's PID, and READY=1 once the
        child has booted.
        """
        self._leader = ""
        end = time.monotonic() + LIMIT_SECONDS
        is_ready = False
        while not (is_ready if wait else self._leader and self._answers()):
            if self._nspawn is None or self._nspawn.poll() is not None:
                raise MachineError(f"systemd-nspawn failed: {self._console_text()}")
            if time.monotonic() > end:
                raise MachineError(f"hasn't booted in time; {self._jobs()}")
            if select.select([notes], [], [], _POLL_SECONDS)[0]:
                for line in notes.recv(4096).decode().splitlines():
                    key, _, value = line.partition("=")
                    if key == "X_NSPAWN_LEADER_PID":
                        self._leader = value
                    is_ready = is_ready or line == "READY=1"

    def _answers(self) -> bool:
        return self.run("systemctl", "show", "--property=Version", check=False).returncode == 0

    def _jobs(self) -> str:
        if not self._leader:
            return ""
        return f"what it still waits for:\n{self.run('systemctl', 'list-jobs', check=False).stdout}"

    # --- its network ------------------------------------------------------------------------------

    def add_nic(
        self, dev: str, *addresses: str, gateway: str | None = None, metric: int | None = None
    ) -> None:
        """Add an interface, connect it to an interface of the same name in the fabric, and set it
        up.

        Args:
            dev: the interface name.
            addresses: the interface's addresses, for example ``10.1.0.4/24``; each creates a
                connected route.
            gateway: next hop of the default route; it is reachable in the fabric.
            metric: metric of the default route.
        """
        self.ip(
            "link", "add", dev, "type", "veth", "peer", "name", dev, "netns", self._keeper.fabric
        )
        self.fabric("ip", "link", "set", dev, "up")
        self.ip("link", "set", dev, "up")
        for address in addresses:
            self.ip("address", "add", address, "dev", dev)
        if gateway is not None:
            length = addresses[0].partition("/")[2]
            self.fabric("ip", "address", "add", f"{gateway}/{length}", "dev", dev)
            self.ip(
                "route",
                "add",
                "default",
                "via",
                gateway,
                "dev",
                dev,
                *(("metric", str(metric)) if metric else ()),
            )

    def take_nic(self, dev: str) -> None:
        """Take an interface from this process's network namespace, and set it up without a cable or
        an address.
        """
        self._keeper.take_link(dev)
        self.ip("link", "set", dev, "up")

    def ip(self, *words: str) -> str:
        """Run ``ip`` in the machine's network from outside, whether the machine is on or off, and
        return the output.
        """
        return _checked(self._keeper.run("ip", *words))

    def fabric(self, *argv: str) -> str:
        """Run a program in the network at the far ends of the machine's cables, and return the
        output.
        """
        return _checked(self._keeper.run("nsenter", "-t", self._keeper.fabric, "--net", *argv))

    # --- its files, on or off ---------------------------------------------------------------------

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write a file, creating parent directories as needed."""
        script = 'mkdir -p "${1%/*}/"; cat >"$1"; chmod "$2" "$1"'
        _checked(self._anywhere("sh", "-euc", script, "sh", path, f"{mode:o}", input=text))

    def read(self, path: str) -> str:
        """Return a file's contents as text.

        Raises:
            MachineError: the file doesn't exist.
        """
        return _checked(self._anywhere("cat", path))

    def peek(self, path: str) -> str:
        """Return the contents of a file on the machine's disk without starting a program there.

        Args:
            path: a path without symlinks, which would lead to the host's files.
        """
        return Path(self._keeper.path(f"{ROOT}{path}")).read_text()

    def exists(self, path: str) -> bool:
        """Return whether a file, directory or symlink exists, even if the symlink is dangling."""
        look = 'if [ -e "$1" ] || [ -L "$1" ]; then echo yes; else echo no; fi'
        return _checked(self._anywhere("sh", "-c", look, "sh", path)) == "yes\n"

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its contents, if it exists."""
        _checked(self._anywhere("rm", "-rf", "--one-file-system", path))

    # --- inside -----------------------------------------------------------------------------------

    def run(
        self,
        *argv: str,
        check: bool = True,
        input: str | None = None,  # noqa: A002 - as subprocess.run
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside the booted machine, as root with all capabilities.

        Args:
            argv: the program and its arguments.
            check: whether to raise an error on a nonzero exit code.
            input: the program's input.

        Raises:
            MachineError: the machine is off, or ``check`` is set and the program failed.
        """
        done = self._keeper.run(*self._inside(), *argv, input=input)
        if check:
            _checked(done)
        return done

    def run_offline(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program on the powered-off machine's files, in a chroot with /proc, as an image
        builder does.
        """
        if self.is_on:
            raise MachineError("it's on: use run()")
        done = self._in_tree(*argv)
        if check:
            _checked(done)
        return done

    def install(self, *arguments: str) -> None:
        """Run this checkout's command line from another system on the powered-off machine's files,
        at ``ROOT``.

        Args:
            arguments: the command and its arguments, for example ``"apply", "--root", ROOT,
                CONFIG``.
        """
        if self.is_on:
            raise MachineError("it's on: use python()")
        # The Python code is mounted at the paths recorded in its bytecode.
        show = (
            f"mount -t tmpfs tmpfs /opt; mkdir {_PYTHON}; mount --rbind {ROOT}{_PYTHON} {_PYTHON}"
        )
        show += f'; mount --rbind {ROOT}/var/cache /var/cache; exec "$@"'
        argv = ("unshare", "--mount", "--propagation", "private", "sh", "-euc", show, "sh")
        env = ENVIRONMENT | {"PYTHONPATH": _PYTHON, "PYTHONPYCACHEPREFIX": _COMPILED}
        _checked(self._keeper.run(*argv, "python3", "-m", "hostrouting", *arguments, env=env))

    def background(self, *argv: str) -> int:
        """Start a program inside as a child of PID 1, and return its PID immediately.

        systemd-shutdown doesn't notice when a process started by ``run`` exits, and waits 10 s for
        it.
        """
        start = '"$@" </dev/null >/dev/null 2>&1 & echo $!'
        return int(self.run("sh", "-c", start, "sh", *argv).stdout)

    def python(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run this checkout's command line inside or offline, as in ``python("check", "--cidr",
        "10.0.0.0/8")``.
        """
        argv = ("python3", "-m", "hostrouting", *arguments)
        return self.run(*argv, check=check) if self.is_on else self.run_offline(*argv, check=check)

    def systemctl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run systemctl inside.

        If the machine is off, only commands such as enable and mask work.
        """
        if self.is_on:
            return self.run("systemctl", *arguments, check=check)
        return self.run_offline("systemctl", "--root=/", *arguments, check=check)

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Return the given properties of a unit, or all of them by default, as printed by
        ``systemctl show``.
        """
        chosen = [f"--property={','.join(properties)}"] if properties else []
        lines = self.systemctl("show", *chosen, "--", unit).stdout.splitlines()
        return dict(re.findall(r"^(\w+)=(.*)$", line)[0] for line in lines)

    def state(self, unit: str) -> str:
        """Return a unit's ActiveState and SubState, for example ``active/running``."""
        shown = self.show(unit, "ActiveState", "SubState")
        return f"{shown['ActiveState']}/{shown['SubState']}"

    def main_pid(self, unit: str) -> int:
        """Return a unit's main PID, or 0 if it has none."""
        return int(self.show(unit, "MainPID")["MainPID"])

    def processes(self, unit: str) -> dict[str, str]:
        """Return the command line of each process of a unit by its PID, without starting a program
        in the machine.
        """
        found = {}
        for folder, _, _ in os.walk(self._keeper.path("/sys/fs/cgroup")):
            for pid in _processes(folder) if unit in folder.split("/") else ():
                with suppress(OSError):  # the process has just ended
                    found[pid] = (
                        Path("/proc", pid, "cmdline").read_text().rstrip("\0").replace("\0", " ")
                    )
        return found

    def journal(self, unit: str | None = None) -> str:
        """Return the journal of this boot, or of the last one if the machine is off."""
        chosen = [*([f"--unit={unit}"] if unit else []), f"--boot={self._boot_id or '0'}"]
        argv = ["journalctl", "--no-pager", "--no-hostname", "--output=short-monotonic", *chosen]
        if self.is_on:
            self.run("journalctl", "--sync", check=False)
            return self.run(*argv, check=False).stdout
        return self._in_tree(*argv, "--directory=/var/log/journal").stdout

    def wait_until(self, predicate: Callable[[], bool], what: str = "") -> None:
        """Poll a condition until it holds.

        Raises:
            MachineError: the condition doesn't hold within ``LIMIT_SECONDS``; the message contains
                the end of the journal.
        """
        began = time.monotonic()
        end = began + LIMIT_SECONDS
        while not predicate():
            looked = time.monotonic()
            if looked > end:
                raise MachineError(
                    f"{what or predicate} doesn't hold after {LIMIT_SECONDS:g} s:\n"
                    f"{self.journal()[-4000:]}"
                )
            # The predicate may start programs, so spend at most a quarter of the time on it.
            time.sleep(max(_POLL_SECONDS, 3 * (looked - began)))
            began = time.monotonic()

    def wait_for(self, unit: str, *states: str) -> None:
        """Wait until a unit is in one of these states, such as ``active`` or ``active/exited``."""
        wanted = set(states)

        def is_there() -> bool:
            state = self.state(unit)
            return bool({state, state.partition("/")[0]} & wanted)

        self.wait_until(is_there, f"{unit} in {' or '.join(states)}")

    def way_in(self) -> list[str]:
        """Return the command prefix with which another process can run programs inside, like
        ``run``.
        """
        inside = (f"{name}={value}" for name, value in ENVIRONMENT.items())
        return [*self._keeper.way_in(str(os.getpid())), *self._inside(), "env", "-i", *inside]

    # --- entering the machine ---------------------------------------------------------------------

    def _inside(self) -> tuple[str, ...]:
        if not self.is_on or not self._leader:
            raise MachineError(f"it's off; its console: {self._console_text()}")
        # The keeper's /proc lists only the machine's processes, so even a stale PID can't refer to
        # a host process.
        return ("nsenter", "-t", self._leader, "--all", "--")

    def _in_tree(self, *argv: str, input: str | None = None) -> subprocess.CompletedProcess[str]:  # noqa: A002
        enter = f'mount --bind /proc {ROOT}/proc && exec chroot {ROOT} "$@"'
        argv = ("unshare", "--mount", "--propagation", "private", "sh", "-c", enter, "sh", *argv)
        return self._keeper.run(*argv, input=input, env=ENVIRONMENT | {"SYSTEMD_OFFLINE": "1"})

    def _anywhere(self, *argv: str, input: str | None = None) -> subprocess.CompletedProcess[str]:  # noqa: A002
        return (
            self.run(*argv, input=input, check=False)
            if self.is_on
            else self._in_tree(*argv, input=input)
        )

    def _console_text(self) -> str:
        self._console.seek(0)
        return self._console.read().decode(errors="replace").strip() or "(it said nothing)"


def python_packages() -> dict[Path, str]:
    """Return the packages that hostrouting needs, each with its place in a machine, where ``FOUND``
    finds it.
    """
    shown = {_CHECKOUT / name: f"{_PYTHON}/{name}" for name in ("hostrouting", "phases")}
    return shown | {_package(name): f"{_PYTHON}/{name}" for name in _PACKAGES}


def compile_python(tree: Path, folder: Path) -> None:
    """Compile the command line's modules with a tree's Python, so that machines can share the
    bytecode.

    Args:
        tree: the tree, as for ``Machine``.
        folder: an empty directory for the bytecode.
    """
    with Machine(tree) as machine, tempfile.TemporaryFile() as archive:
        machine.run_offline("python3", "-c", _LOAD_ALL)
        tar = ("tar", "--directory", f"{ROOT}{_COMPILED}", "--create", ".")
        if machine._keeper.popen(*tar, output=archive, errors=archive).wait() != 0:
            raise MachineError("can't read the compiled bytecode")
        archive.seek(0)
        with tarfile.open(fileobj=archive) as members:
            members.extractall(folder, filter="data")


def _processes(cgroup: str) -> list[str]:
    try:
        return Path(cgroup, "cgroup.procs").read_text().split()
    except OSError:  # it has just been removed
        return []


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0])


def _checked(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode != 0:
        raise MachineError(
            f"{shlex.join(done.args)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout
