"""An opener for files that other programs have left."""

from __future__ import annotations

import os
import stat


def only_regular(path: str, flags: int, *, dir_fd: int | None = None) -> int:
    """Open a regular file, a folder or /dev/null, as ``open(opener=)`` asks; refuse what blocks, such as a FIFO.

    Args:
        path: of the file.
        flags: as of open(2).
        dir_fd: the folder that the path is relative to; None: the working directory.

    Raises:
        OSError: it can't be opened, or is no regular file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK, dir_fd=dir_fd)
    found = os.fstat(descriptor)
    # /dev/null is what systemd.unit(5) has a masked file linked to.
    is_mask = stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3)
    if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode) or is_mask:  # open refuses a directory itself
        return descriptor
    os.close(descriptor)
    raise OSError("it is not a regular file")
