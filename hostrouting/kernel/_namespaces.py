"""Create and enter network namespaces with unshare(2) and setns(2), and explain why the system refuses.

These namespaces have no names and leave nothing behind. They exist as long as a thread, a socket or a file descriptor
refers to them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno as errnos
import os
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from hostrouting.model.errors import RouteError

T = TypeVar("T")

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000

_SO_NETNS_COOKIE = 71  # asm-generic/socket.h

# The namespaces that this process has made, which are the only ones that it may change. This is safer than a list of
# forbidden ones, because reading the host's /proc/1/ns/net takes permission to trace that process, which not every root
# has.
made: set[int] = set()


class NamespaceError(RouteError):
    """The error for a network namespace that can't be created or must not be changed."""


def this_namespace() -> int:
    """Return the cookie of the calling thread's network namespace, which is unique until a reboot.

    The cookie needs Linux 5.14. The inode of a namespace isn't unique, because the kernel reuses it once the namespace
    is gone.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as here:
        return int.from_bytes(here.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder)


def make_namespace() -> None:
    """Move the calling thread into a new network namespace.

    If necessary, the process first enters a user namespace.

    Raises:
        NamespaceError: the system refuses.
    """
    try:
        try:
            _call("unshare", _CLONE_NEWNET)
        except PermissionError:
            _enter_user_namespace()
        made.add(this_namespace())
    except OSError as error:
        raise refusal(error.errno) from error


def _enter_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
    # Without CAP_SETGID, a gid can be mapped only after setgroups has been denied (user_namespaces(7)).
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def _call(function: str, *arguments: int) -> None:
    # os.unshare and os.setns need Python 3.12.
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


class Namespace:
    """A second network namespace, which exists as long as this object and which the calling thread doesn't enter.

    Raises:
        NamespaceError: the system refuses.
    """

    def __init__(self) -> None:
        self.fd = in_thread(_made_aside)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)

    def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread inside the namespace, and return its result or raise its error."""

        def inside() -> T:
            _call("setns", self.fd, _CLONE_NEWNET)
            return function()

        return in_thread(inside)


def _made_aside() -> int:
    make_namespace()
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a new thread, and return its result or raise its error."""
    with ThreadPoolExecutor(1, "hostrouting-namespace") as pool:
        return pool.submit(function).result()


def refusal(errno: int | None) -> NamespaceError:
    """Return the error for a namespace that can't be created, naming the setting that forbids it if it is known."""
    reason = os.strerror(errno) if errno else "unknown error"
    return NamespaceError(f"can't make a network namespace: {reason}", hint=_hint(errno), errno=errno)


def _hint(errno: int | None) -> str:
    if errno == errnos.EINVAL and threading.active_count() > 1:
        return "without root, enter the namespace before the process starts a second thread"
    for setting, forbids, advice in _SETTINGS:
        with contextlib.suppress(FileNotFoundError):  # not every kernel has all of these settings
            if Path("/proc/sys", setting).read_text().strip() == forbids:
                return f"{setting.replace('/', '.')} is {forbids}: {advice}"
    return "run as root, and in a container with CAP_SYS_ADMIN and a seccomp profile that allows unshare(2)"


_SETTINGS = (
    ("user/max_user_namespaces", "0", "raise it, or run as root"),
    ("user/max_net_namespaces", "0", "raise it"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "set it to 0, or run as root"),
    ("kernel/unprivileged_userns_clone", "0", "set it to 1, or run as root"),
)
