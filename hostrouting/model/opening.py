"""Validate paths, open files created by other programs, and translate the system's errors."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from hostrouting.model.errors import FileError
from hostrouting.model.text import shown


class NotRegularError(OSError):
    """The error for a file that isn't regular, such as a FIFO or a device."""


@contextlib.contextmanager
def translate_errors(attempt: str, *ignored: int) -> Iterator[None]:
    """Translate an ``OSError`` into a ``FileError``. Suppress it if its errno is to be ignored."""
    try:
        yield
    except OSError as error:
        if error.errno not in ignored:
            raise FileError.of(attempt, error) from error


def only_regular(path: str, flags: int, *, dir_fd: int | None = None) -> int:
    """Open a regular file, a directory or /dev/null; refuse files that may block, such as FIFOs.

    Use it as the opener in ``open(opener=)``.

    Args:
        path: the path of the file.
        flags: flags as for open(2).
        dir_fd: file descriptor of the directory that the path is relative to; defaults to the
            working directory.

    Raises:
        OSError: the file can't be opened.
        NotRegularError: the file is neither regular, nor a directory, nor /dev/null.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK, dir_fd=dir_fd)
    state = os.fstat(descriptor)
    # A masked unit file is a symlink to /dev/null (systemd.unit(5)).
    is_mask = stat.S_ISCHR(state.st_mode) and state.st_rdev == os.makedev(1, 3)
    # For a directory, open() itself then raises an error.
    if stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode) or is_mask:
        return descriptor
    os.close(descriptor)
    raise NotRegularError("it is not a regular file")


def check_path(value: object, argument: str) -> None:
    """Raise a ``TypeError`` unless an argument, such as ``Layout(root=…)``, is a path."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{argument} takes a path, not {shown(value)}")
