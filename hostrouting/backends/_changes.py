"""A netlink socket that only listens: something about links, addresses, routes or rules has changed.

What changed isn't read: an event is only a reason to look, as some losses of routes send none (a link that goes
down takes its routes along in silence, fib_disable_ip). So it needs no decoder, and no pyroute2.
"""

from __future__ import annotations

import contextlib
import errno as errnos
import socket

__all__ = ["ChangeSocket"]

# linux/rtnetlink.h: RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV4_ROUTE | RTMGRP_IPV4_RULE. Never the default
# groups of a library: those bring IPv6, neighbours and traffic control too.
_GROUPS = 0x1 | 0x10 | 0x40 | 0x80
_RTNLGRP_NEXTHOP = 32
_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP = 270, 1

# A bound, so that a flood that never ends can't keep the caller from looking; the next wait returns at once.
_DRAINED_AT_ONCE = 100_000


class ChangeSocket(socket.socket):
    """A socket bound to the groups of what ``RouteBackend`` reads, in the network namespace of this thread.

    Raises:
        OSError: it can't be opened.
    """

    def __init__(self) -> None:
        super().__init__(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        try:
            self.setblocking(False)
            self.bind((0, _GROUPS))
            # Nexthop objects came with Linux 5.3; before, there is nothing to miss.
            with contextlib.suppress(OSError):
                self.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, _RTNLGRP_NEXTHOP)
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        # Lives as long as its thread and its backend; that it ends with them is no leak to warn of.
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
