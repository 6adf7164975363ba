"""azure-vnet's own lock, which it holds from its start to its exit.

Since v1.4.15 it is flock(2) on a file that stays. Before that it was the existence of one of three files; these are
waited for and never made: a crash of ours would block azure-vnet for ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from hostrouting.azure.errors import AzureVnetError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostrouting.boot.layout import Layout
    from phases import CancelScope

__all__ = ["azure_vnet_locked", "lock_file", "old_lock_files"]

_POLL_SECONDS = 0.05


def lock_file(layout: Layout) -> Path:
    """Held with flock(2) by azure-vnet from its start to its exit, since v1.4.15."""
    return layout.of("/var/run/azure-vnet/azure-vnet.lock")


def old_lock_files(layout: Layout) -> tuple[Path, ...]:
    """Locks of earlier azure-vnets, each held as long as it exists."""
    names = (
        "run/azure-vnet.json.lock",
        "lock/azure-vnet/azure-vnet.json.lock",
        "run/azure-vnet/azure-vnet.json.lock",
    )
    return tuple(layout.of(f"/var/{name}") for name in names)


@contextlib.contextmanager
def azure_vnet_locked(layout: Layout, seconds: float, scope: CancelScope) -> Iterator[None]:
    """Keep azure-vnet from starting on a pod, and wait until it is done with the one that it may be at.

    Where the folder of its lock isn't there, no azure-vnet that knows that lock has run since the boot; nothing is made
    then. An azure-vnet from before that lock can't be kept from starting, only waited for.

    Args:
        layout: where its files are.
        seconds: how long to wait.
        scope: ends the wait.

    Raises:
        AzureVnetError: azure-vnet holds its lock for longer, or a lock file can't be opened.
    """
    deadline = scope.clock.monotonic() + seconds
    is_told = False
    with contextlib.ExitStack() as held:
        while (busy := _take(layout, held)) is not None:
            if scope.clock.monotonic() >= deadline:
                advice = f"see who with `fuser -v {busy}`, and raise lockWaitSeconds if it is busy"
                if busy != lock_file(layout):
                    # Its telemetry, which always runs, has a longer name.
                    unless = "if none runs (`pgrep -x azure-vnet`), a crash has left it, and it blocks azure-vnet too"
                    advice = f"{unless}: remove {busy}"
                raise AzureVnetError(
                    f"can't remove what azure-vnet left: it has held its lock {busy} for {seconds:g} s; {advice}"
                )
            if not is_told:
                scope.progress(f"waiting for azure-vnet to let go of {busy}")
                is_told = True
            scope.wait(_POLL_SECONDS)
        yield


def _take(layout: Layout, held: contextlib.ExitStack) -> Path | None:
    """Take the lock until ``held`` is closed; if azure-vnet has it, the file by which it does."""
    for old in old_lock_files(layout):
        if os.path.lexists(old):
            return old
    path = lock_file(layout)
    if not path.parent.is_dir():
        return None
    try:
        with contextlib.ExitStack() as opened:
            fcntl.flock(opened.enter_context(path.open("ab")), fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.enter_context(opened.pop_all())
    except BlockingIOError:
        return path
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise AzureVnetError(f"can't take azure-vnet's lock {path}: {reason}", errno=error.errno) from error
    return None
