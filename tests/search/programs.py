"""Run updates, and starts of units by a fake systemd with persistent state, so that each can be
paused.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

import attrs
from wanted import MACHINE

import phases
from hostrouting import Host, HostRoutingError
from hostrouting.boot.fake_systemd import FakeSystemd
from hostrouting.cli.running import cancelled_by_signals
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.model.errors import UnitError
from search.pairs import KUBELET, Make
from search.tracing import Exited, Stopped, Traced
from search.world import LAYOUT, SYSTEMD, require_world

_LOADED = SYSTEMD / "loaded.json"
_STARTING = SYSTEMD / "starting.json"

# Real units have TimeoutStartSec=90, and the gate takes up to 20 s.
_START_SECONDS = 60.0
_POLL_SECONDS = 0.01
# Special executable prefixes, see systemd.service(5).
_PREFIXES = "-+@:!|"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The command lists before a unit's main process, with the corresponding SubState=.
_LISTS = {"ExecCondition": "condition", "ExecStartPre": "start-pre"}


# The gate blocks on these locks, which a paused update may hold.
LOCKS = (LAYOUT.lock, LAYOUT.run_lock)


class _TimeOut(Exception):
    """TimeoutStartSec= has expired, which is an error even for commands with the "-" prefix."""


class LoadedSystemd(FakeSystemd):
    """A fake systemd that keeps its loaded state in a file.

    Starts use this state, even if unit files have changed.
    """

    def __init__(self) -> None:
        self._is_made = _LOADED.exists()
        super().__init__(LAYOUT, running=(MACHINE, KUBELET))

    def _load(self) -> None:
        if self._is_made:
            self._loaded = json.loads(_LOADED.read_text())
            self._is_made = False
            return
        super()._load()
        require_world()
        _LOADED.write_text(json.dumps(self._loaded))

    def show(self, unit: str, *names: str) -> dict[str, str]:
        starting = json.loads(_STARTING.read_text()) if _STARTING.exists() else {}
        return super().show(unit, *names) | {"SubState": starting.get(unit, "dead")}

    def restart(self, unit: str) -> None:
        super().restart(unit)
        if unit == "hostrouting-trial.service":
            done = subprocess.run(
                ["/bin/bash", "-p", LAYOUT.trial_script],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise UnitError(done.stderr)


@attrs.frozen
class Start:
    """The result and output of a unit start."""

    is_admitted: bool
    words: str


def _nothing() -> None:
    pass


@attrs.define
class Watched:
    """Callbacks for running commands, and a record of their system calls.

    Args:
        when_waiting: called repeatedly while a command is blocked on one of ``LOCKS``.
        stop: the number of the system call to pause before, or 0 to never pause.
        when_stopped: called during the pause.
        calls: the system calls so far.
    """

    when_waiting: Callable[[], None] = _nothing
    stop: int = 0
    when_stopped: Callable[[], None] = _nothing
    calls: list[str] = attrs.field(factory=list)


def start(unit: str, watched: Watched | None = None) -> Start:
    """Run a unit's loaded ExecCondition= and ExecStartPre= commands.

    Args:
        unit: the unit to start.
        watched: callbacks to invoke while the commands run.
    """
    invocation, watched = uuid.uuid4().hex, watched or Watched()
    with tempfile.TemporaryFile() as said:
        try:
            is_admitted = all(
                _run_list(unit, key, state, invocation, said, watched)
                for key, state in _LISTS.items()
            )
        except _TimeOut:
            is_admitted = False
        finally:
            _STARTING.unlink(missing_ok=True)
        said.seek(0)
        return Start(is_admitted, said.read().decode(errors="replace").strip())


def run_oneshot(script: Path, watched: Watched) -> str:
    """Run a script like its oneshot unit does, and return its output."""
    with tempfile.TemporaryFile() as said:
        _run_command(str(script), "", said, watched)
        said.seek(0)
        return said.read().decode(errors="replace").strip()


def _run_list(
    unit: str, key: str, state: str, invocation: str, said: IO[bytes], watched: Watched
) -> bool:
    """Run a command list.

    If a reload removes the current line, stop there, as service_deserialize_item does.
    """
    lines = _loaded_lines(unit, key)
    position = 0
    while position < len(lines):
        line = lines[position]
        _STARTING.write_text(json.dumps({unit: state}))
        command = line.lstrip(_PREFIXES)
        is_ignored = "-" in line[: len(line) - len(command)]
        if not _run_command(command, invocation, said, watched) and not is_ignored:
            return False
        lines = _loaded_lines(unit, key)
        position = lines.index(line) + 1 if line in lines else len(lines)
    return True


def _loaded_lines(unit: str, key: str) -> list[str]:
    lines: list[str] = json.loads(_LOADED.read_text()).get(unit, {}).get(key, [])
    return lines


def _run_command(command: str, invocation: str, said: IO[bytes], watched: Watched) -> bool:
    environment = {"PATH": _PATH, "LANG": "C.UTF-8", "INVOCATION_ID": invocation}
    argv = command.replace("${INVOCATION_ID}", invocation).split()
    run, stop = (
        partial(os.execve, argv[0], argv, environment),
        max(0, watched.stop - len(watched.calls)),
    )
    end, is_over, naps = time.monotonic() + _START_SECONDS, False, _Naps()
    with Traced(run, said, stop, is_reading=True) as traced:
        while not isinstance(state := traced.poll(_POLL_SECONDS), Exited):
            if state is not None:
                watched.when_stopped()
                traced.go()
            elif not is_over and (time.monotonic() >= end or naps.are_in_vain(traced.program)):
                is_over = True
                traced.send(signal.SIGKILL)
            elif is_waited_for(*LOCKS):
                watched.when_waiting()
    watched.calls += state.calls
    if is_over:
        raise _TimeOut
    return state.status == 0


class _Naps(dict[str, bool]):
    """The sleep processes of a gate that blocks a start, and whether a trial was active when each
    was first seen.
    """

    def are_in_vain(self, pid: int) -> bool:
        """Return whether the sleeping gate would only fail again, so that the start can be aborted
        early.

        The gate ends a trial after its first sleep.
        """
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                if Path(f"/proc/{child}/comm").read_text() == "sleep\n":
                    self.setdefault(child, LAYOUT.trial.exists() or LAYOUT.confirmed.exists())
        return len(self) > 1 or not all(self.values())


def is_waited_for(*locks: Path) -> bool:
    """Return whether a process is blocked on one of the locks, according to proc_locks(5)."""
    inodes = {str(lock.stat().st_ino) for lock in locks if lock.exists()}
    # The update doesn't use this file, so this call doesn't need to be recorded.
    with open("/proc/locks") as table:
        return any(
            " -> " in line and line.split()[6].rpartition(":")[2] in inodes for line in table
        )


# --- updates --------------------------------------------------------------------------------------

# Timeout for an update to pause or finish. Updates are much faster than this.
_UPDATE_SECONDS = 60.0
CRASHED = "no HostRoutingError"
STOPPED = "stopped"


@attrs.frozen
class Ended:
    """An update's outcome (``done`` or an exception's name), error message and steps."""

    outcome: str
    words: str
    steps: tuple[str, ...]


class Update(Traced):
    """An update in a traced process.

    Args:
        make: a factory that returns the task for a host.
        stop: the number of the step to pause before, or 0 to never pause.
    """

    def __init__(self, make: Make, stop: int = 0) -> None:
        require_world()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - the child writes it, and wait() reads it
        super().__init__(partial(_perform, make), self._said, stop)

    def wait(self) -> Stopped | Ended:
        """Wait until the update is paused or has finished, which takes less than a minute."""
        state = self.poll(_UPDATE_SECONDS)
        assert state is not None
        if isinstance(state, Stopped):
            return state
        self._said.seek(0)
        outcome, _, words = self._said.read().decode().partition("\n")
        return Ended(outcome, words, state.calls)


def _perform(make: Make) -> None:
    logging.disable()
    words = ""
    scope = phases.CancelScope()
    try:
        with cancelled_by_signals(scope):
            phases.run(
                make(Host(NetlinkBackend(), LoadedSystemd(), LAYOUT, NetlinkBackend6())),
                scope=scope,
            )
        outcome = "done"
    except phases.Cancelled as end:
        outcome, words = STOPPED, f"{end} {getattr(end, '__notes__', '')}"
    except HostRoutingError as error:
        outcome, words = type(error).__name__, str(error)
    except BaseException:  # noqa: BLE001 - this is looked for, too
        outcome, words = CRASHED, traceback.format_exc()
    os.write(1, f"{outcome}\n{words}".encode())
