"""How files of anybody's are opened."""

from __future__ import annotations

import os
import stat

# What systemd.unit(5) has a masked file linked to.
_NULL = os.makedev(1, 3)


def only_regular(path: str, flags: int) -> int:
    """An opener for ``open`` that refuses at once what could be waited for for ever: a FIFO, a device but /dev/null.

    Raises:
        OSError: it can't be opened, or is no regular file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    found = os.fstat(descriptor)
    is_mask = stat.S_ISCHR(found.st_mode) and found.st_rdev == _NULL
    if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode) or is_mask:  # open refuses a directory itself
        return descriptor
    os.close(descriptor)
    raise OSError("it is not a regular file")
