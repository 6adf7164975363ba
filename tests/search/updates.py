"""Run an update in a child process that can be paused before each step with an external effect."""

from __future__ import annotations

import logging
import os
import tempfile
import traceback
from collections.abc import Callable
from functools import partial

import attrs

import phases
from hostrouting import Host, HostRoutingError
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from search.starts import LoadedSystemd
from search.tracing import Stopped, Traced
from search.world import LAYOUT, require_world

# Timeout for an update to pause or finish. Updates are much faster than this.
_SECONDS = 60.0
CRASHED = "no HostRoutingError"


class UpdateError(Exception):
    """The update has neither paused nor finished in time."""


@attrs.frozen
class Ended:
    """The outcome of an update (``done`` or an exception name), its error message, and all steps."""

    outcome: str
    words: str
    steps: tuple[str, ...]


class Update(Traced):
    """An update in a traced process.

    Args:
        make: a factory that returns the task for a host.
        stop: the number of the step to pause before, or 0 to never pause.
    """

    def __init__(self, make: Callable[[Host], phases.Task[object]], stop: int = 0) -> None:
        require_world()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - the child writes it, and wait() reads it
        super().__init__(partial(_perform, make), self._said, stop)

    def wait(self) -> Stopped | Ended:
        """Wait until the update is paused or has finished.

        Raises:
            UpdateError: neither happens within a minute.
        """
        state = self.poll(_SECONDS)
        if state is None:
            raise UpdateError(f"the update didn't stop or end in {_SECONDS:g} s")
        if isinstance(state, Stopped):
            return state
        self._said.seek(0)
        outcome, _, words = self._said.read().decode().partition("\n")
        return Ended(outcome, words, state.calls)


def _perform(make: Callable[[Host], phases.Task[object]]) -> None:
    logging.disable()
    words = ""
    try:
        phases.run(make(Host(NetlinkBackend(), LoadedSystemd(), LAYOUT, NetlinkBackend6())))
        outcome = "done"
    except HostRoutingError as error:
        outcome, words = type(error).__name__, str(error)
    except BaseException:  # noqa: BLE001 - this is looked for, too
        outcome, words = CRASHED, traceback.format_exc()
    os.write(1, f"{outcome}\n{words}".encode())
