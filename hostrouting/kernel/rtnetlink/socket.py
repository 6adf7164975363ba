"""The one socket of rtnetlink(7): it asks, or, where it joins groups, it listens and never blocks."""

from __future__ import annotations

import contextlib
import socket

from hostrouting.kernel.rtnetlink import constants as rtnl

__all__ = ["Socket"]

_RTNLGRP_NEXTHOP = 32
_NETLINK_ADD_MEMBERSHIP = 1


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
