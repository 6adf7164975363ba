"""Create an InfiniBand interface without the hardware."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_TUNSETIFF, _TUNSETLINK = 0x400454CA, 0x400454CD
_IFF_TUN, _IFF_NO_PI = 0x1, 0x1000
_ARPHRD_INFINIBAND = 32


@contextmanager
def infiniband(dev: str, *, is_up: bool = True) -> Iterator[None]:
    """Create a tun device with the InfiniBand link type in this thread's network namespace; tests
    may move it to another one.

    Args:
        dev: the interface name.
        is_up: the administrative state.
    """
    fd = os.open("/dev/net/tun", os.O_RDWR)
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", dev.encode(), _IFF_TUN | _IFF_NO_PI))
        fcntl.ioctl(fd, _TUNSETLINK, _ARPHRD_INFINIBAND)
        if is_up:
            subprocess.run(["ip", "link", "set", dev, "up"], check=True)
        yield
    finally:
        os.close(fd)
