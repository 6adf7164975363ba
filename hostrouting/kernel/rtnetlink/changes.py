"""The netlink socket that only listens: something about links, addresses, routes or rules has changed.

What changed isn't read: an event is only a reason to look, as some losses of routes send none (a link that goes
down takes its routes along in silence, fib_disable_ip).
"""

from __future__ import annotations

import contextlib
import errno as errnos
from typing import TYPE_CHECKING

from hostrouting.kernel.rtnetlink.constants import AgainError
from hostrouting.kernel.rtnetlink.socket import Socket

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Listener", "calm"]

# linux/rtnetlink.h: RTMGRP_*. Never the default groups of a library: those bring IPv6, neighbours and traffic control.
_LINK, _IPV4_IFADDR, _IPV4_ROUTE, _IPV4_RULE = 0x1, 0x10, 0x40, 0x80

# A bound, so that a flood that never ends can't keep the caller from looking; the next wait returns at once.
_DRAINED_AT_ONCE = 100_000


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
            raise AgainError
