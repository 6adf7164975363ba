"""The netlink socket that only listens: something about links, addresses, routes or rules has changed.

What changed is hardly read: an event is only a reason to look, as some losses of routes send none (a link that goes
down takes its routes along in silence, fib_disable_ip).
"""

from __future__ import annotations

import contextlib
import errno as errnos
import socket

from hostrouting.kernel.rtnetlink import constants as rtnl
from hostrouting.kernel.rtnetlink import wire
from hostrouting.kernel.rtnetlink.messages import HEADER_BYTES, attributes, runs, to_number
from hostrouting.kernel.rtnetlink.socket import Socket
from hostrouting.model.routes import Scope

__all__ = ["Listener"]

# linux/rtnetlink.h: RTMGRP_*. Never the default groups of a library: those bring IPv6, neighbours and traffic control.
_LINK, _IPV4_IFADDR, _IPV4_ROUTE, _IPV4_RULE = 0x1, 0x10, 0x40, 0x80

# A bound, so that a flood that never ends can't keep the caller from looking; the next wait returns at once.
_DRAINED_AT_ONCE = 100_000

# --- a socket filter, linux/filter.h ---------------------------------------------------------------------------------

_LOAD_BYTE, _LOAD_SHORT, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x30, 0x28, 0x15, 0x35, 0x06
_PASS, _DROP = 0xFFFFFFFF, 0

# A message's kind, and of a route dst_len and scope (wire.py). A filter loads numbers in the network's order; the
# kernel writes the kind in the host's.
_WAYS_ONLY = (
    (_LOAD_SHORT, 0, 0, 4),
    (_IF_EQUAL, 1, 0, socket.htons(rtnl.RTM_NEWROUTE)),
    (_IF_EQUAL, 0, 4, socket.htons(rtnl.RTM_DELROUTE)),
    (_LOAD_BYTE, 0, 0, 17),
    (_IF_EQUAL, 2, 0, 0),
    (_LOAD_BYTE, 0, 0, 22),
    (_IF_AT_LEAST, 0, 1, Scope.LINK),
    (_RETURN, 0, 0, _PASS),
    (_RETURN, 0, 0, _DROP),
)


class Listener(Socket):
    """Listens for all that ``RouteBackend`` reads.

    A link that goes down, or loses its last address, takes routes along in silence; a dump of IPv4 routes itself never
    tells that they changed meanwhile (NLM_F_DUMP_INTR); and rules decide which tables count.

    Args:
        ways_only: leave out the routes that no other route can need.

    Raises:
        OSError: it can't be opened.
    """

    def __init__(self, *, ways_only: bool = False) -> None:
        super().__init__(_LINK | _IPV4_IFADDR | _IPV4_ROUTE | _IPV4_RULE, _WAYS_ONLY if ways_only else ())
        self._has_seen: set[int | None] = set()  # tables of which a change was seen; None: of any

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

    def saw_a_change(self, table: int | None) -> bool:
        """Whether entries may have changed since this was opened.

        Args:
            table: of which table; None: of any.
        """
        if table not in self._has_seen and self._sees_a_change(table):
            self._has_seen.add(table)
        return table in self._has_seen

    def _sees_a_change(self, table: int | None) -> bool:
        for _ in range(_DRAINED_AT_ONCE):
            try:
                event = self.recv(_EVENT_BYTES)
            except BlockingIOError:
                return False
            except OSError:
                return True  # ENOBUFS: there were too many
            if _is_about(event, table):
                return True
        return True


_EVENT_BYTES = 0x4000


def _is_about(event: bytes, table: int | None) -> bool:
    try:
        for run in runs(event):
            is_route = run.kind in (rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE)
            if table is None or not is_route:
                return True
            # The kernel names the table of every route in full (fib_dump_info).
            if to_number(attributes(run.messages, HEADER_BYTES + wire.BODY.size)[wire.RTA_TABLE]) == table:
                return True
    except (rtnl.AgainError, KeyError):
        return True
    return False
