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
from hostrouting.azure.vnet import places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hostrouting.boot.layout import Layout
    from phases import CancelScope

__all__ = ["azure_vnet_locked"]

_POLL_SECONDS = 0.05


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
    lock_files = places.lock_files(layout)
    deadline = scope.clock.monotonic() + seconds

    def wait(path: Path, is_free: Callable[[], bool], advice: str) -> None:
        is_waiting = False
        while not is_free():
            if scope.clock.monotonic() >= deadline:
                raise AzureVnetError(
                    f"can't remove what azure-vnet left: it has held its lock {path} for {seconds:g} s; {advice}"
                )
            if not is_waiting:
                scope.progress(f"waiting for azure-vnet to let go of {path}")
                is_waiting = True
            scope.wait(_POLL_SECONDS)

    with contextlib.closing(_Lock(places.lock(layout))) as lock:
        while True:
            for path in lock_files:
                wait(path, lambda path=path: not _exists(path), _advice(path))  # type: ignore[misc]
            wait(lock.path, lock.take, f"see who with `fuser -v {lock.path}`, and raise lockWaitSeconds if it is busy")
            if not any(map(_exists, lock_files)):
                break
            # azure-vnet itself is never kept waiting while we are.
            lock.close()
        yield


def _advice(path: Path) -> str:
    # Its telemetry, which always runs, has a longer name.
    return f"if none runs (`pgrep -x azure-vnet`), a crash has left it, and it blocks azure-vnet too: remove {path}"


class _Lock:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Whether it is held now, or there is no folder that it could be in."""
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as error:
            raise _refusal(f"open azure-vnet's lock {self.path}", error) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            return False
        except OSError as error:
            raise _refusal(f"take azure-vnet's lock {self.path}", error) from error
        if self._is_that_of_the_path():
            return True
        self.close()
        return False

    def _is_that_of_the_path(self) -> bool:
        """Whether whoever comes next opens the same file: one that was replaced since we opened it keeps nobody out."""
        assert self._descriptor is not None
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _refusal(f"look for azure-vnet's lock {path}", error) from error
    return True


def _refusal(attempt: str, error: OSError) -> AzureVnetError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    return AzureVnetError(f"can't {attempt}: {reason}", errno=error.errno)
