"""The sockets of rtnetlink(7): one asks; one that joins groups only listens, and never blocks.

What changed isn't read: an event is only a reason to look, as some losses of routes send none (a link that goes
down takes its routes along in silence, fib_disable_ip).
"""

from __future__ import annotations

import contextlib
import errno as errnos
import socket
from typing import TYPE_CHECKING

from hostrouting.kernel.rtnetlink import constants as rtnl

if TYPE_CHECKING:
    from collections.abc import Iterator

_RTNLGRP_NEXTHOP = 32
_NETLINK_ADD_MEMBERSHIP = 1
# linux/rtnetlink.h: RTMGRP_*. Never the default groups of a library: those bring IPv6, neighbours and traffic control.
_LINK, _IPV4_IFADDR, _IPV4_ROUTE, _IPV4_RULE = 0x1, 0x10, 0x40, 0x80

# A bound, so that a flood that never ends can't keep the caller from looking; the next wait returns at once.
_DRAINED_AT_ONCE = 100_000


class Socket(socket.socket):
    """A socket in the network namespace of this thread.

    Args:
        groups: RTMGRP_*, to listen to; changes of nexthop objects come besides. 0: it asks.

    Raises:
        OSError: it can't be opened.
    """

    def __init__(self, groups: int = 0) -> None:
        super().__init__(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        try:
            if groups:
                self.setblocking(False)
            # The kernel's own sentences; refusals without the whole request; dumps filtered by the kernel.
            for option in (rtnl.NETLINK_EXT_ACK, rtnl.NETLINK_CAP_ACK, rtnl.NETLINK_GET_STRICT_CHK):
                self.setsockopt(rtnl.SOL_NETLINK, option, 1)
            self.bind((0, groups))
            if groups:
                # Nexthop objects came with Linux 5.3; before, there is nothing to miss.
                with contextlib.suppress(OSError):
                    self.setsockopt(rtnl.SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, _RTNLGRP_NEXTHOP)
        except BaseException:
            self.close()
            raise


class Listener(Socket):
    """Listens for all that ``RouteBackend`` reads.

    A link that goes down, or loses its last address, takes routes along in silence; a dump of IPv4 routes itself never
    tells that they changed meanwhile (NLM_F_DUMP_INTR); and rules decide which tables count.

    Raises:
        OSError: it can't be opened.
    """

    def __init__(self) -> None:
        super().__init__(_LINK | _IPV4_IFADDR | _IPV4_ROUTE | _IPV4_RULE)
        self._has_seen = False

    def __del__(self) -> None:
        # One that waits lives as long as its thread and its backend; that it ends with them is no leak to warn of.
        with contextlib.suppress(AttributeError):  # it couldn't be opened
            self.close()

    def drain(self) -> None:
        """Forget what has arrived.

        Raises:
            OSError: the socket failed.
        """
        for _ in range(_DRAINED_AT_ONCE):
            try:
                # One byte is enough: the rest of the datagram goes with it.
                self.recv(1)
            except BlockingIOError:
                return
            except OSError as error:
                # Events were lost; that they were is all there is to know. The socket goes on.
                if error.errno != errnos.ENOBUFS:
                    raise

    def saw_a_change(self) -> bool:
        """Whether anything has changed since this was opened; whoever asks again is told again."""
        if not self._has_seen:
            try:
                self._has_seen = bool(self.recv(1))
            except BlockingIOError:
                pass
            except OSError:
                self._has_seen = True  # ENOBUFS: there were too many
        return self._has_seen


@contextlib.contextmanager
def calm(attempts: Iterator[int]) -> Iterator[None]:
    """Have what is read meanwhile read again if anything changes, as long as there are attempts left.

    Raises:
        AgainError: something has changed.
        OSError: nobody can listen.
    """
    with contextlib.closing(Listener()) as listener:
        yield
        if listener.saw_a_change() and next(attempts, None) is not None:
            raise rtnl.AgainError
