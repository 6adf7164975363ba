"""How files of anybody's are opened."""

from __future__ import annotations

import os
import stat


def only_regular(path: str, flags: int) -> int:
    """An opener for ``open`` that refuses at once what could be waited for for ever: a FIFO, a device.

    Raises:
        OSError: it can't be opened, or is no regular file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind) or stat.S_ISDIR(kind):  # open refuses a directory itself
        return descriptor
    os.close(descriptor)
    raise OSError("it is not a regular file")
