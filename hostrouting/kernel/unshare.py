"""Create and enter network namespaces with unshare(2) and setns(2), and explain failures.

The namespaces are anonymous and leave nothing behind. A namespace exists as long as a thread,
socket or file descriptor refers to it.
"""

from __future__ import annotations

import ctypes
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from hostrouting.kernel.refusals import NetlinkError
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink.conversation import Conversation
from hostrouting.model.errors import RouteError

T = TypeVar("T")

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000

_IFLA_IFALIAS = 20  # linux/if_link.h

# A request for lo, which always has index 1.
_LO = rtnl.LINK.pack(0, 0, 1, 0, 0)

# This alias of lo marks the namespaces that this process has created. The process must not change
# any other namespace. No other mark would do. Even root may lack the permission to compare a
# namespace with the host's (/proc/1/ns/net), the kernel reuses the inode numbers of namespaces, and
# SO_NETNS_COOKIE requires Linux 5.14.
_MARK = f"hostrouting-{secrets.token_hex(8)}".encode()


class NamespaceError(RouteError):
    """Exception raised when a network namespace can't be created or must not be changed."""


def is_made_here() -> bool:
    """Return whether this process created the calling thread's network namespace.

    Raises:
        RouteError: the kernel doesn't answer.
    """
    with rtnl.as_route_errors("find the link lo"), Conversation() as talk:
        answer = talk.get(rtnl.RTM_GETLINK, _LO)
    found = rtnl.attributes(answer, rtnl.HEADER_BYTES + rtnl.LINK.size)
    return found.get(_IFLA_IFALIAS, b"").rstrip(b"\0") == _MARK


def _mark_as_made_here() -> None:
    mark = _LO + rtnl.attribute(_IFLA_IFALIAS, _MARK)
    with Conversation() as talk:
        for _, refused in talk.change(
            [mark],
            lambda body, sequence: rtnl.message(rtnl.RTM_NEWLINK, rtnl.CHANGE, sequence, body),
        ):
            raise refused


def make_namespace() -> None:
    """Move the calling thread into a new network namespace.

    Without CAP_SYS_ADMIN, the process also enters a new user namespace.

    Raises:
        NamespaceError: the system refuses.
    """
    try:
        try:
            _call("unshare", _CLONE_NEWNET)
        except PermissionError:
            _enter_user_namespace()
        _mark_as_made_here()
    except (OSError, NetlinkError) as error:
        raise refusal(error.errno) from error


def _enter_user_namespace() -> None:
    uid = os.geteuid()
    gid = os.getegid()
    _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
    # Without CAP_SETGID, a gid can be mapped only after setgroups has been denied
    # (user_namespaces(7)).
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def _call(function: str, *arguments: int) -> None:
    # os.unshare and os.setns require Python 3.12.
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


class Namespace:
    """A separate network namespace that lives as long as this object.

    The calling thread doesn't enter the namespace.

    Raises:
        NamespaceError: the system refuses.
    """

    def __init__(self) -> None:
        self.fd = in_thread(_made_aside)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)

    def run(self, function: Callable[[], T]) -> T:
        """Run a function in a thread inside the namespace; return its result or raise its error."""

        def inside() -> T:
            _call("setns", self.fd, _CLONE_NEWNET)
            return function()

        return in_thread(inside)


def _made_aside() -> int:
    make_namespace()
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def in_thread(function: Callable[[], T]) -> T:
    """Run a function in a new thread, and return its result or raise its exception."""
    with ThreadPoolExecutor(1, "hostrouting-namespace") as pool:
        return pool.submit(function).result()


def refusal(errno: int | None) -> NamespaceError:
    """Return the error for a failed namespace creation."""
    reason = os.strerror(errno) if errno else "unknown error"
    return NamespaceError(f"can't make a network namespace: {reason}", hint=_HINT, errno=errno)


_HINT = (
    "run as root, in a container with CAP_SYS_ADMIN; or allow user namespaces "
    "(user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns), "
    "and enter before the process starts a second thread"
)
