"""What a service tells systemd: sd_notify(3), a datagram to the socket that systemd names."""

from __future__ import annotations

import contextlib
import socket
from math import inf
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Supervisor"]

# systemd ignores a datagram of more than PIPE_BUF bytes (manager_dispatch_notify_fd), and goes on showing the old line.
_STATUS_BYTES = 2048


@attrs.frozen
class Supervisor:
    """Who started us and wants to hear of us; systemd, or nobody.

    Args:
        address: of its socket; None: nobody listens.
        watchdog_seconds: it ends us if it hears nothing for so long; None: it doesn't.
    """

    address: str | None = None
    watchdog_seconds: float | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str], pid: int) -> Supervisor:
        """The one that an environment tells of.

        Args:
            environment: ours.
            pid: of this process; a watchdog of another one is none of our business.
        """
        named = environment.get("NOTIFY_SOCKET", "")
        address = None
        if named.startswith(("/", "@")) and len(named) > 1:
            address = "\0" + named[1:] if named[0] == "@" else named
        seconds = None
        span = environment.get("WATCHDOG_USEC", "")
        if span.isdecimal() and int(span) > 0 and environment.get("WATCHDOG_PID", str(pid)) == str(pid):
            seconds = int(span) / 1e6
        return cls(address, seconds)

    @property
    def ping_seconds(self) -> float:
        """How often to ping: twice in its time, as sd_watchdog_enabled(3) advises."""
        return inf if self.watchdog_seconds is None else self.watchdog_seconds / 2

    def ready(self) -> None:
        """Say that the start is over."""
        self._tell("READY=1")

    def status(self, text: str) -> None:
        """Say in one line how things are, for ``systemctl status``; a long one is cut."""
        line = " ".join(text.split())
        content = line.encode("utf-8", "replace")
        if len(content) > _STATUS_BYTES:
            line = content[:_STATUS_BYTES].decode("utf-8", "ignore") + "…"
        self._tell(f"STATUS={line}")

    def ping(self) -> None:
        """Say that we are alive."""
        if self.watchdog_seconds is not None:
            self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """Say that we end."""
        self._tell("STOPPING=1")

    def _tell(self, line: str) -> None:
        if self.address is None:
            return
        # Who doesn't listen any more must not end us: systemd itself notices a service that it hears nothing of.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.settimeout(1.0)
            to.sendto(line.encode("utf-8", "replace"), self.address)
