"""Files are opened at once or refused: a pipe with a name waits for whoever may write into it, for ever."""

from __future__ import annotations

import os
import stat

from hostrouting.model.errors import ConfigError

__all__ = ["open_at_once"]

# What is open already, for example what a shell hands over as <(command): its name is a link to it, proc(5).
_OPEN_ALREADY = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


def open_at_once(path: str, flags: int) -> int:
    """An opener for ``open``.

    Raises:
        ConfigError: it is neither a file nor a directory, nor open already.
        OSError: it can't be opened.
    """
    if str(path).startswith(_OPEN_ALREADY):
        return os.open(path, flags)
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        os.close(descriptor)
        raise ConfigError([(str(path), "is a pipe or a device; expected a file")])
    return descriptor
