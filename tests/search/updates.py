"""An update in a separate process, stopped before any of its steps that have an effect outside."""

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
from hostrouting.kernel.rtnetlink.conversation import Conversation
from hostrouting.kernel.rtnetlink.messages import is_read, runs
from search.starts import LoadedSystemd
from search.world import LAYOUT, SYSTEMD, require_world

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from types import TracebackType

# Like a task's Timeout: far more than any update takes.
_SECONDS = 60.0
CRASHED = "no HostRoutingError"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FILE_EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.chmod"}


class UpdateError(Exception):
    """An update that neither stops nor ends."""


@attrs.frozen
class Stopped:
    """An update that stands still before this step."""

    step: str


@attrs.frozen
class Ended:
    """An update that is over: ``done`` or the name of its error, the error's text, and all its steps."""

    outcome: str
    words: str
    steps: tuple[str, ...]


class Update:
    """An update in a forked child.

    Args:
        make: makes the task, for the host that it works on.
        stop: the number of the step before which it stands still; 0: none.
    """

    def __init__(self, make: Callable[[Host], phases.Task[object]], stop: int = 0) -> None:
        require_world()
        self._connection, there = Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._connection.close()
            _be_the_update(make, there)
        there.close()
        self._state: Stopped | Ended | None = None  # None: it runs
        self._connection.send(stop)

    def __enter__(self) -> Update:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._connection.close()

    def go(self, stop: int = 0) -> None:
        """Let the update continue, to another step or to its end; a running or ended one is left alone."""
        if self.is_standing:
            self._state = None
            self._connection.send(stop)

    @property
    def is_standing(self) -> bool:
        """Tell whether the update stands still."""
        return isinstance(self._state, Stopped)

    def wait(self) -> Stopped | Ended:
        """Wait until the update stands still or is over.

        Raises:
            UpdateError: it does neither.
        """
        if self._state is None:
            if not self._connection.poll(_SECONDS):
                raise UpdateError(f"it does neither stop nor end in {_SECONDS:g} s")
            state = self._connection.recv()
            assert isinstance(state, (Stopped, Ended))
            self._state = state
        return self._state

    def has_news(self, seconds: float) -> bool:
        """Wait a while, and tell whether the update stands still or is over."""
        return self._state is not None or self._connection.poll(seconds)

    def kill(self) -> None:
        """Kill the update with SIGKILL, wherever it is, and await its end."""
        if not self.is_killed:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    @property
    def is_killed(self) -> bool:
        """Tell whether the update was killed."""
        return self._pid == 0


class _Steps:
    """A counter of this process's steps that stops at a given one."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._stop: int = connection.recv()
        self.names: list[str] = []

    def take(self, name: str) -> None:
        """Count a step that is about to happen."""
        self.names.append(name)
        if len(self.names) == self._stop:
            self._connection.send(Stopped(name))
            self._stop = self._connection.recv()


def _be_the_update(make: Callable[[Host], phases.Task[object]], connection: Connection[Any, Any]) -> None:
    """Make the update, and never return: the code after a fork is the parent's."""
    try:
        logging.disable()
        steps = _Steps(connection)
        _watch_netlink(steps)
        host = Host(
            routes=NetlinkBackend(), units=LoadedSystemd(lambda words: steps.take(f"systemd {words}")), layout=LAYOUT
        )
        sys.addaudithook(lambda event, arguments: _see(steps, event, arguments))
        connection.send(_end(make(host), steps))
        connection.recv()  # killed here, or the parent is gone
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
    """Count the step of one of Python's audit events, if it has an effect outside."""
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
    """Tell whether the file system refuses an attempt anyway: the folder exists, or isn't empty."""
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
