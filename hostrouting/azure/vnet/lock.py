"""azure-vnet's own lock, which it holds from its start to its exit: since v1.4.15 flock(2) on a file that stays."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import IO, TYPE_CHECKING

from hostrouting.azure.errors import AzureVnetError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostrouting.boot.layout import Layout
    from phases import CancelScope

__all__ = ["azure_vnet_locked", "lock_file"]

_POLL_SECONDS = 0.05


def lock_file(layout: Layout) -> Path:
    """What azure-vnet locks."""
    return layout.of("/var/run/azure-vnet/azure-vnet.lock")


@contextlib.contextmanager
def azure_vnet_locked(layout: Layout, seconds: float, scope: CancelScope) -> Iterator[None]:
    """Keep azure-vnet from starting on a pod, and wait until it is done with the one that it may be at.

    Where the folder of its lock isn't there, no azure-vnet that knows that lock has run since the boot; nothing is made
    then. What an older one is at is told by the pod's pair of interfaces, which it makes first.

    Args:
        layout: where its files are.
        seconds: how long to wait.
        scope: ends the wait.

    Raises:
        AzureVnetError: azure-vnet holds its lock for longer, or the lock can't be taken.
    """
    path, deadline = lock_file(layout), scope.clock.monotonic() + seconds
    if not path.parent.is_dir():
        yield
        return
    with _opened(path) as file:
        is_told = False
        while not _take(file):
            if scope.clock.monotonic() >= deadline:
                raise AzureVnetError(
                    f"can't remove what azure-vnet left: it has held its lock {path} for {seconds:g} s; see who with "
                    f"`fuser -v {path}`, and raise lockWaitSeconds if it is busy"
                )
            if not is_told:
                scope.progress(f"waiting for azure-vnet to let go of {path}")
                is_told = True
            scope.wait(_POLL_SECONDS)
        yield


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("ab")
    except OSError as error:
        raise AzureVnetError(
            f"can't open azure-vnet's lock {path}: {os.strerror(error.errno or 0)}", errno=error.errno
        ) from error


def _take(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
