"""A safe opener for files created by other programs."""

from __future__ import annotations

import os
import stat


def only_regular(path: str, flags: int, *, dir_fd: int | None = None) -> int:
    """Open a regular file, a directory or /dev/null; refuse files that may block, such as FIFOs.

    Use it as the opener in ``open(opener=)``.

    Args:
        path: the file's path.
        flags: flags as for open(2).
        dir_fd: file descriptor of the directory that the path is relative to; defaults to the working directory.

    Raises:
        OSError: the file can't be opened, or isn't a regular file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK, dir_fd=dir_fd)
    found = os.fstat(descriptor)
    # A masked unit file is a symlink to /dev/null (systemd.unit(5)).
    is_mask = stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3)
    if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode) or is_mask:  # open() itself refuses a directory
        return descriptor
    os.close(descriptor)
    raise OSError("it is not a regular file")
