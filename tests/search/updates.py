"""Run an update in a child process that can be paused before each step with an external effect."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

import phases
from hostrouting import Host, HostRoutingError
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.rtnetlink.conversation import Conversation
from hostrouting.kernel.rtnetlink.messages import is_read, runs
from search.starts import LoadedSystemd
from search.world import LAYOUT, SYSTEMD, require_world

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from types import TracebackType

# Timeout for an update to pause or finish. Updates are much faster than this.
_SECONDS = 60.0
CRASHED = "no HostRoutingError"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FILE_EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.chmod"}


class UpdateError(Exception):
    """The update has neither paused nor finished in time."""


@attrs.frozen
class Stopped:
    """The update is paused just before this step."""

    step: str


@attrs.frozen
class Ended:
    """The outcome of an update (``done`` or an exception name), its error message, and all steps."""

    outcome: str
    words: str
    steps: tuple[str, ...]


class Update:
    """An update in a forked child process.

    Args:
        make: a factory that returns the task for a host.
        stop: the number of the step to pause before, or 0 to never pause.
    """

    def __init__(self, make: Callable[[Host], phases.Task[object]], stop: int = 0) -> None:
        require_world()
        self._connection, there = Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._connection.close()
            _be_the_update(make, there)
        there.close()
        self._state: Stopped | Ended | None = None  # None while it runs
        self._connection.send(stop)

    def __enter__(self) -> Update:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._connection.close()

    def go(self, stop: int = 0) -> None:
        """Resume a paused update until a given step or until it finishes."""
        if self.is_standing:
            self._state = None
            self._connection.send(stop)

    @property
    def is_standing(self) -> bool:
        """Return whether the update is paused."""
        return isinstance(self._state, Stopped)

    def wait(self) -> Stopped | Ended:
        """Wait until the update is paused or has finished.

        Raises:
            UpdateError: neither happens within a minute.
        """
        if self._state is None:
            if not self._connection.poll(_SECONDS):
                raise UpdateError(f"it does neither stop nor end in {_SECONDS:g} s")
            state = self._connection.recv()
            assert isinstance(state, (Stopped, Ended))
            self._state = state
        return self._state

    def has_news(self, seconds: float) -> bool:
        """Wait for up to this time, and return whether the update is paused or has finished."""
        return self._state is not None or self._connection.poll(seconds)

    def kill(self) -> None:
        """Kill the update with SIGKILL, and reap the process."""
        if not self.is_killed:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    @property
    def is_killed(self) -> bool:
        """Return whether the update was killed."""
        return self._pid == 0


class _Steps:
    """Counts the steps of this process and pauses before a given step."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._stop: int = connection.recv()
        self.names: list[str] = []

    def take(self, name: str) -> None:
        """Record the next step, and pause if it matches."""
        self.names.append(name)
        if len(self.names) == self._stop:
            self._connection.send(Stopped(name))
            self._stop = self._connection.recv()


def _be_the_update(make: Callable[[Host], phases.Task[object]], connection: Connection[Any, Any]) -> None:
    """Run the update in the forked child, and never return to the parent's code."""
    try:
        logging.disable()
        steps = _Steps(connection)
        _watch_netlink(steps)
        host = Host(
            NetlinkBackend(), LoadedSystemd(lambda words: steps.take(f"systemd {words}")), LAYOUT, NetlinkBackend6()
        )
        sys.addaudithook(lambda event, arguments: _see(steps, event, arguments))
        connection.send(_end(make(host), steps))
        connection.recv()  # the parent kills this process here, or has ended
    except EOFError:
        pass
    finally:
        os._exit(0)


def _end(task: phases.Task[object], steps: _Steps) -> Ended:
    try:
        phases.run(task)
    except HostRoutingError as error:
        return Ended(type(error).__name__, str(error), tuple(steps.names))
    except BaseException:  # noqa: BLE001 - this is looked for, too
        return Ended(CRASHED, traceback.format_exc(), tuple(steps.names))
    return Ended("done", "", tuple(steps.names))


def _watch_netlink(steps: _Steps) -> None:
    send = Conversation._send

    def seen_send(self: Conversation, messages: bytes) -> None:
        kinds = [run.kind for run in runs(messages) if not is_read(run.kind)]
        if kinds:
            steps.take(f"netlink {' '.join(map(str, kinds))}")
        send(self, messages)

    Conversation._send = seen_send  # type: ignore[method-assign]


def _see(steps: _Steps, event: str, arguments: tuple[Any, ...]) -> None:
    """Record a Python audit event as a step if it has an external effect."""
    if event == "fcntl.flock":
        path = os.readlink(f"/proc/self/fd/{arguments[0]}")  # noqa: PTH115 - no path
        steps.take(f"flock {path} {arguments[1]}")
    elif event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & _WRITES and _is_ours(path):
            steps.take(f"open {path}")
    elif event in _FILE_EVENTS:
        paths = [os.fsdecode(one) for one in arguments[:2] if _is_ours(one)]
        if paths and not _does_nothing(event, Path(paths[0])):
            steps.take(f"{event.removeprefix('os.')} {' '.join(paths)}")


def _does_nothing(event: str, path: Path) -> bool:
    """Return whether the operation will fail anyway, e.g. because a directory isn't empty."""
    if event == "os.mkdir":
        return path.exists()
    if event == "os.remove":
        return not os.path.lexists(path)
    return event == "os.rmdir" and (not path.exists() or any(os.scandir(path)))


def _is_ours(path: object) -> bool:
    if not isinstance(path, (str, bytes, os.PathLike)):
        return False
    place = Path(os.fsdecode(path))
    return (place.is_relative_to("/etc") or place.is_relative_to("/run")) and not place.is_relative_to(SYSTEMD)
